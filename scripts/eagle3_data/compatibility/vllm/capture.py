"""Which layer ids a model's forward really captures, found by walking its source for a small number of
layers. Standard library only.

The capture loops of vLLM's model classes differ: some ask before a layer runs, some after, with `idx`, `idx +
1`, `self.start_layer`; some forget the state after the last layer. So the forward is dry-run: decoder layers
are counted as they are called, and each test of `aux_hidden_state_layers` is evaluated for the id it captures
at that point. The convention holds where id k is captured exactly after k layers.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from eagle3_data.compatibility.source.symbols import FunctionSymbol, Symbols, dotted, last_name
from eagle3_data.compatibility.vllm.models import Architecture, embeds_tokens, loops_over_layers
from eagle3_data.findings import Finding

MODEL_LAYERS = 6
CAPTURE_CALLS = ("_maybe_add_hidden_state",)
GATHERS = {"tensor_model_parallel_all_gather", "sp_all_gather"}


@dataclass(frozen=True)
class Capture:
    """What a forward captures: for each id the number of layers run before it, both counted for a model of
    `layers` layers."""

    depths: dict[int, int]
    layers: int
    last: ast.AST | None = None
    first: ast.AST | None = None
    transformed: str = ""
    needs_residual_at_zero: bool = False

    def misses(self, layer_id: int, num_hidden_layers: int) -> bool:
        """Whether `layer_id` of a model of `num_hidden_layers` layers is never captured. Ids inside are
        judged by the loop's pattern."""
        if layer_id == 0:
            return 0 not in self.depths
        if layer_id == num_hidden_layers:
            return self.layers not in self.depths
        return not all(k in self.depths for k in range(1, self.layers))

    @property
    def shifted(self) -> int:
        """How many layers too late (positive) or early each id is captured; 0 where the convention holds."""
        return next((depth - k for k, depth in sorted(self.depths.items()) if depth != k), 0)


@dataclass
class _DryRun:
    """State of the walk through a forward."""

    symbols: Symbols
    layers: int = MODEL_LAYERS
    depth: int = 0
    depths: dict[int, int] = field(default_factory=dict)
    names: dict[str, int] = field(default_factory=dict)
    layer_names: set[str] = field(default_factory=set)
    last: ast.AST | None = None
    first: ast.AST | None = None
    transformed: str = ""
    adds_residual: bool = False

    def run(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.For) and loops_over_layers(statement):
            self._loop(statement)
        elif isinstance(statement, ast.If):
            self._if(statement)
        elif isinstance(statement, ast.For | ast.While | ast.With | ast.Try):
            self.run(statement.body)
        else:
            self._calls(statement)

    def _loop(self, loop: ast.For) -> None:
        names = [element.id for element in ast.walk(loop.target) if isinstance(element, ast.Name)]
        self.layer_names |= set(names)
        index_names = _index_names(loop)
        for index in range(self.layers):
            self.names |= dict.fromkeys(index_names, index)
            self.run(loop.body)

    def _if(self, statement: ast.If) -> None:
        tests = _capture_tests(statement.test)
        if tests and _appends(statement.body):
            for test in tests:
                self._captured(test.left, statement, _appended_value(statement.body))
            self._calls(statement)
            return
        self._calls(statement.test)
        depth = self.depth
        self.run(statement.body)
        if _leaves(statement.body):
            self.depth = depth
        if statement.orelse:
            after, self.depth = self.depth, depth
            self.run(statement.orelse)
            self.depth = max(after, self.depth)

    def _calls(self, node: ast.AST) -> None:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Subscript)
            and dotted(node.value.value) == "self.layers"
        ):
            self.layer_names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
            if last_name(call.func) in CAPTURE_CALLS and len(call.args) > 1:
                self._captured(call.args[1], call, None)
            elif self._runs_layer(call):
                self.depth += 1

    def _runs_layer(self, call: ast.Call) -> bool:
        function = call.func
        if isinstance(function, ast.Subscript):
            return dotted(function.value) == "self.layers"
        return isinstance(function, ast.Name) and function.id in self.layer_names

    def _captured(self, expression: ast.expr, node: ast.AST, value: ast.expr | None) -> None:
        layer_id = self._evaluate(expression)
        if layer_id is None:
            return
        self.depths.setdefault(layer_id, self.depth)
        self.first, self.last = self.first or node, node
        if value is not None:
            if not self.transformed and not _is_residual_stream(value):
                self.transformed = ast.unparse(value)
            if layer_id == 0 and "residual" in ast.unparse(value) and not isinstance(value, ast.IfExp):
                self.adds_residual = True

    def _evaluate(self, expression: ast.expr) -> int | None:
        """An id expression's value in the dry run: loop indices, first and last layer of the only pipeline
        stage, sums."""
        if isinstance(expression, ast.Constant) and isinstance(expression.value, int):
            return expression.value
        if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add | ast.Sub):
            left, right = self._evaluate(expression.left), self._evaluate(expression.right)
            if left is None or right is None:
                return None
            return left + right if isinstance(expression.op, ast.Add) else left - right
        name = dotted(expression)
        if name.endswith("start_layer"):
            return 0
        if name.endswith(("end_layer", "num_hidden_layers")) or ast.unparse(expression) == "len(self.layers)":
            return self.layers
        return self.names.get(name)


