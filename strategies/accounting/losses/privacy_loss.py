"""Discretise the privacy loss of one round on a grid: a mixture of shifted Gaussians against another.

A round is dominated (docs/privacy.md, sections 4 and 5) by a pair of scalar distributions: in a case that both sides
reveal, Q = Σ_j r_j N(−t_j, z²) and P = p₀·Q + Σ_i p_i N(s_i, z²), all s_i, t_j ≥ 0. The loss
ℓ = ln dP/dQ then never decreases in x, so every interval of losses is an interval of x and its masses under P and Q
are sums of normal probabilities. Both masses of an interval between two grid points are kept exactly and put on its two
ends ("connect the dots", Doroshenko et al. 2022, arXiv 2207.04380), which dominates the pair in both directions.

>>> pair = GaussianMixturePair(1.0, 0.5, shifts=np.ones(1), weights=np.full(1, 0.5))
>>> forward, reverse = discretize((pair,), noise_multiplier=1.0, width=0.1, tail=1e-9)
>>> [round(float(loss.masses.sum() + loss.infinite), 6) for loss in (forward, reverse)]
[1.0, 1.0]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Floats = NDArray[np.float64]

_UNIT_ROUND_OFF = 2.0**-53
_EXPONENT_LIMIT = 700.0
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


def discretize(
    mixtures: tuple[GaussianMixturePair, ...], noise_multiplier: float, width: float, tail: float
) -> tuple[GridLoss, GridLoss]:
    """Return the losses of one round on a grid, upper bounds in both directions.

    Args:
        mixtures: the dominating pair of one round, one mixture per revealed case.
        noise_multiplier: z, the standard deviation of the noise in units of β.
        width: distance of two grid points.
        tail: mass per mixture that may become an infinite loss at either end.

    Returns:
        The loss of the larger corpus against the smaller, and of the smaller against the larger.
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
    return _UNIT_ROUND_OFF * (64 * (16 + largest**2) + 4 * (points + terms) + 8 * largest_loss)


def round_off(mixtures: tuple[GaussianMixturePair, ...], noise_multiplier: float) -> float:
    """Return a bound on the floating-point error of one round's divergence.

    It covers the normal tails (whose error grows with x²), the sums, and the splits over two grid points.
    """
    largest = max(mixture.spread for mixture in mixtures) / noise_multiplier
    return 64 * _UNIT_ROUND_OFF * (4 + largest**2)


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
            under_q += weight * _interval_masses(x + shift)
        for shift, weight in zip(self.shifts, self.weights, strict=True):
            under_p += weight * _interval_masses(x - shift)
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
    for rows in _row_blocks(len(x), len(shifts)):
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
    if not mixture.moves:
        one = np.ones(1)
        return _Piece(0, one, one, *mixture.missing)
    curve = _LossCurve(mixture, noise_multiplier)
    left, right = curve.central_range(tail)
    first = int(np.floor(max(curve.loss(left), curve.infimum) / width))
    last = max(int(np.ceil(min(curve.loss(right), curve.supremum) / width)), first + 1)
    losses: Floats = width * np.arange(first, last + 1, dtype=np.float64)
    under_p, under_q = curve.masses(curve.inverse(losses, tail))
    return _connect_the_dots(first, losses, under_p, under_q, width, mixture.missing)


def _connect_the_dots(
    first: int,
    losses: Floats,
    under_p: Floats,
    under_q: Floats,
    width: float,
    missing: tuple[float, float],
) -> _Piece:
    """Put the two masses of each interval on its two ends; mass outside the grid moves to a larger loss.

    Args:
        first: index of the first grid point.
        losses: the grid, float64 (num_points,).
        under_p: masses under P below the first grid point, between neighbours and above the last one, float64
            (num_points + 1,).
        under_q: the same masses under Q.
        width: distance of two grid points.
        missing: the mass that P and Q miss of 1.
    """
    p, q = under_p[1:-1], under_q[1:-1]
    spread = -np.expm1(-width)
    larger, smaller = np.zeros(len(losses)), np.zeros(len(losses))
    p_high = np.clip((p - q * _exp(losses[:-1])) / spread, 0.0, p)
    p_high[losses[:-1] > _EXPONENT_LIMIT] = p[losses[:-1] > _EXPONENT_LIMIT]
    larger[1:] += p_high
    larger[:-1] += p - p_high
    larger[0] += under_p[0]
    q_low = np.clip((q - p * _exp(-losses[1:])) / spread, 0.0, q)
    q_low[losses[1:] < -_EXPONENT_LIMIT] = q[losses[1:] < -_EXPONENT_LIMIT]
    smaller[:-1] += q_low
    smaller[1:] += q - q_low
    smaller[-1] += under_q[-1]
    return _Piece(first, larger, smaller, missing[0] + float(under_p[-1]), missing[1] + float(under_q[0]))


def _exp(losses: Floats) -> Floats:
    """Return exp(losses), bounded where it would overflow; the masses of those intervals all move up."""
    return np.exp(np.minimum(losses, _EXPONENT_LIMIT))


def _interval_masses(points: Floats) -> Floats:
    """Return the standard normal masses of the intervals between ascending points, in full precision."""
    tails = ndtr(-np.abs(points))
    same_side = (points[1:] <= 0) | (points[:-1] >= 0)
    between = np.where(same_side, np.abs(np.diff(tails)), 1.0 - tails[1:] - tails[:-1])
    below = tails[0] if points[0] <= 0 else 1.0 - tails[0]
    above = tails[-1] if points[-1] >= 0 else 1.0 - tails[-1]
    return np.concatenate([[below], between, [above]])


def _row_blocks(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _CELLS // columns)
    for start in range(0, rows, step):
        yield slice(start, start + step)
