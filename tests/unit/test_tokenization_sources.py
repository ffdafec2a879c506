"""Every kind of source gives the same rows; what cannot be read says where."""

import csv
import gzip
import io
import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eagle3_data.config import Data, Source
from eagle3_data.errors import InputError
from eagle3_data.tokenization.reading import json_rows
from eagle3_data.tokenization.reading.sources import files_of, read_sources
from tiny_tokenizer import assistant, call, talk, user

ROWS = [{"id": f"row {number}", "messages": talk("Hi é 😀", f"Hello\n{number}")} for number in range(5)]


def read(*paths, **more):
    return list(
        read_sources(
            Data(
                sources=tuple(
                    {"path": str(path), "name": f"s{number}", **more} for number, path in enumerate(paths)
                )
            )
        )
    )


def values(rows):
    return [row.value if row.text is None else json.loads(row.text) for row in rows]


def as_lines(rows, **how):
    return "".join(json.dumps(row, **how) + "\n" for row in rows)


def write(path: Path, text: str) -> Path:
    data = text.encode()
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = pa.compress(data, "zstd", asbytes=True)
        with pa.output_stream(str(path), compression="zstd") as file:
            file.write(text.encode())
        return path
    path.write_bytes(data)
    return path


FILES = {
    "lines.jsonl": as_lines(ROWS),
    "blank.jsonl": "\n" + as_lines(ROWS, ensure_ascii=False).replace("\n{", "\n\n{"),
    "mark.jsonl": "\ufeff" + as_lines(ROWS),
    "unfinished_last_line.jsonl": as_lines(ROWS).rstrip("\n"),
    "lines.jsonl.gz": as_lines(ROWS),
    "lines.jsonl.zst": as_lines(ROWS),
    "array.json": json.dumps(ROWS),
    "indented.json": json.dumps(ROWS, indent=2, ensure_ascii=False),
    "array_with_mark.json": "\ufeff\n " + json.dumps(ROWS),
    "array.json.gz": json.dumps(ROWS, indent=1),
    "array.json.zst": json.dumps(ROWS, indent=1),
    "lines_called.json": as_lines(ROWS),
}


@pytest.mark.parametrize("name", FILES)
def test_json_files(name, tmp_path):
    rows = read(write(tmp_path / name, FILES[name]))
    assert values(rows) == ROWS
    assert [row.index for row in rows] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["lines.jsonl.gz", "lines.jsonl.zst"])
def test_files_compressed_in_several_parts(name, tmp_path):
    path = tmp_path / name
    halves = [
        write(tmp_path / f"{number}.{name}", as_lines(part)).read_bytes()
        for number, part in enumerate((ROWS[:2], ROWS[2:]))
    ]
    path.write_bytes(b"".join(halves))
    assert values(read(path)) == ROWS


@pytest.mark.parametrize("size", [1, 7, 64])
def test_an_array_is_read_in_chunks_of_any_size(size, tmp_path, monkeypatch):
    monkeypatch.setattr(json_rows, "CHUNK_BYTES", size)
    elements = [*ROWS, 12345678, "text é", None, [], 0.25]
    rows = read(write(tmp_path / "array.json", json.dumps(elements, indent=1, ensure_ascii=False)))
    assert values(rows) == elements


def test_the_place_of_a_row_is_its_line(tmp_path):
    assert [row.place for row in read(write(tmp_path / "a.jsonl", '\n{"a": 1}\n\n{"a": 2}\n'))] == [
        "line 2",
        "line 4",
    ]
    assert [row.place for row in read(write(tmp_path / "a.json", '[\n{"a":\n1},\n\n{"a": 2}]'))] == [
        "element 0 (line 2)",
        "element 1 (line 5)",
    ]
    assert read(write(tmp_path / "empty.json", " []\n")) == read(write(tmp_path / "empty.jsonl", "")) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"a": 1}, {"a": ', "line 1: not a valid JSON array from element 1 on"),
        ('[{"a": 1}\n{"a": 2}]', "line 2: not a valid JSON array from element 1 on (',' expected)"),
        ('[{"a": 1},\n]', "line 2: not a valid JSON array from element 1 on"),
        ('[{"a": 1}', "(',' expected)"),
        (
            '[{"a": 1}]\n{"a": 2}',
            "line 2: not a valid JSON array from element 1 on (something follows the array)",
        ),
        ("[nonsense]", "from element 0 on"),
        (
            "[1, " + "[" * 100_000,
            "not a valid JSON array from element 1 on (nested too deeply and never closed)",
        ),
    ],
)
def test_a_broken_array_names_file_line_and_element(text, words, tmp_path):
    path = write(tmp_path / "array.json", text)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_a_file_that_ends_too_early_is_an_error(tmp_path):
    whole = write(tmp_path / "lines.jsonl.gz", as_lines(ROWS * 100)).read_bytes()
    (tmp_path / "half.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"half\.jsonl\.gz cannot be read to its end"):
        read(tmp_path / "half.jsonl.gz")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.jsonl", "there is no file .*missing.jsonl; correct the path"),
        ("talks.xlsx", "ending that is not known; known are .json"),
        ("bad.parquet", "as Parquet"),
    ],
)
def test_a_source_that_cannot_be_read_is_an_error(name, words, tmp_path):
    if name != "missing.jsonl":
        write(tmp_path / name, "nothing")
    with pytest.raises(InputError, match=words):
        read(tmp_path / name)


