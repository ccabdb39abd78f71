"""Read a table with a text and a user column: JSON lines, CSV, tab-separated values or Parquet.

>>> is_held_out("ada", fraction=0.1, seed=0), is_held_out("ada", fraction=0.9, seed=0)
(False, True)
>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "posts.jsonl"
...     _ = path.write_text('{"text": "Hello. It rains.", "user": "ann"}')
...     [sentence.text for sentence in read_table("jsonl", path, TableOptions())]
['Hello.', 'It rains.']
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fl_sim.data_prep.readers.cleaning import Note, Reading
from fl_sim.data_prep.records import CorpusError, Mention, Sentence, Settings
from fl_sim.data_prep.store.textfiles import SourceLimits, note_position
from fl_sim.files import check_regular

HELD_OUT = "test"
TRAIN = "train"

_SHOWN_COLUMNS, _SHOWN_CHARACTERS = 12, 30
_EXAMPLE_MENTION = '{"start": 0, "end": 5, "label": "PERSON"}'
_ROWS_AT_ONCE = 4096
_BYTES_AT_ONCE = 1 << 25

Row = tuple[str, dict[str, object]]
"""The place of a row ("file, line 3"), and its values by column."""


@dataclass(frozen=True)
class TableOptions:
    """Which columns to read, and how to divide users.

    Attributes:
        text_column: the text.
        user_column: the user's key.
        entities_column: lists of ``{"start", "end", "label"}`` in characters of the text (as JSON in a text file).
        split_column: the split of each row; without it users are held out by hash.
        test_fraction: the probability with which a user is held out (split ``test``).
        seed: of the hash, which depends on the seed and the user's key alone.
        split_sentences: whether to split texts into sentences; else a row is one sentence.
        target_column: the class of the row.
        document_column: the document that the row is part of; by default the row.
        id_column: the id of the row; a row with an earlier row's id is dropped.
    """

    text_column: str = "text"
    user_column: str = "user"
    entities_column: str | None = None
    split_column: str | None = None
    test_fraction: float = 0.1
    seed: int = 0
    split_sentences: bool = True
    target_column: str | None = None
    document_column: str | None = None
    id_column: str | None = None

    def __post_init__(self) -> None:
        check_fraction(self.test_fraction)
        if self.user_column == self.text_column:
            raise CorpusError(
                f"--user-column is {self.user_column}, the text column; allowed: the column of the row's author"
            )

    @property
    def columns(self) -> list[str]:
        """The columns that every row needs."""
        named = (
            self.text_column,
            self.user_column,
            self.entities_column,
            self.split_column,
            self.target_column,
            self.document_column,
            self.id_column,
        )
        return list(dict.fromkeys(column for column in named if column is not None))

    def manifest_settings(self) -> Settings:
        """Return the settings that shape the corpus, for its manifest."""
        settings = asdict(self)
        if self.split_column is not None:
            del settings["test_fraction"], settings["seed"]
        return settings


def read_table(kind: str, path: Path, options: TableOptions, reading: Reading | None = None) -> Iterator[Sentence]:
    """Yield all sentences of a table.

    Args:
        kind: ``jsonl``, ``csv``, ``tsv`` or ``parquet``. A CSV file named .tsv has tabs for commas; ``tsv`` means tabs
            without any quoting (IANA's text/tab-separated-values).
        path: the file; text files may be compressed (.xz, .gz).
        options: its columns.
        reading: how to treat bad text.

    Raises:
        CorpusError: a row does not fit; the message names file and line.
    """
    reading = reading or Reading()
    return sentences_of(table_rows(kind, path, options.columns, reading), options, reading)


def table_rows(kind: str, path: Path, columns: list[str], reading: Reading) -> Iterator[Row]:
    """Yield the rows of a table that has ``columns``, and possibly others."""
    if kind == "csv":
        return _headed_rows(path, columns, reading, delimiter="\t" if ".tsv" in path.suffixes else ",", strict=True)
    if kind == "tsv":
        return _headed_rows(path, columns, reading, delimiter="\t", quoting=csv.QUOTE_NONE)
    return {"jsonl": _jsonl_rows, "parquet": _parquet_rows}[kind](path, columns, reading)


def sentences_of(rows: Iterable[Row], options: TableOptions, reading: Reading) -> Iterator[Sentence]:
    """Yield the checked sentences of ``rows``.

    Rows without a user and rows with the id of an earlier row are dropped and counted; an absent text is blank.
    """
    return reading.clean(_uncut_sentences(rows, options, reading), options.split_sentences)


def is_held_out(user: str, fraction: float, seed: int) -> bool:
    """Return whether ``user`` is held out; a function of the key, the fraction and the seed alone."""
    digest = hashlib.blake2b(f"{seed}\0{user}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) < fraction * 2**64


def split_by_hash(user: str, fraction: float, seed: int) -> str:
    """Return the split of ``user`` if the source has no splits."""
    return HELD_OUT if fraction and is_held_out(user, fraction, seed) else TRAIN


def check_fraction(fraction: float) -> None:
    """Check that a share of held-out users lies in [0, 1), else raise :class:`CorpusError`."""
    if not 0 <= fraction < 1:
        raise CorpusError(f"--test-fraction {fraction} must lie in [0, 1)")


def require_columns(columns: list[str], present: list[str], where: str) -> None:
    """Check that each of ``columns`` is ``present`` once, else raise :class:`CorpusError`."""
    for column in columns:
        if present.count(column) != 1:
            problem = "several columns" if column in present else "no column"
            shown = [repr(name[:_SHOWN_CHARACTERS]) for name in present[:_SHOWN_COLUMNS]]
            more = ["..."] if len(present) > _SHOWN_COLUMNS else []
            raise CorpusError(f"{where}: {problem} {column!r}; found {', '.join([*shown, *more]) or 'none'}")


def _uncut_sentences(rows: Iterable[Row], options: TableOptions, reading: Reading) -> Iterator[Sentence]:
    """Yield every row as one sentence, however long."""
    ids: set[bytes] = set()
    for number, (where, values) in enumerate(rows, start=1):
        if options.id_column is not None and _is_repeated(_identifier(where, values, options.id_column), ids):
            reading.note(Note.REPEATED_IDS)
            continue
        user = _identifier(where, values, options.user_column)
        if user is None:
            reading.note(Note.ROWS_WITHOUT_USER)
            continue
        yield _sentence(where, number, values, reading.key(user), options, reading)


def _jsonl_rows(path: Path, columns: list[str], reading: Reading) -> Iterator[Row]:
    needed = set(columns)
    for number, line in reading.lines(path):
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


def _headed_rows(path: Path, columns: list[str], reading: Reading, **dialect: Any) -> Iterator[Row]:
    records = csv_records(path, reading, **dialect)
    where, header = next(records)
    require_columns(columns, header, where)
    for where, cells in records:
        if not cells:
            continue
        if len(cells) != len(header):
            raise CorpusError(f"{where}: {len(cells)} columns, the header has {len(header)}")
        yield where, dict(zip(header, cells, strict=True))


def csv_records(path: Path, reading: Reading, **dialect: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield place and cells of every row of a CSV file, the header too.

    Args:
        path: the file.
        reading: how to treat bad text.
        dialect: of :func:`csv.reader`.

    Raises:
        CorpusError: the quotes of a row do not fit, or a row goes on and on within its quotes.
    """
    limits, length = reading.limits, 0
    csv.field_size_limit(limits.record_bytes)  # the library's own limit is shorter than some contracts

    def lines() -> Iterator[str]:
        nonlocal length
        for number, line in reading.lines(path):
            length += len(line)
            limits.check_record(f"{path}, line {number}", length)
            yield line

    rows = csv.reader(lines(), **dialect)
    try:
        for cells in rows:
            length = 0
            yield f"{path}, line {rows.line_num}", cells
    except csv.Error as error:
        raise CorpusError(f"{path}, line {rows.line_num}: {error}") from error


def check_parquet_rows(path: Path, columns: list[str], limits: SourceLimits) -> None:
    """Read the ``columns`` that a Parquet file has without unpacking its texts.

    Raises:
        CorpusError: a cell has no end, or the file unfolds without end.
    """
    with _parquet_errors(path), _open_parquet(path, columns, limits) as file:
        present = [name for name in columns if name in file.schema_arrow.names]
        for _ in _batches(path, file, present, limits):
            pass


def _parquet_rows(path: Path, columns: list[str], reading: Reading) -> Iterator[Row]:
    number = 0
    with _parquet_errors(path), _open_parquet(path, columns, reading.limits) as file:
        require_columns(columns, file.schema_arrow.names, str(path))
        for batch, lengths in _batches(path, file, columns, reading.limits):
            for values in _unpacked_rows(batch, lengths):
                number += 1
                yield f"{path}, row {number}", values


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise CorpusError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from error
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}: a text is not UTF-8; write the file again") from error


