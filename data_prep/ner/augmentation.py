"""What the tagger learns from: sentences as they are marked, with what is not marked left open, and altered copies.

A set that does not mark every kind of name says nothing about the capitalised words that it leaves unmarked: "German"
may be MISC. They become unknown, which teaches neither a name nor none. A copy with names exchanged has the same words
around other names of the same kinds, so that a model learns the place of a name rather than the names of its corpus.
Headlines and careless writing have no case to go by.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.data_prep.synthetic.chance import pick

UNKNOWN = "?"
"""The label of a mention that may or may not be a name."""

_LONGEST = 60
_CAPITALISED = re.compile(r"(?<=\S )[A-Z][a-z]{2,}\b")


def name_pools(sentences: Iterable[Sentence]) -> dict[str, tuple[str, ...]]:
    """Label → the different surfaces under it that are written as names are, sorted.

    Handles (@someone), tags (#something) and names without a capital are left out: they stand where others cannot.
    """
    pools: dict[str, set[str]] = {}
    for sentence in sentences:
        for mention in sentence.mentions:
            surface = sentence.surface(mention)
            if _is_plain_name(surface):
                pools.setdefault(mention.label, set()).add(surface)
    return {label: tuple(sorted(pools[label])) for label in sorted(pools)}


def mark_unknown(sentence: Sentence) -> Sentence:
    """``sentence`` with every unmarked capitalised word, but the first word, marked :data:`UNKNOWN`."""
    marked = {place for mention in sentence.mentions for place in range(mention.start, mention.end)}
    words = [found.span() for found in _CAPITALISED.finditer(sentence.text)]
    unknown = [Mention(start, end, UNKNOWN) for start, end in words if marked.isdisjoint(range(start, end))]
    return replace(sentence, mentions=(*sentence.mentions, *unknown))


def swap_names(
    sentence: Sentence, pools: Mapping[str, Sequence[str]], share: float, rng: np.random.Generator
) -> Sentence:
    """``sentence`` with each plain name exchanged, with probability ``share``, for another of its label.

    Mentions must not overlap. White space and everything around the names stays.
    """
    parts: list[str] = []
    mentions: list[Mention] = []
    length = position = 0
    for mention in sorted(sentence.mentions, key=lambda m: m.start):
        surface = sentence.surface(mention)
        if _is_plain_name(surface) and mention.label in pools and rng.random() < share:
            surface = pick(pools[mention.label], rng)
        before = sentence.text[position : mention.start]
        start = length + len(before)
        mentions.append(Mention(start, start + len(surface), mention.label))
        parts += [before, surface]
        length = start + len(surface)
        position = mention.end
    return replace(sentence, text="".join([*parts, sentence.text[position:]]), mentions=tuple(mentions))


def drop_case(sentence: Sentence, upper: bool) -> Sentence:
    """``sentence`` in capitals or in small letters; a letter whose other form has another length stays."""
    text = "".join(_other(character, upper) for character in sentence.text)
    return replace(sentence, text=text)


def _other(character: str, upper: bool) -> str:
    other = character.upper() if upper else character.lower()
    return other if len(other) == 1 else character


def _is_plain_name(surface: str) -> bool:
    return surface[0].isupper() and len(surface) <= _LONGEST and not any(mark in surface for mark in "@#")
