"""Draws that the synthetic corpus is made of; every one takes its generator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def pick(values: Sequence[T], rng: np.random.Generator) -> T:
    """One of ``values``, all equally likely."""
    return values[int(rng.integers(len(values)))]


def draw_rank(size: int, rng: np.random.Generator, offset: float = 2.0) -> int:
    """A rank in [0, size), the likelier the lower: falling like 1/(rank + offset) (Zipf–Mandelbrot).

    Drawn by inverting the continuous distribution, so that no table is needed.
    """
    rank = offset * ((size + offset) / offset) ** rng.random() - offset
    return min(int(rank), size - 1)


def pick_by_rank(values: Sequence[T], rng: np.random.Generator) -> T:
    """One of ``values``, which stand in the order of their fame."""
    return values[draw_rank(len(values), rng)]
