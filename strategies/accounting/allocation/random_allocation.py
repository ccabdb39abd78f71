"""Account for random allocation: in every epoch of t rounds each user takes part in exactly one, chosen uniformly.

The allocations of users and epochs are independent. The rounds of an epoch are not, so an epoch is accounted for as a
whole; epochs compose as rounds do. A part of an epoch costs what a user costs who takes part in each of its rounds with
probability 1/t and never twice. Proofs: docs/privacy.md, section 16.

* A user alone: the loss of an epoch is that of :mod:`~fl_sim.strategies.accounting.allocation.allocated_loss`.
* A user with an entity of few users: that of :mod:`~fl_sim.strategies.accounting.allocation.allocated_entity`, where it is smaller.
* A user with an entity: the allocation of all protected users is revealed. With M_r users who mention the entity in
  round r and the user in round I, round r shifts by at most 2·M_r + 1{I = r} clips, the epoch by the root of the sum of
  the squares.

>>> user = Adjacency()
>>> epsilon_curve(1.0, 20, user, [60], delta=1e-5).round(2)
array([2.39])
>>> epochs(noise_multiplier=1.0, epoch_rounds=20, rounds=45)
{EpochEvent(noise_multiplier=1.0, epoch_rounds=20, rounds=20): 2, EpochEvent(noise_multiplier=1.0, epoch_rounds=20, rounds=5): 1}
"""  # noqa: E501  (the last line is what Python prints)

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_sim.strategies.accounting.adjacency import Adjacency, PrivacyError
from fl_sim.strategies.accounting.allocation import allocated_entity
from fl_sim.strategies.accounting.allocation.allocated_loss import allocation_atoms
from fl_sim.strategies.accounting.losses import composition
from fl_sim.strategies.accounting.losses.privacy_loss import GaussianMixturePair
from fl_sim.strategies.primitives.limits import MOST_EPOCH_ROUNDS