def _index_names(loop: ast.For) -> list[str]:
    """Names that hold the layer's index: the first of `for i, layer in enumerate(...)`, or of `for i in
    range(...)`."""
    if isinstance(loop.target, ast.Tuple) and isinstance(loop.target.elts[0], ast.Name):
        return [loop.target.elts[0].id]
    return [loop.target.id] if isinstance(loop.target, ast.Name) and last_name(loop.iter) == "range" else []


def _capture_tests(test: ast.expr) -> list[ast.Compare]:
    return [
        node
        for node in ast.walk(test)
        if isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.In)
        and last_name(node.comparators[0]) == "aux_hidden_state_layers"
    ]


def _appends(body: Sequence[ast.stmt]) -> bool:
    return _append_call(body) is not None


def _append_call(body: Sequence[ast.stmt]) -> ast.Call | None:
    calls = (node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Call))
    return next(
        (
            call
            for call in calls
            if isinstance(call.func, ast.Attribute) and call.func.attr == "append" and call.args
        ),
        None,
    )


def _appended_value(body: Sequence[ast.stmt]) -> ast.expr | None:
    """What is appended to the captured states; a local name is followed to its first assignment in the
    body."""
    if (call := _append_call(body)) is None:
        return None
    value = call.args[0]
    for statement in body:
        if (
            isinstance(value, ast.Name)
            and isinstance(statement, ast.Assign)
            and dotted(statement.targets[0]) == value.id
        ):
            return statement.value
    return value


def _is_residual_stream(value: ast.expr) -> bool:
    """`hidden_states`, `hidden_states + residual`, either gathered or cut to the real tokens."""
    if isinstance(value, ast.Name):
        return True
    if isinstance(value, ast.BinOp):
        return (
            isinstance(value.op, ast.Add)
            and _is_residual_stream(value.left)
            and _is_residual_stream(value.right)
        )
    if isinstance(value, ast.Subscript):
        return _is_residual_stream(value.value)
    if isinstance(value, ast.IfExp):
        return _is_residual_stream(value.body) and _is_residual_stream(value.orelse)
    return (
        isinstance(value, ast.Call)
        and last_name(value.func) in GATHERS
        and bool(value.args)
        and _is_residual_stream(value.args[0])
    )


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Return | ast.Raise | ast.Continue)


def dry_run(symbols: Symbols, forward: FunctionSymbol, layers: int = MODEL_LAYERS) -> Capture | None:
    """What `forward` captures, perhaps nothing; None where its form is not understood."""
    run = _DryRun(symbols, layers)
    run.run(forward.node.body)
    if run.depth != layers or (not run.depths and "aux_hidden_state" in ast.unparse(forward.node)):
        return None
    return Capture(run.depths, layers, run.last, run.first, run.transformed, run.adds_residual)


