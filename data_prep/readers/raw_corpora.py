"""Raw corpora: what to read, what to record of it, and whether it marks its entities.

First three readers: AG News (a row is a news item with a class; users are made up, as in the UeDP paper), CoNLL-2003
(documents are users, gold tags are the entities) and Shakespeare by speaker (users have very different amounts of
text).

AG News: Zhang, Zhao and LeCun (2015): two CSV files, ``train.csv`` and ``test.csv``, with class index (1 to 4), title
and description and no header. Files with a header line ``class_index,title,description,...`` are read, too. AG names
no authors, so the paper divides its rows at random among users of N(15, 2²) sentences each.

CoNLL-2003: Tjong Kim Sang and De Meulder (2003), "Introduction to the CoNLL-2003 shared task".

Shakespeare: The files are JSON lines with ``user`` and ``text``, one speech each, and ``play`` if the edition has it.

>>> np.bincount(users_of_rows(40, np.random.default_rng(0)))
array([15, 15, 10])

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "eng.train"
...     _ = path.write_text("-DOCSTART- -X- -X- O\\n\\nAda NNP I-NP I-PER\\nleft VBD I-VP O\\n")
...     [(s.user, s.text, s.mentions) for s in read_conll2003(Path(folder))]
[('train-0001', 'Ada left', (Mention(start=0, end=3, label='PER'),))]

>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "plays.jsonl"
...     _ = path.write_text('{"play": "Hamlet", "user": "BERNARDO", "text": "Who is there?"}')
...     [(s.user, s.text) for s in read_shakespeare(path)]
[('Hamlet: BERNARDO', 'Who is there?')]

>>> raw = RawCorpus("letters", lambda: iter([Sentence("train", "ann", "Dear Ada", ())]), has_gold=False)
>>> [sentence.text for sentence in raw.sentences()]
['Dear Ada']
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.readers.cleaning import Cleaning, Note, Preprocessing, Reading
from fl_sim.data_prep.readers.hugging_face import HfDataset, read_hf
from fl_sim.data_prep.readers.iob import IobOptions, OpenSentence, iob_files, read_iob
from fl_sim.data_prep.readers.tables import (
    TableOptions,
    check_fraction,
    csv_records,
    read_table,
    split_by_hash,
    table_rows,
)
from fl_sim.data_prep.records import CorpusError, Sentence, Settings
from fl_sim.data_prep.store.textfiles import check_beginning, stored_file

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
TEXTS = ("title+description", "description", "title")
SENTENCES_PER_USER_MEAN, SENTENCES_PER_USER_DEVIATION = 15, 2

_SPLITS = {"train": ("train", "train_partial"), "test": ("test",)}
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


def ag_news_files(source: Path) -> dict[str, Path]:
    """Return split → file, of a folder or of a single file; a file whose name begins with "test" is the test split.

    Raises:
        CorpusError: the folder has no training file.
    """
    if not source.is_dir():
        return {"test" if source.name.startswith("test") else "train": source}
    files: dict[str, Path] = {}
    for split, names in _SPLITS.items():
        for path in filter(None, (stored_file(source, f"{name}.csv") for name in names)):
            files.setdefault(split, path)
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
    header: list[str] = list(_HEADER)
    for number, (where, cells) in enumerate(csv_records(path, reading, strict=True)):
        if number == 0 and tuple(cells[: len(_HEADER)]) == _HEADER:
            header = cells
            continue
        if len(cells) != len(header):
            raise CorpusError(f"{where}: {len(cells)} columns, must be {len(header)} ({', '.join(header)})")
        row = dict(zip(header, cells, strict=True))
        target = _class_of(row["class_index"], where)
        content = _text_of(row, text)
        if content:
            yield content, target
        else:
            reading.note(Note.ROWS_WITHOUT_THAT_FIELD)


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


SPLIT_OF_FILE = {"eng.train": "train", "eng.testa": "validation", "eng.testb": "test"}
"""The split of each file of the shared task."""

_COLUMNS = 4
_DOCUMENT_START = "-DOCSTART-"
_TAG = re.compile(r"O|[BI]-\S+")
_GAP = re.compile(r"[ \t]+")


def conll2003_files(source: Path) -> dict[str, Path]:
    """Return split → file in the folder ``source``; a plain file is preferred to its .xz or .gz copy.

    Raises:
        CorpusError: ``source`` is no folder, or has no ``eng.train``.
    """
    if not source.is_dir():
        raise CorpusError(f"{source}: --source must be the folder that holds eng.train, eng.testa and eng.testb")
    found = {split: stored_file(source, name) for name, split in SPLIT_OF_FILE.items()}
    files = {split: path for split, path in found.items() if path is not None}
    if "train" not in files:
        raise CorpusError(f"{source}: no eng.train (or eng.train.xz, eng.train.gz) in this folder")
    return files


def read_conll2003(source: Path, reading: Reading | None = None) -> Iterator[Sentence]:
    """Yield all sentences of the shared task's files in ``source``, file by file.

    A document is a user, named ``train-0001`` and so on; the text of a sentence is its tokens joined by single spaces.

    Raises:
        CorpusError: a line has another number of columns or a malformed tag; the message names file and line.
    """
    for split, path in conll2003_files(source).items():
        yield from read_conll_file(path, split, reading)


def read_conll_file(path: Path, split: str, reading: Reading | None = None) -> Iterator[Sentence]:
    """Yield the sentences of one four-column file (``token POS chunk tag``; IOB1 or IOB2 tags)."""
    reading = reading or Reading()
    return reading.clean(_sentences(path, split, reading))


def _sentences(path: Path, split: str, reading: Reading) -> Iterator[Sentence]:
    document = 0
    sentence = OpenSentence()
    for number, line in reading.lines(path):
        columns = _GAP.split(line.strip(" \t\r\n"))
        if columns == [""] or columns[0] == _DOCUMENT_START:
            if sentence.tokens:
                yield _of_document(sentence, split, document)
                sentence = OpenSentence()
            document += columns[0] == _DOCUMENT_START
            continue
        _check_columns(columns, document, path, number)
        sentence.add(columns[0], columns[-1], f"{path}, line {number}", reading.limits)
    if sentence.tokens:
        yield _of_document(sentence, split, document)


def _of_document(sentence: OpenSentence, split: str, document: int) -> Sentence:
    user = f"{split}-{document:04d}"
    return sentence.close(split, user, user)


def _check_columns(columns: list[str], document: int, path: Path, number: int) -> None:
    if document == 0:
        raise CorpusError(f"{path}, line {number}: a sentence before the first {_DOCUMENT_START} line has no user")
    if len(columns) != _COLUMNS:
        raise CorpusError(f"{path}, line {number}: {len(columns)} columns, must be {_COLUMNS} (token POS chunk tag)")
    if not _TAG.fullmatch(columns[-1]):
        raise CorpusError(f"{path}, line {number}: tag {columns[-1]!r} must be O, B-TYPE or I-TYPE")


HELD_OUT_UNITS = ("speeches", "speakers")

_PLAY_SUFFIXES = (".jsonl", ".jsonl.xz", ".jsonl.gz")


@dataclass(frozen=True)
class ShakespeareOptions:
    """How to divide the speeches.

    Attributes:
        held_out: single ``speeches`` (of speakers that also train, as in LEAF), or whole ``speakers``.
        test_fraction: the probability of being held out.
        seed: of the hash that decides.
        split_sentences: whether to split speeches into sentences.
    """

    held_out: str = HELD_OUT_UNITS[0]
    test_fraction: float = 0.1
    seed: int = 0
    split_sentences: bool = True

    def __post_init__(self) -> None:
        if self.held_out not in HELD_OUT_UNITS:
            raise CorpusError(f"--held-out {self.held_out!r} must be one of {', '.join(HELD_OUT_UNITS)}")
        check_fraction(self.test_fraction)


def shakespeare_file(source: Path) -> Path:
    """Return ``source``, or the one edition in that folder.

    Editions share plays, so with two of them a speech would be read twice.

    Raises:
        CorpusError: the folder has no edition, or several.
    """
    if not source.is_dir():
        return source
    editions = sorted(path for path in source.iterdir() if path.name.endswith(_PLAY_SUFFIXES))
    if len(editions) != 1:
        names = ", ".join(path.name for path in editions) or "none"
        raise CorpusError(f"{source}: one edition must be named as --source, a .jsonl file; found {names}")
    return editions[0]


def read_shakespeare(
    source: Path, options: ShakespeareOptions | None = None, reading: Reading | None = None
) -> Iterator[Sentence]:
    """Yield all sentences of one edition.

    A user is ``PLAY: SPEAKER``, or ``SPEAKER`` if the edition has no plays (all First Citizens are then one user). A
    document is a speech.

    Args:
        source: a file, or a folder with one edition.
        options: how to divide the speeches.
        reading: how to treat bad text.

    Raises:
        CorpusError: a row does not fit; the message names file and line.
    """
    reading, options = reading or Reading(), options or ShakespeareOptions()
    return reading.clean(_speeches(shakespeare_file(source), options, reading), options.split_sentences)


def _speeches(path: Path, options: ShakespeareOptions, reading: Reading) -> Iterator[Sentence]:
    for number, (where, values) in enumerate(table_rows("jsonl", path, ["user", "text"], reading), start=1):
        speaker, text, play = (values.get(name) or "" for name in ("user", "text", "play"))
        if not (isinstance(speaker, str) and isinstance(text, str) and isinstance(play, str)):
            raise CorpusError(f"{where}: user, text and play must be text")
        if not speaker.strip():
            reading.note(Note.ROWS_WITHOUT_USER)
            continue
        user = reading.key(f"{play.strip()}: {speaker.strip()}" if play.strip() else speaker.strip())
        unit = user if options.held_out == "speakers" else f"{number} {user}"
        yield Sentence(
            split_by_hash(unit, options.test_fraction, options.seed), user, text, (), None, f"speech {number}"
        )


SPLIT_SENTENCES_TOOL = "spacy"
_LINE_KINDS = frozenset({"conll2003", "iob", "ag-news", "jsonl", "csv", "tsv", "sec-standin", "shakespeare"})
SEC_STANDIN_FILE = "sentences.jsonl"
SEC_STANDIN = TableOptions(text_column="sentence", document_column="doc", split_sentences=False)
"""The columns of the stand-in for the paper's SEC contracts."""


