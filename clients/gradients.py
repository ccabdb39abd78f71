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

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from clients.batches import (
    NO_TARGET,
    Batch,
    Sentence,
    batch_tokens,
    collate,
    micro_batches,
    validate,
)
from clients.errors import ModelError
from clients.ghost import (
    Contribution,
    EmbeddingLayer,
    Layer,
    LinearLayer,
    NotCovered,
    ScaleLayer,
    Tape,
    TiedLayer,
)
from clients.models import LanguageModel, batch_losses

log = logging.getLogger(__name__)

# A sentence whose rounding allowance exceeds this share of its squared norm is recomputed on its own: still
# never above c, but otherwise scaled down for no reason.
_TOLERATED_SLACK = 1e-2
_CHECK_TOLERANCE = 1e-3
_CHECK_FLOOR = 1e-8


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
    """A running Σ_s Π_c(g_s) in one buffer of d float32 numbers, so that memory is model + buffer + one
    micro-batch.

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
            layers = ghost_layers(self._model)
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
    loss, gradients = _autograd(model, [sentence])
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
    loss, gradients = _autograd(model, sentences)
    if not math.isfinite(loss) or not all(bool(g.isfinite().all()) for g in gradients.values()):
        return False
    tally.loss_sum += loss
    for name, gradient in gradients.items():
        views[name].sub_(gradient)
    return True


def _autograd(model: LanguageModel, sentences: Sequence[Sentence]) -> tuple[float, dict[str, torch.Tensor]]:
    """Σ_s l(θ, s) and its gradient by parameter, by plain autograd."""
    parameters = model.parameters.tensors
    loss = batch_losses(model, collate(sentences, model.device)).sum()
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    gradients = {name: g for name, g in zip(parameters, found, strict=True) if g is not None}
    return float(loss.detach()), gradients


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


def ghost_pass(model: LanguageModel, layers: Sequence[Layer], batch: Batch) -> tuple[torch.Tensor, list[Contribution]]:
    """One forward and one backward pass: (B,) losses, and what the batch adds to ∇ of each parameter."""
    modules = [module for layer in layers for module in layer.modules]
    with _frozen(model), torch.enable_grad(), Tape(modules) as tape:
        logits = model.logits(batch)
        outputs = tape.outputs()
    losses, scores = loss_and_score_gradient(logits.detach(), batch)
    with torch.no_grad():
        gradients = torch.autograd.grad(logits, outputs, grad_outputs=scores)
        records = tape.records(gradients)
        contributions = [c for layer in layers for c in layer.contributions([records[m] for m in layer.modules])]
    if any(c.squared.shape != losses.shape for c in contributions):
        raise NotCovered("a layer was not given one row per sentence")
    return losses, contributions


def loss_and_score_gradient(logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """(B,) mean losses, and their gradients in the logits, (B, T, V): (softmax - onehot) / predictions."""
    log_probabilities = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    ended = batch.targets == NO_TARGET
    index = batch.targets.masked_fill(ended, 0).unsqueeze(-1)
    chosen = log_probabilities.gather(-1, index).squeeze(-1).masked_fill(ended, 0.0)
    losses = -chosen.sum(dim=1) / batch.predictions
    gradient = log_probabilities.exp_()
    gradient.scatter_add_(-1, index, torch.full_like(index, -1.0, dtype=gradient.dtype))
    weights = ended.logical_not() / batch.predictions.unsqueeze(1)
    gradient.mul_(weights.unsqueeze(-1))
    return losses, gradient.to(logits.dtype)


@contextmanager
def _frozen(model: LanguageModel) -> Iterator[None]:
    """No parameter asks for a gradient: the backward pass computes activations' gradients alone."""
    parameters = list(model.parameters.tensors.values())
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


_LAYERS: WeakKeyDictionary[LanguageModel, list[Layer] | None] = WeakKeyDictionary()


def ghost_layers(model: LanguageModel) -> list[Layer] | None:
    """The model's layers for the fast path, checked once against autograd; None where it must not be used."""
    if model not in _LAYERS:
        try:
            layers = cover(model)
            _self_check(model, layers)
            _LAYERS[model] = layers
        except NotCovered as reason:
            log.warning("per-sentence gradients of %s go one sentence at a time: %s", model.spec.name, reason)
            _LAYERS[model] = None
    return _LAYERS[model]


