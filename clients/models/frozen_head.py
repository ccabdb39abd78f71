"""Apply an output layer to a batch in parts, without storing all scores, and tell whether a model has diverged.

The scores of a batch, (B, T, V), are its largest tensor by far: 8,192 tokens and 128,256 words take 3.9 GiB in float32.
So a model is run without its output layer, and the layer on parts of the batch. One that trains is applied to blocks of
whole sentences, of at most 64 MiB of scores on a CPU and 512 MiB elsewhere; a smaller table is computed at once. Of one
that is frozen, losses and the gradient of its input are all that is needed, so it is applied to chunks of positions
with a target, in two buffers that stay, because fresh memory of this size takes time too.

Not every model's scores are its output layer's (some are scaled or squashed afterwards), so both are compared once.

>>> row_blocks(rows=5, scores_of_row=8 << 20, device=torch.device("cpu"))
[slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from fl_sim.clients.batches import NO_TARGET, Batch, Example
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.parameters import replaced_forwards

_TOKENS = 8


def has_finite_scores(model: LanguageModel) -> bool:
    """Return whether every parameter is finite, frozen ones included, and every score of a fixed public sentence is."""
    if not all(bool(parameter.isfinite().all()) for parameter in model.module.parameters()):
        return False
    with torch.no_grad(), model.exact():
        return bool(model.logits(model.batch([fixed_sentence(model)])).isfinite().all())


def fixed_sentence(model: LanguageModel) -> Example:
    """Return a public example: tokens spread evenly over the vocabulary, or features of ones if it reads features."""
    length = min(_TOKENS, model.task.longest(model.max_tokens))
    tokens = np.linspace(0, model.vocabulary_size - 1, length).astype(np.int32)
    features = None
    if model.classifier is not None and model.reads_features:
        features = np.ones(model.classifier.width, np.float32)
    return Example(tokens, target=0, features=features)


LARGEST = {"cpu": 64 << 20}  # bytes of a block's scores: smaller ones read the layer's weights too often
LARGEST_ELSEWHERE = 512 << 20
_TOLERANCE = 1e-4  # of the largest score
_BYTES = 4


def left_out(layer: nn.Module) -> AbstractContextManager[None]:
    """Let a model return the input of its output layer, (B, T, h), instead of scores."""
    return replaced_forwards({layer: lambda states: states})


_LAYERS: WeakKeyDictionary[LanguageModel, nn.Linear | None] = WeakKeyDictionary()


def output_layer(model: LanguageModel) -> nn.Linear | None:
    """Return the model's output layer if it alone makes the scores of the next word; None else."""
    if model not in _LAYERS:
        layer = None if model.task.classes else model.architecture.output_layer(model.module)
        with model.exact():  # of no subclass, which may compute something else
            is_sole = isinstance(layer, nn.Linear) and type(layer) is nn.Linear and _makes_the_scores(model, layer)
        _LAYERS[model] = layer if isinstance(layer, nn.Linear) and is_sole else None
    return _LAYERS[model]


def _makes_the_scores(model: LanguageModel, layer: nn.Linear) -> bool:
    batch = model.batch([fixed_sentence(model)])
    with torch.no_grad():
        expected = model.logits(batch)
        with left_out(layer):
            states = model.logits(batch)
        if states.shape[:2] != expected.shape[:2] or states.shape[-1] != layer.in_features:
            return False
        found = layer(states)
        return bool(((found - expected).abs() <= _TOLERANCE * expected.abs().max()).all())


