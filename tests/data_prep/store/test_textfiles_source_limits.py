"""Limits of sources: what is refused, and what real corpora do."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fl_sim.data_prep import corpus_writer, shipped_path
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.readers.iob import IobReader
from fl_sim.data_prep.readers.tables import TableColumns, parquet_rows, read_table
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store import textfiles
from fl_sim.data_prep.store.textfiles import decoded_lines

MIB = 1 << 20
ROW = b'{"text": "' + b"It rained all day. " * 100 + b'", "user": "ann"}\n'
WHOLE = TableColumns(text_column="text", user_column="user", split_sentences=False)


def texts(path: Path, kind: str = "jsonl") -> list[str]:
    return [sentence.text for sentence in read_table(kind, path, WHOLE)]


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_packed_file_unfolds_as_far_as_its_limit_says(suffix: str, pack: object, tmp_path: Path) -> None:
    path = tmp_path / f"rows.jsonl{suffix}"
    path.write_bytes(pack(ROW * (MIB // len(ROW))))  # type: ignore[operator]
    assert len(texts(path)) == MIB // len(ROW)  # a small one may be as repetitive as it likes
    path.write_bytes(pack(ROW * (2 * MIB // len(ROW))))  # type: ignore[operator]
    with pytest.raises(CorpusError, match=r"unfold to more than .*; allowed: 100 times"):
        texts(path)


def test_a_record_may_be_as_long_as_its_limit_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textfiles, "MAX_RECORD", MIB)
    long = ("so it goes on " * 100 + ",") * (MIB // 1401 + 1)
    (tmp_path / "long.jsonl").write_text(json.dumps({"text": long, "user": "ann"}) + "\n")
    (tmp_path / "long.csv").write_text(f'text,user\n"{long.replace(",", chr(10))}",ann\n')
    (tmp_path / "long.txt").write_text("Ada O\n" * 20_000)
    pq.write_table(pa.table({"text": [long], "user": ["ann"]}), tmp_path / "long.parquet")
    for kind in ("jsonl", "csv", "parquet"):
        with pytest.raises(CorpusError, match=r"(line|row) \d+: more than 1 MiB without an end; allowed: 1 MiB"):
            texts(tmp_path / f"long.{kind}", kind)
    with pytest.raises(CorpusError, match="line 10181: more than 1 MiB without an end"):
        list(IobReader(tmp_path / "long.txt").read().sentences())


def test_every_parquet_row_is_read_however_its_texts_are_packed(tmp_path: Path) -> None:
    rows = [f"text {number} of x{'a' * (number % 50)}" for number in range(5_000)] + ["the same"] * 5_000 + [None]
    table = pa.table({"text": rows, "user": ["ann"] * len(rows)})
    for name, options in {"packed": {}, "plain": {"use_dictionary": False}, "pages": {"data_page_size": 64}}.items():
        pq.write_table(table, tmp_path / name, **options)
        assert texts(tmp_path / name, "parquet") == rows[:-1]


def test_a_text_that_all_rows_of_a_parquet_share_is_in_memory_once(tmp_path: Path) -> None:
    texts_of_a_mebibyte = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), pa.array(["y" * MIB]))
    pq.write_table(pa.table({"text": texts_of_a_mebibyte, "user": ["ann"] * 64}), tmp_path / "equal.parquet")
    rows = parquet_rows(tmp_path / "equal.parquet", ["text", "user"])
    before = pa.total_allocated_bytes()
    read = [next(rows)]
    assert pa.total_allocated_bytes() - before < 60 * MIB
    with pytest.raises(CorpusError, match=r"unfold to more than .*; allowed: 100 times"):
        read.extend(rows)
    assert len(read) < 9  # refused as soon as it is too much


def test_a_corpus_has_so_many_classes_labels_and_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_writer, "MAX_KINDS", 9)
    rows = [Sentence("train", f"u{n}", "Ada left.", (), target=f"c{n}") for n in range(10)]
    with pytest.raises(CorpusError, match="more than 9 classes; allowed: at most 9"):
        write_corpus(rows, tmp_path / "classes", name="x")
    monkeypatch.setattr(corpus_writer, "MAX_SPLITS", 9)
    with pytest.raises(CorpusError, match="more than 9 splits; allowed: at most 9"):
        write_corpus([Sentence(f"s{n}", "u", "Ada left.", ()) for n in range(10)], tmp_path / "splits", name="x")


@pytest.mark.nightly
def test_real_text_stays_far_from_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The corpus that ships, packed as tightly as xz can, is not near a tenth of what is allowed."""
    table = pq.read_table(shipped_path("bundled") / "train.sentences.parquet", columns=["text"])
    lines = "".join(json.dumps({"text": text, "user": "ann"}) + "\n" for text in table.column("text").to_pylist())
    path = tmp_path / "bundled.jsonl.xz"
    path.write_bytes(lzma.compress(lines.encode()))
    monkeypatch.setattr(textfiles, "MAX_UNPACKING", 10)
    assert sum(1 for _ in decoded_lines(path)) == table.num_rows
