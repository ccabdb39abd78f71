"""Tables of one's own: the same sentences whatever the format, exact offsets, and a split that looks at keys alone."""

from __future__ import annotations

import csv
import json
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fl_sim.data_prep.readers.cleaning import Note, Reading
from fl_sim.data_prep.readers.tables import TableColumns, is_held_out, read_table
from fl_sim.data_prep.records import CorpusError, Sentence

ROWS: list[dict[str, Any]] = [
    {"body": "Ada met Bo. Nobody else came!", "who": "u1", "ents": [{"start": 8, "end": 10, "label": "PER"}]},
    {"body": "It rained,\nas usual.", "who": "u2", "ents": []},
    {"body": "  ", "who": "u2", "ents": []},
    {"body": 'She said "no". Dr. Ray agreed.', "who": "u1", "ents": [{"start": 19, "end": 22, "label": "PER"}]},
]
OPTIONS = TableColumns(text_column="body", user_column="who", entities_column="ents", test_fraction=0.0)
PLAIN = TableColumns(text_column="text", user_column="user")


def write_table(kind: str, folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"table.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif kind == "csv":
        with path.open("w", newline="", encoding="utf-8-sig") as stream:
            writer = csv.writer(stream)
            writer.writerow(rows[0])
            writer.writerows([[v if isinstance(v, str) else json.dumps(v) for v in row.values()] for row in rows])
    else:
        entity = pa.struct([("start", pa.int64()), ("end", pa.int64()), ("label", pa.string())])
        schema = pa.schema([("body", pa.string()), ("who", pa.string()), ("ents", pa.list_(entity))])
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_every_format_gives_the_same_sentences(kind: str, tmp_path: Path) -> None:
    sentences = list(read_table(kind, write_table(kind, tmp_path, ROWS), OPTIONS))
    assert [(s.user, s.text) for s in sentences] == [
        ("u1", "Ada met Bo."),
        ("u1", "Nobody else came!"),
        ("u2", "It rained,\nas usual."),
        ("u1", 'She said "no".'),
        ("u1", "Dr. Ray agreed."),
    ]
    assert [[s.surface(m) for m in s.mentions] for s in sentences] == [["Bo"], [], [], [], ["Ray"]]
    assert {s.split for s in sentences} == {"train"}


def test_rows_stay_whole_on_request(tmp_path: Path) -> None:
    options = replace(OPTIONS, split_sentences=False)
    sentences = list(read_table("jsonl", write_table("jsonl", tmp_path, ROWS), options))
    assert [s.text for s in sentences] == [ROWS[0]["body"], ROWS[1]["body"], ROWS[3]["body"]]


def test_a_compressed_table_and_a_tab_separated_one(tmp_path: Path) -> None:
    plain = write_table("jsonl", tmp_path, ROWS)
    packed = tmp_path / "table.jsonl.xz"
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    assert list(read_table("jsonl", packed, OPTIONS)) == list(read_table("jsonl", plain, OPTIONS))
    tabs = tmp_path / "table.tsv"
    tabs.write_text("who\tbody\n7\tHello, you.\n", encoding="utf-8")
    options = replace(OPTIONS, entities_column=None)
    assert list(read_table("csv", tabs, options)) == [Sentence("train", "7", "Hello, you.", ())]


def test_a_split_column_decides_where_there_is_one(tmp_path: Path) -> None:
    rows = [{"text": "Hi.", "user": 3, "part": "dev"}, {"text": "Ho.", "user": 3, "part": "train"}]
    options = replace(PLAIN, split_column="part")
    sentences = list(read_table("jsonl", write_table("jsonl", tmp_path, rows), options))
    assert [(s.split, s.user) for s in sentences] == [("dev", "3"), ("train", "3")]
    assert "test_fraction" not in options.manifest_settings()


def test_held_out_depends_on_the_key_and_the_seed_alone() -> None:
    keys = [f"user {number}" for number in range(4000)]
    chosen = {key for key in keys if is_held_out(key, 0.1, seed=0)}
    assert 0.08 < len(chosen) / len(keys) < 0.12
    assert chosen == {key for key in reversed(keys) if is_held_out(key, 0.1, seed=0)}
    assert chosen != {key for key in keys if is_held_out(key, 0.1, seed=1)}
    assert chosen < {key for key in keys if is_held_out(key, 0.3, seed=0)}
    assert not any(is_held_out(key, 0.0, seed=0) for key in keys)


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("jsonl", '{"text": "a", "user": "u"}\n{"text": \n', r"table.jsonl, line 2: not JSON"),
        ("jsonl", '["text", "user"]\n', r"line 1: must be a JSON object, not list"),
        ("jsonl", '{"text": "a"}\n', r"line 1: no column 'user'; found 'text'"),
        ("jsonl", '{"text": "a", "user": true}\n', r"line 1: column 'user' must be text or a whole number, not bool"),
        ("jsonl", '{"text": "a", "user": 1.5}\n', r"line 1: column 'user' must be text or a whole number, not float"),
        ("jsonl", '{"text": 4, "user": "u"}\n', r"line 1: column 'text' must be text, not int"),
        ("jsonl", "[" * 100_000 + "\n", r"line 1: not JSON"),
        ("jsonl", "", r"the file is empty"),
        ("csv", "text,user\na,b\nc\n", r"table.csv, line 3: 1 columns, the header has 2"),
        ("csv", "text,user\na,b,c\n", r"line 2: 3 columns"),
        ("tsv", "text\tuser\nhello\ta\nhello\n", "table.tsv, line 3: 1 columns, the header has 2"),
        ("csv", 'text,user\n"a,b\n', r"line 2: unexpected end of data"),
        ("csv", "text,name\na,b\n", r"line 1: no column 'user'; found 'text', 'name'"),
        ("csv", "text,user,user\na,b,c\n", r"line 1: several columns 'user'"),
        ("csv", "\n", r"line 1: no column 'text'; found none"),
        ("csv", ",".join(map(str, range(99))) + "\n", r"found '0', .*, '11', \.\.\.$"),
        ("parquet", "", r"the file is empty"),
        ("parquet", "PAR1 it is not", r"not a readable Parquet file"),
    ],
)
def test_bad_tables_are_named(kind: str, content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / f"table.{kind}"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(CorpusError, match=message):
        list(read_table(kind, path, PLAIN))


@pytest.mark.parametrize(
    ("entities", "message"),
    [
        ("yes", "is not JSON"),
        ({"start": 0}, "must be a list of entities, not dict"),
        ([{"start": 0, "end": "1", "label": "X"}], "must look like"),
        ([{"start": 0, "end": 1}], "must look like"),
        ([{"start": 0, "end": 9, "label": "X"}], r"line 1: entity \[0, 9\) of user 'u' lies outside"),
        ([{"start": 1, "end": 1, "label": "X"}], "lies outside"),
        ([{"start": 1, "end": 2, "label": "X"}], "covers only white space"),
        ([{"start": 0, "end": 1, "label": ""}], "empty label"),
    ],
)
def test_bad_entities_are_named(entities: object, message: str, tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl"
    path.write_text(json.dumps({"text": "a b", "user": "u", "e": entities}) + "\n", encoding="utf-8")
    with pytest.raises(CorpusError, match=message):
        list(read_table("jsonl", path, replace(PLAIN, entities_column="e")))


def test_a_parquet_error_names_the_row(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"text": [1, 2], "user": ["u", "v"]}), path)
    with pytest.raises(CorpusError, match="row 1: column 'text' must be text, not int"):
        list(read_table("parquet", path, PLAIN))


