"""Compute ε or δ after many rounds: convolve the privacy loss of one round with itself, and add every error to δ.

The loss of T rounds is the sum of T independent losses. The discrete Fourier transform of one round's masses,
raised to the T-th power, gives the masses of that sum wrapped around a circle of grid points. Rounds of different
kinds share one circle, on which their transforms are multiplied. The result stays an upper bound because δ includes:

* the mass above the window (bounded by Chernoff's inequality), which the circle wraps to small losses; mass below
  the window wraps to large losses, which needs no correction;
* infinite losses and the floating-point error of the discretisation, once per round;
* the floating-point error of the transforms (Higham 2002, section 24.1, entry by entry).

>>> gaussian = GaussianMixturePair(1.0, 0.0, shifts=np.ones(1), weights=np.ones(1))
>>> epsilon_curve((gaussian,), 4.0, np.array([1, 16]), delta=1e-5).round(2)
array([0.93, 4.38])
>>> delta_at((gaussian,), 4.0, rounds=16, epsilon=4.38) < 1.01e-5
True
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.signal import lfilter

from fl_sim.strategies.accounting.loss_atoms import LossAtoms
from fl_sim.strategies.accounting.privacy_loss import Floats, GaussianMixturePair, GridLoss, discretize, loss_range

_DOUBLINGS = 27
# Two interleaved geometric series of factor 2: only the first order of each needs an exponential per loss.
ORDERS = np.sort(np.multiply.outer([2.0**-13, 2.0**-13.5], 2.0 ** np.arange(_DOUBLINGS)).ravel())
_DOUBLING_ROUND_OFF = 4 * 2.0**-53  # relative, per unit of the first exponent; it doubles with the order
_SMALLEST = 2.0**-1022  # the most that a term of a moment loses to underflow
# ln max_y (1 − e^−y)·e^−λy, so that δ(ε) ≤ exp(moment(λ) − λ·ε + this) (Canonne, Kamath, Steinke 2020)
_CONVERSION = ORDERS * np.log(ORDERS) - (1 + ORDERS) * np.log1p(ORDERS)
_FFT_ROUND_OFF = 8 * 2.0**-53  # per stage of a transform, relative to the sum of its absolute inputs
_BLOCK_CELLS = 1 << 20
SHORT_CURVE = 16
"""Longest curve that is computed on the fine grid; longer curves use a coarser one."""
_CURVE_GRID = 1 << 13
_SINGLE_GRID = 1 << 14
_COARSE_POINTS = 1 << 11
_BAND = 16  # numbers of rounds that share a grid differ by at most this factor
_LEAST_SHIFT = 1e-12  # in standard deviations of the noise; doubles cannot resolve the loss of a smaller shift
_TAIL_SHARE = 1e-4  # share of δ that each kind of truncation may use
DELTA_IN_SEARCH = 1e-12  # replaces δ in the truncations when δ itself is computed


@dataclass(frozen=True, slots=True)
class Window:
    """Delimit the interval of losses that holds nearly all of a composed loss."""

    low: float
    high: float


Counts = NDArray[np.int64]


def epsilon_curve(
    mixtures: tuple[GaussianMixturePair, ...],
    noise_multiplier: float,
    counts: Counts,
    delta: float,
) -> Floats:
    """Return the smallest provable ε after each number of rounds, float64 (len(counts),); inf where none is provable.

    Args:
        mixtures: the dominating pair of one round, one mixture per revealed case, shifts in units of β.
        noise_multiplier: z, the standard deviation of the noise in units of β.
        counts: numbers of rounds, int64 (num_counts,), ascending.
        delta: δ of the guarantee.
    """
    result: Floats = np.zeros(len(counts))
    if not _moves(mixtures):
        return result
    size = _CURVE_GRID if len(counts) > SHORT_CURVE else _SINGLE_GRID
    for band in _bands(counts):
        numbers = counts[band]
        both, windows = _grid_losses(mixtures, noise_multiplier, int(numbers[-1]), delta, size)
        for loss, window in zip(both, windows, strict=True):
            result[band] = np.maximum(result[band], epsilons(loss, numbers, delta, window, size))
    return result


def delta_at(mixtures: tuple[GaussianMixturePair, ...], noise_multiplier: float, rounds: int, epsilon: float) -> float:
    """Return an upper bound on δ(ε) after ``rounds`` rounds, the larger of both directions.

    Args:
        mixtures: the dominating pair of one round, one mixture per revealed case, shifts in units of β.
        noise_multiplier: z, the standard deviation of the noise in units of β.
        rounds: number of equal rounds.
        epsilon: ε of the guarantee.
    """
    if not _moves(mixtures):
        return 0.0
    both, windows = _grid_losses(mixtures, noise_multiplier, rounds, DELTA_IN_SEARCH, _SINGLE_GRID)
    return max(
        delta_of_loss(loss, rounds, epsilon, window, _SINGLE_GRID) for loss, window in zip(both, windows, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Part:
    """Describe ``rounds`` equal rounds of a training: the dominating pair of each, and z."""

    mixtures: tuple[GaussianMixturePair, ...]
    noise_multiplier: float
    rounds: int


@dataclass(frozen=True, eq=False, slots=True)
class AtomPart:
    """Describe ``rounds`` equal releases of a training by the losses of each, as atoms in both directions."""

    atoms: tuple[LossAtoms, LossAtoms]
    rounds: int


def epsilon_of_parts(parts: Sequence[Part | AtomPart], delta: float) -> float:
    """Return the smallest provable ε after rounds of several kinds; inf where none is provable.

    Args:
        parts: the kinds of rounds, in any order.
        delta: δ of the guarantee.
    """
    moving = [part for part in parts if isinstance(part, AtomPart) or _moves(part.mixtures)]
    if not moving:
        return 0.0
    counts = np.array([part.rounds for part in moving])
    tail = tail_share(delta, int(counts.sum()))
    coarse = [_part_on_grid(part, None, tail) for part in moving]
    windows = [_series_window([both[k] for both in coarse], counts, _TAIL_SHARE * delta) for k in (0, 1)]
    width = max(window.high - window.low for window in windows) / (_SINGLE_GRID - 2)
    fine = [_part_on_grid(part, width, tail) for part in moving]
    return max(
        _epsilon_of_series([both[k] for both in fine], counts, delta, window) for k, window in enumerate(windows)
    )


def tail_share(delta: float, rounds: int) -> float:
    """Return the probability mass that each truncation of one round's distribution may cut off."""
    return _TAIL_SHARE * delta / rounds


