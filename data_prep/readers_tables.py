"""Anybody's table: JSON lines, CSV or Parquet with a text column and a user column."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.records import CorpusError, Mention, Sentence
from data_prep.textfiles import decoded_lines

TABLE_KINDS = ("jsonl", "csv", "parquet")
HELD_OUT = "test"

_SHOWN_COLUMNS, _SHOWN_CHARACTERS = 12, 30
_EXAMPLE_MENTION = '{"start": 0, "end": 5, "label": "PERSON"}'
_ROWS_AT_ONCE = 4096
_TEXTS_AT_ONCE = 1000
_MAX_CHARACTERS = 10**9

Row = tuple[str, dict[str, Any]]
"""Where a row stands ("file, line 3"), and its values by column."""


@dataclass(frozen=True)
class TableOptions:
    """Which columns to read and how to divide them.

    entities_column: lists of ``{"start", "end", "label"}`` in characters of the text (as JSON in a CSV file).
    split_column: names each row's split; without one, a user is held out (split ``test``) by a hash of the user's
    key and ``seed`` alone, with probability ``test_fraction``.
    split_sentences: cut each text at its sentence ends; else a row is one sentence.
    """

    text_column: str = "text"
    user_column: str = "user"
    entities_column: str | None = None
    split_column: str | None = None
    test_fraction: float = 0.1
    seed: int = 0
    split_sentences: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            raise CorpusError(f"--test-fraction {self.test_fraction} must lie in [0, 1)")

    @property
    def columns(self) -> list[str]:
        """The columns that every row must have."""
        named = (self.text_column, self.user_column, self.entities_column, self.split_column)
        return [column for column in named if column is not None]

    def described(self) -> dict[str, Any]:
        """The settings that shape the corpus, for its manifest."""
        settings = asdict(self)
        if self.split_column is not None:
            del settings["test_fraction"], settings["seed"]
        return settings


def read_table(kind: str, path: Path, options: TableOptions) -> Iterator[Sentence]:
    """All sentences of a ``jsonl``, ``csv`` (``.tsv``: tab-separated) or ``parquet`` file.

    Text files may be compressed (.xz, .gz). A row whose text is blank has no sentence. Raises
    :class:`CorpusError` with file and line for whatever does not fit.
    """
    readers = {"jsonl": _jsonl_rows, "csv": _csv_rows, "parquet": _parquet_rows}
    rows = (_checked_row(where, values, options) for where, values in readers[kind](path, options.columns))
    if options.split_sentences:
        yield from _cut_into_sentences(rows)
    else:
        yield from (part for row in rows for part in _trimmed(row, 0, len(row.text)))


def held_out(user: str, fraction: float, seed: int) -> bool:
    """Whether ``user`` is held out; depends on the key, the fraction and the seed, on nobody else."""
    digest = hashlib.blake2b(f"{seed}\0{user}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) < fraction * 2**64


def _jsonl_rows(path: Path, columns: list[str]) -> Iterator[Row]:
    for number, line in decoded_lines(path):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except ValueError as error:
            raise CorpusError(f"{where}: not JSON: {error}") from error
        if not isinstance(values, dict):
            raise CorpusError(f"{where}: must be a JSON object, not {type(values).__name__}")
        _require_columns(columns, list(values), where)
        yield where, values


def _csv_rows(path: Path, columns: list[str]) -> Iterator[Row]:
    delimiter = "\t" if ".tsv" in path.suffixes else ","
    csv.field_size_limit(_MAX_CHARACTERS)  # the library's own limit is shorter than a contract
    reader = csv.reader((line for _, line in decoded_lines(path)), delimiter=delimiter, strict=True)
    try:
        header = next(reader)
        _require_columns(columns, header, f"{path}, line 1")
        for cells in reader:
            where = f"{path}, line {reader.line_num}"
            if not cells:
                continue
            if len(cells) != len(header):
                raise CorpusError(f"{where}: {len(cells)} columns, the header has {len(header)}")
            yield where, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise CorpusError(f"{path}, line {reader.line_num}: {error}") from error


def _parquet_rows(path: Path, columns: list[str]) -> Iterator[Row]:
    if path.stat().st_size == 0:
        raise CorpusError(f"{path}: the file is empty")
    number = 0
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            _require_columns(columns, file.schema_arrow.names, str(path))
            for batch in file.iter_batches(_ROWS_AT_ONCE, columns=columns):
                for values in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", values
    except pa.ArrowException as error:
        raise CorpusError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from error


def _require_columns(columns: list[str], present: list[str], where: str) -> None:
    for column in columns:
        if present.count(column) != 1:
            problem = "several columns" if column in present else "no column"
            shown = [repr(name[:_SHOWN_CHARACTERS]) for name in present[:_SHOWN_COLUMNS]]
            more = ["..."] if len(present) > _SHOWN_COLUMNS else []
            raise CorpusError(f"{where}: {problem} {column!r}; found {', '.join([*shown, *more]) or 'none'}")


def _checked_row(where: str, values: dict[str, Any], options: TableOptions) -> Sentence:
    """A row as one sentence, however long, with everything about it checked."""
    text = _text_value(where, values, options.text_column)
    user = _user_value(where, values, options.user_column)
    if options.split_column is not None:
        split = _text_value(where, values, options.split_column)
    else:
        split = HELD_OUT if held_out(user, options.test_fraction, options.seed) else "train"
    mentions: tuple[Mention, ...] = ()
    if options.entities_column is not None:
        mentions = _mentions_value(where, values[options.entities_column], options.entities_column)
    try:
        return Sentence(split, user, text, mentions)
    except CorpusError as error:
        raise CorpusError(f"{where}: {error}") from error


def _text_value(where: str, values: dict[str, Any], column: str) -> str:
    value = values[column]
    if not isinstance(value, str):
        raise CorpusError(f"{where}: column {column!r} must be text, not {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise CorpusError(f"{where}: column {column!r} has half a surrogate pair, which UTF-8 cannot hold") from error
    return value


def _user_value(where: str, values: dict[str, Any], column: str) -> str:
    value = values[column]
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    user = _text_value(where, values, column).strip()
    if not user:
        raise CorpusError(f"{where}: column {column!r} is blank; every text needs a user")
    return user


def _mentions_value(where: str, value: Any, column: str) -> tuple[Mention, ...]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise CorpusError(f"{where}: column {column!r} is not JSON: {error}") from error
    if not isinstance(value, list):
        raise CorpusError(f"{where}: column {column!r} must be a list of entities, not {_kind(value)}")
    return tuple(_mention(where, item, column) for item in value)


def _mention(where: str, item: Any, column: str) -> Mention:
    if isinstance(item, dict):
        start, end, label = (item.get(key) for key in ("start", "end", "label"))
        if type(start) is int and type(end) is int and isinstance(label, str):
            return Mention(start, end, label)
    raise CorpusError(
        f"{where}: an entity in column {column!r} must look like {_EXAMPLE_MENTION}, "
        f"not {json.dumps(item, default=str)[:80]}"
    )


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


@cache
def _sentencizer() -> Any:
    import spacy

    pipeline = spacy.blank("en")
    pipeline.add_pipe("sentencizer")
    pipeline.max_length = _MAX_CHARACTERS  # the limit is for parsers; a sentencizer's memory is small
    return pipeline


def _cut_into_sentences(rows: Iterable[Sentence]) -> Iterator[Sentence]:
    texts = ((row.text, row) for row in rows)
    for document, row in _sentencizer().pipe(texts, as_tuples=True, batch_size=_TEXTS_AT_ONCE):
        bounds = [(span.start_char, span.end_char) for span in document.sents]
        yield from cut(row, bounds)


def cut(row: Sentence, bounds: Iterable[tuple[int, int]]) -> Iterator[Sentence]:
    """The sentences of ``row`` at ``bounds``, without the white space around them.

    Two sentences that share a mention stay together: no mention is cut or lost.
    """
    joined: list[tuple[int, int]] = []
    for start, end in bounds:
        if joined and any(mention.start < start < mention.end for mention in row.mentions):
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    for start, end in joined:
        yield from _trimmed(row, start, end)


def _trimmed(row: Sentence, start: int, end: int) -> Iterator[Sentence]:
    """The part ``[start, end)`` of ``row`` as a sentence, if anything but white space is in it."""
    while start < end and row.text[start].isspace():
        start += 1
    while end > start and row.text[end - 1].isspace():
        end -= 1
    if start == end:
        return
    mentions = tuple(
        Mention(max(mention.start, start) - start, min(mention.end, end) - start, mention.label)
        for mention in row.mentions
        if mention.start < end and mention.end > start
    )
    yield Sentence(row.split, row.user, row.text[start:end], mentions)
