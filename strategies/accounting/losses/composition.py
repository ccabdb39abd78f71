"""Compute ε or δ after many rounds: convolve the privacy loss of one round with itself, and add every error to δ.

The loss of T rounds is the sum of T independent losses; rounds of different kinds add theirs. Moments of the losses on
a coarse grid give the window that holds nearly all of the sum, and the grid just spans the window
(:mod:`fl_sim.strategies.accounting.losses.convolution` sums). Many rounds are summed in blocks first, on a finer grid.
The result stays an upper bound because of these additions:

* to δ: the mass above the window (bounded by Chernoff's inequality), which the circle wraps to small losses; the mass
  of blocks outside their window; infinite losses, once per round; the floating-point error of the convolution;
* to every loss, and as a factor of every mass: the relative floating-point error of the discretisation, per round.

Mass below the window does not matter: those losses lie below ε.

>>> gaussian = GaussianMixturePair(1.0, 0.0, shifts=np.ones(1), weights=np.ones(1))
>>> epsilon_curve((gaussian,), 4.0, np.array([1, 16]), delta=1e-5).round(2)
array([0.93, 4.38])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from fl_sim.strategies.accounting.losses.convolution import (
    Convolution,
    Counts,
    TailSums,
    TiltedLoss,
    block_of,
    log_conversion,
    tilt,
)
from fl_sim.strategies.accounting.losses.privacy_loss import (
    EXPONENT_LIMIT,
    Floats,
    GaussianMixturePair,
    GridLoss,
    LossAtoms,
    discretize,
    loss_range,
)

_DOUBLINGS = 27
# Two interleaved geometric series of factor 2: only the first order of each needs an exponential per loss.
ORDERS = np.sort(np.multiply.outer([2.0**-13, 2.0**-13.5], 2.0 ** np.arange(_DOUBLINGS)).ravel())
_DOUBLING_ROUND_OFF = 4 * 2.0**-53  # relative, per unit of the first exponent; it doubles with the order
_SMALLEST = 2.0**-1022  # the most that a term of a moment loses to underflow
_CONVERSION = np.array([log_conversion(order) for order in ORDERS.tolist()])
SHORT_CURVE = 16
"""Longest curve that is computed on the fine grid; longer curves use a coarser one."""
_CURVE_GRID = 1 << 13
_SINGLE_GRID = 1 << 14
_BLOCK_CELLS = 1 << 20  # entries of the composed masses that share a tilt
_ROOM = 2  # ratio of the circle and the window at a small δ or many rounds, so that less is wrapped around
_SMALL_DELTA = 1e-9
_COARSE_POINTS = 1 << 11
_COARSE_POINTS_OF_BLOCKS = 1 << 14
_BAND = 16  # numbers of rounds that share a grid differ by at most this factor
_MOST_SUMMED = 4096  # from this number of rounds on, blocks of rounds are summed on a finer grid first
_FEWEST_BLOCKS = 1024
_LITTLE_LOST = 100  # times the share of δ that a truncation may use
_LEAST_WIDTH = 1e-15  # of a window of losses, which may hold a single one
_MOST_SHIFT = 1e6  # in standard deviations of the noise; doubles cannot resolve the tails of a longer one
_MOST_CELLS = 1 << 20  # of one round's losses: a grid that is wider than the window asks still gives an upper bound
_LEAST_SHIFT = 1e-12  # in standard deviations of the noise; doubles cannot resolve the loss of a smaller shift
_MOST_TILTS = 4
_SMALL_ERROR = 1e-7  # share of δ; another tilt would hardly do better
_TYPICAL_ERROR = 1e-10  # of a convolution, relative to the tilted mass
_TAIL_SHARE = 1e-4  # share of δ that each kind of truncation may use
DELTA_IN_SEARCH = 1e-12  # replaces δ in the truncations when δ itself is computed


@dataclass(frozen=True, slots=True)
class Window:
    """Delimit the interval of losses that holds nearly all of a composed loss."""

    low: float
    high: float


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
        delta: δ.
    """
    result: Floats = np.zeros(len(counts))
    if not _moves(mixtures):
        return result
    if _is_beyond(mixtures, noise_multiplier):
        return np.full(len(counts), np.inf)
    size = _CURVE_GRID if len(counts) > SHORT_CURVE else _SINGLE_GRID
    for band in _bands(counts):
        numbers = counts[band]
        for series in _on_grids([Part(mixtures, noise_multiplier, int(numbers[-1]))], delta, size):
            result[band] = np.maximum(result[band], series.epsilons(numbers[:, None], delta))
    return result


