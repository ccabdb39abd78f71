"""Bound the privacy loss of one epoch of random allocation by atoms that dominate it in both directions.

A user takes part in one of t rounds, chosen uniformly. In units of the user clip the epoch is dominated by
P = (1/t) Σ_i N(e_i, z²I) against Q = N(0, z²I) (docs/privacy.md, section 16). Under Q the likelihood ratio is
S = (1/t) Σ_i E_i with independent E_i = exp(x_i/z − 1/(2z²)), and every hockey-stick divergence of the pair is E f(S)
with a convex f. So any S' that is larger than S in the convex order bounds both directions. Each E_i, and each sum of
two sums, is put on a grid of values such that the mass between two grid points goes to both and keeps its mean: this
can only raise E f. What lies above the largest grid point is cut off, and its mean counts as a certain loss. All
numbers are positive, so that rounding is relative.

>>> forward, reverse = allocation_atoms(noise_multiplier=1.0, epoch_rounds=20, rounds=20, tail=1e-12)
>>> [round(float(loss.masses.sum() + loss.infinite), 9) for loss in (forward, reverse)]
[1.0, 1.0]
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from fl_sim.strategies.accounting.losses.loss_atoms import LossAtoms
from fl_sim.strategies.accounting.losses.privacy_loss import Floats

_UNIT_ROUND_OFF = 2.0**-53
_POINTS = 512  # grid points of a sum; a sum of two costs their square
_PILOT = 1024  # bins from whose masses the grid points are chosen
_FAINT = 1e-20  # mass at the lower end that needs no grid points of its own
_FLATTEN = 0.15  # grid points follow the density to this power, so that the tails get their share
_BACKGROUND = 0.1  # share of the densest bin that every bin adds to its density


@dataclass(frozen=True, eq=False, slots=True)
class _Sum:
    """Hold a distribution that is, in the convex order, at least that of Σ E_i over some rounds.

    Attributes:
        values: float64 (n,), ascending, the first one 0.
        masses: float64 (n,).
        cut: the mean that the distribution lacks, because it was cut off above.
        round_off: a bound on the relative error of all masses.
    """

    values: Floats
    masses: Floats
    cut: float
    round_off: float


@functools.lru_cache(maxsize=64)
def allocation_atoms(
    noise_multiplier: float, epoch_rounds: int, rounds: int, tail: float
) -> tuple[LossAtoms, LossAtoms]:
    """Return the losses of the first ``rounds`` rounds of an epoch, or of any others that are as many.

    Args:
        noise_multiplier: z, the standard deviation of the noise in units of β.
        epoch_rounds: t, the number of rounds of which each user takes part in one.
        rounds: the number of rounds that are released, from 1 to t; in the others nothing is.
        tail: mean of one sum that may be cut off.

    Returns:
        The loss of the larger corpus against the smaller, and of the smaller against the larger.
    """
    total = _power(_single(noise_multiplier, tail), rounds, tail)
    ratios = (total.values + (epoch_rounds - rounds)) / epoch_rounds
    possible = ratios > 0
    losses, smaller = np.log(ratios[possible]), total.masses[possible]
    larger = smaller * ratios[possible]
    missing, error = total.cut / epoch_rounds, 2 * total.round_off
    forward = LossAtoms(losses, larger, missing, error)
    return forward, LossAtoms(-losses[::-1], smaller[::-1].copy(), float(total.masses[~possible].sum()), error)


def _single(noise_multiplier: float, tail: float) -> _Sum:
    """Return E = exp(x/z − 1/(2z²)), x standard normal, on a grid of x: its mass and mean in each interval are kept."""
    shift = 1 / noise_multiplier
    x = np.linspace(ndtri(min(_FAINT, tail)), shift - ndtri(tail), _POINTS)
    values = np.concatenate([[0.0], np.exp(shift * x - shift**2 / 2)])
    masses, means = _interval_masses(x), _interval_masses(x - shift)
    upper = np.clip((means[:-1] - values[:-1] * masses[:-1]) / np.diff(values), 0.0, masses[:-1])
    on_grid = np.append(masses[:-1] - upper, masses[-1])
    on_grid[1:] += upper
    cut = max(0.0, float(means[-1] - values[-1] * masses[-1]))
    return _Sum(values, on_grid, cut, 64 * _UNIT_ROUND_OFF * (4 + shift**2))


def _power(one: _Sum, count: int, tail: float) -> _Sum:
    """Return the sum of ``count`` independent copies, by doubling."""
    if count == 1:
        return one
    half = _power(one, count // 2, tail)
    double = _add(half, half, tail)
    return _add(double, one, tail) if count % 2 else double


def _add(first: _Sum, second: _Sum, tail: float) -> _Sum:
    """Return the sum of two independent sums on a grid of its own."""
    values = np.add.outer(first.values, second.values).ravel()
    masses = np.multiply.outer(first.masses, second.masses).ravel()
    grid = _grid(values, masses, tail)
    above = values > grid[-1]
    cut = float(masses[above] @ (values[above] - grid[-1]))
    values = np.minimum(values, grid[-1])
    below = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, len(grid) - 2)
    upper = masses * ((values - grid[below]) / np.diff(grid)[below])
    on_grid = _binned(below, masses - upper, len(grid)) + _binned(below + 1, upper, len(grid))
    terms = 2 * int(np.bincount(below).max())
    round_off = first.round_off + second.round_off + (16 + terms) * _UNIT_ROUND_OFF
    return _Sum(grid, on_grid, first.cut + second.cut + cut, round_off)


def _grid(values: Floats, masses: Floats, tail: float) -> Floats:
    """Return ascending grid points, the first of them the least value, dense where P or Q has mass.

    Any choice is valid: it decides only how close the bound is.
    """
    lowest = max(float(values[masses > _FAINT**1.5].min()), 1e-300)
    edges = np.geomspace(lowest, float(values.max()), _PILOT + 1)
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, _PILOT - 1)
    mean = float(masses @ values)
    under_q = np.bincount(place, masses, _PILOT)
    under_p = np.bincount(place, masses * values / mean, _PILOT)
    first = int(np.searchsorted(np.cumsum(under_q), _FAINT))
    last = int(np.flatnonzero(np.cumsum(under_p[::-1])[::-1] > tail)[-1])
    density = (under_q + under_p) ** _FLATTEN
    density += _BACKGROUND * density.max()
    density[:first] = density[last + 1 :] = 0.0
    share = np.concatenate([[0.0], np.cumsum(density)])
    points = np.interp(np.linspace(0.0, share[-1], _POINTS), share, edges)
    return np.unique(np.concatenate([[values.min()], points, edges[last + 1 : last + 2]]))


def _binned(places: NDArray[np.int64], masses: Floats, length: int) -> Floats:
    return np.bincount(places, masses, length).astype(np.float64, copy=False)


def _interval_masses(x: Floats) -> Floats:
    """Return the standard normal masses below, between and above ascending points, float64 (len(x) + 1,)."""
    tails = ndtr(-np.abs(x))
    one_side = (x[1:] <= 0) | (x[:-1] >= 0)
    between = np.where(one_side, np.abs(np.diff(tails)), 1.0 - tails[1:] - tails[:-1])
    return np.concatenate([[ndtr(x[0])], between, [ndtr(-x[-1])]])
