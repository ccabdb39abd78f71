"""Per-sentence gradients of AWD-LSTM's recurrence, for the fast path (`fl_sim.clients.ghost_norms`).

>>> inputs, grad = torch.ones(2, 3, 4), torch.ones(2, 3, 8)  # two sentences of three words
>>> MaskedProduct("weight", inputs, grad, scale=torch.full((8, 4), 2.0)).squared.tolist()
[1152.0, 1152.0]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from fl_sim.clients.ghost_norms.layer_gradients import Contribution, Product, Record
from fl_sim.clients.ghost_norms.layer_handlers import Layer

_MASKED_LIMIT = 1 << 18  # float32 numbers of a masked weight's gradient at a time: so many stay in the cache


class MaskedProduct(Contribution):
    """A weight (q, p) whose entries are multiplied by ``scale`` before use, the same for all sentences.

    Its gradient is ``scale ∘ G_sᵀ A_s``. Products of Gram matrices do not give its norm, so it is computed for a few
    rows of the weight at a time.
    """

    def __init__(self, name: str, inputs: torch.Tensor, grad: torch.Tensor, scale: torch.Tensor) -> None:
        self.name = name
        self._inputs = inputs
        self._grad = grad
        self._scale = scale
        rows = max(1, _MASKED_LIMIT // (inputs.shape[0] * inputs.shape[2]))
        parts = [
            (torch.bmm(g.transpose(1, 2), inputs) * part).square().sum(dim=2).sum(dim=1, dtype=torch.float64)
            for g, part in zip(grad.split(rows, dim=2), scale.split(rows), strict=True)
        ]
        self.squared = torch.stack(parts).sum(dim=0)
        self.slack = torch.zeros_like(self.squared)

    def add(self, factors: torch.Tensor, total: torch.Tensor) -> None:
        grad = (self._grad * factors.view(-1, 1, 1)).flatten(0, 1)
        total.addcmul_(grad.t() @ self._inputs.flatten(0, 1), self._scale)


class RecurrentLayer(Layer):
    """The hidden-to-hidden weight of `fl_sim.clients.models.architectures.awd_lstm.Recurrence`.

    At every step the weight multiplies the state of the step before, and its output's gradient is that of the gates.
    """

    def __init__(self, module: nn.Module, names: Mapping[str, str]) -> None:
        recurrence: Any = module
        self.modules = (recurrence.gates, module)
        self.names = (names["weight"],)

    reads_outputs: ClassVar[bool] = True

    def contributions(self, records: Sequence[Record]) -> list[Contribution]:
        gates, recurrence = records
        if recurrence.output is None:
            raise ValueError("the record has no output; allowed: one with the states")
        apart = recurrence.output.unflatten(1, (recurrence.joined, -1))  # every sentence begins with a state of zeros
        before = functional.pad(apart[:, :, :-1], (0, 0, 1, 0)).flatten(1, 2)
        scale = recurrence.options.get("scale")
        if scale is None:
            return [Product(self.names[0], before, gates.grad, transposed=False)]
        return [MaskedProduct(self.names[0], before, gates.grad, scale)]
