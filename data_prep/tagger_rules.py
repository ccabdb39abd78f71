"""The default tagger: patterns over a blank English spaCy pipeline, nothing to download.

It aims at recall: a word that is wrongly taken for an entity costs training data and no privacy, a missed
name loses its entity's coin (its sentences are still protected each on its own, as extended entities).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import spacy
from spacy.lang.en.stop_words import STOP_WORDS
from spacy.matcher import Matcher
from spacy.tokens import Doc, Token

from data_prep.common_words import COMMON_NOUNS, OPENERS
from data_prep.records import Mention

_MONTH_NAMES = """
january february march april may june july august september october november december
jan feb mar apr jun jul aug sep sept oct nov dec
"""
_MONTHS = _MONTH_NAMES.split()
_UNITS = ["thousand", "million", "billion", "bn", "m", "k"]
_CURRENCY_NAMES = "dollars euros pounds pence cents yen francs usd eur gbp chf jpy quid bucks dollar euro pound"
_CURRENCIES = _CURRENCY_NAMES.split()

_ORDINAL = {"LOWER": {"REGEX": r"^(0?[1-9]|[12]\d|3[01])(st|nd|rd|th)?$"}}
_MONTH_TOKEN = {"LOWER": {"IN": [*_MONTHS, *(f"{month}." for month in _MONTHS)]}}
_YEAR = {"TEXT": {"REGEX": r"^(1[5-9]|20|21)\d\d$"}}
_COMMA = {"TEXT": ",", "OP": "?"}
_OF = {"LOWER": "of", "OP": "?"}
_PATTERNS: dict[str, list[list[dict[str, Any]]]] = {
    "EMAIL": [[{"LIKE_EMAIL": True}]],
    "URL": [[{"LIKE_URL": True, "LIKE_EMAIL": False}]],
    "DATE": [
        [_ORDINAL, _OF, _MONTH_TOKEN, _COMMA, _YEAR],
        [_ORDINAL, _OF, _MONTH_TOKEN],
        [_MONTH_TOKEN, _ORDINAL, _COMMA, _YEAR],
        [_MONTH_TOKEN, _ORDINAL],
        [_MONTH_TOKEN, _COMMA, _YEAR],
    ],
    "TIME": [
        [
            {"TEXT": {"REGEX": r"^\d{1,2}([.:]\d\d){0,2}$"}},
            {"LOWER": {"IN": ["am", "pm", "a.m.", "p.m.", "a.m", "p.m"]}},
        ]
    ],
    "MONEY": [
        [{"IS_CURRENCY": True}, {"LIKE_NUM": True}, {"LOWER": {"IN": _UNITS}, "OP": "?"}],
        [{"LIKE_NUM": True}, {"LOWER": {"IN": _UNITS}, "OP": "?"}, {"LOWER": {"IN": _CURRENCIES}}],
        [{"LIKE_NUM": True}, {"LOWER": {"IN": _UNITS}, "OP": "?"}, {"IS_CURRENCY": True}],
    ],
}
"""Label → patterns over tokens, in the notation of spaCy's Matcher."""

_SHAPES = {
    "EMAIL": r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}",
    "URL": r"(?:https?://|www\.)\S+[\w/]",
    "IBAN": r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b",
    "CARD": r"(?<![\d-])\d(?:[ -]?\d){12,18}(?![\d-])",
    "DATE": r"\b(?:\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[/.]\d{1,2}[/.]\d{2,4})\b",
    "PHONE": r"(?<![\w.,-])(?:\+|\(?0\)?|\()?\d?(?:[ ().-]{0,2}\d){6,14}(?: ?x\d+)?(?!\w|[.,]\d)",
    "TIME": r"\b\d{1,2}:\d{2}(?::\d{2})?(?: ?[ap]\.?m\b\.?)?",
    "MONEY": r"[$€£¥] ?\d+(?:[.,]\d+)*(?: ?(?:thousand|million|billion|bn|[mkMK])\b)?",
    "ID": r"\b(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Z0-9]{5,}(?:-[A-Z0-9]+)*\b",
}
"""Label → regular expression over characters, for what a tokenizer would cut up; earlier ones win a tie.

Repetitions are bounded, so that a long text without spaces takes linear time.
"""

