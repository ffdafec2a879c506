"""What the check finds in a target's tokenizer files and code, before anything is loaded."""

import base64
import json
import re

import pytest
from checked_targets import LLAMA
from transformers.integrations.mistral import convert_tekken_tokenizer

from eagle3_data.compatibility.run import tokenizer as tokenizer_check
from eagle3_data.compatibility.run.own_tokenizers import split_pattern
from eagle3_data.compatibility.run.remote_code import check_remote_code
from eagle3_data.compatibility.run.tokenizer import check_tokenizer
from eagle3_data.config import Target, Tokenization
from eagle3_data.system import bounds
from eagle3_data.tokenization.tokenizer import load_tokenizer
from slow_tokenizer import save_slow_tokenizer
from tiny_tokenizer import TEMPLATES, describe, save_tokenizer


def tokenizer_ids(directory, vocab_size, **tokenization):
    return [
        (finding.id, finding.level)
        for finding in check_tokenizer(str(directory), vocab_size, False, Tokenization(**tokenization))
    ]


def findings(directory, vocab_size=10**6, trusted=False, **tokenization):
    return check_tokenizer(str(directory), vocab_size, trusted, Tokenization(**tokenization))


def chatml(directory, eos="<|im_end|>"):
    """A sound checkpoint's tokenizer, and its size."""
    template = (TEMPLATES / "chatml.jinja").read_text(encoding="utf-8")
    return len(save_tokenizer(directory, template, eos=eos))


def change(path, **values):
    """Set keys of a JSON file."""
    record = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**record, **values}))


def test_a_sound_tokenizer_has_no_finding(tmp_path):
    assert tokenizer_ids(tmp_path, chatml(tmp_path)) == []


def test_a_tokenizer_larger_than_the_model_fails(tmp_path):
    save_tokenizer(tmp_path, (TEMPLATES / "chatml.jinja").read_text(encoding="utf-8"))
    assert ("token-beyond-vocabulary", "fail") in tokenizer_ids(tmp_path, 100)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "ran for more than 0.5 s of processor time",
        ),
        ("{{ 'x' * 10000000000 }}", "asked for more than 0.5 GiB of memory"),
    ],
)
def test_a_template_that_does_not_end_is_ended_and_named(tmp_path, monkeypatch, template, words):
    monkeypatch.setattr(bounds, "SECONDS", 60 if "memory" in words else 0.5)
    monkeypatch.setattr(bounds, "MEMORY_BYTES", 1 << 29)
    size = len(save_tokenizer(tmp_path, template))
    (tmp_path / "mine.jinja").write_text(template)
    for place, settings in (
        (str(tmp_path), {}),
        ("tokenization.chat_template", {"chat_template": "mine.jinja"}),
    ):
        monkeypatch.chdir(tmp_path)
        found = next(
            finding for finding in findings(tmp_path, size, **settings) if finding.id == "template-fails"
        )
        assert words in found.title and found.client_location == place


def test_a_template_is_at_most_a_warning_for_tokenization_has_succeeded_by_then(tmp_path):
    for name, template, expected in (
        ("none", None, ("no-chat-template", "warn")),
        ("raising", "{{ raise_exception('never') }}", ("template-fails", "warn")),
        ("mute", "{% for m in messages %}{{ m.role }}{% endfor %}", ("template-drops-text", "warn")),
    ):
        (tmp_path / name).mkdir()
        size = len(save_tokenizer(tmp_path / name, template))
        assert tokenizer_ids(tmp_path / name, size) == [expected]


def test_the_template_that_the_run_uses_is_the_one_that_is_judged(tmp_path):
    good, bad = TEMPLATES / "chatml.jinja", tmp_path / "bad.jinja"
    bad.write_text("{{ raise_exception('never') }}")
    size = len(save_tokenizer(tmp_path, None, eos="<|im_end|>"))
    assert tokenizer_ids(tmp_path, size, chat_template=str(good)) == []
    assert tokenizer_ids(tmp_path, size, chat_template=str(bad)) == [("template-fails", "warn")]
    save_tokenizer(tmp_path, bad.read_text(), eos="<|im_end|>")
    assert tokenizer_ids(tmp_path, size, chat_template=str(good)) == []
    assert tokenizer_ids(tmp_path, size, chat_template=str(tmp_path / "nowhere")) == [
        ("template-fails", "warn")
    ]


