"""Sums of per-sentence clipped gradients, exact and in one pass: the heart of a client's private update.

For sentences s and the mean loss l(θ, s) of the predictions of one sentence, ``g_s = -∇ l(θ, s)`` over the trainable
parameters, and what is wanted is ``Σ_s Π_c(g_s)``, where ``Π_c(x) = x · min(1, c/‖x‖)`` (docs/privacy.md,
section 3). Guarantee: each sentence moves the sum by at most c in L2 norm (to 1e-5 relative), whatever else
is in the batch; a sentence whose loss or gradient is not finite moves it by nothing, and is counted.

With dropout, a sentence's masks are a function of the seed and the sentence's number (weight-drop's of the seed
alone), so that the guarantee holds for the masked loss: see docs/privacy.md, section 2.

Fast path: ghost norms with book-keeping (`fl_sim.clients.ghost_norms`). Before its first use on a model it
is compared,
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

from fl_sim.clients.batches import batch_tokens, micro_batches
from fl_sim.clients.errors import ModelError
from fl_sim.clients.examples import Example
from fl_sim.clients.ghost_norms.layer_gradients import Contribution, NotCovered
from fl_sim.clients.gradients.ghost_pass import covered_layers, ghost_pass
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import loss_gradients

# A sentence whose rounding allowance exceeds this share of its squared norm is recomputed on its own: it would
# still never exceed c, but be scaled down for no reason.
_TOLERATED_SLACK = 1e-2


@dataclass
class Tally:
    """What went into a sum.

    Attributes:
        sentences: how many were given, those of which there is nothing to tell included.
        clipped: how many were longer than c and were scaled down.
        nonfinite: how many had a loss or gradient that is not finite, and contribute zero.
        loss_sum: Σ_s l(θ, s) over the finite ones, in nats per prediction.
        predictions: how many things all of them tell.
    """

    sentences: int = 0
    clipped: int = 0
    nonfinite: int = 0
    loss_sum: float = 0.0
    predictions: int = 0

    def count(self, model: LanguageModel, examples: Sequence[Example]) -> None:
        """Take in that these are given."""
        self.sentences += len(examples)
        self.predictions += sum(model.task.predictions(example) for example in examples)

    def add(self, other: Tally) -> None:
        """Take in what went into another sum."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class ClippedSum:
    """``vector`` = Σ_s Π_c(-∇ l(θ, s)), float32 (d,), with the counts of `Tally`."""

    vector: NDArray[np.float32]
    sentences: int
    clipped: int
    nonfinite: int
    loss_sum: float
    predictions: int


class GradientSum:
    """A running Σ_s Π_c(g_s) in one buffer of d float32 numbers: memory is model, buffer and one micro-batch.

    Example::

        total = GradientSum(model)
        for user in users:
            total.add(sentences_of[user], clip_norm=1.0)
        update = total.result().vector

    Attributes:
        flat: (d,) float32, the sum so far.
        views: of it, by parameter name.
        tally: what went into it.
    """

    def __init__(self, model: LanguageModel, mask_seed: int | None = None) -> None:
        self._model = model
        self._mask_seed = mask_seed
        self.flat = torch.zeros(model.num_parameters, device=model.device)
        self.views = model.parameters.views(self.flat)
        self.tally = Tally()

    def add(self, examples: Sequence[Example], clip_norm: float, *, max_batch_tokens: int | None = None) -> None:
        """Add Σ_s Π_c(g_s) of these sentences; ``clip_norm`` may be ``math.inf`` (no clipping).

        Raises:
            ModelError: for a clip norm that is not positive, a micro-batch size below 1, or a sentence that
                is empty, too long, or has an id outside the vocabulary. Nothing has been added then.
        """
        groups = _checked_groups(self._model, examples, clip_norm, max_batch_tokens)
        self.tally.count(self._model, examples)
        with full_precision():
            for group in groups:
                self._add_group([examples[i] for i in group], clip_norm)

    def _add_group(self, examples: Sequence[Example], clip_norm: float) -> None:
        model, seed = self._model, self._mask_seed
        if math.isinf(clip_norm):
            done = add_unclipped(model, examples, self.views, self.tally, seed)
        else:
            done = add_clipped(model, examples, clip_norm, self.views, self.tally, seed)
        if not done:
            for example in examples:
                add_one(model, example, clip_norm, self.views, self.tally, seed)

    def reset(self) -> None:
        """Start again from zero, in the same buffer."""
        self.flat.zero_()
        self.tally = Tally()

    def result(self) -> ClippedSum:
        """A copy of the sum so far, with its counts."""
        return ClippedSum(vector=self.flat.cpu().numpy().copy(), **vars(self.tally))