@dataclass(frozen=True)
class RawCorpus:
    """A corpus before preparation.

    Attributes:
        name: of the corpus.
        sentences: starts a new reading at each call.
        has_gold: whether it marks its entities.
        sources: the files that are read, by the name that the manifest gives them.
        settings: what shapes the corpus, for the manifest.
        tools: distributions whose versions go to the manifest.
        reading: how to treat bad text; its notes are those of the last reading.
        preprocessing: changes the text of every sentence after its entities are identified.
    """

    name: str
    sentences: Callable[[], Iterator[Sentence]]
    has_gold: bool
    sources: Mapping[str, Path] = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    reading: Reading = field(default_factory=Reading)
    preprocessing: Preprocessing = field(default_factory=Preprocessing)

    @classmethod
    def from_files(
        cls,
        kind: str,
        name: str,
        read: Callable[[Reading], Iterator[Sentence]],
        files: Iterable[Path] | Mapping[str, Path],
        *,
        cleaning: Cleaning | None = None,
        settings: Settings | None = None,
        has_gold: bool = False,
        splits_sentences: bool = False,
        tools: tuple[str, ...] = (),
    ) -> RawCorpus:
        """Return a corpus that is read from files.

        Args:
            kind: the reader's name.
            name: the corpus's name.
            read: reads all sentences; called anew for every reading.
            files: the files that ``read`` reads, by the name that the manifest gives them (by default their own).
            cleaning: how to treat bad text.
            settings: what shapes the corpus besides, for the manifest; JSON values.
            has_gold: whether the sentences carry their entities.
            splits_sentences: whether ``read`` splits texts into sentences (:meth:`Reading.clean`).
            tools: further distributions whose versions shape the corpus.
        """
        reading = Reading(cleaning or Cleaning())

        def sentences() -> Iterator[Sentence]:
            reading.notes.clear()
            return read(reading)

        return cls(
            name=name,
            sentences=sentences,
            has_gold=has_gold,
            sources=files if isinstance(files, Mapping) else {path.name: path for path in files},
            settings={"kind": kind, **(settings or {}), **reading.cleaning.manifest_settings()},
            tools=(*((SPLIT_SENTENCES_TOOL,) if splits_sentences else ()), *tools),
            reading=reading,
        )

    def check_sources(self) -> None:
        """Refuse a source that is no file, consists of holes, or begins with a line without end, before it is read.

        Raises:
            CorpusError, OSError: the message names the file.
        """
        for path in self.sources.values():
            self.reading.limits.check_stored(path)
            if self.settings.get("kind") in _LINE_KINDS and path.stat().st_size:
                check_beginning(path, self.reading.limits)

    def with_preprocessing(self, preprocessing: Preprocessing) -> RawCorpus:
        """Return the corpus with ``preprocessing``."""
        settings = {**self.settings, **preprocessing.manifest_settings()}
        return replace(self, preprocessing=preprocessing, settings=settings)


