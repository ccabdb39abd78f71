"""Operations on texts and the mentions in them: split, shift, thin out, unite.

>>> keep_longest([Mention(0, 7, "ORG"), Mention(3, 5, "GPE")])
(Mention(start=0, end=7, label='ORG'),)
>>> unite([[Mention(3, 5, "GPE")], [Mention(0, 7, "ORG"), Mention(3, 5, "NAME")]])
(Mention(start=0, end=7, label='ORG'), Mention(start=3, end=5, label='GPE'))
"""

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
    """Return ``text`` with U+FFFD for lone surrogates, which no tagger and no file can encode; places stay the same."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def split_text(text: str) -> Iterator[tuple[int, str]]:
    """Yield the pieces of ``text`` that a tokenizer and a model can take, each with its place.

    Nearly always that is one piece. A text of more than 100,000 characters is cut at white space, to save memory. A
    word of more than 400 characters is cut, because spaCy's tokenizer takes quadratic time (minutes for 100,000 emoji).
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
    """Return the mentions of a piece as mentions of the text in which the piece begins at ``offset``."""
    return mentions if offset == 0 else [Mention(m.start + offset, m.end + offset, m.label) for m in mentions]


def keep_longest(candidates: Iterable[Mention]) -> tuple[Mention, ...]:
    """Drop mentions that overlap a longer one, or one as long that begins earlier; return the rest by place."""
    kept: list[Mention] = []
    starts: list[int] = []
    for mention in sorted(candidates, key=lambda m: (m.start - m.end, m.start)):
        after = bisect.bisect_left(starts, mention.end)
        if after == 0 or kept[after - 1].end <= mention.start:
            kept.insert(after, mention)
            starts.insert(after, mention.start)
    return tuple(kept)


def unite(groups: Iterable[Iterable[Mention]]) -> tuple[Mention, ...]:
    """Return every span of every group once, by place; the first group with a span gives its label.

    Overlapping spans are kept: if two taggers disagree about the end of a name, the sentence has two entities, and is
    protected with either.
    """
    spans: dict[tuple[int, int], Mention] = {}
    for group in groups:
        for mention in group:
            spans.setdefault((mention.start, mention.end), mention)
    return tuple(spans[span] for span in sorted(spans))
