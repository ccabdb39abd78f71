"""A frozen output layer in chunks: the same losses, errors and gradients as from all scores at once."""

from __future__ import annotations

import numpy as np
import pytest
import transformers

from fl_sim.clients.gradients import ghost_pass
from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.models import frozen_head, losses
from fl_sim.clients.models.frozen_head import frozen_head as head_of
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import held_out
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import _LLAMA_LIKE, CLASSES, VOCABULARY, examples
from tests.clients.test_frozen_states import upper

GIVEN = examples(5, 9, 30, 12, 1, 22, 3)


def granite() -> LanguageModel:
    """Its scores are divided by a number after the output layer."""
    return upper(transformers.GraniteConfig(**_LLAMA_LIKE, logits_scaling=4.0, tie_word_embeddings=True))


def gemma2() -> LanguageModel:
    """Its scores are squashed after the output layer."""
    return upper(
        transformers.Gemma2Config(**_LLAMA_LIKE, head_dim=8, final_logit_softcapping=0.5, initializer_range=0.5)
    )


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of four positions."""
    monkeypatch.setattr(frozen_head, "_SCORES", 3 * VOCABULARY)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("build", [models_to_try.with_adapters, granite], ids=["gpt2", "granite"])
def test_it_gives_what_all_scores_give(build: models_to_try.Build, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models_to_try.shifted(build())
    assert head_of(model) is not None
    assert ghost_pass.covered_layers(model) is not None  # else the head would not be used
    found, seen = clipped_gradient_sum(model, GIVEN, 0.05), held_out(model, GIVEN)
    for module in (ghost_pass, losses):
        monkeypatch.setattr(module, "frozen_head", lambda model: None)
    expected, known = clipped_gradient_sum(model, GIVEN, 0.05), held_out(model, GIVEN)
    np.testing.assert_allclose(found.vector, expected.vector, rtol=1e-4, atol=1e-6)
    assert (found.clipped, found.loss_sum) == (expected.clipped, pytest.approx(expected.loss_sum, rel=1e-6))
    np.testing.assert_allclose(seen.losses, known.losses, rtol=1e-5)
    np.testing.assert_array_equal(seen.wrong, known.wrong)


def test_scores_that_are_squashed_afterwards_are_left_to_the_model() -> None:
    model = gemma2()
    assert head_of(model) is None
    assert clipped_gradient_sum(model, GIVEN, 0.05).sentences == 7


def test_what_trains_is_left_to_the_model() -> None:
    models = [models_to_try.small_gpt2(), models_to_try.small_gpt2(CLASSES, lora_rank=2), models_to_try.awd_lstm()]
    assert [head_of(model) for model in models] == [None, None, None]


def test_a_loss_that_is_not_finite_counts_as_zero() -> None:
    model = models_to_try.with_adapters()
    model.set_vector(np.full(model.num_parameters, 1e30, np.float32))
    result = clipped_gradient_sum(model, GIVEN[:3], 1.0)
    assert result.nonfinite == 3
    assert not result.vector.any()
