"""Runs of capitalised words as names: the part of the rules that knows no label."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fl_sim.data_prep.records import Mention
from fl_sim.data_prep.taggers.common_words import COMMON_NOUNS, OPENERS

NAME = "NAME"
"""Label of a run of capitalised words; the rules do not tell people from places."""

_PARTICLES = "of de la le du van von der den di da del al el bin ibn y"
_LINK_WORDS = frozenset(_PARTICLES.split())
_LINK_MARKS = frozenset("&-–'’./")
_OPENING_MARKS = frozenset('.!?:;"“”‘([-–—*•')
_DAYS = frozenset(f"{day}day" for day in ("mon", "tues", "wednes", "thurs", "fri", "satur", "sun"))
_TITLES = frozenset({"i'm", "i've", "mr", "mrs", "ms", "dr"})


@dataclass(frozen=True, slots=True)
class Word:
    """What the rules ask of a token, all of it a function of the token's characters."""

    text: str
    capitalised: bool
    acronym: bool
    links: bool  # a particle in lower case ("of"), wherever it stands
    marks: bool  # a hyphen and the like, which links names where no space stands before it
    opens: bool  # after it, a capital letter says little
    dull: bool  # never a name by itself
    opener: bool  # no name where a sentence begins
    noun: bool  # no name where a sentence begins and nothing follows


def make_word(text: str) -> Word:
    """The word with the characters ``text``."""
    lower = text.lower()
    return Word(
        text=text,
        capitalised=any(map(str.isupper, text)) and any(map(str.isalpha, text)),
        acronym=len(text) > 1 and text.isupper(),
        links=lower in _LINK_WORDS and not text.istitle(),
        marks=text in _LINK_MARKS,
        opens=text in _OPENING_MARKS or text.isspace(),
        dull=lower in _never_names(),
        opener=lower in OPENERS,
        noun=lower in COMMON_NOUNS,
    )


def find_names(text: str, words: Sequence[Word], starts: Sequence[int], spaced: Sequence[int]) -> Iterator[Mention]:
    """Maximal runs of capitalised words, linked by particles ("Bank of England"), less common openers.

    ``starts`` are the words' places in ``text``; ``spaced`` says of each whether a space follows it.
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
    """One past the last capitalised word of the run that begins at ``start``."""
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
    """``start`` moved past words that are capitalised for another reason than being a name."""
    opening = start == 0 or words[start - 1].opens
    if opening and end - start == 1 and words[start].noun:
        return end
    while start < end:
        word = words[start]
        dull = word.dull or (opening and word.opener) or _links(words, spaced, start)
        if not dull or (word.acronym and not shouted):
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
