"""Random draws for the synthetic corpus; each takes its generator.

>>> pick(["a", "b", "c"], np.random.default_rng(0))
'c'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def pick(values: Sequence[T], rng: np.random.Generator) -> T:
    """Return one of ``values``, uniformly."""
    return values[int(rng.integers(len(values)))]


def draw_rank(size: int, rng: np.random.Generator, offset: float = 2.0) -> int:
    """Return a rank in [0, size) with probability about 1/(rank + offset) (Zipf–Mandelbrot).

    It is drawn by inverting the continuous distribution, without a table.
    """
    rank = offset * ((size + offset) / offset) ** rng.random() - offset
    return min(int(rank), size - 1)


def pick_by_rank(values: Sequence[T], rng: np.random.Generator) -> T:
    """Return one of ``values``, which are sorted by popularity (:func:`draw_rank`)."""
    return values[draw_rank(len(values), rng)]
