"""What a checkpoint directory says of itself: the record, its fingerprint, each fault that the disk shows."""

import json
import os
import random
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from eagle3_data.compatibility.run.arithmetic import check_tensor_parallel, positions_of
from eagle3_data.compatibility.run.static import Model
from eagle3_data.engines.base import EngineSettings
from eagle3_data.engines.log import with_damaged_weights
from eagle3_data.engines.process import EngineProcess
from eagle3_data.errors import EngineError, InputError
from eagle3_data.records.failures import describe_situation
from eagle3_data.target import describe_target, fingerprint_of, read_model_config

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "vocab_size": 16,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
    "quantization_config": {"quant_method": "fp8"},
}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 4976698672\n"
)


@pytest.fixture
def checkpoint(tmp_path):
    """A whole checkpoint: two shards, their index, a tokenizer."""
    directory = tmp_path / "target"
    directory.mkdir()
    write(directory / "config.json", CONFIG)
    write(directory / "tokenizer.json", {"model": {"vocab": {}}})
    save_file({"embed": np.ones((4, 8), np.float32)}, directory / FIRST)
    save_file({"norm": np.ones(8, np.float32), "head": np.ones((4, 8), np.float32)}, directory / SECOND)
    write(directory / INDEX, {"weight_map": {"embed": FIRST, "norm": SECOND, "head": SECOND}})
    return directory


def write(path, value):
    path.write_text(json.dumps(value), encoding="utf-8")


def refusal(directory):
    """The one line that is said of a checkpoint that cannot be described."""
    with pytest.raises(InputError) as refused:
        describe_target(str(directory))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_whole_checkpoint_is_described(checkpoint):
    described = describe_target(str(checkpoint))
    assert (described.num_hidden_layers, described.hidden_size, described.vocab_size) == (2, 8, 16)
    assert (described.max_position_embeddings, described.quantization) == (128, "fp8")
    assert described.weights_bytes == sum((checkpoint / name).stat().st_size for name in (FIRST, SECOND))


def test_the_fingerprint_is_that_of_the_content_wherever_it_lies(checkpoint, tmp_path):
    described = describe_target(str(checkpoint))
    assert fingerprint_of(str(checkpoint)) == described.fingerprint == "8878854829b0a85a91a3c48fa5c31736"
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots/main"
    shutil.move(checkpoint, blobs)
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():  # as a download of huggingface_hub lies in its cache
        (snapshot / file.name).symlink_to(file)
    assert fingerprint_of(snapshot) == described.fingerprint
    os.replace(snapshot / FIRST, tmp_path / "old")
    save_file({"embed": np.zeros((4, 8), np.float32)}, snapshot / FIRST)
    assert fingerprint_of(snapshot) != described.fingerprint