def conll2003(source: Path, cleaning: Cleaning | None = None) -> RawCorpus:
    """Return CoNLL-2003 in the folder ``source``."""
    files = conll2003_files(source).values()
    return RawCorpus.from_files(
        "conll2003", "conll2003", partial(read_conll2003, source), files, cleaning=cleaning, has_gold=True
    )


def ag_news(source: Path, options: AgNewsOptions | None = None, cleaning: Cleaning | None = None) -> RawCorpus:
    """Return AG News in a folder or in one file; users are drawn."""
    options = options or AgNewsOptions()
    return RawCorpus.from_files(
        "ag-news",
        "ag_news",
        partial(read_ag_news, source, options),
        ag_news_files(source).values(),
        cleaning=cleaning,
        settings=asdict(options),
        splits_sentences=options.split_sentences,
    )


def sec_standin(source: Path, options: TableOptions = SEC_STANDIN, cleaning: Cleaning | None = None) -> RawCorpus:
    """Return contract clauses by company or contract, from ``sentences.jsonl`` in a folder, or from that file."""
    path = stored_file(source, SEC_STANDIN_FILE) if source.is_dir() else source
    if path is None:
        raise CorpusError(f"{source}: no {SEC_STANDIN_FILE} (or .xz, .gz) in this folder")
    settings = {"test_fraction": options.test_fraction, "seed": options.seed}
    reader = partial(read_table, "jsonl", path, options)
    return RawCorpus.from_files("sec-standin", "sec_standin", reader, [path], cleaning=cleaning, settings=settings)


