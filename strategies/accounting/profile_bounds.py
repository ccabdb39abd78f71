"""ε of very many profiles by a limited number of evaluations, as a valid upper bound for every one.

ε never falls when a profile gains users or sentences. So ε of one profile bounds the ε of every profile that it
*dominates*: one that, both sorted from the largest, has no entry above its own.
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
from fl_sim.strategies.accounting.entity_profiles import Profile
from fl_sim.strategies.accounting.privacy_loss import Floats

EpsilonsOf = Callable[[Sequence[Profile]], Floats]


@dataclass(frozen=True, slots=True)
class Bounds:
    """ε of many profiles, each between two figures that are equal where it was computed itself.

    Attributes:
        upper: what is proven: the ε of a profile that dominates.
        lower: the ε of a profile that is dominated; ``upper`` overstates by at most the ratio of the two.
        evaluations: how many ε were computed.
    """

    upper: Floats
    lower: Floats
    evaluations: int


def bound_all(profiles: Sequence[Profile], multiplicities: Sequence[int], epsilons_of: EpsilonsOf, most: int) -> Bounds:
    """ε of distinct profiles by at most about ``most`` evaluations.

    With no more profiles than that each gets its own. Else the commonest half of ``most`` do, and the others are
    gathered in groups, which are bounded from both sides by the smallest profile that dominates all of a group and
    the largest that all dominate. The group with the widest ratio is divided until ``most`` is spent.

    Args:
        profiles: distinct, each largest first.
        multiplicities: how many entities have each.
        epsilons_of: ε of each of some profiles; never falls when a profile grows.
        most: at least 4.

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
    """Groups of profiles, divided where the two bounds lie furthest apart."""

    def __init__(self, profiles: Sequence[Profile], epsilons_of: EpsilonsOf) -> None:
        self._profiles = profiles
        self._epsilons_of = epsilons_of
        sizes = [(len(p), int(p.sum()), int(p.max(initial=0))) for p in profiles]
        self._logs = np.log(np.maximum(np.array(sizes, dtype=np.float64), 1.0))
        self._heap: list[tuple[float, int, _Group]] = []
        self._tie = itertools.count()
        self.evaluations = 0

    def divide(self, members: NDArray[np.intp], most: int) -> None:
        """Divide ``members`` until another division could need more than ``most`` evaluations."""
        self._push(members)
        while self.evaluations + 4 <= most and self._heap[0][2].ratio > 1:
            group = heapq.heappop(self._heap)[2]
            for half in self._halves(group.members):
                self._push(half)

    def groups(self) -> list[_Group]:
        return [group for _, _, group in self._heap]

    def _push(self, members: NDArray[np.intp]) -> None:
        chosen = [self._profiles[index] for index in members]
        upper = self._evaluate(join(chosen))
        lower = upper if len(chosen) == 1 else min(upper, self._evaluate(meet(chosen)))
        group = _Group(members, lower, upper)
        heapq.heappush(self._heap, (-group.ratio, next(self._tie), group))

    def _evaluate(self, profile: Profile) -> float:
        self.evaluations += 1
        return float(self._epsilons_of([profile])[0])

    def _halves(self, members: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Split at the middle of whatever differs most: users, sentences, or the largest user's."""
        logs = self._logs[members]
        low, high = logs.min(axis=0), logs.max(axis=0)
        widest = int(np.argmax(high - low))
        left = logs[:, widest] <= (low[widest] + high[widest]) / 2
        if high[widest] == low[widest]:
            left = np.arange(len(members)) < len(members) // 2
        return members[left], members[~left]


def join(profiles: Sequence[Profile]) -> Profile:
    """The smallest profile that dominates all."""
    result = np.zeros(max(map(len, profiles)), dtype=np.int64)
    for profile in profiles:
        np.maximum(result[: len(profile)], profile, out=result[: len(profile)])
    return result


def meet(profiles: Sequence[Profile]) -> Profile:
    """The largest profile that all dominate."""
    shortest = min(map(len, profiles))
    return functools.reduce(np.minimum, (profile[:shortest] for profile in profiles))
