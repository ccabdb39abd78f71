"""A token is an entity token if a character of it lies in a mention, and tokens share the bytes of their text."""

from __future__ import annotations

import numpy as np
import pytest

from fl_sim.clients.models.tokenizers import load_tokenizer
from fl_sim.experiments.user_utility import covered_bytes, is_entity_token, token_spans

TEXTS = ["Ada Lovelace läuft.", "\U0001f600 Ω by Ada  ", "", "Rain."]


def test_tokens_and_bytes_of_the_bundled_tokenizer() -> None:
    tokenizer = load_tokenizer("bundled")
    spans = token_spans(TEXTS, tokenizer)
    ids = tokenizer(TEXTS, add_special_tokens=False)["input_ids"]
    assert [len(found) for found in spans] == [len(tokens) for tokens in ids]
    for text, found in zip(TEXTS, spans, strict=True):
        covered = covered_bytes(text, found)
        assert covered.sum() == len(text.encode()) + 1
        assert (covered >= 0).all()
    marked = is_entity_token(spans[0], [(0, 12)])
    named = "".join(TEXTS[0][a:b] for (a, b), mark in zip(spans[0], marked, strict=False) if mark)
    assert named.replace(" ", "") == "AdaLovelace"
    assert not marked[-1]


@pytest.mark.parametrize(
    ("mention", "expected"),
    [((0, 3), [1, 0, 0]), ((2, 4), [1, 1, 0]), ((3, 4), [0, 1, 0]), ((7, 9), [0, 0, 0]), ((1, 1), [0, 0, 0])],
)
def test_one_character_is_enough(mention: tuple[int, int], expected: list[int]) -> None:
    assert is_entity_token([(0, 3), (3, 7)], [mention]).tolist() == [bool(x) for x in expected]


def test_several_tokens_of_one_character_share_its_bytes_once() -> None:
    assert covered_bytes("Ω!", [(0, 1), (0, 1), (1, 2)]).tolist() == [2, 0, 1, 1]


def test_a_tokenizer_that_knows_no_places() -> None:
    assert token_spans(TEXTS, object()) is None
    assert token_spans([], load_tokenizer("bundled")) == []
    np.testing.assert_array_equal(covered_bytes("ab", []), [3])