def moments(loss: GridLoss) -> Floats:
    """Return upper bounds on ln Σ mass · exp(order · loss) over the finite losses, float64 (len(ORDERS),)."""
    return log_moments(loss.width * (loss.first + np.arange(len(loss.masses), dtype=np.float64)), loss.masses)


def log_moments(losses: Floats, masses: Floats) -> Floats:
    """Return upper bounds on ln Σ mass · exp(order · loss), float64 (len(ORDERS),).

    Args:
        losses: float64 (num_losses,), ascending.
        masses: the probability of each loss, float64 (num_losses,); at least one above 0.
    """
    present = np.flatnonzero(masses)
    losses, masses = losses[present], masses[present]
    top = losses[-1]
    sums = np.empty(len(ORDERS))
    for first in (0, 1):
        terms, kept_masses = np.exp(ORDERS[first] * (losses - top)), masses
        for row in range(first, len(ORDERS), 2):
            if row % 6 < 2:  # a term that underflows at one order underflows at all higher ones
                lowest = int(terms.searchsorted(_SMALLEST))
                terms, kept_masses = terms[lowest:], kept_masses[lowest:]
            sums[row] = kept_masses @ terms
            np.square(terms, out=terms)
    round_off = _DOUBLING_ROUND_OFF * (1 + ORDERS[0] * (top - losses[0])) / ORDERS[0] * ORDERS
    return np.log(sums + len(losses) * _SMALLEST) + ORDERS * top + round_off


def chernoff_window(loss: GridLoss, rounds: int, tail: float) -> Window:
    """Return a window with at most ``tail`` of the sum of ``rounds`` equal losses beyond either end (Chernoff)."""
    return window_of_moments(rounds * moments(loss), rounds * moments(_negated(loss)), tail)


