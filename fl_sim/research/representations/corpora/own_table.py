"""Read labelled examples of one's own: a table with a task, private attributes, and features or a text.

A table is CSV, tab-separated values, JSON lines or Parquet. Every column but task, private attributes and split is a
feature, unless ``features`` names some. A column whose every value is a number is numeric. Any other has categories,
which become one column each. Columns are standardised by the training rows' mean and deviation, as those of Adult are.

* A row without a task or a private value is left out. A number that is missing becomes the training rows' mean, and a
  missing category is a category of its own. All of them are counted.
* A private column of two values is one attribute, the second value in alphabetical order. One of more values is an
  attribute per value: it has this value or not.
* Rows without a split column are divided by the experiment's seed.

>>> import tempfile
>>> rows = ["age,town,job,sex"] + [f"{20 + k},{'LRB'[k % 3]},{'ab'[k % 2]},{'fm'[k // 2 % 2]}" for k in range(80)]
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "people.csv"
...     _ = path.write_text("\\n".join(rows))
...     data = read_own_table(path, 0, TableColumns(task="job", private=("sex",), least_rows=1))
>>> data.classes, data.attributes, data.train.table.shape
(('a', 'b'), ('sex=m',), (48, 4))
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from fl_sim.data_prep.readers.cleaning import DEFAULT_MAX_CHARACTERS, MEANING, Cleaning, Note, Reading
from fl_sim.data_prep.readers.tables import require_columns, table_rows
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.textfiles import DEFAULT_RECORD_MB, DEFAULT_UNPACKING, SourceLimits
from fl_sim.formats import printable
from fl_sim.research.representations.corpora.labelled import (
    SPLITS,
    TEST,
    TRAIN,
    Integers,
    LabelledData,
    LabelledSplit,
    cut,
    shuffled,
)
from fl_sim.research.study_files import StrictModel

Row = Mapping[str, Any]

_KINDS = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".parquet": "parquet"}
_PACKED = (".xz", ".gz")
_MISSING = ("", "?", "NA", "NaN", "nan", "null", "None")
_FLAG = re.compile(r"--(bad-bytes|max-characters|max-record-mb|max-unpacking)\b")  # of fl-sim prepare
_MOST_VALUES = 50
_SHOWN = 30


class TableColumns(StrictModel):
    """The columns of a table of one's own."""

    task: str = Field("", description="the column with the class to predict")
    private: tuple[str, ...] = Field((), description="the columns that the sent vectors should hide")
    text: str | None = Field(None, description="the column with a text, which is then the only input")
    features: tuple[str, ...] = Field((), description="the columns that are inputs; default: all others")
    leave_out: tuple[str, ...] = Field((), description="columns that are no inputs, such as ids")
    categories: tuple[str, ...] = Field((), description="columns of numbers that stand for categories")
    split: str | None = Field(None, description="a column with train, validation or test; default: drawn by the seed")
    validation_share: float = Field(0.2, gt=0, lt=1, description="of the rows, without a split column")
    test_share: float = Field(0.2, gt=0, lt=1, description="of the rows, without a split column")
    least_rows: int = Field(10, ge=1, description="the fewest test rows of a class in a group whose rates are compared")
    bad_bytes: Literal["refuse", "replace"] = Field("refuse", description="what becomes of bytes that are not UTF-8")
    max_characters: int = Field(
        DEFAULT_MAX_CHARACTERS, ge=100, description="longest text; a longer one is cut at white space"
    )
    max_record_mb: int = Field(DEFAULT_RECORD_MB, ge=1, le=2048, description="longest line, row or cell, MiB")
    max_unpacking: int = Field(
        DEFAULT_UNPACKING, ge=1, le=10**6, description="bytes that a byte of a packed file may stand for"
    )

    def reading(self) -> Reading:
        """Return a new reading of the table: how bad text is treated, and what of it was counted."""
        limits = SourceLimits(record_mb=self.max_record_mb, unpacking=self.max_unpacking)
        return Reading(Cleaning(self.max_characters, self.bad_bytes, limits))


def read_own_table(path: Path, seed: int, columns: TableColumns) -> LabelledData:
    """Return the examples of a table in three splits.

    Args:
        path: a file named .csv, .tsv, .jsonl or .parquet; text files may be compressed (.xz, .gz).
        seed: of the order of rows, without a split column.
        columns: what they are.

    Raises:
        CorpusError: the file, a column or a value does not fit; the message names it.
    """
    reading = columns.reading()
    try:
        rows, present = read_rows(path, reading)
    except CorpusError as error:
        raise CorpusError(_with_keys(str(error))) from error
    _check_columns(path, columns, present)
    kept = [row for row in rows if not any(_is_missing(row[name]) for name in (columns.task, *columns.private))]
    if not kept:
        raise CorpusError(f"{path}: no row has a value of {', '.join((columns.task, *columns.private))}")
    left_out = len(rows) - len(kept)
    if columns.text is not None:
        kept = with_clean_text(path, kept, columns.text, reading)
    classes, labels = _classes(path, columns.task, kept)
    attributes, private = _attributes(path, columns.private, kept)
    parts = _parts(path, kept, columns, seed)
    inputs, missing = _inputs(path, kept, columns, present, parts[TRAIN])
    whole = LabelledSplit(inputs, labels, private)
    splits = {name: whole.take(parts[name]) for name in SPLITS}
    notes = {_with_keys(MEANING[Note(name)]): count for name, count in reading.notes.items()}
    counts = _counted({"rows left out": left_out, **missing, **notes})
    data = LabelledData(path.stem.partition(".")[0], classes, attributes, splits, counts)
    _check_splits(path, data, columns)
    return data


