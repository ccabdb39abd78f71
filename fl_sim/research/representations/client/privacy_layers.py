"""The privacy layer as a torch module: differentiable in training, exact in a release.

Training adds ordinary floating-point Laplace noise, and gradients reach the encoder through the normalisation; it has
no guarantee. :meth:`PrivacyLayer.release` computes what a client sends, on the grid of
`fl_sim.research.representations.local_privacy`, with its guarantee.

>>> from fl_sim.research.representations.local_privacy import UnitL1
>>> layer = PrivacyLayer(UnitL1(dimensions=2, epsilon=1.0))
>>> layer(torch.tensor([[3.0, 1.0]])).tolist()  # no draw: normalised, without noise
[[0.75, 0.25]]
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fl_sim.research.representations.client.feed_forward import Draw
from fl_sim.research.representations.local_privacy import (
    NO_DROPOUT,
    LocalGuarantee,
    Mechanism,
    WordDropout,
    guarantee_of,
)


class PrivacyLayer(nn.Module):
    """Normalisation and noise on the encoder's vectors; the identity without a mechanism.

    ``dropout`` of words happens before the encoder, and is part of the guarantee.
    """

    def __init__(self, mechanism: Mechanism | None, dropout: WordDropout = NO_DROPOUT) -> None:
        super().__init__()
        self.mechanism = mechanism
        self.dropout = dropout

    @property
    def guarantee(self) -> LocalGuarantee:
        """Return the guarantee of :meth:`release` for one text."""
        return guarantee_of(self.mechanism, self.dropout)

    def normalise(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the vectors normalised for the mechanism, float32 (B, k); differentiable."""
        if self.mechanism is None:
            return vectors
        return _NORMALISE[self.mechanism.name](vectors)

    def forward(self, vectors: torch.Tensor, draw: Draw | None = None, scale: float | None = None) -> torch.Tensor:
        """Return normalised vectors, float32 (B, k), with training noise; without noise where ``draw`` is None.

        ``scale`` is that of the noise, if a schedule sets another than the mechanism's.
        """
        state = self.normalise(vectors)
        if self.mechanism is None or draw is None:
            return state
        scale = self.mechanism.noise_scale if scale is None else scale
        return state + draw.laplace("privacy noise", self.mechanism.noise_width, scale)

    def release(self, vectors: torch.Tensor, generator: np.random.Generator | None) -> NDArray[np.float32]:
        """Return the sent vectors, float32 (n, k); rounding the grid's doubles is post-processing.

        Without a ``generator`` the operating system draws the noise.
        """
        doubles = vectors.detach().double().numpy()
        if self.mechanism is None:
            return doubles.astype(np.float32)
        return self.mechanism.release(doubles, generator).astype(np.float32)


def _min_max(vectors: torch.Tensor) -> torch.Tensor:
    low = vectors.amin(dim=1, keepdim=True)
    spread = vectors.amax(dim=1, keepdim=True) - low
    return (vectors - low) / torch.where(spread > 0, spread, torch.ones_like(spread))


def _unit_l1(vectors: torch.Tensor) -> torch.Tensor:
    return _divide_rows(vectors, vectors.abs().sum(dim=1, keepdim=True))


def _unit_l2(vectors: torch.Tensor) -> torch.Tensor:
    # No zero under the root: its slope there is infinite.
    squares = vectors.square().sum(dim=1, keepdim=True)
    return _divide_rows(vectors, torch.where(squares > 0, squares, torch.ones_like(squares)).sqrt())


def _divide_rows(vectors: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    return vectors / torch.where(length > 0, length, torch.ones_like(length))


_NORMALISE = {"dpnr": _min_max, "dpnr-shared": _min_max, "l1": _unit_l1, "l2": _unit_l2}