def shakespeare(source: Path, options: ShakespeareOptions | None = None, cleaning: Cleaning | None = None) -> RawCorpus:
    """Return speeches by speaker, from a file or from the one edition in a folder."""
    options = options or ShakespeareOptions()
    path = shakespeare_file(source)
    return RawCorpus.from_files(
        "shakespeare",
        path.name.split(".")[0],
        partial(read_shakespeare, path, options),
        [path],
        cleaning=cleaning,
        settings=asdict(options),
        splits_sentences=options.split_sentences,
    )


def iob(source: Path, options: IobOptions | None = None, cleaning: Cleaning | None = None) -> RawCorpus:
    """Return a tagged file with a token a line, or a folder of them."""
    options = options or IobOptions()
    return RawCorpus.from_files(
        "iob",
        source.name.split(".")[0],
        partial(read_iob, source, options),
        list(iob_files(source)),
        cleaning=cleaning,
        settings=asdict(options),
        has_gold=True,
    )


def table(kind: str, source: Path, options: TableOptions, cleaning: Cleaning | None = None) -> RawCorpus:
    """Return a ``jsonl``, ``csv``, ``tsv`` or ``parquet`` file with a text and a user column."""
    return RawCorpus.from_files(
        kind,
        source.name.split(".")[0],
        partial(read_table, kind, source, options),
        [source],
        cleaning=cleaning,
        settings=options.manifest_settings(),
        has_gold=options.entities_column is not None,
        splits_sentences=options.split_sentences,
    )


def hugging_face(dataset: HfDataset, options: TableOptions, cleaning: Cleaning | None = None) -> RawCorpus:
    """Return a dataset of Hugging Face's, from the hub or a folder; needs the ``hf`` extra."""
    dataset = dataset.pin_revision()
    return RawCorpus.from_files(
        "hf",
        dataset.name,
        partial(read_hf, dataset, options),
        dataset.files(),
        cleaning=cleaning,
        settings={**dataset.manifest_settings(), **options.manifest_settings()},
        has_gold=options.entities_column is not None,
        splits_sentences=options.split_sentences,
        tools=("datasets",),
    )