def test_a_template_is_rendered_with_the_runs_own_variables(tmp_path):
    template = (
        "{% if not given %}{{ raise_exception('no date') }}{% endif %}{% for m in messages %}{{ m.content"
        " }}{% endfor %}"
    )
    size = len(save_tokenizer(tmp_path, template))
    assert tokenizer_ids(tmp_path, size) == [("template-fails", "warn")]
    assert tokenizer_ids(tmp_path, size, template_arguments={"given": True}) == []


def test_a_tokenizer_that_is_code_of_the_checkpoint_needs_leave(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
        )
    )
    (tmp_path / "own.py").write_text("class OwnTokenizer: ...\n")
    (tmp_path / "config.json").write_text(
        json.dumps({**LLAMA, "model_type": "nobodys", "auto_map": {"AutoConfig": "own.OwnConfig"}})
    )
    assert tokenizer_ids(tmp_path, 100) == [("remote-code-needed", "fail")]


@pytest.mark.parametrize(
    ("model_type", "needs", "trusted", "expected"),
    [
        ("deepseek_v3", True, False, []),  # its checkpoints bring code that transformers no longer needs
        ("kimi_k2", True, False, []),  # known to vLLM, not to transformers
        ("nobodys", True, False, ["remote-code-needed"]),
        ("nobodys", True, True, []),
        ("nobodys", False, False, []),
    ],
)
def test_a_checkpoints_code_needs_leave_only_where_nobody_else_knows_its_model_type(
    model_type, needs, trusted, expected
):
    assert [finding.id for finding in check_remote_code("here", model_type, needs, trusted)] == expected


def test_a_directory_without_a_tokenizer_is_reported(tmp_path):
    ((name, level),) = tokenizer_ids(tmp_path, 100)
    assert (name, level) == ("tokenizer-unusable", "fail")


# --- tokenizers of one checkpoint that disagree

KIMI_PATTERN = [
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^\p{Han}]]+",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+",
]


def kimi(directory, pattern=f'"|".join({KIMI_PATTERN!r})'):
    """A checkpoint like Kimi's: tiktoken's ranks and its own Python code, no tokenizer.json. Its code splits
    between punctuation and Han, transformers' conversion does not."""
    save_slow_tokenizer(directory, "{% for m in messages %}{{ m.content }}{% endfor %}", ["<|im_end|>"])
    merges = [part for character in "，北" for part in (character.encode()[:2], character.encode())]
    ranks = dict.fromkeys([bytes([i]) for i in range(256)] + [*merges, "，北".encode()])
    lines = (f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(ranks))
    (directory / "tiktoken.model").write_text("\n".join(lines))
    code = directory / "slow_tokenizer.py"
    code.write_text(re.sub(r"PATTERN = r.*", lambda _: f"PATTERN = {pattern}", code.read_text()))
    change(directory / "config.json", model_type="kimi_k25", auto_map={"AutoConfig": "own.Config"})
    return directory


def test_a_converted_tokenizer_that_splits_otherwise_than_the_checkpoints_own_code_fails(tmp_path):
    (finding,) = [f for f in findings(kimi(tmp_path)) if f.id == "tokenizers-disagree"]
    assert finding.level == "fail" and "tiktoken.model" in finding.title and "Han" in finding.title
    assert re.search(r"they give \d+ and \d+ ids, from position \d+ on \[\d+", finding.title)
    assert "trust_remote_code" in finding.remedy
    assert "tokenizers-disagree" not in {f.id for f in findings(tmp_path, trusted=True)}


def test_code_whose_pattern_cannot_be_read_leaves_the_agreement_unknown(tmp_path):
    (finding,) = [f for f in findings(kimi(tmp_path, "make_pattern()")) if f.id.startswith("tokenizer")]
    assert (finding.id, finding.level) == ("tokenizer-not-compared", "unknown")
    assert "tiktoken.model could not be compared" in finding.title


@pytest.mark.parametrize(
    "code",
    [
        "pat_str = 'a' 'b|c'",
        "class T:\n    pat_str = '|'.join(['ab', 'c'])",
        "class T:\n    def __init__(self):\n        self.pat_str = 'ab' + '|c'",
        "PAT_STR = r'''ab|c'''",
        "e = Encoding(name='x', pat_str='ab|c', special_tokens={})",
    ],
)
def test_a_split_pattern_is_read_from_code_that_is_not_run(tmp_path, code):
    (tmp_path / "a_model.py").write_text("pattern = 'another'")
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "tokenization_x.py").write_text(f"raise SystemExit\n{code}\n")
    assert split_pattern(tmp_path) == "ab|c"


