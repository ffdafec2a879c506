"""Whether Python code that lies in a checkpoint is really needed to read its configuration. Standard library
only.

Many checkpoints still bring code (`auto_map` in config.json) for model types that transformers or vLLM have
known for long; then their own classes are taken and the code is never run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from eagle3_data.compatibility.source.source_tree import SourceTree, installed_tree
from eagle3_data.findings import Finding

TABLES = {
    "transformers": (
        ("transformers.models.auto.auto_mappings", "CONFIG_MAPPING_NAMES"),
        ("transformers.models.auto.configuration_auto", "CONFIG_MAPPING_NAMES"),
    ),
    "vllm": (("vllm.transformers_utils.config", "_CONFIG_REGISTRY"),),
}
REMEDY = "read that code; if you trust it, set target.trust_remote_code: true"


def check_remote_code(
    path: str,
    model_type: str,
    needs_remote_code: bool,
    trusted: bool,
    trees: Iterable[SourceTree] | None = None,
) -> list[Finding]:
    """A finding where the checkpoint's own code would have to run and may not. `trees`: by default the
    installed packages."""
    if not needs_remote_code or trusted:
        return []
    if trees is None:
        trees = [tree for package in TABLES if (tree := installed_tree(package)) is not None]
    if any(model_type in known_model_types(tree) for tree in trees):
        return []
    title = (
        f"{path} brings its own Python code (auto_map in config.json) for model type {model_type}, which"
        " neither transformers nor vLLM knows"
    )
    return [
        Finding(
            "remote-code-needed",
            "fail",
            f"{title}; target.trust_remote_code is false",
            "target.trust_remote_code",
            remedy=REMEDY,
        )
    ]


def known_model_types(tree: SourceTree) -> set[str]:
    """Model types a package has a configuration class for, read from its tables."""
    found: set[str] = set()
    for module, name in TABLES[tree.package]:
        for node in tree.parse(module).body:
            if (
                isinstance(node, ast.Assign | ast.AnnAssign)
                and node.value is not None
                and _assigns(node, name)
            ):
                found |= set(_keys(node.value))
    return found


def _assigns(node: ast.Assign | ast.AnnAssign, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _keys(value: ast.expr) -> Iterator[str]:
    """Keys of a dictionary, of `OrderedDict([(key, value), ...])`, and of `Lazy(key=value, ...)`."""
    for node in ast.walk(value):
        if isinstance(node, ast.Tuple) and len(node.elts) == 2 and isinstance(node.elts[0], ast.Constant):
            yield str(node.elts[0].value)
        elif isinstance(node, ast.keyword) and node.arg is not None:
            yield node.arg
        elif isinstance(node, ast.Dict):
            yield from (str(key.value) for key in node.keys if isinstance(key, ast.Constant))
