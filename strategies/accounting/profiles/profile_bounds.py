"""Bound the ε of very many profiles from above by a limited number of evaluations.

ε never decreases when a profile gains users or sentences. So the ε of a profile bounds the ε of every profile that it
*dominates*: both sorted from the largest, the dominated one has no entry above that of the other.

>>> profiles = [np.array(counts) for counts in ([3, 1], [2], [1, 1, 1])]
>>> join(profiles), meet(profiles)
(array([3, 1, 1]), array([1]))
>>> bounds = bound_all(profiles, [5, 1, 1], lambda some: np.array([float(p.sum()) for p in some]), most=4)
>>> bounds.upper, bounds.evaluations
(array([4., 2., 3.]), 3)
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fl_sim.strategies.accounting.adjacency import PrivacyError
from fl_sim.strategies.accounting.losses.privacy_loss import Floats
from fl_sim.strategies.accounting.profiles.entity_profiles import Profile

EpsilonsOf = Callable[[Sequence[Profile]], Floats]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Hold two bounds on the ε of each profile, equal for a profile whose own ε was computed.

    Attributes:
        upper: the proven ε, of a profile that dominates, float64 (num_profiles,).
        lower: the ε of a profile that is dominated, float64 (num_profiles,); ``upper`` overstates ε by at most the
            ratio of the two.
        evaluations: the number of ε computed.
    """

    upper: Floats
    lower: Floats
    evaluations: int


def bound_all(profiles: Sequence[Profile], multiplicities: Sequence[int], epsilons_of: EpsilonsOf, most: int) -> Bounds:
    """Bound the ε of distinct profiles by at most about ``most`` evaluations.

    If there are at most ``most`` profiles, the ε of each is computed. Otherwise the most common ``most // 2`` profiles
    are computed, and the others are grouped: the smallest profile that dominates all of a group bounds them from above,
    the largest that all of them dominate from below. The group with the largest ratio of the two is divided until the
    evaluations are used up.

    Args:
        profiles: distinct profiles, int64 (num_users,) each, largest first.
        multiplicities: the number of entities with each profile.
        epsilons_of: ε of each of some profiles, float64 (num_profiles,); never decreases when a profile grows.
        most: number of evaluations, at least 4.

    Raises:
        PrivacyError: if ``most`` is below 4.
    """
    if most < 4:
        raise PrivacyError(f"evaluations is {most}; allowed: an integer of at least 4")
    upper, lower = np.zeros(len(profiles)), np.zeros(len(profiles))
    order = np.argsort(-np.asarray(multiplicities), kind="stable")
    singles = order if len(order) <= most else order[: most // 2]
    upper[singles] = lower[singles] = epsilons_of([profiles[index] for index in singles])
    rest = np.sort(order[len(singles) :])
    evaluations = len(singles)
    if len(rest):
        grouping = _Grouping(profiles, epsilons_of)
        grouping.divide(rest, most - evaluations)
        for group in grouping.groups():
            upper[group.members], lower[group.members] = group.upper, group.lower
        evaluations += grouping.evaluations
    return Bounds(upper, lower, evaluations)


@dataclass(frozen=True, slots=True)
class _Group:
    members: NDArray[np.intp]
    lower: float
    upper: float

    @property
    def ratio(self) -> float:
        return self.upper / self.lower if self.upper > self.lower > 0 else 1.0


class _Grouping:
    """Divide profiles into groups, first where the ratio of the two bounds is largest."""

    def __init__(self, profiles: Sequence[Profile], epsilons_of: EpsilonsOf) -> None:
        self._profiles = profiles
        self._epsilons_of = epsilons_of
        sizes = [(len(p), int(p.sum()), int(p.max(initial=0))) for p in profiles]
        self._logs = np.log(np.maximum(np.array(sizes, dtype=np.float64), 1.0))
        self._heap: list[tuple[float, int, _Group]] = []
        self._tie = itertools.count()  # breaks ties of the heap
        self.evaluations = 0

    def divide(self, members: NDArray[np.intp], most: int) -> None:
        """Divide ``members`` as long as another division needs no more than ``most`` evaluations in all."""
        self._push(members)
        while self.evaluations + 4 <= most and self._heap[0][2].ratio > 1:
            group = heapq.heappop(self._heap)[2]
            for half in self._halves(group.members):
                self._push(half)

    def groups(self) -> list[_Group]:
        """Return the groups, in no particular order."""
        return [group for _, _, group in self._heap]

    def _push(self, members: NDArray[np.intp]) -> None:
        profiles = [self._profiles[index] for index in members]
        upper = self._evaluate(join(profiles))
        lower = upper if len(profiles) == 1 else min(upper, self._evaluate(meet(profiles)))
        group = _Group(members, lower, upper)
        heapq.heappush(self._heap, (-group.ratio, next(self._tie), group))

    def _evaluate(self, profile: Profile) -> float:
        self.evaluations += 1
        return float(self._epsilons_of([profile])[0])

    def _halves(self, members: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Split at the middle of the most variable size: users, sentences, or sentences of the largest user."""
        logs = self._logs[members]
        low, high = logs.min(axis=0), logs.max(axis=0)
        widest = int(np.argmax(high - low))
        left = logs[:, widest] <= (low[widest] + high[widest]) / 2
        if high[widest] == low[widest]:
            left = np.arange(len(members)) < len(members) // 2
        return members[left], members[~left]


def join(profiles: Sequence[Profile]) -> Profile:
    """Return the smallest profile that dominates all ``profiles``, int64 (num_users,)."""
    result = np.zeros(max(map(len, profiles)), dtype=np.int64)
    for profile in profiles:
        np.maximum(result[: len(profile)], profile, out=result[: len(profile)])
    return result


def meet(profiles: Sequence[Profile]) -> Profile:
    """Return the largest profile that all ``profiles`` dominate, int64 (num_users,)."""
    shortest = min(map(len, profiles))
    return functools.reduce(np.minimum, (profile[:shortest] for profile in profiles))