def check_capture(
    symbols: Symbols, architecture: Architecture, layers: Sequence[int], num_hidden_layers: int
) -> list[Finding]:
    """Whether every requested id (vLLM's convention) will be captured by the architecture's forward."""
    place = find_capture(symbols, architecture)
    if isinstance(place, str):
        return [_cannot_tell(symbols, architecture, place)]
    function, capture = place
    name = f"{architecture.name}: {function.qualified_name}"
    where = symbols.tree.location(function.module, capture.last or function.node)
    findings = []
    if missed := [k for k in layers if 0 <= k <= num_hidden_layers and capture.misses(k, num_hidden_layers)]:
        findings.append(_not_captured(name, missed, num_hidden_layers, where))
    if capture.shifted:
        title = f"{name} captures id k after k{capture.shifted:+d} layers, not after k"
        findings.append(
            Finding(
                "layer-shifted",
                "fail",
                title,
                vllm_location=where,
                remedy="use a vLLM where id k is the state after k layers",
            )
        )
    if 0 in layers and capture.needs_residual_at_zero:
        title = (
            f"{name} adds, at layer id 0, a residual that does not exist yet, and crashes in the first"
            " forward pass"
        )
        first = symbols.tree.location(function.module, capture.first)
        findings.append(
            Finding("layer-not-captured", "fail", title, vllm_location=first, remedy="leave id 0 out")
        )
    if capture.transformed:
        title = f"{name}: what is captured is not the plain residual stream but `{capture.transformed}`"
        remedy = "rely on the canary and the greedy-token proof"
        findings.append(Finding("capture-transformed", "unknown", title, vllm_location=where, remedy=remedy))
    return findings


def find_capture(symbols: Symbols, architecture: Architecture) -> tuple[FunctionSymbol, Capture] | str:
    """The function that captures and what it captures; or why that is unknown."""
    if (backend := _transformers_backend(symbols, architecture)) is not None:
        return backend
    if architecture.decoder is None:
        return "the class that runs its decoder layers was not found"
    forward = symbols.method(architecture.decoder, "forward")
    capture = dry_run(symbols, forward) if forward else None
    if forward is None or capture is None:
        return f"the form of {architecture.decoder.name}.forward is not understood"
    if not capture.depths and not embeds_tokens(symbols, architecture.decoder):
        return f"{architecture.decoder.name} runs layers but does not look like the language model"
    return forward, capture


def _transformers_backend(
    symbols: Symbols, architecture: Architecture
) -> tuple[FunctionSymbol, Capture] | None:
    """vLLM's Transformers backend hooks layer outputs by index: `self._layer_names[layer - 1]` is the state
    after `layer` layers."""
    method = symbols.method(architecture.cls, "set_aux_hidden_state_layers")
    if method is None or ".transformers" not in method.module:
        return None
    for node in ast.walk(method.node):
        if isinstance(node, ast.Subscript) and last_name(node.value) == "_layer_names":
            shift = 0 if isinstance(node.slice, ast.BinOp) and isinstance(node.slice.op, ast.Sub) else 1
            return method, Capture(
                {k: k + shift for k in range(1, MODEL_LAYERS + 1 - shift)}, MODEL_LAYERS, node, node
            )
    return None


def _not_captured(name: str, missed: Sequence[int], num_hidden_layers: int, where: str) -> Finding:
    ids = " and ".join(f"{k} (the last)" if k == num_hidden_layers else str(k) for k in missed)
    title = f"{name} never captures layer id {ids}; vLLM crashes in the first forward pass, after the load"
    remedy = "use a vLLM whose forward captures it (`matrix` shows which), or ask for other layers"
    return Finding("layer-not-captured", "fail", title, vllm_location=where, remedy=remedy)


def _cannot_tell(symbols: Symbols, architecture: Architecture, why: str) -> Finding:
    title = f"{architecture.name}: the source does not show which layers are captured: {why}"
    place = symbols.location(architecture.decoder or architecture.cls)
    return Finding("capture-unknown", "unknown", title, vllm_location=place, remedy="rely on the canary")