def read_rows(path: Path, reading: Reading) -> tuple[list[Row], list[str]]:
    """Return all rows of a table and the names of its columns.

    Args:
        path: a file named .csv, .tsv, .jsonl or .parquet; text files may be compressed (.xz, .gz).
        reading: how bad text is treated; it counts.
    """
    suffixes = [suffix for suffix in path.suffixes if suffix not in _PACKED]
    kind = _KINDS.get(suffixes[-1] if suffixes else "")
    if kind is None:
        raise CorpusError(f"data.source is {path}; allowed: a file named {', '.join(_KINDS)}")
    if not path.is_file():
        raise CorpusError(f"{path}: there is no such file")
    names = pq.read_schema(path).names if kind == "parquet" else []
    rows = [values for _, values in table_rows(kind, path, names, reading)]
    if not rows:
        raise CorpusError(f"{path}: has no rows")
    present = names or list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in present} for row in rows], present


def _with_keys(message: str) -> str:
    """Return a message with the keys of this table in the place of `fl-sim prepare`'s flags."""
    message = message.replace("prepare it with --bad-bytes replace", "set data.table.bad_bytes=replace")
    return _FLAG.sub(lambda flag: f"data.table.{flag[1].replace('-', '_')}", message)


def with_clean_text(path: Path, rows: Sequence[Row], column: str, reading: Reading) -> list[Row]:
    """Return the rows with their texts as `fl-sim prepare` cleans them; blank ones are left out, long ones cut.

    Raises:
        CorpusError: no row has a text.
    """
    cleaned: list[Row] = []
    for row in rows:
        of_row = Sentence("", "", "" if _is_missing(row[column]) else str(row[column]), ())
        text = next(reading.clean([of_row]), None)
        if text is not None:
            cleaned.append({**row, column: text.text})
    if not cleaned:
        raise CorpusError(f"{path}: no row has a text in column {column!r}")
    return cleaned


def _check_columns(path: Path, columns: TableColumns, present: list[str]) -> None:
    if not columns.task:
        raise CorpusError("data.table.task is missing; allowed: the column with the class to predict")
    one = [name for name in (columns.text, columns.split) if name is not None]
    named = [columns.task, *columns.private, *columns.features, *columns.leave_out, *columns.categories, *one]
    require_columns(list(dict.fromkeys(named)), present, str(path))
    roles = Counter([columns.task, *columns.private, *columns.features, *one])
    twice = next((name for name, count in roles.items() if count > 1), None)
    if twice is not None:
        raise CorpusError(f"data.table: column {printable(twice)!r} has two roles; allowed: one")
    if columns.validation_share + columns.test_share >= 1:
        raise CorpusError(
            f"data.table.test_share is {columns.test_share:g} beside validation_share {columns.validation_share:g}; "
            "allowed: together below 1"
        )


