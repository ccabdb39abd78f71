"""Find entities by their form: e-mails, URLs, phone and card numbers, dates, times, sums of money.

spaCy's Matcher finds those that consist of words, regular expressions those that a tokenizer would split.

>>> list(find_shapes("Ring 020 7946 0958 at 10:30"))
[Mention(start=5, end=18, label='PHONE'), Mention(start=22, end=27, label='TIME')]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fl_sim.data_prep.records import Mention

if TYPE_CHECKING:
    from spacy.tokens import Doc
    from spacy.vocab import Vocab

_MONTH_NAMES = """
january february march april may june july august september october november december
jan feb mar apr jun jul aug sep sept oct nov dec
"""
_MONTHS = frozenset(f"{month}{dot}" for month in _MONTH_NAMES.split() for dot in ("", "."))
_HALVES = frozenset({"am", "pm", "a.m.", "p.m.", "a.m", "p.m"})
_UNITS = ["thousand", "million", "billion", "bn", "m", "k"]
_CURRENCY_NAMES = "dollars euros pounds pence cents yen francs usd eur gbp chf jpy quid bucks dollar euro pound"
_CURRENCIES = frozenset(_CURRENCY_NAMES.split())

_ORDINAL = {"LOWER": {"REGEX": r"^(0?[1-9]|[12]\d|3[01])(st|nd|rd|th)?$"}}
_MONTH_TOKEN = {"LOWER": {"IN": sorted(_MONTHS)}}
_YEAR = {"TEXT": {"REGEX": r"^(1[5-9]|20|21)\d\d$"}}
_COMMA = {"TEXT": ",", "OP": "?"}
_OF = {"LOWER": "of", "OP": "?"}
_CURRENCY_TOKEN = {"LOWER": {"IN": sorted(_CURRENCIES)}}
_UNIT = {"LOWER": {"IN": _UNITS}, "OP": "?"}
_TOKENS: dict[str, list[list[dict[str, Any]]]] = {
    "EMAIL": [[{"LIKE_EMAIL": True}]],
    "URL": [[{"LIKE_URL": True, "LIKE_EMAIL": False}]],
    "DATE": [
        [_ORDINAL, _OF, _MONTH_TOKEN, _COMMA, _YEAR],
        [_ORDINAL, _OF, _MONTH_TOKEN],
        [_MONTH_TOKEN, _ORDINAL, _COMMA, _YEAR],
        [_MONTH_TOKEN, _ORDINAL],
        [_MONTH_TOKEN, _COMMA, _YEAR],
    ],
    "TIME": [[{"TEXT": {"REGEX": r"^\d{1,2}([.:]\d\d){0,2}$"}}, {"LOWER": {"IN": sorted(_HALVES)}}]],
    "MONEY": [
        [{"IS_CURRENCY": True}, {"LIKE_NUM": True}, _UNIT],
        [{"LIKE_NUM": True}, _UNIT, _CURRENCY_TOKEN],
        [{"LIKE_NUM": True}, _UNIT, {"IS_CURRENCY": True}],
    ],
}
"""Label → patterns over tokens, for spaCy's Matcher. Each needs a token for which :func:`may_match` is true."""

_SHAPES = {
    "EMAIL": r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}",
    "URL": r"(?:https?://|www\.)\S+[\w/]",
    "IBAN": r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b",
    "CARD": r"(?<![\d-])\d(?:[ -]?\d){12,18}(?![\d-])",
    "US_SSN": r"(?<![\w-])(?!000|666|9)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])",
    "DATE": r"\b(?:\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[/.]\d{1,2}[/.]\d{2,4})\b",
    "PHONE": r"(?<![\w.,-])(?=[+(\d])(?:\+|\(?0\)?|\()?\d?(?:[ ().-]{0,2}\d){6,14}(?: ?x\d+)?(?!\w|[.,]\d)",
    "TIME": r"\b\d{1,2}:\d{2}(?::\d{2})?(?: ?[ap]\.?m\b\.?)?",
    "MONEY": r"[$€£¥] ?\d+(?:[.,]\d+)*(?: ?(?:thousand|million|billion|bn|[mkMK])\b)?",
    "ID": r"\b(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Z0-9]{5,}(?:-[A-Z0-9]+)*\b",
}
"""Label → regular expression over characters; earlier ones win a tie.

Repetitions are bounded, so a long text without spaces takes linear time.
"""

_SHAPE = re.compile("|".join(f"(?P<{label}>{pattern})" for label, pattern in _SHAPES.items()))
_SHAPED = re.compile(r"\d|@|://|www\.")
LABELS = frozenset({*_TOKENS, *_SHAPES})


class TokenPatterns:
    """Finds the patterns over tokens, in documents of one vocabulary."""

    def __init__(self, vocab: Vocab) -> None:
        from spacy.matcher import Matcher

        self._strings = vocab.strings
        self._matcher = Matcher(vocab)
        for label, patterns in _TOKENS.items():
            self._matcher.add(label, patterns)

    def find(self, document: Doc) -> Iterator[Mention]:
        """Yield every match, with overlaps."""
        for match, start, end in self._matcher(document):
            span = document[start:end]
            yield Mention(span.start_char, span.end_char, self._strings[match])


def may_match(token: str) -> bool:
    """Return whether a pattern over tokens may match a text with ``token``; none matches without such a token."""
    from spacy.lang.lex_attrs import is_currency, like_email, like_url

    lower = token.lower()
    return (
        lower in _MONTHS
        or lower in _HALVES
        or lower in _CURRENCIES
        or is_currency(token)
        or like_email(token)
        or like_url(token)
    )


def find_shapes(text: str) -> Iterator[Mention]:
    """Yield the matches of the regular expressions, without overlaps."""
    if _SHAPED.search(text) is None:  # every expression needs one of these
        return
    for match in _SHAPE.finditer(text):
        yield Mention(match.start(), match.end(), str(match.lastgroup))
