"""Tag by rules over a blank English spaCy pipeline, without a download.

The rules aim at recall. A word wrongly taken for an entity costs training data but no privacy; a missed name is not
sampled with its entity (its sentences are still protected each by itself, as extended entities).

Names are runs of capitalised words, without telling persons from places; a common word that begins a sentence is none.
Entities that have a form (e-mails, URLs, phone and card numbers, dates, times, sums of money) are found by spaCy's
Matcher where they consist of words, by regular expressions where a tokenizer would split them.

>>> [mentions] = RuleTagger().tag(["However, Ada Byron left on 12 March 2024 at 10:30."])
>>> [(mention.start, mention.end, mention.label) for mention in mentions]
[(9, 18, 'NAME'), (27, 40, 'DATE'), (44, 49, 'TIME')]
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_sim.data_prep.records import Mention
from fl_sim.data_prep.taggers.spacy_tagger import MOST_WORDS, without_plugins
from fl_sim.data_prep.taggers.spans import keep_longest, replace_surrogates, shift, split_text
from fl_sim.data_prep.taggers.structured_data import EMAIL, US_SSN

if TYPE_CHECKING:
    from spacy.tokens import Doc

_LISTS = Path(__file__).parents[1] / "names"
OPENERS = frozenset((_LISTS / "openers.txt").read_text(encoding="utf-8").split())
"""Adverbs, function words, greetings, imperatives and weekdays: no part of a name at the start of a sentence."""

COMMON_NOUNS = frozenset((_LISTS / "common_nouns.txt").read_text(encoding="utf-8").split())
"""Words that are no name when they stand alone and capitalised at a sentence's start."""

NAME = "NAME"
"""The label of a run of capitalised words."""

_PARTICLES = "of de la le du van von der den di da del al el bin ibn y"
_LINK_WORDS = frozenset(_PARTICLES.split())
_LINK_MARKS = frozenset("&-–'’./")
_OPENING_MARKS = frozenset('.!?:;"“”‘([-–—*•')
_DAYS = frozenset(f"{day}day" for day in ("mon", "tues", "wednes", "thurs", "fri", "satur", "sun"))
_TITLES = frozenset({"i'm", "i've", "mr", "mrs", "ms", "dr"})


@dataclass(frozen=True, slots=True)
class Word:
    """The properties of a token that the rules use; all are functions of its characters."""

    text: str
    capitalised: bool
    acronym: bool
    links: bool  # a particle in lower case ("of") links names
    marks: bool  # a hyphen and the like links names if no space is before it
    opens: bool  # a capital letter after it means little
    stop_word: bool  # never a name by itself
    opener: bool  # no name at the start of a sentence
    noun: bool  # no name at the start of a sentence if no name follows


def make_word(text: str) -> Word:
    """Return the properties of the token ``text``."""
    lower = text.lower()
    return Word(
        text=text,
        capitalised=any(map(str.isupper, text)) and any(map(str.isalpha, text)),
        acronym=len(text) > 1 and text.isupper(),
        links=lower in _LINK_WORDS and not text.istitle(),
        marks=text in _LINK_MARKS,
        opens=text in _OPENING_MARKS or text.isspace(),
        stop_word=lower in _never_names(),
        opener=lower in OPENERS,
        noun=lower in COMMON_NOUNS,
    )


def find_names(text: str, words: Sequence[Word], starts: Sequence[int], spaced: Sequence[int]) -> Iterator[Mention]:
    """Yield maximal runs of capitalised words, linked by particles ("Bank of England"), without common first words.

    Of each of the text's words, ``starts`` has the place in the text, and ``spaced`` whether a space follows it.
    """
    shouted = text.isupper()
    position = 0
    while position < len(words):
        if not words[position].capitalised:
            position += 1
            continue
        end = _run_end(words, spaced, position)
        start = _run_start(words, spaced, position, end, shouted)
        if start < end:
            yield Mention(starts[start], starts[end - 1] + len(words[end - 1].text), NAME)
        position = end


