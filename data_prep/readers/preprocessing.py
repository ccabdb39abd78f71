"""Preprocess text as the UeDP paper does: "we changed all words to lower-case and removed punctuation marks".

It runs after tagging and identity, because taggers need capital letters and full stops, and an entity's key ("David's"
is David) is that of the original name. Spans move with the text. Every character is treated by itself, so the text
under a moved span is the preprocessed text under the old one.

>>> Preprocessing.of_paper().text("Ada Byron's letter, £3.")
'ada byrons letter £3'
"""

from __future__ import annotations

import itertools
import string
import unicodedata
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from fl_sim.data_prep.readers.cleaning import Note, Reading
from fl_sim.data_prep.records import Mention, Sentence

Span = tuple[int, int]

_PLANES_WITH_PUNCTUATION = 2  # the other planes have ideographs, tags and private characters
_SIGMA, _SMALL_SIGMA = "Σ", "σ"


@dataclass(frozen=True)
class Preprocessing:
    """Changes the text of a sentence before it is stored.

    Attributes:
        lower_case: whether to lower all letters (a capital sigma to σ, also at the end of a word).
        strip_punctuation: whether to remove Unicode's punctuation and ASCII's symbols (``$+<=>^`|~``); then runs of
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

    def manifest_settings(self) -> dict[str, Any]:
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
            return Sentence(sentence.split, sentence.user, text, mentions, sentence.target, sentence.document)

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
    unicode = (code for code in range(_PLANES_WITH_PUNCTUATION << 16) if unicodedata.category(chr(code))[0] == "P")
    return dict.fromkeys([*unicode, *map(ord, string.punctuation)])