def test_spellings_of_a_user_that_look_alike_are_one_user(tmp_path: Path) -> None:
    spellings = ["Jos\u00e9", "Jose\u0301", "\u200bJos\u00e9", "Jose\u200d\u0301 "]
    spellings += ["Jos\u00e9\ufe0f", "Jo\u034fs\u00e9\x07"]
    spellings += ["\u200b", "\u3164", "jose", "Jose", " Jose ", "Jose\x00", "Jo Li", "Jo\u00a0Li"]
    path = write_table("jsonl", tmp_path, [{"text": "Hello.", "user": user} for user in spellings])
    for fraction in (0.0, 0.5):
        reading = Reading()
        read = list(read_table("jsonl", path, replace(PLAIN, test_fraction=fraction), reading))
        assert [sentence.user for sentence in read] == [*["Jos\u00e9"] * 6, "jose", *["Jose"] * 3, "Jo Li", "Jo Li"]
        assert len({sentence.split for sentence in read[:6]}) == 1
        assert reading.notes == {Note.USER_SPELLINGS: 9, Note.ROWS_WITHOUT_USER: 2}
        own = Reading()  # of a reader that gives users as they are
        cleaned = own.clean(Sentence("train", user, "Hello.", ()) for user in spellings)
        assert [sentence.user for sentence in cleaned] == [sentence.user for sentence in read]
        assert own.notes == reading.notes
