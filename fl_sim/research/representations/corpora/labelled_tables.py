"""Tables with a class to predict and private columns: files of one's own, and UCI Adult.

A table is CSV, tab-separated values, JSON lines or Parquet. Every column but task, private attributes and split is a
feature, unless ``features`` names some. A column whose every value is a number is numeric. Any other has categories,
which become one column each. The values of the training rows alone decide that, and which columns there are, and their
mean and deviation standardise a column: what a client sends must not depend on other clients' rows. Columns of JSON
lines, of which a row may lack some, are in alphabetical order.

* A row without a task or a private value is left out. A number that is missing becomes the training rows' mean, and a
  missing category is a category of its own. A word among numbers, and a category that no training row has, count as
  missing (the latter is none). All of them are counted.
* A private column of two values is one attribute, the second value in alphabetical order. One of more values is an
  attribute per value: it has this value or not.
* Rows without a split column are divided by the experiment's seed, before any is left out.

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
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field

from fl_sim.data_prep.readers.cleaning import Note, Reading
from fl_sim.data_prep.readers.tables import csv_header, require_columns, table_rows
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.textfiles import decoded_lines
from fl_sim.formats import printable
from fl_sim.research.representations.corpora.labelled import (
    SPLITS,
    TEST,
    TRAIN,
    Integers,
    LabelledData,
    LabelledSplit,
    corpus_file,
    cut,
    shuffled,
)
from fl_sim.research.study_files import StrictModel

AdultColumns = Literal["nine", "code"]
AdultSplit = Literal["paper", "code"]

_KINDS = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".parquet": "parquet"}
_PACKED = (".xz", ".gz")
_MISSING = ("", "?", "NA", "NaN", "nan", "null", "None")
_MOST_VALUES = 50
_LARGEST = 1e100  # squares of numbers must fit a double
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


def read_own_table(path: Path, seed: int, columns: TableColumns) -> LabelledData:
    """Return the examples of a table in three splits; ``seed`` orders the rows, without a split column.

    ``path`` is named .csv, .tsv, .jsonl or .parquet; text files may be compressed (.xz, .gz).

    Raises:
        CorpusError: the file, a column or a value does not fit; the message names it.
    """
    reading = Reading()
    frame = _read_frame(path)
    _check_columns(path, columns, [str(name) for name in frame])
    kept = frame[~frame[[columns.task, *columns.private]].apply(_is_missing).any(axis=1)]
    if kept.empty:
        raise CorpusError(f"{path}: no row has a value of {', '.join((columns.task, *columns.private))}")
    counts = {"rows left out": len(frame) - len(kept)}
    if columns.text is not None:
        kept = _with_clean_text(path, kept, columns.text, reading)
    parts = _parts(path, kept, columns, seed, "own table split", len(frame))
    data = _labelled(path, kept, columns, parts, np.float64)
    counts |= {**data.counts, **{Note(name).meaning: count for name, count in reading.notes.items()}}
    _check_splits(path, data, columns)
    return replace(data, counts={subject: count for subject, count in counts.items() if count})


def _read_frame(path: Path) -> pd.DataFrame:
    """Return all rows of a file, values as they are."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in _PACKED]
    kind = _KINDS.get(suffixes[-1] if suffixes else "")
    if kind is None:
        raise CorpusError(f"data.source is {path}; allowed: a file named {', '.join(_KINDS)}")
    if not path.is_file():
        raise CorpusError(f"{path}: there is no such file")
    names = {"parquet": lambda: pq.read_schema(path).names, "csv": lambda: csv_header(path)}.get(kind, list)()
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise CorpusError(f"{path}: has two columns {printable(twice)!r}; allowed: different names")
    rows = [values for _, values in table_rows(kind, path, names)]
    if not rows:
        raise CorpusError(f"{path}: has no rows")
    present = names or sorted({name for row in rows for name in row})
    return pd.DataFrame(rows, columns=present, dtype=object)


