"""Whether a client that reads vLLM's cache with code of its own reads the layout that this vLLM keeps.
Standard library only.

The states lie in a paged cache: in older versions (pages, page size, heads, width), in newer ones (pages,
heads, page size, width). Code for the one finds other rows, or too few, in the other, and nothing raises.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from eagle3_data.compatibility.source.client import Client
from eagle3_data.compatibility.source.symbols import FunctionNode, FunctionSymbol, Symbols, last_name
from eagle3_data.findings import Finding

MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector"
EXTRACTS = re.compile(r"extract\w*kv_?cache")
REMEDY = "import extract_from_kv_cache from vLLM's example_hidden_states_connector in place of a copy of it"


def page_axis(function: ast.AST) -> int | None:
    """Which axis of the cache the function takes for the rows of a page, None where that is not seen."""
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "flatten"
        ):
            if [argument.value for argument in node.args if isinstance(argument, ast.Constant)] == [0, 1]:
                return 1
        elif isinstance(node, ast.Subscript) and last_name(node.value) == "shape":
            index = node.slice
            if isinstance(index, ast.Constant) and isinstance(index.value, int) and index.value in (1, 2):
                return index.value
    return None


def check_cache_layout(client: Client, symbols: Symbols) -> Iterator[Finding]:
    theirs = symbols.resolve(MODULE, "extract_from_kv_cache")
    if not isinstance(theirs, FunctionSymbol) or (axis := page_axis(theirs.node)) is None:
        return
    for file in client.files:
        for node in file.nodes:
            if not isinstance(node, FunctionNode) or not EXTRACTS.search(node.name):
                continue
            own = page_axis(node)
            place = file.location(node), symbols.location(theirs)
            if own is None:
                title = f"{node.name} reads vLLM's cache in a way of its own, which cannot be judged"
                yield Finding("cache-layout", "unknown", title, *place, remedy=REMEDY)
            elif own != axis:
                title = (
                    f"{node.name} takes axis {own} of vLLM's cache for the rows of a page, and here that is"
                    f" axis {axis}: states of other tokens, or too few, without an error"
                )
                yield Finding("cache-layout", "fail", title, *place, remedy=REMEDY)