def _classes(path: Path, column: str, rows: Sequence[Row]) -> tuple[tuple[str, ...], Integers]:
    """Return the names of the classes and the class of each row, int64 (n,)."""
    names, codes = np.unique([_text(row[column]) for row in rows], return_inverse=True)
    if len(names) < 2:
        raise CorpusError(
            f"{path}: column {column!r} has one value, {printable(names[0][:_SHOWN])!r}; allowed: at least 2"
        )
    if len(names) > min(_MOST_VALUES, len(rows) // 2):
        raise CorpusError(
            f"{path}: column {column!r} has {len(names)} classes in {len(rows)} rows; allowed: at most {_MOST_VALUES}, "
            "and two rows of each"
        )
    return tuple(names.tolist()), codes.astype(np.int64)


def _attributes(path: Path, columns: Sequence[str], rows: Sequence[Row]) -> tuple[tuple[str, ...], Integers]:
    """Return the names of the private attributes, and which rows have each, int64 (n, p)."""
    named: dict[str, NDArray[np.bool_]] = {}
    for column in columns:
        texts = np.array([_text(row[column]) for row in rows])
        values = np.unique(texts).tolist()
        if not 2 <= len(values) <= _MOST_VALUES:
            raise CorpusError(
                f"{path}: private column {column!r} has {len(values)} {'value' if len(values) == 1 else 'values'}; "
                f"allowed: 2 to {_MOST_VALUES}"
            )
        for value in values[1:] if len(values) == 2 else values:
            named[f"{column}={value}"] = texts == value
    held = np.stack(list(named.values()), axis=1) if named else np.zeros((len(rows), 0))
    return tuple(named), held.astype(np.int64)


def _parts(path: Path, rows: Sequence[Row], columns: TableColumns, seed: int) -> dict[str, Integers]:
    """Return the rows of each split, int64 (m,)."""
    if columns.split is None:
        shares = (1 - columns.validation_share - columns.test_share, columns.validation_share, columns.test_share)
        return dict(zip(SPLITS, cut(shuffled(len(rows), seed, "own table split"), shares), strict=True))
    names = np.array([_text(row[columns.split]).lower() for row in rows])
    unknown = sorted(set(names.tolist()) - set(SPLITS))
    if unknown:
        raise CorpusError(
            f"{path}: column {columns.split!r} has {printable(unknown[0][:_SHOWN])!r}; allowed: {', '.join(SPLITS)}"
        )
    return {name: np.flatnonzero(names == name) for name in SPLITS}


def _inputs(
    path: Path, rows: Sequence[Row], columns: TableColumns, present: list[str], train: Integers
) -> tuple[NDArray[np.float32] | tuple[str, ...], dict[str, int]]:
    """Return texts, or standardised features float32 (n, d), and the number of missing values by column."""
    if columns.text is not None:
        return tuple(row[columns.text] for row in rows), {}
    others = {columns.task, *columns.private, *columns.leave_out, columns.split}
    features = list(columns.features) or [name for name in present if name not in others]
    if not features:
        raise CorpusError(f"{path}: no column is left as a feature; allowed: at least one, or data.table.text")
    blocks, missing = [], {}
    for name in features:
        values = [row[name] for row in rows]
        missing[f"missing {name}"] = sum(map(_is_missing, values))
        block = None if name in columns.categories else _numbers(path, name, values, train)
        blocks.append(_one_hot(path, name, values) if block is None else block)
    table = np.hstack(blocks)
    mean, deviation = table[train].mean(axis=0), table[train].std(axis=0)
    deviation[deviation == 0] = 1.0
    return ((table - mean) / deviation).astype(np.float32), missing


def _numbers(path: Path, column: str, values: Sequence[Any], train: Integers) -> NDArray[np.float64] | None:
    """Return a numeric column, float64 (n, 1), missing values as the training rows' mean; None if it has words."""
    try:
        numbers = np.array([math.nan if _is_missing(value) else float(value) for value in values])
    except (TypeError, ValueError):
        return None
    known = np.array([not _is_missing(value) for value in values])
    if not np.isfinite(numbers[known]).all():
        row = int(np.flatnonzero(known & ~np.isfinite(numbers))[0])
        raise CorpusError(f"{path}: column {column!r} has {values[row]!r}; allowed: finite numbers")
    of_train = numbers[train][known[train]]
    numbers[~known] = of_train.mean() if len(of_train) else 0.0
    return numbers[:, None]


def _one_hot(path: Path, column: str, values: Sequence[Any]) -> NDArray[np.float64]:
    """Return a column per category, float64 (n, m)."""
    names, codes = np.unique(["" if _is_missing(value) else _text(value) for value in values], return_inverse=True)
    if len(names) > max(_MOST_VALUES, len(values) // 10):
        raise CorpusError(
            f"{path}: column {column!r} has {len(names)} categories in {len(values)} rows; allowed: fewer, or name it "
            "in data.table.leave_out (an id), or as data.table.text"
        )
    return np.eye(len(names))[codes]


def _check_splits(path: Path, data: LabelledData, columns: TableColumns) -> None:
    """Check that every class can be trained, and that every rate that is compared has rows enough."""
    for name in SPLITS:
        if not len(data.splits[name]):
            raise CorpusError(f"{path}: the split {name} has no row; allowed: rows in all of {', '.join(SPLITS)}")
    absent = sorted(set(range(len(data.classes))) - set(data.train.labels.tolist()))
    if absent:
        raise CorpusError(f"{path}: no training row has the class {printable(data.classes[absent[0]])!r}")
    for number, attribute in enumerate(data.attributes):
        for held in (0, 1):
            group = data.test.private[:, number] == held
            for label, name in enumerate(data.classes):
                size = int((group & (data.test.labels == label)).sum())
                if size < columns.least_rows:
                    words = attribute if held else f"not {attribute}"
                    raise CorpusError(
                        f"{path}: {size} {TEST} rows with {printable(words)} have the class {printable(name)!r}, too "
                        f"few for its rate; allowed: at least data.table.least_rows, {columns.least_rows}"
                    )


def _counted(counts: Mapping[str, int]) -> dict[str, int]:
    return {subject: count for subject, count in counts.items() if count}


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or str(value).strip() in _MISSING


def _text(value: Any) -> str:
    return str(value).strip()
