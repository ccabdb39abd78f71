"""Cutting texts into sentences: where spaCy's sentencizer does, and never through an entity."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_sim.data_prep.readers.cleaning import cut, cut_into_sentences, sentence_bounds
from fl_sim.data_prep.records import Mention, Sentence


def sentences_by_us(text: str) -> list[str]:
    return [text[start:end].strip() for start, end in sentence_bounds(text) if text[start:end].strip()]


def test_abbreviations_end_no_sentence_and_long_words_may() -> None:
    text = f"Mr. Ray of the U.S. left.  {'w' * 300}. No. Why?!"
    assert sentences_by_us(text) == ["Mr. Ray of the U.S. left.", f"{'w' * 300}.", "No.", "Why?!"]


@settings(deadline=None)
@given(st.text(st.sampled_from("aB. !?\n\u3002\u061f\u200d\u0301é\"'()"), max_size=40))
def test_bounds_follow_each_other_without_a_gap(text: str) -> None:
    bounds = sentence_bounds(text)
    assert [start for start, _ in bounds] == [0, *(end for _, end in bounds[:-1])]
    assert bounds[-1][1] == len(text)


@pytest.mark.parametrize("word", ["a", "!", ".", '"', "a.b", "http://a.b/", "(-)"])
def test_a_word_of_a_million_characters_takes_no_time(word: str) -> None:
    began = time.process_time()
    assert len(sentences_by_us(word * (1_000_000 // len(word)) + " Next one.")) <= 2
    assert time.process_time() - began < 5


@st.composite
def row_and_bounds(draw: st.DrawFn) -> tuple[Sentence, list[tuple[int, int]]]:
    text = draw(st.text("ab .\n", min_size=1, max_size=30))
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=4)) | {0, len(text)})
    places = st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))
    spans = {tuple(sorted(place)) for place in draw(st.lists(places, max_size=4))}
    mentions = tuple(Mention(a, b, "X") for a, b in spans if text[a:b].strip())
    return Sentence("train", "u", text, mentions, "class"), list(itertools.pairwise(cuts))


@given(row_and_bounds())
@settings(max_examples=100, deadline=None)
def test_cutting_loses_no_mention_and_no_word(case: tuple[Sentence, list[tuple[int, int]]]) -> None:
    row, bounds = case
    parts = list(cut(row, bounds))
    surfaces = [part.surface(mention).strip() for part in parts for mention in part.mentions]
    assert sorted(surfaces) == sorted(row.surface(mention).strip() for mention in row.mentions)
    assert "".join("".join(part.text for part in parts).split()) == "".join(row.text.split())
    assert all(part.text == part.text.strip() != "" for part in parts)
    assert all(part.target == "class" for part in parts)


def test_many_entities_in_a_long_text_take_linear_time() -> None:
    text = "Ada left. " * 20_000
    mentions = tuple(Mention(place, place + 3, "PER") for place in range(0, len(text), 10))
    began = time.process_time()
    parts = list(cut_into_sentences([Sentence("train", "u", text, mentions)]))
    assert len(parts) == 20_000
    assert all([part.surface(mention) for mention in part.mentions] == ["Ada"] for part in parts)
    assert time.process_time() - began < 5
