"""Feed-forward networks, with dropout masks that follow from the training step's seed.

>>> network = FeedForward([4, 8, 2], dropout=0.5, name="classifier")
>>> network(torch.zeros(3, 4), Draw(seed=1, rows=3)).shape
torch.Size([3, 2])
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fl_sim.strategies.primitives import streams

_RATE_STEPS = 1 << 16  # resolution of a mask's rate
_SMALLEST = 2.0**-33  # keeps the logarithm finite
_SEED_BITS = 128  # of a derived seed


def short_seed(seed: int, purpose: str, *indices: int, bits: int = 63) -> int:
    """Return a derived seed of fewer than 128 bits: 63 for torch and messages, 32 for scikit-learn, 31 for gensim."""
    return streams.derived_seed(seed, purpose, *indices) >> (_SEED_BITS - bits)


@dataclass(frozen=True)
class Draw:
    """The randomness of one training step with a batch of ``rows`` rows, a function of its ``seed``."""

    seed: int
    rows: int

    def uniform(self, purpose: str, width: int) -> torch.Tensor:
        """Return uniform numbers in [0, 1), float32 (B, width)."""
        return torch.from_numpy(self._generator(purpose).random((self.rows, width), dtype=np.float32))

    def dropout_mask(self, purpose: str, width: int, rate: float) -> torch.Tensor:
        """Return a dropout mask, float32 (B, width): 0 with probability ``rate``, else 1 / (1 − rate).

        The rate is rounded to the nearest 2⁻¹⁶: an entry takes sixteen random bits, because masks are most of the
        random numbers of a training.
        """
        dropped = round(rate * _RATE_STEPS)
        stays = self._bits(purpose, np.uint16, width) >= dropped
        return torch.from_numpy(stays * np.float32(_RATE_STEPS / (_RATE_STEPS - dropped)))

    def laplace(self, purpose: str, width: int, scale: float) -> torch.Tensor:
        """Return Laplace noise for training, float32 (B, width): a random sign times −scale·ln of a uniform number.

        The tails end at 22.9 scales. Noise of a release comes from
        `fl_sim.research.representations.local_privacy`.
        """
        signed = self._bits(purpose, np.int32, width).astype(np.float32)
        logarithm = np.log(np.abs(signed) * np.float32(2.0**-31) + np.float32(_SMALLEST))
        return torch.from_numpy(np.copysign(logarithm, signed) * np.float32(scale))

    def _bits(self, purpose: str, kind: type[np.uint16 | np.int32], width: int) -> NDArray[np.integer]:
        """Return random bits as integers of type ``kind``, (rows, width)."""
        count = self.rows * width
        words = -(-count * np.dtype(kind).itemsize // 8)
        raw = self._generator(purpose).bit_generator.random_raw(words)
        return np.asarray(raw.view(kind)[:count].reshape(self.rows, width))

    def _generator(self, purpose: str) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64(streams.derived_seed(self.seed, purpose)))


class FeedForward(nn.Module):
    """Linear layers with ReLU and dropout between them, none after the last.

    ``widths`` are those of the input, each hidden layer and the output; ``name`` begins its dropout masks' purposes.
    """

    def __init__(self, widths: list[int], dropout: float, name: str) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in pairwise(widths))
        for layer in self.linears:  # after all layers are made: the order of draws is part of the seed
            nn.init.xavier_uniform_(cast(nn.Linear, layer).weight)
            nn.init.zeros_(cast(nn.Linear, layer).bias)
        self.dropout = dropout
        self.name = name

    def hidden(self, x: torch.Tensor, draw: Draw | None = None) -> torch.Tensor:
        """Return the input of the last layer, float32 (B, h), of ``x``, float32 (B, k); no dropout without a draw."""
        for number, layer in enumerate(list(self.linears)[:-1]):
            x = torch.relu(layer(x))
            if draw is not None and self.dropout:
                x = x * draw.dropout_mask(f"{self.name} dropout {number}", x.shape[1], self.dropout)
        return x

    def forward(self, x: torch.Tensor, draw: Draw | None = None) -> torch.Tensor:
        return self.linears[-1](self.hidden(x, draw))
