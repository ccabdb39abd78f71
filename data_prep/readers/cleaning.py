"""Clean bad text, cut it into sentences, and preprocess it as a paper did. Cleaning is decided here alone.

docs/corpora.md says what becomes of bad text, and :class:`Note` how it is counted. Everything else is kept:
right-to-left text and its direction marks, emoji and their joiners, combining marks, any white space inside a sentence.
A character is replaced by one character, so the spans of entities stay valid.

Sentences end where spaCy's sentencizer ends them on the tokens of spaCy's English tokenizer: after a full stop,
question mark or the like and the punctuation that follows ("U.S." and "Mr." are tokens, so they end no sentence).

Preprocessing runs after tagging and identity. Every character is treated by itself, so the text under a span that moved
is the preprocessed text under the old one.

>>> text = "Mr. Byron left. Why?"
>>> [text[start:end] for start, end in sentence_bounds(text)]
['Mr. Byron left. ', 'Why?']

>>> Preprocessing.of_paper().text("Ada Byron's letter, £3.")
'ada byrons letter £3'
"""

from __future__ import annotations

import itertools
import re
import string
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from fl_sim.data_prep.identity import punctuation, visible
from fl_sim.data_prep.records import Mention, Sentence, Settings
from fl_sim.data_prep.store.textfiles import MAX_RECORD
from fl_sim.data_prep.taggers.spacy_tagger import MOST_WORDS, without_plugins
from fl_sim.data_prep.taggers.spans import replace_surrogates

if TYPE_CHECKING:
    from spacy.language import Language

_LONG_WORD = re.compile(r"\S{200,}")  # the tokenizer may take quadratic time


def sentence_bounds(text: str) -> list[tuple[int, int]]:
    """Return the sentences of ``text`` as character spans without gaps between them."""
    known = _LONG_WORD.sub(lambda word: "x" * (len(word[0]) - 1) + word[0][-1], text)
    starts = [sentence.start_char for sentence in _pipeline()(known).sents][1:]
    return list(itertools.pairwise([0, *starts, len(text)]))


def cut(row: Sentence, bounds: Iterable[tuple[int, int]]) -> Iterator[Sentence]:
    """Yield the sentences of ``row`` at ``bounds`` (spans that cover its text in order), stripped of white space.

    Two sentences that share a mention stay together, so no mention is cut or lost.
    """
    if not row.mentions:
        for start, end in bounds:
            yield from _part(row, start, end, [])
        return
    spans = _join_at_mentions(bounds, row.mentions)
    starts = [start for start, _ in spans]
    inside: list[list[Mention]] = [[] for _ in spans]
    for mention in row.mentions:
        inside[bisect_right(starts, mention.start) - 1].append(mention)
    for (start, end), mentions in zip(spans, inside, strict=True):
        yield from _part(row, start, end, mentions)


def _join_at_mentions(bounds: Iterable[tuple[int, int]], mentions: Iterable[Mention]) -> list[tuple[int, int]]:
    """Return the spans, joined where a bound falls inside a mention."""
    spans = iter(sorted((mention.start, mention.end) for mention in mentions))
    span = next(spans, None)
    covered = 0  # the largest end of the mentions that start before the bound
    joined: list[tuple[int, int]] = []
    for start, end in bounds:
        while span is not None and span[0] < start:
            covered = max(covered, span[1])
            span = next(spans, None)
        if joined and covered > start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _part(row: Sentence, start: int, end: int, mentions: list[Mention]) -> Iterator[Sentence]:
    """Yield the part ``[start, end)`` of ``row`` as a sentence, unless it is blank."""
    text = row.text[start:end]
    stripped = text.strip()
    if not stripped:
        return
    if stripped == row.text:
        yield row
        return
    start += len(text) - len(text.lstrip())
    end = start + len(stripped)
    moved = tuple(Mention(max(m.start, start) - start, min(m.end, end) - start, m.label) for m in mentions)
    yield Sentence(row.split, row.user, stripped, moved, row.target)


_loaded: Language | None = None


def _pipeline() -> Language:
    global _loaded
    if _loaded is None or len(_loaded.vocab.strings) > MOST_WORDS:
        import spacy

        with without_plugins():
            _loaded = spacy.blank("en")
            _loaded.add_pipe("sentencizer")
        _loaded.max_length = MAX_RECORD
    return _loaded


Notes = Counter[str]
"""Counts of :class:`Note` while a corpus is read, for the manifest."""

