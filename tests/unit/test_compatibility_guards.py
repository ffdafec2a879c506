"""What is legal in this vLLM, or decided at run time, fails nothing; what would fail beside it still does."""

from pathlib import Path

import pytest
from compatibility_trees import client, symbols

from eagle3_data.compatibility.client.binding import check_client
from eagle3_data.compatibility.source.client import Client, ClientFile

API = {
    "vllm/version.py": "__version__ = '9.8.7'\n",
    "vllm/api.py": """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from vllm.classes import OnlyForTypes

        def build(groups, *, blocks=1): ...
        def pair(x) -> tuple[int, str]: ...
        def triple(x):
            if x:
                return 1, 2, 3
            return 4, 5, 6
        def order(first_name, second_name): ...
        def current() -> "Request": ...

        from vllm.classes import Request, Impl, Config
    """,
    "vllm/classes.py": """
        from dataclasses import dataclass
        import enum, msgspec

        class Request:
            def __init__(self, ids): self.ids = ids
            def stop(self, why=None): ...
            async def drain(self) -> None: ...
            def patched(self, x): ...

        class Impl: ...
        class FlashImpl(Impl):
            def __init__(self): self.slopes = 1

        @dataclass
        class Config:
            impl: Impl
            extra: dict | Impl
            requests: list[Request]
            named: dict[str, Request]
            optional: Request | None = None

        class Event(msgspec.Struct, tag=True): ...
        class Stored(Event):
            hashes: list
            size: int = 1

        class State(enum.Enum):
            DONE = 1

        class Layer(torch.nn.Module):
            def forward(self, states, residual): ...

        class Loader:
            class Source: ...

        class Engine:
            def __init__(self, model, **kwargs):
                args = Arguments(model=model, **kwargs)

        @dataclass
        class Arguments:
            model: str
            seed: int = 0

        class OnlyForTypes: ...
    """,
    "vllm/envs.py": """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            VLLM_GONE: bool = False
        environment_variables = {"VLLM_HERE": lambda: 1}
        def __getattr__(name):
            if name in environment_variables:
                return environment_variables[name]()
            raise AttributeError(name)
    """,
}


def levels(tmp_path, source, *, files=()):
    files = (ClientFile("client.py", source), *(ClientFile(*file) for file in files))
    return [(f.id, f.level) for f in check_client(Client("client", files), symbols(tmp_path, API))]


def cases(name):
    """The clients of a file of tests/data/clients by their titles."""
    text = (Path(__file__).parents[1] / "data" / "clients" / name).read_text(encoding="utf-8")
    return dict(part.split("\n", 1) for part in text.split("\n### ")[1:])


LEGAL, FAILING = cases("legal.txt"), cases("failing.txt")


@pytest.mark.parametrize("source", LEGAL.values(), ids=LEGAL)
def test_what_is_legal_or_decided_at_run_time_fails_nothing(tmp_path, source):
    assert [found for found in levels(tmp_path, source) if found[1] == "fail"] == []


def test_a_module_that_is_imported_for_an_old_version_only_fails_nothing(tmp_path):
    main = (
        "from mine import vllm_version_is\nif vllm_version_is('0.9.1'):\n    from pkg.patch_0_9_1 import f\n"
    )
    patch = ("pkg/patch_0_9_1/apply.py", "from vllm.gone import x\n")
    assert levels(tmp_path, main, files=[patch]) == [("missing-module", "unknown")]
    assert levels(tmp_path, main.replace("if vllm_version_is('0.9.1')", "if True"), files=[patch]) == [
        ("missing-module", "fail")
    ]


@pytest.mark.parametrize(("title", "source"), FAILING.items(), ids=FAILING)
def test_what_would_fail_is_found(tmp_path, title, source):
    fault = title.rpartition(": ")[2]
    assert {found for found in levels(tmp_path, source) if found[1] == "fail"} == {(fault, "fail")}


def test_positional_arguments_in_another_order_are_noted(tmp_path):
    source = "from vllm.api import order\ndef f(first_name, second_name):\n    order({})"
    assert levels(tmp_path, source.format("second_name, first_name")) == [("argument-order", "warn")]
    assert levels(tmp_path, source.format("first_name, second_name")) == []
    assert levels(tmp_path, source.format("second_name, 1")) == []


def test_a_name_that_moved_is_named_with_its_place(tmp_path):
    (finding,) = check_client(client("from vllm.api import Loader"), symbols(tmp_path, API))
    assert finding.remedy.endswith("; vllm.classes has it")


def test_what_is_handled_is_a_warning_and_not_lost(tmp_path):
    source = "try:\n    from vllm.gone import x\nexcept ImportError:\n    x = None"
    assert levels(tmp_path, source) == [("missing-module", "warn")]
