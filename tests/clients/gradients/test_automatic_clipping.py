"""Automatic clipping: every sentence adds c·g/(‖g‖ + γ), which is shorter than c, on the fast and on the slow path."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fl_sim.clients.gradients import clipped_sums
from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.models.language_model import LanguageModel
from tests.clients.gradients.test_clipped_sums import true_gradients
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import examples

C = 0.1


@pytest.fixture(scope="module")
def small() -> LanguageModel:
    return models_to_try.small_gpt2()


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
