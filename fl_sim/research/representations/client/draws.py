"""Random numbers of a training step that do not depend on who computes which of its rows.

A step has a seed. Every mask and every noise vector of the step is drawn for the whole batch and each party reads the
rows that it has: so any number of clients makes the same random numbers as one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.strategies.primitives import streams

_COIN_STEPS = 1 << 16  # of the rate of a mask
_SMALLEST = 2.0**-33  # no logarithm of zero
_SEED_BITS = 128  # of a derived seed


def short_seed(seed: int, purpose: str, *indices: int, bits: int = 63) -> int:
    """A derived seed for whoever takes fewer than 128 bits: torch and messages 63, scikit-learn 32, gensim 31."""
    return streams.derived_seed(seed, purpose, *indices) >> (_SEED_BITS - bits)


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
        return self._of_batch(self._generator(purpose).random((self.total, width), dtype=np.float32))

    def kept(self, purpose: str, width: int, rate: float) -> torch.Tensor:
        """A dropout mask, float32 (B, width): 0 with probability ``rate``, to the nearest 2⁻¹⁶, else 1 / (1 − rate).

        Sixteen bits a coin: masks are most of the random numbers of a training.
        """
        dropped = round(rate * _COIN_STEPS)
        uniforms = self._bits(purpose, np.uint16, width) >= dropped
        return self._of_batch(uniforms * np.float32(_COIN_STEPS / (_COIN_STEPS - dropped)))

    def laplace(self, purpose: str, width: int, scale: float) -> torch.Tensor:
        """Laplace noise of that scale for training, float32 (B, width): a random sign and −ln of a uniform number.

        The tails end at 22.9 scales; what is released is not drawn here.
        """
        signed = self._bits(purpose, np.int32, width).astype(np.float32)
        logarithm = np.log(np.abs(signed) * np.float32(2.0**-31) + np.float32(_SMALLEST))
        return self._of_batch(np.copysign(logarithm, signed) * np.float32(scale))

    def _bits(self, purpose: str, kind: type[np.uint16 | np.int32], width: int) -> NDArray[np.integer]:
        """Random bits as whole numbers of a kind (total, width)."""
        count = self.total * width
        words = -(-count * np.dtype(kind).itemsize // 8)
        raw = self._generator(purpose).bit_generator.random_raw(words)
        return np.asarray(raw.view(kind)[:count].reshape(self.total, width))

    def _of_batch(self, drawn: NDArray[np.float32]) -> torch.Tensor:
        found = torch.from_numpy(drawn)
        return found if self.rows is None else found[self.rows]

    def _generator(self, purpose: str) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64(streams.derived_seed(self.seed, purpose)))