def _with_clean_text(path: Path, frame: pd.DataFrame, column: str, reading: Reading) -> pd.DataFrame:
    """Return the rows with their texts as `fl-sim prepare` cleans them; blank ones are left out, long ones cut."""
    texts = frame[column].astype(str).mask(_is_missing(frame[column]), "")
    cleaned = [next(reading.clean([Sentence("", "row", text, ())]), None) for text in texts]
    frame = frame[[text is not None for text in cleaned]].copy()
    frame[column] = [text.text for text in cleaned if text is not None]
    if frame.empty:
        raise CorpusError(f"{path}: no row has a text in column {column!r}")
    return frame


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


def _labelled(
    path: Path,
    frame: pd.DataFrame,
    columns: TableColumns,
    parts: Mapping[str, Integers],
    precision: type[np.floating[Any]],
) -> LabelledData:
    """Return the examples of rows with a class and all private values; ``counts`` has the missing values by column.

    ``parts`` are the rows of each split; columns are standardised in ``precision``.
    """
    classes, labels = _classes(path, columns.task, frame)
    attributes, private = _attributes(path, columns.private, frame)
    for name, rows in parts.items():
        if not len(rows):
            raise CorpusError(f"{path}: the split {name} has no row; allowed: rows in all of {', '.join(SPLITS)}")
    missing: dict[str, int] = {}
    if columns.text is not None:
        whole = LabelledSplit(tuple(frame[columns.text]), labels, private)
    else:
        others = {columns.task, *columns.private, *columns.leave_out, columns.split}
        known = frame.iloc[parts[TRAIN]].dropna(axis=1, how="all")
        features = list(columns.features) or [str(name) for name in known if name not in others]
        if not features:
            raise CorpusError(f"{path}: no column is left as a feature; allowed: at least one, or data.table.text")
        blocks = {name: _block(path, frame[name], name in columns.categories, parts[TRAIN]) for name in features}
        missing = {f"missing {name}": absent for name, (_, absent) in blocks.items()}
        table = np.hstack([block for block, _ in blocks.values()]).astype(precision)
        mean, deviation = table[parts[TRAIN]].mean(axis=0), table[parts[TRAIN]].std(axis=0)
        deviation[deviation == 0] = 1.0
        whole = LabelledSplit(((table - mean) / deviation).astype(np.float32), labels, private)
    splits = {name: whole.take(parts[name]) for name in SPLITS}
    return LabelledData(path.stem.partition(".")[0], classes, attributes, splits, missing)