def test_parquet(tmp_path):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "talks.parquet")
    assert values(read(tmp_path / "talks.parquet")) == ROWS


def test_parquet_s_filling_of_arguments_is_taken_away_again(tmp_path):
    rows = [
        {"messages": [user("?"), assistant("!", call("f", arguments))]}
        for arguments in ({"a": "1", "deep": [{"x": 1}]}, {"b": "2"})
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "talks.parquet")
    assert [
        row["messages"][1]["tool_calls"][0]["function"]["arguments"]
        for row in values(read(tmp_path / "talks.parquet"))
    ] == [
        {"a": "1", "deep": [{"x": 1}]},
        {"b": "2"},
    ]


def test_times_that_python_has_no_words_for_do_not_stop_parquet(tmp_path):
    times = pa.array([10**15, -(10**15), 0, 1, 2], pa.timestamp("s"))
    pq.write_table(pa.Table.from_pylist(ROWS).append_column("created", times), tmp_path / "talks.parquet")
    assert values(read(tmp_path / "talks.parquet")) == ROWS


def broken(rows):
    """Rows as a table of which the second holds a time that Python cannot have, deep inside."""
    turns = pa.array(
        [[{"at": 10**15 if number == 1 else 0}] for number in range(len(rows))],
        pa.list_(pa.struct([("at", pa.timestamp("s"))])),
    )
    return pa.Table.from_pylist(rows).append_column("turns", turns)


def test_a_row_that_cannot_be_read_is_reported_with_its_field(tmp_path):
    pq.write_table(broken(ROWS), tmp_path / "talks.parquet")
    datasets.Dataset(broken(ROWS)).save_to_disk(tmp_path / "saved")
    for name in ("talks.parquet", "saved"):
        rows = read(tmp_path / name)
        assert [row.index for row in rows] == [0, 1, 2, 3, 4]
        assert [bool(row.fault) for row in rows] == [False, True, False, False, False]
        assert "cannot be read (OverflowError: " in rows[1].fault
        assert rows[4].value["messages"] == ROWS[4]["messages"]


def test_a_saved_dataset(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "one")
    assert values(read(tmp_path / "one")) == ROWS
    datasets.DatasetDict(
        {"test": datasets.Dataset.from_list(ROWS[:2]), "train": datasets.Dataset.from_list(ROWS)}
    ).save_to_disk(tmp_path / "several")
    assert values(read(tmp_path / "several")) == ROWS
    assert values(read(tmp_path / "several", split="test")) == ROWS[:2]
    with pytest.raises(InputError, match="no split 'dev'; it has test, train; set the source's `split`"):
        read(tmp_path / "several", split="dev")


def test_a_directory_as_the_hub_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write(tmp_path / "mine.jsonl", as_lines(ROWS)).rename(tmp_path / "train.jsonl")
    (tmp_path / "data").mkdir()
    (tmp_path / "train.jsonl").rename(tmp_path / "data" / "train.jsonl")
    assert values(read(tmp_path / "data")) == ROWS


def test_a_hub_dataset_is_asked_for_by_its_name(monkeypatch):
    asked = []

    def load_dataset(name, config_name=None, *, revision=None):
        asked.append((name, config_name, revision))
        return datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert values(read("hub:owner/talks")) == ROWS
    assert values(read("hub:owner/talks", config_name="english", revision="v2")) == ROWS
    assert asked == [("owner/talks", None, None), ("owner/talks", "english", "v2")]