_LEAST_NOISE = 0.2  # below, an epoch amplifies hardly and the allocation is revealed
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
    """Return ``count`` equal epochs with their dominating pair, for composition with other rounds.

    Args:
        event: the release of one epoch.
        adjacency: the protected user and entity.
        count: the number of epochs.
        tail: probability mass that each truncation may cut off.
    """
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

    Args:
        noise_multiplier: z.
        epoch_rounds: t.
        adjacency: the protected user and entity.
        rounds: numbers of rounds, each at least 1.
        delta: δ, in (0, 1).
    """
    wanted = np.asarray(rounds, dtype=np.int64)
    if _is_revealed(noise_multiplier, adjacency):
        numbers, position = np.unique(-(-wanted // epoch_rounds), return_inverse=True)
        tail = composition.tail_share(delta, int(numbers[-1]))
        pair = _revealed(epoch_rounds, adjacency, tail)
        curve = composition.epsilon_curve(pair, noise_multiplier, numbers, delta)
        if hidden := _hidden(noise_multiplier, epoch_rounds, adjacency):
            curve = np.minimum(curve, allocated_entity.epsilon_curve(hidden, numbers, delta))
        return curve[position]
    tail = composition.tail_share(delta, int(wanted.max()))
    computed = _computed_counts(np.unique(wanted), epoch_rounds)
    epsilons = [_epsilon(noise_multiplier, epoch_rounds, adjacency, int(count), delta, tail) for count in computed]
    monotone = np.minimum.accumulate(np.array(epsilons)[::-1])[::-1]
    return monotone[np.searchsorted(computed, wanted)]


def delta_of(noise_multiplier: float, epoch_rounds: int, adjacency: Adjacency, rounds: int, epsilon: float) -> float:
    """Return an upper bound on δ(ε) after ``rounds`` rounds: nearly the smallest δ whose ε is at most ``epsilon``.

    Args:
        noise_multiplier: z.
        epoch_rounds: t.
        adjacency: the protected user and entity.
        rounds: number of rounds.
        epsilon: ε, finite and at least 0.
    """
    tail = composition.tail_share(composition.DELTA_IN_SEARCH, rounds)
    if _is_revealed(noise_multiplier, adjacency):
        number = -(-rounds // epoch_rounds)
        revealed = composition.delta_at(_revealed(epoch_rounds, adjacency, tail), noise_multiplier, number, epsilon)
        hidden = _hidden(noise_multiplier, epoch_rounds, adjacency)
        return min(revealed, allocated_entity.delta_at(hidden, number, epsilon) if hidden else 1.0)
    low, high = math.log(composition.DELTA_IN_SEARCH), 0.0
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        at = _epsilon(noise_multiplier, epoch_rounds, adjacency, rounds, math.exp(middle), tail)
        low, high = (low, middle) if at <= epsilon else (middle, high)
    return math.exp(high)


def composed(events: Mapping[EpochEvent, int], adjacency: Adjacency, delta: float, tail: float) -> float:
    """Return ε of epochs that differ in nothing but the number of rounds that are released.

    Args:
        events: the number of epochs of each kind, not empty.
        adjacency: the protected user and entity.
        delta: δ, in (0, 1).
        tail: probability mass that each truncation may cut off.
    """
    event = next(iter(events))
    if not _is_revealed(event.noise_multiplier, adjacency):
        return composition.epsilon_of_parts([part(kind, adjacency, n, tail) for kind, n in events.items()], delta)
    whole = sum(events.values()) * event.epoch_rounds
    return float(epsilon_curve(event.noise_multiplier, event.epoch_rounds, adjacency, [whole], delta)[0])


def _epsilon(z: float, epoch_rounds: int, adjacency: Adjacency, rounds: int, delta: float, tail: float) -> float:
    return composed(epochs(z, epoch_rounds, rounds), adjacency, delta, tail)


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


def _hidden(noise_multiplier: float, epoch_rounds: int, adjacency: Adjacency) -> allocated_entity.HiddenEpochs | None:
    """Return the epoch that hides the rounds of the protected users; None for no entity, many users or little noise."""
    users = min(adjacency.entity_bound.users, adjacency.entity_bound.total)
    if not 1 <= users <= allocated_entity.MOST_USERS or noise_multiplier < _LEAST_NOISE:
        return None
    return allocated_entity.HiddenEpochs(noise_multiplier, epoch_rounds, users, adjacency.user_sentences > 0)


def _revealed(epoch_rounds: int, adjacency: Adjacency, tail: float) -> tuple[GaussianMixturePair, ...]:
    """Return the dominating pair of an epoch whose allocation is revealed: one case per length of its shift."""
    entity_bound = adjacency.entity_bound
    users = min(entity_bound.users, entity_bound.total)
    with_user = adjacency.user_sentences > 0
    if users * users * epoch_rounds <= _MOST_STEPS:
        squares, probabilities = _squared_shift(epoch_rounds, users, with_user)
    else:
        squares, probabilities = _largest_squared_shift(epoch_rounds, users, with_user, tail)
    size = -(-len(squares) // _MOST_CASES)
    starts = np.arange(0, len(squares), size)
    ends = np.minimum(starts + size, len(squares)) - 1
    merged = np.add.reduceat(probabilities, starts)
    return tuple(_case(float(p), math.sqrt(square)) for p, square in zip(merged, squares[ends].tolist(), strict=True))


def _case(probability: float, shift: float) -> GaussianMixturePair:
    shifts = np.array([shift]) if shift else np.empty(0)
    return GaussianMixturePair(probability, 0.0 if shift else 1.0, shifts, np.ones(len(shifts)))


@functools.lru_cache(maxsize=64)
def _squared_shift(epoch_rounds: int, users: int, with_user: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the distribution of Σ_r (2·M_r + 1{I = r})²: ascending values and probabilities, float64 (k,) each.

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
    return np.array(ordered, dtype=np.float64), np.array([values[value] for value in ordered])


def _one_round(law: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """Draw the users of one round, each with probability ``rate``, and add the square of their number."""
    from scipy import stats  # half a second to import, which no configuration needs

    drawn = np.zeros_like(law)
    for waiting in range(len(law)):
        for taken, probability in enumerate(stats.binom.pmf(np.arange(waiting + 1), waiting, rate)):
            square = taken**2
            drawn[waiting - taken, square:] += probability * law[waiting, : law.shape[1] - square]
    return drawn


def _largest_squared_shift(
    epoch_rounds: int, users: int, with_user: bool, tail: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a bound on Σ_r (2·M_r + 1{I = r})² that holds with probability 1 − ``tail``, and that probability.

    No M_r exceeds m but with that probability, so that Σ M_r² ≤ m·F.
    """
    from scipy import stats  # half a second to import, which no configuration needs

    most = int(min(stats.binom.isf(tail / epoch_rounds, users, 1 / epoch_rounds), users))
    square = 4 * most * users + (4 * most + 1) * with_user
    return np.array([float(square)]), np.array([1.0 - tail])
