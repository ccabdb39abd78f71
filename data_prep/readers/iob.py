"""Read tagged files with a token a line: any columns, tabs or spaces, IOB1, IOB2 and IOBES (BILOU) tags, comments.

Real annotation breaks its own scheme now and then. A tag that the scheme does not allow is read as the likeliest entity
and counted: an extra entity costs no privacy, a missed one would.

>>> mentions_of_tags(["B-PER", "I-PER", "O", "I-LOC"], [(0, 3), (4, 9), (10, 14), (15, 20)])
(Mention(start=0, end=9, label='PER'), Mention(start=15, end=20, label='LOC'))
>>> count_malformed(["O", "I-LOC"], "iob2")
1
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from fl_sim.data_prep.readers.cleaning import Note, Reading
from fl_sim.data_prep.readers.tables import TRAIN, check_fraction, split_by_hash
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.textfiles import SourceLimits

SCHEMES = ("auto", "iob1", "iob2", "iobes")
DEFAULT_SENTENCES_PER_USER = 15

_SAMPLE_TOKENS = 2_000
_SAMPLE_LINES = 200_000
_SAMPLE_CHARACTERS = 1 << 24
_MOST_COLUMNS = 100
_BYTES_PER_TOKEN = 100  # what a token costs in memory besides its characters
_MOST_BAD_TAGS = 0.1
_UNKNOWN = "UNKNOWN"
_OUTSIDE = frozenset({"", "O", "o", "0", "-", "_"})
_TAG = re.compile(r"(?:([A-Za-z])-)?(\S*)")
_STRICT_TAG = re.compile(r"O|[BIESLU]-\S+")
_ALLOWED = {"iob1": "BIO", "iob2": "BIO", "iobes": "BIESLUO"}
_GAP = re.compile(r"[ \t]+")
_COMMENT = re.compile(r"# \S+ = ")
_NEW_DOCUMENT = re.compile(r"# newdoc\b")
_DOCUMENT_START = "-DOCSTART-"
_NOT_DATA = re.compile(r"licen[cs]e|readme|copying|\.md$|^\.", re.IGNORECASE)
_PACKED = (".xz", ".gz")
_SPLIT_WORDS = {
    "train": {"train", "training"},
    "validation": {"dev", "devel", "valid", "validation", "testa"},
    "test": {"test", "testb"},
}
_WORDS_OF_A_NAME = re.compile(r"[a-z]+")


@dataclass(frozen=True)
class IobOptions:
    """How to read tagged files.

    Attributes:
        token_column: counted from 1, or from the end with -1, -2, ...; None: the first column, unless it numbers the
            tokens.
        tag_column: counted the same way; None: the last column that holds nothing but tags.
        scheme: decides which tags count as malformed; ``auto`` detects it from the file.
        sentences_per_user: so many consecutive sentences are a user; None: documents are, if the file marks them
            (``-DOCSTART-`` or ``# newdoc``), else 15 consecutive sentences.
        test_fraction: share of the users held out if the file names do not name the splits.
        seed: of the hash that holds them out.
    """

    token_column: int | None = None
    tag_column: int | None = None
    scheme: str = "auto"
    sentences_per_user: int | None = None
    test_fraction: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("--token-column", self.token_column), ("--tag-column", self.tag_column)):
            if value == 0:
                raise CorpusError(f"{name} 0 must be 1 or more, or negative to count from the end")
        if self.scheme not in SCHEMES:
            raise CorpusError(f"--scheme {self.scheme!r} must be one of {', '.join(SCHEMES)}")
        if self.sentences_per_user is not None and self.sentences_per_user < 1:
            raise CorpusError(f"--sentences-per-user {self.sentences_per_user} must be at least 1")
        check_fraction(self.test_fraction)


def iob_files(source: Path) -> dict[Path, str | None]:
    """Return file → split, of one file or of the files of a folder, sorted by name.

    Licences, readme files, hidden files and compressed copies are skipped. If the names contain "train" and another
    split, they decide the splits (dev, valid and testa are validation; a name without a split is train). Otherwise all
    splits are None.

    Raises:
        CorpusError: the folder has no tagged file.
    """
    files = [source]
    if source.is_dir():
        files = sorted(path for path in source.iterdir() if path.is_file() and not _NOT_DATA.search(path.name))
        files = [path for path in files if path.suffix not in _PACKED or path.with_suffix("") not in files]
    if not files:
        raise CorpusError(f"{source}: no tagged file in this folder")
    splits = {path: _split_of_name(path.name) for path in files}
    if TRAIN not in splits.values() or len(set(splits.values()) - {None}) == 1:
        return dict.fromkeys(files)
    return {path: split or TRAIN for path, split in splits.items()}


def read_iob(source: Path, options: IobOptions | None = None, reading: Reading | None = None) -> Iterator[Sentence]:
    """Yield all sentences of a tagged file or of a folder of tagged files.

    A user is a document or a run of sentences, named after the file and numbered (``wikigold-0001``). The text of a
    sentence is its tokens joined by single spaces.

    Args:
        source: a file or a folder.
        options: how to read it.
        reading: how to treat bad text.

    Raises:
        CorpusError: no column of a file holds tags, or fewer than nine of ten tags are tags; the message names file and
            line.
    """
    reading, options = reading or Reading(), options or IobOptions()
    for path, split in iob_files(source).items():
        yield from reading.clean(_file_sentences(path, split, options, reading))


def read_iob_file(path: Path, split: str, options: IobOptions | None = None) -> Iterator[Sentence]:
    """Yield the sentences of one tagged file, all in ``split``."""
    reading = Reading()
    return reading.clean(_file_sentences(path, split, options or IobOptions(), reading))


def mentions_of_tags(tags: Sequence[str], spans: Sequence[tuple[int, int]]) -> tuple[Mention, ...]:
    """Return the entities of a sentence.

    An entity begins at ``B-`` and ``S-`` (``U-``), and at ``I-`` or ``E-`` (``L-``) after another type, after ``O`` or
    after the end of an entity. This reads every scheme, and malformed tags as well as possible.

    Args:
        tags: one per token.
        spans: the tokens' characters.
    """
    mentions: list[Mention] = []
    open_label = ""
    for tag, (start, end) in zip(tags, spans, strict=True):
        if tag == "O":
            open_label = ""
            continue
        prefix, label, _ = _parse(tag)
        if not label:
            open_label = ""
        elif prefix in "IEL" and label == open_label:
            mentions[-1] = Mention(mentions[-1].start, end, label)
        else:
            mentions.append(Mention(start, end, label))
        open_label = label if prefix in "BI" else ""
    return tuple(mentions)


def count_malformed(tags: Iterable[str], scheme: str) -> int:
    """Return how many of a sentence's tags the scheme (iob1, iob2 or iobes) does not allow at their place."""
    malformed = 0
    before, before_label = "O", ""
    allowed = _ALLOWED[scheme]
    for tag in [*tags, "O"]:
        prefix, label, regular = _parse(tag)
        same = label == before_label
        if not regular or prefix not in allowed:
            malformed += 1
        elif scheme == "iobes":
            goes_on = prefix in "IEL" and same and before in "BI"
            malformed += (prefix in "IEL" or before in "BI") and not goes_on
        elif scheme == "iob2":
            malformed += prefix == "I" and not same
        else:
            malformed += prefix == "B" and not same
        before, before_label = prefix, label
    return malformed


@dataclass(frozen=True)
class _Layout:
    """The columns of a file's tokens and tags, counted from 0."""

    tabs: bool = False
    token: int = 0
    tag: int = -1
    numbered: bool = False
    scheme: str = "iob2"
    has_documents: bool = False


@dataclass
class OpenSentence:
    """Collects tokens and tags until a blank line ends the sentence."""

    tokens: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    length: int = 0

    def add(self, token: str, tag: str, where: str, limits: SourceLimits) -> None:
        """Add a token with its tag; raise :class:`CorpusError` if the sentence does not end."""
        self.length += len(token) + _BYTES_PER_TOKEN
        limits.check_record(where, self.length)
        self.tokens.append(token)
        self.tags.append(tag)

    def close(self, split: str, user: str, document: str | None) -> Sentence:
        ends = list(itertools.accumulate(len(token) + 1 for token in self.tokens))
        spans = [(end - 1 - len(token), end - 1) for token, end in zip(self.tokens, ends, strict=True)]
        return Sentence(split, user, " ".join(self.tokens), mentions_of_tags(self.tags, spans), None, document)


def _file_sentences(path: Path, split: str | None, options: IobOptions, reading: Reading) -> Iterator[Sentence]:
    layout = _layout(path, options, reading)
    name = path.name.removesuffix(path.suffix) if path.suffix in _PACKED else path.name
    by_document = layout.has_documents and options.sentences_per_user is None
    per_user = options.sentences_per_user or DEFAULT_SENTENCES_PER_USER
    for count, (document, current) in enumerate(_raw_sentences(path, layout, reading)):
        number = document if by_document else count // per_user + 1
        user = reading.key(f"{name}-{number:04d}")
        if any(tag != "O" for tag in current.tags):
            reading.note(Note.MALFORMED_TAGS, count_malformed(current.tags, layout.scheme))
        where = split or split_by_hash(user, options.test_fraction, options.seed)
        yield current.close(where, user, f"{name} {document}" if layout.has_documents else None)


def _raw_sentences(path: Path, layout: _Layout, reading: Reading) -> Iterator[tuple[int, OpenSentence]]:
    """Yield every sentence with the number of its document, from 1; sentences before the first mark form one, too."""
    document = 1
    empty = True
    current = OpenSentence()
    for number, line in reading.lines(path):
        text = line.rstrip("\r\n")
        blank = not text or text.isspace()
        mark = not blank and text[0] in "-#" and _is_document_mark(text)
        if blank or mark:
            if current.tokens:
                yield document, current
                current, empty = OpenSentence(), False
            if mark and not empty:
                document, empty = document + 1, True
            continue
        columns = _columns(text, layout.tabs)
        tag = _cell(columns, layout.tag)
        if text[0] == "#" and _is_comment(text, tag):
            continue
        if layout.numbered and not columns[0].isdigit():
            continue  # "2-3" is a word whose parts follow, "8.1" is not in the text
        token = _cell(columns, layout.token)
        if not token:
            reading.note(Note.LINES_WITHOUT_TOKEN)
            continue
        if not tag:
            reading.note(Note.LINES_WITHOUT_TAG)
        current.add(token, tag or "O", f"{path}, line {number}", reading.limits)
    if current.tokens:
        yield document, current


def _layout(path: Path, options: IobOptions, reading: Reading) -> _Layout:
    """Return the layout that the first lines of a file show; :class:`CorpusError` if they show no tags."""
    lines, numbers, has_documents = _sample(path, reading)
    if not lines:
        return _Layout(has_documents=has_documents)
    tabs = sum("\t" in line for line in lines) > len(lines) / 2
    rows = [_columns(line, tabs) for line in lines]
    tag = _find_tags(rows) if options.tag_column is None else _index(options.tag_column)
    if tag is None:
        raise CorpusError(
            f"{path}, line {numbers[0]}: no column holds tags (O, B-TYPE, I-TYPE, ...) in the first {len(lines)} lines "
            "of tokens; is it a tagged file?"
        )
    tags = [_cell(row, tag) for row in rows]
    bad = [number for number, value in zip(numbers, tags, strict=True) if not _STRICT_TAG.fullmatch(value)]
    if len(bad) > _MOST_BAD_TAGS * len(rows):
        raise CorpusError(
            f"{path}, line {bad[0]}: column {options.tag_column} (--tag-column) must hold tags (O, B-TYPE, I-TYPE, "
            f"...); {len(bad)} of the first {len(rows)} lines of tokens have something else there"
        )
    numbered = rows[0][0] in ("0", "1") and all(re.fullmatch(r"\d+([-.]\d+)?", row[0]) for row in rows)
    token = int(numbered) if options.token_column is None else _index(options.token_column)
    scheme = _find_scheme(tags) if options.scheme == "auto" else options.scheme
    return _Layout(tabs, token, tag, numbered, scheme, has_documents)


def _sample(path: Path, reading: Reading) -> tuple[list[str], list[int], bool]:
    """Return the first lines of tokens, their numbers, and whether the file marks documents."""
    lines: list[str] = []
    numbers: list[int] = []
    has_documents, characters = False, 0
    for number, line in Reading(reading.cleaning).lines(path):
        text = line.strip("\r\n")
        if _is_document_mark(text):
            has_documents = True
            if len(lines) == _SAMPLE_TOKENS:
                return lines, numbers, True
        elif len(lines) < _SAMPLE_TOKENS and text.strip() and not text.startswith("# "):
            lines.append(text)
            numbers.append(number)
        characters += len(line)
        if number == _SAMPLE_LINES or characters > _SAMPLE_CHARACTERS:
            break
    return lines, numbers, has_documents


def _find_tags(rows: list[list[str]]) -> int | None:
    """Return the last column in which nine of ten cells are tags, preferably one with entities."""
    candidates = []
    for column in [-1, *range(min(max(map(len, rows)), _MOST_COLUMNS))]:
        cells = [_cell(row, column) for row in rows]
        bad = sum(not _STRICT_TAG.fullmatch(cell) for cell in cells)
        if bad <= _MOST_BAD_TAGS * len(cells):
            candidates.append((any(cell != "O" for cell in cells), column))
    return max(candidates)[1] if candidates else None


def _find_scheme(tags: Iterable[str]) -> str:
    """Return iobes if any tag is of it; else decide by the first tags of entities that follow none of their type."""
    opened_with = {"B": 0, "I": 0}
    before = ""
    for tag in tags:
        prefix, label, _ = _parse(tag)
        if prefix in "ESLU":
            return "iobes"
        if label and label != before:
            opened_with[prefix] += 1
        before = label
    return "iob1" if opened_with["I"] > opened_with["B"] else "iob2"


@lru_cache(4096)
def _parse(tag: str) -> tuple[str, str, bool]:
    """Return prefix and type of a tag (``O`` and none outside of entities), and whether it is well formed.

    Anything that is no tag counts as inside an entity.
    """
    if tag in _OUTSIDE:
        return "O", "", tag == "O"
    match = _TAG.match(tag)
    prefix, label = ((match[1] or "I").upper(), match[2]) if match else ("I", "")
    return prefix if prefix in "BIESLU" else "I", label or _UNKNOWN, _STRICT_TAG.fullmatch(tag) is not None


def _is_document_mark(text: str) -> bool:
    return text.startswith(_DOCUMENT_START) or (text.startswith("# ") and _NEW_DOCUMENT.match(text) is not None)


def _is_comment(text: str, tag: str) -> bool:
    """Return whether a line that begins with # holds no token: "# text = ..." is a comment, "# O" is the token #."""
    return _COMMENT.match(text) is not None or not _STRICT_TAG.fullmatch(tag)


def _columns(line: str, tabs: bool) -> list[str]:
    return line.split("\t") if tabs else _GAP.split(line.strip(" \t"))


def _cell(columns: list[str], index: int) -> str:
    """Return the text of a column without white space around it; empty if the line has no such column."""
    try:
        return columns[index].strip()
    except IndexError:
        return ""


def _index(column: int) -> int:
    return column - 1 if column > 0 else column


def _split_of_name(name: str) -> str | None:
    words = set(_WORDS_OF_A_NAME.findall(name.lower()))
    return next((split for split, named in _SPLIT_WORDS.items() if words & named), None)
