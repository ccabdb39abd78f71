"""Sums of per-sentence clipped gradients, exact and in one pass: the heart of a client's private update.

For sentences s and the mean token loss l(θ, s) of one sentence, ``g_s = -∇ l(θ, s)`` over the trainable
parameters, and what is wanted is ``Σ_s Π_c(g_s)``, where ``Π_c(x) = x · min(1, c/‖x‖)`` (docs/privacy.md,
section 3). Guarantee: each sentence moves the sum by at most c in L2 norm (to 1e-5 relative), whatever else
is in the batch; a sentence whose loss or gradient is not finite moves it by nothing, and is counted.

Fast path: ghost norms with book-keeping (`clients.ghost`). Before its first use on a model it is compared,
parameter by parameter and sentence by sentence, with plain autograd. A model that it does not cover, or where
the two differ, goes one sentence at a time: same result, slower.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from clients.batches import Sentence, batch_tokens, collate, micro_batches, validate
from clients.errors import ModelError
from clients.ghost import Layer, NotCovered
from clients.ghost_pass import covered_layers, ghost_pass
from clients.losses import loss_gradients
from clients.models import LanguageModel

# A sentence whose rounding allowance exceeds this share of its squared norm is recomputed on its own: it would
# still never exceed c, but be scaled down for no reason.
_TOLERATED_SLACK = 1e-2


@dataclass
class Tally:
    """What went into a sum.

    Attributes:
        sentences: how many were given, those without any prediction included.
        clipped: how many were longer than c and were scaled down.
        nonfinite: how many had a loss or gradient that is not finite, and contribute zero.
        loss_sum: Σ_s l(θ, s) over the finite ones, in nats per token.
        tokens: predicted tokens of all of them.
    """

    sentences: int = 0
    clipped: int = 0
    nonfinite: int = 0
    loss_sum: float = 0.0
    tokens: int = 0


@dataclass(frozen=True)
class ClippedSum:
    """``vector`` = Σ_s Π_c(-∇ l(θ, s)), float32 (d,), with the counts of `Tally`."""

    vector: NDArray[np.float32]
    sentences: int
    clipped: int
    nonfinite: int
    loss_sum: float
    tokens: int


class GradientSum:
    """A running Σ_s Π_c(g_s) in one buffer of d float32 numbers: memory is model, buffer and one micro-batch.

    Example::

        total = GradientSum(model)
        for user in users:
            total.add(sentences_of[user], clip_norm=1.0)
        update = total.result().vector
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._flat = torch.zeros(model.num_parameters, device=model.device)
        self._views = model.parameters.views(self._flat)
        self._tally = Tally()

    def add(self, sentences: Sequence[Sentence], clip_norm: float, *, max_batch_tokens: int | None = None) -> None:
        """Add Σ_s Π_c(g_s) of these sentences; ``clip_norm`` may be ``math.inf`` (no clipping).

        Raises:
            ModelError: for a clip norm that is not positive, a micro-batch size below 1, or a sentence that
                is empty, too long, or has an id outside the vocabulary. Nothing has been added then.
        """
        if not clip_norm > 0:
            raise ModelError(f"clip_norm is {clip_norm}; allowed: a number above 0, or inf")
        validate(sentences, self._model.max_tokens, self._model.vocabulary_size)
        lengths = [len(s) for s in sentences]
        groups = list(micro_batches(lengths, batch_tokens(max_batch_tokens, self._model.device)))
        self._tally.sentences += len(sentences)
        self._tally.tokens += sum(n - 1 for n in lengths)
        with full_precision():
            for group in groups:
                self._add_group([sentences[i] for i in group], clip_norm)

    def _add_group(self, sentences: Sequence[Sentence], clip_norm: float) -> None:
        if math.isinf(clip_norm):
            done = add_unclipped(self._model, sentences, self._views, self._tally)
        else:
            layers = covered_layers(self._model)
            done = layers is not None and add_clipped(
                self._model, layers, sentences, clip_norm, self._views, self._tally
            )
        if not done:
            for sentence in sentences:
                add_one(self._model, sentence, clip_norm, self._views, self._tally)

    def reset(self) -> None:
        """Start again from zero, in the same buffer."""
        self._flat.zero_()
        self._tally = Tally()

    def result(self) -> ClippedSum:
        """A copy of the sum so far, with its counts."""
        return ClippedSum(vector=self._flat.cpu().numpy().copy(), **vars(self._tally))