def delta_at(mixtures: tuple[GaussianMixturePair, ...], noise_multiplier: float, rounds: int, epsilon: float) -> float:
    """Return an upper bound on δ(ε) after ``rounds`` rounds, the larger of both directions."""
    if not _moves(mixtures):
        return 0.0
    if _is_beyond(mixtures, noise_multiplier):
        return 1.0
    both = _on_grids([Part(mixtures, noise_multiplier, rounds)], DELTA_IN_SEARCH, _SINGLE_GRID)
    return max(float(series.deltas(np.array([rounds]), np.array([epsilon]))[0]) for series in both)


def epsilon_of_parts(parts: Sequence[Part | AtomPart], delta: float) -> float:
    """Return the smallest provable ε after rounds of several kinds, in any order; inf where none is provable."""
    moving = [part for part in parts if isinstance(part, AtomPart) or _moves(part.mixtures)]
    if not moving:
        return 0.0
    if any(isinstance(part, Part) and _is_beyond(part.mixtures, part.noise_multiplier) for part in moving):
        return np.inf
    counts = np.array([[part.rounds for part in moving]])
    return max(float(series.epsilons(counts, delta)[0]) for series in _on_grids(moving, delta, _SINGLE_GRID))


def tail_share(delta: float, rounds: int) -> float:
    """Return the probability mass that each truncation of one round's distribution may cut off.

    It does not underflow: at a smaller δ the masses cut off exceed δ, and no ε is provable.
    """
    return max(_TAIL_SHARE * delta / rounds, _SMALLEST)


def moments(loss: GridLoss, *, negated: bool = False) -> Floats:
    """Return upper bounds on ln Σ mass · exp(±order · loss) over the finite losses, float64 (len(ORDERS),)."""
    if negated:
        loss = replace(loss, first=1 - loss.first - len(loss.masses), masses=loss.masses[::-1])
    return log_moments(loss.width * (loss.first + np.arange(len(loss.masses), dtype=np.float64)), loss.masses)


def log_moments(losses: Floats, masses: Floats) -> Floats:
    """Return upper bounds on ln Σ mass · exp(order · loss), float64 (len(ORDERS),).

    ``losses`` ascend; ``masses`` are their probabilities, at least one above 0; float64 (num_losses,) each.
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


def window_of_moments(above: Floats, below: Floats, tail: float) -> Window:
    """Return a window with at most ``tail`` of a sum of losses beyond either end (Chernoff).

    ``above`` and ``below`` are ln E exp(±order · sum), float64 (len(ORDERS),) each.
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
    return _Series([_Kind(loss)], window, size).epsilons(counts[:, None], delta)