_SHAPE = re.compile("|".join(f"(?P<{label}>{pattern})" for label, pattern in _SHAPES.items()))
_PARTICLES = "of de la le du van von der den di da del al el bin ibn y"
_LINK_WORDS = frozenset(_PARTICLES.split())
_LINK_MARKS = frozenset("&-–'’./")
_SENTENCE_OPENING = frozenset('.!?:;"“”‘([-–—*•')
_NEVER_NAMES = (
    STOP_WORDS
    | {"i'm", "i've", "mr", "mrs", "ms", "dr"}
    | {f"{day}day" for day in ("mon", "tues", "wednes", "thurs", "fri", "satur", "sun")}
)
NAME = "NAME"
"""Label of a run of capitalised words; the rules do not tell people from places."""


class RuleTagger:
    """E-mails, URLs, phone numbers, dates, times, sums, card and account numbers, and capitalised names."""

    def __init__(self) -> None:
        self._pipeline = spacy.blank("en")
        self._pipeline.max_length = 10**9  # the limit is for parsers; this pipeline only cuts into tokens
        self._matcher = Matcher(self._pipeline.vocab)
        for label, patterns in _PATTERNS.items():
            self._matcher.add(label, patterns)

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """Mentions of each text, none overlapping: of those that would, the longest stays, then the first."""
        for document in self._pipeline.pipe(texts):
            yield _longest([*self._token_matches(document), *_shape_matches(document.text), *_names(document)])

    def describe(self) -> dict[str, str]:
        return {"tagger": "rules", "rules_version": "1", "spacy": spacy.__version__}

    def _token_matches(self, document: Doc) -> Iterator[Mention]:
        for match, start, end in self._matcher(document):
            span = document[start:end]
            yield Mention(span.start_char, span.end_char, self._pipeline.vocab.strings[match])


def _shape_matches(text: str) -> Iterator[Mention]:
    for found in _SHAPE.finditer(text):
        yield Mention(found.start(), found.end(), str(found.lastgroup))


def _names(document: Doc) -> Iterator[Mention]:
    """Maximal runs of capitalised words, linked by particles ("Bank of England"), less common openers."""
    position = 0
    while position < len(document):
        if not _capitalised(document[position]):
            position += 1
            continue
        end = _run_end(document, position)
        start = _run_start(document, position, end)
        if start < end:
            span = document[start:end]
            yield Mention(span.start_char, span.end_char, NAME)
        position = end


def _run_end(document: Doc, start: int) -> int:
    """One past the last capitalised word of the run that begins at ``start``."""
    end = start + 1
    while end < len(document):
        if _capitalised(document[end]):
            end += 1
        elif end + 1 < len(document) and _links(document, end) and _capitalised(document[end + 1]):
            end += 2
        else:
            break
    return end


def _run_start(document: Doc, start: int, end: int) -> int:
    """``start`` moved past words that are capitalised for another reason than being a name."""
    opening = start == 0 or document[start - 1].text in _SENTENCE_OPENING or document[start - 1].is_space
    if opening and end - start == 1 and document[start].lower_ in COMMON_NOUNS:
        return end
    while start < end:
        token = document[start]
        acronym = len(token) > 1 and token.is_upper and not document.text.isupper()
        dull = token.lower_ in _NEVER_NAMES or (opening and token.lower_ in OPENERS)
        if not (dull or _links(document, start)) or acronym:
            break
        start += 1
    return start


def _capitalised(token: Token) -> bool:
    return any(character.isupper() for character in token.text) and any(c.isalpha() for c in token.text)


def _links(document: Doc, position: int) -> bool:
    token = document[position]
    if token.text in _LINK_MARKS:
        return not (position and document[position - 1].whitespace_) or token.text == "&"
    return token.lower_ in _LINK_WORDS and not token.is_title


def _longest(candidates: list[Mention]) -> tuple[Mention, ...]:
    kept: list[Mention] = []
    taken: set[int] = set()
    for mention in sorted(candidates, key=lambda m: (m.start - m.end, m.start)):
        characters = range(mention.start, mention.end)
        if taken.isdisjoint(characters):
            taken.update(characters)
            kept.append(mention)
    return tuple(sorted(kept, key=lambda m: m.start))
