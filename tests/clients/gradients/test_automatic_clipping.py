"""Automatic clipping: every sentence adds c·g/(‖g‖ + γ), which is shorter than c, on the fast and on the slow path."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fl_sim.clients.gradients import clipped_sums
from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.gradients.ghost_pass import covered_layers
from fl_sim.clients.gradients.user_sums import user_sums
from fl_sim.clients.models.language_model import LanguageModel
from tests.clients.gradients.test_clipped_sums import MASKS, distance, true_gradients
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import COVERED, NOT_COVERED, examples

C = 0.1
BUILDS = {
    name: (COVERED | NOT_COVERED)[name]
    for name in ("small-gpt2", "gpt2-lora", "awd-lstm-dropout", "bert-class-head", "opt")
}


@pytest.fixture(scope="module")
def small() -> LanguageModel:
    return models_to_try.small_gpt2()


def normalised(gradients: list[NDArray[np.float64]], stability: float) -> NDArray[np.float64]:
    """Return Σ c·g/(‖g‖ + γ)."""
    terms = [C * g / (np.linalg.norm(g) + stability) for g in gradients]
    return np.sum(terms, axis=0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_the_sum_is_the_definition(build: Callable[[], LanguageModel]) -> None:
    model = build()
    given = examples(1, 3, 20, 7, 15, task=model.task)
    true = true_gradients(model, given)
    median = float(np.median([np.linalg.norm(g) for g in true]))
    for stability in (median, median / 100):
        computed = clipped_gradient_sum(model, given, C, mask_seed=MASKS, stability=stability)
        assert distance(computed.vector, normalised(true, stability)) < 2e-5
        assert computed.clipped == sum(np.linalg.norm(g) > C for g in true)
        total, lengths = torch.zeros(model.num_parameters), {}
        for group in user_sums(model, [given[:3], given[3:]], C, MASKS, stability=stability):
            group.add([1.0 - 2.0 * user for user in group.users], total)
            lengths |= dict(zip(group.users, group.lengths, strict=True))
        first, second = normalised(true[:3], stability), normalised(true[3:], stability)
        assert distance(total.numpy(), first - second) < 2e-5
        expected = [np.linalg.norm(first), np.linalg.norm(second)]
        assert [lengths[0], lengths[1]] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("fast", [True, False])
def test_every_sentence_adds_a_norm_just_below_c(
    fast: bool, small: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the division most gradients, which are longer than c, would break the bound."""
    given = examples(2, 3, 20, 33, 7)
    lengths = [np.linalg.norm(g) for g in true_gradients(small, given)]
    if not fast:
        monkeypatch.setattr(clipped_sums, "covered_layers", lambda model: None)
    assert max(lengths) > 10 * C
    for sentence, length in zip(given, lengths, strict=True):
        for stability in (1e-6, 0.01, 10.0):
            moved = clipped_gradient_sum(small, [sentence], C, stability=stability).vector.astype(np.float64)
            assert np.linalg.norm(moved) <= C * (1 + 1e-6)
            assert np.linalg.norm(moved) == pytest.approx(C * length / (length + stability), rel=1e-4)


@pytest.mark.parametrize("wrong", [math.inf, math.nan, 3e38])
def test_a_gradient_that_is_not_finite_counts_as_zero(wrong: float) -> None:
    model = models_to_try.untied_gpt2()
    assert covered_layers(model) is not None
    bad, good = examples(12, 20)
    token = int(next(token for token in bad.tokens if token not in good.tokens))
    embedding: Any = model.module.get_input_embeddings()
    with torch.no_grad():
        embedding.weight[token] = wrong
    computed = clipped_gradient_sum(model, [bad, good], C, stability=0.01)
    assert computed.nonfinite == 1
    assert 0.9 * C < np.linalg.norm(computed.vector) < C


@pytest.mark.parametrize(
    ("coordinate", "expected"),
    [(0.0, 0.0), (1e-30, 0.0), (1e-3, C / 11), (1e30, C)],
    ids=["zero", "underflow", "short", "long"],
)
def test_no_length_breaks_the_bound(
    coordinate: float, expected: float, small: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = {"weight": torch.tensor([0.0, coordinate])}
    monkeypatch.setattr(clipped_sums, "loss_gradients", lambda model, batch: (1.0, gradients))
    views, tally = {"weight": torch.zeros(2)}, clipped_sums.Tally()
    clipped_sums.add_one(small, small.batch(examples(5)), C, views, tally, 0.01)
    assert -float(views["weight"][1]) == pytest.approx(expected, rel=1e-5, abs=1e-12)
    assert tally.nonfinite == 0