def delta_of_loss(loss: GridLoss, rounds: int, epsilon: float, window: Window, size: int) -> float:
    """Return an upper bound on δ(ε) after ``rounds`` rounds in the direction of ``loss``; see :func:`epsilons`."""
    return float(_Series([_Kind(loss)], window, size).deltas(np.array([rounds]), np.array([epsilon]))[0])


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Describe how blocks of rounds are summed on a finer grid.

    Attributes:
        loss: the loss of one round on the finer grid.
        rounds: number of rounds in a block.
        window: interval that holds nearly all of a block's sum.
        size: number of points on the circle, a power of two.
        factor: ratio of the two widths.
        lost: a bound on the mass of a block outside the circle.
        wrapped: about how much the mass above the circle counts under tilts, as logarithm, float64 (len(ORDERS),).
    """

    loss: GridLoss
    rounds: int
    window: Window
    size: int
    factor: int
    lost: float
    wrapped: Floats

    @classmethod
    def of(cls, loss: GridLoss, rounds: int, window: Window, size: int, factor: int) -> _Blocks:
        """Return the blocks on a circle of ``size`` points that begins with the window."""
        low, length = loss.width * np.floor(window.low / loss.width), loss.width * size
        above = rounds * moments(loss) - ORDERS * (low + length)
        below = rounds * moments(loss, negated=True) + ORDERS * low
        lost = sum(np.exp(min(float(exponents.min()), 0.0)) for exponents in (above, below))
        return cls(loss, rounds, window, size, factor, float(lost), _wrapped(above, length))

    @property
    def low(self) -> int:
        """Return the lowest index of the circle."""
        return int(np.floor(self.window.low / self.loss.width))


@dataclass(frozen=True, slots=True)
class _Kind:
    """Hold the loss of one kind of rounds in one direction, and how blocks of them are summed."""

    loss: GridLoss
    blocks: _Blocks | None = None

    def tilted(self, order: float) -> list[TiltedLoss]:
        """Return the losses that are summed: that of a block, if rounds are summed in blocks, and that of one round."""
        one = tilt(self.loss, order)
        if self.blocks is None:
            return [one]
        blocks = self.blocks
        return [block_of(tilt(blocks.loss, order), blocks.rounds, blocks.low, blocks.size, blocks.factor), one]

    def numbers(self, counts: Counts) -> Counts:
        """Return the number of blocks and of single rounds, int64 (num_counts, 1 or 2)."""
        if self.blocks is None:
            return counts[:, None]
        return np.stack([counts // self.blocks.rounds, counts % self.blocks.rounds], axis=1)

    def moments(self, counts: Counts) -> Floats:
        """Return ln E exp(order · sum of losses), float64 (num_counts, len(ORDERS)).

        Putting a block on the wider grid moves each mass by a random ξ of less than ``width`` with E exp(−ξ) = 1, so
        that 0 ≤ E ξ ≤ width²/8 and ln E exp(λξ) ≤ (λ² + λ)·width²/8 (Hoeffding's lemma).
        """
        of_loss = moments(self.loss)
        if self.blocks is None:
            return np.multiply.outer(counts, of_loss)
        numbers = self.numbers(counts)
        of_block = self.blocks.rounds * moments(self.blocks.loss) + ORDERS * (1 + ORDERS) * self.loss.width**2 / 8
        return np.multiply.outer(numbers[:, 0], of_block) + np.multiply.outer(numbers[:, 1], of_loss)

    def certain(self, counts: Counts) -> Floats:
        """Return the probability of losses that no grid holds, float64 (num_counts,)."""
        one = self.loss.infinite + self.loss.round_off
        if self.blocks is None:
            return np.asarray(counts * one, dtype=np.float64)
        numbers, fine = self.numbers(counts), self.blocks.loss
        of_block = self.blocks.rounds * (fine.infinite + fine.round_off) + self.blocks.lost
        return np.asarray(numbers @ np.array([of_block, one]), dtype=np.float64)

    def relative(self, counts: Counts) -> Floats:
        """Return what is added to the sum of losses, and to the logarithm of its mass, float64 (num_counts,)."""
        if self.blocks is None:
            return np.asarray(counts * self.loss.relative, dtype=np.float64)
        of_rounds = np.array([self.blocks.rounds * self.blocks.loss.relative, self.loss.relative])
        return np.asarray(self.numbers(counts) @ of_rounds, dtype=np.float64)


class _Series:
    """Sum the losses of several kinds of rounds in one direction, on one circle of grid points."""

    def __init__(self, kinds: Sequence[_Kind], window: Window, size: int) -> None:
        self._kinds, self._size = kinds, size
        self._width = kinds[0].loss.width
        self._low = int(np.floor(window.low / self._width))

    def epsilons(self, counts: Counts, delta: float) -> Floats:
        """Return the smallest provable ε, float64 (num_counts,); inf for none.

        Args:
            counts: the number of rounds of each kind, int64 (num_counts, num_kinds), ascending.
            delta: δ of the guarantee.
        """
        order_moments, relative = self._moments(counts), self._relative(counts)
        allowed = (delta - self._certain(counts)) * np.exp(-relative)
        result = _chernoff(order_moments, allowed)
        on_grid = allowed - self._mass_above(order_moments)
        step = max(1, _BLOCK_CELLS // self._size)
        for start in range(0, len(counts), step):
            rows = slice(start, start + step)
            result[rows] = self._on_circle(counts[rows], order_moments[rows], on_grid[rows], result[rows], delta)
        return result + relative

    def _on_circle(
        self, counts: Counts, order_moments: Floats, allowed: Floats, result: Floats, delta: float
    ) -> Floats:
        """Return the smaller of ``result`` and ε on the circle, under the tilts that suit ε best.

        Every tilt gives an upper bound. That of the first is the best guess of ε for the second, and so on.
        """
        errors = self._likely_errors(order_moments[-1], float(_chernoff(order_moments[-1:], allowed[-1:])[0]))
        tried: set[int] = set()
        while (best := int(errors.argmin())) not in tried:
            tried.add(best)
            with suppress(FloatingPointError), _overflow_raised():  # what stood there before is an upper bound as well
                for part, sums in self._tail_sums(counts, float(ORDERS[best])):
                    result[part] = np.minimum(result[part], sums.epsilons(allowed[part]))
            errors = self._likely_errors(order_moments[-1], float(result[-1]))
            if len(tried) == _MOST_TILTS or errors[best] < np.log(_SMALL_ERROR) + np.log(delta):
                break
        return result

    def deltas(self, counts: Counts, epsilons: Floats) -> Floats:
        """Return upper bounds on δ(ε) after ``counts`` rounds of each kind, float64 (num_epsilons,)."""
        rows = counts[None]
        relative = float(self._relative(rows)[0])
        order_moments, certain = self._moments(rows)[0], float(self._certain(rows)[0])
        lowered = np.maximum(epsilons - relative, 0.0)
        chernoff = order_moments - np.multiply.outer(lowered, ORDERS) + _CONVERSION
        order = float(ORDERS[self._likely_errors(order_moments, float(lowered[0])).argmin()])
        bounds = np.exp(np.minimum(chernoff.min(axis=1), 0.0))
        with suppress(FloatingPointError), _overflow_raised():
            ((_, sums),) = self._tail_sums(rows, order)
            bounds = np.minimum(sums.deltas(lowered) + self._mass_above(order_moments[None]), bounds)
        bounds += np.maximum(relative - epsilons, 0.0)  # δ falls by at most as much as ε rises
        return np.minimum(bounds * np.exp(min(relative, EXPONENT_LIMIT)) + certain, 1.0)

    def _tail_sums(self, counts: Counts, order: float) -> Iterator[tuple[slice, TailSums]]:
        """Yield rows of ``counts`` and the sums over their composed losses, tilted by ``order``."""
        losses = [loss for kind in self._kinds for loss in kind.tilted(order)]
        numbers = np.concatenate([kind.numbers(column) for kind, column in self._columns(counts)], axis=1)
        convolution = Convolution(losses, self._low, self._size)
        for rows, masses, log_scales, errors in convolution.composed(numbers):
            yield rows, TailSums.of(convolution, masses, log_scales, errors)

    def _likely_errors(self, order_moments: Floats, epsilon: float) -> Floats:
        """Return about the error of δ(``epsilon``) under tilts, as logarithm, float64 (len(ORDERS),).

        A high order raises the tilted masses above the circle, which are wrapped into it; a low one leaves the masses
        above ε near the rounding error of the transforms. Any order gives an upper bound.
        """
        length = self._width * self._size
        rounding = np.log(_TYPICAL_ERROR) + order_moments - ORDERS * epsilon
        wrapped = _wrapped(order_moments - ORDERS * (epsilon + length), length)
        of_blocks = [kind.blocks.wrapped for kind in self._kinds if kind.blocks is not None]
        return np.asarray(np.maximum.reduce([rounding, wrapped, *of_blocks]), dtype=np.float64)

    def _mass_above(self, order_moments: Floats) -> Floats:
        """Return a bound on the composed mass above the circle, float64 (num_counts,)."""
        exponents = order_moments - ORDERS * self._width * (self._low + self._size)
        return np.asarray(np.exp(np.minimum(exponents.min(axis=1), 0.0)), dtype=np.float64)

    def _moments(self, counts: Counts) -> Floats:
        return np.sum([kind.moments(column) for kind, column in self._columns(counts)], axis=0)

    def _certain(self, counts: Counts) -> Floats:
        return np.sum([kind.certain(column) for kind, column in self._columns(counts)], axis=0)

    def _relative(self, counts: Counts) -> Floats:
        return np.sum([kind.relative(column) for kind, column in self._columns(counts)], axis=0)

    def _columns(self, counts: Counts) -> Iterator[tuple[_Kind, Counts]]:
        return zip(self._kinds, counts.T, strict=True)


def _on_grids(parts: Sequence[Part | AtomPart], delta: float, size: int) -> tuple[_Series, _Series]:
    """Return the losses of all parts in both directions, on the grid that just spans the wider of their windows."""
    rounds = [part.rounds for part in parts]
    tail = tail_share(delta, sum(rounds))
    coarse = [_on_own_grid(part, tail) for part in parts]
    windows = [window_of([both[k] for both in coarse], rounds, delta) for k in (0, 1)]
    reach = max(loss.width * len(loss.masses) for both in coarse for loss in both)
    width = max(*(window.high - window.low for window in windows), _LEAST_WIDTH) / (size - 2)
    width = max(width, reach / _MOST_CELLS)
    circle = size
    if size == _SINGLE_GRID and (delta < _SMALL_DELTA or max(rounds) >= _MOST_SUMMED):
        circle *= _ROOM
    kinds = [_kinds(part, both, width, tail, size, circle) for part, both in zip(parts, coarse, strict=True)]
    forward, reverse = (_Series([both[k] for both in kinds], windows[k], circle) for k in (0, 1))
    return forward, reverse


def _kinds(
    part: Part | AtomPart, coarse: tuple[GridLoss, GridLoss], width: float, tail: float, size: int, circle: int
) -> tuple[_Kind, _Kind]:
    """Return the losses of a part in both directions on a grid of ``width``, many rounds with blocks on a finer one.

    ``coarse`` are the losses of one round on any grid, ``size`` points span a window, and ``circle`` ones a circle.
    """
    one = _on_grid(part, width, tail)
    if part.rounds < _MOST_SUMMED:
        return _Kind(one[0]), _Kind(one[1])
    rounds = 1 << ((part.rounds // _FEWEST_BLOCKS).bit_length() - 1)
    windows = [window_of([loss], [rounds], rounds * tail / _TAIL_SHARE) for loss in coarse]
    finest = int(width * (size - 2) / max(*(window.high - window.low for window in windows), _LEAST_WIDTH))
    factor = max(1, min(finest, _MOST_CELLS // max(len(loss.masses) for loss in one)))
    fine = _on_grid(part, width / factor, tail)
    forward, reverse = (
        _Kind(loss, _blocks(finer, rounds, window, circle, factor, rounds * tail))
        for loss, finer, window in zip(one, fine, windows, strict=True)
    )
    return forward, reverse


def _blocks(loss: GridLoss, rounds: int, window: Window, size: int, factor: int, tail: float) -> _Blocks:
    """Return blocks of which the circle leaves out little more than ``tail``.

    ``window`` is that of another grid, on which the lowest loss, of much mass, may be higher.
    """
    blocks = _Blocks.of(loss, rounds, window, size, factor)
    if blocks.lost <= _LITTLE_LOST * tail:
        return blocks
    return _Blocks.of(loss, rounds, window_of([loss], [rounds], tail / _TAIL_SHARE), size, factor)


def _wrapped(above: Floats, length: float) -> Floats:
    """Return about how much the mass above a point counts if the circle wraps it, under tilts, float64 (len(ORDERS),).

    ``above`` is the logarithm of Chernoff's bound on that mass, ``length`` the circumference of the circle.
    """
    return np.asarray(np.minimum.accumulate(above[::-1])[::-1] + ORDERS * length, dtype=np.float64)


def window_of(losses: Sequence[GridLoss], rounds: Sequence[int], delta: float) -> Window:
    """Return a window with at most a small share of ``delta`` of the sum of all rounds' losses beyond either end."""
    above = np.sum([count * moments(loss) for loss, count in zip(losses, rounds, strict=True)], axis=0)
    below = np.sum([count * moments(loss, negated=True) for loss, count in zip(losses, rounds, strict=True)], axis=0)
    return window_of_moments(above, below, tail_share(delta, 1))


def _on_own_grid(part: Part | AtomPart, tail: float) -> tuple[GridLoss, GridLoss]:
    """Return the losses of one round of a part in both directions, on a coarse grid of their own."""
    if isinstance(part, AtomPart):
        low, high = part.atoms[0].losses[[0, -1]]
    else:
        low, high = loss_range(part.mixtures, _computable(part.mixtures, part.noise_multiplier), tail)
    points = _COARSE_POINTS if part.rounds < _MOST_SUMMED else _COARSE_POINTS_OF_BLOCKS
    return _on_grid(part, max(high - low, _LEAST_WIDTH) / points, tail)


def _on_grid(part: Part | AtomPart, width: float, tail: float) -> tuple[GridLoss, GridLoss]:
    """Return the losses of one round of a part in both directions, on a grid of ``width``."""
    if isinstance(part, AtomPart):
        return part.atoms[0].on_grid(width), part.atoms[1].on_grid(width)
    return discretize(part.mixtures, _computable(part.mixtures, part.noise_multiplier), width, tail)


def _is_beyond(mixtures: tuple[GaussianMixturePair, ...], noise_multiplier: float) -> bool:
    """Return whether floating point could not resolve the losses of the longest shift."""
    return max(mixture.spread for mixture in mixtures) > _MOST_SHIFT * noise_multiplier


def _computable(mixtures: tuple[GaussianMixturePair, ...], noise_multiplier: float) -> float:
    """Return z, lowered where floating point could not resolve the largest shift: ε at less noise holds at more."""
    largest = max(mixture.spread for mixture in mixtures)
    return min(noise_multiplier, largest / _LEAST_SHIFT) if largest > 0 else noise_multiplier


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


def _overflow_raised() -> np.errstate:
    """Return a context in which tilted sums that overflow, as where ε is many millions, raise FloatingPointError."""
    return np.errstate(over="raise", divide="raise", invalid="raise")


def _chernoff(order_moments: Floats, allowed: Floats) -> Floats:
    """Return ε by Markov's inequality on exp(order · loss), float64 (num_counts,); no grid limits its range.

    ``order_moments`` are ln E exp(order · sum of losses), float64 (num_counts, len(ORDERS)); ``allowed`` is δ less all
    errors.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = -np.log(np.maximum(allowed, 0.0))
    totals = order_moments + _CONVERSION + needed[:, None]
    return np.maximum((totals / ORDERS).min(axis=1), 0.0)
