"""Read a table with a text and a user column: JSON lines, CSV, tab-separated values or Parquet.

>>> is_held_out("ada", fraction=0.1, seed=0), is_held_out("ada", fraction=0.9, seed=0)
(False, True)
"""

from __future__ import annotations

import csv
import hashlib
import json
import numbers
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from fl_sim.data_prep.readers.cleaning import Note, Reading
from fl_sim.data_prep.readers.reader import RawCorpus
from fl_sim.data_prep.records import CorpusError, Mention, Sentence, Settings
from fl_sim.data_prep.store.layout import readable
from fl_sim.data_prep.store.textfiles import MAX_RECORD, check_record, check_unpacked, decoded_lines, note_position
from fl_sim.files import check_regular

HELD_OUT = "test"
TRAIN = "train"

_SHOWN_COLUMNS, _SHOWN_CHARACTERS = 12, 30
_EXAMPLE_MENTION = '{"start": 0, "end": 5, "label": "PERSON"}'
_ROWS_AT_ONCE = 4096
_LEAST_PER_VALUE = 4  # bytes in memory of one value of a column, whatever it is

Row = tuple[str, dict[str, object]]
"""The place of a row ("file, line 3"), and its values by column."""


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """Which columns to read, and how to divide users.

    Attributes:
        text_column: The text.
        user_column: The user whose text it is.
        entities_column: Gold entities: a list of {start, end, label} in characters of the text, as JSON in a text file.
        target_column: The row's class.
        id_column: The row's id; a row that came before, with the same id and text, is dropped and counted.
        split_column: The row's split: train, validation, test, …; by default users are held out by a hash.
        test_fraction: The share of users held out (split test).
        seed: The seed of the hash that holds them out, which looks at the user's key alone.
        split_sentences: Cut each text into sentences; else a row is one sentence.
    """

    text_column: str
    user_column: str
    entities_column: str | None = None
    target_column: str | None = None
    id_column: str | None = None
    split_column: str | None = None
    test_fraction: float = 0.1
    seed: int = 0
    split_sentences: bool = True

    def __post_init__(self) -> None:
        for field in fields(TableColumns):
            value = getattr(self, field.name)
            if field.name.endswith("_column") and not isinstance(value, str | None):
                raise CorpusError(f"`{field.name}` is {value!r:.60}; allowed: the name of one column")
        check_fraction(self.test_fraction)
        if not isinstance(self.seed, numbers.Integral):
            raise CorpusError(f"`seed` is {self.seed!r:.60}; allowed: an integer")
        if self.user_column == self.text_column:
            raise CorpusError(
                f"`user_column` is {self.user_column}, the text column; allowed: the column of the row's author"
            )

    @property
    def columns(self) -> list[str]:
        """The columns that every row needs."""
        named = (getattr(self, field.name) for field in fields(TableColumns) if field.name.endswith("_column"))
        return list(dict.fromkeys(column for column in named if column is not None))

    def manifest_settings(self) -> Settings:
        """Return the settings that shape the corpus, for its manifest."""
        hashed = () if self.split_column is None else ("test_fraction", "seed")
        return {field.name: getattr(self, field.name) for field in fields(TableColumns) if field.name not in hashed}


@dataclass(frozen=True, kw_only=True)
class TableReader(TableColumns):
    """A table; a subclass names its format.

    Attributes:
        source: The file to read.
    """

    source: Path
    kind: ClassVar[str]

    def read(self) -> RawCorpus:
        return RawCorpus.from_files(
            self.kind,
            self.source.name.split(".")[0],
            lambda reading: read_table(self.kind, self.source, self, reading),
            [self.source],
            settings=self.manifest_settings(),
            has_gold=self.entities_column is not None,
            splits_sentences=self.split_sentences,
        )


class JsonlReader(TableReader):
    """A file of JSON objects, one a line (.xz and .gz too)."""

    kind = "jsonl"


class CsvReader(TableReader):
    """A CSV file with a header (.tsv for tabs; .xz and .gz too)."""

    kind = "csv"


class TsvReader(TableReader):
    """Tab-separated values with a header, no quoting (.xz and .gz too)."""

    kind = "tsv"


class ParquetReader(TableReader):
    """A Parquet file."""

    kind = "parquet"


def read_table(kind: str, path: Path, columns: TableColumns, reading: Reading | None = None) -> Iterator[Sentence]:
    """Yield all sentences of a table.

    Kinds are ``jsonl``, ``csv``, ``tsv`` and ``parquet``. A CSV file named .tsv has tabs for commas; ``tsv`` means tabs
    without any quoting (IANA's text/tab-separated-values). Text files may be compressed (.xz, .gz).

    Raises:
        CorpusError: a row does not fit; the message names file and line.
    """
    reading = reading or Reading()
    yield from sentences_of(table_rows(kind, path, columns.columns), columns, reading)
    if reading.rows == 0:
        dropped = reading.notes[Note.ROWS_WITHOUT_USER.value]
        empty = f"column {columns.user_column!r} is empty in all {dropped:,} rows" if dropped else "there are no rows"
        raise CorpusError(f"{path}: {empty}; allowed: rows with a text and a user (--user-column)")


