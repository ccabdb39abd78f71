"""Augment the training sentences: mark unknown words, exchange names, drop the case.

In a set that does not mark every kind of name, an unmarked capitalised word may be a name: "German" may be MISC. Such
words become unknown, and the loss ignores them. In a copy with exchanged names the same words surround other names of
the same kinds, so a model learns contexts rather than the names of a corpus. Headlines and careless writing have no
case.

>>> sentence = Sentence("train", "ann", "A German in Leeds", (Mention(12, 17, "LOC"),))
>>> [mention.label for mention in mark_unknown(sentence).mentions]
['LOC', '?']
>>> drop_case(sentence, upper=True).text
'A GERMAN IN LEEDS'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fl_sim.data_prep.records import Mention, Sentence
from tools.synthetic_corpus.chance import pick

UNKNOWN = "?"
"""The label of a mention that may or may not be a name."""

_LONGEST = 60
_CAPITALISED = re.compile(r"(?<=\S )[A-Z][a-z]{2,}\b")


def name_pools(sentences: Iterable[Sentence]) -> dict[str, tuple[str, ...]]:
    """Return label → the distinct surfaces that look like names, sorted.

    Handles (@someone), tags (#something) and names without a capital are left out, because they have other contexts.
    """
    pools: dict[str, set[str]] = {}
    for sentence in sentences:
        for mention in sentence.mentions:
            surface = sentence.surface(mention)
            if _is_plain_name(surface):
                pools.setdefault(mention.label, set()).add(surface)
    return {label: tuple(sorted(pools[label])) for label in sorted(pools)}


def mark_unknown(sentence: Sentence) -> Sentence:
    """Return ``sentence`` with every unmarked capitalised word but the first marked :data:`UNKNOWN`."""
    marked = {place for mention in sentence.mentions for place in range(mention.start, mention.end)}
    words = [match.span() for match in _CAPITALISED.finditer(sentence.text)]
    unknown = [Mention(start, end, UNKNOWN) for start, end in words if marked.isdisjoint(range(start, end))]
    return replace(sentence, mentions=(*sentence.mentions, *unknown))


def swap_names(
    sentence: Sentence, pools: Mapping[str, Sequence[str]], share: float, rng: np.random.Generator
) -> Sentence:
    """Return ``sentence`` with names exchanged for others of their label; all other text stays.

    A plain name is exchanged with probability ``share`` for one of ``pools`` (:func:`name_pools`).
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
    """Return ``sentence`` in upper or lower case; a letter whose other form has another length stays."""
    text = "".join(_other(character, upper) for character in sentence.text)
    return replace(sentence, text=text)


def _other(character: str, upper: bool) -> str:
    other = character.upper() if upper else character.lower()
    return other if len(other) == 1 else character


def _is_plain_name(surface: str) -> bool:
    return surface[0].isupper() and len(surface) <= _LONGEST and not any(mark in surface for mark in "@#")