def window_of_moments(above: Floats, below: Floats, tail: float) -> Window:
    """Return a window with at most ``tail`` of a sum of losses beyond either end, from the moments of that sum.

    Args:
        above: ln E exp(order · sum), float64 (len(ORDERS),).
        below: ln E exp(−order · sum), float64 (len(ORDERS),).
        tail: probability mass allowed beyond either end.
    """
    low, high = (float(((bound - np.log(tail)) / ORDERS).min()) for bound in (below, above))
    return Window(-low, high)


def epsilons(loss: GridLoss, counts: Counts, delta: float, window: Window, size: int) -> Floats:
    """Return the smallest provable ε after each number of rounds, float64 (len(counts),); inf where none is provable.

    Args:
        loss: the loss of one round in one direction.
        counts: numbers of rounds, int64 (num_counts,), ascending, each at least 1.
        delta: δ of the guarantee.
        window: interval that holds nearly all of the composed losses; ``size`` grid points must span it.
        size: number of points on the circle, a power of two.
    """
    circle = _Circle.around(loss, window, size)
    per_round = loss.infinite + loss.round_off
    allowed = np.asarray(delta - counts * per_round, dtype=np.float64)
    result = _chernoff(np.multiply.outer(counts, circle.order_moments), allowed)
    for rows, masses, transform_error in circle.composed(counts):
        on_grid = allowed[rows] - transform_error - circle.mass_above(counts[rows])
        result[rows] = np.minimum(result[rows], _epsilons_on_grid(masses, circle.low, loss.width, on_grid))
    return result


def delta_of_loss(loss: GridLoss, rounds: int, epsilon: float, window: Window, size: int) -> float:
    """Return an upper bound on δ(ε) after ``rounds`` rounds in the direction of ``loss``; see :func:`epsilons`."""
    count = np.array([rounds])
    circle = _Circle.around(loss, window, size)
    _, masses, transform_error = next(circle.composed(count))
    losses = loss.width * (circle.low + np.arange(size))
    beyond = losses > epsilon
    inside = float((masses[0, beyond] * -np.expm1(epsilon - losses[beyond])).sum())
    on_circle = max(inside, 0.0) + float(transform_error[0] + circle.mass_above(count)[0])
    exponents = rounds * circle.order_moments - ORDERS * epsilon + _CONVERSION
    by_moments = float(np.exp(np.minimum(exponents, 0.0)).min())
    return min(1.0, rounds * (loss.infinite + loss.round_off) + min(on_circle, by_moments))


def _grid_losses(
    mixtures: tuple[GaussianMixturePair, ...], noise_multiplier: float, rounds: int, delta: float, size: int
) -> tuple[tuple[GridLoss, GridLoss], tuple[Window, Window]]:
    """Return the losses of one round in both directions, and the windows of ``rounds`` rounds.

    The moments of the losses on a coarse grid give the windows; the grid of the result just spans the wider one.
    """
    tail = tail_share(delta, rounds)
    noise_multiplier = _computable(mixtures, noise_multiplier)
    low, high = loss_range(mixtures, noise_multiplier, tail)
    coarse = discretize(mixtures, noise_multiplier, (high - low) / _COARSE_POINTS, tail)
    windows = [chernoff_window(loss, rounds, _TAIL_SHARE * delta) for loss in coarse]
    length = max(window.high - window.low for window in windows)
    fine = discretize(mixtures, noise_multiplier, length / (size - 2), tail)
    return fine, (windows[0], windows[1])


def _part_on_grid(part: Part | AtomPart, width: float | None, tail: float) -> tuple[GridLoss, GridLoss]:
    """Return the losses of one round of a part in both directions; ``width`` None takes a coarse grid of its own."""
    if isinstance(part, AtomPart):
        forward, reverse = part.atoms
        width = width or (forward.losses[-1] - forward.losses[0]) / _COARSE_POINTS
        return forward.on_grid(width), reverse.on_grid(width)
    noise_multiplier = _computable(part.mixtures, part.noise_multiplier)
    if width is None:
        low, high = loss_range(part.mixtures, noise_multiplier, tail)
        width = (high - low) / _COARSE_POINTS
    return discretize(part.mixtures, noise_multiplier, width, tail)