def test_a_dataset_that_cannot_be_loaded_says_what_to_check(monkeypatch):
    def load_dataset(name, config_name=None, *, revision=None):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(
        InputError,
        match="check the name, `config_name` and `revision`, the network, and for a gated dataset the token",
    ) as caught:
        read("hub:owner/talks")
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_sources_follow_each_other_and_a_limit_ends_one(tmp_path):
    one, two = (
        write(tmp_path / "one.jsonl", as_lines(ROWS)),
        write(tmp_path / "two.json", json.dumps(ROWS[:3])),
    )
    assert [(row.source, row.index) for row in read(one, two)] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (0, 4),
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    assert [(row.source, row.index) for row in read(one, two, limit=2)] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_names_come_from_paths():
    sources = Data(
        sources=(
            *({"path": "a/talks.jsonl.gz"}, {"path": "hub:owner/chats"}, {"path": "dir/saved/"}),
            *({"path": "x/part-*.jsonl"}, {"path": "here/**/*.json"}, {"path": "*.json"}),
        )
    ).sources
    assert [source.name for source in sources] == ["talks", "chats", "saved", "part", "here", "source"]


# CSV, several files, folders


def as_csv(rows, delimiter=","):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@pytest.mark.parametrize("name", ["talks.csv", "talks.tsv", "talks.csv.gz", "talks.csv.zst", "marked.csv"])
def test_csv_files(name, tmp_path):
    rows = [
        {"prompt": f"Hi, é\n{number}", "response": 'so "quoted"\t' * 9, "note": ""} for number in range(3)
    ]
    text = ("\ufeff" if "marked" in name else "") + as_csv(rows, "\t" if ".tsv" in name else ",")
    found = read(write(tmp_path / name, text))
    assert values(found) == [{**row, "note": None} for row in rows]
    assert [row.place for row in found] == ["line 2", "line 4", "line 6"]


def test_a_csv_row_that_cannot_be_read_is_reported(tmp_path):
    path = tmp_path / "talks.csv"
    path.write_bytes(b"prompt,response\na,b,c\nd\n\xe9,e\n" + b"x," + b"y" * 200_000 + b"\n")
    rows = read(path)
    assert [row.fault for row in rows] == [
        "the row has 3 values, and the first line names 2 fields",
        "the row has 1 values, and the first line names 2 fields",
        "not UTF-8",
        "",
    ]
    assert rows[3].place == "line 5" and len(rows[3].value["response"]) == 200_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('prompt,response\na,"never closed\nb,c\n', "line 3: no valid CSV .*a quotation mark may be missing"),
        ('prompt,response\na,"b"c\n', "line 2: no valid CSV"),
        ("prompt,prompt\na,b\n", "two columns have the same name"),
    ],
)
def test_a_csv_file_that_swallows_rows_is_an_error(text, words, tmp_path):
    with pytest.raises(InputError, match=words):
        read(write(tmp_path / "talks.csv", text))


def test_a_pattern_names_several_files(tmp_path):
    for number in (1, 0):
        write(tmp_path / f"part-{number}.jsonl", as_lines(ROWS[number : number + 1]))
    write(tmp_path / "other.jsonl", as_lines(ROWS))
    rows = read(tmp_path / "part-*.jsonl")
    assert values(rows) == ROWS[:2]
    assert [(row.index, row.place) for row in rows] == [
        (0, "part-0.jsonl, line 1"),
        (1, "part-1.jsonl, line 1"),
    ]
    write(tmp_path / "a[1].jsonl", as_lines(ROWS))
    assert values(read(tmp_path / "a[1].jsonl")) == ROWS
    with pytest.raises(InputError, match=r"there is no file .*nothing"):
        read(tmp_path / "nothing-*.jsonl")


def test_a_folder_s_files_need_not_have_the_same_fields(tmp_path):
    parts = [
        [{"messages": talk("a", "b")}, {"messages": talk("c", "d"), "id": "x"}],
        [
            {
                "id": 5,
                "tools": [{"name": "f", "strict": None}],
                "messages": [user([{"type": "text", "text": "a"}])],
            }
        ],
        [{"messages": talk("e", "f"), "meta": {"a": [1, "2"]}}],
    ]
    for number, part in enumerate(parts):
        write(tmp_path / f"{number}.jsonl", as_lines(part))
    write(tmp_path / "more.csv", "prompt,response\nHi,Ho\n")
    pq.write_table(pa.Table.from_pylist([{"messages": talk("g", "h")}]), tmp_path / "zz.parquet")
    (tmp_path / "LICENSE").write_text("free")
    rows = read(tmp_path)
    last = [{"prompt": "Hi", "response": "Ho"}, {"messages": talk("g", "h")}]
    assert values(rows) == [*(row for part in parts for row in part), *last]
    assert [row.index for row in rows] == list(range(6))
    assert rows[1].place == "0.jsonl, line 2"


