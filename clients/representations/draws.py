"""Random numbers of a training step that do not depend on who computes which of its rows.

A step has a seed. Every mask and every noise vector of the step is drawn for the whole batch and each party reads the
rows that it has: so any number of clients makes the same random numbers as one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from strategies import streams

_SEED_BITS = 63  # what torch's generators take
_LEAST = 2.0**-25


@dataclass(frozen=True)
class Draw:
    """The randomness of one step for some of its rows.

    Attributes:
        seed: of the step.
        rows: places in the batch of the rows at hand, int64 (B,); None for all of them.
        total: rows of the whole batch.
    """

    seed: int
    rows: torch.Tensor | None
    total: int

    @classmethod
    def whole(cls, seed: int, total: int) -> Draw:
        """All rows of a batch."""
        return cls(seed, None, total)

    def uniform(self, purpose: str, width: int) -> torch.Tensor:
        """Uniform numbers in [0, 1), float32 (B, width)."""
        drawn = torch.rand(self.total, width, generator=self._generator(purpose))
        return drawn if self.rows is None else drawn[self.rows]

    def laplace(self, purpose: str, width: int, scale: float) -> torch.Tensor:
        """Laplace noise of that scale for training, float32 (B, width), by inverting its distribution function.

        Uniform numbers of 24 bits end the tails at 16.6 scales; what is released is not drawn here.
        """
        centred = self.uniform(purpose, width) - 0.5
        magnitude = -torch.log1p(-2 * centred.abs().clamp_max(0.5 - _LEAST))
        return scale * centred.sign() * magnitude

    def _generator(self, purpose: str) -> torch.Generator:
        seed = streams.derived_seed(self.seed, purpose) & ((1 << _SEED_BITS) - 1)
        return torch.Generator().manual_seed(seed)
