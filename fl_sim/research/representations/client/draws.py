"""Random numbers of a training step, the same for every split of the batch over clients.

Masks and noise are drawn for the full batch from the step's seed; each client reads the rows that it holds. So any
number of clients computes with the same random numbers.

>>> full = Draw.full_batch(seed=7, total=4).uniform("noise", width=2)
>>> part = Draw(seed=7, rows=torch.tensor([3, 1]), total=4).uniform("noise", width=2)
>>> torch.equal(part, full[[3, 1]])
True
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.strategies.primitives import streams

_RATE_STEPS = 1 << 16  # resolution of a mask's rate
_SMALLEST = 2.0**-33  # keeps the logarithm finite
_SEED_BITS = 128  # of a derived seed


def short_seed(seed: int, purpose: str, *indices: int, bits: int = 63) -> int:
    """Return a derived seed of fewer than 128 bits: 63 for torch and messages, 32 for scikit-learn, 31 for gensim."""
    return streams.derived_seed(seed, purpose, *indices) >> (_SEED_BITS - bits)


@dataclass(frozen=True)
class Draw:
    """The randomness of one step for some rows of its batch.

    Attributes:
        seed: of the step.
        rows: positions in the batch of the rows to draw for, int64 (B,); None for all of them.
        total: rows of the full batch.
    """

    seed: int
    rows: torch.Tensor | None
    total: int

    @classmethod
    def full_batch(cls, seed: int, total: int) -> Draw:
        """Return the draw for all ``total`` rows of a batch."""
        return cls(seed, None, total)

    def uniform(self, purpose: str, width: int) -> torch.Tensor:
        """Return uniform numbers in [0, 1), float32 (B, width)."""
        return self._select_rows(self._generator(purpose).random((self.total, width), dtype=np.float32))

    def dropout_mask(self, purpose: str, width: int, rate: float) -> torch.Tensor:
        """Return a dropout mask, float32 (B, width): 0 with probability ``rate``, else 1 / (1 − rate).

        The rate is rounded to the nearest 2⁻¹⁶: an entry takes sixteen random bits, because masks are most of the
        random numbers of a training.
        """
        dropped = round(rate * _RATE_STEPS)
        stays = self._bits(purpose, np.uint16, width) >= dropped
        return self._select_rows(stays * np.float32(_RATE_STEPS / (_RATE_STEPS - dropped)))

    def laplace(self, purpose: str, width: int, scale: float) -> torch.Tensor:
        """Return Laplace noise for training, float32 (B, width): a random sign times −scale·ln of a uniform number.

        The tails end at 22.9 scales. Noise of a release comes from
        `fl_sim.research.representations.client.local_privacy`.
        """
        signed = self._bits(purpose, np.int32, width).astype(np.float32)
        logarithm = np.log(np.abs(signed) * np.float32(2.0**-31) + np.float32(_SMALLEST))
        return self._select_rows(np.copysign(logarithm, signed) * np.float32(scale))

    def _bits(self, purpose: str, kind: type[np.uint16 | np.int32], width: int) -> NDArray[np.integer]:
        """Return random bits as integers of type ``kind``, (total, width)."""
        count = self.total * width
        words = -(-count * np.dtype(kind).itemsize // 8)
        raw = self._generator(purpose).bit_generator.random_raw(words)
        return np.asarray(raw.view(kind)[:count].reshape(self.total, width))

    def _select_rows(self, numbers: NDArray[np.float32]) -> torch.Tensor:
        batch = torch.from_numpy(numbers)
        return batch if self.rows is None else batch[self.rows]

    def _generator(self, purpose: str) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64(streams.derived_seed(self.seed, purpose)))
