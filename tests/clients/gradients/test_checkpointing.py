"""Test blocks that are computed again in the backward pass: the same sums and norms, in less memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fl_sim.clients.errors import ModelError
from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.gradients.ghost_pass import gradient_path
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.model_spec import ModelSpec
from tests.clients.gradients.every_result import assert_same, every_result
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
    model.recomputed = model.architecture.blocks(model.body)
    assert len(model.recomputed) == 2
    assert gradient_path(model).name == "fast"
    return model


@pytest.mark.nightly
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_sums_and_norms_are_the_same(build: Callable[[], LanguageModel]) -> None:
    plain, again = build(), checkpointed(build())
    assert_same(every_result(again), every_result(plain), 1e-2 if plain.mixed else 1e-6)


def test_blocks_are_computed_again_and_are_the_modules_own_afterwards() -> None:
    model, calls = checkpointed(models_to_try.small_gpt2()), []
    block: Any = model.recomputed[0]
    handle = block.mlp.register_forward_hook(lambda *_: calls.append(1))
    clipped_gradient_sum(model, examples(5, 9), 0.05)
    handle.remove()
    assert len(calls) == 4  # two passes, forward and again
    assert not any("forward" in vars(block) for block in model.recomputed)


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
    model.recomputed = (nn.ModuleList(model.architecture.blocks(model.body)),)  # never called itself, so not patched
    assert gradient_path(model).name == "slow"
