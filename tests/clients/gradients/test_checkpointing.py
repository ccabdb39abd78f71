"""Test blocks that are computed again in the backward pass: the same sums and norms, in less memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fl_sim.clients.errors import ModelError
from fl_sim.clients.gradients import ghost_pass
from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.gradients.ghost_pass import gradient_path
from fl_sim.clients.gradients.user_sums import user_sums
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.losses import held_out, loss_gradients
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.diagnosis.worker_memory import LiveBytes
from tests.clients.gradients.test_memory_of_a_pass import SIZES, TOKENS, peak_of_clipping, sentences_of
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import examples

MODELS: dict[str, Callable[[], LanguageModel]] = {
    "gpt2": models_to_try.small_gpt2,
    "gpt2, lora": models_to_try.with_adapters,
    "gpt2, bfloat16": lambda: models_to_try.small_gpt2(precision="bfloat16"),
    "llama": models_to_try.llama,
    "bert": models_to_try.bert,
}


def checkpointed(model: LanguageModel) -> LanguageModel:
    """Let a model compute its blocks again, as ``model.checkpointing`` does."""
    model.recomputed = model.architecture.blocks(model._body)
    assert len(model.recomputed) == 2
    assert gradient_path(model).name == "fast"
    return model


def everything(model: LanguageModel) -> dict[str, np.ndarray]:
    sentences = examples(5, 9, 30, 12, 2, 22, 3, task=model.task)
    found: dict[str, np.ndarray] = {}
    for clip_norm in (0.05, 3.0, math.inf):
        found[f"sentences, {clip_norm}"] = clipped_gradient_sum(model, sentences, clip_norm).vector
        total = torch.zeros(model.num_parameters)
        for group in user_sums(model, [sentences[:3], sentences[3:]], clip_norm):
            group.add([0.5 + user for user in group.users], total)
        found[f"users, {clip_norm}"] = total.numpy()
    known = [sentence for sentence in sentences if model.task.size(sentence)][:4]
    passed = ghost_pass.ghost_pass(model, ghost_pass.cover(model), model.batch(known))
    found["norms"] = torch.stack([c.squared.sqrt() for c in passed.of_sentences()]).flatten().numpy()
    for name, gradient in loss_gradients(model, model.batch(known))[1].items():
        found[f"gradient of {name}"] = gradient.numpy()
    return found | {"losses": held_out(model, sentences).losses}


@pytest.mark.nightly
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_sums_and_norms_are_the_same(build: Callable[[], LanguageModel]) -> None:
    plain, again = build(), checkpointed(build())
    tolerance = 1e-2 if plain.mixed else 1e-6
    expected = everything(plain)
    for name, found in everything(again).items():
        assert np.linalg.norm(found - expected[name]) <= tolerance * np.linalg.norm(expected[name]), name


def test_blocks_are_computed_again_and_are_the_modules_own_afterwards() -> None:
    model, calls = checkpointed(models_to_try.small_gpt2()), []
    block: Any = model.recomputed[0]
    handle = block.mlp.register_forward_hook(lambda *_: calls.append(1))
    clipped_gradient_sum(model, examples(5, 9), 0.05)
    handle.remove()
    assert len(calls) == 4  # two passes, forward and again
    assert not any("forward" in vars(block) for block in model.recomputed)


def peak_of(model: LanguageModel) -> int:
    with LiveBytes() as memory:
        clipped_gradient_sum(model, sentences_of(model), 0.1, max_batch_tokens=TOKENS)
    return memory.peak


@pytest.mark.nightly
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_takes_less_memory(precision: str) -> None:
    model = load_model(ModelSpec(**SIZES, precision=precision, checkpointing=True), seed=0)
    assert gradient_path(model).name == "fast"
    assert peak_of(model) < 0.75 * peak_of_clipping(precision=precision)


def test_a_pass_that_is_not_repeated_exactly_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The norms that clip are those of the first pass, and the sum is of the second."""
    model = checkpointed(models_to_try.small_gpt2())
    run, calls = LanguageModel.logits, [0]

    def drifting(self: LanguageModel, batch: Any) -> torch.Tensor:
        calls[0] += 1
        return run(self, batch) * (1 + 1e-3 * calls[0])

    monkeypatch.setattr(LanguageModel, "logits", drifting)
    with pytest.raises(ModelError, match=r"not the same when it is computed again; allowed: model.checkpointing"):
        clipped_gradient_sum(model, examples(5, 9), 0.05)


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ModelError, match=r"model.checkpointing is true; allowed for 'awd-lstm': false"):
        load_model(ModelSpec(name="awd-lstm", hidden=8, layers=1, checkpointing=True), seed=0)


def test_a_module_that_is_never_called_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its input is known in the backward pass alone; a block that stops early would lack it."""
    model = models_to_try.small_gpt2()
    model.recomputed = (nn.ModuleList(model.architecture.blocks(model._body)),)  # never called itself, so not patched
    assert gradient_path(model).name == "slow"
