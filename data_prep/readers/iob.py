"""Read tagged files with a token a line: any columns, tabs or spaces, IOB1, IOB2 and IOBES (BILOU) tags, comments.

Real annotation breaks its own scheme now and then. A tag that no scheme allows is read as the likeliest entity: an
extra entity costs no privacy, a missed one would.

>>> mentions_of_tags(["B-PER", "I-PER", "O", "I-LOC"], [(0, 3), (4, 9), (10, 14), (15, 20)])
(Mention(start=0, end=9, label='PER'), Mention(start=15, end=20, label='LOC'))
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from statistics import mode

from fl_sim.data_prep.readers.cleaning import Note, Reading
from fl_sim.data_prep.readers.reader import BY_PLACE, RawCorpus
from fl_sim.data_prep.readers.tables import TRAIN, check_fraction, split_by_hash
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.textfiles import check_record, decoded_lines

DEFAULT_SENTENCES_PER_USER = 15

_SAMPLE_TOKENS = 2_000
_SAMPLE_LINES = 200_000
_MOST_COLUMNS = 100
_BYTES_PER_TOKEN = 100  # what a token costs in memory besides its characters
_MOST_BAD_TAGS = 0.1
_UNKNOWN = "UNKNOWN"
_OUTSIDE = frozenset({"", "O", "o", "0", "-", "_"})
_LOOSE_TAG = re.compile(r"(?:([A-Za-z])-)?(\S*)")
_STRICT_TAG = re.compile(r"O|[BIESLU]-\S+")
_GAP = re.compile(r"[ \t]+")
_COMMENT = re.compile(r"# \S+ = ")
_DOCUMENT = re.compile(r"-DOCSTART-|# newdoc\b")
_NUMBER = re.compile(r"\d+([-.]\d+)?")
_NOT_DATA = re.compile(r"licen[cs]e|readme|copying|\.md$|^\.", re.IGNORECASE)
_PACKED = (".xz", ".gz")
_SPLIT_WORDS = {
    "train": {"train", "training"},
    "validation": {"dev", "devel", "valid", "validation", "testa"},
    "test": {"test", "testb"},
}
_WORDS_OF_A_NAME = re.compile(r"[a-z]+")


@dataclass(frozen=True)
class IobReader:
    """Any tagged file with a token a line (CoNLL, IOB1, IOB2, IOBES).

    A user is a document or a run of sentences, named after the file and numbered (``wikigold-0001``). The text of a
    sentence is its tokens joined by single spaces.

    Attributes:
        source: A tagged file with a token a line, or a folder of them (.xz and .gz too).
        token_column: Counted from 1, or from the end with -1, -2, …; by default the first column, unless it numbers the
            tokens.
        tag_column: Counted the same way; by default the last column that holds nothing but tags.
        sentences_per_user: N sentences in a row are a user; by default a document is, where the file marks them
            (-DOCSTART- or # newdoc), else 15 sentences.
        test_fraction: The share of users held out, where file names do not tell the splits.
        seed: The seed of the hash that holds them out.
    """

    source: Path
    token_column: int | None = None
    tag_column: int | None = None
    sentences_per_user: int | None = None
    test_fraction: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("`token_column`", self.token_column), ("`tag_column`", self.tag_column)):
            if value == 0:
                raise CorpusError(f"{name} 0 must be 1 or more, or negative to count from the end")
        if self.sentences_per_user is not None and self.sentences_per_user < 1:
            raise CorpusError(f"`sentences_per_user` {self.sentences_per_user} must be at least 1")
        check_fraction(self.test_fraction)

    def read(self) -> RawCorpus:
        files = iob_files(self.source)

        def read(reading: Reading) -> Iterator[Sentence]:
            for path, split in files.items():
                yield from self.sentences_of(path, split, reading)

        settings = {name: value for name, value in asdict(self).items() if name != "source"} | {"warnings": [BY_PLACE]}
        return RawCorpus.from_files(
            "iob", self.source.name.split(".")[0], read, list(files), settings=settings, has_gold=True
        )

    def sentences_of(self, path: Path, split: str | None, reading: Reading | None = None) -> Iterator[Sentence]:
        """Yield the sentences of one file, in ``split`` or where a hash of the user's key puts them.

        Raises:
            CorpusError: no column holds tags, or fewer than nine of ten tags are tags; the message names file and line.
        """
        reading = reading or Reading()
        return reading.clean(self._sentences(path, split, reading))

    def _sentences(self, path: Path, split: str | None, reading: Reading) -> Iterator[Sentence]:
        layout = self._layout(path)
        name = path.name.removesuffix(path.suffix) if path.suffix in _PACKED else path.name
        by_document = layout.has_documents and self.sentences_per_user is None
        per_user = self.sentences_per_user or DEFAULT_SENTENCES_PER_USER
        for count, (document, sentence) in enumerate(_raw_sentences(path, layout, reading)):
            user = reading.key(f"{name}-{document if by_document else count // per_user + 1:04d}")
            yield sentence.close(split or split_by_hash(user, self.test_fraction, self.seed), user)

    def _layout(self, path: Path) -> _Layout:
        """Return the layout that the first lines of a file show; :class:`CorpusError` if they show no tags."""
        lines, numbers, has_documents = _sample(path)
        if not lines:
            return _Layout(has_documents=has_documents)
        tabs = sum("\t" in line for line in lines) > len(lines) / 2
        rows = [_columns(line, tabs) for line in lines]
        tag = _find_tags(rows) if self.tag_column is None else _index(self.tag_column)
        if tag is None:
            raise CorpusError(
                f"{path}, line {numbers[0]}: no column holds tags (O, B-TYPE, I-TYPE, ...) in the first {len(lines)} "
                "lines of tokens; is it a tagged file?"
            )
        bad = [n for n, row in zip(numbers, rows, strict=True) if not _STRICT_TAG.fullmatch(_cell(row, tag))]
        if len(bad) > _MOST_BAD_TAGS * len(rows):
            raise CorpusError(
                f"{path}, line {bad[0]}: column {self.tag_column} (`tag_column`) must hold tags (O, B-TYPE, I-TYPE, "
                f"...); {len(bad)} of the first {len(rows)} lines of tokens have something else there"
            )
        numbered = rows[0][0] in ("0", "1") and all(_NUMBER.fullmatch(row[0]) for row in rows)
        token = int(numbered) if self.token_column is None else _index(self.token_column)
        return _Layout(tabs, token, tag, numbered, has_documents, mode(map(len, rows)))


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


def mentions_of_tags(tags: Sequence[str], spans: Sequence[tuple[int, int]]) -> tuple[Mention, ...]:
    """Return the entities of a sentence.

    An entity begins at ``B-`` and ``S-`` (``U-``), and at ``I-`` or ``E-`` (``L-``) after another type, after ``O`` or
    after the end of an entity. This reads every scheme, and malformed tags as well as possible. ``spans`` are the
    characters of the tokens, each of which has one tag.
    """
    mentions: list[Mention] = []
    open_label = ""
    for tag, (start, end) in zip(tags, spans, strict=True):
        prefix, label = _parse(tag)
        if not label:
            open_label = ""
            continue
        if prefix in "IEL" and label == open_label:
            mentions[-1] = Mention(mentions[-1].start, end, label)
        else:
            mentions.append(Mention(start, end, label))
        open_label = label if prefix in "BI" else ""
    return tuple(mentions)


@dataclass(frozen=True)
class _Layout:
    """The columns of a file's tokens and tags, counted from 0, and the number of columns of most lines."""

    tabs: bool = False
    token: int = 0
    tag: int = -1
    numbered: bool = False
    has_documents: bool = False
    width: int = 0


@dataclass
class OpenSentence:
    """Collects tokens and tags until a blank line ends the sentence."""

    tokens: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    length: int = 0

    def add(self, token: str, tag: str, where: str) -> None:
        """Add a token with its tag; raise :class:`CorpusError` if the sentence does not end."""
        self.length += len(token) + _BYTES_PER_TOKEN
        check_record(where, self.length)
        self.tokens.append(token)
        self.tags.append(tag)

    def close(self, split: str, user: str) -> Sentence:
        """Return the sentence with the entities of its tags."""
        ends = list(itertools.accumulate(len(token) + 1 for token in self.tokens))
        spans = [(end - 1 - len(token), end - 1) for token, end in zip(self.tokens, ends, strict=True)]
        return Sentence(split, user, " ".join(self.tokens), mentions_of_tags(self.tags, spans))


def _raw_sentences(path: Path, layout: _Layout, reading: Reading) -> Iterator[tuple[int, OpenSentence]]:
    """Yield every sentence with the number of its document, from 1; sentences before the first mark form one, too."""
    document = 1
    empty = True
    current = OpenSentence()
    for number, line in decoded_lines(path):
        text = line.rstrip("\r\n")
        mark = _DOCUMENT.match(text) is not None
        if mark or not text or text.isspace():
            if current.tokens:
                yield document, current
                current, empty = OpenSentence(), False
            if mark and not empty:
                document, empty = document + 1, True
            continue
        columns = _columns(text, layout.tabs)
        tag = _cell(columns, layout.tag)
        whole = len(columns) == layout.width and not text.startswith("# ")
        if text[0] == "#" and (_COMMENT.match(text) or not (whole or _STRICT_TAG.fullmatch(tag))):
            continue  # "# text = ..." is a comment, "# O" is the token #, "#Oslo LOC" is one with a bad tag
        if layout.numbered and not columns[0].isdigit():
            continue  # "2-3" is a word whose parts follow, "8.1" is not in the text
        token = _cell(columns, layout.token)
        if not token:
            reading.note(Note.LINES_WITHOUT_TOKEN)
            continue
        if not tag:
            reading.note(Note.LINES_WITHOUT_TAG)
        current.add(token, tag or "O", f"{path}, line {number}")
    if current.tokens:
        yield document, current


def _sample(path: Path) -> tuple[list[str], list[int], bool]:
    """Return the first lines of tokens, their numbers, and whether the file marks documents."""
    lines: list[str] = []
    numbers: list[int] = []
    has_documents = False
    for number, line in itertools.islice(decoded_lines(path), _SAMPLE_LINES):
        text = line.strip("\r\n")
        if _DOCUMENT.match(text):
            has_documents = True
        elif len(lines) < _SAMPLE_TOKENS and text.strip() and not text.startswith("# "):
            lines.append(text)
            numbers.append(number)
        if has_documents and len(lines) == _SAMPLE_TOKENS:
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


@lru_cache(4096)
def _parse(tag: str) -> tuple[str, str]:
    """Return prefix and type of a tag, ``O`` and none outside of entities; anything that is no tag is inside one."""
    if tag in _OUTSIDE:
        return "O", ""
    match = _LOOSE_TAG.match(tag)
    prefix, label = ((match[1] or "I").upper(), match[2]) if match else ("I", "")
    return prefix if prefix in "BIESLU" else "I", label or _UNKNOWN


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