@pytest.mark.parametrize(
    ("name", "spoil", "words"),
    [
        (FIRST, lambda path: path.write_text(POINTER), "is a git-lfs pointer"),
        (FIRST, lambda path: cut(path, 0.5), "is cut short"),
        (FIRST, lambda path: cut(path, 0.99), "is cut short"),
        (FIRST, lambda path: path.write_bytes(path.read_bytes()[:20]), "is cut short"),
        (FIRST, lambda path: path.write_bytes(path.read_bytes() + b"more"), "has 4 bytes more"),
        (FIRST, lambda path: path.write_text("<!DOCTYPE html><p>404</p>"), "is not a safetensors file"),
        (FIRST, lambda path: path.write_bytes(bytes(500)), "is not a safetensors file"),
        (FIRST, lambda path: path.write_bytes(struct.pack("<Q", 4) + b"{abc" + bytes(9)), "damaged header"),
        (FIRST, lambda path: path.write_bytes(header({"a": {"data_offsets": 3}})), "damaged header"),
        (FIRST, lambda path: path.write_bytes(header({"a": 1})), "damaged header"),
        (FIRST, lambda path: path.write_bytes(header([])), "is not a safetensors file"),
        (
            FIRST,
            lambda path: path.write_bytes(
                header({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}) + bytes(4)
            ),
            "is refused by safetensors",
        ),
        (SECOND, lambda path: path.unlink(), "missing or empty"),
        (SECOND, lambda path: path.write_bytes(b""), "missing or empty"),
        (SECOND, lambda path: (path.unlink(), os.mkfifo(path)), "missing or empty"),
        (SECOND, lambda path: (path.unlink(), path.symlink_to("gone")), "missing or empty"),
        (SECOND, lambda path: save_file({"norm": np.ones(8)}, path), "lacks head, which the index says"),
        ("config.json", lambda path: path.write_text(POINTER), "is a git-lfs pointer"),
        ("config.json", lambda path: (path.unlink(), os.mkfifo(path)), "is not a file"),
        ("config.json", lambda path: path.write_text("[" * 100_000), "cannot be read as JSON"),
        ("config.json", lambda path: path.write_text('{"model_type": "\\ud83d"}'), "cannot be read as JSON"),
        ("tokenizer.json", lambda path: path.write_text(POINTER), "is a git-lfs pointer"),
        ("tokenizer.json", lambda path: cut(path, 0.5), "cannot be read as JSON"),
        ("tokenizer.json", lambda path: (path.unlink(), path.mkdir()), "is not a file"),
        (INDEX, lambda path: write(path, {"weight_map": {"embed": 3}}), "weight_map must name"),
        (INDEX, lambda path: write(path, {"weight_map": ["embed"]}), "weight_map must name"),
        (INDEX, lambda path: write(path, {"weight_map": {}}), "weight_map must name"),
        (INDEX, lambda path: write(path, [1]), "does not hold a JSON object"),
        (INDEX, lambda path: write(path, {"weight_map": {"embed": "\0"}}), "missing or empty"),
        (INDEX, lambda path: write(path, {"weight_map": {"embed": "x" * 999}}), "missing or empty"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong_with_it(checkpoint, name, spoil, words):
    spoil(checkpoint / name)
    told = refusal(checkpoint)
    assert words in told
    assert name in told or "\\x00" in repr(told) or "xxx" in told
    assert "download" in told or "git lfs pull" in told


def test_a_directory_that_holds_no_checkpoint_and_one_that_is_not_there_are_told_apart(checkpoint):
    (checkpoint / "config.json").unlink()
    assert "has no config.json" in (told := refusal(checkpoint)) and "target.path" in told
    shutil.rmtree(checkpoint)
    assert f"there is no directory {checkpoint}" in (told := refusal(checkpoint)) and "target.path" in told


def cut(path, share):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def header(value):
    text = json.dumps(value).encode().ljust(10)
    return struct.pack("<Q", len(text)) + text


def test_a_shard_that_is_absent_is_missed_also_without_an_index(checkpoint):
    (checkpoint / INDEX).unlink()
    describe_target(str(checkpoint))
    (checkpoint / FIRST).unlink()
    assert f"missing: {FIRST}" in refusal(checkpoint)


@pytest.mark.parametrize("name", ["config.json", FIRST, "tokenizer.json", INDEX])
def test_a_file_without_read_permission_is_named(checkpoint, monkeypatch, name):
    import builtins
    import io

    def guarded(file, *arguments, **options):
        if str(file).endswith(name):
            raise PermissionError(13, "Permission denied", str(file))
        return opened(file, *arguments, **options)

    opened = io.open
    monkeypatch.setattr(builtins, "open", guarded)  # for root, modes forbid nothing
    monkeypatch.setattr(io, "open", guarded)
    told = refusal(checkpoint)
    assert name in told and "Permission denied" in told and "check its permissions" in told


@pytest.mark.parametrize(
    "message", ["Error while deserializing header: header too large", "a weight file is cut short"]
)
def test_a_load_that_fails_for_a_damaged_weight_file_names_the_file(checkpoint, tmp_path, message):
    failure = describe_situation(
        EngineError, "the engine did not start", causes=(f"SafetensorError: {message}",)
    )
    whole = with_damaged_weights(failure, checkpoint)
    assert whole == failure
    cut(checkpoint / SECOND, 0.5)
    named = with_damaged_weights(failure, checkpoint)
    assert SECOND in named.causes[0] and "is cut short" in named.causes[0]
    assert named.causes[1:] == failure.causes and "again" in named.remedy
    other = describe_situation(EngineError, "out of memory")
    assert with_damaged_weights(other, checkpoint) == other


def test_the_engines_process_names_the_damaged_weight_file_of_its_own_model(checkpoint, tmp_path):
    cut(checkpoint / SECOND, 0.5)
    settings = EngineSettings("no:Engine", str(checkpoint), (2,), "bfloat16", 1, 64, False, str(tmp_path))
    process = EngineProcess(settings, tmp_path / "engine.log")
    try:
        explained = process.explain(describe_situation(EngineError, "SafetensorError: header too large"))
    finally:
        process.kill()
    assert SECOND in explained.causes[0]


def test_mistrals_tokenizer_file_alone_is_a_tokenizer_and_its_checkpoint_format_is_refused(checkpoint):
    (checkpoint / "tokenizer.json").rename(checkpoint / "tekken.json")
    describe_target(str(checkpoint))
    (checkpoint / "config.json").rename(checkpoint / "params.json")
    assert "Mistral's own format" in refusal(checkpoint)


@pytest.mark.parametrize("path", ["", "nowhere", "/dev/null", "a\0b"])
def test_a_path_that_is_no_checkpoint_is_said_in_one_line(path):
    assert "target.path" in refusal(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quantization_config", [{"quant_method": "fp8"}]),
        ("quantization_config", "fp8"),
        ("max_position_embeddings", "128k"),
        ("max_position_embeddings", [128]),
        ("max_position_embeddings", float("inf")),
        ("num_hidden_layers", "2"),
        ("num_hidden_layers", True),
        ("hidden_size", -8),
        ("vocab_size", 16.5),
        ("architectures", "LlamaForCausalLM"),
        ("architectures", [{}]),
    ],
)
def test_a_value_of_the_wrong_kind_in_config_json_is_named(checkpoint, key, value):
    for inside in (False, True):
        text = {**CONFIG, key: value}
        write(checkpoint / "config.json", {"text_config": text, "model_type": "x"} if inside else text)
        assert key in refusal(checkpoint)


ODD = (
    None,
    True,
    -1,
    0,
    1,
    10**30,
    0.5,
    1e400,
    float("nan"),
    "",
    "x",
    "\0",
    [],
    [1],
    ["x"],
    [[]],
    {},
    {"": 1},
)


def places(value, path=()):
    """Every place inside a JSON value, the outermost first."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    changed = value.copy()
    changed[path[0]] = replaced(value[path[0]], path[1:], new)
    return changed


def test_no_value_anywhere_in_a_checkpoints_json_gives_anything_but_a_record_or_one_line(checkpoint):
    """Each place of each file holds each odd value once, then three random places at a time do."""
    generator = random.Random(0)
    wrapper = {"architectures": ["Wrapper"], "model_type": "w", "text_config": CONFIG, "auto_map": {"A": "b"}}
    index = json.loads((checkpoint / INDEX).read_text())
    for name, whole in (("config.json", CONFIG), ("config.json", wrapper), (INDEX, index)):
        everywhere = list(places(whole))
        mutants = [replaced(whole, path, odd) for path in everywhere for odd in ODD]
        for _ in range(200):
            mutant = whole
            for path in sorted(generator.sample(everywhere, 3), key=len, reverse=True):
                mutant = replaced(mutant, path, generator.choice(ODD))
            mutants.append(mutant)
        original = (checkpoint / name).read_text()
        for mutant in mutants:
            (checkpoint / name).write_text(json.dumps(mutant))
            judge(checkpoint)
        (checkpoint / name).write_text(original)


def judge(checkpoint: Path) -> None:
    """All that the description and the arithmetic of the check read of a checkpoint's JSON."""
    try:
        describe_target(str(checkpoint))
        config = read_model_config(checkpoint)
        Model.of(config)
        positions_of(config)
        check_tensor_parallel(config, 8)
    except InputError as error:
        assert "\n" not in str(error) and len(str(error)) > 20
