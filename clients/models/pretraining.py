"""Train a language model centrally on public text, so that private training need not start from random weights.

The text must be public, because the initial model is a public input of every guarantee (docs/privacy.md).

>>> [_cosine(step, steps=100) for step in (0, 1, 51, 100)]  # the shares of the learning rate
[0.5, 1.0, 0.5, 0.0]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fl_sim.clients.batches import Example
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import held_out as evaluate
from fl_sim.clients.models.losses import sentence_losses
from fl_sim.strategies.primitives import streams

_POOL = 50  # batches that are sorted by length together


@dataclass(frozen=True, slots=True)
class PretrainingConfig:
    """How the model is trained centrally: AdamW under a cosine schedule with a short warm-up.

    Attributes:
        epochs: passes over the text.
        batch_size: sentences per step.
        learning_rate: the schedule's peak.
        seed: the seed of the order of sentences.
    """

    epochs: int = 6
    batch_size: int = 32
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "learning_rate"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed: above 0")


def pretrain(
    model: LanguageModel,
    sentences: Sequence[Example],
    held_out: Sequence[Example],
    config: PretrainingConfig,
    observer: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> float:
    """Train ``model`` in place, and return its held-out perplexity per token at the end.

    Sentences have different numbers, which key dropout masks. ``observer`` is called after every step with (step,
    steps, mean loss of the batch in nats).
    """
    parameters = list(model.parameters.tensors.values())
    optimizer = torch.optim.AdamW(parameters, lr=config.learning_rate, weight_decay=config.weight_decay)
    steps = config.epochs * math.ceil(len(sentences) / config.batch_size)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _cosine(step, steps))
    step = 0
    for epoch in range(config.epochs):
        rng = streams.generator(config.seed, "pretraining", epoch)
        for batch in _batches_of_similar_length(sentences, config.batch_size, rng):
            loss = sentence_losses(model, [sentences[i] for i in batch], int(rng.integers(2**63))).mean()
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = gradient
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            step += 1
            observer(step, steps, float(loss.detach()))
    optimizer.zero_grad(set_to_none=True)
    measured = evaluate(model, held_out)
    return math.exp(measured.nats.sum() / max(measured.predictions.sum(), 1))


def split_held_out(sentences: Sequence[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """Return a seeded split of the sentences into (train, held out), at least one sentence each."""
    order = streams.generator(seed, "pretraining-held-out").permutation(len(sentences))
    cut = min(max(round(share * len(sentences)), 1), len(sentences) - 1)
    held_out = set(np.sort(order[:cut]).tolist())
    train = [sentence for i, sentence in enumerate(sentences) if i not in held_out]
    return train, [sentences[i] for i in sorted(held_out)]


def _batches_of_similar_length(
    sentences: Sequence[Example], batch_size: int, rng: np.random.Generator
) -> list[npt.NDArray[np.int64]]:
    """Return every sentence's index once, in shuffled batches of sentences that were sorted by length in pools."""
    order = rng.permutation(len(sentences))
    lengths = np.array([len(sentence) for sentence in sentences])[order]
    pool = _POOL * batch_size
    sorted_pools = [
        order[start : start + pool][np.argsort(lengths[start : start + pool], kind="stable")]
        for start in range(0, len(order), pool)
    ]
    by_length = np.concatenate(sorted_pools)
    batches = [by_length[start : start + batch_size] for start in range(0, len(by_length), batch_size)]
    return [batches[i] for i in rng.permutation(len(batches))]


def _cosine(step: int, steps: int) -> float:
    warm_up = max(1, steps // 50)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))