def test_a_folder_s_splits_are_known_by_names_or_by_its_card(tmp_path):
    folder = tmp_path / "named"
    folder.mkdir()
    write(folder / "train-0.jsonl", as_lines(ROWS[:2]))
    write(folder / "test-0.jsonl", as_lines(ROWS[2:]))
    assert values(read(folder)) == ROWS[:2]
    assert values(read(folder, split="test")) == ROWS[2:]
    with pytest.raises(InputError, match="no split 'dev'; it has train, test; set the source's `split`"):
        read(folder, split="dev")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: mine\n  data_files:\n  - split: train\n    path: test-0.jsonl\n---\n"
    )
    assert values(read(folder)) == ROWS[2:]


def test_an_empty_folder_says_what_to_check(tmp_path):
    with pytest.raises(InputError, match="cannot be loaded as a dataset; check that it holds files"):
        read(tmp_path)


@pytest.mark.parametrize(
    "path", ["owner/talks", "https://huggingface.co/datasets/owner/talks", "hf://datasets/owner/talks"]
)
def test_a_hub_dataset_without_its_prefix_is_recognized(path):
    with pytest.raises(InputError, match="of the Hugging Face hub write `path: hub:owner/talks`"):
        read(path)


def test_a_hub_dataset_whose_rows_fit_no_table_says_how_to_read_it(monkeypatch):
    def load_dataset(name, config_name=None, *, revision=None):
        raise datasets.exceptions.DatasetGenerationCastError("columns differ")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(InputError, match="hf download --repo-type dataset owner/talks --local-dir FOLDER"):
        read("hub:owner/talks")


@pytest.mark.parametrize("field", ["tools", "functions", "apis"])
def test_tools_from_tables_are_free_of_filled_in_nulls(field, tmp_path):
    tools = [{"name": "f", "strict": True}, {"name": "g", "parameters": {"x": {"type": "int"}}}]
    row = {"messages": talk("Hi", "Ho"), field: tools}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "talks.parquet")
    datasets.Dataset.from_list([row]).save_to_disk(tmp_path / "saved")
    for name in ("talks.parquet", "saved"):
        assert values(read(tmp_path / name, tools_field=field)) == [row]


def test_json_and_maps_in_tables_are_values(tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": content}]}
        for content in ("a", [{"type": "text", "text": "b"}])
    ]
    features = datasets.Features(
        {"messages": [{"role": datasets.Value("string"), "content": datasets.Json()}]}
    )
    saved = datasets.Dataset.from_list(rows, features=features)
    saved.save_to_disk(tmp_path / "saved")
    saved.to_parquet(tmp_path / "talks.parquet")
    for name in ("saved", "talks.parquet"):
        assert values(read(tmp_path / name)) == rows, name
    maps = pa.array([[("a", 1)], [("b", 2), ("b", 3)]], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"arguments": maps}), tmp_path / "maps.parquet")
    one, two = read(tmp_path / "maps.parquet")
    assert one.value == {"arguments": {"a": 1}} and "duplicate key" in two.fault


def test_images_of_a_saved_dataset_are_not_decoded(tmp_path):
    features = datasets.Features({"prompt": datasets.Value("string"), "image": datasets.Image()})
    rows = {"prompt": ["a", "b"], "image": [{"bytes": b"no image", "path": None}, None]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    assert [bool(row.value["image"]) for row in read(tmp_path / "saved")] == [True, False]


def test_what_a_source_consists_of(tmp_path):
    for name in ("b.jsonl", "a.jsonl", ".hidden", "sub/c.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, "")
    assert [path.name for path in files_of(Source(path=str(tmp_path)))] == ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert [path.name for path in files_of(Source(path=str(tmp_path / "*.jsonl")))] == ["a.jsonl", "b.jsonl"]
    assert files_of(Source(path="hub:owner/talks")) == files_of(Source(path="missing.jsonl")) == []
