r"""Labelled texts for private representations: DPNR's AG set, AG News and SST-2.

* DPNR's own AG set (Lyu, He and Li 2020): topic of a news item; private are five persons' names, present or not.
  Splits are the file's.
* AG News (Zhang, Zhao and LeCun 2015) and SST-2 (Socher et al. 2013): no private attribute. A seed draws ``rows``
  training rows, unless they are the first of the file, and splits off the validation share, as in the study of DPNR
  (30,000 rows, 95 : 5). Test rows are the file's.

>>> from tempfile import TemporaryDirectory
>>> with TemporaryDirectory() as folder:
...     text = f"\n{_SEPARATOR}\n".join(["2\tBush met Blair\t0 3", "1\tOil rose\t", "0\tKerry spoke\t1"])
...     _ = Path(folder, "ag_data.txt").write_text(text)
...     train = read_dpnr_ag(Path(folder)).train
>>> train.texts, train.labels.tolist(), train.private.tolist()
(('Bush met Blair',), [2], [[1, 0, 0, 1, 0]])

The words of a prepared corpus's entities, to be dropped before the encoder.

>>> words = entity_words(Corpus.open("bundled"))
>>> len(words) > 1000, all(word == word.lower() for word in words)
(True, True)
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fl_sim.data_prep.readers.prepared_corpus import is_preprocessed
from fl_sim.data_prep.readers.raw_corpora import CLASSES as AG_CLASSES
from fl_sim.data_prep.readers.raw_corpora import AgNewsReader
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.textfiles import decoded_lines
from fl_sim.research.representations.corpora.labelled import (
    SPLITS,
    TEST,
    TRAIN,
    VALIDATION,
    LabelledData,
    LabelledSplit,
    corpus_file,
    cut,
    shuffled,
)

RowSelection = Literal["drawn", "first"]
"""Which training rows: drawn by the seed, or the first of the file."""

DPNR_TOPICS = ("topic 0", "topic 1", "topic 2", "topic 3")  # the file has numbers alone
AG_PERSONS = ("Bush", "Kerry", "Arafat", "Blair", "Sharon")
SENTIMENTS = ("negative", "positive")
VALIDATION_SHARE = 0.05
_DPNR_FILE = "ag_data.txt"
_SEPARATOR = "===================="


def read_dpnr_ag(source: Path) -> LabelledData:
    """Return DPNR's AG set of the folder ``source``: ``ag_data.txt`` (or packed), lines ``label<TAB>text<TAB>private``.

    Raises:
        CorpusError: for a malformed line; names file and line.
    """
    path = corpus_file(source, _DPNR_FILE)
    splits: dict[str, LabelledSplit] = {}
    rows: list[tuple[str, int, list[int]]] = []
    for number, line in decoded_lines(path):
        if line.strip() == _SEPARATOR:
            if len(splits) == len(SPLITS):
                raise CorpusError(f"{path}, line {number}: a fourth split, must be {len(SPLITS)}")
            splits[SPLITS[len(splits)]] = _persons_split(rows)
            rows = []
        elif line.strip():
            rows.append(_dpnr_row(line, f"{path}, line {number}"))
    if rows and len(splits) < len(SPLITS):
        splits[SPLITS[len(splits)]] = _persons_split(rows)
    if set(splits) != set(SPLITS):
        raise CorpusError(f"{path}: {len(splits)} splits, must be {len(SPLITS)}")
    return LabelledData("dpnr-ag", DPNR_TOPICS, AG_PERSONS, splits)


def read_labelled_ag_news(
    source: Path, seed: int, rows: int | None = None, selection: RowSelection = "drawn"
) -> LabelledData:
    """Return AG News of the folder ``source``: title and description as one text, the topic as class."""
    training: list[tuple[str, int]] = []
    test: list[tuple[str, int]] = []
    for sentence in AgNewsReader(source, text="title+description").read().sentences():
        row = (sentence.text, AG_CLASSES.index(str(sentence.target)))
        (training if sentence.split == TRAIN else test).append(row)
    if not test:
        raise CorpusError(f"{source}: no test.csv (or .xz, .gz) in this folder")
    return _divide(_Files("ag-news", AG_CLASSES, training, test), seed, rows, selection)


def read_sst2(source: Path, seed: int, rows: int | None = None, selection: RowSelection = "drawn") -> LabelledData:
    """Return SST-2 of ``source``: ``train.tsv`` and ``test.tsv`` (or packed), lines ``label<TAB>sentence``."""
    training, test = (_tsv(corpus_file(source, f"{name}.tsv")) for name in (TRAIN, TEST))
    return _divide(_Files("sst2", SENTIMENTS, training, test), seed, rows, selection)


TextReader = Callable[[Path, int, int | None, RowSelection], LabelledData]
TEXT_READERS: dict[str, TextReader] = {
    "ag-news": read_labelled_ag_news,
    "sst2": read_sst2,
}
"""Readers of texts without private attributes, by name: of a folder, a seed, the number of training rows, and which."""


@dataclass(frozen=True)
class _Files:
    """The texts of a corpus with their classes, as its files have them."""

    name: str
    classes: tuple[str, ...]
    training: Sequence[tuple[str, int]]
    test: Sequence[tuple[str, int]]


def _divide(file: _Files, seed: int, rows: int | None, selection: RowSelection) -> LabelledData:
    """Return ``rows`` of the training rows in an order that ``seed`` draws, the last of them as validation split."""
    count = len(file.training)
    if rows is not None and not 2 <= rows <= count:
        raise CorpusError(f"rows {rows} must lie in [2, {count}], the training rows of {file.name}")
    from_rows = count if rows is None or selection == "drawn" else rows
    order = shuffled(from_rows, seed, f"{file.name} rows")
    train, validation = cut(order[:rows], (1 - VALIDATION_SHARE, VALIDATION_SHARE))
    examples = _text_split(file.training)
    splits = {TRAIN: examples.take(train), VALIDATION: examples.take(validation), TEST: _text_split(file.test)}
    unused = examples.take(np.setdiff1d(np.arange(count), order[:rows]))
    return LabelledData(file.name, file.classes, (), splits, unused=unused.texts)


def _text_split(rows: Sequence[tuple[str, int]]) -> LabelledSplit:
    labels = np.array([label for _, label in rows], dtype=np.int64)
    return LabelledSplit(tuple(text for text, _ in rows), labels, np.zeros((len(rows), 0), dtype=np.int64))


def _persons_split(rows: Sequence[tuple[str, int, list[int]]]) -> LabelledSplit:
    private = np.zeros((len(rows), len(AG_PERSONS)), dtype=np.int64)
    for row, (_, _, present) in enumerate(rows):
        private[row, present] = 1
    return LabelledSplit(tuple(r[0] for r in rows), np.array([r[1] for r in rows], dtype=np.int64), private)


def _dpnr_row(line: str, where: str) -> tuple[str, int, list[int]]:
    cells = line.rstrip("\n").split("\t")
    if len(cells) != 3:
        raise CorpusError(f"{where}: {len(cells)} columns, must be 3 (label, text, private)")
    label = _number(cells[0], len(DPNR_TOPICS), "label", where)
    return cells[1].strip(), label, [_number(word, len(AG_PERSONS), "private", where) for word in cells[2].split()]


def _number(cell: str, count: int, name: str, where: str) -> int:
    if not (cell.isascii() and cell.isdigit() and int(cell) < count):
        raise CorpusError(f"{where}: {name} is {cell[:30]!r}, must be a number from 0 to {count - 1}")
    return int(cell)


def _tsv(path: Path) -> list[tuple[str, int]]:
    rows = []
    for number, line in decoded_lines(path):
        label, tab, text = line.rstrip("\r\n").partition("\t")
        if number == 1 and label == "label":
            continue
        if not tab:
            raise CorpusError(f"{path}, line {number}: no tab, must be label<TAB>sentence")
        rows.append((text.strip(), _number(label, len(SENTIMENTS), "label", f"{path}, line {number}")))
    return rows


def entity_words(corpus: Corpus) -> frozenset[str]:
    """Return every word of every mention in any split, in lower case and without punctuation marks at its ends.

    Words in lower case beside others with a capital (the "of" of "Bank of England") are left out: they identify no
    entity. Those of preprocessed text, where "Kent's" became "kents", are of the entities' keys, too.
    """
    entity_vocabulary: set[str] = set()
    for split in corpus.splits:
        if is_preprocessed(corpus):
            entity_vocabulary.update(word for key in corpus.entities(split)["entity"] for word in key.split())
        texts = corpus.texts(split).to_pylist()
        mentions = corpus.mentions(split)
        columns = (mentions.column(name).to_pylist() for name in ("sentence", "start", "end"))
        for sentence, start, end in zip(*columns, strict=True):
            words = [word.strip(string.punctuation) for word in texts[sentence][start:end].split()]
            cased = any(word != word.lower() for word in words)
            named = (word for word in words if word and not (cased and word.isalpha() and word.islower()))
            entity_vocabulary.update(word.lower() for word in named)
    return frozenset(entity_vocabulary)
