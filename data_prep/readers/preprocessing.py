"""The UeDP paper's preprocessing, "we changed all words to lower-case and removed punctuation marks", with entities.

It runs *after* entities were found and identified, on the sentence that is kept: a tagger that looks at capital
letters and at full stops has lost them otherwise, and an entity's identity ("David's" is David) is that of the name as
it was written. Spans move with the text. Every character is treated by itself, whatever stands around it, so what is
left under a moved span is what preprocessing makes of the characters under the old one.
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

_PLANES_WITH_PUNCTUATION = 2  # the others have ideographs, tags and private characters
_SIGMA, _SMALL_SIGMA = "Σ", "σ"


@dataclass(frozen=True)
class Preprocessing:
    """What is done to the text of a sentence before it is kept.

    lower_case: every letter to lower case (a capital sigma to σ, also at a word's end).
    strip_punctuation: Unicode's punctuation and ASCII's symbols (``$+<=>^`|~``) are removed; then runs of white space
    become one space, and none is left at the ends.
    """

    lower_case: bool = False
    strip_punctuation: bool = False

    @classmethod
    def of_paper(cls) -> Preprocessing:
        return cls(lower_case=True, strip_punctuation=True)

    def __bool__(self) -> bool:
        return self.lower_case or self.strip_punctuation

    def manifest_settings(self) -> dict[str, Any]:
        """What is done, for the manifest; nothing if nothing is."""
        return {key: value for key, value in asdict(self).items() if value}

    def text(self, text: str) -> str:
        """``text`` alone, preprocessed."""
        return self._with_spans(text, [])[0]

    def rewriter(self, reading: Reading) -> Callable[[Sentence], Sentence | None]:
        """A function that gives a sentence preprocessed, or None where nothing is left of it; ``reading`` counts.

        A mention of punctuation alone ("$") is left out: nothing of it remains in the text.
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
            text, spans = _without_punctuation(text, spans)
        return text, spans


def _lower(text: str, spans: list[Span]) -> tuple[str, list[Span]]:
    """Letters in lower case; "İ" becomes two characters, all others one."""
    small = text.replace(_SIGMA, _SMALL_SIGMA).lower()
    if len(small) == len(text) or not spans:
        return small, spans
    place = [0]
    for character in text:
        place.append(place[-1] + len(character.lower()))
    return small, [(place[start], place[end]) for start, end in spans]


def _without_punctuation(text: str, spans: list[Span]) -> tuple[str, list[Span]]:
    """``text`` and ``spans`` without punctuation; a span of which nothing is left is ``(0, 0)``."""
    marks = _punctuation()
    if not spans:
        return " ".join(text.translate(marks).split()), []
    bounds = sorted({0, len(text), *itertools.chain.from_iterable(spans)})
    output: list[str] = []
    length = 0
    gap = False  # whether white space stands between what was put out and what comes
    places: dict[int, Span] = {}
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
        places[start] = (length, length + len(words))
        length += len(words)
        gap = piece[-1].isspace()
    return "".join(output), [_move(span, bounds, places) for span in spans]


def _move(span: Span, bounds: list[int], places: dict[int, Span]) -> Span:
    """Where the pieces of the old text that ``span`` is made of lie in the new one."""
    pieces = bounds[bisect_left(bounds, span[0]) : bisect_left(bounds, span[1])]
    left = [places[start] for start in pieces if start in places]
    return (left[0][0], left[-1][1]) if left else (0, 0)


@cache
def _punctuation() -> dict[int, None]:
    """What is removed, as :meth:`str.translate` wants it."""
    unicode = (code for code in range(_PLANES_WITH_PUNCTUATION << 16) if unicodedata.category(chr(code))[0] == "P")
    return dict.fromkeys([*unicode, *map(ord, string.punctuation)])
