"""Sums of per-sentence clipped gradients, exact and in one pass: the heart of a client's private update.

For sentences s and the mean loss l(θ, s) of the predictions of one sentence, ``g_s = -∇ l(θ, s)`` over the trainable
parameters, and what is wanted is ``Σ_s Π_c(g_s)``, where ``Π_c(x) = x · min(1, c/‖x‖)`` (docs/privacy.md,
section 3). Guarantee: each sentence moves the sum by at most c in L2 norm (to 1e-5 relative), whatever else
is in the batch; a sentence whose loss or gradient is not finite moves it by nothing, and is counted.

With dropout, a sentence's masks are a function of the seed and the sentence's number (weight-drop's of the seed
alone), so that the guarantee holds for the masked loss: see docs/privacy.md, section 2.

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

from clients.batches import batch_tokens, micro_batches
from clients.errors import ModelError
from clients.examples import Example
from clients.ghost import Contribution, NotCovered
from clients.ghost_pass import covered_layers, ghost_pass
from clients.losses import loss_gradients
from clients.models import LanguageModel

# A sentence whose rounding allowance exceeds this share of its squared norm is recomputed on its own: it would
# still never exceed c, but be scaled down for no reason.
_TOLERATED_SLACK = 1e-2
_ROWS_UP_TO = 1 << 14  # parameters of a model whose users' sums are kept side by side
_ROWS_LIMIT = 1 << 22  # float32 numbers of users' sums that may exist at once


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
    """

    def __init__(self, model: LanguageModel, mask_seed: int | None = None) -> None:
        self._model = model
        self._mask_seed = mask_seed
        self._flat = torch.zeros(model.num_parameters, device=model.device)
        self._views = model.parameters.views(self._flat)
        self._tally = Tally()

    def add(self, examples: Sequence[Example], clip_norm: float, *, max_batch_tokens: int | None = None) -> None:
        """Add Σ_s Π_c(g_s) of these sentences; ``clip_norm`` may be ``math.inf`` (no clipping).

        Raises:
            ModelError: for a clip norm that is not positive, a micro-batch size below 1, or a sentence that
                is empty, too long, or has an id outside the vocabulary. Nothing has been added then.
        """
        groups = _checked_groups(self._model, examples, clip_norm, max_batch_tokens)
        self._tally.count(self._model, examples)
        with full_precision():
            for group in groups:
                self._add_group([examples[i] for i in group], clip_norm)

    def _add_group(self, examples: Sequence[Example], clip_norm: float) -> None:
        model, seed = self._model, self._mask_seed
        if math.isinf(clip_norm):
            done = add_unclipped(model, examples, self._views, self._tally, seed)
        else:
            done = add_clipped(model, examples, clip_norm, self._views, self._tally, seed)
        if not done:
            for example in examples:
                add_one(model, example, clip_norm, self._views, self._tally, seed)

    def reset(self) -> None:
        """Start again from zero, in the same buffer."""
        self._flat.zero_()
        self._tally = Tally()

    def result(self) -> ClippedSum:
        """A copy of the sum so far, with its counts."""
        return ClippedSum(vector=self._flat.cpu().numpy().copy(), **vars(self._tally))


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