def _run_end(words: Sequence[Word], spaced: Sequence[int], start: int) -> int:
    """Return the end (exclusive) of the run of words that begins at ``start``."""
    end = start + 1
    while end < len(words):
        if words[end].capitalised:
            end += 1
        elif end + 1 < len(words) and words[end + 1].capitalised and _links(words, spaced, end):
            end += 2
        else:
            break
    return end


def _run_start(words: Sequence[Word], spaced: Sequence[int], start: int, end: int, shouted: bool) -> int:
    """Return ``start``, moved past words that are capitalised for another reason than being a name."""
    opening = start == 0 or words[start - 1].opens
    if opening and end - start == 1 and words[start].noun:
        return end
    while start < end:
        word = words[start]
        common = word.stop_word or (opening and word.opener) or _links(words, spaced, start)
        if not common or (word.acronym and not shouted):
            break
        start += 1
    return start


def _links(words: Sequence[Word], spaced: Sequence[int], position: int) -> bool:
    word = words[position]
    if word.marks:
        return word.text == "&" or not (position and spaced[position - 1])
    return word.links


@functools.cache
def _never_names() -> frozenset[str]:
    from spacy.lang.en.stop_words import STOP_WORDS

    return frozenset(itertools.chain(STOP_WORDS, _TITLES, _DAYS))


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
_TOKENS: Mapping[str, Sequence[Sequence[Mapping[str, object]]]] = {
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
    "EMAIL": EMAIL,
    "URL": r"(?:https?://|www\.)\S+[\w/]",
    "IBAN": r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b",
    "CARD": r"(?<![\d-])\d(?:[ -]?\d){12,18}(?![\d-])",
    "US_SSN": US_SSN,
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


RULES_VERSION = "2"


class RuleTagger:
    """Finds capitalised names, and entities with a form; of candidates that overlap the longest, then the first.

    The pipeline is made at the first text, because spaCy takes seconds to import.
    """

    labels = frozenset({*_TOKENS, *_SHAPES, NAME})

    def __init__(self) -> None:
        self._pipeline: Any = None
        self._words: dict[int, tuple[Word, bool]] = {}

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """Yield the mentions of each text, in the order of their places."""
        for text in texts:
            yield self._mentions(replace_surrogates(text))

    def describe(self) -> dict[str, str]:
        """Return the version of the rules, and that of the package below."""
        return {"tagger": "rules", "rules_version": RULES_VERSION, "spacy": importlib.metadata.version("spacy")}

    def _mentions(self, text: str) -> tuple[Mention, ...]:
        if self._pipeline is None or len(self._words) > MOST_WORDS:
            self._start_vocabulary()
        candidates = list(find_shapes(text))
        for offset, piece in split_text(text):
            document = self._pipeline.make_doc(piece)
            rows = document.to_array(["ORTH", "IDX", "SPACY"]).tolist() if len(document) else []
            read = [self._read(row[0]) for row in rows]
            if any(may_match for _, may_match in read):
                candidates += shift(self._token_patterns(document), offset)
            words, starts, spaced = [word for word, _ in read], [row[1] for row in rows], [row[2] for row in rows]
            candidates += shift(find_names(piece, words, starts, spaced), offset)
        return keep_longest(candidates)

    def _token_patterns(self, document: Doc) -> Iterator[Mention]:
        """Yield every match of the patterns over tokens, with overlaps."""
        for match, start, end in self._matcher(document):
            span = document[start:end]
            yield Mention(span.start_char, span.end_char, self._pipeline.vocab.strings[match])

    def _start_vocabulary(self) -> None:
        import spacy
        from spacy.matcher import Matcher

        with without_plugins():
            self._pipeline = spacy.blank("en")
        self._matcher = Matcher(self._pipeline.vocab)
        for label, patterns in _TOKENS.items():
            self._matcher.add(label, patterns)
        self._words = {}

    def _read(self, orth: int) -> tuple[Word, bool]:
        """Return the properties of the token with this hash, and cache them."""
        if orth not in self._words:
            text = self._pipeline.vocab.strings[orth]
            self._words[orth] = make_word(text), may_match(text)
        return self._words[orth]
