"""Calls, imports, attributes and subclasses of a client, bound against a vLLM tree."""

import ast

import pytest
from compatibility_trees import CONNECTOR_PATH, client, symbols

from eagle3_data.compatibility.client.binding import check_client
from eagle3_data.compatibility.source.signatures import Signature, bind, of_constructor

API = {
    "vllm/api.py": (
        """
        from vllm.config import SchedulerConfig

        def build(groups, *, blocks=1): ...

        class Executor:
            kind: str = "one"

            def __init__(self, config: SchedulerConfig, size: int = 1):
                self.config = config

            @property
            def settings(self) -> SchedulerConfig: ...

            def execute_model(self, work, wait: bool = False) -> "Output | None": ...

            def sample_tokens(self, output): ...

            @staticmethod
            def plan(tokens): ...

        class Output:
            def free(self, blocks): ...

        class State(enum.Enum):
            DONE = 1

        class Plain(Struct):
            tokens: int
            parts: list = field(default_factory=list)

        class Foreign(torch.nn.Module):
            pass
    """
    )
}


def found(tmp_path, source):
    return [(finding.id, finding.level) for finding in check_client(client(source), symbols(tmp_path, API))]


@pytest.mark.parametrize(
    ("call", "misfits"),
    [
        ("f(1, 2)", []),
        ("f(1, b=2, c=3)", []),
        ("f(1)", [("missing-argument", "needs argument 'b'")]),
        ("f(1, 2, 3)", [("unexpected-argument", "takes 2 positional arguments, 3 are passed")]),
        ("f(1, 2, a=3)", [("unexpected-argument", "gets argument 'a' twice")]),
        ("f(1, 2, d=3)", [("unexpected-argument", "takes no argument 'd'")]),
        ("f(*x)", []),
        ("f(**x)", []),
        ("f(d=1, **x)", [("unexpected-argument", "takes no argument 'd'")]),
    ],
)
def test_calls_bind_as_python_would_bind_them(call, misfits):
    signature = Signature(("a", "b"), ("c",), frozenset({"a", "b"}))
    assert [
        (misfit.id, misfit.message) for misfit in bind(ast.parse(call).body[0].value, signature)
    ] == misfits


def test_constructors_are_read_from_init_fields_and_bases(tmp_path):
    table = symbols(tmp_path, API)
    scheduler = of_constructor(table, table.resolve("vllm.config", "SchedulerConfig"))
    assert scheduler.names == ("is_encoder_decoder", "max_num_seqs")
    assert scheduler.required == {"is_encoder_decoder"}
    plain = of_constructor(table, table.resolve("vllm.api", "Plain"))
    assert plain.required == {"tokens"} and plain.names == ("tokens", "parts")
    assert of_constructor(table, table.resolve("vllm.api", "Foreign")) is None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from vllm.api import Executor, build\nbuild([], blocks=2)\nExecutor(config=1)", []),
        ("from vllm.api import build\nbuild([], size=2)", [("unexpected-argument", "fail")]),
        (
            "from vllm.config import SchedulerConfig\nSchedulerConfig(max_num_seqs=1)",
            [("missing-argument", "fail")],
        ),
        ("from vllm.gone import x", [("missing-module", "fail")]),
        ("import vllm.gone", [("missing-module", "fail")]),
        ("from vllm.api import gone", [("missing-name", "fail")]),
        ("import vllm.api as api\napi.gone()", [("missing-name", "fail")]),
        ("from vllm.api import Executor\ne = Executor(1)\ne.gone", [("missing-name", "fail")]),
        ("from vllm.api import Executor\ne = Executor(1)\ne.settings.gone", [("missing-name", "fail")]),
        ("from vllm.api import State\nState.DONE\nState.GONE", [("missing-name", "fail")]),
        (
            "from vllm.api import Executor\nExecutor.plan(1, 2)\nExecutor(1).plan(1)",
            [("unexpected-argument", "fail")],
        ),
        ("from vllm.api import Executor\nExecutor(1).execute_model(1)", [("discarded-result", "warn")]),
        ("from vllm.api import Executor\nout = Executor(1).execute_model(1)", []),
        (
            "def run(executor: 'vllm.api.Executor'):\n    import vllm.api\n    executor.execute_model()",
            [("missing-argument", "fail"), ("discarded-result", "warn")],
        ),
    ],
)
def test_each_use_of_vllm_is_judged(tmp_path, source, expected):
    assert found(tmp_path, source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "try:\n    from vllm.gone import x\nexcept ImportError:\n    x = None",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vllm.gone import x",
        "from vllm.api import Executor\ne = Executor(1)\nif hasattr(e, 'gone'):\n    e.gone()",
        "from vllm.api import Foreign\nForeign(1, 2, 3).anything()",
        "import torch\ntorch.gone(1)",
        "from vllm.api import Executor\ne = Executor(1)\ne = other()\ne.gone()",
        "from vllm.api import State\ndef f(state: State):\n    return state.name + state.value",
    ],
)
def test_what_is_guarded_foreign_or_unknown_fails_nothing(tmp_path, source):
    assert not [finding for finding in found(tmp_path, source) if finding[1] == "fail"]


def test_a_finding_names_both_places_and_a_remedy(tmp_path):
    (finding,) = check_client(
        client("\n\nfrom vllm.config import SchedulerConfig\nSchedulerConfig()\n"), symbols(tmp_path)
    )
    assert finding.client_location == "client.py:4"
    assert finding.vllm_location == "vllm/config/scheduler.py:3"
    assert finding.title == "SchedulerConfig() needs argument 'is_encoder_decoder'"
    assert finding.remedy


CONNECTOR = (
    "from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import"
    " ExampleHiddenStatesConnector as Base, KVConnectorBase\n"
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "class C(Base):\n    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs): ...",
            [],
        ),
        ("class C(Base):\n    def save_kv_layer(self, *args, **kwargs): ...", []),
        (
            "class C(Base):\n    def save_kv_layer(self, layer_name): ...",
            ["override-misfit", "override-misfit"],
        ),
        (
            (
                "class C(Base):\n    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, more,"
                " **kwargs): ..."
            ),
            ["override-misfit"],
        ),
        ("class C(KVConnectorBase):\n    pass", ["abstract-not-implemented"]),
        ("class C(Base):\n    def __init__(self):\n        super().__init__(1)", ["missing-argument"]),
        ("class C(Base):\n    def __init__(self, *a, **k):\n        super().__init__(*a, **k)", []),
        (
            (
                "class C(Base):\n    def f(self):\n        return self._path, self._mine\n    def g(self):\n "
                "       self._mine = 1"
            ),
            [],
        ),
        ("class C(Base):\n    def f(self):\n        return self._gone, self._gone", ["missing-name"]),
        ("class C(Base):\n    def f(self):\n        super().gone()", ["missing-name"]),
        ("class C(Base, Other):\n    def f(self):\n        return self._gone", []),
    ],
)
def test_subclasses_of_vllm_classes_are_judged(tmp_path, body, expected):
    assert [finding.id for finding in check_client(client(CONNECTOR + body), symbols(tmp_path))] == expected


def test_an_override_that_lacks_an_optional_argument_only_warns(tmp_path):
    changed = {CONNECTOR_PATH: "class Base:\n    def f(self, a, b=1): ...\n"}
    source = (
        CONNECTOR.replace("ExampleHiddenStatesConnector as Base, KVConnectorBase", "Base")
        + "class C(Base):\n    def f(self, a): ..."
    )
    assert [(f.id, f.level) for f in check_client(client(source), symbols(tmp_path, changed))] == [
        ("override-misfit", "warn")
    ]
