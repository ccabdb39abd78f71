"""The writing style of a user: openings, contractions, capitals, dates, the full stop.

>>> tidy([("I ", ""), (" met ", ""), ("Ada", "PERSON"), (" .", "")])
[('I ', ''), ('met ', ''), ('Ada', 'PERSON'), ('.', '')]
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tools.synthetic_corpus.chance import pick
from tools.synthetic_corpus.grammar import Piece

_CONTRACTIONS = (
    (r"\b((?i:do|does|did|is|was|were|are|has|have|could|should|would)) not\b", r"\1n't"),
    (r"\b([Ww])ill not\b", r"\1on't"),
    (r"\b([Cc])annot\b", r"\1an't"),
    (r"\b(I|we|We|you|they|They) (?:have)\b(?= \w+(?:ed|en|ne)\b)", r"\1've"),
    (r"\bI am\b", "I'm"),
    (r"\b(we|We|you|they|They) are\b", r"\1're"),
    (r"\b(it|It|that|That|there|There|what|What) is\b", r"\1's"),
    (r"\b(I|we|We|they|They|he|He|she|She|it|It) will\b", r"\1'll"),
)
_PART_OF_EACH = re.compile("not| have| am| are| is| will")  # every contraction needs one of these
_MONTH_NAMES = "January February March April May June July August September October November December"
_MONTHS = _MONTH_NAMES.split()
_VOWEL_SOUND = re.compile(r"[\"'“‘]?(?:[aeioAEIO]|[uU](?!ni|se|su|k\b)|hour|honest|heir|X-)")
_DAY_FIRST = "{d.day} {month} {d.year}"
_DATE_STYLES = (_DAY_FIRST, _DAY_FIRST, "{month} {d.day}, {d.year}", "{d:%d/%m/%Y}", "{d:%Y-%m-%d}")


@dataclass(frozen=True)
class Style:
    """The style of a user, independent of the topic."""

    verbosity: float
    contractions: bool
    lower_case: bool
    greets: float
    hedges: tuple[str, ...]
    hedge_rate: float
    tail_rate: float
    negation_rate: float
    endings: tuple[str, ...]
    date_style: str

    @staticmethod
    def of(rng: np.random.Generator, hedges: Sequence[str]) -> Style:
        """Return a random style, with a few of the ``hedges``."""
        lower_case = rng.random() < 0.06
        endings = (".", ".", ".", "!" if rng.random() < 0.25 else ".", "..." if rng.random() < 0.15 else ".")
        return Style(
            verbosity=rng.uniform(0.25, 0.75),
            contractions=rng.random() < 0.6,
            lower_case=lower_case,
            greets=rng.uniform(0, 0.12) if rng.random() < 0.5 else 0.0,
            hedges=tuple(hedges[i] for i in rng.choice(len(hedges), size=4, replace=False)),
            hedge_rate=rng.uniform(0, 0.2),
            tail_rate=rng.uniform(0.3, 0.85),
            negation_rate=rng.uniform(0, 0.12),
            endings=("", "", ".") if lower_case and rng.random() < 0.5 else endings,
            date_style=pick(_DATE_STYLES, rng),
        )

    def date(self, day: datetime.date, rng: np.random.Generator) -> str:
        """Return ``day`` as this user writes dates; sometimes only month and year."""
        month = _MONTHS[day.month - 1]
        if rng.random() < 0.12:
            return f"{month} {day.year}"
        return self.date_style.format(d=day, month=month)

    def apply(self, pieces: list[Piece], rng: np.random.Generator) -> list[Piece]:
        """Return the pieces with articles, contractions, capitals and the full stop."""
        pieces = _with_articles(pieces)
        if self.contractions:
            pieces = [(text if label else _contract(text), label) for text, label in pieces]
        if not pieces[-1][0].endswith("?"):
            pieces.append((pick(self.endings, rng), ""))
        if self.lower_case:
            return [(text.lower(), label) for text, label in pieces]
        first, label = pieces[0]
        return [(first[:1].upper() + first[1:], label), *pieces[1:]]


def tidy(pieces: list[Piece]) -> list[Piece]:
    """Return the pieces with single spaces, and none before punctuation or at the ends."""
    result: list[Piece] = [("", "")]
    for text, label in pieces:
        before, before_label = result[-1]
        if not label:
            text = re.sub(r" +(?=[ ,.?!:])", "", text)
            if before.endswith(" ") or not before:
                text = text.lstrip(" ")
        if text[:1] in tuple(",.?!:") and not before_label:
            result[-1] = (before.rstrip(" "), "")
        if text:
            result.append((text, label))
    last, label = result[-1]
    result[-1] = (last if label else last.rstrip(" "), label)
    return [piece for piece in result if piece[0]]


def _with_articles(pieces: list[Piece]) -> list[Piece]:
    """Replace ``a_`` by "a" or "an", by the sound of the next letters."""
    texts = [text for text, _ in pieces]
    return [
        (_with_article(text, "".join(texts[index + 1 : index + 3])) if "a_" in text else text, label)
        for index, (text, label) in enumerate(pieces)
    ]


def _with_article(text: str, following: str) -> str:
    return re.sub(r"\ba_ ", lambda a: "an " if _VOWEL_SOUND.match(text[a.end() :] + following) else "a ", text)


def _contract(text: str) -> str:
    if not _PART_OF_EACH.search(text):
        return text
    for pattern, replacement in _CONTRACTIONS:
        text = re.sub(pattern, replacement, text)
    return text
