"""Mentions of one text: thinning, uniting, and cutting what is too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_sim.data_prep.records import Mention
from fl_sim.data_prep.taggers.spans import keep_longest, replace_surrogates, split_text, unite

MENTIONS = st.lists(
    st.builds(
        lambda start, size, label: Mention(start, start + size, label),
        *(st.integers(0, 12), st.integers(1, 6)),
        st.sampled_from("AB"),
    ),
    max_size=8,
)


def overlap(one: Mention, other: Mention) -> bool:
    return one.start < other.end and other.start < one.end


@given(MENTIONS)
def test_longest_keeps_what_a_plain_search_keeps(candidates: list[Mention]) -> None:
    kept: list[Mention] = []
    for mention in sorted(candidates, key=lambda m: (m.start - m.end, m.start)):
        if not any(overlap(mention, other) for other in kept):
            kept.append(mention)
    assert keep_longest(candidates) == tuple(sorted(kept, key=lambda m: m.start))


@given(st.lists(MENTIONS, max_size=4))
def test_a_union_has_every_span_once_with_the_label_of_the_first_that_found_it(groups: list[list[Mention]]) -> None:
    every = [mention for group in groups for mention in group]
    merged = unite(groups)
    assert [(m.start, m.end) for m in merged] == sorted({(m.start, m.end) for m in every})
    for mention in merged:
        assert mention == next(m for m in every if (m.start, m.end) == (mention.start, mention.end))


@given(st.text(max_size=30))
def test_encodable_keeps_places_and_can_be_encoded(text: str) -> None:
    broken = f"{text}\ud800{text}"
    mended = replace_surrogates(broken)
    mended.encode()
    assert len(mended) == len(broken)
    assert mended.replace("\ufffd", "") == broken.replace("\ud800", "").replace("\ufffd", "")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", 1),
        ("short", 1),
        ("word " * 20_000, 1),
        ("word " * 20_001, 2),
        ("x" * 400, 1),
        ("x" * 401, 2),
        ("x" * 400 + " " + "y" * 400, 1),
        ("a b " + "x" * 1000, 3),
        ("😀" * 100_000, 250),
        ((" " * 300 + "x") * 1000, 4),
    ],
)
def test_pieces_are_the_text_and_few(text: str, parts: int) -> None:
    cut = list(split_text(text))
    assert "".join(piece for _, piece in cut) == text
    assert all(text.startswith(piece, offset) and len(piece) <= 100_000 for offset, piece in cut)
    assert len(cut) == parts
