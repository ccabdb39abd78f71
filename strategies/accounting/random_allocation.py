"""Account for random allocation: in every epoch of t rounds each user takes part in exactly one, chosen uniformly.

The rounds of an epoch are not independent, so an epoch is accounted for as a whole; epochs compose as rounds do. Proofs:
docs/privacy-proofs.md, section 16.

* A user alone: P = (1/t) Σ_i N(e_i, z²I) against Q = N(0, z²I), in units of the user clip. Under Q the likelihood ratio
  is S = (1/t) Σ_i E_i with independent E_i = exp(x_i/z − 1/(2z²)), and every hockey-stick divergence is E f(S) with a
  convex f, so any S' that is larger in the convex order bounds both directions. Each E_i, and each sum of two sums, is
  put on a grid: the mass between two grid points goes to both and keeps its mean, which can only raise E f. What lies
  above the grid is cut off, and its mean counts as a certain loss. All numbers are positive: rounding is relative.
* A user with an entity: the allocation of all protected users is revealed. With M_r users who mention the entity in
  round r and the user in round I, round r shifts by at most 2·M_r + 1{I = r} clips, the epoch by the root of the sum of
  the squares.
* A user with an entity of few users, where it is smaller (Theorem 7): only who shares a round is revealed, and for each
  such group two disjoint sets of rounds, one with its round on the smaller corpus, the other with that on the larger. A
  set is random allocation over its rounds. A group of m users shifts by m clips, with the protected user by m + 1.

>>> [case.groups for case in cases(users=1, epoch_rounds=20, with_user=True)]
[((1, 1), (0, 1)), ((1, 2),)]

"""  # noqa: E501

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft
from scipy.special import ndtri

from fl_sim.strategies.accounting.adjacency import Adjacency, PrivacyError
from fl_sim.strategies.accounting.losses import composition
from fl_sim.strategies.accounting.losses.convolution import FFT_ROUND_OFF, combined
from fl_sim.strategies.accounting.losses.dominating_pairs import Distribution, binomial_quantile, coarsened
from fl_sim.strategies.accounting.losses.privacy_loss import (
    EXPONENT_LIMIT,
    UNIT_ROUND_OFF,
    Floats,
    GaussianMixturePair,
    GridLoss,
    LossAtoms,
    binned,
    interval_masses,
    mixed,
)
from fl_sim.strategies.primitives.limits import MOST_EPOCH_ROUNDS

_POINTS = 512  # grid points of a sum; a sum of two costs their square
_PILOT = 1024  # bins from whose masses the grid points are chosen
_FAINT = 1e-20  # mass at the lower end that needs no grid points of its own
_FLATTEN = 0.15  # grid points follow the density to this power, so that the tails get their share
_LEAST_SHIFT = 1e-12  # in standard deviations of the noise; doubles cannot resolve the ratios of a smaller one
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

    The first is that of the larger corpus against the smaller. ``tail`` is the mean of one sum that may be cut off.
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
    shift = max(1 / noise_multiplier, _LEAST_SHIFT)  # less noise holds for more
    x = np.linspace(ndtri(min(_FAINT, tail)), shift - ndtri(tail), _POINTS)
    values = np.concatenate([[0.0], np.exp(shift * x - shift**2 / 2)])
    masses, means = interval_masses(x), interval_masses(x - shift)
    upper = np.clip((means[:-1] - values[:-1] * masses[:-1]) / np.diff(values), 0.0, masses[:-1])
    on_grid = np.append(masses[:-1] - upper, masses[-1])
    on_grid[1:] += upper
    cut = max(0.0, float(means[-1] - values[-1] * masses[-1]))
    return _Sum(values, on_grid, cut, 64 * UNIT_ROUND_OFF * (4 + shift**2))