def table_rows(kind: str, path: Path, columns: list[str]) -> Iterator[Row]:
    """Yield the rows of a table that has ``columns``, and possibly others."""
    if kind == "csv":
        return _headed_rows(path, columns, **_dialect(path))
    if kind == "tsv":
        return _headed_rows(path, columns, delimiter="\t", quoting=csv.QUOTE_NONE)
    return {"jsonl": _jsonl_rows, "parquet": parquet_rows}[kind](path, columns)


def csv_header(path: Path) -> list[str]:
    """Return the names of a CSV file's columns; none of an empty file."""
    return next(csv_records(path, **_dialect(path)), (path, []))[1]


def _dialect(path: Path) -> dict[str, Any]:
    return {"delimiter": "\t" if ".tsv" in path.suffixes else ",", "strict": True}


def sentences_of(rows: Iterable[Row], columns: TableColumns, reading: Reading) -> Iterator[Sentence]:
    """Yield the checked sentences of ``rows``.

    Rows without a user and repeated rows are dropped and counted; an absent text is blank.
    """
    return reading.clean(_uncut_sentences(rows, columns, reading), columns.split_sentences)


def is_held_out(user: str, fraction: float, seed: int) -> bool:
    """Return whether ``user`` is held out; a function of the key, the fraction and the seed alone."""
    digest = hashlib.blake2b(f"{seed}\0{user}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) < fraction * 2**64


def split_by_hash(user: str, fraction: float, seed: int) -> str:
    """Return the split of ``user`` if the source has no splits."""
    return HELD_OUT if fraction and is_held_out(user, fraction, seed) else TRAIN


def check_fraction(fraction: float) -> None:
    """Check that a share of held-out users lies in [0, 1), else raise :class:`CorpusError`."""
    if not (isinstance(fraction, numbers.Real) and 0 <= fraction < 1):
        raise CorpusError(f"`test_fraction` is {fraction!r:.60}; allowed: a number in [0, 1)")


def require_columns(columns: list[str], present: list[str], where: str) -> None:
    """Check that each of ``columns`` is ``present`` once, else raise :class:`CorpusError`."""
    for column in columns:
        if present.count(column) != 1:
            problem = "several columns" if column in present else "no column"
            shown = [repr(name[:_SHOWN_CHARACTERS]) for name in present[:_SHOWN_COLUMNS]]
            more = ["..."] if len(present) > _SHOWN_COLUMNS else []
            raise CorpusError(f"{where}: {problem} {column!r}; found {', '.join([*shown, *more]) or 'none'}")


def _uncut_sentences(rows: Iterable[Row], columns: TableColumns, reading: Reading) -> Iterator[Sentence]:
    """Yield every row as one sentence, however long."""
    known: set[bytes] = set()
    for where, values in rows:
        user = reading.user(_identifier(where, values, columns.user_column) or "")
        if not user:
            reading.note(Note.ROWS_WITHOUT_USER)
            continue
        if _is_repeated(where, values, columns, known):
            reading.note(Note.REPEATED_IDS)
            continue
        reading.rows += 1
        yield _sentence(where, values, user, columns, reading)


def _jsonl_rows(path: Path, columns: list[str]) -> Iterator[Row]:
    needed = set(columns)
    for number, line in decoded_lines(path):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{where}: not JSON: {error}") from error
        if not isinstance(values, dict):
            raise CorpusError(f"{where}: must be a JSON object, not {type(values).__name__}")
        if not needed <= values.keys():
            require_columns(columns, list(values), where)
        yield where, values


def _headed_rows(path: Path, columns: list[str], **dialect: Any) -> Iterator[Row]:
    records = csv_records(path, **dialect)
    where, header = next(records)
    require_columns(columns, header, where)
    for where, cells in records:
        if not cells:
            continue
        if len(cells) != len(header):
            raise CorpusError(f"{where}: {len(cells)} columns, the header has {len(header)}")
        yield where, dict(zip(header, cells, strict=True))


def csv_records(path: Path, **dialect: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield place and cells of every row of a CSV file, the header too; ``dialect`` is of :func:`csv.reader`.

    Raises:
        CorpusError: the quotes of a row do not fit, or a row goes on and on within its quotes.
    """
    length = 0
    csv.field_size_limit(MAX_RECORD)  # the library's own limit is shorter than some contracts

    def lines() -> Iterator[str]:
        nonlocal length
        for number, line in decoded_lines(path):
            length += len(line)
            check_record(f"{path}, line {number}", length)
            yield line

    rows = csv.reader(lines(), **dialect)
    try:
        for cells in rows:
            length = 0
            yield f"{path}, line {rows.line_num}", cells
    except csv.Error as error:
        raise CorpusError(f"{path}, line {rows.line_num}: {error}") from error


def parquet_rows(path: Path, columns: list[str], *, all_needed: bool = True) -> Iterator[Row]:
    """Yield the rows of a Parquet file; texts stay packed: one that a million rows share is in memory once.

    A column that is absent is an error if ``all_needed``; else the others are read.

    Raises:
        CorpusError: a column is absent, a cell has no end, or the file unfolds without end.
    """
    if check_regular(path).st_size == 0:
        raise CorpusError(f"{path}: the file is empty")
    number = unfolded = 0
    with readable(path), pq.ParquetFile(path, memory_map=True) as plain:
        if all_needed:
            require_columns(columns, plain.schema_arrow.names, str(path))
        present = [name for name in columns if name in plain.schema_arrow.names]
        size, rows = path.stat().st_size, max(plain.metadata.num_rows, 1)
        check_unpacked(path, _stated_size(plain, set(present)), size)
        is_text = (pa.string(), pa.large_string())
        texts = [its.name for its in plain.schema_arrow if its.name in present and its.type in is_text]
        with pq.ParquetFile(path, memory_map=True, read_dictionary=texts) as file:
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=present):
                note_position(path, size * number // rows)
                for values in zip(*map(_values, batch.columns), strict=True):
                    number += 1
                    length = sum(len(value) for value in values if isinstance(value, str))
                    unfolded += length
                    check_record(f"{path}, row {number}", length)
                    check_unpacked(path, unfolded, size)
                    yield f"{path}, row {number}", dict(zip(present, values, strict=True))


def _stated_size(file: pq.ParquetFile, wanted: set[str]) -> int:
    """Return how many bytes the footer says that columns unpack to; repeated values take none, so values count too."""
    groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
    chunks = (group.column(number) for group in groups for number in range(group.num_columns))
    return sum(
        max(chunk.total_uncompressed_size, _LEAST_PER_VALUE * chunk.num_values)
        for chunk in chunks
        if chunk.path_in_schema.split(".")[0] in wanted
    )


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column; equal texts are one object."""
    if not pa.types.is_dictionary(column.type):
        return list(column.to_pylist())
    texts = column.dictionary.to_pylist()
    return [None if index is None else texts[index] for index in column.indices.to_pylist()]


def _sentence(where: str, values: dict[str, object], user: str, columns: TableColumns, reading: Reading) -> Sentence:
    text = values[columns.text_column]
    if text is None:
        text = ""
    elif not isinstance(text, str):
        raise CorpusError(f"{where}: column {columns.text_column!r} must be text, not {_kind(text)}")
    split = split_by_hash(user, columns.test_fraction, columns.seed)
    if columns.split_column is not None:
        named = _identifier(where, values, columns.split_column)
        if named is None:
            raise CorpusError(f"{where}: column {columns.split_column!r} is blank")
        split = reading.key(named)
    mentions: tuple[Mention, ...] = ()
    if columns.entities_column is not None:
        mentions = _mentions(where, values[columns.entities_column], columns.entities_column, reading)
    target = None if columns.target_column is None else _target(where, values, columns.target_column, reading)
    try:
        return Sentence(split, user, text, mentions, target)
    except CorpusError as error:
        raise CorpusError(f"{where}: {error}") from error


def _target(where: str, values: dict[str, object], column: str, reading: Reading) -> str | None:
    value = values[column]
    if isinstance(value, bool):
        return str(value).lower()
    name = _identifier(where, values, column)
    return None if name is None else reading.key(name)


def _identifier(where: str, values: dict[str, object], column: str) -> str | None:
    """Return a name or a number as text without white space around it; None for null and blank text."""
    value = values[column]
    if isinstance(value, str):
        return value.strip() or None
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise CorpusError(f"{where}: column {column!r} must be text or a whole number, not {_kind(value)}")


def _is_repeated(where: str, values: dict[str, object], columns: TableColumns, known: set[bytes]) -> bool:
    """Return whether a row with an id is among the ``known`` ones, kept as 64-bit hashes, and add it.

    One of another user or text decides nothing: else the absence of a user or an entity would let it in.
    """
    if columns.id_column is None or _identifier(where, values, columns.id_column) is None:
        return False
    before = len(known)
    row = json.dumps([values[name] for name in columns.columns], default=str)
    known.add(hashlib.blake2b(row.encode(), digest_size=8).digest())
    return len(known) == before


def _mentions(where: str, value: Any, column: str, reading: Reading) -> tuple[Mention, ...]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{where}: column {column!r} is not JSON: {error}") from error
    if not isinstance(value, list):
        raise CorpusError(f"{where}: column {column!r} must be a list of entities, not {_kind(value)}")
    mentions = []
    for item in value:
        start, end, label = (
            (item.get(key) for key in ("start", "end", "label")) if isinstance(item, dict) else [None] * 3
        )
        if type(start) is not int or type(end) is not int or not isinstance(label, str):
            raise CorpusError(
                f"{where}: an entity in column {column!r} must look like {_EXAMPLE_MENTION}, "
                f"not {json.dumps(item, default=str)[:80]}"
            )
        mentions.append(Mention(start, end, reading.key(label)))
    return tuple(mentions)


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
