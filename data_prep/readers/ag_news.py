"""Read AG News: a row is a news item with a class; users are made up, as in the UeDP paper.

Zhang, Zhao and LeCun (2015): two CSV files, ``train.csv`` and ``test.csv``, with class index (1 to 4), title and
description and no header. Files with a header line ``class_index,title,description,...`` are read, too. AG names no
authors, so the paper divides its rows at random among users of N(15, 2²) sentences each.

>>> np.bincount(users_of_rows(40, np.random.default_rng(0)))
array([15, 15, 10])
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.readers.cleaning import Note, Reading
from fl_sim.data_prep.readers.tables import RowLines
from fl_sim.data_prep.records import CorpusError, Sentence

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
TEXTS = ("title+description", "description", "title")
SENTENCES_PER_USER_MEAN, SENTENCES_PER_USER_DEVIATION = 15, 2

_SPLITS = {"train": ("train", "train_partial"), "test": ("test",)}
_SUFFIXES = (".csv", ".csv.xz", ".csv.gz")
_HEADER = ("class_index", "title", "description")
_JOINED = "joined"


@dataclass(frozen=True)
class AgNewsOptions:
    """How to read AG's rows.

    Attributes:
        text: title and description joined by a space (if a row lacks one, the other alone), or one of them.
        split_sentences: whether to split rows into sentences; a row is then a document, and users still get whole rows.
        max_users: keep the first so many users drawn of each split.
        seed: draws the users' sizes and rows.
    """

    text: str = TEXTS[0]
    split_sentences: bool = False
    max_users: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.text not in TEXTS:
            raise CorpusError(f"--text {self.text!r} must be one of {', '.join(TEXTS)}")
        if self.max_users is not None and self.max_users < 1:
            raise CorpusError(f"--max-users {self.max_users} must be at least 1")
        if self.seed < 0:
            raise CorpusError(f"--seed {self.seed} must not be negative")

    def manifest_settings(self) -> dict[str, Any]:
        """The settings that shape the corpus, for its manifest."""
        return asdict(self)


def ag_news_files(source: Path) -> dict[str, Path]:
    """Return split → file, of a folder or of a single file; a file whose name begins with "test" is the test split.

    Raises:
        CorpusError: the folder has no training file.
    """
    if not source.is_dir():
        return {"test" if source.name.startswith("test") else "train": source}
    files = {}
    for split, names in _SPLITS.items():
        candidates = [source / f"{name}{suffix}" for name in names for suffix in _SUFFIXES]
        path = next((path for path in candidates if path.is_file()), None)
        if path is not None:
            files[split] = path
    if "train" not in files:
        raise CorpusError(f"{source}: no train.csv or train_partial.csv (or .xz, .gz) in this folder")
    return files


def read_ag_news(
    source: Path, options: AgNewsOptions | None = None, reading: Reading | None = None
) -> Iterator[Sentence]:
    """Yield all sentences of AG's files; each split has its own users (``train-00001``).

    A row without the text asked for is dropped and counted.

    Args:
        source: a folder or a file.
        options: how to read the rows.
        reading: how to treat bad text.

    Raises:
        CorpusError: a row has another shape; the message names file and line.
    """
    reading, options = reading or Reading(), options or AgNewsOptions()
    for split, path in ag_news_files(source).items():
        yield from reading.clean(_of_users(split, path, options, reading), options.split_sentences)


def users_of_rows(rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a user for each row, from 0.

    The users' sizes are drawn from N(15, 2²), rounded, at least 1, until they hold all rows; the last user gets the
    rest. The rows are then divided at random.

    Args:
        rows: their number.
        rng: draws sizes and rows.

    Returns:
        int64 (rows,).
    """
    sizes = np.zeros(0, dtype=np.int64)
    while sizes.sum() < rows:
        draws = rng.normal(SENTENCES_PER_USER_MEAN, SENTENCES_PER_USER_DEVIATION, rows // SENTENCES_PER_USER_MEAN + 1)
        sizes = np.concatenate((sizes, np.maximum(np.rint(draws), 1).astype(np.int64)))
    users = np.empty(rows, dtype=np.int64)
    users[rng.permutation(rows)] = np.repeat(np.arange(len(sizes)), sizes)[:rows]
    return users


def _of_users(split: str, path: Path, options: AgNewsOptions, reading: Reading) -> Iterator[Sentence]:
    items = list(_items(path, options.text, reading))
    rng = np.random.default_rng(np.random.SeedSequence([options.seed, list(_SPLITS).index(split)]))
    users = users_of_rows(len(items), rng).tolist()
    for number, ((text, target), user) in enumerate(zip(items, users, strict=True), start=1):
        if options.max_users is None or user < options.max_users:
            yield Sentence(split, f"{split}-{user + 1:05d}", text, (), target, f"row {number}")


def _items(path: Path, text: str, reading: Reading) -> Iterator[tuple[str, str]]:
    """Yield text and class of every row that has the text asked for."""
    lines = RowLines(path, reading)
    reader = csv.reader(lines, strict=True)
    header: list[str] = list(_HEADER)
    try:
        for number, cells in enumerate(reader):
            lines.end_row()
            if number == 0 and tuple(cells[: len(_HEADER)]) == _HEADER:
                header = cells
                continue
            where = f"{path}, line {reader.line_num}"
            if len(cells) != len(header):
                raise CorpusError(f"{where}: {len(cells)} columns, must be {len(header)} ({', '.join(header)})")
            row = dict(zip(header, cells, strict=True))
            target = _class_of(row["class_index"], where)
            content = _text_of(row, text)
            if content:
                yield content, target
            else:
                reading.note(Note.ROWS_WITHOUT_THAT_FIELD)
    except csv.Error as error:
        raise CorpusError(f"{path}, line {reader.line_num}: {error}") from error


def _text_of(row: dict[str, str], text: str) -> str:
    """Return the text asked for; empty if one of two fields is wanted and they were published as one."""
    fields = [row[name].strip() for name in text.split("+")]
    if len(fields) == 1 and row.get("fields") == _JOINED:
        return ""
    return " ".join(field for field in fields if field)


def _class_of(cell: str, where: str) -> str:
    numbers = [str(number) for number in range(1, len(CLASSES) + 1)]
    if cell not in numbers:
        raise CorpusError(f"{where}: class {cell[:30]!r} must be one of {', '.join(numbers)}")
    return CLASSES[int(cell) - 1]