def _power(one: _Sum, count: int, tail: float) -> _Sum:
    """Return the sum of ``count`` independent copies."""
    return combined(one, count, lambda first, second: _add(first, second, tail))


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
    on_grid = binned(below, masses - upper, len(grid)) + binned(below + 1, upper, len(grid))
    terms = 2 * int(np.bincount(below).max())
    round_off = first.round_off + second.round_off + (16 + terms) * UNIT_ROUND_OFF
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


MOST_USERS = 5
_HIDDEN_CASES = 16  # the most probable cases hide the rounds, the others reveal them
_LEAST_NOISE = 0.2  # of a block in units of its shift; below, it is revealed
_GRID = 1 << 14
_COARSE_POINTS = 256  # of one block

Groups = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Case:
    """Hold which protected users share a round: per group the numbers of users on the smaller and the larger corpus."""

    probability: float
    groups: Groups


@dataclass(frozen=True, slots=True)
class HiddenEpochs:
    """Describe an epoch of random allocation and the protected users.

    Attributes:
        noise_multiplier: z.
        epoch_rounds: t.
        users: F, the number of users who mention the entity, from 1 to `MOST_USERS`.
        with_user: whether a user is protected besides the entity.
    """

    noise_multiplier: float
    epoch_rounds: int
    users: int
    with_user: bool


@dataclass(frozen=True, slots=True)
class _Block:
    """Describe a hidden round: one of ``rounds``, in which one corpus shifts by ``shift`` clips.

    Attributes:
        shift: the length of the shift, in units of β.
        rounds: the number of rounds among which it hides.
        larger: whether the larger corpus shifts, not the smaller.
    """

    shift: float
    rounds: int
    larger: bool


def cases(users: int, epoch_rounds: int, with_user: bool) -> list[Case]:
    """Return all cases of :class:`HiddenEpochs`, the most probable first."""
    result = []
    for sizes in _partitions(users, users):
        groups, probability = len(sizes), _partition_probability(sizes, users, epoch_rounds)
        alone = tuple((size, size) for size in sizes)
        if not with_user:
            result.append(Case(probability, alone))
            continue
        result.append(Case(probability * (epoch_rounds - groups) / epoch_rounds, (*alone, (0, 1))))
        for size, number in Counter(sizes).items():
            joined = list(alone)
            joined[sizes.index(size)] = (size, size + 1)
            result.append(Case(probability * number / epoch_rounds, tuple(joined)))
    return sorted((case for case in result if case.probability > 0), key=lambda case: -case.probability)


def entity_epsilon_curve(epochs: HiddenEpochs, numbers: NDArray[np.int64], delta: float) -> Floats:
    """Return ε after each number of epochs, ascending, float64 (len(numbers),); inf where none is provable."""
    if _overflows(epochs, composition.tail_share(delta, int(numbers[-1]))):
        return np.full(len(numbers), np.inf)
    losses, windows = _losses(epochs, int(numbers[-1]), delta)
    both = [
        composition.epsilons(loss, numbers, delta, window, _GRID) for loss, window in zip(losses, windows, strict=True)
    ]
    return np.max(both, axis=0)


def delta_at(epochs: HiddenEpochs, number: int, epsilon: float) -> float:
    """Return an upper bound on δ(ε) after ``number`` epochs, the larger of both directions."""
    if _overflows(epochs, composition.tail_share(composition.DELTA_IN_SEARCH, number)):
        return 1.0
    losses, windows = _losses(epochs, number, composition.DELTA_IN_SEARCH)
    pairs = zip(losses, windows, strict=True)
    return max(composition.delta_of_loss(loss, number, epsilon, window, _GRID) for loss, window in pairs)


def _overflows(epochs: HiddenEpochs, tail: float) -> bool:
    """Return whether doubles do not hold the likelihood ratios of the longest shift of a block."""
    longest = max(block.shift for _, blocks in _blocks(epochs) for block in blocks) / epochs.noise_multiplier
    return bool(longest**2 / 2 - longest * ndtri(min(_FAINT, tail)) > EXPONENT_LIMIT)


