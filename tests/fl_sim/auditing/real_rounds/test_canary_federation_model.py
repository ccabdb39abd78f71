"""Test canary sentences: the scores of the real model, and orthonormal gradients through every gradient path."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fl_sim.auditing.real_rounds.canary_cases import AWD_LSTM, GPT2, LORA
from fl_sim.auditing.real_rounds.canary_federation import along_canaries, canary_model, canary_tokens
from fl_sim.clients.batches import Example
from fl_sim.clients.gradients import clipped_sums
from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.gradients.ghost_pass import covered_layers
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.model_spec import ModelSpec

CHOSEN = [0, 17, 255]
TEXTS = ["Ada left the house.", "It rained.", "Nobody came"]


def sentences(model: LanguageModel) -> list[Example]:
    canaries = [Example(canary_tokens(model, number), number=number) for number in CHOSEN]
    return [*canaries, *model.encode(TEXTS)]


@pytest.mark.parametrize("spec", [GPT2, LORA, AWD_LSTM], ids=["gpt2", "lora", "awd-lstm"])
@pytest.mark.parametrize("fast", [True, False])
def test_each_canary_moves_the_clipped_sum_by_c_in_its_own_direction(
    spec: ModelSpec, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = canary_model(spec, seed=0, side=16)
    assert covered_layers(model) is not None
    if not fast:
        monkeypatch.setattr(clipped_sums, "covered_layers", lambda model: None)
    total = clipped_gradient_sum(model, sentences(model), 2.0, mask_seed=3).vector
    along = along_canaries(model, total[None])[0]
    assert along[CHOSEN] == pytest.approx([2.0] * 3, rel=1e-5)
    assert np.abs(np.delete(along, CHOSEN)).max() < 1e-5
    assert np.linalg.norm(along) == pytest.approx(2.0 * 3**0.5, rel=1e-5)  # the directions are orthonormal


def test_the_scores_are_those_of_the_real_model() -> None:
    wrapped, real = canary_model(GPT2, seed=4, side=3), load_model(GPT2, 4)
    rng = np.random.default_rng(0)
    vector = wrapped.get_vector()
    vector[-9:] = rng.standard_normal(9)  # whatever the layer's weight is
    wrapped.set_vector(vector)
    examples = [Example(canary_tokens(wrapped, 5)), *wrapped.encode(TEXTS)]
    with torch.no_grad():
        assert torch.equal(wrapped.logits(wrapped.batch(examples)), real.logits(real.batch(examples)))


def test_sentences_shorter_than_a_canary_have_no_gradient_in_the_layer() -> None:
    model = canary_model(GPT2, seed=0, side=4)
    short = [Example(np.array([model.bos_id, 5])), Example(np.array([model.bos_id, 5, 6, 7]))]
    total = clipped_gradient_sum(model, short, 1.0).vector
    assert np.abs(along_canaries(model, total[None])).max() == 0.0
