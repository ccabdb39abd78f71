"""Apply a frozen output layer in chunks, to the positions that have a target, without storing all scores.

The scores of a batch, (B, T, V), are its largest tensor by far: 200 MB for 1,024 tokens and 49,152 words. Where the
output layer is frozen, losses and the gradient of its input are all that is needed of them, and both are sums over
positions. The chunks share two buffers, which stay, because fresh memory of this size takes time too. In mixed
precision both products are of bfloat16, by a copy of the weights that is made once; shares and losses stay float32.

>>> from fl_sim.clients.models.language_model import load_model
>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> frozen_head(load_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0)) is None  # its table trains
True
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import nn

from fl_sim.clients.batches import NO_TARGET, Batch
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.output_blocks import left_out, output_layer

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
    """An output layer without trainable parameters.

    Args:
        layer: the layer, weight (V, h).
    """

    def __init__(self, layer: nn.Linear) -> None:
        self._layer = layer
        self._buffers: torch.Tensor | None = None
        self._rounded: torch.Tensor | None = None

    def left_out(self) -> AbstractContextManager[None]:
        """Let the model return the input of its output layer, (B, T, h), instead of scores."""
        return left_out(self._layer)

    def score(self, states: torch.Tensor, batch: Batch, *, with_gradient: bool, mixed: bool = False) -> TargetScores:
        """Return losses, errors and gradients of a batch.

        Args:
            states: the input of the output layer, float32 (B, T, h), detached.
            batch: its targets.
            with_gradient: whether to compute the gradient, which takes as long as the scores.
            mixed: whether the products are of bfloat16.
        """
        weight = self._bfloat16() if mixed else self._layer.weight.float()
        known = batch.targets != NO_TARGET
        rows, targets = states[known], batch.targets[known].unsqueeze(1)
        nats, wrong = rows.new_empty(len(rows)), known.new_empty(len(rows))
        gradient = torch.zeros_like(states if with_gradient else states[:0])
        of_rows = torch.empty_like(rows) if with_gradient else rows
        with torch.no_grad():
            for part in self._chunks(len(rows)):
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
        if self._layer.bias is not None:
            scores += self._layer.bias
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

    def _bfloat16(self) -> torch.Tensor:
        """Return the weights as bfloat16, (V, h)."""
        if self._rounded is None or self._rounded.device != self._layer.weight.device:
            self._rounded = self._layer.weight.detach().bfloat16()
        return self._rounded

    def _memory(self, rows: torch.Tensor) -> torch.Tensor:
        """Return two buffers for the scores of some positions, float32 (2, n, V)."""
        if self._buffers is None or self._buffers.device != rows.device:
            self._buffers = rows.new_empty(2, _SCORES // len(self._layer.weight) + 1, len(self._layer.weight))
        return self._buffers[:, : len(rows)]

    def _chunks(self, rows: int) -> Iterator[slice]:
        at_once = _SCORES // len(self._layer.weight) + 1
        return (slice(start, start + at_once) for start in range(0, rows, at_once))


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
        _HEADS[model] = _head_of(model)
    return _HEADS[model]


def _head_of(model: LanguageModel) -> FrozenHead | None:
    trainable = {id(parameter) for parameter in model.parameters.tensors.values()}
    layer = output_layer(model)
    if layer is None or any(id(parameter) in trainable for parameter in layer.parameters()):
        return None
    return FrozenHead(layer)
