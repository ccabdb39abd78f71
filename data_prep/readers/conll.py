"""Read the four-column files of CoNLL-2003: documents are users, gold tags are the entities.

Tjong Kim Sang and De Meulder (2003), "Introduction to the CoNLL-2003 shared task".

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "eng.train"
...     _ = path.write_text("-DOCSTART- -X- -X- O\\n\\nAda NNP I-NP I-PER\\nleft VBD I-VP O\\n")
...     [(s.user, s.text, s.mentions) for s in read_conll2003(Path(folder))]
[('train-0001', 'Ada left', (Mention(start=0, end=3, label='PER'),))]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fl_sim.data_prep.readers.cleaning import Reading
from fl_sim.data_prep.readers.iob import OpenSentence
from fl_sim.data_prep.records import CorpusError, Sentence

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
    files = {}
    for name, split in SPLIT_OF_FILE.items():
        candidates = [source / f"{name}{suffix}" for suffix in ("", ".xz", ".gz")]
        path = next((path for path in candidates if path.is_file()), None)
        if path is not None:
            files[split] = path
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
