"""Non-finite gradients and losses count as zero, the round reports their number, and the guarantee holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import fl_sim.clients.gradients.clipped_sums
import fl_sim.clients.local_steps
from fl_sim.clients.batches import Batch, Example
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import loss_gradients, sentence_losses
from tests.e2e.small_runs import Run, model_of

pytestmark = pytest.mark.usefixtures("no_plots")

ILL = 5
"""Every fifth sentence makes the model overflow."""

RATES: dict[str, dict[str, float]] = {"uedp": {"privacy__q_s": 1.0, "privacy__q_e": 1.0}, "user_level": {}}


def is_ill(examples: Sequence[Example]) -> bool:
    return any(example.number % ILL == 0 for example in examples)


@pytest.mark.sample(1)
@pytest.mark.parametrize("wrong", [math.nan, -math.inf])
@pytest.mark.parametrize("strategy", ["uedp", "user_level"])
def test_non_finite_gradients_count_as_zero_and_are_reported(
    strategy: str, wrong: float, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_batch = LanguageModel.batch
    ill_batches = []

    def batch(model: LanguageModel, examples: Sequence[Example], mask_seed: int | None = None) -> Batch:
        made = make_batch(model, examples, mask_seed)
        if is_ill(examples):
            ill_batches.append(made)
        return made

    def gradients(model: LanguageModel, batch: Batch) -> Any:
        loss, gradient = loss_gradients(model, batch)
        is_in = any(batch is ill for ill in ill_batches)
        return (wrong, {name: g * wrong for name, g in gradient.items()}) if is_in else (loss, gradient)

    def losses(model: LanguageModel, examples: Sequence[Example], mask_seed: int | None = None) -> torch.Tensor:
        values = sentence_losses(model, examples, mask_seed)
        return values * wrong if is_ill(examples) else values

    monkeypatch.setattr(fl_sim.clients.gradients.clipped_sums, "covered_layers", lambda model: None)
    settings = {"privacy__strategy": strategy, "privacy__q_u": 1.0, **RATES[strategy]}
    healthy = run("healthy", **settings)
    monkeypatch.setattr(LanguageModel, "batch", batch)
    monkeypatch.setattr(fl_sim.clients.gradients.clipped_sums, "loss_gradients", gradients)
    monkeypatch.setattr(fl_sim.clients.local_steps, "sentence_losses", losses)
    ill = run("ill", **settings)
    assert np.isfinite(model_of(ill)).all()
    sick, well = ill.metrics().iloc[1:], healthy.metrics().iloc[1:]
    assert (sick["nonfinite"] > 0).all()
    assert (well["nonfinite"] == 0).all()
    assert np.isfinite(sick["train_loss"]).all()
    assert (sick["failed_nodes"] == 0).all()
    same = ["noise_norm", "cohort_users", "cohort_sentences", "epsilon_user", "epsilon_user_entity_max"]
    assert sick[same].equals(well[same])
