"""What vLLM's own hidden-state extraction promises, read from its source, and whether this use of it holds.
Standard library only.

Four parts meet here: the `extract_hidden_states` method of the speculative configuration, the connector that
writes the states, the cache they lie in between, and the client that picks the files up. Each changed its
rules between versions.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3_data.compatibility.source.client import Client, ClientFile
from eagle3_data.compatibility.source.signatures import of_constructor
from eagle3_data.compatibility.source.symbols import ClassSymbol, FunctionSymbol, Symbols, dotted, last_name
from eagle3_data.compatibility.vllm.models import Architecture
from eagle3_data.errors import ConfigError
from eagle3_data.findings import Finding

METHOD = "extract_hidden_states"
SPECULATIVE = "vllm.config.speculative"
KV_TRANSFER = "vllm.config.kv_transfer"
CONNECTOR_MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector"
CONNECTOR = "ExampleHiddenStatesConnector"
CACHE_GROUPS = "vllm.v1.core.kv_cache_utils"
NEWER = "use a newer vLLM (`matrix` shows which)"
WAITS = {".lock", "load_hidden_states", "_write_tensors"}
"""Words of a client that waits for the file: it takes the lock, calls vLLM's helper, or publishes the file
itself."""


@dataclass(frozen=True)
class EnginePlan:
    """How the client means to run vLLM, as far as the contract depends on it. The defaults are vLLM's own."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    prefix_caching: bool = True
    chunked_prefill: bool = True
    model_type: str = ""
    client_location: str = ""

    @classmethod
    def of(
        cls,
        tensor_parallel: int,
        engine_arguments: Mapping[str, Any],
        longest: int | None = None,
        model_type: str = "",
    ) -> EnginePlan:
        """The plan of engine arguments; chunked prefill is off the table where every sample fits one step.
        Raises ConfigError."""
        budget = engine_arguments.get("max_num_batched_tokens")
        fits_one_step = longest is not None and isinstance(budget, int) and longest <= budget
        return cls(
            tensor_parallel=tensor_parallel,
            pipeline_parallel=_pipeline_stages(engine_arguments),
            prefix_caching=engine_arguments.get("enable_prefix_caching", True) is not False,
            chunked_prefill=engine_arguments.get("enable_chunked_prefill", True) is not False
            and not fits_one_step,
            model_type=model_type,
        )


def _pipeline_stages(engine_arguments: Mapping[str, Any]) -> int:
    stages = engine_arguments.get("pipeline_parallel_size", 1)
    if type(stages) is not int or stages < 1:
        raise ConfigError(
            f"engine_arguments: pipeline_parallel_size must be a whole number from 1 on, not {stages!r}"
        )
    return stages


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
        configuration_keys=frozenset(_first_strings(connector.node, "get_from_extra_config")),
        request_keys=frozenset(_first_strings(connector.node, "get", of="kv_params")),
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


def _first_strings(node: ast.AST, function: str, of: str = "") -> Iterator[str]:
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


def check_contract(
    symbols: Symbols,
    plan: EnginePlan,
    architecture: Architecture | None = None,
    clients: tuple[Client, ...] = (),
) -> list[Finding]:
    """Findings for extracting with vLLM's own method as planned, by the given clients."""
    contract = read_contract(symbols)
    if not contract.has_method:
        title = f"this vLLM has no speculative method '{METHOD}' (it came with 0.17)"
        return [
            Finding(
                "no-extraction-method",
                "fail",
                title,
                plan.client_location,
                contract.method_location,
                remedy=NEWER,
            )
        ]
    if contract.connector is None:
        title = f"this vLLM has no {CONNECTOR}"
        return [
            Finding(
                "no-connector",
                "fail",
                title,
                plan.client_location,
                symbols.tree.location(CONNECTOR_MODULE, None),
                remedy=NEWER,
            )
        ]
    findings = list(_model_accepted(contract, plan))
    findings += _prefill(symbols, contract, plan)
    findings += _ranks(symbols, contract, plan, architecture)
    findings += _cache_groups(symbols, contract, plan, architecture)
    for client in clients:
        findings += _file_ready(symbols, contract, client)
        findings += _keys(symbols, contract, client)
    return findings


