"""Whether this use of vLLM's own hidden-state extraction is safe with one vLLM version. Standard library
only.

Four parts meet here: the `extract_hidden_states` method of the speculative configuration, the connector that
writes the states, the cache they lie in between, and the client that picks the files up. Each changed its
rules between versions.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eagle3_data.compatibility.source.client import Client, ClientFile
from eagle3_data.compatibility.source.signatures import of_constructor
from eagle3_data.compatibility.source.symbols import ClassSymbol, Symbols
from eagle3_data.compatibility.vllm.contract import (
    CACHE_GROUPS,
    CONNECTOR,
    CONNECTOR_MODULE,
    METHOD,
    SPECULATIVE,
    Contract,
    first_strings,
    read_contract,
)
from eagle3_data.compatibility.vllm.models import Architecture
from eagle3_data.errors import ConfigError
from eagle3_data.findings import Finding

KV_TRANSFER = "vllm.config.kv_transfer"
NEWER = "use a newer vLLM (`matrix` shows which)"
WAITS = {".lock", "load_hidden_states", "_write_tensors"}
"""Strings that only a client that waits for the file contains: it takes the lock, calls vLLM's helper, or
publishes the file itself."""


@dataclass(frozen=True)
class EnginePlan:
    """How the client runs vLLM, as far as the contract depends on it. The defaults are those of vLLM."""

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
    own_keys = {key for file in client.files for key in first_strings(file.tree, "get_from_extra_config")}
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
