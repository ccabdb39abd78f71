"""The law of secrets: uniform, distinct draws, and words that no preprocessing changes."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats

from fl_sim.data_prep.canaries import WORDS, SecretLaw
from fl_sim.data_prep.readers.cleaning import Preprocessing
from fl_sim.data_prep.records import CorpusError


def test_every_number_is_another_secret() -> None:
    law = SecretLaw(words=("a", "b", "c"), length=3)
    assert len({law.secret(number) for number in range(law.size)}) == law.size == 27


@pytest.mark.parametrize("law", [SecretLaw(words=("a", "b", "c"), length=2), SecretLaw(words=WORDS[:40], length=1)])
def test_draws_are_uniform_over_what_is_left(law: SecretLaw) -> None:
    counts = np.zeros(law.size)
    for seed in range(2000):
        counts[law.draw(np.random.default_rng(seed), 1, without={0, 4})] += 1
    assert counts[0] == counts[4] == 0
    assert stats.chisquare(np.delete(counts, [0, 4])).pvalue > 1e-3


def test_draws_are_distinct_and_limited() -> None:
    law = SecretLaw(words=("a", "b", "c"), length=2)
    assert sorted(law.draw(np.random.default_rng(0), 7, without={1, 2}).tolist()) == [0, 3, 4, 5, 6, 7, 8]
    assert len(set(SecretLaw().draw(np.random.default_rng(0), 500).tolist())) == 500
    with pytest.raises(CorpusError, match=r"^8 secrets are to be drawn; allowed: at most 7$"):
        law.draw(np.random.default_rng(0), 8, without={1, 2})


def test_the_public_list_has_64_words_that_preprocessing_keeps() -> None:
    assert len(set(WORDS)) == len(WORDS) == 64
    assert all(word.isascii() and word.isalpha() and word.islower() for word in WORDS)
    assert Preprocessing.of_paper().text(" ".join(WORDS)) == " ".join(WORDS)


def test_a_list_with_a_repeated_word_is_refused() -> None:
    with pytest.raises(ValidationError, match="there twice"):
        SecretLaw(words=("a", "b", "a"))
