"""What a message, a remedy or a page tells the reader to set, run or look at exists: configuration keys,
engine classes, engine arguments, variables of vLLM, programs, make targets."""

import ast
import re
from pathlib import Path

import pytest

from eagle3_data.compatibility.source.signatures import of_constructor
from eagle3_data.compatibility.source.source_tree import installed_tree
from eagle3_data.compatibility.source.symbols import ABSENT, Symbols
from eagle3_data.compatibility.vllm.engine_class import check_engine
from eagle3_data.config import Config
from eagle3_data.diagnosis.catalogue import BARE_ERROR, EMPTY_MESSAGE, ENGINE_DIED, FAULTS

ROOT = Path(__file__).parents[2]
SECTIONS = {
    name: field.annotation.model_fields
    for name, field in Config.model_fields.items()
    if hasattr(field.annotation, "model_fields")
}
KEY = re.compile(rf"(?<!\.)\b({'|'.join(SECTIONS)})\.([a-z_]+)\b(?!\.\w)(?!\()")
ENGINE = re.compile(r"\b[a-z]\w*(?:\.\w+)+:[A-Z]\w+")
PROGRAM = re.compile(r"\bscripts/(\w+\.py)")
SUBCOMMAND = re.compile(r"check_compatibility\.py (\w+)")
MAKE = re.compile(r"`make ([a-z-]+)")
FILE_ENDINGS = {"json", "md", "py", "yaml", "parquet", "html", "smk"}
OF_TRAINERS = {("data", "offline_data_path"), ("data", "draft_vocab_cache")}
"""Keys of ModelOpt's configuration, in the command that trains with it."""


def messages():
    """(place, text) of every string of the package and its programs that is not a docstring, and of each line
    of the pages for users."""
    for path in sorted((ROOT / "scripts").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in documentation
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            yield f"{path.relative_to(ROOT)}:{number}", line


MESSAGES = list(messages())


def named(pattern):
    """(place, match) of everything that the pattern finds in a message."""
    return [(place, found) for place, text in MESSAGES for found in pattern.finditer(text)]


def test_every_configuration_key_that_is_named_exists():
    found = [(place, m[1], m[2]) for place, m in named(KEY) if m[2] not in FILE_ENDINGS]
    assert len(found) > 50
    unknown = [entry for entry in found if entry[2] not in SECTIONS[entry[1]]]
    assert [entry for entry in unknown if entry[1:] not in OF_TRAINERS] == []


def test_every_engine_class_that_is_named_exists():
    found = [(place, m[0]) for place, m in named(ENGINE) if m[0].startswith("eagle3_data")]
    assert len(found) > 3
    assert [entry for entry in found if check_engine(entry[1])] == []


def test_every_program_and_make_target_that_is_named_exists():
    programs = named(PROGRAM)
    assert len(programs) > 5
    assert [(place, m[0]) for place, m in programs if not (ROOT / m[0]).is_file()] == []
    targets = set(
        re.findall(r"^([a-z][a-z-]*)\b.*:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert [(place, m[0]) for place, m in named(MAKE) if m[1] not in targets] == []
    assert {m[1] for _, m in named(SUBCOMMAND)} <= {"installed", "static", "matrix"}


REMEDIES = [fault.remedy for fault in (*FAULTS, ENGINE_DIED, BARE_ERROR, EMPTY_MESSAGE)]


@pytest.fixture(scope="module")
def vllm():
    return Symbols(installed_tree("vllm"))


def test_every_engine_argument_and_variable_of_vllm_that_a_remedy_names_exists(vllm):
    arguments = of_constructor(vllm, vllm.resolve("vllm.engine.arg_utils", "EngineArgs")).names
    words = " ".join(REMEDIES)
    named_arguments = set(re.findall(r"engine_arguments\.([a-z_]+)", words))
    assert named_arguments and named_arguments <= set(arguments)
    variables = set(re.findall(r"\bVLLM_[A-Z_]+", words))
    assert variables and [name for name in variables if vllm.importable("vllm.envs", name) is ABSENT] == []
