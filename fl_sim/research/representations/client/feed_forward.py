"""Feed-forward networks with dropout masks that are drawn per training step.

>>> network = FeedForward([4, 8, 2], dropout=0.5, name="classifier")
>>> network(torch.zeros(3, 4), Draw.full_batch(seed=1, total=3)).shape
torch.Size([3, 2])
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import torch
from torch import nn
from torch.autograd import Function

from fl_sim.research.representations.client.draws import Draw


class FeedForward(nn.Module):
    """Linear layers with ReLU and dropout between them, none after the last.

    Args:
        widths: of the input, each hidden layer, and the output.
        dropout: its rate in [0, 1).
        name: prefix of its dropout masks' purposes.
    """

    def __init__(self, widths: list[int], dropout: float, name: str) -> None:
        super().__init__()
        self.linears = _linear_layers(widths)
        self.dropout = dropout
        self.name = name

    def hidden(self, x: torch.Tensor, draw: Draw | None = None) -> torch.Tensor:
        """Return the input of the last layer, float32 (B, h).

        Args:
            x: float32 (B, k).
            draw: the randomness of a training step; None in evaluation, without dropout.
        """
        for number, layer in enumerate(list(self.linears)[:-1]):
            x = apply_dropout(torch.relu(layer(x)), self.dropout, draw, f"{self.name} dropout {number}")
        return x

    def forward(self, x: torch.Tensor, draw: Draw | None = None) -> torch.Tensor:
        return self.linears[-1](self.hidden(x, draw))


def apply_dropout(state: torch.Tensor, rate: float, draw: Draw | None, purpose: str) -> torch.Tensor:
    """Return ``state`` (B, h) times the step's dropout mask; ``state`` itself in evaluation.

    Args:
        state: float32 (B, h).
        rate: probability that an entry becomes 0.
        draw: the randomness of a training step; None in evaluation.
        purpose: names the mask among those of the step.
    """
    if draw is None or rate == 0:
        return state
    return cast(torch.Tensor, _Masked.apply(state, draw.dropout_mask(purpose, state.shape[1], rate)))


class _Masked(Function):
    """state·mask, without a copy of the state for the gradient."""

    @staticmethod
    def forward(ctx: Any, state: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(mask)
        return state * mask

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (mask,) = ctx.saved_tensors
        return gradients[0] * mask, None


def _linear_layers(widths: list[int]) -> nn.ModuleList:
    """Return linear layers from each width to the next, with Glorot-uniform weights and zero biases."""
    layers = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(widths)]
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.ModuleList(layers)
