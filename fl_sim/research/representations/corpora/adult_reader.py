"""UCI Adult (Becker and Kohavi 1996): the class is an income above 50,000 dollars, the private attribute is the sex.

Rows with a missing value are dropped (45,222 of 48,842 remain). Countries are the United States or others; text columns
are one-hot. A seed shuffles the rows and splits them; columns are standardised by the training rows' mean and
deviation. FEDERATE's paper and its published code split differently (60 : 20 : 20 and 72 : 8 : 20) and use different
columns:

* ``nine`` (the paper: "a total of 9 features", after Wu, Zhang and Wu 2019): age, class of work, years of education,
  marital status, occupation, relationship, race, hours per week, country.
* ``code``: all columns but race; the lowest and the unfinished schools are two groups.

>>> from tempfile import TemporaryDirectory
>>> from fl_sim.research.representations.corpora.adult_reader import write_toy_adult
>>> with TemporaryDirectory() as folder:
...     data = read_adult(write_toy_adult(Path(folder), rows=100), seed=0)
>>> {name: len(split) for name, split in data.splits.items()}
{'train': 60, 'validation': 20, 'test': 20}

A synthetic Adult in the format of the original: columns predict income and sex, but not perfectly.

>>> from tempfile import TemporaryDirectory
>>> with TemporaryDirectory() as folder:
...     lines = (write_toy_adult(Path(folder), rows=10) / "adult.data").read_text().splitlines()
>>> len(lines), len(lines[0].split(", "))
(5, 15)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.textfiles import decoded_lines
from fl_sim.research.representations.corpora.labelled import SPLITS, LabelledData, LabelledSplit, cut, shuffled

AdultColumns = Literal["nine", "code"]
AdultSplit = Literal["paper", "code"]
CLASSES = ("<=50K", ">50K")
ATTRIBUTE = "sex"
_SEXES = ("Female", "Male")
_SHARES: dict[AdultSplit, tuple[float, float, float]] = {"paper": (0.6, 0.2, 0.2), "code": (0.72, 0.08, 0.2)}
_COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship",
    "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip
_TEXTS: dict[AdultColumns, tuple[str, ...]] = {
    "nine": ("workclass", "marital-status", "occupation", "relationship", "race", "native-country"),
    "code": ("workclass", "education", "marital-status", "occupation", "relationship", "native-country"),
}
_NUMBERS: dict[AdultColumns, tuple[str, ...]] = {
    "nine": ("age", "education-num", "hours-per-week"),
    "code": ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week", "fnlwgt"),
}
_MISSING = "?"
_SCHOOLS = {
    **dict.fromkeys(("Preschool", "1st-4th", "5th-6th", "7th-8th"), "prim-middle-school"),
    **dict.fromkeys(("9th", "10th", "11th", "12th"), "high-school"),
}
_HOME = "United-States"
_FILES = (("adult.data", "adult.data.xz", "adult.data.gz"), ("adult.test", "adult.test.xz", "adult.test.gz"))


def adult_files(source: Path) -> list[Path]:
    """Return the paths of ``adult.data`` and ``adult.test`` (or .xz, .gz) in ``source``; CorpusError without one."""
    files = []
    for names in _FILES:
        file = next((source / name for name in names if (source / name).is_file()), None)
        if file is None:
            raise CorpusError(f"{source}: no {names[0]} (or .xz, .gz) in this folder")
        files.append(file)
    return files


def read_adult(source: Path, seed: int, columns: AdultColumns = "nine", split: AdultSplit = "paper") -> LabelledData:
    """Return the rows of both files in splits drawn by ``seed``; classes and sexes are 0 or 1 (1: above 50,000; male).

    Args:
        source: the folder with the files.
        seed: of the order of rows.
        columns: the paper's ``nine``, or those of its ``code``.
        split: shares as in the ``paper``, or in its ``code``.

    Raises:
        CorpusError: naming file and line, for a row of another shape or an unknown value.
    """
    rows = [row for path in adult_files(source) for row in _rows(path)]
    examples = _encode(rows, columns)
    parts = cut(shuffled(len(examples), seed, "adult split"), _SHARES[split])
    train, *rest = (examples.take(part) for part in parts)
    mean, deviation = train.table.mean(axis=0), train.table.std(axis=0)
    deviation[deviation == 0] = 1.0
    splits = {
        name: LabelledSplit(
            ((split.table - mean) / deviation).astype(np.float32, copy=False), split.labels, split.private
        )
        for name, split in zip(SPLITS, (train, *rest), strict=True)
    }
    return LabelledData("adult", CLASSES, (ATTRIBUTE,), splits)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the complete rows of a file."""
    for number, line in decoded_lines(path):
        cells = [cell.strip() for cell in line.strip().split(",")]
        if cells == [""] or cells[0].startswith("|"):  # adult.test begins with a comment
            continue
        if len(cells) != len(_COLUMNS):
            raise CorpusError(f"{path}, line {number}: {len(cells)} columns, must be {len(_COLUMNS)}")
        row = dict(zip(_COLUMNS, cells, strict=True))
        row["income"] = row["income"].rstrip(".")
        for column, allowed in (("income", CLASSES), ("sex", _SEXES)):
            if row[column] not in allowed:
                raise CorpusError(
                    f"{path}, line {number}: {column} is {row[column][:30]!r}, must be one of {', '.join(allowed)}"
                )
        for column in _NUMBERS["code"]:
            if not row[column].isdigit():
                raise CorpusError(f"{path}, line {number}: {column} is {row[column][:30]!r}, must be an integer")
        if _MISSING not in row.values():
            yield row


def _encode(rows: list[dict[str, str]], columns: AdultColumns) -> LabelledSplit:
    if not rows:
        raise CorpusError("Adult has no complete row")
    blocks = [_one_hot([_group_value(name, row[name]) for row in rows]) for name in _TEXTS[columns]]
    blocks += [np.array([[float(row[name])] for row in rows]) for name in _NUMBERS[columns]]
    labels = np.array([CLASSES.index(row["income"]) for row in rows], dtype=np.int64)
    sexes = np.array([[_SEXES.index(row["sex"])] for row in rows], dtype=np.int64)
    return LabelledSplit(np.hstack(blocks).astype(np.float32), labels, sexes)


def _group_value(column: str, value: str) -> str:
    if column == "education":
        return _SCHOOLS.get(value, value)
    if column == "native-country":
        return "US" if value == _HOME else "NonUS"
    return value


def _one_hot(values: list[str]) -> NDArray[np.float64]:
    names, codes = np.unique(values, return_inverse=True)
    return np.eye(len(names))[codes]


def write_toy_adult(folder: Path, rows: int = 600, seed: int = 0) -> Path:
    """Write ``adult.data`` and ``adult.test`` with half of the rows each; return the folder.

    60 % are men. Half of the men and 30 % of the women earn more than 50,000. Four of five men are husbands. Higher
    earners mostly have more years of education.

    Args:
        folder: created if needed.
        rows: of both files together.
        seed: of the rows.
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
