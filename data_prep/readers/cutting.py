"""Cut texts into sentences without cutting an entity.

The rule is that of spaCy's sentencizer on the tokens of spaCy's English tokenizer: a sentence ends after a full stop,
question mark or the like and the punctuation that follows ("U.S." and "Mr." are tokens, so they end no sentence). The
tokenizer looks at words between white space one by one. So does this module, and it caches the words, which makes it
many times faster than a pipeline that builds documents.

>>> text = "Mr. Byron left. Why?"
>>> [text[start:end] for start, end in sentence_bounds(text)]
['Mr. Byron left. ', 'Why?']
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import Any

from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.data_prep.spacy_plugins import without_plugins

_REMEMBERED_WORDS = 1 << 16
_LONGEST_WORD = 200
"""Longer words are not given to the tokenizer, which may take quadratic time; their last character may still end a
sentence."""

_WORD = re.compile(r"\S+")
_PLAIN_WORD = re.compile(r"[A-Za-z]+")
_PLAIN_END = re.compile(r"[A-Za-z]*[a-z]\.")
"""Words that the tokenizer is known to keep whole, unless they are among its exceptions."""

_ASCII_ENDS = re.compile(r"[.!?]")
"""The full stops of ASCII; a search for all of Unicode's takes several times as long."""


def cut_into_sentences(rows: Iterable[Sentence]) -> Iterator[Sentence]:
    """Yield the sentences of every row (:func:`cut`)."""
    for row in rows:
        yield from cut(row, sentence_bounds(row.text))


def sentence_bounds(text: str) -> list[tuple[int, int]]:
    """Return the sentences of ``text`` as character spans without gaps between them."""
    next_end = (_ASCII_ENDS if text.isascii() else _all_ends()).search
    starts = [0]
    position = 0
    closed = False
    while True:
        if not closed:  # skip to the word with the next full stop
            end = next_end(text, position)
            if not end:
                break
            position = max(position, _word_start(text, end.start()))
        word = _WORD.search(text, position)
        if not word:
            break
        if closed and text[position : word.start()] != " ":  # more white space than one space is a token
            starts.append(word.start())
            closed = False
        opened, closed = _openings(word.group(), closed)
        if opened:
            starts += [word.start() + offset for offset in opened]
        position = word.end()
    return list(itertools.pairwise([*starts, len(text)]))


def cut(row: Sentence, bounds: Iterable[tuple[int, int]]) -> Iterator[Sentence]:
    """Yield the sentences of ``row`` at ``bounds``, without the white space around them.

    Two sentences that share a mention stay together, so no mention is cut or lost.

    Args:
        row: a text with its mentions.
        bounds: character spans that cover the text in order.
    """
    if not row.mentions:
        for start, end in bounds:
            yield from _part(row, start, end, [])
        return
    spans = _join_at_mentions(bounds, row.mentions)
    starts = [start for start, _ in spans]
    inside: list[list[Mention]] = [[] for _ in spans]
    for mention in row.mentions:
        inside[bisect_right(starts, mention.start) - 1].append(mention)
    for (start, end), mentions in zip(spans, inside, strict=True):
        yield from _part(row, start, end, mentions)


def _join_at_mentions(bounds: Iterable[tuple[int, int]], mentions: Iterable[Mention]) -> list[tuple[int, int]]:
    """Return the spans, joined where a bound falls inside a mention."""
    spans = iter(sorted((mention.start, mention.end) for mention in mentions))
    span = next(spans, None)
    covered = 0  # the largest end of the mentions that start before the bound
    joined: list[tuple[int, int]] = []
    for start, end in bounds:
        while span is not None and span[0] < start:
            covered = max(covered, span[1])
            span = next(spans, None)
        if joined and covered > start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _part(row: Sentence, start: int, end: int, mentions: list[Mention]) -> Iterator[Sentence]:
    """Yield the part ``[start, end)`` of ``row`` as a sentence, unless it is blank."""
    text = row.text[start:end]
    stripped = text.strip()
    if not stripped:
        return
    if stripped == row.text:
        yield row
        return
    start += len(text) - len(text.lstrip())
    end = start + len(stripped)
    moved = tuple(Mention(max(m.start, start) - start, min(m.end, end) - start, m.label) for m in mentions)
    yield Sentence(row.split, row.user, stripped, moved, row.target, row.document)


def _word_start(text: str, position: int) -> int:
    while position and not text[position - 1].isspace():
        position -= 1
    return position


@lru_cache(_REMEMBERED_WORDS)
def _openings(word: str, closed: bool) -> tuple[tuple[int, ...], bool]:
    """Find where sentences begin in a word.

    Args:
        word: characters without white space.
        closed: whether a sentence ended before it.

    Returns:
        The offsets in ``word`` where a sentence begins, and whether a sentence has ended after it.
    """
    if _PLAIN_WORD.fullmatch(word):
        return (0,) if closed else (), False
    plain_end = _PLAIN_END.fullmatch(word) and word not in _exceptions() and word[:-1] not in _exceptions()
    if plain_end or len(word) > _LONGEST_WORD:
        return (0,) if closed else (), word[-1] in _full_stops()
    opened = []
    for token in _tokenizer()(word):
        if token.text in _full_stops():
            closed = True
        elif closed and not token.is_punct:
            opened.append(token.idx)
            closed = False
    return tuple(opened), closed


@cache
def _tokenizer() -> Any:
    import spacy

    with without_plugins():
        return spacy.blank("en").tokenizer


@cache
def _exceptions() -> frozenset[str]:
    return frozenset(_tokenizer().rules)


@cache
def _full_stops() -> frozenset[str]:
    from spacy.pipeline import Sentencizer

    return frozenset(Sentencizer.default_punct_chars)


@cache
def _all_ends() -> re.Pattern[str]:
    return re.compile("[" + re.escape("".join(sorted(_full_stops()))) + "]")
