"""Tasks: what is told of a sentence, what the held-out figures mean, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fl_sim.clients.batches import Example, Examples
from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.losses import held_out, sentence_losses
from fl_sim.clients.tasks import Classification, HeldOut, NextWord, TextSizes, make_task
from fl_sim.data_prep.store.encode import EncodedSplit
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import CLASSES, examples

CPU = torch.device("cpu")


def found(losses: list[float], predictions: list[int], wrong: list[int]) -> HeldOut:
    return HeldOut(np.array(losses), np.array(predictions), np.array(wrong))


def sizes(words: list[int]) -> TextSizes:
    """Sizes of texts of ten bytes a word."""
    return TextSizes(np.array(words), 10 * np.array(words))


def test_sizes_count_the_end_and_leave_out_cut_texts() -> None:
    measured = TextSizes.of(["Ada läuft.", "cut off"], np.array([True, False]))
    assert (measured.words.tolist(), measured.bytes.tolist()) == ([3, 0], [12, 0])
    assert measured.whole.tolist() == [True, False]


def test_the_nats_of_targets_add_up_to_those_of_their_sentence() -> None:
    model = models_to_try.small_gpt2()
    given = examples(9, 12, 1, 20)
    model.largest_batch = 30
    measured = held_out(model, given)
    assert measured.target_nats is not None
    parts = np.split(measured.target_nats, np.cumsum(measured.predictions)[:-1])
    np.testing.assert_allclose([part.sum() for part in parts], measured.nats, rtol=1e-5)
    alone = held_out(model, given[3:]).target_nats
    np.testing.assert_allclose(parts[3], alone, rtol=1e-4)


def test_perplexity_per_token_and_per_word() -> None:
    """Three sentences of 4, 6 and 2 tokens; the second was cut, so that nobody knows how many words were told."""
    metrics = NextWord().metrics(found([2.0, 1.0, 3.0], [4, 6, 2], [4, 5, 0]), sizes([3, 0, 2]))
    assert metrics["loss"] == pytest.approx((8 + 6 + 6) / 12)
    assert metrics["perplexity"] == pytest.approx(math.exp(20 / 12))
    assert metrics["perplexity_per_word"] == pytest.approx(math.exp((8 + 6) / 5))
    assert metrics["bits_per_byte"] == pytest.approx((8 + 6) / math.log(2) / 50)
    assert metrics["accuracy"] == pytest.approx(3 / 12)


def test_nothing_to_tell_is_no_figure_and_no_overflow() -> None:
    nothing = sizes([0])
    assert math.isnan(NextWord().metrics(found([0.0], [0], [0]), nothing)["perplexity"])
    assert math.isnan(CLASSES.metrics(found([0.0], [0], [0]), nothing)["error"])
    assert NextWord().metrics(found([1e6], [1], [0]), sizes([1]))["perplexity"] == math.inf


def test_a_classifier_counts_what_its_highest_score_misses() -> None:
    model = models_to_try.small_gpt2(CLASSES)
    given = examples(9, 12, 7, 20, 15, task=CLASSES)
    scores = [model.logits(model.batch([e])).flatten() for e in given if e.target >= 0]
    targets = [e.target for e in given if e.target >= 0]
    wrong = [int(s.argmax()) != t for s, t in zip(scores, targets, strict=True)]
    measured = held_out(model, given)
    assert measured.predictions.tolist() == [1, 1, 1, 0, 1]  # the fourth has no class
    assert measured.wrong.sum() == sum(wrong)
    assert float(sentence_losses(model, given)[3].detach()) == 0.0


def test_a_class_that_is_none_is_refused() -> None:
    with pytest.raises(ModelError, match="class is 3; allowed: 0 to 2"):
        CLASSES.collate([Example(np.array([1, 2]), target=3)], CPU)
    with pytest.raises(ModelError, match="all or none"):
        CLASSES.collate([Example(np.array([1]), 0), Example(np.array([1]), 0, 0, np.zeros(2, np.float32))], CPU)


@pytest.mark.parametrize("classes", [(), ("alone",)])
def test_one_class_is_no_classification(classes: tuple[str, ...]) -> None:
    with pytest.raises(ModelError, match=f"there are {len(classes)} classes"):
        make_task("classification", classes)
    assert isinstance(make_task("next-word", classes), NextWord)
    assert isinstance(make_task("classification", ("a", "b")), Classification)


def test_examples_are_read_by_number() -> None:
    encoded = EncodedSplit(np.arange(6, dtype=np.int32), np.array([0, 1, 3, 6]))
    targets = np.array([2, -1, 0], dtype=np.int32)
    features = np.arange(6, dtype=np.float32).reshape(3, 2)
    last, first = Examples(encoded, targets, features).read(np.array([2, 0]))
    assert (last.tokens.tolist(), last.target, last.number) == ([3, 4, 5], 0, 2)
    assert (first.tokens.tolist(), first.target, first.number) == ([0], 2, 0)
    np.testing.assert_array_equal(last.features, features[2])
    (plain,) = Examples(encoded).read([1])
    assert (plain.target, plain.features) == (-1, None)
