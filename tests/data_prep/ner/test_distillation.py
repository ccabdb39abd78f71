"""A table of hashed rows learns words' vectors, as spaCy reads them: the commoner a word, the closer."""

from __future__ import annotations

import numpy as np
import pytest
import spacy

from fl_sim.data_prep.ner.distillation import HASHES, distil_table, hashed_vectors, unknown_words
from fl_sim.data_prep.records import Sentence

WORDS = [f"word{number}" for number in range(400)]
OTHERS = [f"other{number}" for number in range(200)]
TARGETS = np.random.default_rng(0).normal(size=(len(WORDS), 6)).astype(np.float32)


def read(table: np.ndarray, words: list[str]) -> np.ndarray:
    """What tokens get: through a document, as in a pipeline."""
    pipeline = spacy.blank("en")
    pipeline.vocab.vectors = hashed_vectors(table, pipeline.vocab.strings)
    return np.array([pipeline.make_doc(word)[0].vector for word in words])


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(((found - wanted) ** 2).mean() / (TARGETS**2).mean())


@pytest.mark.nightly
def test_a_table_with_room_resembles_its_teacher_in_any_case() -> None:
    table = distil_table(WORDS, TARGETS, OTHERS, rows=2000)
    assert table.shape == (2000, 6)
    assert table.dtype == np.float32
    found = read(table, WORDS)
    assert error(found, TARGETS) < 0.05
    assert error(read(table, OTHERS), np.zeros((len(OTHERS), 6))) < 0.05
    np.testing.assert_array_equal(read(table, [word.upper() for word in WORDS]), found)


@pytest.mark.nightly
def test_in_a_small_table_common_words_come_first() -> None:
    many = [f"many{number}" for number in range(4000)]
    targets = np.random.default_rng(1).normal(size=(len(many), 6)).astype(np.float32)
    crowded = read(distil_table(many, targets, OTHERS, rows=2000), many)
    first, last = (error(crowded[part], targets[part]) for part in (slice(500), slice(3500, 4000)))
    assert first < last < 1.0


def test_a_word_reads_the_mean_of_its_rows() -> None:
    rows = 50
    table = np.eye(rows, dtype=np.float32)
    (read_by_one,) = read(table, ["Porto"])
    assert read_by_one.sum() == pytest.approx(1.0)
    assert set(np.unique(read_by_one * HASHES)) <= set(range(HASHES + 1))


def test_words_outside_are_lower_case_tokens_that_are_not_known() -> None:
    sentences = [Sentence("train", "user", text, ()) for text in ("Ada left Porto.", "Porto, again")]
    assert unknown_words(["left", "again"], sentences) == [",", ".", "ada", "porto"]