def clipped_gradient_sum(
    model: LanguageModel,
    sentences: Sequence[Sentence],
    clip_norm: float,
    *,
    max_batch_tokens: int | None = None,
) -> ClippedSum:
    """Σ_s Π_c(-∇ l(θ, s)) over the sentences.

    Args:
        sentences: token arrays, boundary tokens included (``LanguageModel.encode``); one of a single token
            has zero loss and zero gradient.
        clip_norm: c > 0; ``math.inf`` for no clipping.
        max_batch_tokens: padded size of a micro-batch; bounds the memory, changes nothing but rounding. ``None``
            takes what is fast on the model's device.

    Raises:
        ModelError: see `GradientSum.add`.
    """
    total = GradientSum(model)
    total.add(sentences, clip_norm, max_batch_tokens=max_batch_tokens)
    return total.result()


@contextmanager
def full_precision() -> Iterator[None]:
    """Matrix products in real float32 (TF32 would make the norms of the fast path wrong by a thousandth)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def add_one(
    model: LanguageModel,
    sentence: Sentence,
    clip_norm: float,
    views: Mapping[str, torch.Tensor],
    tally: Tally,
) -> None:
    """The definition itself, for one sentence: plain autograd, norm in float64, scale, add."""
    loss, gradients = loss_gradients(model, [sentence])
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        tally.nonfinite += 1
        return
    tally.loss_sum += loss
    tally.clipped += norm > clip_norm
    factor = 1.0 if norm <= clip_norm else clip_norm / norm
    for name, gradient in gradients.items():
        views[name].add_(gradient, alpha=-factor)


def add_unclipped(
    model: LanguageModel, sentences: Sequence[Sentence], views: Mapping[str, torch.Tensor], tally: Tally
) -> bool:
    """Add Σ_s g_s by one ordinary backward pass; False, and nothing added, if any of it is not finite."""
    loss, gradients = loss_gradients(model, sentences)
    if not math.isfinite(loss) or not all(bool(g.isfinite().all()) for g in gradients.values()):
        return False
    tally.loss_sum += loss
    for name, gradient in gradients.items():
        views[name].sub_(gradient)
    return True


def add_clipped(
    model: LanguageModel,
    layers: Sequence[Layer],
    sentences: Sequence[Sentence],
    clip_norm: float,
    views: Mapping[str, torch.Tensor],
    tally: Tally,
) -> bool:
    """Add Σ_s Π_c(g_s) by ghost norms; False, and nothing added, if a sentence must be seen on its own."""
    try:
        losses, contributions = ghost_pass(model, layers, collate(sentences, model.device))
    except NotCovered:
        return False
    squared = torch.stack([c.squared for c in contributions]).sum(dim=0)
    slack = torch.stack([c.slack for c in contributions]).sum(dim=0)
    norms = (squared + slack).sqrt()
    if not bool((norms.isfinite() & losses.isfinite()).all()):
        return False
    clipped = norms > clip_norm
    if bool((clipped & (slack > _TOLERATED_SLACK * squared)).any()):
        return False
    factors = torch.where(clipped, clip_norm / norms, 1.0).float()
    for contribution in contributions:
        contribution.add(-factors, views[contribution.name])
    tally.loss_sum += float(losses.sum(dtype=torch.float64))
    tally.clipped += int(clipped.sum())
    return True