def test_added_tokens_that_were_renumbered_fail_with_their_ids(tmp_path):
    size = chatml(tmp_path)
    record = json.loads((tmp_path / "tokenizer.json").read_text())
    last = {entry["content"]: entry["id"] for entry in record["added_tokens"][-2:]}
    moved = {str(number + 10): {"content": token, "special": True} for token, number in last.items()}
    change(tmp_path / "tokenizer_config.json", added_tokens_decoder=moved)
    change(tmp_path / "config.json", media_placeholder_token_id=size + 8)
    found = {f.id: f for f in findings(tmp_path)}
    assert found["token-ids-disagree"].level == "fail"
    for token, number in last.items():
        assert repr(token) in found["token-ids-disagree"].title
        assert (
            f"{number} in tokenizer.json, {number + 10} in tokenizer_config"
            in found["token-ids-disagree"].title
        )
    assert f"media_placeholder_token_id = {size + 8}" in found["token-id-without-token"].title


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("added_tokens.json", {"<think>": 5}),
        ("added_tokens.json", {"<brand-new>": 5}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"5": {"content": "<think>"}}}),
        ("tekken.json", {"special_tokens": [{"rank": 5, "token_str": "<think>"}]}),
    ],
)
def test_a_file_that_gives_a_token_another_id_or_an_id_another_token_fails(tmp_path, name, values):
    chatml(tmp_path)
    change(tmp_path / name, **values)
    assert ("token-ids-disagree", "fail") in tokenizer_ids(tmp_path, 10**6)


def test_ids_that_configurations_name_have_tokens_but_padding_may_have_none(tmp_path):
    size = chatml(tmp_path)
    named = {"image_token_index": 3, "eos_token_id": [4], "pad_token_id": size + 1, "bos_token_id": -1}
    change(tmp_path / "config.json", text_config=named, audio_token_id=None)
    assert "token-id-without-token" not in {f.id for f in findings(tmp_path)}
    change(tmp_path / "config.json", text_config={**named, "eos_token_id": [4, size]})
    (finding,) = [f for f in findings(tmp_path) if f.id == "token-id-without-token"]
    assert f"eos_token_id = {size}" in finding.title


