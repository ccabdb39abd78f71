"""AWD-LSTM: the recurrence against torch's own, and masks that depend on nothing but seed and sentence."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fl_sim.clients.models.architectures.awd_lstm import Masks
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.losses import held_out, sentence_losses
from fl_sim.clients.models.model_names import SMALL_AWD_LSTM_PUBLIC
from fl_sim.clients.models.model_spec import ModelSpec
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import AWD, CLASSES, VOCABULARY, examples


@pytest.fixture(scope="module")
def dropping() -> LanguageModel:
    return models_to_try.awd_lstm(dropout=1.0)


def masks_of(model: LanguageModel, given: Any, seed: int) -> Masks:
    return model.batch(given, seed).masks


def test_it_is_torchs_lstm() -> None:
    """With weight-drop, and the two biases of torch's as one; so are its gradients."""
    model = models_to_try.awd_lstm(dropout=1.0)
    batch = model.batch(examples(9, 14, 6), 5)
    body: Any = model.module.body  # type: ignore[union-attr]
    states = body.embedding(batch.inputs) * batch.masks.words * batch.masks.states[0]
    references = []
    for index, layer in enumerate(body.layers):
        reference = nn.LSTM(layer.project.in_features, layer.project.out_features // 4, batch_first=True)
        with torch.no_grad():
            reference.weight_ih_l0.copy_(layer.project.weight)
            reference.weight_hh_l0.copy_(layer.recurrence.weight * batch.masks.weights[index])
            reference.bias_ih_l0.copy_(layer.project.bias)
            reference.bias_hh_l0.zero_()
        states = reference(states)[0] * batch.masks.states[index + 1]
        references.append(reference)
    own = body(batch)
    torch.testing.assert_close(own, states, rtol=1e-5, atol=1e-6)
    factors, weights = torch.rand_like(states), [layer.recurrence.weight for layer in body.layers]
    of_own = torch.autograd.grad((own * factors).sum(), [body.embedding.weight, *weights])
    expected = [body.embedding.weight, *(reference.weight_hh_l0 for reference in references)]
    of_embedding, *of_weights = torch.autograd.grad((states * factors).sum(), expected)
    torch.testing.assert_close(of_own[0], of_embedding, rtol=1e-4, atol=1e-6)
    for one, other, mask in zip(of_own[1:], of_weights, batch.masks.weights, strict=True):
        torch.testing.assert_close(one, other * mask, rtol=1e-4, atol=1e-6)


def test_the_public_one_has_its_own_sizes_and_the_dropout_of_the_spec() -> None:
    model = load_model(ModelSpec(name=SMALL_AWD_LSTM_PUBLIC, hidden=7, dropout=1.0), 3)
    shapes = dict(model.parameters.shapes())
    assert shapes["body.embedding.weight"] == (VOCABULARY, 64)
    assert [shapes[f"body.layers.{i}.recurrence.weight"][1] for i in range(2)] == [96, 64]
    assert model.has_dropout
    np.testing.assert_array_equal(model.get_vector(), load_model(ModelSpec(name=SMALL_AWD_LSTM_PUBLIC), 0).get_vector())
    assert load_model(ModelSpec(name=SMALL_AWD_LSTM_PUBLIC), 0, task=CLASSES).classifier is not None


def test_the_papers_sizes_are_the_defaults() -> None:
    model = load_model(ModelSpec(name="awd-lstm"), 0)
    shapes = dict(model.parameters.shapes())
    assert shapes["body.embedding.weight"] == (VOCABULARY, 100)
    assert [shapes[f"body.layers.{i}.recurrence.weight"][1] for i in range(3)] == [1150, 1150, 100]
    assert "decoder.weight" not in shapes  # tied
    assert model.num_parameters == 17_253_296
    module: Any = model.module
    assert module.decoder.weight is module.body.embedding.weight
    assert float(module.body.embedding.weight.detach().abs().max()) <= 0.1
    assert float(module.body.layers[0].recurrence.weight.detach().abs().max()) <= 1150**-0.5
    assert not model.has_dropout


def test_a_sentences_masks_do_not_depend_on_its_neighbours(dropping: LanguageModel) -> None:
    """Neither on the batch, nor on the place in it, nor on the padding."""
    given = examples(12, 30, 5)
    together = masks_of(dropping, given, 3)
    for row, example in enumerate(given):
        alone = masks_of(dropping, [example], 3)
        length = len(example) - 1
        torch.testing.assert_close(together.words[row, :length], alone.words[0, :length], rtol=0, atol=0)
        for many, one in zip(together.states, alone.states, strict=True):
            torch.testing.assert_close(many[row], one[0], rtol=0, atol=0)
        for many, one in zip(together.weights, alone.weights, strict=True):
            torch.testing.assert_close(many, one, rtol=0, atol=0)


def test_masks_are_a_function_of_seed_and_number_alone(dropping: LanguageModel) -> None:
    (example,) = examples(30)
    masks = masks_of(dropping, [example], 3)
    twin = dataclasses.replace(example, tokens=example.tokens[::-1].copy())  # another text of the same number
    for one, other in zip(masks.states, masks_of(dropping, [twin], 3).states, strict=True):
        assert torch.equal(one, other)
    other_number = masks_of(dropping, [dataclasses.replace(example, number=99)], 3)
    other_seed = masks_of(dropping, [example], 4)
    assert not torch.equal(masks.states[1], other_number.states[1])
    assert not torch.equal(masks.states[1], other_seed.states[1])
    for first, same, fresh in zip(masks.weights, other_number.weights, other_seed.weights, strict=True):
        assert first is not None
        assert same is not None
        assert fresh is not None
        assert torch.equal(first, same)  # public: one for all sentences of a seed
        assert not torch.equal(first, fresh)


def test_rates_are_the_papers_and_nothing_changes_on_average() -> None:
    wide = load_model(AWD.model_copy(update={"hidden": 400, "embedding": 200, "dropout": 1.0}), 0)
    given = [dataclasses.replace(e, number=i) for i, e in enumerate(examples(*[30] * 40))]
    masks = masks_of(wide, given, 0)
    dropped = [masks.words, masks.states[0], masks.states[1], masks.states[3], masks.weights[0]]
    for mask, rate in zip(dropped, (0.1, 0.4, 0.3, 0.5, 0.3), strict=True):
        assert mask is not None
        assert float((mask == 0).float().mean()) == pytest.approx(rate, abs=0.03)
        assert float(mask.mean()) == pytest.approx(1.0, abs=0.06)
        assert set(np.round(mask.unique().numpy(), 4)) == {0.0, np.float32(round(1 / (1 - rate), 4))}


def test_a_word_type_is_dropped_everywhere_in_a_sentence(dropping: LanguageModel) -> None:
    repeated = [
        dataclasses.replace(e, tokens=np.tile(e.tokens[:5], 6), number=i) for i, e in enumerate(examples(*[9] * 30))
    ]
    words = masks_of(dropping, repeated, 0).words[:, :25, 0].view(30, 5, 5)
    assert torch.equal(words, words[:, :1].expand(-1, 5, -1))
    assert 0 < int((words == 0).sum()) < words.numel()


def test_evaluation_drops_nothing(dropping: LanguageModel) -> None:
    plain = models_to_try.awd_lstm()
    plain.set_vector(dropping.get_vector())
    given = examples(20, 9)
    np.testing.assert_array_equal(held_out(dropping, given).losses, held_out(plain, given).losses)
    assert not torch.equal(sentence_losses(dropping, given, 1), sentence_losses(dropping, given))
    torch.testing.assert_close(sentence_losses(dropping, given, 1), sentence_losses(dropping, given, 1), rtol=0, atol=0)


@pytest.mark.parametrize("task", [None, CLASSES], ids=["next-word", "classification"])
def test_a_saved_model_comes_back_with_the_dropout_asked_for(task: Any, tmp_path: Path) -> None:
    model = models_to_try.awd_lstm(task)
    model.save(tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    back = load_model(ModelSpec(name=str(tmp_path), dropout=0.5, max_tokens=40), 3, task)
    np.testing.assert_array_equal(back.get_vector(), model.get_vector())
    assert back.has_dropout
    assert not model.has_dropout
    classifier: Any = load_model(ModelSpec(name=str(tmp_path)), 0, CLASSES).module
    original: Any = model.module
    assert torch.equal(classifier.body.embedding.weight, original.body.embedding.weight)