def _open_parquet(path: Path, columns: list[str], limits: SourceLimits) -> pq.ParquetFile:
    """Open a Parquet file whose texts stay packed: a text that a million rows share is in memory once."""
    if check_regular(path).st_size == 0:
        raise CorpusError(f"{path}: the file is empty")
    with pq.ParquetFile(path, memory_map=True) as file:
        limits.check_parquet(path, file, columns)
        texts = [field.name for field in file.schema_arrow if field.name in columns and _is_text(field.type)]
    return pq.ParquetFile(path, memory_map=True, read_dictionary=texts)


def _batches(
    path: Path, file: pq.ParquetFile, columns: list[str], limits: SourceLimits
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
    """Yield packed batches of rows, and how many bytes each of the rows unpacks to."""
    size, rows = path.stat().st_size, max(file.metadata.num_rows, 1)
    number = unpacked = 0
    for batch in file.iter_batches(_ROWS_AT_ONCE, columns=columns):
        note_position(path, size * number // rows)
        lengths = _row_lengths(batch)
        limits.check_record(f"{path}, after row {number}", int(lengths.max(initial=0)))
        number, unpacked = number + batch.num_rows, unpacked + int(lengths.sum())
        limits.check_unpacked(path, unpacked, size)
        yield batch, lengths


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _row_lengths(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return how many bytes each row of a batch takes when its texts are unpacked, int64 (rows,)."""
    lengths = np.zeros(batch.num_rows, dtype=np.int64)
    for column in batch.columns:
        if not pa.types.is_dictionary(column.type):
            lengths += column.nbytes // max(batch.num_rows, 1)
        elif len(column.dictionary):
            of_text = pc.binary_length(column.dictionary).cast(pa.int64())
            lengths += pc.fill_null(of_text.take(column.indices), 0).to_numpy()
    return lengths


def _unpacked_rows(batch: pa.RecordBatch, lengths: NDArray[np.int64]) -> Iterator[dict[str, object]]:
    """Yield the rows of a batch, of which at most 32 MiB (or one row) are unpacked at once."""
    groups = np.cumsum(lengths) // _BYTES_AT_ONCE
    starts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), batch.num_rows]
    for start, end in itertools.pairwise(starts):
        yield from batch.slice(start, end - start).to_pylist()


def _sentence(
    where: str, number: int, values: dict[str, object], user: str, options: TableOptions, reading: Reading
) -> Sentence:
    text = values[options.text_column]
    if text is None:
        text = ""
    elif not isinstance(text, str):
        raise CorpusError(f"{where}: column {options.text_column!r} must be text, not {_kind(text)}")
    if options.split_column is not None:
        split = reading.key(_required(where, values, options.split_column))
    else:
        split = split_by_hash(user, options.test_fraction, options.seed)
    mentions: tuple[Mention, ...] = ()
    if options.entities_column is not None:
        mentions = _mentions_value(where, values[options.entities_column], options.entities_column, reading)
    target = None if options.target_column is None else _target(where, values, options.target_column, reading)
    named = options.document_column or options.id_column
    document = (None if named is None else _identifier(where, values, named)) or f"row {number}"
    try:
        return Sentence(split, user, text, mentions, target, reading.key(document))
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


def _required(where: str, values: dict[str, object], column: str) -> str:
    value = _identifier(where, values, column)
    if value is None:
        raise CorpusError(f"{where}: column {column!r} is blank")
    return value


def _is_repeated(identifier: str | None, ids: set[bytes]) -> bool:
    """Return whether ``identifier`` is in ``ids``, and add it; ids are kept as 64-bit hashes."""
    if identifier is None:
        return False
    digest = hashlib.blake2b(identifier.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    if digest in ids:
        return True
    ids.add(digest)
    return False


def _mentions_value(where: str, value: Any, column: str, reading: Reading) -> tuple[Mention, ...]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{where}: column {column!r} is not JSON: {error}") from error
    if not isinstance(value, list):
        raise CorpusError(f"{where}: column {column!r} must be a list of entities, not {_kind(value)}")
    return tuple(_mention(where, item, column, reading) for item in value)


def _mention(where: str, item: Any, column: str, reading: Reading) -> Mention:
    if isinstance(item, dict):
        start, end, label = (item.get(key) for key in ("start", "end", "label"))
        if type(start) is int and type(end) is int and isinstance(label, str):
            return Mention(start, end, reading.key(label))
    raise CorpusError(
        f"{where}: an entity in column {column!r} must look like {_EXAMPLE_MENTION}, "
        f"not {json.dumps(item, default=str)[:80]}"
    )


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
