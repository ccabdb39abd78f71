"""The privacy layer as a torch module: differentiable while training, exact when something is sent.

Training adds ordinary floating-point Laplace noise, and gradients flow to the encoder through the normalisation:
nothing is promised there. :meth:`PrivacyLayer.release` is what leaves a client:
`fl_sim.research.representations.client.local_privacy` on the grid, with the promise.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fl_sim.research.representations.client.draws import Draw
from fl_sim.research.representations.client.local_privacy import (
    NO_DROPOUT,
    LocalGuarantee,
    Mechanism,
    WordDropout,
    guarantee_of,
)


class PrivacyLayer(nn.Module):
    """Normalise and perturb the encoder's vectors, or neither.

    Args:
        mechanism: of `fl_sim.research.representations.client.local_privacy`; None sends vectors as they are.
        dropout: of words, before the encoder; for the statement of ε.
    """

    def __init__(self, mechanism: Mechanism | None, dropout: WordDropout = NO_DROPOUT) -> None:
        super().__init__()
        self.mechanism = mechanism
        self.dropout = dropout

    @property
    def guarantee(self) -> LocalGuarantee:
        """What :meth:`release` promises for one text."""
        return guarantee_of(self.mechanism, self.dropout)

    def normalised(self, vectors: torch.Tensor) -> torch.Tensor:
        """(B, k) scaled as the mechanism asks; differentiable."""
        if self.mechanism is None:
            return vectors
        return _NORMALISE[self.mechanism.name](vectors)

    def forward(self, vectors: torch.Tensor, draw: Draw | None = None, scale: float | None = None) -> torch.Tensor:
        """Normalised vectors with noise for training; without a draw, or a mechanism, no noise.

        Args:
            vectors: (B, k).
            draw: of the training step.
            scale: of the noise, where a schedule sets another than the mechanism's.
        """
        state = self.normalised(vectors)
        if self.mechanism is None or draw is None:
            return state
        scale = self.mechanism.noise_scale if scale is None else scale
        return state + draw.laplace("privacy noise", self.mechanism.noise_width, scale)

    def release(self, vectors: torch.Tensor, generator: np.random.Generator | None) -> NDArray[np.float32]:
        """What is sent for the vectors (n, k), float32: rounding a double of the grid is post-processing."""
        plain = vectors.detach().double().numpy()
        if self.mechanism is None:
            return plain.astype(np.float32)
        return self.mechanism.release(plain, generator).astype(np.float32)


def _min_max(vectors: torch.Tensor) -> torch.Tensor:
    low = vectors.amin(dim=1, keepdim=True)
    spread = vectors.amax(dim=1, keepdim=True) - low
    return (vectors - low) / torch.where(spread > 0, spread, torch.ones_like(spread))


def _unit_l1(vectors: torch.Tensor) -> torch.Tensor:
    return _over(vectors, vectors.abs().sum(dim=1, keepdim=True))


def _unit_l2(vectors: torch.Tensor) -> torch.Tensor:
    # Under the root no zero: its slope there is infinite.
    squares = vectors.square().sum(dim=1, keepdim=True)
    return _over(vectors, torch.where(squares > 0, squares, torch.ones_like(squares)).sqrt())


def _over(vectors: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    return vectors / torch.where(length > 0, length, torch.ones_like(length))


_NORMALISE = {"dpnr": _min_max, "dpnr-shared": _min_max, "l1": _unit_l1, "l2": _unit_l2}
