"""AG News: a row is a news item with a class; users are made up, as in the UeDP paper.

Zhang, Zhao and LeCun (2015); two CSV files, ``train.csv`` and ``test.csv``, with class index (1 to 4), title and
description and no header. Files with a header line ``class_index,title,description,...`` are read, too. AG names no
author, so the paper divides its rows at random among users of N(15, 2²) sentences each.
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
from fl_sim.data_prep.records import CorpusError, Sentence

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
TEXTS = ("title+description", "description", "title")
SENTENCES_PER_USER_MEAN, SENTENCES_PER_USER_DEVIATION = 15, 2

_SPLITS = {"train": ("train", "train_partial"), "test": ("test",)}
_SUFFIXES = (".csv", ".csv.xz", ".csv.gz")
_HEADER = ("class_index", "title", "description")
_JOINED = "joined"
_MAX_CHARACTERS = 10**9


@dataclass(frozen=True)
class AgNewsOptions:
    """What to make of AG's rows.

    text: title and description joined by a space (a row that lacks one of them is the other), or one of them alone.
    split_sentences: cut rows into sentences; a row is then a document, and users are still dealt rows.
    max_users: keep that many users of each split, the first ones drawn. seed: of the draw and the division.
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
    """Split → file, in the folder ``source`` or for a single file, which is the test set if its name begins so.

    Raises :class:`CorpusError` for a folder without a training file.
    """
    if not source.is_dir():
        return {"test" if source.name.startswith("test") else "train": source}
    files = {}
    for split, names in _SPLITS.items():
        candidates = [source / f"{name}{suffix}" for name in names for suffix in _SUFFIXES]
        found = next((path for path in candidates if path.is_file()), None)
        if found is not None:
            files[split] = found
    if "train" not in files:
        raise CorpusError(f"{source}: no train.csv or train_partial.csv (or .xz, .gz) in this folder")
    return files


def read_ag_news(
    source: Path, options: AgNewsOptions | None = None, reading: Reading | None = None
) -> Iterator[Sentence]:
    """All sentences of AG's files in ``source``; each split has users of its own (``train-00001``).

    A row without the text asked for is dropped and counted. Raises :class:`CorpusError` with file and line for a row
    of another shape.
    """
    reading, options = reading or Reading(), options or AgNewsOptions()
    for split, path in ag_news_files(source).items():
        yield from reading.clean(_of_users(split, path, options, reading), options.split_sentences)


def users_of_rows(rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """int64 (rows,): a user for each row, from 0.

    Sizes are drawn from N(15, 2²), rounded, at least 1, until they hold all rows; the last user gets what is left. Then
    the rows are shuffled and dealt.
    """
    sizes = np.zeros(0, dtype=np.int64)
    while sizes.sum() < rows:
        drawn = rng.normal(SENTENCES_PER_USER_MEAN, SENTENCES_PER_USER_DEVIATION, rows // SENTENCES_PER_USER_MEAN + 1)
        sizes = np.concatenate((sizes, np.maximum(np.rint(drawn), 1).astype(np.int64)))
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
    """The text and the class of every row that has the text asked for."""
    csv.field_size_limit(_MAX_CHARACTERS)
    reader = csv.reader((line for _, line in reading.lines(path)), strict=True)
    header: list[str] = list(_HEADER)
    try:
        for number, cells in enumerate(reader):
            if number == 0 and tuple(cells[: len(_HEADER)]) == _HEADER:
                header = cells
                continue
            where = f"{path}, line {reader.line_num}"
            if len(cells) != len(header):
                raise CorpusError(f"{where}: {len(cells)} columns, must be {len(header)} ({', '.join(header)})")
            row = dict(zip(header, cells, strict=True))
            target = _class_of(row["class_index"], where)
            chosen = _chosen(row, text)
            if chosen:
                yield chosen, target
            else:
                reading.note(Note.ROWS_WITHOUT_THAT_FIELD)
    except csv.Error as error:
        raise CorpusError(f"{path}, line {reader.line_num}: {error}") from error


def _chosen(row: dict[str, str], text: str) -> str:
    """The text asked for; none where title and description were published as one and only one of them is wanted."""
    fields = [row[name].strip() for name in text.split("+")]
    if len(fields) == 1 and row.get("fields") == _JOINED:
        return ""
    return " ".join(field for field in fields if field)


def _class_of(cell: str, where: str) -> str:
    numbers = [str(number) for number in range(1, len(CLASSES) + 1)]
    if cell not in numbers:
        raise CorpusError(f"{where}: class {cell[:30]!r} must be one of {', '.join(numbers)}")
    return CLASSES[int(cell) - 1]