def check_engine_arguments(symbols: Symbols, arguments: Mapping[str, Any]) -> list[Finding]:
    """Whether vLLM's `LLM` takes the user's engine arguments: it hands all it does not know to EngineArgs,
    which refuses."""
    llm, engine = (
        symbols.resolve("vllm.entrypoints.llm", "LLM"),
        symbols.resolve("vllm.engine.arg_utils", "EngineArgs"),
    )
    signatures = [of_constructor(symbols, cls) for cls in (llm, engine) if isinstance(cls, ClassSymbol)]
    known = {name for signature in signatures if signature for name in signature.names}
    if not all(signatures) or len(signatures) < 2:
        return []
    findings = []
    for name in sorted(arguments.keys() - known):
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]}?" if near else "take it out"
        title = f"vLLM's engine has no argument '{name}'"
        findings.append(
            Finding(
                "unknown-engine-argument",
                "fail",
                title,
                "extraction.engine_arguments",
                symbols.location(engine),
                remedy=remedy,
            )
        )
    return findings


def _model_accepted(contract: Contract, plan: EnginePlan) -> Iterator[Finding]:
    allowed = contract.allowed_model_types
    if plan.model_type and allowed is not None and not any(part in plan.model_type for part in allowed):
        title = (
            f"this vLLM's {METHOD} accepts model types {', '.join(allowed)} only, and the target's is"
            f" {plan.model_type}"
        )
        yield Finding(
            "model-type-refused", "fail", title, plan.client_location, contract.method_location, remedy=NEWER
        )


def _prefill(symbols: Symbols, contract: Contract, plan: EnginePlan) -> Iterator[Finding]:
    if not contract.saves_in_step or contract.saves is None:
        return
    place = symbols.location(contract.saves)
    if plan.chunked_prefill:
        title = (
            "the connector saves states within one step, so a prompt that is prefilled in several chunks is"
            " stored incomplete or wrong"
        )
        remedy = (
            f"{NEWER}; or set max_num_batched_tokens to at least the longest sample and"
            " enable_chunked_prefill to false"
        )
        yield Finding("unsafe-chunked-prefill", "fail", title, plan.client_location, place, remedy=remedy)
    if plan.prefix_caching and contract.saves_slots_of_step:
        title = (
            "the connector reads the slots of the step, which lack a cached prefix, so prompts that share one"
            " are stored wrong"
        )
        remedy = f"{NEWER}; or set enable_prefix_caching to false"
        yield Finding("unsafe-prefix-caching", "fail", title, plan.client_location, place, remedy=remedy)


def _ranks(
    symbols: Symbols, contract: Contract, plan: EnginePlan, architecture: Architecture | None
) -> Iterator[Finding]:
    place = symbols.location(contract.connector) if contract.connector else ""
    if plan.tensor_parallel > 1 and not contract.one_rank_writes:
        title = f"each of the {plan.tensor_parallel} tensor-parallel ranks writes the same file at once"
        yield Finding("every-rank-writes", "fail", title, plan.client_location, place, remedy=NEWER)
    if (
        plan.pipeline_parallel > 1
        and architecture is not None
        and not _hands_states_on(symbols, architecture)
    ):
        title = (
            f"{architecture.name}: with {plan.pipeline_parallel} pipeline stages, states captured before the"
            " last stage are lost"
        )
        remedy = "use tensor parallelism only (pipeline_parallel_size: 1)"
        yield Finding(
            "pipeline-loses-states",
            "fail",
            title,
            plan.client_location,
            symbols.location(architecture.decoder or architecture.cls),
            remedy=remedy,
        )


def _hands_states_on(symbols: Symbols, architecture: Architecture) -> bool:
    """Whether the decoder class says its captured states travel over pipeline stages."""
    flag = symbols.member(architecture.decoder or architecture.cls, "supports_aux_hidden_states_over_pp")
    value = getattr(flag.node, "value", None) if flag else None
    return isinstance(value, ast.Constant) and value.value is True