def _losses(epochs: HiddenEpochs, most: int, delta: float) -> tuple[list[GridLoss], list[composition.Window]]:
    """Return the losses of an epoch in both directions, and the windows of ``most`` epochs, which their grid spans."""
    z, tail = epochs.noise_multiplier, composition.tail_share(delta, most)
    epoch = _blocks(epochs)
    width = _coarse_width(z, epoch, tail)
    coarse = [_on_grid(z, epoch, forward, width, tail) for forward in (True, False)]
    windows = [composition.window_of([loss], [most], delta) for loss in coarse]
    width = max(window.high - window.low for window in windows) / (_GRID - 2)
    return [_on_grid(z, epoch, forward, width, tail) for forward in (True, False)], windows


_Epoch = tuple[tuple[float, tuple[_Block, ...]], ...]


def _blocks(epochs: HiddenEpochs) -> _Epoch:
    """Return the probability and the blocks of each case; cases that reveal their rounds have one of one round."""
    hidden: list[tuple[float, tuple[_Block, ...]]] = []
    revealed: dict[int, float] = {}
    z, epoch_rounds = epochs.noise_multiplier, epochs.epoch_rounds
    for index, case in enumerate(cases(epochs.users, epoch_rounds, epochs.with_user)):
        shifts = [(size, larger) for group in case.groups for size, larger in zip(group, (False, True), strict=True)]
        moving = [(size, larger) for size, larger in shifts if size]
        together = len(moving) > epoch_rounds  # the same round on both corpora
        if together or index >= _HIDDEN_CASES:
            lengths = map(sum, case.groups) if together else (size for size, _ in moving)
            square = sum(length**2 for length in lengths)
            revealed[square] = revealed.get(square, 0.0) + case.probability
        else:
            each = epoch_rounds // len(moving)
            blocks = [_Block(size, each if z / size >= _LEAST_NOISE else 1, up) for size, up in moving]
            hidden.append((case.probability, tuple(blocks)))
    alone = [(p, (_Block(math.sqrt(square), 1, larger=True),)) for square, p in revealed.items()]
    return (*hidden, *alone)


def _on_grid(z: float, epoch: _Epoch, forward: bool, width: float, tail: float) -> GridLoss:
    """Return the loss of an epoch in one direction: the mixture of its cases, each a sum of independent losses."""
    losses = [_case_on_grid(z, blocks, forward, width, tail) for _, blocks in epoch]
    probabilities = [probability for probability, _ in epoch]
    infinite = max(0.0, 1.0 - sum(probabilities))
    for probability, loss in zip(probabilities, losses, strict=True):
        infinite += probability * loss.infinite
    return mixed(losses, probabilities, infinite)


