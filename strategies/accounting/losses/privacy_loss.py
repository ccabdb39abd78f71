"""Discretise privacy losses: of one round on a grid, and of one revealed case into atoms off any grid.

A round is dominated (docs/privacy-proofs.md, sections 4 and 5) by a pair of scalar distributions: in a case that both
sides reveal, Q = Σ_j r_j N(−t_j, z²) and P = p₀·Q + Σ_i p_i N(s_i, z²), all s_i, t_j ≥ 0. The loss ℓ = ln dP/dQ then
never decreases in x, so every interval of losses is an interval of x and its masses under P and Q are sums of normal
probabilities. Both masses of an interval are kept exactly and put on its two ends ("connect the dots", Doroshenko et
al. 2022, arXiv 2207.04380), which dominates the pair in both directions.

:func:`discretize` solves for the x of every point of one grid. :func:`both_directions` cuts the line of x into
intervals, as fine as the smoothness of the pair requires, whose ends are atoms off any grid; any grid takes them
cheaply, in the same way.

>>> pair = GaussianMixturePair(1.0, 0.5, shifts=np.ones(1), weights=np.full(1, 0.5))
>>> forward, reverse = discretize((pair,), noise_multiplier=1.0, width=0.1, tail=1e-9)
>>> [round(float(loss.masses.sum() + loss.infinite), 6) for loss in (forward, reverse)]
[1.0, 1.0]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

Floats = NDArray[np.float64]

UNIT_ROUND_OFF = 2.0**-53
EXPONENT_LIMIT = 700.0  # exp of more overflows
_TABLE_POINTS = 512
_CELLS = 1 << 21  # entries of the largest temporary matrix
_OUTWARD = 80  # the search for a loss ends this many standard deviations beyond the central range


@dataclass(frozen=True, slots=True)
class GaussianMixturePair:
    """Hold one revealed case of a dominating pair: P = common·Q + Σ weights_i N(shifts_i, z²), Q = Σ r_j N(−t_j, z²).

    Attributes:
        probability: the probability of this case, which both sides observe.
        common: the share of P that equals Q (nothing protected takes part).
        shifts: s, float64 (num_shifts,), at least 0, in units of the user clip β.
        weights: p, float64 (num_shifts,); what they and ``common`` miss of 1 counts as a certain loss.
        opposed_shifts: t, float64 (num_opposed,), at least 0, in units of β; a single 0 if the sum of the smaller
            corpus does not shift.
        opposed_weights: r, float64 (num_opposed,); what they miss of 1 counts as a certain loss.
        cut: the mass that P and Q miss apart from ``common``, where it is known better than by subtraction from 1.
    """

    probability: float
    common: float
    shifts: Floats
    weights: Floats
    opposed_shifts: Floats = field(default_factory=lambda: np.zeros(1))
    opposed_weights: Floats = field(default_factory=lambda: np.ones(1))
    cut: tuple[float, float] | None = None

    @property
    def moves(self) -> bool:
        """Tell whether P and Q differ."""
        return len(self.shifts) > 0

    @property
    def spread(self) -> float:
        """Return the largest distance between a centre of P and one of Q, in units of β."""
        return float(self.shifts.max(initial=0.0) + self.opposed_shifts.max())

    @property
    def missing(self) -> tuple[float, float]:
        """Return the probability mass that P and Q miss of 1."""
        if self.cut is not None:
            return self.cut[0] + self.common * self.cut[1], self.cut[1]
        q = max(0.0, 1.0 - float(self.opposed_weights.sum()))
        return max(0.0, 1.0 - self.common - float(self.weights.sum())) + self.common * q, q


@dataclass(frozen=True, slots=True)
class GridLoss:
    """Hold the privacy loss of one round in one direction, on the grid ``width · (first + k)``.

    Attributes:
        width: distance of two grid points.
        first: index of the first grid point.
        masses: the probability of each grid point, float64 (num_points,).
        infinite: the probability of an unbounded loss; it is added to δ once per round.
        round_off: a bound on the floating-point error of one round's hockey-stick divergence.
        relative: a bound η on its relative error: (1 + η) times the divergence at ε − η is an upper bound.
    """

    width: float
    first: int
    masses: Floats
    infinite: float
    round_off: float
    relative: float = 0.0


def mixed(losses: Sequence[GridLoss], probabilities: Sequence[float], infinite: float) -> GridLoss:
    """Return the mixture of losses on grids of one width, with the given probability of an unbounded loss."""
    first = min(loss.first for loss in losses)
    masses = np.zeros(max(loss.first + len(loss.masses) for loss in losses) - first)
    for loss, probability in zip(losses, probabilities, strict=True):
        masses[loss.first - first :][: len(loss.masses)] += probability * loss.masses
    return GridLoss(losses[0].width, first, masses, infinite, max(loss.round_off for loss in losses))


def discretize(
    mixtures: tuple[GaussianMixturePair, ...], noise_multiplier: float, width: float, tail: float
) -> tuple[GridLoss, GridLoss]:
    """Return the losses of one round on a grid of ``width``: upper bounds in both directions.

    The first is that of the larger corpus against the smaller. ``tail`` is the mass per mixture that may become an
    infinite loss at either end.
    """
    pieces = [_discretize_mixture(mixture, noise_multiplier, width, tail) for mixture in mixtures]
    first = min(piece.first for piece in pieces)
    length = max(piece.first + len(piece.larger) for piece in pieces) - first
    larger, smaller = np.zeros(length), np.zeros(length)
    for mixture, piece in zip(mixtures, pieces, strict=True):
        span = slice(piece.first - first, piece.first - first + len(piece.larger))
        larger[span] += mixture.probability * piece.larger
        smaller[span] += mixture.probability * piece.smaller
    known = all(mixture.cut is not None for mixture in mixtures)  # then it includes the cases that are left out
    unlisted = 0.0 if known else max(0.0, 1.0 - sum(mixture.probability for mixture in mixtures))
    infinite = unlisted + sum(m.probability * p.infinite for m, p in zip(mixtures, pieces, strict=True))
    reverse = unlisted + sum(m.probability * p.reverse_infinite for m, p in zip(mixtures, pieces, strict=True))
    error = _relative_error(mixtures, noise_multiplier, length, width * max(abs(first), abs(first + length)))
    return (
        GridLoss(width, first, larger, infinite, 0.0, error),
        GridLoss(width, -(first + length - 1), smaller[::-1].copy(), reverse, 0.0, error),
    )


def _relative_error(
    mixtures: tuple[GaussianMixturePair, ...], noise_multiplier: float, points: int, largest_loss: float
) -> float:
    """Return η such that the computed divergence H' of one round satisfies H(ε) ≤ (1 + η)·H'(ε − η).

    The masses of all intervals above a point sum to a tail of P and one of Q, in which only the errors of the normal
    tails (relative, growing with x²), of the sums over shifts and cases, and of the splits over two grid points remain.
    So H' is off by at most a share η of P(loss > ε) = H(ε) + e^ε·Q(loss > ε), which are what the factor 1 + η and the
    step η in ε add. Losses are off by a share of the largest.
    """
    largest = max(mixture.spread for mixture in mixtures) / noise_multiplier
    terms = max(len(mixture.shifts) + len(mixture.opposed_shifts) for mixture in mixtures) + len(mixtures)
    return UNIT_ROUND_OFF * (64 * (16 + largest**2) + 4 * (points + terms) + 8 * largest_loss)


def round_off(mixtures: tuple[GaussianMixturePair, ...], noise_multiplier: float) -> float:
    """Return a bound on the floating-point error of one round's divergence.

    It covers the normal tails (whose error grows with x²), the sums, and the splits over two grid points.
    """
    largest = max(mixture.spread for mixture in mixtures) / noise_multiplier
    return 64 * UNIT_ROUND_OFF * (4 + largest**2)


def loss_range(mixtures: tuple[GaussianMixturePair, ...], noise_multiplier: float, tail: float) -> tuple[float, float]:
    """Return two losses between which all but about ``tail`` of each mixture lies."""
    low, high = 0.0, 0.0
    for mixture in mixtures:
        if mixture.moves:
            curve = _LossCurve(mixture, noise_multiplier)
            left, right = curve.central_range(tail)
            low, high = min(low, curve.loss(left)), max(high, curve.loss(right))
    return low, high


@dataclass(frozen=True, slots=True)
class _Piece:
    """Hold one mixture on the grid: masses under P (``larger``) and Q (``smaller``), and the infinite losses."""

    first: int
    larger: Floats
    smaller: Floats
    infinite: float
    reverse_infinite: float


class _LossCurve:
    """Evaluate ℓ(x) = ln(common + Σ p_i N(x − s_i) / Σ r_j N(x + t_j)), in units of the noise, and its inverse."""

    def __init__(self, mixture: GaussianMixturePair, noise_multiplier: float) -> None:
        self.common = mixture.common
        self.shifts, self.weights = mixture.shifts / noise_multiplier, mixture.weights
        self.opposed, self.opposed_weights = mixture.opposed_shifts / noise_multiplier, mixture.opposed_weights
        self.infimum = float(np.log(self.common)) if self.common > 0 else -np.inf
        if self.common == 0 and self.shifts.min() == 0 and self.opposed.max() == 0:
            self.infimum = float(np.log(self.weights[self.shifts == 0].sum()))
        self.supremum = np.inf
        if self.shifts.max() == 0:
            unmoved = float(self.opposed_weights[self.opposed == 0].sum())
            ratio = float(self.weights.sum()) / unmoved if unmoved > 0 else np.inf
            self.supremum = float(np.log(self.common + ratio))

    def loss(self, x: float) -> float:
        return float(self.loss_and_slope(np.array([x]))[0][0])

    def loss_and_slope(self, x: Floats) -> tuple[Floats, Floats]:
        """Return ℓ and ℓ' at every x, float64 (len(x),) each."""
        ratio, slope = _log_tilt(x, self.shifts, self.weights)
        if self.opposed.max() > 0 or self.opposed_weights[0] != 1:
            below, below_slope = _log_tilt(x, -self.opposed, self.opposed_weights)
            ratio, slope = ratio - below, slope - below_slope
        if self.common == 0:
            return ratio, slope
        loss = np.logaddexp(np.log(self.common), ratio)
        return loss, slope * np.exp(ratio - loss)

    def masses(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the masses under P and Q of the intervals between ascending x, float64 (len(x) + 1,) each."""
        under_p, under_q = np.zeros(len(x) + 1), np.zeros(len(x) + 1)
        for shift, weight in zip(self.opposed, self.opposed_weights, strict=True):
            under_q += weight * interval_masses(x + shift)
        for shift, weight in zip(self.shifts, self.weights, strict=True):
            under_p += weight * interval_masses(x - shift)
        return under_p + self.common * under_q, under_q

    def central_range(self, tail: float) -> tuple[float, float]:
        """Return two x with at most ``tail`` of Q to the left of the first and of P to the right of the second."""
        half_width = -float(ndtri(tail))
        return -float(self.opposed.max()) - half_width, float(self.shifts.max()) + half_width

    def inverse(self, losses: Floats, tail: float) -> Floats:
        """Return x with ℓ(x) = loss for ascending losses; −∞ or ∞ for a loss below or above all values of ℓ."""
        left, right = self.central_range(tail)
        inner = losses[(losses > self.infimum) & (losses < self.supremum)]
        steps = 0
        while steps < _OUTWARD and len(inner) and self.loss(right + steps) < inner[-1]:
            steps += 1
        right, steps = right + steps, 0
        while steps < _OUTWARD and len(inner) and self.loss(left - steps) > inner[0]:
            steps += 1
        table_x = np.linspace(left - steps, right, _TABLE_POINTS)
        table_loss = np.maximum.accumulate(self.loss_and_slope(table_x)[0])
        x = np.where(losses > table_loss[-1], np.inf, -np.inf)
        inside = (losses >= table_loss[0]) & (losses <= table_loss[-1])
        x[inside] = self._solve(losses[inside], table_x, table_loss)
        return x

    def _solve(self, losses: Floats, table_x: Floats, table_loss: Floats) -> Floats:
        """Solve ℓ(x) = loss by Newton's method within a bracket, which is halved where a Newton step leaves it."""
        cell = np.clip(np.searchsorted(table_loss, losses, side="right"), 1, len(table_x) - 1)
        low, high = table_x[cell - 1], table_x[cell]
        x = np.clip(np.interp(losses, table_loss, table_x), low, high)
        active = np.arange(len(losses))
        for _ in range(100):
            loss, slope = self.loss_and_slope(x[active])
            excess = loss - losses[active]
            high[active] = np.where(excess > 0, x[active], high[active])
            low[active] = np.where(excess <= 0, x[active], low[active])
            with np.errstate(divide="ignore", over="ignore", invalid="ignore"):  # then the bracket decides
                step = x[active] - excess / slope
            inside = (step >= low[active]) & (step <= high[active])
            better = np.where(inside, step, (low[active] + high[active]) / 2)
            unfinished = (np.abs(excess) > 1e-13 * np.maximum(1.0, np.abs(losses[active]))) & (
                np.abs(better - x[active]) > 1e-14 * np.maximum(1.0, np.abs(better))
            )
            x[active] = better
            active = active[unfinished]
            if not len(active):
                break
        return x


def _log_tilt(x: Floats, shifts: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Return ln Σ weights_i exp(shifts_i·x − shifts_i²/2) and its derivative at every x, float64 (len(x),) each."""
    value, slope = np.empty_like(x), np.empty_like(x)
    offsets = np.log(weights) - shifts**2 / 2
    step = max(1, _CELLS // len(shifts))
    for rows in (slice(start, start + step) for start in range(0, len(x), step)):
        exponents = np.multiply.outer(x[rows], shifts)
        exponents += offsets
        top = exponents.max(axis=1)
        exponents -= top[:, None]
        np.exp(exponents, out=exponents)
        total = exponents.sum(axis=1)
        value[rows] = top + np.log(total)
        slope[rows] = exponents @ shifts / total
    return value, slope


def _discretize_mixture(mixture: GaussianMixturePair, noise_multiplier: float, width: float, tail: float) -> _Piece:
    """Put the masses of each interval of losses on its two ends; mass outside the grid moves to a larger loss."""
    if not mixture.moves:
        one = np.ones(1)
        return _Piece(0, one, one, *mixture.missing)
    curve = _LossCurve(mixture, noise_multiplier)
    left, right = curve.central_range(tail)
    first = int(np.floor(max(curve.loss(left), curve.infimum) / width))
    last = max(int(np.ceil(min(curve.loss(right), curve.supremum) / width)), first + 1)
    losses: Floats = width * np.arange(first, last + 1, dtype=np.float64)
    under_p, under_q = curve.masses(curve.inverse(losses, tail))
    missing = mixture.missing
    p, q = under_p[1:-1], under_q[1:-1]
    spread = -np.expm1(-width)
    larger, smaller = np.zeros(len(losses)), np.zeros(len(losses))
    p_high = np.clip((p - q * _exp(losses[:-1])) / spread, 0.0, p)
    p_high[losses[:-1] > EXPONENT_LIMIT] = p[losses[:-1] > EXPONENT_LIMIT]
    larger[1:] += p_high
    larger[:-1] += p - p_high
    larger[0] += under_p[0]
    q_low = np.clip((q - p * _exp(-losses[1:])) / spread, 0.0, q)
    q_low[losses[1:] < -EXPONENT_LIMIT] = q[losses[1:] < -EXPONENT_LIMIT]
    smaller[:-1] += q_low
    smaller[1:] += q - q_low
    smaller[-1] += under_q[-1]
    return _Piece(first, larger, smaller, missing[0] + float(under_p[-1]), missing[1] + float(under_q[0]))


def _exp(losses: Floats) -> Floats:
    """Return exp(losses), bounded where it would overflow; the masses of those intervals all move up."""
    return np.exp(np.minimum(losses, EXPONENT_LIMIT))


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
_CACHE_CELLS = 1 << 17  # entries of the largest temporary matrix, so that it stays in the processor's cache


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
        masses = binned(index, self.masses - upper_masses, length) + binned(index + 1, upper_masses, length)
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
    under_q = interval_masses(x)
    terms: list[_Part | _Lattices] = [dense or parts[0], parts[1]]
    log_ratios, under_p = [term.log_ratio(x) for term in terms], [term.masses(x, under_q) for term in terms]
    log_q = _log_masses(x, under_q)
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
            step = max(1, _CACHE_CELLS // len(self.shifts))
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

    def points(self, pieces: Sequence[_Stretch]) -> Floats:
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
class _Stretch:
    """Describe a stretch of the line and the distance of x on it; inf if no x between its ends is needed."""

    left: float
    right: float
    step: float


def _pieces(parts: Sequence[_Part], tail: float) -> list[_Stretch]:
    """Cut the line, less at most ``tail`` at either end, into pieces that are fine where P or Q has mass."""
    half_width = -float(ndtri(tail))
    zones = [_Stretch(-half_width, half_width, _STEP)]
    for part in parts:
        for low, high, mean, deviation in _clusters(part.shifts, part.weights, _FAINT * tail):
            step = min(_STEP * deviation, max(_WIDEST, _SHARE * mean))
            zones.append(_Stretch(low - half_width, high + half_width, step))
    highest = max(float(part.shifts.max(initial=0.0)) for part in parts)
    ends = np.unique([end for zone in zones for end in (zone.left, zone.right)] + [highest + half_width])
    pieces = []
    for left, right in itertools.pairwise(ends.tolist()):
        steps = [zone.step for zone in zones if zone.left < right and zone.right > left]
        pieces.append(_Stretch(left, right, min(steps, default=math.inf)))
    coarser = max(1.0, sum((piece.right - piece.left) / piece.step for piece in pieces) / _MOST_POINTS)
    return [_Stretch(piece.left, piece.right, piece.step * coarser) for piece in pieces]


def _points(pieces: Sequence[_Stretch]) -> Floats:
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


def binned(places: NDArray[np.int64], masses: Floats, length: int) -> Floats:
    return np.bincount(places, masses, length).astype(np.float64, copy=False)


def _density(x: Floats) -> Floats:
    """Return the standard normal density without its constant factor."""
    return np.exp(-(x**2) / 2)


def _between(points: Floats) -> Floats:
    """Return the standard normal masses between neighbouring, ascending rows, in full precision."""
    tails = ndtr(-np.abs(points))
    lower, upper = points[:-1], points[1:]
    return np.where((upper <= 0) | (lower >= 0), np.abs(tails[1:] - tails[:-1]), 1.0 - tails[1:] - tails[:-1])


def interval_masses(x: Floats) -> Floats:
    """Return the standard normal masses of the intervals between ascending x, float64 (len(x) + 1,)."""
    return np.concatenate([[ndtr(x[0])], _between(x), [ndtr(-x[-1])]])


def _log_masses(x: Floats, masses: Floats) -> Floats:
    """Return ln of ``masses``, also far to the right, where the masses underflow."""
    tails = log_ndtr(-x)
    with np.errstate(divide="ignore"):
        far = np.concatenate([[0.0], tails[:-1] + np.log(-np.expm1(tails[1:] - tails[:-1])), tails[-1:]])
        return np.where(np.concatenate([[False], x[:-1] > 1, [True]]), far, np.log(masses))