def user_sums(
    model: LanguageModel, users: Sequence[Sequence[Example]], clip_norm: float, mask_seed: int | None = None
) -> Iterator[ClippedSum]:
    """`clipped_gradient_sum` of each user's sentences, in their order; of many users at once where the model is as
    small as a head on a frozen encoder.

    Raises:
        ModelError: see `GradientSum.add`.
    """
    at_once = max(1, _ROWS_LIMIT // model.num_parameters) if model.num_parameters <= _ROWS_UP_TO else 1
    for start in range(0, len(users), at_once):
        part = users[start : start + at_once]
        if len(part) == 1:
            yield clipped_gradient_sum(model, part[0], clip_norm, mask_seed=mask_seed)
        else:
            yield from _side_by_side(model, part, clip_norm, mask_seed)


def _side_by_side(
    model: LanguageModel, users: Sequence[Sequence[Example]], clip_norm: float, mask_seed: int | None
) -> Iterator[ClippedSum]:
    examples = [example for user in users for example in user]
    owners = np.repeat(np.arange(len(users)), [len(user) for user in users])
    groups = _checked_groups(model, examples, clip_norm, None)
    sums = torch.zeros((len(users), model.num_parameters), device=model.device)
    tallies = [Tally() for _ in users]
    for tally, user in zip(tallies, users, strict=True):
        tally.count(model, user)
    with full_precision():
        for group in groups:
            _add_rows(model, [examples[i] for i in group], owners[group], clip_norm, sums, tallies, mask_seed)
    for vector, tally in zip(sums.cpu().numpy(), tallies, strict=True):
        yield ClippedSum(vector=vector, **vars(tally))


def _add_rows(
    model: LanguageModel,
    examples: Sequence[Example],
    owners: NDArray[np.int64],
    clip_norm: float,
    sums: torch.Tensor,
    tallies: Sequence[Tally],
    mask_seed: int | None,
) -> None:
    """Add each example's Π_c(g_s) to the row, and to the tally, of its owner."""
    found = _by_ghost_norms(model, examples, clip_norm, mask_seed)
    if found is None:
        for example, owner in zip(examples, owners.tolist(), strict=True):
            add_one(model, example, clip_norm, model.parameters.views(sums[owner]), tallies[owner], mask_seed)
        return
    rows = torch.from_numpy(owners).to(sums.device)
    for contribution in found.contributions:
        contribution.add_rows(-found.factors, rows, model.parameters.rows(sums, contribution.name))
    counted = zip(owners.tolist(), found.losses.tolist(), found.clipped.tolist(), strict=True)
    for owner, loss, clipped in counted:
        tallies[owner].loss_sum += loss
        tallies[owner].clipped += clipped


def _checked_groups(
    model: LanguageModel, examples: Sequence[Example], clip_norm: float, max_batch_tokens: int | None
) -> list[list[int]]:
    """The indices of each micro-batch; raises ModelError for what no gradient could be taken of."""
    if not clip_norm > 0:
        raise ModelError(f"clip_norm is {clip_norm}; allowed: a number above 0, or inf")
    model.validate(examples)
    sizes = [model.task.size(example) for example in examples]
    return list(micro_batches(sizes, batch_tokens(max_batch_tokens, model.device)))


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
    found = _by_ghost_norms(model, examples, clip_norm, mask_seed)
    if found is None:
        return False
    for contribution in found.contributions:
        contribution.add(-found.factors, views[contribution.name])
    tally.loss_sum += float(found.losses.sum(dtype=torch.float64))
    tally.clipped += int(found.clipped.sum())
    return True


@dataclass(frozen=True)
class _Found:
    """A batch by ghost norms: per parameter what it contributes; (B,) factors min(1, c/‖g_s‖), losses, and whether
    the factor is below 1."""

    contributions: list[Contribution]
    factors: torch.Tensor
    losses: torch.Tensor
    clipped: torch.Tensor


def _by_ghost_norms(
    model: LanguageModel, examples: Sequence[Example], clip_norm: float, mask_seed: int | None
) -> _Found | None:
    """None if a sentence must be seen on its own."""
    layers = covered_layers(model)
    if layers is None:
        return None
    try:
        losses, contributions = ghost_pass(model, layers, model.batch(examples, mask_seed))
    except NotCovered:
        return None
    squared = torch.stack([c.squared for c in contributions]).sum(dim=0)
    slack = torch.stack([c.slack for c in contributions]).sum(dim=0)
    norms = (squared + slack).sqrt()
    if not bool((norms.isfinite() & losses.isfinite()).all()):
        return None
    clipped = norms > clip_norm
    if bool((clipped & (slack > _TOLERATED_SLACK * squared)).any()):
        return None
    factors = torch.where(clipped, clip_norm / norms, 1.0).float()
    return _Found(contributions, factors, losses, clipped)
