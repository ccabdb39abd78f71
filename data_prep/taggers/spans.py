"""Mentions of one text: made safe to search, thinned where they overlap, united where several taggers found them."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterable, Iterator

from fl_sim.data_prep.records import Mention

_SURROGATE = re.compile("[\ud800-\udfff]")
_LONGEST_WORD = 400
_LONGEST_PIECE = 100_000
_LONG_WORD = re.compile(rf"\S{{{_LONGEST_WORD}}}(?=\S)")


def replace_surrogates(text: str) -> str:
    """``text`` with U+FFFD for halves of surrogate pairs, which no tagger can encode; places stay what they are."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def split_text(text: str) -> Iterator[tuple[int, str]]:
    """``text`` in parts that a tokenizer and a model can take, each with the place where it begins.

    Nearly always that is one part. A text of more than 100,000 characters is cut at white space, for memory's sake;
    and whatever has no white space within 400 characters is cut there, for spaCy's tokenizer takes time that grows with
    the square of a word's length (minutes for 100,000 emoji).
    """
    cuts = [0, len(text)]
    if len(text) > _LONGEST_WORD:
        cuts += [word.end() for word in _LONG_WORD.finditer(text)]
        cuts = sorted(set(cuts))
    for start, end in itertools.pairwise(cuts):
        while end - start > _LONGEST_PIECE:
            space = max(text.rfind(mark, start + 1, start + _LONGEST_PIECE) for mark in " \n\t")
            cut = space if space > start else start + _LONGEST_PIECE
            yield start, text[start:cut]
            start = cut
        yield start, text[start:end]


def shift(mentions: Iterable[Mention], offset: int) -> Iterable[Mention]:
    """``mentions`` of a piece as mentions of the text in which it begins at ``offset``."""
    return mentions if offset == 0 else [Mention(m.start + offset, m.end + offset, m.label) for m in mentions]


def keep_longest(candidates: Iterable[Mention]) -> tuple[Mention, ...]:
    """``candidates`` less those that overlap a longer one, or one as long that begins earlier; in order of place."""
    kept: list[Mention] = []
    starts: list[int] = []
    for mention in sorted(candidates, key=lambda m: (m.start - m.end, m.start)):
        after = bisect.bisect_left(starts, mention.end)
        if after == 0 or kept[after - 1].end <= mention.start:
            kept.insert(after, mention)
            starts.insert(after, mention.start)
    return tuple(kept)


def unite(groups: Iterable[Iterable[Mention]]) -> tuple[Mention, ...]:
    """Every span of every group once, in order of place; the first group that has a span gives its label.

    Nothing is dropped for overlapping something else: two taggers that disagree about where a name ends leave two
    entities, and the sentence is hidden with either.
    """
    spans: dict[tuple[int, int], Mention] = {}
    for group in groups:
        for mention in group:
            spans.setdefault((mention.start, mention.end), mention)
    return tuple(spans[span] for span in sorted(spans))
