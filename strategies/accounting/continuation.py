"""Compute ε of a training that continues earlier ones: their rounds, followed by 1, 2, …, T rounds of its own.

A run that starts from a privately trained model releases its rounds after those of the earlier training. The product
of all dominating pairs dominates both together (docs/privacy.md, section 9). Every number of rounds has the earlier
rounds in common, so their transforms are multiplied once; the errors added to δ are those of
:func:`~fl_sim.strategies.accounting.composition.epsilon_of_parts`.

>>> earlier = [Release(RoundEvent("user_level", 4.0, q_u=0.1), Adjacency(), rounds=20)]
>>> epsilon_curve(earlier, RoundEvent("user_level", 3.0, q_u=0.1), Adjacency(), [1, 10], delta=1e-5).round(2)
array([0.45, 0.61])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import fft

from fl_sim.strategies.accounting import accountant, composition
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.accounting.composition import Counts, Part, Window
from fl_sim.strategies.accounting.privacy_loss import Floats, GaussianMixturePair, GridLoss


@dataclass(frozen=True, slots=True)
class Release:
    """Describe equal rounds that were released before.

    Attributes:
        event: the event of each round.
        adjacency: the protected unit in those rounds, within the contribution bounds of their run.
        rounds: the number of rounds, at least 1.
    """

    event: RoundEvent
    adjacency: Adjacency
    rounds: int


def epsilon_curve(
    earlier: Sequence[Release], event: RoundEvent, adjacency: Adjacency, rounds: Sequence[int], delta: float
) -> Floats:
    """Return ε of ``earlier`` and each number of further rounds, float64 (len(rounds),); inf where none is provable.

    Args:
        earlier: the rounds that were released before, of one run or of several.
        event: the event of every further round.
        adjacency: the protected unit in the further rounds.
        rounds: numbers of further rounds, each at least 1, in any order.
        delta: δ of the guarantee, in (0, 1).

    Raises:
        PrivacyError: a number of rounds or ``delta`` is impossible.
    """
    if not earlier:
        return accountant.epsilon_curve(event, adjacency, rounds, delta)
    accountant.check_rounds(rounds)
    accountant.check_delta(delta)
    distinct = np.unique(np.asarray(rounds, dtype=np.int64))
    tail = composition.tail_share(delta, int(distinct[-1]) + sum(release.rounds for release in earlier))
    parts = [_best_part(release, delta, tail) for release in earlier]
    pairs = accountant.dominating_pairs_for(event, adjacency, tail)
    curve = np.min([_continued(parts, pair, event.noise_multiplier, distinct, delta) for pair in pairs], axis=0)
    return np.asarray(curve[np.searchsorted(distinct, np.asarray(rounds, dtype=np.int64))])


def epsilon_before(earlier: Sequence[Release], delta: float) -> float:
    """Return ε of the earlier rounds alone; 0 if there are none, inf where none is provable."""
    accountant.check_delta(delta)
    tail = composition.tail_share(delta, max(1, sum(release.rounds for release in earlier)))
    return composition.epsilon_of_parts([_best_part(release, delta, tail) for release in earlier], delta)


def _best_part(release: Release, delta: float, tail: float) -> Part:
    """Return earlier rounds with the dominating pair that gives them the smallest ε by themselves."""
    pairs = accountant.dominating_pairs_for(release.event, release.adjacency, tail)
    noise, count = release.event.noise_multiplier, np.array([release.rounds])
    epsilons = [composition.epsilon_curve(pair, noise, count, delta)[0] for pair in pairs]
    return Part(pairs[int(np.argmin(epsilons))], noise, release.rounds)


def _continued(
    earlier: Sequence[Part],
    mixtures: tuple[GaussianMixturePair, ...],
    noise_multiplier: float,
    counts: Counts,
    delta: float,
) -> Floats:
    """Return ε of ``earlier`` and each of ``counts`` rounds of one further pair, float64 (len(counts),)."""
    moving = [part for part in earlier if any(pair.moves for pair in part.mixtures)]
    if not moving:
        return composition.epsilon_curve(mixtures, noise_multiplier, counts, delta)
    if not any(pair.moves for pair in mixtures):
        return np.full(len(counts), composition.epsilon_of_parts(moving, delta))
    result: Floats = np.zeros(len(counts))
    for band in composition.bands(counts):
        numbers = counts[band]
        parts = [*moving, Part(mixtures, noise_multiplier, int(numbers[-1]))]
        both, windows = composition.parts_on_grid(parts, delta)
        for direction, window in enumerate(windows):
            series = _Series([losses[direction] for losses in both], [part.rounds for part in moving], window)
            result[band] = np.maximum(result[band], series.epsilons(numbers, delta))
    return result


@dataclass(frozen=True, slots=True)
class _Series:
    """Hold the losses of all kinds of rounds on one grid, in one direction; the last kind is the one that continues."""

    losses: Sequence[GridLoss]
    rounds_before: Sequence[int]
    window: Window

    def epsilons(self, counts: Counts, delta: float) -> Floats:
        """Return ε after all earlier rounds and each of ``counts`` further rounds, float64 (len(counts),)."""
        width, own = self.losses[0].width, self.losses[-1]
        before = list(zip(self.losses[:-1], self.rounds_before, strict=True))
        failures = sum(count * (loss.infinite + loss.round_off) for loss, count in before)
        allowed = np.asarray(delta - failures - counts * (own.infinite + own.round_off), dtype=np.float64)
        earlier_moments = np.sum([count * composition.moments(loss) for loss, count in before], axis=0)
        moments = earlier_moments + np.multiply.outer(counts, composition.moments(own))
        result = composition.epsilon_by_moments(moments, allowed)
        size = composition.SINGLE_GRID
        low = int(np.floor(self.window.low / width))
        above = np.exp(np.minimum((moments - composition.ORDERS * width * (low + size)).min(axis=1), 0.0))
        for row, (masses, error) in enumerate(self._composed(counts, low)):
            on_grid = composition.epsilons_on_grid(
                masses[None], low, width, allowed[row : row + 1] - above[row] - error
            )
            result[row] = min(result[row], on_grid[0])
        return result

    def _composed(self, counts: Counts, low: int) -> list[tuple[Floats, float]]:
        """Return the masses (size,) on the grid from index ``low`` on and a bound on their error, for each count."""
        size = composition.SINGLE_GRID
        circles = [composition.Circle.around(loss, self.window, size) for loss in self.losses]
        before: np.ndarray = np.ones(size // 2 + 1, dtype=complex)
        one_less = np.ones(size // 2 + 1)  # bounds the product with one round of any kind less from above
        for circle, count in zip(circles[:-1], self.rounds_before, strict=True):
            before = before * composition.power(circle.transform, count)
            one_less = one_less * np.abs(circle.transform) ** (count - 1)
        own, composed = circles[-1], []
        product, done = before, 0
        for count in counts.tolist():
            product, done = product * composition.power(own.transform, count - done), count
            energy = 2 * float(((one_less * np.abs(own.transform) ** (count - 1)) ** 2).sum())
            total = np.array([count + sum(self.rounds_before)])
            error = float(own.transform_error(total, np.array([energy]))[0])
            composed.append((np.roll(fft.irfft(product, size), -low), error))
        return composed
