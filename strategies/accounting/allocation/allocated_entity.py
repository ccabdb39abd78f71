"""Compute ε of a user with an entity under random allocation, without revealing in which rounds they take part.

The F users who mention the entity take part with one update on the smaller corpus and with another on the larger. Which
of them share a round is revealed, and for each of these groups two disjoint sets of rounds: one contains its round on
the smaller corpus, the other its round on the larger, for the coupling puts a group into different rounds on the two
corpora. Within a set the round stays hidden and uniform, so that each set is random allocation over its rounds
(docs/privacy.md, section 16, Theorem 6). A group of m users shifts by m clips, and by m + 1 where the protected user is
in it.

>>> [case.groups for case in cases(users=1, epoch_rounds=20, with_user=True)]
[((1, 1), (0, 1)), ((1, 2),)]
>>> epochs = HiddenEpochs(noise_multiplier=2.0, epoch_rounds=20, users=1, with_user=True)
>>> epsilon_curve(epochs, np.array([1, 25]), delta=1e-5).round(1)
array([1.7, 9.3])
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from fl_sim.strategies.accounting.allocation.allocated_loss import allocation_atoms
from fl_sim.strategies.accounting.losses import composition
from fl_sim.strategies.accounting.losses.loss_atoms import LossAtoms
from fl_sim.strategies.accounting.losses.privacy_loss import Floats, GridLoss

MOST_USERS = 5
_HIDDEN_CASES = 16  # the most probable cases hide the rounds, the others reveal them
_LEAST_NOISE = 0.2  # of a block in units of its shift; below, it is revealed
_GRID = 1 << 14
_COARSE_POINTS = 256  # of one block
_TAIL_SHARE = 1e-4
_FFT_ROUND_OFF = 8 * 2.0**-53

Groups = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Case:
    """Hold which protected users share a round of an epoch.

    Attributes:
        probability: of the case.
        groups: for each group the number of its users who take part on the smaller and on the larger corpus.
    """

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
    """Return all cases, the most probable first.

    Args:
        users: F.
        epoch_rounds: t.
        with_user: whether a user is protected besides the entity.
    """
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


def epsilon_curve(epochs: HiddenEpochs, numbers: NDArray[np.int64], delta: float) -> Floats:
    """Return ε after each number of epochs, float64 (len(numbers),); inf where none is provable.

    Args:
        epochs: the release of every epoch.
        numbers: numbers of epochs, int64, ascending.
        delta: δ, in (0, 1).
    """
    losses, windows = _losses(epochs, int(numbers[-1]), delta)
    both = [
        composition.epsilons(loss, numbers, delta, window, _GRID) for loss, window in zip(losses, windows, strict=True)
    ]
    return np.max(both, axis=0)


def delta_at(epochs: HiddenEpochs, number: int, epsilon: float) -> float:
    """Return an upper bound on δ(ε) after ``number`` epochs, the larger of both directions."""
    losses, windows = _losses(epochs, number, composition.DELTA_IN_SEARCH)
    pairs = zip(losses, windows, strict=True)
    return max(composition.delta_of_loss(loss, number, epsilon, window, _GRID) for loss, window in pairs)


def _losses(epochs: HiddenEpochs, most: int, delta: float) -> tuple[list[GridLoss], list[composition.Window]]:
    """Return the losses of an epoch in both directions, and the windows of ``most`` epochs, which their grid spans."""
    z, tail = epochs.noise_multiplier, composition.tail_share(delta, most)
    epoch = _blocks(epochs)
    width = _coarse_width(z, epoch, tail)
    coarse = [_on_grid(z, epoch, forward, width, tail) for forward in (True, False)]
    windows = [composition.chernoff_window(loss, most, _TAIL_SHARE * delta) for loss in coarse]
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
        if len(moving) > epoch_rounds:  # the same round on both corpora
            square = sum(sum(group) ** 2 for group in case.groups)
            revealed[square] = revealed.get(square, 0.0) + case.probability
        elif index >= _HIDDEN_CASES:
            square = sum(size**2 for size, _ in moving)
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
    first = min(loss.first for loss in losses)
    masses = np.zeros(max(loss.first + len(loss.masses) for loss in losses) - first)
    infinite = max(0.0, 1.0 - sum(probability for probability, _ in epoch))
    for (probability, _), loss in zip(epoch, losses, strict=True):
        masses[loss.first - first :][: len(loss.masses)] += probability * loss.masses
        infinite += probability * loss.infinite
    return GridLoss(width, first, masses, infinite, max(loss.round_off for loss in losses))


def _case_on_grid(z: float, blocks: Sequence[_Block], forward: bool, width: float, tail: float) -> GridLoss:
    """Return the loss of independent blocks; a block of the smaller corpus has its directions exchanged."""
    numbers = Counter(blocks).items()
    factors = [(_atoms(z, block, tail)[forward != block.larger].on_grid(width), n) for block, n in numbers]
    if len(blocks) == 1:
        return factors[0][0]
    length = sum(n * (len(loss.masses) - 1) for loss, n in factors) + 1
    size = fft.next_fast_len(length, real=True)
    product: np.ndarray = np.ones(size // 2 + 1, dtype=complex)
    for loss, n in factors:
        product = product * fft.rfft(loss.masses, size) ** n
    masses = np.maximum(fft.irfft(product, size)[:length], 0.0)
    transforms = _FFT_ROUND_OFF * (math.log2(size) + 1) * (len(blocks) + 1) * math.sqrt(size)
    return GridLoss(
        width,
        sum(n * loss.first for loss, n in factors),
        masses,
        sum(n * loss.infinite for loss, n in factors),
        transforms + sum(n * loss.round_off for loss, n in factors),
    )


def _atoms(z: float, block: _Block, tail: float) -> tuple[LossAtoms, LossAtoms]:
    return allocation_atoms(z / block.shift, block.rounds, block.rounds, tail)


def _coarse_width(z: float, epoch: _Epoch, tail: float) -> float:
    """Return a width at which the widest block has `_COARSE_POINTS` grid points."""
    atoms = [_atoms(z, block, tail)[0] for _, blocks in epoch for block in set(blocks)]
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
