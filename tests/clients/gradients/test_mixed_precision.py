"""Test matrix products in bfloat16: the sum changes within rounding, the clip still holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.gradients.ghost_pass import covered_layers
from fl_sim.clients.gradients.user_sums import user_sums
from fl_sim.clients.models import frozen_head
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.losses import held_out
from fl_sim.clients.models.model_spec import ModelSpec
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import examples

SIZES = {"hidden": 32, "layers": 2, "heads": 2, "max_tokens": 32}
CLIP = 0.05


@pytest.fixture(scope="module")
def mixed() -> LanguageModel:
    model = load_model(ModelSpec(**SIZES, precision="bfloat16"), seed=0)
    assert covered_layers(model) is not None
    return model


@pytest.fixture(scope="module")
def full() -> LanguageModel:
    return load_model(ModelSpec(**SIZES), seed=0)


def test_a_sentence_stays_within_its_clip_and_a_user_within_its_norm(mixed: LanguageModel) -> None:
    sentences = examples(5, 9, 17, 30)
    for sentence in sentences:
        alone = clipped_gradient_sum(mixed, [sentence], CLIP).vector
        assert np.linalg.norm(alone.astype(np.float64)) == pytest.approx(CLIP, rel=1e-2)
        assert np.linalg.norm(alone.astype(np.float64)) <= CLIP * (1 + 1e-5)
    for group in user_sums(mixed, [sentences[:2], sentences[2:]], math.inf):
        for row, length in enumerate(group.lengths):
            total = torch.zeros(mixed.num_parameters)
            group.add([float(row == other) for other in range(len(group.users))], total)
            assert float(total.double().norm()) <= length * (1 + 1e-5)


def test_the_sum_is_that_of_float32_but_for_rounding(mixed: LanguageModel, full: LanguageModel) -> None:
    sentences = examples(5, 9, 17, 30)
    rounded, exact = (clipped_gradient_sum(model, sentences, CLIP).vector for model in (mixed, full))
    cosine = rounded @ exact / np.linalg.norm(rounded) / np.linalg.norm(exact)
    assert 0.999 < cosine < 1 - 1e-9


def test_utility_is_measured_in_float32(mixed: LanguageModel, full: LanguageModel) -> None:
    sentences = examples(5, 9)
    assert np.array_equal(held_out(mixed, sentences).losses, held_out(full, sentences).losses)


def test_a_frozen_output_layer_is_in_bfloat16_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradient in the states is that of bfloat16 scores, computed in float32 from them on."""
    model, seen = models_to_try.shifted(models_to_try.with_adapters()), []
    sentences = examples(5, 9, 17, 30)
    exact = clipped_gradient_sum(model, sentences, CLIP)
    product = frozen_head._product

    def noticed(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
        seen.append((right.dtype, out.dtype))
        product(left, right, out)

    monkeypatch.setattr(frozen_head, "_product", noticed)
    monkeypatch.setattr(model, "mixed", True)
    rounded = clipped_gradient_sum(model, sentences, CLIP)
    assert set(seen) == {(torch.bfloat16, torch.float32)}
    cosine = rounded.vector @ exact.vector / np.linalg.norm(rounded.vector) / np.linalg.norm(exact.vector)
    assert 0.999 < cosine < 1 - 1e-9
    assert rounded.loss_sum == pytest.approx(exact.loss_sum, rel=1e-2)
    for sentence in sentences:
        alone = clipped_gradient_sum(model, [sentence], CLIP).vector
        assert np.linalg.norm(alone.astype(np.float64)) <= CLIP * (1 + 1e-5)
