"""Cache every ε: it is a pure function of its arguments and takes half the time of a small run.

Tests of ε itself do not use the cache.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest

from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency

_compute_curve, _compose = accountant.epsilon_curve, accountant.composed_epsilon


@contextmanager
def computed_once() -> Iterator[None]:
    """Cache the results of :mod:`fl_sim.strategies.accounting.accountant` during the block and across blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accountant, "epsilon_curve", _epsilon_curve)
        patch.setattr(accountant, "composed_epsilon", _composed_epsilon)
        yield


@functools.cache
def _curve(event: RoundEvent, adjacency: Adjacency, rounds: tuple[int, ...], delta: float) -> npt.NDArray[np.float64]:
    return _compute_curve(event, adjacency, rounds, delta)


def _epsilon_curve(
    event: RoundEvent, adjacency: Adjacency, rounds: Sequence[int], delta: float
) -> npt.NDArray[np.float64]:
    return _curve(event, adjacency, tuple(rounds), delta).copy()


@functools.cache
def _composed(parts: tuple[accountant.Part, ...], delta: float) -> float:
    return _compose(parts, delta)


def _composed_epsilon(parts: Iterable[accountant.Part], delta: float) -> float:
    return _composed(tuple(parts), delta)  # in this order, on which the last bit depends
