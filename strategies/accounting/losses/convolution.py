"""Convolve privacy losses on a circle of grid points, tilted so that rounding is relative to the δ in question.

The discrete Fourier transform of one round's masses, raised to the T-th power, gives the masses of a sum of T losses.
Its error is a small share of the *total* mass, which may be far above a small δ. So the masses m at losses ℓ are first
tilted to m·exp(λℓ − c), which sum to 1 (Esscher 1932); errors, scaled back, are a share of Chernoff's bound on δ at
order λ. Many rounds need a grid that is too coarse for one of them: blocks of rounds are summed on a finer grid and put
on the coarser one, each mass between two neighbours. docs/privacy-accounting.md, section 7.

>>> fair = GridLoss(width=0.5, first=-1, masses=np.array([0.4, 0.0, 0.6]), infinite=0.0, round_off=0.0)
>>> tilted = tilt(fair, order=2.0)
>>> float(tilted.masses.sum().round(12)), tilted.masses.round(3)
(1.0, array([0.083, 0.   , 0.917]))
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from fl_sim.strategies.accounting.losses.privacy_loss import UNIT_ROUND_OFF, Floats, GridLoss

Counts = NDArray[np.int64]
Combined = TypeVar("Combined")

FFT_ROUND_OFF = 8 * UNIT_ROUND_OFF  # per stage of a transform, relative to the sum of its absolute inputs
_BLOCK_CELLS = 1 << 20  # entries of the largest temporary matrix
_LARGEST_EXPONENT = 600.0


@dataclass(frozen=True, slots=True)
class TiltedLoss:
    """Hold a privacy loss on the grid ``width · (first + k)``, its masses multiplied by exp(order·loss − log_scale).

    Attributes:
        width: distance of two grid points.
        first: index of the first grid point.
        masses: tilted probabilities, float64 (num_points,); they sum to about 1.
        order: λ of the tilt.
        log_scale: c of the tilt.
        error: a bound on the sum of the absolute floating-point errors of ``masses``.
    """

    width: float
    first: int
    masses: Floats
    order: float
    log_scale: float
    error: float

    def plain(self) -> Floats:
        """Return the masses without the tilt, float64 (num_points,)."""
        losses = self.width * (self.first + np.arange(len(self.masses)))
        return np.asarray(self.masses * np.exp(self.log_scale - self.order * losses), dtype=np.float64)

    def transform(self, size: int) -> NDArray[np.complex128]:
        """Return the transform of the masses wrapped around ``size`` grid points, complex128 (size // 2 + 1,)."""
        indices = (self.first + np.arange(len(self.masses))) % size
        return np.asarray(fft.rfft(np.bincount(indices, weights=self.masses, minlength=size)))


def tilt(loss: GridLoss, order: float) -> TiltedLoss:
    """Return a loss tilted by ``order``."""
    losses = loss.width * (loss.first + np.arange(len(loss.masses)))
    with np.errstate(divide="ignore"):
        logs = np.log(loss.masses)
    exponents = logs + order * losses
    top = float(exponents.max())
    log_scale = top + math.log(float(np.exp(exponents - top).sum()))
    masses = np.exp(exponents - log_scale)
    present = masses > 0
    magnitudes = np.abs(logs[present]) + order * np.abs(losses[present]) + abs(log_scale) + 1
    error = 4 * UNIT_ROUND_OFF * float(masses[present] @ magnitudes)
    return TiltedLoss(loss.width, loss.first, masses, order, log_scale, error)


def block_of(loss: TiltedLoss, rounds: int, low: int, size: int, factor: int) -> TiltedLoss:
    """Return the sum of ``rounds`` losses on a grid that is ``factor`` times as wide.

    The circle has ``size`` points, a power of two, from the index ``low`` on. Sums outside of it are wrapped into it:
    their probability is for the caller to count as lost.

    Raises:
        FloatingPointError: rounding left no mass.
    """
    convolution = Convolution([loss], low, size)
    _, masses, _, errors = next(convolution.composed(np.array([[rounds]])))
    first = low // factor
    front = low - factor * first
    cells = np.zeros((-(-(front + size) // factor), factor))
    cells.ravel()[front : front + size] = np.roll(masses[0], -low)
    offsets, width = loss.width * np.arange(factor), factor * loss.width
    upper = np.expm1(-offsets) / np.expm1(-width)
    to_upper = upper * np.exp(loss.order * (width - offsets))
    to_lower = (1 - upper) * np.exp(-loss.order * offsets)
    coarse = np.append(cells @ to_lower, 0.0)
    coarse[1:] += cells @ to_upper
    total = float(coarse.sum())
    if not total > 0:
        raise FloatingPointError("rounding left no mass")
    error = float(errors[0]) * float((to_upper + to_lower).max()) / total + 4 * factor * UNIT_ROUND_OFF
    log_scale = rounds * loss.log_scale + math.log(total)
    return TiltedLoss(width, first, coarse / total, loss.order, log_scale, error)


class Convolution:
    """Sum independent losses of several kinds, all on one circle of grid points and with one tilt."""

    def __init__(self, losses: Sequence[TiltedLoss], low: int, size: int) -> None:
        """Wrap losses of one width and one order around the circle of ``size`` points from the index ``low`` on."""
        self.width, self.order = losses[0].width, losses[0].order
        self.low, self.size = low, size
        self._losses = losses
        self._powers = [_Power(loss.transform(size)) for loss in losses]

    def composed(self, counts: Counts) -> Iterator[tuple[slice, Floats, Floats, Floats]]:
        """Yield rows, tilted masses (num_rows, size), their log scales and bounds on their errors (num_rows,).

        Column k holds the loss ``width`` · k, or the one on the circle that differs from it by a multiple of ``size``.
        ``counts`` is how many losses of each kind to add, int64 (num_sums, num_kinds).
        """
        step = max(1, _BLOCK_CELLS // self.size)
        for start in range(0, len(counts), step):
            rows = counts[start : start + step]
            products = np.empty((len(rows), self.size // 2 + 1), dtype=complex)
            energies = np.empty(len(rows))
            for i, numbers in enumerate(rows):
                products[i], energies[i] = self._product(numbers)
            masses = fft.irfft(products, self.size, axis=1)
            scales = rows @ np.array([loss.log_scale for loss in self._losses])
            yield slice(start, start + len(rows)), masses, scales, self._errors(rows, energies)

    def _product(self, numbers: Counts) -> tuple[NDArray[np.complex128], float]:
        """Return the product of powers, and a bound on its squared norm with one loss of any kind less.

        No entry of a power exceeds 1, so the power of a single kind with one loss less is such a bound.
        """
        used = [(power, number) for power, number in zip(self._powers, numbers.tolist(), strict=True) if number]
        product = functools.reduce(np.multiply, [power.to(number) for power, number in used])
        return product, min(power.energy_of_less for power, _ in used)

    def _errors(self, rows: Counts, energies: Floats) -> Floats:
        """Return bounds on the sums of the absolute errors of all masses, float64 (num_rows,).

        The error of every entry of a transform is at most a share of the total mass, so that of a power of it is at
        most as many times that share of the power of one less; the norm of the errors of all entries bounds the sum of
        those of the masses.
        """
        per_entry = FFT_ROUND_OFF * (math.log2(self.size) + 1)
        shares = rows @ np.array([per_entry + loss.error for loss in self._losses]) + per_entry
        return np.asarray(shares * np.sqrt(energies), dtype=np.float64)


class _Power:
    """Raise a transform to ascending powers, each from the one before."""

    def __init__(self, base: NDArray[np.complex128]) -> None:
        self.base = base
        self.energy_of_less = 0.0
        """A bound on the squared norm of the power of one less than the latest."""
        self._exponent, self._value = 0, np.ones_like(base)

    def to(self, exponent: int) -> NDArray[np.complex128]:
        """Return the power ``exponent``, complex128 (len(base),)."""
        if exponent > self._exponent > 0:
            self._set(self._value, exponent - self._exponent)
        elif exponent != self._exponent:
            less = combined(self.base, exponent - 1, np.multiply) if exponent > 1 else np.ones_like(self.base)
            self._set(less, 1)
        self._exponent = exponent
        return self._value

    def _set(self, before: NDArray[np.complex128], more: int) -> None:
        """Multiply the power ``before`` by ``more`` factors, at least 1."""
        self.energy_of_less = 2 * float(np.vdot(before, before).real)
        self._value = before * combined(self.base, more, np.multiply)


def combined(one: Combined, count: int, combine: Callable[[Combined, Combined], Combined]) -> Combined:
    """Return ``count`` copies of ``one`` put together, by doubling: one ** count if they are multiplied."""
    if count == 1:
        return one
    half = combined(one, count // 2, combine)
    double = combine(half, half)
    return combine(double, one) if count % 2 else double


@dataclass(frozen=True, slots=True)
class TailSums:
    """Hold the sums over composed losses that give δ(ε) at the grid points ε ≥ 0, one row per composed loss.

    Attributes:
        points: the grid points, float64 (num_points,); without those so far down that their tilt might overflow.
        log_units: the logarithm of what the sums of a row are divided by, float64 (num_rows,).
        above: the mass at each point and above, float64 (num_rows, num_points).
        discounted: the sum of mass · exp(point − loss) over the same losses, float64 (num_rows, num_points).
        errors: a bound on the floating-point error of the convolution at the last point, float64 (num_rows,).
        growth: how much larger that bound is at each point, float64 (num_points,).
        shares: a bound on the relative error of ``above`` and ``discounted``, float64 (num_rows,).
    """

    points: Floats
    log_units: Floats
    above: Floats
    discounted: Floats
    errors: Floats
    growth: Floats
    shares: Floats

    @classmethod
    def of(cls, convolution: Convolution, masses: Floats, log_scales: Floats, errors: Floats) -> TailSums:
        """Return the sums of a block of :meth:`Convolution.composed`."""
        from scipy.signal import lfilter  # half a second to import, which no configuration needs

        width, order, low, size = convolution.width, convolution.order, convolution.low, convolution.size
        end = max(low + size, 1)
        start = max(0, low, end - max(1, int(_LARGEST_EXPONENT / (order * width))))
        points = width * np.arange(start, end, dtype=np.float64)
        growth = np.exp(order * (points[-1] - points))
        columns = np.arange(start, end) % size if low > 0 else slice(start, end)
        weighted = masses[:, columns] * growth if low + size > 0 else np.zeros((len(masses), 1))
        above = np.cumsum(weighted[:, ::-1], axis=1)[:, ::-1]
        discounted = lfilter([1.0], [1.0, -math.exp(-width)], weighted[:, ::-1], axis=1)[:, ::-1]
        shares = UNIT_ROUND_OFF * (8 * size + 16 * (np.abs(log_scales) + order * points[-1]))
        largest = math.exp(log_conversion(order))
        return cls(points, log_scales - order * points[-1], above, discounted, errors * largest, growth, shares)

    def epsilons(self, allowed: Floats) -> Floats:
        """Return the smallest ε ≥ 0 with δ(ε) ≤ ``allowed``, float64 (num_rows,); inf if there is none."""
        with np.errstate(divide="ignore", over="ignore"):
            limits = np.exp(np.log(np.maximum(allowed, 0.0)) - self.log_units)
        rows = np.arange(len(limits))
        enough = self.above - self.discounted <= limits[:, None]
        short = ~self._suffices(rows, enough.argmax(axis=1), limits)
        if short.any():  # the errors matter
            enough[short] = self._bounds(rows[short, None], np.arange(len(self.points))) <= limits[short, None]
        first = enough.argmax(axis=1)
        before = np.maximum(first - 1, 0)
        above, discounted = self.above[rows, first], self.discounted[rows, first]
        excess = above + self._errors(rows, before, above + discounted) - limits
        with np.errstate(divide="ignore", invalid="ignore"):
            back = np.log(excess / discounted)
        back = np.clip(np.nan_to_num(back, nan=0.0, posinf=0.0), self.points[before] - self.points[first], 0.0)
        return np.where(self._suffices(rows, first, limits), self.points[first] + back, np.inf)

    def deltas(self, epsilons: Floats) -> Floats:
        """Return δ(ε) of the first row at each ε ≥ 0, an upper bound, float64 (num_epsilons,)."""
        last = len(self.points) - 1
        after = np.minimum(np.searchsorted(self.points, epsilons), last)
        before = np.clip(np.searchsorted(self.points, epsilons, side="right") - 1, 0, last)
        above = np.where(epsilons > self.points[-1], 0.0, self.above[0, after])
        beyond = np.minimum(epsilons - self.points[after], 0.0)
        discounted = np.minimum(np.exp(beyond) * self.discounted[0, after], above)
        bounds = above - discounted + self._errors(np.zeros_like(before), before, above + discounted)
        with np.errstate(divide="ignore"):
            return np.where(epsilons < self.points[0], np.inf, np.exp(np.log(bounds) + self.log_units[0]))

    def _suffices(self, rows: Counts, points: Counts, limits: Floats) -> NDArray[np.bool_]:
        return np.asarray((limits > 0) & (self._bounds(rows, points) <= limits))

    def _bounds(self, rows: Counts, points: Counts) -> Floats:
        above, discounted = self.above[rows, points], self.discounted[rows, points]
        return np.asarray(above - discounted + self._errors(rows, points, above + discounted), dtype=np.float64)

    def _errors(self, rows: Counts, points: Counts, sums: Floats) -> Floats:
        return np.asarray(self.errors[rows] * self.growth[points] + self.shares[rows] * sums, dtype=np.float64)


def log_conversion(order: float) -> float:
    """Return ln max_y (1 − e^−y)·e^−λy, so that δ(ε) ≤ exp(moment(λ) − λ·ε + this) (Canonne, Kamath, Steinke 2020)."""
    return order * math.log(order) - (1 + order) * math.log1p(order)