def _classes(path: Path, column: str, frame: pd.DataFrame) -> tuple[tuple[str, ...], Integers]:
    """Return the names of the classes and the class of each row, int64 (n,)."""
    names, codes = np.unique(_texts(frame[column]), return_inverse=True)
    if len(names) < 2:
        raise CorpusError(
            f"{path}: column {column!r} has one value, {printable(names[0][:_SHOWN])!r}; allowed: at least 2"
        )
    if len(names) > min(_MOST_VALUES, len(frame) // 2):
        raise CorpusError(
            f"{path}: column {column!r} has {len(names)} classes in {len(frame)} rows; allowed: at most "
            f"{_MOST_VALUES}, and two rows of each"
        )
    return tuple(names.tolist()), codes.astype(np.int64)


def _attributes(path: Path, columns: Sequence[str], frame: pd.DataFrame) -> tuple[tuple[str, ...], Integers]:
    """Return the names of the private attributes, and which rows have each, int64 (n, p)."""
    named: dict[str, NDArray[np.bool_]] = {}
    for column in columns:
        texts = _texts(frame[column])
        values = np.unique(texts).tolist()
        if not 2 <= len(values) <= _MOST_VALUES:
            raise CorpusError(
                f"{path}: private column {column!r} has {len(values)} {'value' if len(values) == 1 else 'values'}; "
                f"allowed: 2 to {_MOST_VALUES}"
            )
        for value in values[1:] if len(values) == 2 else values:
            named[f"{column}={value}"] = texts == value
    held = np.stack(list(named.values()), axis=1) if named else np.zeros((len(frame), 0))
    return tuple(named), held.astype(np.int64)


def _parts(
    path: Path, frame: pd.DataFrame, columns: TableColumns, seed: int, purpose: str, rows: int
) -> dict[str, Integers]:
    """Return the rows of ``frame`` in each split, int64 (m,).

    Without a split column ``seed`` divides all ``rows`` of the file, those that were left out of ``frame`` too: whether
    one client's text is blank must not move the others to another split.
    """
    if columns.split is None:
        shares = (1 - columns.validation_share - columns.test_share, columns.validation_share, columns.test_share)
        drawn = (frame.index.get_indexer(pd.Index(part)) for part in cut(shuffled(rows, seed, purpose), shares))
        return {name: places[places >= 0] for name, places in zip(SPLITS, drawn, strict=True)}
    names = np.array([name.lower() for name in _texts(frame[columns.split])])
    unknown = sorted(set(names.tolist()) - set(SPLITS))
    if unknown:
        raise CorpusError(
            f"{path}: column {columns.split!r} has {printable(unknown[0][:_SHOWN])!r}; allowed: {', '.join(SPLITS)}"
        )
    return {name: np.flatnonzero(names == name) for name in SPLITS}


def _block(path: Path, values: pd.Series, is_category: bool, train: Integers) -> tuple[NDArray[np.float64], int]:
    """Return a numeric column, float64 (n, 1), or one per category of the training rows, and how many values miss.

    Raises:
        CorpusError: a number is too large, or there are too many categories.
    """
    column, missing = values.name, _is_missing(values).to_numpy()
    known = values.mask(missing).map(lambda value: math.inf if _is_large(value) else value)
    numbers = pd.to_numeric(known, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    if not is_category and not np.isnan(numbers[train][~missing[train]]).any():
        large = np.abs(numbers) > _LARGEST
        if large.any():
            raise CorpusError(
                f"{path}: column {column!r} has {printable(str(values.iloc[large.argmax()])[:_SHOWN])}; allowed: "
                f"numbers from {-_LARGEST:g} to {_LARGEST:g}"
            )
        missing, of_train = np.isnan(numbers), numbers[train][~missing[train]]
        return np.where(missing, of_train.mean() if len(of_train) else 0.0, numbers)[:, None], int(missing.sum())
    texts = np.where(missing, "", _texts(values))
    names = np.unique(texts[train])
    if len(names) > max(_MOST_VALUES, len(values) // 10):
        raise CorpusError(
            f"{path}: column {column!r} has {len(names)} categories in {len(values)} rows; allowed: fewer, or name it "
            "in data.table.leave_out (an id), or as data.table.text"
        )
    codes = pd.Index(names).get_indexer(texts)  # -1 for a value that no training row has
    return np.eye(len(names) + 1)[codes, :-1], int((missing | (codes < 0)).sum())


def _check_splits(path: Path, data: LabelledData, columns: TableColumns) -> None:
    """Check that every class can be trained, and that every rate that is compared has rows enough."""
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


def _texts(values: pd.Series) -> NDArray[np.str_]:
    """Return the values as texts without white space at their ends, (n,)."""
    return np.array([str(value).strip() for value in values], dtype=np.str_)


def _is_large(value: Any) -> bool:
    """Return whether a value is an integer that may not fit a double."""
    return isinstance(value, int) and abs(value) > _LARGEST


def _is_missing(values: pd.Series) -> pd.Series:
    return values.isna() | values.astype(str).str.strip().isin(_MISSING)


ATTRIBUTE = "sex"
"""The private attribute of Adult."""
_CLASSES, _SEXES = ("<=50K", ">50K"), ("Female", "Male")
_SHARES: dict[AdultSplit, tuple[float, float]] = {"paper": (0.2, 0.2), "code": (0.08, 0.2)}
_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship",
    "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip
_NUMBERS = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week", "fnlwgt")
_FEATURES: dict[AdultColumns, tuple[str, ...]] = {
    "nine": (
        "workclass", "marital-status", "occupation", "relationship", "race", "native-country",
        "age", "education-num", "hours-per-week",
    ),
    "code": (
        "workclass", "education", "marital-status", "occupation", "relationship", "native-country", *_NUMBERS,
    ),
}  # fmt: skip
_INTEGER = re.compile("[0-9]{1,9}")
_SCHOOLS = {
    **dict.fromkeys(("Preschool", "1st-4th", "5th-6th", "7th-8th"), "prim-middle-school"),
    **dict.fromkeys(("9th", "10th", "11th", "12th"), "high-school"),
}


def read_adult(source: Path, seed: int, columns: AdultColumns = "nine", split: AdultSplit = "paper") -> LabelledData:
    """Return UCI Adult (Becker and Kohavi 1996): the class is an income above 50,000 dollars, private is the sex.

    Rows with a missing value are dropped (45,222 of 48,842 remain). Countries are the United States or others.
    FEDERATE's paper and its published code differ in split (60 : 20 : 20 and 72 : 8 : 20) and columns: ``nine`` (the
    paper: "a total of 9 features", after Wu, Zhang and Wu 2019), or all but race, with the lowest and the unfinished
    schools as two groups.

    ``source`` is the folder with ``adult.data`` and ``adult.test`` (or .xz, .gz); ``seed`` draws the order of rows.

    Raises:
        CorpusError: naming file and line, for a row of another shape or an unknown value.
    """
    rows = [row for name in ("adult.data", "adult.test") for row in _adult_rows(source, name)]
    frame = pd.DataFrame(rows, columns=list(_COLUMNS), dtype=object)
    if frame.empty:
        raise CorpusError("Adult has no complete row")
    frame["education"] = frame["education"].replace(_SCHOOLS)
    frame["native-country"] = np.where(frame["native-country"] == "United-States", "US", "NonUS")
    validation_share, test_share = _SHARES[split]
    chosen = TableColumns(
        task="income", private=(ATTRIBUTE,), features=_FEATURES[columns], validation_share=validation_share,
        test_share=test_share,
    )  # fmt: skip
    parts = _parts(source, frame, chosen, seed, "adult split", len(frame))
    data = _labelled(source, frame, chosen, parts, np.float32)
    return replace(data, name="adult", attributes=(ATTRIBUTE,), counts={})


def _adult_rows(source: Path, name: str) -> list[list[str]]:
    """Return the complete rows of a file."""
    path = corpus_file(source, name)
    rows = []
    for number, line in decoded_lines(path):
        cells = [cell.strip() for cell in line.strip().rstrip(".").split(",")]
        if cells == [""] or cells[0].startswith("|"):  # adult.test begins with a comment
            continue
        if len(cells) != len(_COLUMNS):
            raise CorpusError(f"{path}, line {number}: {len(cells)} columns, must be {len(_COLUMNS)}")
        row = dict(zip(_COLUMNS, cells, strict=True))
        for column, allowed in (("income", _CLASSES), ("sex", _SEXES)):
            if row[column] not in allowed:
                raise CorpusError(
                    f"{path}, line {number}: {column} is {row[column][:_SHOWN]!r}, must be one of {', '.join(allowed)}"
                )
        wrong = next((column for column in _NUMBERS if not _INTEGER.fullmatch(row[column])), None)
        if wrong is not None:
            raise CorpusError(
                f"{path}, line {number}: {wrong} is {row[wrong][:_SHOWN]!r}, must be an integer of at most 9 digits"
            )
        if "?" not in cells:
            rows.append(cells)
    return rows


def write_toy_adult(folder: Path, rows: int = 600, seed: int = 0) -> Path:
    """Write made-up ``adult.data`` and ``adult.test`` with half of the rows each; return the folder.

    60 % are men. Half of the men and 30 % of the women earn more than 50,000. Four of five men are husbands. Higher
    earners mostly have more years of education.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(rows):
        male = rng.random() < 0.6
        rich = rng.random() < (0.5 if male else 0.3)
        home = "Husband" if male and rng.random() < 0.8 else "Own-child"
        years = int(rng.integers(11, 17) if rich else rng.integers(5, 13))
        cells = [
            int(rng.integers(20, 60)), "Private", 100, "Bachelors", years, "Never-married", "Sales", home, "White",
            "Male" if male else "Female", 0, 0, int(rng.integers(20, 60)), "United-States",
            ">50K" if rich else "<=50K",
        ]  # fmt: skip
        lines.append(", ".join(map(str, cells)))
    half = rows // 2
    (folder / "adult.data").write_text("\n".join(lines[:half]) + "\n")
    (folder / "adult.test").write_text("\n".join(f"{line}." for line in lines[half:]) + "\n")
    return folder
