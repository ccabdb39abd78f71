"""Discretise the privacy loss of one revealed case into atoms off any grid, which any grid then takes cheaply.

:func:`fl_sim.strategies.accounting.losses.privacy_loss.discretize` solves for the x of every point of one grid. Here
the line of x is first cut into intervals, as fine as the smoothness of the pair requires. The masses of each interval
go to the losses at its two ends, and each of these atoms later goes to the two grid points around it. Both steps keep
the masses under P and Q ("connect the dots", Doroshenko et al. 2022), so both can only raise a hockey-stick
divergence.

>>> active = GaussianMixturePair(1.0, 0.0, shifts=np.ones(1), weights=np.ones(1))
>>> inactive = GaussianMixturePair(1.0, 1.0, shifts=np.empty(0), weights=np.empty(0))
>>> ((forward, reverse),) = both_directions(active, inactive, [0.5], noise_multiplier=2.0, spacing=1.0, tail=1e-9)
>>> round(float(forward.masses.sum() + forward.infinite), 6), round(forward.on_grid(0.01).infinite, 6)
(1.0, 0.0)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from fl_sim.strategies.accounting.losses.privacy_loss import Floats, GaussianMixturePair, GridLoss, round_off

_STEP = 1 / 32  # distance of two x, in standard deviations of a cluster of shifts, noise included
_WIDEST = 1 / 20  # widest step in standard deviations of the noise, or _SHARE of the cluster's mean if that is wider
_SHARE = 1e-3
_NEAR = 4.0  # standard deviations of the noise; a larger gap between shifts separates two clusters
_MOST_POINTS = 4096
_FAINT = 1e-3  # share of the tail that the clusters may leave out
_MANY = 48  # from this number of shifts on, sums are convolutions if the shifts lie on few lattices
_MOST_LATTICES = 4
_STRIDE = 16  # largest number of lattice points between two x
_DIGITS = 9  # decimals at which two offsets of a lattice count as equal
_TINY = 1e-290  # smaller numbers may be subnormal
_RELEVANT = 50.0  # terms this many nats below the largest one are not summed
_CELLS = 1 << 17  # entries of the largest temporary matrix, so that it stays in the processor's cache


@dataclass(frozen=True, slots=True)
class LossAtoms:
    """Hold the privacy loss in one direction as atoms.

    Attributes:
        losses: float64 (num_atoms,), ascending.
        masses: the probability of each, float64 (num_atoms,).
        infinite: the probability of an unbounded loss.
        round_off: a bound on the floating-point error of the hockey-stick divergence, on a grid included.
    """

    losses: Floats
    masses: Floats
    infinite: float
    round_off: float

    def on_grid(self, width: float) -> GridLoss:
        """Split each atom between the two grid points around it, so that its masses under P and Q are kept."""
        below = np.floor(self.losses / width)
        upper_masses = self.masses * (np.expm1(below * width - self.losses) / np.expm1(-width))
        np.clip(upper_masses, 0.0, self.masses, out=upper_masses)
        index = below.astype(np.int64)
        first = int(index[0])
        index -= first
        length = int(index[-1]) + 2
        masses = _binned(index, self.masses - upper_masses, length) + _binned(index + 1, upper_masses, length)
        return GridLoss(width, first, masses, self.infinite, self.round_off)


def both_directions(
    active: GaussianMixturePair,
    inactive: GaussianMixturePair,
    rates: Sequence[float],
    noise_multiplier: float,
    spacing: float,
    tail: float,
) -> list[tuple[LossAtoms, LossAtoms]]:
    """Return the losses of P = rate·active + (1 − rate)·inactive against Q = N(0, z²), for each of ``rates``.

    Args:
        active: the release of the larger corpus when the entity is active; one-sided, its probability is ignored.
        inactive: the same when the entity is inactive.
        rates: entity sampling rates; they share all sums.
        noise_multiplier: z, the standard deviation of the noise in units of β.
        spacing: distance of most neighbouring shifts, in units of β; it affects only the speed.
        tail: mass that may become an infinite loss at either end.

    Returns:
        For every rate, the loss of the larger corpus against the smaller and of the smaller against the larger.
    """
    parts = [_Part(mixture, noise_multiplier) for mixture in (active, inactive)]
    pieces = _pieces(parts, tail)
    finest = min(piece.step for piece in pieces)
    dense = _Lattices.of(parts[0], spacing / noise_multiplier, finest)
    x = _points(pieces) if dense is None else dense.points(pieces)
    under_q = _interval_masses(x)
    terms: list[_Part | _Lattices] = [dense or parts[0], parts[1]]
    log_ratios, under_p = [term.log_ratio(x) for term in terms], [term.masses(x, under_q) for term in terms]
    log_q = _log_interval_masses(x, under_q)
    error = round_off((active, inactive), noise_multiplier)
    result = []
    for rate in rates:
        shares = (rate, 1.0 - rate)
        with np.errstate(divide="ignore"):
            losses = np.logaddexp(*(np.log(share) + ratio for share, ratio in zip(shares, log_ratios, strict=True)))
        masses = shares[0] * under_p[0] + shares[1] * under_p[1]
        common = shares[0] * active.common + shares[1] * inactive.common
        missing = shares[0] * active.missing[0] + shares[1] * inactive.missing[0]
        result.append(_atoms(losses, masses, under_q, log_q, common, missing, error))
    return result


class _Part:
    """Evaluate common·Q + Σ weights_i N(s_i, 1), in units of the noise, term by term."""

    def __init__(self, mixture: GaussianMixturePair, noise_multiplier: float) -> None:
        self.common = mixture.common
        self.shifts, self.weights = mixture.shifts / noise_multiplier, mixture.weights
        self.offsets = np.log(self.weights) - self.shifts**2 / 2

    def log_ratio(self, x: Floats) -> Floats:
        """Return ln dP/dQ at every x, float64 (len(x),), without terms below the rounding of the sum."""
        result = np.full(len(x), np.log(self.common) if self.common > 0 else -np.inf)
        for rows in self._blocks(len(x)):
            shifts, offsets = self._relevant(float(x[rows][0]), float(x[rows][-1]))
            exponents = np.multiply.outer(x[rows], shifts)
            exponents += offsets
            top = exponents.max(axis=1)
            exponents -= top[:, None]
            np.exp(exponents, out=exponents)
            result[rows] = np.logaddexp(result[rows], top + np.log(exponents.sum(axis=1)))
        return result

    def masses(self, x: Floats, under_q: Floats) -> Floats:
        """Return the masses of the intervals between ascending x, float64 (len(x) + 1,)."""
        result = self.common * under_q
        for rows in self._blocks(len(x) - 1):
            ends = slice(rows.start, rows.stop + 1)
            result[1:-1][rows] += _between(np.subtract.outer(x[ends], self.shifts)) @ self.weights
        result[0] += ndtr(x[0] - self.shifts) @ self.weights
        result[-1] += ndtr(self.shifts - x[-1]) @ self.weights
        return result

    def _relevant(self, left: float, right: float) -> tuple[Floats, Floats]:
        """Return shifts and offsets of the terms that come near the largest one somewhere between two x."""
        if len(self.shifts) < _MANY:
            return self.shifts, self.offsets
        middle = int(np.argmax(self.offsets + self.shifts * (left + right) / 2))
        lead = self.offsets - self.offsets[middle]
        slope = self.shifts - self.shifts[middle]
        relevant = np.maximum(lead + slope * left, lead + slope * right) > -_RELEVANT
        return self.shifts[relevant], self.offsets[relevant]

    def _blocks(self, rows: int) -> Iterator[slice]:
        if len(self.shifts):
            step = max(1, _CELLS // len(self.shifts))
            yield from (slice(start, min(start + step, rows)) for start in range(0, rows, step))


class _Lattices:
    """Evaluate the same sums by convolution on a lattice of x, for shifts (k + ρ)·spacing with integer k and few ρ."""

    def __init__(self, part: _Part, steps: Floats, whole: Floats, spacing: float, phases: int) -> None:
        self.part, self.spacing = part, spacing
        self.phases, self.fine = phases, spacing / phases
        self.nodes: list[NDArray[np.int64]] = []
        kinds, kind = np.unique(np.round(steps - whole, _DIGITS), return_inverse=True)
        self.lattices = []
        for index in range(len(kinds)):
            members = np.flatnonzero(kind == index)
            k = whole[members].astype(np.int64)
            weights = np.bincount(k - k[0], part.weights[members])
            offset = float((steps - whole)[members].max()) * spacing
            self.lattices.append((int(k[0]), offset, weights[::-1].copy()))

    @classmethod
    def of(cls, part: _Part, spacing: float, finest: float) -> _Lattices | None:
        """Return the lattices of a part; None for few shifts, many lattices, or a lattice much finer than the x."""
        if len(part.shifts) < _MANY or spacing * _STRIDE < finest:
            return None
        steps = part.shifts / spacing
        whole = np.floor(steps + 10.0**-_DIGITS)
        if len(np.unique(np.round(steps - whole, _DIGITS))) > _MOST_LATTICES:
            return None
        return cls(part, steps, whole, spacing, math.ceil(spacing / finest))

    def points(self, pieces: Sequence[_Piece]) -> Floats:
        """Return the x of ``pieces``, rounded to the lattice, float64 (num_points,)."""
        ends = [round(piece.left / self.fine) for piece in pieces] + [math.ceil(pieces[-1].right / self.fine)]
        ends[0] = math.floor(pieces[0].left / self.fine)
        for piece, start, end in zip(pieces, ends[:-1], ends[1:], strict=True):
            stride = end - start if math.isinf(piece.step) else int(piece.step / self.fine)
            if end > start:
                self.nodes.append(np.append(np.arange(start, end, max(1, stride)), end))
        return self._x(np.append(np.concatenate([nodes[:-1] for nodes in self.nodes]), ends[-1]))

    def log_ratio(self, x: Floats) -> Floats:
        """Return ln dP/dQ at the x of :meth:`points`, float64 (len(x),)."""
        densities = [self._sums(_density, nodes[0], nodes[-1])[nodes[:-1] - nodes[0]] for nodes in self.nodes]
        last = self.nodes[-1][-1]
        density = np.concatenate([*densities, self._sums(_density, last, last + 1)])
        with np.errstate(divide="ignore"):
            result = np.logaddexp(np.log(self.part.common), np.log(density) + x**2 / 2)
            poor = (density < _TINY) & (np.log(_TINY) + x**2 / 2 > np.log(self.part.common) - _RELEVANT)
        if poor.any():
            result[poor] = self.part.log_ratio(x[poor])
        return result

    def masses(self, x: Floats, under_q: Floats) -> Floats:
        """Return the masses of the intervals between the x of :meth:`points`, float64 (len(x) + 1,)."""
        pieces = []
        for nodes in self.nodes:
            if len(nodes) == 2:
                pieces.append(self.part.masses(self._x(nodes), np.zeros(3))[1:2])
            else:
                cells = self._sums(self._cell, nodes[0], nodes[-1])
                pieces.append(np.add.reduceat(cells, nodes[:-1] - nodes[0]))
        outside = self.part.masses(x[[0, -1]], np.zeros(3))
        return self.part.common * under_q + np.concatenate([outside[:1], *pieces, outside[2:]])

    def _x(self, points: NDArray[np.int64]) -> Floats:
        return self.fine * points.astype(np.float64)

    def _cell(self, x: Floats) -> Floats:
        """Return the standard normal mass between x and the next lattice point."""
        return _between(np.stack([x, x + self.fine]))[0]

    def _sums(self, table: Callable[[Floats], Floats], start: int, end: int) -> Floats:
        """Return Σ weights · table(x − shift) at the points ``start`` to ``end`` (excluded) of the lattice of x."""
        result = np.zeros(end - start)
        for lowest, offset, weights in self.lattices:
            points = np.arange(start - self.phases * (lowest + len(weights) - 1), end - self.phases * lowest)
            values = table(self._x(points) - offset)
            values[values < _TINY] = 0.0
            for phase in range(min(self.phases, end - start)):
                of_phase = result[phase :: self.phases]
                of_phase += np.correlate(values[phase :: self.phases], weights, "valid")[: len(of_phase)]
        return result


@dataclass(frozen=True, slots=True)
class _Piece:
    """Describe a stretch of the line and the distance of x on it; inf if no x between its ends is needed."""

    left: float
    right: float
    step: float


def _pieces(parts: Sequence[_Part], tail: float) -> list[_Piece]:
    """Cut the line, less at most ``tail`` at either end, into pieces that are fine where P or Q has mass."""
    half_width = -float(ndtri(tail))
    zones = [_Piece(-half_width, half_width, _STEP)]
    for part in parts:
        for low, high, mean, deviation in _clusters(part.shifts, part.weights, _FAINT * tail):
            step = min(_STEP * deviation, max(_WIDEST, _SHARE * mean))
            zones.append(_Piece(low - half_width, high + half_width, step))
    highest = max(float(part.shifts.max(initial=0.0)) for part in parts)
    ends = np.unique([end for zone in zones for end in (zone.left, zone.right)] + [highest + half_width])
    pieces = []
    for left, right in itertools.pairwise(ends.tolist()):
        steps = [zone.step for zone in zones if zone.left < right and zone.right > left]
        pieces.append(_Piece(left, right, min(steps, default=math.inf)))
    coarser = max(1.0, sum((piece.right - piece.left) / piece.step for piece in pieces) / _MOST_POINTS)
    return [_Piece(piece.left, piece.right, piece.step * coarser) for piece in pieces]


def _points(pieces: Sequence[_Piece]) -> Floats:
    """Return the ascending x of ``pieces``, float64 (num_points,)."""
    numbers = [math.ceil((piece.right - piece.left) / piece.step) for piece in pieces]
    inner = [np.linspace(p.left, p.right, max(1, n) + 1)[:-1] for p, n in zip(pieces, numbers, strict=True)]
    return np.concatenate([*inner, [pieces[-1].right]])


def _clusters(shifts: Floats, weights: Floats, faint: float) -> list[tuple[float, float, float, float]]:
    """Return clusters of shifts as (lowest, highest, mean, standard deviation with noise), without ``faint`` mass."""
    first = int(np.searchsorted(np.cumsum(weights), faint))
    shifts, weights = shifts[first:], weights[first:]
    clusters = []
    for members in np.split(np.arange(len(shifts)), np.flatnonzero(np.diff(shifts) > _NEAR) + 1):
        if len(members):
            s, w = shifts[members], weights[members] / weights[members].sum()
            mean = float(w @ s)
            clusters.append((float(s[0]), float(s[-1]), mean, math.sqrt(1 + float(w @ (s - mean) ** 2))))
    return clusters


def _atoms(
    losses: Floats, under_p: Floats, under_q: Floats, log_q: Floats, common: float, missing: float, error: float
) -> tuple[LossAtoms, LossAtoms]:
    """Put the masses of each interval on the losses at its ends; mass outside of them moves to a larger loss."""
    losses = np.maximum.accumulate(losses)
    inner = slice(1, -1)
    if common > 0:  # ln(common) is the infimum of the loss: the lower end of the lowest interval
        losses, inner = np.concatenate([[min(np.log(common), losses[0])], losses]), slice(0, -1)
    p, q, log_q = under_p[inner], under_q[inner], log_q[inner]
    gap = np.maximum(np.diff(losses), 1e-300)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_p = np.log(p)
        p_up = (1 - np.exp(log_q + losses[:-1] - log_p)) / -np.expm1(-gap)
        q_down = (1 - np.exp(log_p - losses[1:] - log_q)) / -np.expm1(-gap)
    p_up = p * np.clip(np.nan_to_num(p_up, nan=1.0), 0.0, 1.0)
    q_down = q * np.clip(np.nan_to_num(q_down, nan=1.0), 0.0, 1.0)
    larger, smaller = np.zeros(len(losses)), np.zeros(len(losses))
    larger[1:] += p_up
    larger[:-1] += p - p_up
    smaller[:-1] += q_down
    smaller[1:] += q - q_down
    smaller[-1] += under_q[-1]
    unbounded = 0.0
    if common == 0:
        larger[0] += under_p[0]
        unbounded = float(under_q[0])
    forward = LossAtoms(losses, larger, missing + float(under_p[-1]), error)
    return forward, LossAtoms(-losses[::-1], smaller[::-1].copy(), unbounded, error)


def _binned(places: NDArray[np.int64], masses: Floats, length: int) -> Floats:
    return np.bincount(places, masses, length).astype(np.float64, copy=False)


def _density(x: Floats) -> Floats:
    """Return the standard normal density without its constant factor."""
    return np.exp(-(x**2) / 2)


def _between(points: Floats) -> Floats:
    """Return the standard normal masses between neighbouring, ascending rows, in full precision."""
    tails = ndtr(-np.abs(points))
    lower, upper = points[:-1], points[1:]
    return np.where((upper <= 0) | (lower >= 0), np.abs(tails[1:] - tails[:-1]), 1.0 - tails[1:] - tails[:-1])


def _interval_masses(x: Floats) -> Floats:
    """Return the standard normal masses of the intervals between ascending x, float64 (len(x) + 1,)."""
    return np.concatenate([[ndtr(x[0])], _between(x), [ndtr(-x[-1])]])


def _log_interval_masses(x: Floats, masses: Floats) -> Floats:
    """Return ln of ``masses``, also far to the right, where the masses underflow."""
    tails = log_ndtr(-x)
    with np.errstate(divide="ignore"):
        far = np.concatenate([[0.0], tails[:-1] + np.log(-np.expm1(tails[1:] - tails[:-1])), tails[-1:]])
        return np.where(np.concatenate([[False], x[:-1] > 1, [True]]), far, np.log(masses))
