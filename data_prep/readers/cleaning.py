"""Clean bad text: what is replaced, cut, dropped or kept, and how it is counted. This module alone decides.

| in the source | becomes | counted as |
|---|---|---|
| control characters but tab, line feed, carriage return (NUL, escape, C1, ...) | spaces | ``control_characters`` |
| a lone surrogate (JSON can write one, UTF-8 cannot) | U+FFFD | ``lone_surrogates`` |
| bytes that are no UTF-8 | an error with file and line; U+FFFD if ``bad_bytes`` is ``replace`` | ``bad_bytes`` |
| a text of white space alone, or none | dropped | ``blank_texts`` |
| a sentence of more than ``max_characters`` | cut at white space, never inside an entity | ``long_sentences`` |
| an entity of control characters alone | dropped, its sentence stays | ``blank_entities`` |
| a row without a user | dropped | ``rows_without_user`` |
| a row whose id came before in its source | dropped | ``repeated_ids`` |
| a tag that its scheme does not allow | read as the likeliest entity | ``malformed_tags`` |
| a line of a tagged file without a tag | a token outside of entities | ``lines_without_tag`` |
| a line of a tagged file without a token | dropped | ``lines_without_token`` |

Everything else is kept: right-to-left text and its direction marks, emoji and their joiners, combining marks, any white
space inside a sentence. A character is replaced by one character, so the spans of entities stay valid.

>>> reading = Reading()
>>> rows = [Sentence("train", "ann", "Dear\x07Ada. I am well.", ()), Sentence("train", "ann", " ", ())]
>>> [sentence.text for sentence in reading.clean(rows, split_sentences=True)]
['Dear Ada.', 'I am well.']
>>> dict(reading.notes)
{'control_characters': 1, 'blank_texts': 1}
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from fl_sim.data_prep.readers.cutting import cut, cut_into_sentences
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.source_limits import SourceLimits
from fl_sim.data_prep.store.textfiles import decoded_lines

Notes = Counter[str]
"""Counts of :class:`Note` while a corpus is read, for the manifest."""

BAD_BYTES = ("refuse", "replace")
DEFAULT_MAX_CHARACTERS = 10_000
_LEAST_MAX_CHARACTERS = 100

_REPLACEMENT = "\ufffd"
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_LAST_GAP = re.compile(r"\s(?=\S*\Z)")
_JOINER = "\u200d"
_LONGEST_CLUSTER = 64


class Note(StrEnum):
    """Problems that are counted and not refused. Texts, rows, sentences or lines are counted, never characters."""

    CONTROL_CHARACTERS = "control_characters"
    LONE_SURROGATES = "lone_surrogates"
    BAD_BYTES = "bad_bytes"
    BLANK_TEXTS = "blank_texts"
    LONG_SENTENCES = "long_sentences"
    BLANK_ENTITIES = "blank_entities"
    ROWS_WITHOUT_USER = "rows_without_user"
    REPEATED_IDS = "repeated_ids"
    MALFORMED_TAGS = "malformed_tags"
    LINES_WITHOUT_TAG = "lines_without_tag"
    LINES_WITHOUT_TOKEN = "lines_without_token"
    ROWS_WITHOUT_THAT_FIELD = "rows_without_that_field"
    EMPTIED_SENTENCES = "emptied_sentences"
    EMPTIED_ENTITIES = "emptied_entities"


MEANING = {
    Note.CONTROL_CHARACTERS: "texts with control characters, each replaced by a space",
    Note.LONE_SURROGATES: "texts or keys with half a surrogate pair, replaced by U+FFFD",
    Note.BAD_BYTES: "lines with bytes that are not UTF-8, replaced by U+FFFD",
    Note.BLANK_TEXTS: "blank texts dropped",
    Note.LONG_SENTENCES: "sentences longer than --max-characters, cut at white space",
    Note.BLANK_ENTITIES: "marked entities of control characters alone, dropped",
    Note.ROWS_WITHOUT_USER: "rows without a user dropped",
    Note.REPEATED_IDS: "rows dropped because their id had come before",
    Note.MALFORMED_TAGS: "tags that their scheme does not allow, read as entities",
    Note.LINES_WITHOUT_TAG: "lines without a tag, read as untagged tokens",
    Note.LINES_WITHOUT_TOKEN: "lines without a token dropped",
    Note.ROWS_WITHOUT_THAT_FIELD: "rows dropped because they lack the field asked for",
    Note.EMPTIED_SENTENCES: "sentences dropped because nothing was left of them after preprocessing",
    Note.EMPTIED_ENTITIES: "entities dropped because nothing was left of them after preprocessing",
}
"""What to print after the count of a note."""


@dataclass(frozen=True)
class Cleaning:
    """How to treat bad text.

    Attributes:
        max_characters: the longest sentence; a longer one is cut.
        bad_bytes: ``refuse`` lines that are not UTF-8 with an error (a wrong encoding garbles every accented name), or
            ``replace`` their bad bytes.
        limits: what the source may ask for; they shape no corpus, so no manifest records them.
    """

    max_characters: int = DEFAULT_MAX_CHARACTERS
    bad_bytes: str = "refuse"
    limits: SourceLimits = field(default_factory=SourceLimits)

    def __post_init__(self) -> None:
        if self.max_characters < _LEAST_MAX_CHARACTERS:
            raise CorpusError(f"--max-characters {self.max_characters} must be at least {_LEAST_MAX_CHARACTERS}")
        if self.bad_bytes not in BAD_BYTES:
            raise CorpusError(f"--bad-bytes {self.bad_bytes!r} must be one of {', '.join(BAD_BYTES)}")

    def manifest_settings(self) -> dict[str, Any]:
        """Return what differs from the defaults, for the manifest."""
        plain = asdict(Cleaning())
        return {key: value for key, value in asdict(self).items() if value != plain[key] and key != "limits"}


@dataclass(frozen=True)
class Reading:
    """One reading of a source.

    Attributes:
        cleaning: how to treat bad text.
        notes: counts of bad text so far.
    """

    cleaning: Cleaning = Cleaning()
    notes: Notes = field(default_factory=Counter)

    @property
    def limits(self) -> SourceLimits:
        """What the source may ask for."""
        return self.cleaning.limits

    def lines(self, path: Path) -> Iterator[tuple[int, str]]:
        """Yield the numbered lines of a text file (:func:`fl_sim.data_prep.store.textfiles.decoded_lines`)."""
        replace = self.cleaning.bad_bytes == "replace"
        return decoded_lines(path, (lambda: self.note(Note.BAD_BYTES)) if replace else None, self.cleaning.limits)

    def note(self, note: Note, times: int = 1) -> None:
        """Count ``note`` so many times."""
        if times:
            self.notes[note.value] += times

    def key(self, value: str) -> str:
        """Return a user, split, class or document name without lone surrogates, which no file could hold."""
        if value.isascii() or not _SURROGATE.search(value):
            return value
        self.note(Note.LONE_SURROGATES)
        return _SURROGATE.sub(_REPLACEMENT, value)

    def clean(self, rows: Iterable[Sentence], split_sentences: bool = False) -> Iterator[Sentence]:
        """Yield clean sentences.

        Characters are replaced as in the table above, blank texts dropped, too long sentences cut, and white space at
        the ends is stripped.

        Args:
            rows: texts as they are in the source.
            split_sentences: whether to split them into sentences.
        """
        rows = self._keep_text(rows)
        if split_sentences:
            rows = cut_into_sentences(rows)
        for row in rows:
            if len(row.text) > self.cleaning.max_characters:
                self.note(Note.LONG_SENTENCES)
                yield from cut(row, _pieces(row.text, self.cleaning.max_characters))
            elif row.text[0].isspace() or row.text[-1].isspace():
                yield from cut(row, [(0, len(row.text))])
            else:
                yield row

    def _keep_text(self, rows: Iterable[Sentence]) -> Iterator[Sentence]:
        for row in rows:
            clean = (
                row if row.text.isprintable() else self._replace_characters(row)
            )  # no replaced character is printable
            if clean.text and not clean.text.isspace():
                yield clean
            else:
                self.note(Note.BLANK_TEXTS)

    def _replace_characters(self, row: Sentence) -> Sentence:
        text, controls = _CONTROL.subn(" ", row.text)
        text, surrogates = _SURROGATE.subn(_REPLACEMENT, text)
        if not controls and not surrogates:
            return row
        self.note(Note.CONTROL_CHARACTERS, bool(controls))
        self.note(Note.LONE_SURROGATES, bool(surrogates))
        mentions = tuple(mention for mention in row.mentions if not text[mention.start : mention.end].isspace())
        self.note(Note.BLANK_ENTITIES, len(row.mentions) - len(mentions))
        return Sentence(row.split, row.user, text, mentions, row.target, row.document)


def _pieces(text: str, limit: int) -> Iterator[tuple[int, int]]:
    """Yield bounds of pieces of at most ``limit`` characters, cut at white space, else between visible characters."""
    start = 0
    while len(text) - start > limit:
        gap = _LAST_GAP.search(text, start + 1, start + limit + 1)
        end = gap.start() if gap else _cluster_start(text, start + limit)
        yield start, end
        start = end
    yield start, len(text)


def _cluster_start(text: str, end: int) -> int:
    """Return ``end``, or a place before it that separates no character from its combining marks or joiner."""
    for place in range(end, end - _LONGEST_CLUSTER, -1):
        if text[place - 1] != _JOINER and text[place] != _JOINER and unicodedata.category(text[place])[0] != "M":
            return place
    return end
