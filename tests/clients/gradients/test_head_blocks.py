"""Test an output layer that is applied in blocks of sentences: sums, norms and losses are those of all scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fl_sim.clients.errors import ModelError
from fl_sim.clients.gradients import ghost_pass
from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.gradients.head_blocks import BlockedTable, HeadRecord, loss_and_score_gradient
from fl_sim.clients.models import frozen_head
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import held_out, sentence_losses
from fl_sim.engines.worker_memory import LiveBytes
from tests.clients.gradients.every_result import assert_same, every_result, gradients_of
from tests.clients.models import models_to_try
from tests.clients.models.models_to_try import VOCABULARY, examples

GIVEN = examples(5, 9, 30, 12, 1, 22, 3)
MODELS: dict[str, Callable[[], LanguageModel]] = {
    "tied table": models_to_try.small_gpt2,
    "llama": models_to_try.llama,
    "bias of an LSTM's table": models_to_try.awd_lstm,
    "biases alone": lambda: models_to_try.awd_lstm(tune="bias"),
    "frozen": models_to_try.with_adapters,
    "bfloat16": lambda: models_to_try.small_gpt2(precision="bfloat16"),
}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of at most 20 tokens."""
    monkeypatch.setattr(frozen_head, "LARGEST", {"cpu": 20 * VOCABULARY * 4})


@pytest.mark.sample(1)
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_blocks_give_what_all_scores_give(build: Callable[[], LanguageModel], small_blocks: None) -> None:
    model = build()
    assert ghost_pass.covered_layers(model) is not None
    in_blocks = every_result(model)
    frozen_head.LARGEST["cpu"] = 1 << 40
    assert_same(in_blocks, every_result(model), 1e-2 if model.mixed else 1e-5)


def test_blocks_are_used_and_no_table_of_scores_is_whole(small_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models_to_try.small_gpt2()
    seen: list[int] = []
    losses = HeadRecord.losses

    def noticed(self: HeadRecord, *args: Any) -> Any:
        seen.append(len(self.row_blocks()))
        return losses(self, *args)

    assert ghost_pass.covered_layers(model) is not None
    monkeypatch.setattr(HeadRecord, "losses", noticed)
    sentences = examples(*[17] * 12)
    works: list[Callable[[], Any]] = [
        lambda: clipped_gradient_sum(model, sentences, 0.05),
        lambda: clipped_gradient_sum(model, sentences, math.inf),
        lambda: held_out(model, sentences),
        lambda: sentence_losses(model, sentences).sum().backward(),
    ]
    for work in works:
        with LiveBytes() as memory:
            work()
        assert memory.largest <= 4 * max(20 * VOCABULARY, model.num_parameters)  # 16 tokens of 192, or the sum
    assert seen == [12]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_no_norm_of_a_tied_table_is_short_of_what_is_added(precision: Any, small_blocks: None) -> None:
    """Norms and sums use the same rounded states: they agree to float32, within what clipping guarantees."""
    model = models_to_try.small_gpt2(precision=precision)
    (table,) = (c for c in gradients_of(model, GIVEN[:4]) if isinstance(c, BlockedTable))
    for row in range(4):
        total = torch.zeros(VOCABULARY, 32)
        table.add(torch.eye(4)[row], total)
        assert float(total.double().square().sum()) <= float((table.squared + table.slack)[row]) * (1 + 1e-5) ** 2


def test_memory_that_ends_between_blocks_is_an_error(small_blocks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added cannot be repeated; nobody is told of a sum that has parts twice."""
    model = models_to_try.small_gpt2()
    (table,) = (c for c in gradients_of(model, GIVEN[:4]) if isinstance(c, BlockedTable))
    for added, error in ((0, torch.OutOfMemoryError), (1, ModelError)):
        left, blocks = [added], HeadRecord.matrices

        def limited(self: HeadRecord, factors: torch.Tensor, left: Any = left, blocks: Any = blocks) -> Any:
            for matrices in blocks(self, factors):
                if left[0] == 0:
                    raise torch.OutOfMemoryError("CUDA out of memory")
                left[0] -= 1
                yield matrices

        total = torch.zeros(VOCABULARY, 32)
        monkeypatch.setattr(HeadRecord, "matrices", limited)
        with pytest.raises(error):
            table.add(torch.ones(4), total)
        monkeypatch.setattr(HeadRecord, "matrices", blocks)
        assert bool(total.any()) == bool(added)


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_a_loss_is_exact_for_large_scores_and_targets_without_probability(shift: float) -> None:
    """The target of the second sentence has a probability of 0 in float32."""
    model = models_to_try.small_gpt2()
    batch = model.batch(examples(4, 4))
    scores = torch.randn(*batch.targets.shape, VOCABULARY, generator=torch.Generator().manual_seed(0))
    scores[1].scatter_(-1, batch.targets[1].unsqueeze(-1), -200.0)
    scores = (scores + shift).requires_grad_()
    expected = -torch.log_softmax(scores.double(), -1).gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1).mean(dim=1)
    (of_scores,) = torch.autograd.grad(expected.sum(), scores)
    losses, gradient = loss_and_score_gradient(scores.detach(), batch)
    torch.testing.assert_close(losses.double(), expected.detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient, of_scores, rtol=1e-5, atol=1e-8)