def row_blocks(rows: int, scores_of_row: int, device: torch.device) -> list[slice]:
    """Return B rows of T·V scores each in blocks."""
    largest = LARGEST.get(device.type, LARGEST_ELSEWHERE) // _BYTES
    at_once = max(1, largest // max(1, scores_of_row))
    return [slice(start, min(start + at_once, rows)) for start in range(0, rows, at_once)]


def blocks_of(model: LanguageModel, batch: Batch) -> list[slice]:
    """Return the sentences of a batch in blocks, of a size for the device that the model is meant for."""
    rows, tokens = batch.targets.shape
    return row_blocks(rows, tokens * model.vocabulary_size, torch.device(model.spec.device))


def blocked_layer(model: LanguageModel, batch: Batch) -> nn.Linear | None:
    """Return the output layer if it must be applied in blocks, because all scores of the batch take too much memory."""
    if model.task.classes or len(blocks_of(model, batch)) == 1:
        return None
    return output_layer(model)


def rows_of(batch: Batch, rows: slice | torch.Tensor) -> Batch:
    """Return the targets of some sentences of a batch, and what else a loss needs."""
    return replace(batch, targets=batch.targets[rows], predictions=batch.predictions[rows])


def scores_of(model: LanguageModel, layer: nn.Linear, states: torch.Tensor) -> torch.Tensor:
    """Return the scores of states, (b, T, V) for (b, T, h), in the precision of training."""
    with model.autocast(), model.fast_products():
        return layer(states)


_SCORES = 512 * 49152  # of one chunk, 100 MB: smaller ones read the layer's weights too often


@dataclass(frozen=True)
class TargetScores:
    """Hold what a batch of B sentences with at most P targets needs of the scores.

    Attributes:
        nats: the cross-entropy of every target, float32 (B, P); 0 after a sentence's end.
        wrong: which targets do not have the highest score, bool (B, P).
        gradient: of each sentence's loss in the states, float32 (B, T, h), zero where there is no target; empty if it
            was not asked for.
    """

    nats: torch.Tensor
    wrong: torch.Tensor
    gradient: torch.Tensor


class FrozenHead:
    """An output layer without trainable parameters, weight (V, h)."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer
        self._buffers: torch.Tensor | None = None
        self._rounded: torch.Tensor | None = None

    def score(self, states: torch.Tensor, batch: Batch, *, with_gradient: bool, mixed: bool = False) -> TargetScores:
        """Return losses, errors and gradients of a batch.

        Args:
            states: the input of the output layer, float32 (B, T, h), detached.
            with_gradient: whether to compute the gradient, which takes as long as the scores.
            mixed: whether the products are of bfloat16, by a copy of the weights that is made once.
        """
        if mixed and (self._rounded is None or self._rounded.device != self.layer.weight.device):
            self._rounded = self.layer.weight.detach().bfloat16()
        weight = self._rounded if mixed and self._rounded is not None else self.layer.weight.float()
        known = batch.targets != NO_TARGET
        rows, targets = states[known], batch.targets[known].unsqueeze(1)
        nats, wrong = rows.new_empty(len(rows)), known.new_empty(len(rows))
        gradient = torch.zeros_like(states if with_gradient else states[:0])
        of_rows = torch.empty_like(rows) if with_gradient else rows
        with torch.no_grad():
            at_once = _SCORES // len(weight) + 1
            for part in (slice(start, start + at_once) for start in range(0, len(rows), at_once)):
                results = nats[part], wrong[part], of_rows[part]
                self._score_rows(weight, rows[part], targets[part], results, with_gradient)
        if with_gradient:
            predictions = batch.predictions.unsqueeze(1).expand(known.shape)[known]
            gradient[known] = of_rows.div_(predictions.unsqueeze(1))
        by_target, missed = states.new_zeros(known.shape), torch.zeros_like(known)
        by_target[known], missed[known] = nats, wrong
        return TargetScores(by_target, missed, gradient)

    def _score_rows(
        self,
        weight: torch.Tensor,
        rows: torch.Tensor,
        targets: torch.Tensor,
        results: tuple[torch.Tensor, ...],
        with_gradient: bool,
    ) -> None:
        """Write nats, errors and gradients of some positions into ``results``."""
        nats, wrong, gradient = results
        scores, shares = self._memory(rows)
        _product(rows, weight.t(), out=scores)
        if self.layer.bias is not None:
            scores += self.layer.bias
        highest, best = scores.max(dim=1, keepdim=True)
        chosen = scores.gather(1, targets)
        wrong.copy_((best != targets).squeeze(1))
        if not with_gradient:
            nats.copy_(torch.logsumexp(scores, dim=1) - chosen.squeeze(1))
            return
        torch.softmax(scores, dim=1, out=shares)
        nats.copy_((highest - shares.gather(1, best).log() - chosen).squeeze(1))
        shares.scatter_add_(1, targets, torch.full_like(chosen, -1.0))
        _product(shares, weight, out=gradient)

    def _memory(self, rows: torch.Tensor) -> torch.Tensor:
        """Return two buffers for the scores of some positions, float32 (2, n, V)."""
        if self._buffers is None or self._buffers.device != rows.device:
            self._buffers = rows.new_empty(2, _SCORES // len(self.layer.weight) + 1, len(self.layer.weight))
        return self._buffers[:, : len(rows)]


def _product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """Write ``left @ right`` into ``out``, of matrices in the precision of ``right``."""
    if left.dtype == right.dtype == out.dtype:
        torch.mm(left, right, out=out)
    else:
        out.copy_(left.to(right.dtype) @ right)


_HEADS: WeakKeyDictionary[LanguageModel, FrozenHead | None] = WeakKeyDictionary()


def frozen_head(model: LanguageModel) -> FrozenHead | None:
    """Return the model's output layer if nothing of it trains and it alone makes the scores; None else."""
    if model not in _HEADS:
        trainable = {id(parameter) for parameter in model.parameters.tensors.values()}
        layer = output_layer(model)
        trains = layer is None or any(id(parameter) in trainable for parameter in layer.parameters())
        _HEADS[model] = None if layer is None or trains else FrozenHead(layer)
    return _HEADS[model]