def _case_on_grid(z: float, blocks: Sequence[_Block], forward: bool, width: float, tail: float) -> GridLoss:
    """Return the loss of independent blocks; a block of the smaller corpus has its directions exchanged."""
    factors = []
    for block, n in Counter(blocks).items():
        directions = allocation_atoms(z / block.shift, block.rounds, block.rounds, tail)
        factors.append((directions[forward != block.larger].on_grid(width), n))
    if len(blocks) == 1:
        return factors[0][0]
    length = sum(n * (len(loss.masses) - 1) for loss, n in factors) + 1
    size = fft.next_fast_len(length, real=True)
    product: np.ndarray = np.ones(size // 2 + 1, dtype=complex)
    for loss, n in factors:
        product = product * fft.rfft(loss.masses, size) ** n
    masses = np.maximum(fft.irfft(product, size)[:length], 0.0)
    transforms = FFT_ROUND_OFF * (math.log2(size) + 1) * (len(blocks) + 1) * math.sqrt(size)
    return GridLoss(
        width,
        sum(n * loss.first for loss, n in factors),
        masses,
        sum(n * loss.infinite for loss, n in factors),
        transforms + sum(n * loss.round_off for loss, n in factors),
    )


def _coarse_width(z: float, epoch: _Epoch, tail: float) -> float:
    """Return a width at which the widest block has `_COARSE_POINTS` grid points."""
    all_blocks = {block for _, blocks in epoch for block in blocks}
    atoms = [allocation_atoms(z / block.shift, block.rounds, block.rounds, tail)[0] for block in all_blocks]
    return float(max(loss.losses[-1] - loss.losses[0] for loss in atoms)) / _COARSE_POINTS


def _partitions(total: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Yield the partitions of ``total`` into parts of at most ``largest``, each in descending order."""
    if total == 0:
        yield ()
    for part in range(min(total, largest), 0, -1):
        for rest in _partitions(total - part, part):
            yield (part, *rest)


def _partition_probability(sizes: tuple[int, ...], users: int, epoch_rounds: int) -> float:
    """Return the probability that users who choose one of t rounds each form groups of these sizes."""
    ways = math.factorial(users)
    for size in sizes:
        ways //= math.factorial(size)
    for number in Counter(sizes).values():
        ways //= math.factorial(number)
    return ways * math.perm(epoch_rounds, len(sizes)) / epoch_rounds**users


_EXACT_COUNTS = 16  # numbers of rounds of a curve for which ε of a user is computed
_MOST_STEPS = 200_000  # of the exact distribution of the epoch's shift
_MOST_CASES = 32
_SEARCH_STEPS = 40


@dataclass(frozen=True, slots=True)
class EpochEvent:
    """Describe the release of ``rounds`` rounds of one epoch of random allocation, the update clipped to β.

    Attributes:
        noise_multiplier: z > 0, the smallest of the rounds.
        epoch_rounds: t, the number of rounds of the epoch.
        rounds: the number of its rounds that are released, from 1 to t.

    Raises:
        PrivacyError: if ``rounds`` is impossible, as when a round of the epoch was released twice.
    """

    noise_multiplier: float
    epoch_rounds: int
    rounds: int

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= self.epoch_rounds:
            raise PrivacyError(
                f"an epoch of {self.epoch_rounds} rounds has {self.rounds} releases; allowed: each round once"
            )


def check_epoch(epoch_rounds: int, q_u: float, strategy: str) -> None:
    """Raise PrivacyError unless random allocation over ``epoch_rounds`` rounds fits the rate and the strategy."""
    if strategy != "user_level":
        raise PrivacyError(f"epoch_rounds is {epoch_rounds} and strategy is {strategy!r}; allowed: with 'user_level'")
    if not 1 <= epoch_rounds <= MOST_EPOCH_ROUNDS:
        raise PrivacyError(f"epoch_rounds is {epoch_rounds}; allowed: an integer from 1 to {MOST_EPOCH_ROUNDS}")
    if not math.isclose(q_u, 1 / epoch_rounds, rel_tol=1e-9):
        raise PrivacyError(
            f"q_u is {q_u:g} and epoch_rounds is {epoch_rounds}; allowed: q_u {1 / epoch_rounds:.6g}, or none, because "
            "each user takes part in one round of an epoch"
        )


def epochs(noise_multiplier: float, epoch_rounds: int, rounds: int) -> dict[EpochEvent, int]:
    """Return the epochs of a training of ``rounds`` rounds: the whole ones, and the last one if it is not whole."""
    whole, rest = divmod(rounds, epoch_rounds)
    events = {EpochEvent(noise_multiplier, epoch_rounds, epoch_rounds): whole}
    if rest:
        events[EpochEvent(noise_multiplier, epoch_rounds, rest)] = 1
    return {event: count for event, count in events.items() if count}


def part(event: EpochEvent, adjacency: Adjacency, count: int, tail: float) -> composition.Part | composition.AtomPart:
    """Return ``count`` equal epochs with their dominating pair, for composition with other rounds."""
    if _is_revealed(event.noise_multiplier, adjacency):
        return composition.Part(_revealed(event.epoch_rounds, adjacency, tail), event.noise_multiplier, count)
    atoms = allocation_atoms(event.noise_multiplier, event.epoch_rounds, event.rounds, tail)
    return composition.AtomPart(atoms, count)


def epsilon_curve(
    noise_multiplier: float, epoch_rounds: int, adjacency: Adjacency, rounds: Sequence[int], delta: float
) -> NDArray[np.float64]:
    """Return ε after each number of rounds, float64 (len(rounds),); inf where none is provable.

    For a long curve ε is computed at a few numbers of rounds; between two of them the later, larger ε holds, because
    the earlier rounds are a part of what the later ones release.
    """
    wanted = np.asarray(rounds, dtype=np.int64)
    if _is_revealed(noise_multiplier, adjacency):
        numbers, position = np.unique(-(-wanted // epoch_rounds), return_inverse=True)
        tail = composition.tail_share(delta, int(numbers[-1]))
        pair = _revealed(epoch_rounds, adjacency, tail)
        curve = composition.epsilon_curve(pair, noise_multiplier, numbers, delta)
        if hidden := _hidden(noise_multiplier, epoch_rounds, adjacency):
            curve = np.minimum(curve, entity_epsilon_curve(hidden, numbers, delta))
        return curve[position]
    tail = composition.tail_share(delta, int(wanted.max()))
    computed = _computed_counts(np.unique(wanted), epoch_rounds)
    epsilons = [
        composed(epochs(noise_multiplier, epoch_rounds, int(count)), adjacency, delta, tail) for count in computed
    ]
    monotone = np.minimum.accumulate(np.array(epsilons)[::-1])[::-1]
    return monotone[np.searchsorted(computed, wanted)]


def delta_of(noise_multiplier: float, epoch_rounds: int, adjacency: Adjacency, rounds: int, epsilon: float) -> float:
    """Return an upper bound on δ(ε) after ``rounds`` rounds: nearly the smallest δ whose ε is at most ``epsilon``."""
    tail = composition.tail_share(composition.DELTA_IN_SEARCH, rounds)
    if _is_revealed(noise_multiplier, adjacency):
        number = -(-rounds // epoch_rounds)
        revealed = composition.delta_at(_revealed(epoch_rounds, adjacency, tail), noise_multiplier, number, epsilon)
        hidden = _hidden(noise_multiplier, epoch_rounds, adjacency)
        return min(revealed, delta_at(hidden, number, epsilon) if hidden else 1.0)
    released = epochs(noise_multiplier, epoch_rounds, rounds)
    low, high = math.log(composition.DELTA_IN_SEARCH), 0.0
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        at = composed(released, adjacency, math.exp(middle), tail)
        low, high = (low, middle) if at <= epsilon else (middle, high)
    return math.exp(high)


def composed(events: Mapping[EpochEvent, int], adjacency: Adjacency, delta: float, tail: float) -> float:
    """Return ε of epochs, by their number, that differ in nothing but how many of their rounds are released."""
    event = next(iter(events))
    if not _is_revealed(event.noise_multiplier, adjacency):
        return composition.epsilon_of_parts([part(kind, adjacency, n, tail) for kind, n in events.items()], delta)
    whole = sum(events.values()) * event.epoch_rounds
    return float(epsilon_curve(event.noise_multiplier, event.epoch_rounds, adjacency, [whole], delta)[0])


def _computed_counts(counts: NDArray[np.int64], epoch_rounds: int) -> NDArray[np.int64]:
    """Return the numbers of rounds for which ε is computed, ascending; the last one is that of ``counts``."""
    if len(counts) <= _EXACT_COUNTS:
        return counts
    spread = np.linspace(counts[0], counts[-1], _EXACT_COUNTS).round().astype(np.int64)
    whole = -(-spread // epoch_rounds) * epoch_rounds  # the end of an epoch: one loss serves all of them
    within = spread[spread < epoch_rounds]
    return np.unique(np.concatenate([within, whole[whole < counts[-1]], counts[-1:]]))


def _is_revealed(noise_multiplier: float, adjacency: Adjacency) -> bool:
    """Tell whether the pair that reveals the allocation is used: for an entity, no user, or very little noise."""
    alone = adjacency.user_sentences > 0 and adjacency.entity_bound.total == 0
    return not alone or noise_multiplier < _LEAST_NOISE


def _hidden(noise_multiplier: float, epoch_rounds: int, adjacency: Adjacency) -> HiddenEpochs | None:
    """Return the epoch that hides the rounds of the protected users; None for no entity, many users or little noise."""
    users = min(adjacency.entity_bound.users, adjacency.entity_bound.total)
    if not 1 <= users <= MOST_USERS or noise_multiplier < _LEAST_NOISE:
        return None
    return HiddenEpochs(noise_multiplier, epoch_rounds, users, adjacency.user_sentences > 0)


def _revealed(epoch_rounds: int, adjacency: Adjacency, tail: float) -> tuple[GaussianMixturePair, ...]:
    """Return the dominating pair of an epoch whose allocation is revealed: one case per length of its shift."""
    entity_bound = adjacency.entity_bound
    users = min(entity_bound.users, entity_bound.total)
    with_user = adjacency.user_sentences > 0
    if users * users * epoch_rounds <= _MOST_STEPS:
        squares = _squared_shift(epoch_rounds, users, with_user)
    else:
        squares = _largest_squared_shift(epoch_rounds, users, with_user, tail)
    merged = coarsened(squares, _MOST_CASES)
    cases = zip(merged.probabilities.tolist(), merged.values.tolist(), strict=True)
    cut = None if squares.cut is None else (squares.cut, squares.cut)
    return tuple(_case(probability, math.sqrt(square), cut) for probability, square in cases)


def _case(probability: float, shift: float, cut: tuple[float, float] | None = None) -> GaussianMixturePair:
    shifts = np.array([shift]) if shift else np.empty(0)
    return GaussianMixturePair(probability, 0.0 if shift else 1.0, shifts, np.ones(len(shifts)), cut=cut)


@functools.lru_cache(maxsize=64)
def _squared_shift(epoch_rounds: int, users: int, with_user: bool) -> Distribution:
    """Return the distribution of Σ_r (2·M_r + 1{I = r})².

    M is the number of ``users`` in each of the rounds. They are drawn round by round; I is the last round, because all
    rounds are alike.
    """
    law = np.zeros((users + 1, users**2 + 1))  # by users not drawn yet, and Σ M_r² so far
    law[users, 0] = 1.0
    for left in range(epoch_rounds, 1, -1):
        law = _one_round(law, 1 / left)
    values: dict[int, float] = {}
    for last in range(users + 1):
        here = (2 * last + with_user) ** 2
        for square in np.flatnonzero(law[last]):
            values[4 * int(square) + here] = values.get(4 * int(square) + here, 0.0) + float(law[last, square])
    ordered = sorted(values)
    return Distribution(np.array(ordered, dtype=np.float64), np.array([values[value] for value in ordered]))


def _one_round(law: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """Draw the users of one round, each with probability ``rate``, and add the square of their number."""
    from scipy import stats  # half a second to import, which no configuration needs

    drawn = np.zeros_like(law)
    for waiting in range(len(law)):
        for taken, probability in enumerate(stats.binom.pmf(np.arange(waiting + 1), waiting, rate)):
            square = taken**2
            drawn[waiting - taken, square:] += probability * law[waiting, : law.shape[1] - square]
    return drawn


def _largest_squared_shift(epoch_rounds: int, users: int, with_user: bool, tail: float) -> Distribution:
    """Return a bound on Σ_r (2·M_r + 1{I = r})² that does not hold with probability ``tail`` at most.

    No M_r exceeds m but with that probability, so that Σ M_r² ≤ m·F.
    """
    most = binomial_quantile(users, 1 / epoch_rounds, tail / epoch_rounds)
    square = 4 * most * users + (4 * most + 1) * with_user
    return Distribution(np.array([float(square)]), np.ones(1), tail)