def _computable(mixtures: tuple[GaussianMixturePair, ...], noise_multiplier: float) -> float:
    """Return z, lowered where floating point could not resolve the largest shift: ε at less noise holds at more."""
    largest = max(mixture.spread for mixture in mixtures)
    return min(noise_multiplier, largest / _LEAST_SHIFT) if largest > 0 else noise_multiplier


def _series_moments(losses: Sequence[GridLoss], counts: Counts) -> Floats:
    """Return ln E exp(order · sum of all losses), float64 (len(ORDERS),)."""
    return np.sum([count * moments(loss) for loss, count in zip(losses, counts, strict=True)], axis=0)


def _series_window(losses: Sequence[GridLoss], counts: Counts, tail: float) -> Window:
    """Return a window with at most ``tail`` of the sum of all losses beyond either end."""
    above, below = _series_moments(losses, counts), _series_moments([_negated(loss) for loss in losses], counts)
    return window_of_moments(above, below, tail)


def _epsilon_of_series(losses: Sequence[GridLoss], counts: Counts, delta: float, window: Window) -> float:
    """Return the smallest provable ε of ``counts[g]`` rounds of each ``losses[g]``, on one grid, in one direction."""
    size, width = _SINGLE_GRID, losses[0].width
    series = _series_moments(losses, counts)
    circles = [_Circle.around(loss, window, size) for loss in losses]
    low = circles[0].low
    product: np.ndarray = np.ones(size // 2 + 1, dtype=complex)
    one_less = np.ones(size // 2 + 1)  # bounds the product with one round of any kind less from above
    for circle, count in zip(circles, counts, strict=True):
        product = product * _power(circle.transform, int(count))
        one_less = one_less * np.abs(circle.transform) ** (int(count) - 1)
    masses = np.roll(fft.irfft(product, size), -low)
    total = np.array([counts.sum()])
    errors = sum(count * (loss.infinite + loss.round_off) for loss, count in zip(losses, counts, strict=True))
    errors += float(circles[0].transform_error(total, np.array([2 * float((one_less**2).sum())]))[0])
    above = float(np.exp(min(float((series - ORDERS * width * (low + size)).min()), 0.0)))
    on_grid = _epsilons_on_grid(masses[None], low, width, np.array([delta - errors - above]))
    return float(min(on_grid[0], _chernoff(series[None], np.array([delta - errors]))[0]))


def _negated(loss: GridLoss) -> GridLoss:
    """Return the loss with its sign reversed, for moments of negative orders."""
    return replace(loss, first=1 - loss.first - len(loss.masses), masses=loss.masses[::-1])


def _bands(counts: Counts) -> list[slice]:
    """Split ascending numbers of rounds into runs that share a grid."""
    bands, end = [], len(counts)
    while end > 0:
        start = int(np.searchsorted(counts, counts[end - 1] / _BAND, side="right"))
        bands.append(slice(start, end))
        end = start
    return bands


def _moves(mixtures: tuple[GaussianMixturePair, ...]) -> bool:
    return any(mixture.moves for mixture in mixtures)


@dataclass(frozen=True, slots=True)
class _Circle:
    """Hold one round's masses, wrapped around ``size`` grid points from index ``low`` on, as their transform."""

    loss: GridLoss
    low: int
    size: int
    transform: np.ndarray
    order_moments: Floats

    @classmethod
    def around(cls, loss: GridLoss, window: Window, size: int) -> _Circle:
        low = int(np.floor(window.low / loss.width))
        indices = (loss.first + np.arange(len(loss.masses))) % size
        folded = np.bincount(indices, weights=loss.masses, minlength=size)
        return cls(loss, low, size, fft.rfft(folded), moments(loss))

    def mass_above(self, counts: Counts) -> Floats:
        """Return a bound on the composed mass above the window, float64 (len(counts),)."""
        top = self.loss.width * (self.low + self.size)
        exponents = np.multiply.outer(counts, self.order_moments) - ORDERS * top
        return np.exp(np.minimum(exponents.min(axis=1), 0.0))

    def composed(self, counts: Counts) -> Iterator[tuple[slice, Floats, Floats]]:
        """Yield blocks of ``counts``: rows, composed masses (num_rows, size), bounds on their error (num_rows,)."""
        step = max(1, _BLOCK_CELLS // self.size)
        power, exponent = np.ones_like(self.transform), 0
        energy_before = 2 * float((np.abs(self.transform) ** (2 * int(counts[0]) - 2)).sum())
        for start in range(0, len(counts), step):
            block = counts[start : start + step]
            powers = np.empty((len(block), len(power)), dtype=complex)
            energy = np.empty(len(block))
            for i, count in enumerate(block):
                power, exponent = power * _power(self.transform, int(count) - exponent), int(count)
                powers[i] = power
                energy[i] = energy_before
                energy_before = 2 * float(np.vdot(power, power).real)
            masses = np.roll(fft.irfft(powers, self.size, axis=1), -self.low, axis=1)
            yield slice(start, start + len(block)), masses, self.transform_error(block, energy)

    def transform_error(self, counts: Counts, energy: Floats) -> Floats:
        """Return a bound on the sum of the absolute errors of all masses, float64 (len(counts),).

        The error of every entry of a transform is at most a share of the total mass; ``energy`` bounds the squared
        norm of the transform to the power of one round less.
        """
        per_entry = _FFT_ROUND_OFF * (np.log2(self.size) + 1)
        return per_entry * (counts + 1) * np.sqrt(energy)


def _power(base: np.ndarray, exponent: int) -> np.ndarray:
    """Return base ** exponent by repeated squaring, which NumPy does not do for complex numbers."""
    if exponent == 1:
        return base
    half_power = _power(base, exponent // 2)
    return half_power * half_power * base if exponent % 2 else half_power * half_power


def _epsilons_on_grid(masses: Floats, low: int, width: float, allowed: Floats) -> Floats:
    """Return, per row, the smallest ε ≥ 0 with Σ mass · (1 − exp(ε − loss))₊ ≤ ``allowed``; inf if there is none.

    Args:
        masses: composed masses, float64 (num_counts, size).
        low: grid index of the first column.
        width: distance of two grid points.
        allowed: δ less all errors, float64 (num_counts,).
    """
    start = max(0, -low)
    if start >= masses.shape[1]:
        return np.where(allowed > 0, 0.0, np.inf)
    losses = width * (low + start + np.arange(masses.shape[1] - start))
    reversed_masses = masses[:, start:][:, ::-1]
    above = np.cumsum(reversed_masses, axis=1)
    discounted = lfilter([1.0], [1.0, -np.exp(-width)], reversed_masses, axis=1)
    enough = ((above - discounted) <= allowed[:, None])[:, ::-1]
    first_enough = enough.argmax(axis=1)
    row = np.arange(len(allowed))
    from_end = masses.shape[1] - start - 1 - first_enough
    with np.errstate(divide="ignore", invalid="ignore"):
        back = np.log((above[row, from_end] - allowed) / discounted[row, from_end])
    back = np.clip(np.nan_to_num(back, nan=0.0, posinf=0.0, neginf=-width), -width, 0.0)
    epsilon = np.maximum(losses[first_enough] + np.where(first_enough > 0, back, 0.0), 0.0)
    return np.where((allowed > 0) & enough[row, first_enough], epsilon, np.inf)


def _chernoff(order_moments: Floats, allowed: Floats) -> Floats:
    """Return ε by Markov's inequality on exp(order · loss), float64 (num_counts,); no grid limits its range.

    Args:
        order_moments: ln E exp(order · sum of losses), float64 (num_counts, len(ORDERS)).
        allowed: δ less all errors, float64 (num_counts,).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = -np.log(np.maximum(allowed, 0.0))
    totals = order_moments + _CONVERSION + needed[:, None]
    return np.maximum((totals / ORDERS).min(axis=1), 0.0)