MAX_CHARACTERS = 10_000
"""The longest sentence; a longer one is cut at white space, never inside an entity."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LAST_GAP = re.compile(r"\s(?=\S*\Z)")
_JOINER = "\u200d"
_LONGEST_CLUSTER = 64


class Note(StrEnum):
    """Problems that are counted and not refused. Texts, rows, sentences or lines are counted, never characters.

    Attributes:
        meaning: what to print after the count.
    """

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Note:
        note = str.__new__(cls, value)
        note._value_, note.meaning = value, meaning
        return note

    CONTROL_CHARACTERS = "control_characters", "texts with control characters, each replaced by a space"
    LONE_SURROGATES = "lone_surrogates", "texts or keys with half a surrogate pair, replaced by U+FFFD"
    BLANK_TEXTS = "blank_texts", "blank texts dropped"
    LONG_SENTENCES = "long_sentences", f"sentences longer than {MAX_CHARACTERS:,} characters, cut at white space"
    BLANK_ENTITIES = "blank_entities", "marked entities of control characters alone, dropped"
    ROWS_WITHOUT_USER = "rows_without_user", "rows without a user dropped"
    USER_SPELLINGS = "user_spellings", "rows whose user's key had decomposed or invisible characters, made plain"
    REPEATED_IDS = "repeated_ids", "rows dropped that repeat an earlier one, its id included"
    LINES_WITHOUT_TAG = "lines_without_tag", "lines without a tag, read as untagged tokens"
    LINES_WITHOUT_TOKEN = "lines_without_token", "lines without a token dropped"
    ROWS_WITHOUT_THAT_FIELD = "rows_without_that_field", "rows dropped because they lack the field asked for"
    EMPTIED_SENTENCES = "emptied_sentences", "sentences dropped because nothing was left of them after preprocessing"
    EMPTIED_ENTITIES = "emptied_entities", "entities dropped because nothing was left of them after preprocessing"


@dataclass
class Reading:
    """One reading of a source.

    Attributes:
        notes: counts of bad text so far.
        rows: rows of a table so far, of which each has a user.
    """

    notes: Notes = field(default_factory=Counter)
    rows: int = 0

    def note(self, note: Note, times: int = 1) -> None:
        """Count ``note`` so many times."""
        if times:
            self.notes[note.value] += times

    def key(self, value: str) -> str:
        """Return a split, class, label or document name without lone surrogates, which no file could hold."""
        clean = replace_surrogates(value)
        self.note(Note.LONE_SURROGATES, clean != value)
        return clean

    def user(self, value: str) -> str:
        """Return a user's key without lone surrogates, composed, with plain spaces and without invisible characters.

        Two spellings of a name that look alike are then one user; it is empty if nothing can be seen.
        """
        if value.isascii() and value.isprintable():
            return value.strip()
        key = self.key(value)
        spaced = re.sub(r"\s", " ", visible(unicodedata.normalize("NFC", key))).strip()
        plain = unicodedata.normalize("NFC", spaced)
        self.note(Note.USER_SPELLINGS, plain != key)
        return plain

    def clean(self, rows: Iterable[Sentence], split_sentences: bool = False) -> Iterator[Sentence]:
        """Yield clean sentences, of users whose keys are plain (:meth:`user`).

        Bad characters are replaced, blank texts and rows without a user dropped, too long sentences cut, white space
        at the ends stripped.

        Args:
            rows: texts as they are in the source.
            split_sentences: whether to split them into sentences.
        """
        rows = self._keep_text(rows)
        if split_sentences:
            rows = (sentence for row in rows for sentence in cut(row, sentence_bounds(row.text)))
        for row in rows:
            if len(row.text) > MAX_CHARACTERS:
                self.note(Note.LONG_SENTENCES)
                yield from cut(row, _pieces(row.text, MAX_CHARACTERS))
            elif row.text[0].isspace() or row.text[-1].isspace():
                yield from cut(row, [(0, len(row.text))])
            else:
                yield row

    def _keep_text(self, rows: Iterable[Sentence]) -> Iterator[Sentence]:
        for row in rows:
            clean = row if row.text.isprintable() else self._replace_characters(row)  # which replaces none printable
            user = self.user(row.user)
            if not user:
                self.note(Note.ROWS_WITHOUT_USER)
            elif clean.text and not clean.text.isspace():
                yield clean if user == clean.user else replace(clean, user=user)
            else:
                self.note(Note.BLANK_TEXTS)

    def _replace_characters(self, row: Sentence) -> Sentence:
        printable = _CONTROL.sub(" ", row.text)
        text = replace_surrogates(printable)
        if text == row.text:
            return row
        self.note(Note.CONTROL_CHARACTERS, printable != row.text)
        self.note(Note.LONE_SURROGATES, text != printable)
        mentions = tuple(mention for mention in row.mentions if not text[mention.start : mention.end].isspace())
        self.note(Note.BLANK_ENTITIES, len(row.mentions) - len(mentions))
        return Sentence(row.split, row.user, text, mentions, row.target)


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


Span = tuple[int, int]

_SIGMA, _SMALL_SIGMA = "Σ", "σ"


@dataclass(frozen=True)
class Preprocessing:
    """Changes the text of a sentence before it is stored.

    Attributes:
        lower_case: Lower all letters (a capital sigma to σ, also at the end of a word), after entities are marked.
        strip_punctuation: Remove Unicode's punctuation and ASCII's symbols (``$+<=>^`|~``); then runs of
            white space become one space, and none is left at the ends.
    """

    lower_case: bool = False
    strip_punctuation: bool = False

    @classmethod
    def of_paper(cls) -> Preprocessing:
        """Return the preprocessing of the UeDP paper: both."""
        return cls(lower_case=True, strip_punctuation=True)

    def __bool__(self) -> bool:
        return self.lower_case or self.strip_punctuation

    def manifest_settings(self) -> Settings:
        """Return the settings that are on, for the manifest."""
        return {key: value for key, value in asdict(self).items() if value}

    def text(self, text: str) -> str:
        """Return ``text`` preprocessed."""
        return self._with_spans(text, [])[0]

    def rewriter(self, reading: Reading) -> Callable[[Sentence], Sentence | None]:
        """Return a function that preprocesses a sentence, or returns None if nothing is left; ``reading`` counts.

        A mention of punctuation alone ("$") is dropped, because nothing of it remains.
        """

        def rewrite(sentence: Sentence) -> Sentence | None:
            spans = [(mention.start, mention.end) for mention in sentence.mentions]
            text, moved = self._with_spans(sentence.text, spans)
            if not text:
                reading.note(Note.EMPTIED_SENTENCES)
                return None
            mentions = tuple(
                Mention(start, end, mention.label)
                for (start, end), mention in zip(moved, sentence.mentions, strict=True)
                if start < end
            )
            reading.note(Note.EMPTIED_ENTITIES, len(sentence.mentions) - len(mentions))
            return Sentence(sentence.split, sentence.user, text, mentions, sentence.target)

        return rewrite

    def _with_spans(self, text: str, spans: list[Span]) -> tuple[str, list[Span]]:
        if self.lower_case:
            text, spans = _lower(text, spans)
        if self.strip_punctuation:
            text, spans = _strip_punctuation(text, spans)
        return text, spans


def _lower(text: str, spans: list[Span]) -> tuple[str, list[Span]]:
    """Lower all letters, and move the spans; "İ" becomes two characters, all others one."""
    small = text.replace(_SIGMA, _SMALL_SIGMA).lower()
    if len(small) == len(text) or not spans:
        return small, spans
    offset = [0]
    for character in text:
        offset.append(offset[-1] + len(character.lower()))
    return small, [(offset[start], offset[end]) for start, end in spans]


def _strip_punctuation(text: str, spans: list[Span]) -> tuple[str, list[Span]]:
    """Remove punctuation, and move the spans; a span of which nothing is left becomes ``(0, 0)``."""
    marks = _punctuation()
    if not spans:
        return " ".join(text.translate(marks).split()), []
    bounds = sorted({0, len(text), *itertools.chain.from_iterable(spans)})
    output: list[str] = []
    length = 0
    gap = False  # whether white space separates the output from the next piece
    new_spans: dict[int, Span] = {}
    for start, end in itertools.pairwise(bounds):
        piece = text[start:end].translate(marks)
        words = " ".join(piece.split())
        gap = gap or piece[:1].isspace()
        if not words:
            continue
        if gap and length:
            output.append(" ")
            length += 1
        output.append(words)
        new_spans[start] = (length, length + len(words))
        length += len(words)
        gap = piece[-1].isspace()
    return "".join(output), [_move(span, bounds, new_spans) for span in spans]


def _move(span: Span, bounds: list[int], new_spans: dict[int, Span]) -> Span:
    """Return the span in the new text of the pieces that ``span`` is made of."""
    pieces = bounds[bisect_left(bounds, span[0]) : bisect_left(bounds, span[1])]
    moved = [new_spans[start] for start in pieces if start in new_spans]
    return (moved[0][0], moved[-1][1]) if moved else (0, 0)


@cache
def _punctuation() -> dict[int, None]:
    """Return the removed characters, as a table for :meth:`str.translate`."""
    return dict.fromkeys(map(ord, punctuation() + string.punctuation))