@pytest.mark.parametrize("damage", ["vocabulary", "merges"])
def test_tables_that_are_not_those_of_tokenizer_json_are_named(tmp_path, damage):
    chatml(tmp_path)
    model = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    vocabulary, merges = dict(model["vocab"]), [" ".join(pair) for pair in model["merges"]]
    for expected in ([], ["warn"]):
        (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
        (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
        assert [f.level for f in findings(tmp_path) if f.id == "tokenizers-disagree"] == expected
        first, second = list(vocabulary)[300:302]
        if damage == "vocabulary":
            vocabulary |= {first: vocabulary[second], second: vocabulary[first]}
        else:
            merges[3], merges[4] = merges[4], merges[3]


def test_a_role_that_two_files_give_to_different_tokens_is_named(tmp_path):
    chatml(tmp_path)
    written = {"content": "<|im_end|>", "lstrip": False}
    change(tmp_path / "special_tokens_map.json", eos_token=written, pad_token=None, bos_token="<|begin|>")
    assert "tokenizers-disagree" not in {f.id for f in findings(tmp_path)}
    change(tmp_path / "special_tokens_map.json", eos_token={**written, "content": "<|eot|>"})
    (finding,) = [f for f in findings(tmp_path) if f.id == "tokenizers-disagree"]
    assert finding.level == "warn"
    assert "eos_token is '<|eot|>' in special_tokens_map.json and '<|im_end|>'" in finding.title


def test_a_tokenizer_json_of_another_checkpoint_fails(tmp_path):
    """The tokenizer in use is the checkpoint's own code, and tokenizer.json was made of another model."""
    kimi(tmp_path)
    chatml(tmp_path / "other")
    (tmp_path / "other/tokenizer.json").rename(tmp_path / "tokenizer.json")
    (finding,) = [f for f in findings(tmp_path, trusted=True) if f.id == "tokenizers-disagree"]
    assert finding.level == "fail" and finding.title.startswith(
        "tokenizer.json and the tokenizer in use (Slow"
    )


def test_what_ends_an_answer_and_what_ends_generation_must_be_one(tmp_path):
    size = chatml(tmp_path)
    end = json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
    ids = {entry["content"]: entry["id"] for entry in end}
    change(tmp_path / "generation_config.json", eos_token_id=[ids["<|im_end|>"], ids["<|eot|>"]])
    assert tokenizer_ids(tmp_path, size) == []
    change(tmp_path / "generation_config.json", eos_token_id=ids["<|eot|>"])
    (finding,) = findings(tmp_path)
    assert (finding.id, finding.level) == ("eos-disagrees", "warn")
    assert "'<|im_end|>'" in finding.title and f"'<|eot|>' ({ids['<|eot|>']})" in finding.title
    chatml(tmp_path, eos="<|endoftext|>")
    (tmp_path / "generation_config.json").unlink()
    (finding,) = findings(tmp_path)
    assert (finding.id, finding.level) == ("turn-end-not-eos", "warn")
    assert f"'<|im_end|>' ({ids['<|im_end|>']})" in finding.title and "'<|endoftext|>'" in finding.title


def test_a_tokenizer_that_raises_leaves_what_it_was_asked_for_unknown(tmp_path, monkeypatch):
    class Raising:
        def __getattr__(self, name):
            raise NotImplementedError(name)

    monkeypatch.setattr(tokenizer_check, "load_checkpoint_tokenizer", lambda *_: Raising())
    found = findings(tmp_path)
    assert {(f.id, f.level) for f in found} == {("tokenizer-not-compared", "unknown")}
    assert all("NotImplementedError" in f.title for f in found)
    for what in ("special tokens", "token ids", "end token", "chat template"):
        assert any(what in f.title for f in found)


# --- Mistral's tekken.json

TEKKEN_PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN_SPECIAL = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]",
    "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip


def tekken(directory):
    """A checkpoint whose only tokenizer is Mistral's tekken.json; returns its vocabulary's size."""
    tokens = [bytes([i]) for i in range(256)] + [b"He", b"ll", b"Hell", b"Hello", b" t", b" th", "é".encode()]
    vocabulary = [
        {"rank": n, "token_bytes": base64.b64encode(t).decode(), "token_str": None}
        for n, t in enumerate(tokens)
    ]
    size = len(tokens) + len(TEKKEN_SPECIAL)
    config = {
        "pattern": TEKKEN_PATTERN,
        "num_vocab_tokens": len(tokens),
        "default_vocab_size": size,
        "version": "v7",
    }
    special = [{"rank": n, "token_str": t, "is_control": True} for n, t in enumerate(TEKKEN_SPECIAL)]
    change(
        directory / "tekken.json",
        config={**config, "default_num_special_tokens": len(special)},
        vocab=vocabulary,
        special_tokens=special,
    )
    change(directory / "config.json", **{**LLAMA, "model_type": "mistral", "vocab_size": size})
    return size


def test_mistrals_tekken_json_alone_is_a_tokenizer_that_reads_special_tokens_and_has_a_template(tmp_path):
    size = tekken(tmp_path)
    assert tokenizer_ids(tmp_path, size) == []
    tokenizer = load_tokenizer(describe(tmp_path, size), Target(path=str(tmp_path)), Tokenization())
    ids, _ = tokenizer.backend.encode("[INST]Hello the[/INST]He</s>", [])
    first = len(TEKKEN_SPECIAL)
    assert ids == [3, first + 259, first + 261, first + ord("e"), 4, first + 256, 2]
    assert tokenizer.template is not None and {0, 1, 2, 3, 4} <= set(tokenizer.special_ids)


def test_a_tokenizer_json_beside_tekken_json_must_agree_with_it(tmp_path):
    tekken(tmp_path)
    convert_tekken_tokenizer(str(tmp_path / "tekken.json")).save_pretrained(tmp_path)
    assert "tokenizers-disagree" not in {f.id for f in findings(tmp_path)}
    record = json.loads((tmp_path / "tekken.json").read_text())
    record["config"]["pattern"] = TEKKEN_PATTERN.replace(r"?\p{L}+", r"?\p{L}")
    (tmp_path / "tekken.json").write_text(json.dumps(record))
    (finding,) = [f for f in findings(tmp_path) if f.id == "tokenizers-disagree"]
    assert finding.level == "fail" and finding.title.startswith("tekken.json and the tokenizer in use")
