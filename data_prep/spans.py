"""Mentions of one text: made safe to search, thinned where they overlap, united where several taggers found them."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable

from data_prep.records import Mention

_SURROGATE = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """``text`` with U+FFFD for halves of surrogate pairs, which no tagger can encode; places stay what they are."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def longest(candidates: Iterable[Mention]) -> tuple[Mention, ...]:
    """``candidates`` less those that overlap a longer one, or one as long that begins earlier; in order of place."""
    kept: list[Mention] = []
    starts: list[int] = []
    for mention in sorted(candidates, key=lambda m: (m.start - m.end, m.start)):
        after = bisect.bisect_left(starts, mention.end)
        if after == 0 or kept[after - 1].end <= mention.start:
            kept.insert(after, mention)
            starts.insert(after, mention.start)
    return tuple(kept)


def united(groups: Iterable[Iterable[Mention]]) -> tuple[Mention, ...]:
    """Every span of every group once, in order of place; the first group that has a span gives its label.

    Nothing is dropped for overlapping something else: two taggers that disagree about where a name ends leave two
    entities, and the sentence is hidden with either.
    """
    spans: dict[tuple[int, int], Mention] = {}
    for group in groups:
        for mention in group:
            spans.setdefault((mention.start, mention.end), mention)
    return tuple(spans[span] for span in sorted(spans))