def _cache_groups(
    symbols: Symbols, contract: Contract, plan: EnginePlan, architecture: Architecture | None
) -> Iterator[Finding]:
    """Models with several kinds of attention have several cache groups; the states' own must be found and
    must fit."""
    if architecture is None or not symbols.has_base(architecture.cls, "IsHybrid"):
        return
    place = symbols.location(contract.connector) if contract.connector else ""
    if not contract.finds_cache_group:
        title = (
            f"{architecture.name} is a hybrid model, and this connector reads the first cache group, not that"
            " of the states: zeros or garbage"
        )
        yield Finding("hybrid-states-wrong", "fail", title, plan.client_location, place, remedy=NEWER)
    elif not contract.fits_hybrid_pages:
        title = (
            f"{architecture.name} is a hybrid model; where a token's states are larger than a page of its"
            " cache, which tensor parallelism makes likely, vLLM stops at start-up"
        )
        page = symbols.tree.location(CACHE_GROUPS, None)
        yield Finding(
            "hybrid-page-too-small",
            "warn",
            title,
            plan.client_location,
            page,
            remedy=f"{NEWER}; the canary will show",
        )


def _file_ready(symbols: Symbols, contract: Contract, client: Client) -> Iterator[Finding]:
    """A client that opens the returned path must wait: since 0.22 the path comes back before the file is
    written."""
    readers = [file for file in client.files if "hidden_states_path" in file.strings]
    if (
        not readers
        or not contract.writes_asynchronously
        or any(word in file.source for file in client.files for word in WAITS)
    ):
        return
    title = (
        f"{client.label} opens the returned path at once, and this connector returns it before the file is"
        " written"
    )
    place = symbols.location(contract.connector) if contract.connector else ""
    remedy = "use a client that waits for the lock file (speculators 0.6 and newer does)"
    yield Finding(
        "no-lock-wait",
        "fail",
        title,
        _string_location(readers[0], "hidden_states_path"),
        place,
        remedy=remedy,
    )


def _string_location(file: ClientFile, value: str) -> str:
    return next(
        (file.location(n) for n in ast.walk(file.tree) if isinstance(n, ast.Constant) and n.value == value),
        file.path,
    )


def _keys(symbols: Symbols, contract: Contract, client: Client) -> Iterator[Finding]:
    """Keys of the client's dictionaries that vLLM refuses (configuration classes) or ignores (the connector's
    own keys)."""
    own_keys = {key for file in client.files for key in _first_strings(file.tree, "get_from_extra_config")}
    for file in client.files:
        for node in (n for n in ast.walk(file.tree) if isinstance(n, ast.Dict)):
            entries = {
                key.value: value
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(key, ast.Constant)
            }
            if isinstance(method := entries.get("method"), ast.Constant) and method.value == METHOD:
                yield from _refused(symbols, SPECULATIVE, "SpeculativeConfig", entries, file, node)
            if "kv_connector" in entries:
                yield from _refused(symbols, KV_TRANSFER, "KVTransferConfig", entries, file, node)
            yield from _ignored(
                symbols,
                contract,
                entries,
                "kv_connector_extra_config",
                contract.configuration_keys | own_keys,
                file,
            )
            yield from _ignored(symbols, contract, entries, "kv_transfer_params", contract.request_keys, file)


def _refused(
    symbols: Symbols, module: str, name: str, entries: dict[Any, ast.expr], file: ClientFile, node: ast.AST
) -> Iterator[Finding]:
    cls = symbols.resolve(module, name)
    signature = of_constructor(symbols, cls) if isinstance(cls, ClassSymbol) else None
    for key in sorted(str(k) for k in entries) if signature else ():
        if signature and key not in signature.names and not signature.takes_any_keyword:
            yield Finding(
                "unknown-configuration-key",
                "fail",
                f"{name} has no '{key}'",
                file.location(node),
                symbols.location(cls),
                remedy=NEWER,
            )


def _ignored(
    symbols: Symbols,
    contract: Contract,
    entries: dict[Any, ast.expr],
    name: str,
    known: frozenset[str] | set[str],
    file: ClientFile,
) -> Iterator[Finding]:
    inner = entries.get(name)
    for key in inner.keys if isinstance(inner, ast.Dict) else ():
        if isinstance(key, ast.Constant) and key.value not in known and contract.connector:
            title = f"this vLLM's {CONNECTOR} ignores {name}[{key.value!r}], which the client relies on"
            yield Finding(
                "ignored-key",
                "fail",
                title,
                file.location(key),
                symbols.location(contract.connector),
                remedy=NEWER,
            )
