"""scripts/tokenize_dataset.py and what it calls: files in, files out, all or none."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from eagle3_data.config import Data, Target, Tokenization
from eagle3_data.errors import InputError, causes_of
from eagle3_data.hashing import hash_json, sample_key
from eagle3_data.records import read_json, write_json
from eagle3_data.system import bounds
from eagle3_data.tokenization.dataset import FILES, TokenizationJob, tokenize_dataset
from eagle3_data.tokenization.tokenizer import load_tokenizer
from eagle3_data.tokenization.view import choose_samples, render_samples
from tiny_tokenizer import Tiny, describe, save_tokenizer, talk, tiny_directory

ROOT = Path(__file__).parents[2]


def lines(path: Path, *rows: object) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def request(*sources, template="chatml", train_ratio=1.0, **settings):
    directory, size = tiny_directory(template)
    listed = tuple({"path": str(source)} if isinstance(source, Path) else source for source in sources)
    return TokenizationJob(
        Data(sources=listed, train_ratio=train_ratio),
        Tokenization(**settings),
        Target(path=str(directory)),
        describe(directory, size),
    )


class Result:
    def __init__(self, directory: Path):
        self.directory = directory
        self.batches = read_json(directory / "batches.json")
        self.samples = pq.read_table(directory / "samples.parquet").to_pylist()
        self.ledger = pq.read_table(directory / "ledger.parquet").to_pylist()
        self.frequencies = np.load(directory / "token_frequencies.npy")

    def fates(self) -> list[str]:
        return [entry["reason"] or entry["fate"] for entry in self.ledger]


def run(tmp_path, *sources, processes=1, **settings) -> Result:
    tokenize_dataset(request(*sources, **settings), tmp_path / "tokens", processes)
    return Result(tmp_path / "tokens")


def talks(count, first=0):
    return [
        {"id": f"n{number}", "messages": talk(f"Question {number}?", f"Answer {number}.")}
        for number in range(first, first + count)
    ]


def test_the_five_files_agree_with_each_other(tmp_path):
    rows = [*talks(3), talks(1)[0], {"messages": []}]
    result = run(tmp_path, lines(tmp_path / "talks.jsonl", *rows), batch_tokens=70)
    assert sorted(path.name for path in result.directory.iterdir()) == sorted(FILES)
    assert [sample["sample_id"] for sample in result.samples] == ["talks:0", "talks:1", "talks:2"]
    assert [sample["key"] for sample in result.samples] == [
        sample_key(sample["input_ids"]) for sample in result.samples
    ]
    assert [len(sample["input_ids"]) for sample in result.samples] == [
        sample["tokens"] for sample in result.samples
    ]
    assert result.fates() == ["kept", "kept", "kept", "duplicate", "empty"]
    assert [entry["sample_ids"] for entry in result.ledger] == [["talks:0"], ["talks:1"], ["talks:2"], [], []]
    assert [entry["file_id"] for entry in result.ledger] == ["n0", "n1", "n2", "n0", ""]
    assert result.batches["dropped"] == {"duplicate": 1, "empty": 1}
    assert (result.batches["rows"], result.batches["samples"]) == (5, 3)
    assert result.batches["tokens"] == sum(sample["tokens"] for sample in result.samples)
    trained = Counter(
        token
        for sample in result.samples
        for token, flag in zip(sample["input_ids"], sample["loss_mask"], strict=True)
        if flag
    )
    assert {
        int(token): int(result.frequencies[token]) for token in np.flatnonzero(result.frequencies)
    } == trained
    assert result.batches["trained_tokens"] == trained.total()
    first = result.batches["batches"]["00000"]
    assert first["fingerprint"] == hash_json(
        [[sample["sample_id"], sample["key"]] for sample in result.samples[: first["samples"]]]
    )


def test_the_same_input_gives_the_same_bytes_in_any_number_of_processes(tmp_path):
    source = lines(tmp_path / "talks.jsonl", *talks(500), *talks(20), {"messages": []})
    for number, processes in enumerate((1, 1, 3)):
        tokenize_dataset(request(source, batch_tokens=2000), tmp_path / str(number), processes)
    for name in FILES:
        assert (
            (tmp_path / "0" / name).read_bytes()
            == (tmp_path / "1" / name).read_bytes()
            == (tmp_path / "2" / name).read_bytes()
        ), name


def test_fates_add_up_over_several_sources(tmp_path):
    lines(
        tmp_path / "one.jsonl",
        *talks(30),
        "{broken",
        {"messages": [{"role": "wizard\ud83d", "content": "?"}]},
        {"messages": talk("Hi")},
    )
    (tmp_path / "two.json").write_text(json.dumps(talks(40, first=20)), encoding="utf-8")
    pq.write_table(
        pa.Table.from_pylist([{"prompt": f"P{number}", "response": f"R{number}"} for number in range(9)]),
        tmp_path / "three.parquet",
    )
    sources = (
        {"path": str(tmp_path / "one.jsonl")},
        {"path": str(tmp_path / "two.json"), "limit": 25},
        {"path": str(tmp_path / "three.parquet"), "weight": 0.5},
    )
    result = run(tmp_path, *sources, on_bad_row="drop", max_length=30)
    assert len(result.ledger) == result.batches["rows"] == 33 + 25 + 9
    assert [entry["sample_ids"] == [] for entry in result.ledger] == [
        fate != "kept" for fate in result.fates()
    ]
    assert Counter(result.fates()) == {"kept": result.batches["samples"], **result.batches["dropped"]}
    assert result.batches["dropped"] == {
        "bad-row": 2,
        "no-assistant-turn": 1,
        "duplicate": 10,
        "not-drawn": result.batches["dropped"]["not-drawn"],
    }
    assert 0 < result.batches["dropped"]["not-drawn"] < 9
    assert [entry["detail"] for entry in result.ledger if entry["reason"] == "bad-row"][1].startswith(
        "turn 0 has the unknown role 'wizard"
    )


def test_a_thousand_formatted_texts_in_a_thousand_out(tmp_path):
    texts = [
        {
            "text": (
                f"<|im_start|>user\nIs {number}"
                f" odd?<|im_end|>\n<|im_start|>assistant\n{bool(number % 2)}<|im_end|>\n"
            )
        }
        for number in range(1000)
    ]
    result = run(tmp_path, lines(tmp_path / "texts.jsonl", *texts), processes=2)
    assert len(result.samples) == 1000
    decode = Tiny("chatml").tokenizer.backend.decode
    assert [decode(sample["input_ids"]) for sample in result.samples] == [
        "<|begin|>" + text["text"] for text in texts
    ]
    plain = run(
        tmp_path,
        {
            "path": str(
                lines(tmp_path / "plain.jsonl", *({"text": f"Line {number}"} for number in range(1000)))
            ),
            "trained": "all",
        },
    )
    assert len(plain.samples) == 1000


@pytest.mark.parametrize("train_on", ["all", "each"])
def test_the_trainer_cuts_between_train_and_validation(tmp_path, train_on):
    rows = [
        {"messages": talk(*(f"{number}.{turn}" for turn in range(2 + 2 * (number % 3))))}
        for number in range(100)
    ]
    result = run(tmp_path, lines(tmp_path / "talks.jsonl", *rows), train_ratio=0.9, train_on=train_on)
    cut = int(len(result.samples) * 0.9)
    assert [sample["split"] for sample in result.samples] == ["train"] * cut + ["validation"] * (
        len(result.samples) - cut
    )
    assert result.batches["split"] == {
        "train": cut,
        "validation": len(result.samples) - cut,
        "train_data_ratio": 0.9,
    }
    sides = [
        {sample["conversation_id"] for sample in part}
        for part in (result.samples[:cut], result.samples[cut:])
    ]
    assert sides[0].isdisjoint(sides[1])
    assert len(result.samples) == (100 if train_on == "all" else 199)
    if train_on == "each":
        assert [
            sample["sample_id"] for sample in result.samples if sample["conversation_id"] == "talks:2"
        ] == ["talks:2:1", "talks:2:3", "talks:2:5"]


def test_added_rows_leave_keys_and_full_batches_as_they_were(tmp_path):
    before = run(tmp_path / "a", lines(tmp_path / "talks.jsonl", *talks(50)), batch_tokens=200)
    after = run(tmp_path / "b", lines(tmp_path / "talks.jsonl", *talks(60)), batch_tokens=200)
    assert after.samples[:50] == before.samples
    full = list(before.batches["batches"].items())[:-1]
    assert list(after.batches["batches"].items())[: len(full)] == full


def test_a_number_of_batches_can_be_asked_for(tmp_path):
    result = run(tmp_path, lines(tmp_path / "talks.jsonl", *talks(50)), batches=7)
    assert [batch["row_group"] for batch in result.batches["batches"].values()] == list(range(7))
    assert [sample["sample_id"] for sample in result.samples] == [f"talks:{number}" for number in range(50)]


def test_near_duplicates_are_dropped_on_demand(tmp_path):
    story = " ".join(f"word{number}" for number in range(200))
    source = lines(
        tmp_path / "talks.jsonl",
        *({"messages": talk("Tell!", text)} for text in (story, story + " end", "Another one altogether.")),
    )
    assert run(tmp_path / "a", source).fates() == ["kept", "kept", "kept"]
    assert run(tmp_path / "b", source, near_duplicates=0.8).fates() == ["kept", "near-duplicate", "kept"]


def told(tmp_path, *sources, **settings):
    """The summary for people, and batches.json."""
    summary = tokenize_dataset(request(*sources, **settings), tmp_path / "tokens").summary()
    return summary.splitlines(), read_json(tmp_path / "tokens" / "batches.json")


def test_cut_samples_are_counted(tmp_path):
    rows = [{"messages": talk("Hi", f"{number} Hello, how are you today? I am fine.")} for number in range(5)]
    lines_of_summary, record = told(
        tmp_path, lines(tmp_path / "talks.jsonl", *rows, {"messages": talk("Hi", "Yes")}), max_length=24
    )
    assert lines_of_summary[:2] == [
        "6 rows: 6 kept, 0 dropped",
        "  5 samples cut to tokenization.max_length (24)",
    ]
    assert (record["truncated"], record["dropped"], record["dropped_turns"]) == (5, {}, {})


def test_turns_that_are_dropped_from_kept_rows_are_counted(tmp_path):
    rows = [{"messages": talk("Hi", f"{number}", "More", "Hello, how are you today?")} for number in range(2)]
    lines_of_summary, record = told(
        tmp_path,
        lines(tmp_path / "talks.jsonl", *rows, *talks(1)),
        train_on="each",
        max_length=30,
        too_long="drop",
    )
    assert lines_of_summary[:2] == [
        "3 rows: 3 kept, 0 dropped",
        "  not trained in these rows: 2 turns (2 x too-long)",
    ]
    assert (record["truncated"], record["dropped"], record["dropped_turns"]) == (0, {}, {"too-long": 2})


def test_rows_that_are_trained_whole_for_want_of_a_mask_are_counted(tmp_path):
    rows = [{"input_ids": [5, 6, number], "loss_mask": [0, 1, 1]} for number in range(2)] + [
        {"input_ids": [7, 8, 9]}
    ] * 2
    lines_of_summary, record = told(tmp_path, lines(tmp_path / "ids.jsonl", *rows))
    assert lines_of_summary[:3] == [
        "4 rows: 3 kept, 1 dropped",
        "  1 x duplicate: same token ids as an earlier sample (first ids:3)",
        "  1 row of token ids without a loss mask: all their tokens are trained",
    ]
    assert record["without_mask"] == 1


def test_what_kept_rows_have_lost_is_counted_in_ledger_and_summary(tmp_path):
    rows = [
        {"messages": talk("Hi", f"Ho {number}", "So", "No"), "context": "Rain.", "id": number}
        for number in range(3)
    ]
    rows[1]["messages"][1]["train"] = False
    rows[2]["messages"][1]["weight"] = rows[2]["messages"][3]["weight"] = 0
    rows.append({"messages": talk("<image>What?", "A cat.")})
    source = {"path": str(lines(tmp_path / "talks.jsonl", *rows)), "system_field": "persona"}
    lines_of_summary, record = told(tmp_path, source)
    assert lines_of_summary[:6] == [
        "4 rows: 2 kept, 2 dropped",
        "  1 x untrained: the data marks every assistant turn as not to be trained (first talks:2)",
        "  1 x multimodal: the row has images, video or audio; to train on its text alone, set the"
        " source's `multimodal: keep` (first talks:3: <image> in turn 0)",
        "  2 x ignored-field context: a field that has a meaning in known data sets is not used;"
        " if it belongs to the prompt, name it in the source's `system_field`, `input_field` or `tools_field`"
        " (first talks:0)",
        "  2 x missing-field system_field persona: no row has this field, which the configuration names"
        " (first talks:0)",
        "  1 x untrained-turn: assistant turns that the data marks as not to be trained are only context"
        " (first talks:1)",
    ]
    assert record["dropped"] == {"untrained": 1, "multimodal": 1}
    assert record["notices"] == {
        "talks": {"ignored-field context": 2, "missing-field system_field persona": 2, "untrained-turn": 1}
    }
    assert record["remarks"] == [line.strip() for line in lines_of_summary[3:6]]
    noticed = [entry["notices"] for entry in Result(tmp_path / "tokens").ledger]
    assert noticed[1] == ["untrained-turn", "ignored-field context", "missing-field system_field persona"]
    assert noticed[2:] == [[], []]


def test_a_named_field_that_some_rows_have_is_no_mistake(tmp_path):
    rows = [
        {"messages": talk("Hi", f"{number}"), **({"persona": "A cook."} if number else {})}
        for number in (0, 1)
    ]
    source = {"path": str(lines(tmp_path / "talks.jsonl", *rows)), "system_field": "persona"}
    assert told(tmp_path, source)[1]["remarks"] == []


def test_the_view_shows_conversations_escaped(tmp_path):
    hostile = "<script>alert('日本 😀')</script>"
    asked = request(lines(tmp_path / "talks.jsonl", {"messages": talk(hostile, hostile)}))
    tokenize_dataset(asked, tmp_path / "tokens")
    samples, total = choose_samples(tmp_path / "tokens/samples.parquet")
    tokenizer = load_tokenizer(asked.description, asked.target, asked.tokenization)
    view = render_samples(samples, total, tokenizer.backend, max_length=samples[0].tokens)
    assert "<script" not in view
    assert (
        "&lt;script&gt;alert(&#39;日本 😀&#39;)&lt;/script&gt;" in view
    )  # the question, untrained, in one piece
    assert "<mark>😀</mark>" in view  # four tokens that make one character
    assert "talks:0" in view
    assert "as long as max_length allows" in view
    assert total == 1


# What goes wrong


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"messages": [', r"talks\.jsonl, line 3: not valid JSON \(character 16"),
        (
            {"messages": [{"role": "wizard", "content": "secret"}]},
            r"talks\.jsonl, line 3: turn 0 has the unknown role 'wizard'; map it in the source's `roles`",
        ),
        (
            {"dialog": []},
            (
                r"talks\.jsonl, line 3: there is no field 'messages' .*; the fields are 'dialog'; set the"
                r" source's `field`"
            ),
        ),
    ],
)
@pytest.mark.parametrize("processes", [1, 2])
def test_a_bad_row_stops_the_run_and_names_its_place(tmp_path, row, words, processes):
    source = lines(tmp_path / "talks.jsonl", *talks(2), row, *talks(400))
    with pytest.raises(InputError, match=words) as caught:
        run(tmp_path, source, processes=processes)
    assert "on_bad_row: drop" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert list((tmp_path / "tokens").iterdir()) == []


def test_no_row_stops_a_run_that_drops_bad_ones(tmp_path):
    deep = "[" * 100_000 + "]" * 100_000
    arguments = '{"a":' * 5000 + "1" + "}" * 5000
    bad = [
        '{"id": ' + "9" * 5000 + ', "messages": []}',
        json.dumps({"messages": deep}),
        '{"messages": ' + deep + "}",
        {
            "messages": [
                *talk("Hi"),
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
                },
            ]
        },
        [1, 2],
    ]
    result = run(
        tmp_path,
        lines(tmp_path / "talks.jsonl", *talks(1), *bad, talks(2)[1]),
        template="chatml_tools",
        on_bad_row="drop",
    )
    assert result.fates() == ["kept", *["bad-row"] * len(bad), "kept"]
    assert [entry["detail"] for entry in result.ledger[1:6]] == [
        "not valid JSON: an integer of too many digits",
        *["nested too deeply"] * 3,
        'the row is a list; rows must be JSON objects, such as {"messages": [...]}',
    ]
    elements = ", ".join(
        row if isinstance(row, str) else json.dumps(row) for row in (*talks(1), *bad, talks(2)[1])
    )
    (tmp_path / "array.json").write_text(f"[{elements}]", encoding="utf-8")
    array = run(tmp_path / "b", tmp_path / "array.json", template="chatml_tools", on_bad_row="drop")
    assert [(entry["reason"], entry["detail"]) for entry in array.ledger] == [
        (entry["reason"], entry["detail"]) for entry in result.ledger
    ]


@pytest.mark.parametrize("place", ["row", "turn"])
def test_a_key_that_is_there_twice_makes_a_bad_row(tmp_path, place):
    turn = '{"role": "user", "content": "Hi", "content": "Ho"}'
    row = '{"messages": [], "messages": []}' if place == "row" else f'{{"messages": [{turn}]}}'
    with pytest.raises(InputError, match=r"line 2: an object has the key '(messages|content)' twice"):
        run(tmp_path, lines(tmp_path / "talks.jsonl", *talks(1), row))


def test_turns_in_a_csv_file_are_json_text(tmp_path):
    table = pa.table({"messages": [json.dumps(row["messages"]) for row in talks(3)]})
    pa.csv.write_csv(table, tmp_path / "talks.csv")
    assert len(run(tmp_path, tmp_path / "talks.csv").samples) == 3


def test_lines_that_are_lists_are_explained(tmp_path):
    source = lines(tmp_path / "talks.jsonl", talk("Hi", "Ho"), talk("And", "So"))
    with pytest.raises(
        InputError,
        match=(
            r"talks\.jsonl, line 1: the row is a list; rows must be JSON objects, such as \{\"messages\":"
            r" \[\.\.\.\]\}"
        ),
    ):
        run(tmp_path, source)


def test_a_parquet_row_that_cannot_be_read_is_a_fate(tmp_path):
    texts = pa.StringArray.from_buffers(
        2, pa.py_buffer(b"\0\0\0\0\2\0\0\0\5\0\0\0"), pa.py_buffer(b"ok\xff\xfe\xe9")
    )
    pq.write_table(pa.table({"text": texts}), tmp_path / "texts.parquet")
    source = {"path": str(tmp_path / "texts.parquet"), "trained": "all"}
    assert run(tmp_path, source, on_bad_row="drop").fates() == ["kept", "bad-row"]
    with pytest.raises(
        InputError, match=r"texts\.parquet, row 1: field 'text' cannot be read \(UnicodeDecodeError: "
    ):
        run(tmp_path, source)


def test_a_failed_run_leaves_older_files_alone_and_clears_what_a_killed_one_left(tmp_path):
    source = lines(tmp_path / "talks.jsonl", *talks(2))
    run(tmp_path, source)
    before = {path: path.read_bytes() for path in (tmp_path / "tokens").iterdir()}
    (tmp_path / "tokens" / ".unfinished-x").mkdir()
    (tmp_path / "tokens" / ".unfinished-x" / "samples.parquet").write_text("half", encoding="utf-8")
    lines(source, *talks(2), "{")
    with pytest.raises(InputError):
        run(tmp_path, source)
    assert {path: path.read_bytes() for path in (tmp_path / "tokens").iterdir()} == before


def test_if_nothing_is_kept_the_reasons_are_counted(tmp_path):
    source = lines(
        tmp_path / "talks.jsonl", {"messages": []}, *({"messages": talk("Hi", "x" * 50)} for _ in range(2))
    )
    with pytest.raises(InputError) as caught:
        run(tmp_path, source, max_length=20, too_long="drop")
    told = str(caught.value)
    assert "all 3 rows dropped:\n  2 x too-long: longer than tokenization.max_length (first talks:1: " in told
    assert "\n  1 x empty: " in told


def test_an_empty_source_is_an_error(tmp_path):
    with pytest.raises(InputError, match="hold no rows at all"):
        run(tmp_path, lines(tmp_path / "talks.jsonl"))


def test_a_missing_source_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"data\.sources\[0\]: there is no file .*missing\.jsonl"):
        run(tmp_path, tmp_path / "missing.jsonl")


@pytest.mark.parametrize("processes", [1, 2])
def test_a_missing_chat_template_is_an_error(tmp_path, processes):
    with pytest.raises(InputError, match="no chat template, and conversations need one") as caught:
        run(tmp_path, lines(tmp_path / "talks.jsonl", *talks(300)), template=None, processes=processes)
    assert causes_of(caught.value) == []


ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
    + 2 * ("{% endfor %}")
)
BOMB = "{% set x = namespace(t='x' * 1000) %}{% for i in range(40) %}{% set x.t = x.t ~ x.t %}{% endfor %}"
ONLY_LONG = "{% if messages[0].content | length > 5 %}" + "BAD{% endif %}"
CHAT = (Path(__file__).parents[1] / "data/templates/chatml.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("bad", "words"), [(ENDLESS, "ran for more than 0.5 s"), (BOMB, "asked for more than 0.5 GiB")]
)
@pytest.mark.parametrize("when", ["always", "in one row"])
def test_a_template_that_does_not_end_is_named_with_its_row(tmp_path, monkeypatch, bad, words, when):
    monkeypatch.setattr(bounds, "SECONDS", 0.5 if bad is ENDLESS else 60)
    monkeypatch.setattr(bounds, "MEMORY_BYTES", 1 << 29)
    template = tmp_path / "mine.jinja"
    template.write_text((bad if when == "always" else ONLY_LONG.replace("BAD", bad)) + CHAT, encoding="utf-8")
    source = lines(
        tmp_path / "talks.jsonl", {"messages": talk("Hi", "Ho")}, {"messages": talk("A long one", "Ho")}
    )
    with pytest.raises(InputError) as caught:
        run(tmp_path, source, chat_template=str(template))
    assert f"the chat template {template} {words}" in str(caught.value)
    where = (
        "while rendering a short conversation; correct the template"
        if when == "always"
        else "talks.jsonl, line 2: "
    )
    assert where in str(caught.value)
    if when == "in one row":
        assert run(tmp_path, source, chat_template=str(template), on_bad_row="drop").fates() == [
            "kept",
            "bad-row",
        ]


# The script itself, as a rule runs it


def script(tmp_path: Path, target: Path, source: Path, *more: str) -> subprocess.CompletedProcess[str]:
    config = {
        "data": {"sources": [{"path": str(source)}]},
        "tokenization": {"max_length": 100},
        "target": {"path": str(target)},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    command = [
        sys.executable,
        str(ROOT / "scripts/tokenize_dataset.py"),
        "--config",
        str(tmp_path / "config.json"),
        "--target",
        str(target / "target.json"),
    ]
    return subprocess.run(
        [*command, "--output-dir", str(tmp_path / "tokens"), *more],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_script_tells_what_it_did(tmp_path):
    directory, size = tiny_directory("chatml")
    target = Path(shutil.copytree(directory, tmp_path / "target"))
    write_json(target / "target.json", describe(target, size).to_json())
    result = script(
        tmp_path, target, lines(tmp_path / "talks.jsonl", *talks(300), talks(1)[0]), "--processes", "2"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    assert (
        "301 rows: 300 kept, 1 dropped\n  1 x duplicate: same token ids as an earlier sample (first"
        " talks:300)\n300 samples in 1 batch" in result.stderr
    )
    assert "301 rows, " in result.stderr and " rows/s, 1 dropped" in result.stderr
    assert "Question" not in result.stderr
    assert Result(tmp_path / "tokens").batches["samples"] == 300


def test_the_script_explains_a_bad_row_in_one_line_and_fails(tmp_path):
    save_tokenizer(tmp_path, "{% for m in messages %}{{ m.content }}{% endfor %}")
    write_json(tmp_path / "target.json", describe(tmp_path, 1000).to_json())
    result = script(tmp_path, tmp_path, lines(tmp_path / "talks.jsonl", *talks(1), "{"))
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert f"InputError: {tmp_path}/talks.jsonl, line 2: not valid JSON" in result.stderr