def cover(model: LanguageModel) -> list[Layer]:
    """Describe every trainable parameter by exactly one layer, or the tied pair of embedding and output
    layer.

    Raises:
        NotCovered: if a trainable parameter belongs to another kind of module, or is shared in another way.
    """
    names = {id(p): name for name, p in model.parameters.tensors.items()}
    owners: dict[str, list[Layer]] = {name: [] for name in names.values()}
    layers: list[Layer] = []
    for module in model.module.modules():
        own = {key: names[id(p)] for key, p in module.named_parameters(recurse=False) if id(p) in names}
        if own:
            layers.append(_describe(module, own))
            for name in own.values():
                owners[name].append(layers[-1])
    for name, sharing in owners.items():
        if len(sharing) > 1:
            layers = [layer for layer in layers if layer not in sharing] + [_tie(name, sharing)]
    return layers


def _tie(name: str, sharing: Sequence[Layer]) -> TiedLayer:
    """The one way of sharing that is known: a table that is looked up, and multiplied by at the end."""
    embeddings = [layer for layer in sharing if isinstance(layer, EmbeddingLayer)]
    linears = [layer for layer in sharing if isinstance(layer, LinearLayer) and not layer.transposed]
    if len(sharing) != 2 or len(embeddings) != 1 or len(linears) != 1:
        raise NotCovered(f"{name} is shared by {len(sharing)} modules other than an embedding and an output layer")
    return TiedLayer(embeddings[0], linears[0])


def _describe(module: nn.Module, names: Mapping[str, str]) -> Layer:
    """The layer for a module, by its exact type: a subclass may compute something else."""
    from transformers.pytorch_utils import Conv1D

    kind = type(module)
    if kind is nn.Linear or kind is Conv1D:
        return LinearLayer(module, names, transposed=kind is Conv1D)
    if isinstance(module, nn.Embedding) and kind is nn.Embedding:
        return EmbeddingLayer(module, names)
    if kind is nn.LayerNorm or (kind.__name__.endswith("RMSNorm") and set(names) == {"weight"}):
        return ScaleLayer(module, names)
    raise NotCovered(f"{', '.join(names.values())} belong to a {kind.__name__}")


def _self_check(model: LanguageModel, layers: Sequence[Layer]) -> None:
    """Compare the fast path with plain autograd on three short random sentences, at parameters shifted at
    random.

    The shift matters: a fresh adapter's second factor is zero, and hides every mistake in the first.

    Raises:
        NotCovered: if a norm or a sum differs, or the pass cannot be run.
    """
    draws = np.random.default_rng(0)
    lengths = [min(n, model.max_tokens + 1) for n in (2, 4, 7)]
    sentences = [draws.integers(0, model.vocabulary_size, size=n) for n in lengths]
    before = model.get_vector()
    try:
        model.set_vector(before + 0.02 * draws.standard_normal(before.size, dtype=np.float32))
        _compare(model, layers, sentences)
    except RuntimeError as error:
        raise NotCovered(f"the pass fails: {str(error).splitlines()[0]}") from error
    finally:
        model.set_vector(before)


def _compare(model: LanguageModel, layers: Sequence[Layer], sentences: Sequence[Sentence]) -> None:
    """Raise NotCovered unless each parameter's per-sentence norms and weighted sum agree with autograd's."""
    factors = torch.tensor([1.0, -0.5, 0.25], device=model.device)
    difference = {name: torch.zeros_like(p) for name, p in model.parameters.tensors.items()}
    expected = {name: torch.zeros(len(sentences), dtype=torch.float64) for name in difference}
    for index, sentence in enumerate(sentences):
        for name, gradient in _autograd(model, [sentence])[1].items():
            expected[name][index] = gradient.double().square().sum()
            difference[name].sub_(gradient, alpha=float(factors[index]))
    _, contributions = ghost_pass(model, layers, collate(sentences, model.device))
    whole = torch.stack(list(expected.values())).sum(dim=0)
    for contribution in contributions:
        name = contribution.name
        contribution.add(factors, difference[name])
        allowed = _CHECK_TOLERANCE * expected[name] + _CHECK_FLOOR * whole
        off = (contribution.squared.cpu() - expected[name]).abs()
        residue = float(difference[name].double().square().sum())
        if not bool((off <= allowed).all()) or not residue <= float(allowed.sum()) * _CHECK_TOLERANCE:
            raise NotCovered(f"the gradient of {name} differs from plain autograd's")
    if {c.name for c in contributions} != set(difference):
        raise NotCovered("not every trainable parameter was accounted for")