def clipped_gradient_sum(
    model: LanguageModel,
    examples: Sequence[Example],
    clip_norm: float,
    *,
    max_batch_tokens: int | None = None,
    mask_seed: int | None = None,
) -> ClippedSum:
    """Σ_s Π_c(-∇ l(θ, s)) over the sentences.

    Args:
        examples: the sentences (``LanguageModel.encode``); one of which there is nothing to tell has zero loss and
            zero gradient.
        clip_norm: c > 0; ``math.inf`` for no clipping.
        max_batch_tokens: padded size of a micro-batch; bounds the memory, changes nothing but rounding. ``None``
            takes what is fast on the model's device.
        mask_seed: of the dropout masks, where the model has dropout; ``None`` switches it off.

    Raises:
        ModelError: see `GradientSum.add`.
    """
    total = GradientSum(model, mask_seed)
    total.add(examples, clip_norm, max_batch_tokens=max_batch_tokens)
    return total.result()


def _checked_groups(
    model: LanguageModel, examples: Sequence[Example], clip_norm: float, max_batch_tokens: int | None
) -> list[list[int]]:
    """The indices of each micro-batch; raises ModelError for what no gradient could be taken of."""
    check_clip_norm(clip_norm)
    model.validate(examples)
    sizes = [model.task.size(example) for example in examples]
    return list(micro_batches(sizes, batch_tokens(max_batch_tokens, model.device)))


def check_clip_norm(clip_norm: float) -> None:
    """Raise ModelError for one that would bound nothing."""
    if not clip_norm > 0:
        raise ModelError(f"clip_norm is {clip_norm}; allowed: a number above 0, or inf")


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
    example: Example,
    clip_norm: float,
    views: Mapping[str, torch.Tensor],
    tally: Tally,
    mask_seed: int | None = None,
) -> None:
    """The definition itself, for one sentence: plain autograd, norm in float64, scale, add."""
    loss, gradients = loss_gradients(model, [example], mask_seed)
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
    model: LanguageModel,
    examples: Sequence[Example],
    views: Mapping[str, torch.Tensor],
    tally: Tally,
    mask_seed: int | None = None,
) -> bool:
    """Add Σ_s g_s by one ordinary backward pass; False, and nothing added, if any of it is not finite."""
    loss, gradients = loss_gradients(model, examples, mask_seed)
    if not math.isfinite(loss) or not all(bool(g.isfinite().all()) for g in gradients.values()):
        return False
    tally.loss_sum += loss
    for name, gradient in gradients.items():
        views[name].sub_(gradient)
    return True


def add_clipped(
    model: LanguageModel,
    examples: Sequence[Example],
    clip_norm: float,
    views: Mapping[str, torch.Tensor],
    tally: Tally,
    mask_seed: int | None = None,
) -> bool:
    """Add Σ_s Π_c(g_s) by ghost norms; False, and nothing added, if a sentence must be seen on its own."""
    layers = covered_layers(model)
    if layers is None:
        return False
    try:
        seen = ghost_pass(model, layers, model.batch(examples, mask_seed))
        contributions = seen.of_sentences()
        norms = sure_norms(contributions, clip_norm)
    except NotCovered:
        return False
    factors = clip_factors(norms, clip_norm)
    for contribution in contributions:
        contribution.add(-factors, views[contribution.name])
    tally.loss_sum += float(seen.losses.sum(dtype=torch.float64))
    tally.clipped += int((norms > clip_norm).sum())
    return True


def sure_norms(contributions: Sequence[Contribution], clip_norm: float) -> torch.Tensor:
    """(B,) float64 norms over all parameters, none of them too small.

    Raises:
        NotCovered: if one is not finite, or is above ``clip_norm`` and not known well enough to be shortened by it.
    """
    squared = torch.stack([c.squared for c in contributions]).sum(dim=0)
    slack = torch.stack([c.slack for c in contributions]).sum(dim=0)
    norms = (squared + slack).sqrt()
    unsure = (norms > clip_norm) & (slack > _TOLERATED_SLACK * squared)
    if bool((unsure | ~norms.isfinite()).any()):
        raise NotCovered("a norm is not finite, or not known well enough")
    return norms


def clip_factors(norms: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """min(1, c/‖g‖), float32."""
    return torch.where(norms > clip_norm, clip_norm / norms, 1.0).float()
