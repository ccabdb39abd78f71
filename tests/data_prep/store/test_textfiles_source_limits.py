"""Limits of sources: what is refused, what real corpora do, and how each limit is set."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fl_sim.cli.main import main
from fl_sim.data_prep import shipped_path
from fl_sim.data_prep.readers.cleaning import Cleaning, Reading
from fl_sim.data_prep.readers.iob import read_iob
from fl_sim.data_prep.readers.tables import TableOptions, read_table
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.textfiles import SourceLimits, decoded_lines

MIB = 1 << 20
ROW = b'{"text": "' + b"It rained all day. " * 100 + b'", "user": "ann"}\n'
WIDE = SourceLimits(record_mb=64, unpacking=10_000, kinds=10_000)


def texts(path: Path, kind: str = "jsonl", limits: SourceLimits | None = None) -> int:
    """Return how many sentences a table has."""
    reading = Reading(Cleaning(limits=limits or SourceLimits()))
    return sum(1 for _ in read_table(kind, path, TableOptions(split_sentences=False), reading))


def test_a_small_packed_file_may_be_as_repetitive_as_it_likes(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(ROW * (3 * MIB // len(ROW))))
    assert texts(path) == 3 * MIB // len(ROW)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_packed_file_unfolds_as_far_as_its_limit_says(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.jsonl{suffix}"
    pack = gzip.compress if suffix == ".gz" else lzma.compress
    path.write_bytes(pack(ROW * (8 * MIB // len(ROW))))
    with pytest.raises(CorpusError, match=r"unfold to more than .*; allowed: 100 times \(--max-unpacking\)"):
        texts(path)
    assert texts(path, limits=WIDE) == 8 * MIB // len(ROW)


@pytest.mark.nightly
def test_a_record_may_be_as_long_as_its_limit_says(tmp_path: Path) -> None:
    long = ("so it goes on " * 100 + ",") * (17 * MIB // 1401)
    (tmp_path / "long.jsonl").write_text(json.dumps({"text": long, "user": "ann"}) + "\n")
    (tmp_path / "long.csv").write_text(f'text,user\n"{long.replace(",", chr(10))}",ann\n')
    (tmp_path / "long.txt").write_text("Ada O\n" * 400_000)
    for name, kind in {"long.jsonl": "jsonl", "long.csv": "csv"}.items():
        with pytest.raises(CorpusError, match=r"line \d+: more than 16 MiB without an end; .* \(--max-record-mb\)"):
            texts(tmp_path / name, kind)
        assert texts(tmp_path / name, kind, WIDE) > 1  # cut into sentences of --max-characters
    with pytest.raises(CorpusError, match="line 162886: more than 16 MiB without an end"):
        list(read_iob(tmp_path / "long.txt"))


@pytest.mark.nightly
def test_every_parquet_row_is_read_however_its_texts_are_packed(tmp_path: Path) -> None:
    rows = [f"text {number} of x{'a' * (number % 50)}" for number in range(20_000)] + ["the same"] * 20_000 + [None]
    table = pa.table({"text": rows, "user": ["ann"] * len(rows)})
    for name, options in {"packed": {}, "plain": {"use_dictionary": False}, "pages": {"data_page_size": 64}}.items():
        pq.write_table(table, tmp_path / name, **options)
        found = [s.text for s in read_table("parquet", tmp_path / name, TableOptions(split_sentences=False))]
        assert found == rows[:-1]


def test_a_text_that_all_rows_of_a_parquet_share_is_in_memory_once(tmp_path: Path) -> None:
    texts_of_a_mebibyte = pa.DictionaryArray.from_arrays(pa.array([0] * 64, pa.int32()), pa.array(["y" * MIB]))
    pq.write_table(pa.table({"text": texts_of_a_mebibyte, "user": ["ann"] * 64}), tmp_path / "equal.parquet")
    before = pa.total_allocated_bytes()
    rows = read_table("parquet", tmp_path / "equal.parquet", TableOptions(), Reading(Cleaning(limits=WIDE)))
    next(rows)
    assert pa.total_allocated_bytes() - before < 60 * MIB
    rows.close()  # type: ignore[attr-defined]


def test_a_cell_of_a_parquet_has_the_limit_of_a_record(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["y" * 17 * MIB], "user": ["ann"]}), tmp_path / "long.parquet", compression="none")
    with pytest.raises(CorpusError, match="after row 0: more than 16 MiB without an end"):
        texts(tmp_path / "long.parquet", "parquet", SourceLimits(unpacking=10_000))


@pytest.mark.nightly
def test_flags_set_the_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": f"Ada met Bob on day {n}.", "user": f"u{n % 9}", "class": f"c{n}"} for n in range(1100)]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["prepare", "jsonl", "--source", str(source), "--text-column", "text", "--user-column", "user"]
    words += ["--target-column", "class", "--tagger", "rules", "--out", str(tmp_path / "corpus")]
    assert main(words) == 2
    assert "more than 1,000 classes; allowed: at most 1,000 (--max-kinds)" in capsys.readouterr().err
    assert main([*words, "--max-kinds", "2000"]) == 0
    assert main([*words, "--max-unpacking", "7", "--max-record-mb", "1"]) == 0  # they shape no corpus: it is there
    assert "nothing to do" in capsys.readouterr().out
    for flag in ("--max-kinds", "--max-unpacking", "--max-record-mb"):
        assert main([*words, flag, "0"]) == 2
        assert f"{flag} is 0; allowed: an integer in [1," in capsys.readouterr().err


@pytest.mark.nightly
def test_real_text_stays_far_from_the_limits(tmp_path: Path) -> None:
    """The corpus that ships, packed as tightly as xz can, is not near a tenth of what is allowed."""
    table = pq.read_table(shipped_path("bundled") / "train.sentences.parquet", columns=["text"])
    lines = "".join(json.dumps({"text": text, "user": "ann"}) + "\n" for text in table.column("text").to_pylist())
    path = tmp_path / "bundled.jsonl.xz"
    path.write_bytes(lzma.compress(lines.encode()))
    strict = SourceLimits(unpacking=10, record_mb=1, kinds=100)
    assert sum(1 for _ in decoded_lines(path, limits=strict)) == table.num_rows
