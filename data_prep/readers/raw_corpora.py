"""The published corpora of the UeDP paper: CoNLL-2003, AG News, and clauses that stand in for its private contracts.

CoNLL-2003 is Tjong Kim Sang and De Meulder (2003), "Introduction to the CoNLL-2003 shared task": documents are users,
gold tags are the entities. AG News is that of Zhang, Zhao and LeCun (2015): two CSV files, ``train.csv`` and
``test.csv``, with class index (1 to 4), title and description and no header. Files with a header line
``class_index,title,description,...`` are read, too. AG names no authors, so the paper divides its rows at random among
users of N(15, 2²) sentences each.

>>> np.bincount(users_of_rows(40, np.random.default_rng(0)))
array([15, 15, 10])
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.readers.cleaning import Note, Reading
from fl_sim.data_prep.readers.iob import OpenSentence
from fl_sim.data_prep.readers.reader import BY_PLACE, RawCorpus
from fl_sim.data_prep.readers.tables import TableColumns, csv_records, read_table
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.textfiles import decoded_lines, note_position, stored_file

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
AgText = Literal["title", "description", "title+description"]
SENTENCES_PER_USER_MEAN, SENTENCES_PER_USER_DEVIATION = 15, 2

_AG_FILES = {"train": ("train", "train_partial"), "test": ("test",)}
_AG_HEADER = ("class_index", "title", "description")
_JOINED = "joined"


@dataclass(frozen=True)
class AgNewsReader:
    """AG's news with classes; users are drawn, N(15, 2²) rows each.

    Attributes:
        source: The folder with train.csv (or train_partial.csv) and test.csv (.xz and .gz too), or one file.
        text: The title, as in the UeDP paper, the description, or both joined by a space (if a row lacks one, the
            other alone).
        max_users: Keep the first N users drawn of each split.
        seed: The seed of the users' sizes and rows.
    """

    source: Path
    text: AgText = "title"
    max_users: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.text not in get_args(AgText):
            raise CorpusError(f"`text` {self.text!r} must be one of {', '.join(get_args(AgText))}")
        if self.max_users is not None and self.max_users < 1:
            raise CorpusError(f"`max_users` {self.max_users} must be at least 1")
        if self.seed < 0:
            raise CorpusError(f"`seed` {self.seed} must not be negative")

    def read(self) -> RawCorpus:
        files = self._files()

        def read(reading: Reading) -> Iterator[Sentence]:
            for split, path in files.items():
                yield from reading.clean(self._sentences(split, path, reading))

        settings = {"text": self.text, "max_users": self.max_users, "seed": self.seed, "warnings": [BY_PLACE]}
        return RawCorpus.from_files("ag-news", "ag_news", read, files.values(), settings=settings)

    def _files(self) -> dict[str, Path]:
        """Return split → file; a single file whose name begins with "test" is the test split."""
        if not self.source.is_dir():
            return {"test" if self.source.name.startswith("test") else "train": self.source}
        files: dict[str, Path] = {}
        for split, names in _AG_FILES.items():
            for path in filter(None, (stored_file(self.source, f"{name}.csv") for name in names)):
                files.setdefault(split, path)
        if "train" not in files:
            raise CorpusError(f"{self.source}: no train.csv or train_partial.csv (or .xz, .gz) in this folder")
        return files

    def _sentences(self, split: str, path: Path, reading: Reading) -> Iterator[Sentence]:
        items = list(self._items(path, reading))
        rng = np.random.default_rng(np.random.SeedSequence([self.seed, list(_AG_FILES).index(split)]))
        size, users = path.stat().st_size, users_of_rows(len(items), rng).tolist()
        for number, ((text, target), user) in enumerate(zip(items, users, strict=True)):
            note_position(path, size * number // len(items))  # all rows are read before the first is tagged
            if self.max_users is None or user < self.max_users:
                yield Sentence(split, f"{split}-{user + 1:05d}", text, (), target)

    def _items(self, path: Path, reading: Reading) -> Iterator[tuple[str, str]]:
        """Yield text and class of every row that has the text asked for; count the others."""
        header: list[str] = list(_AG_HEADER)
        numbers = [str(number) for number in range(1, len(CLASSES) + 1)]
        for number, (where, cells) in enumerate(csv_records(path, strict=True)):
            if number == 0 and tuple(cells[: len(_AG_HEADER)]) == _AG_HEADER:
                header = cells
                continue
            if len(cells) != len(header):
                raise CorpusError(f"{where}: {len(cells)} columns, must be {len(header)} ({', '.join(header)})")
            row = dict(zip(header, cells, strict=True))
            if row["class_index"] not in numbers:
                raise CorpusError(f"{where}: class {row['class_index'][:30]!r} must be one of {', '.join(numbers)}")
            wanted = self.text.split("+")
            if len(wanted) == 1 and row.get("fields") == _JOINED:  # the two fields were published as one
                wanted = []
            if text := " ".join(filter(None, (row[name].strip() for name in wanted))):
                yield text, CLASSES[int(row["class_index"]) - 1]
            else:
                reading.note(Note.ROWS_WITHOUT_THAT_FIELD)


def users_of_rows(rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a user for each row, from 0, int64 (rows,).

    The users' sizes are drawn from N(15, 2²), rounded, at least 1, until they hold all rows; the last user gets the
    rest. The rows are then divided at random.
    """
    sizes = np.zeros(0, dtype=np.int64)
    while sizes.sum() < rows:
        draws = rng.normal(SENTENCES_PER_USER_MEAN, SENTENCES_PER_USER_DEVIATION, rows // SENTENCES_PER_USER_MEAN + 1)
        sizes = np.concatenate((sizes, np.maximum(np.rint(draws), 1).astype(np.int64)))
    users = np.empty(rows, dtype=np.int64)
    users[rng.permutation(rows)] = np.repeat(np.arange(len(sizes)), sizes)[:rows]
    return users


_CONLL_SPLITS = {"eng.train": "train", "eng.testa": "validation", "eng.testb": "test"}
_CONLL_COLUMNS = 4
_DOCUMENT_START = "-DOCSTART-"
_TAG = re.compile(r"O|[BI]-\S+")
_GAP = re.compile(r"[ \t]+")


@dataclass(frozen=True)
class Conll2003Reader:
    """The shared task's folder: documents are users.

    A document is a user, named ``train-0001`` and so on; the text of a sentence is its tokens joined by single spaces.

    Attributes:
        source: The folder with eng.train, eng.testa and eng.testb (.xz and .gz too).
    """

    source: Path

    def read(self) -> RawCorpus:
        if not self.source.is_dir():
            raise CorpusError(
                f"{self.source}: `source` must be the folder that holds eng.train, eng.testa and eng.testb"
            )
        stored = {split: stored_file(self.source, name) for name, split in _CONLL_SPLITS.items()}
        files = {split: path for split, path in stored.items() if path is not None}
        if "train" not in files:
            raise CorpusError(f"{self.source}: no eng.train (or eng.train.xz, eng.train.gz) in this folder")

        def read(reading: Reading) -> Iterator[Sentence]:
            for split, path in files.items():
                yield from reading.clean(_conll_sentences(path, split))

        return RawCorpus.from_files("conll2003", "conll2003", read, files.values(), has_gold=True)


def _conll_sentences(path: Path, split: str) -> Iterator[Sentence]:
    """Yield the sentences of a file (``token POS chunk tag``; IOB1 or IOB2 tags); CorpusError for a malformed line."""
    document = 0
    sentence = OpenSentence()
    for number, line in decoded_lines(path):
        where = f"{path}, line {number}"
        columns = _GAP.split(line.strip(" \t\r\n"))
        if columns == [""] or columns[0] == _DOCUMENT_START:
            if sentence.tokens:
                yield sentence.close(split, f"{split}-{document:04d}")
                sentence = OpenSentence()
            document += columns[0] == _DOCUMENT_START
            continue
        if document == 0:
            raise CorpusError(f"{where}: a sentence before the first {_DOCUMENT_START} line has no user")
        if len(columns) != _CONLL_COLUMNS:
            raise CorpusError(f"{where}: {len(columns)} columns, must be {_CONLL_COLUMNS} (token POS chunk tag)")
        if not _TAG.fullmatch(columns[-1]):
            raise CorpusError(f"{where}: tag {columns[-1]!r} must be O, B-TYPE or I-TYPE")
        sentence.add(columns[0], columns[-1], where)
    if sentence.tokens:
        yield sentence.close(split, f"{split}-{document:04d}")


_SEC_FILE = "sentences.jsonl"


@dataclass(frozen=True)
class SecStandinReader:
    """Clauses of contracts, companies as users.

    Attributes:
        source: The folder with sentences.jsonl (.xz and .gz too), or that file.
        test_fraction: The share of users held out.
        seed: The seed of the hash that holds them out.
    """

    source: Path
    test_fraction: float = 0.1
    seed: int = 0

    def read(self) -> RawCorpus:
        path = stored_file(self.source, _SEC_FILE) if self.source.is_dir() else self.source
        if path is None:
            raise CorpusError(f"{self.source}: no {_SEC_FILE} (or .xz, .gz) in this folder")
        columns = TableColumns(
            text_column="sentence",
            user_column="user",
            test_fraction=self.test_fraction,
            seed=self.seed,
            split_sentences=False,
        )
        settings = {"test_fraction": self.test_fraction, "seed": self.seed}
        return RawCorpus.from_files(
            "sec-standin", "sec_standin", lambda reading: read_table("jsonl", path, columns, reading), [path],
            settings=settings,
        )  # fmt: skip
