"""Find names as runs of capitalised words, without telling persons from places.

>>> text = "We met Ada Byron ."
>>> words = [make_word(token) for token in text.split()]
>>> list(find_names(text, words, starts=[0, 3, 7, 11, 17], spaced=[1, 1, 1, 1, 0]))
[Mention(start=7, end=16, label='NAME')]
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fl_sim.data_prep.records import Mention
from fl_sim.data_prep.taggers.common_words import COMMON_NOUNS, OPENERS

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

    Args:
        text: any text.
        words: its tokens.
        starts: the place of each token in the text.
        spaced: whether a space follows each token.
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
