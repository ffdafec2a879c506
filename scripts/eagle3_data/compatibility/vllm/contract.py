"""What vLLM's own hidden-state extraction guarantees, read from the source of one vLLM version. Standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle3_data.compatibility.source.symbols import ClassSymbol, FunctionSymbol, Symbols, dotted, last_name

METHOD = "extract_hidden_states"
SPECULATIVE = "vllm.config.speculative"
CONNECTOR_MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector"
CONNECTOR = "ExampleHiddenStatesConnector"
CACHE_GROUPS = "vllm.v1.core.kv_cache_utils"


@dataclass(frozen=True)
class Contract:
    """The rules of one vLLM version. Locations are `file:line`."""

    has_method: bool
    method_location: str
    allowed_model_types: tuple[str, ...] | None = None
    connector: ClassSymbol | None = None
    saves: FunctionSymbol | None = None
    saves_in_step: bool = False
    saves_slots_of_step: bool = False
    writes_asynchronously: bool = False
    one_rank_writes: bool = True
    finds_cache_group: bool = True
    fits_hybrid_pages: bool = True
    configuration_keys: frozenset[str] = field(default_factory=frozenset)
    request_keys: frozenset[str] = field(default_factory=frozenset)


def read_contract(symbols: Symbols) -> Contract:
    tree = symbols.tree
    speculative = tree.parse(SPECULATIVE)
    literal = next(
        (
            n
            for n in ast.walk(speculative)
            if isinstance(n, ast.Subscript) and last_name(n) == "Literal" and _holds(n, METHOD)
        ),
        None,
    )
    location = tree.location(SPECULATIVE, literal)
    connector = symbols.resolve(CONNECTOR_MODULE, CONNECTOR)
    if literal is None or not isinstance(connector, ClassSymbol):
        return Contract(has_method=literal is not None, method_location=location)
    source = tree.source(CONNECTOR_MODULE)
    saves = symbols.method(connector, "save_kv_layer")
    return Contract(
        has_method=True,
        method_location=location,
        allowed_model_types=_allowlist(speculative),
        connector=connector,
        saves=saves,
        saves_in_step=saves is not None and not _does_nothing(saves),
        saves_slots_of_step=saves is not None and _slots_of_step(saves),
        writes_asynchronously="ThreadPoolExecutor" in source,
        one_rank_writes="get_tensor_model_parallel_rank" in source,
        finds_cache_group="HiddenStateCacheSpec" in source or (saves is not None and _slots_of_layer(saves)),
        fits_hybrid_pages="_ensure_min_page_size" in tree.source(CACHE_GROUPS),
        configuration_keys=frozenset(first_strings(connector.node, "get_from_extra_config")),
        request_keys=frozenset(first_strings(connector.node, "get", of="kv_params")),
    )


def _holds(node: ast.AST, value: str) -> bool:
    return any(isinstance(n, ast.Constant) and n.value == value for n in ast.walk(node))


def _allowlist(speculative: ast.Module) -> tuple[str, ...] | None:
    """Model types the method accepts, where the version keeps such a list."""
    for node in ast.walk(speculative):
        if (
            isinstance(node, ast.Assign)
            and dotted(node.targets[0]) == "aux_hidden_states_supported"
            and isinstance(node.value, ast.List)
        ):
            return tuple(
                str(element.value) for element in node.value.elts if isinstance(element, ast.Constant)
            )
    return None


def _does_nothing(function: FunctionSymbol) -> bool:
    return all(
        isinstance(s, ast.Pass) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        for s in function.node.body
    )


def _slots_of_step(function: FunctionSymbol) -> bool:
    """Whether it reads the step's own slot mapping, which lacks tokens of earlier chunks and of cached
    prefixes."""
    attributes = (
        n for n in ast.walk(function.node) if isinstance(n, ast.Attribute) and n.attr == "slot_mapping"
    )
    return any(last_name(n.value) in ("get_forward_context", "attn_metadata") for n in attributes)


def _slots_of_layer(function: FunctionSymbol) -> bool:
    """Whether it takes the slots of the very layer that it saves (`slot_mapping[layer_name]`, in 0.22): those
    are in its own cache group."""
    indexed = (
        n.value
        for n in ast.walk(function.node)
        if isinstance(n, ast.Subscript) and last_name(n.slice) == "layer_name"
    )
    return any(isinstance(value, ast.Attribute) and value.attr == "slot_mapping" for value in indexed)


def first_strings(node: ast.AST, function: str, of: str = "") -> Iterator[str]:
    """First arguments, where strings, of the calls of `function` (on a variable named `of`)."""
    for call in (
        n
        for n in ast.walk(node)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == function
    ):
        named = not of or (isinstance(call.func, ast.Attribute) and dotted(call.func.value) == of)
        if (
            named
            and call.args
            and isinstance(call.args[0], ast.Constant)
            and isinstance(call.args[0].value, str)
        ):
            yield call.args[0].value
