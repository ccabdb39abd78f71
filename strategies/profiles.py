"""ε of a user together with one entity, from that entity's own profile.

A *profile* says how many sentences of each of its users mention an entity: whole numbers of at least 1, one per user,
largest first. A reach (:class:`~strategies.units.Reach`) bounds a profile by three numbers; the profile itself gives
a smaller law of the shift and so a smaller ε. Given the sampled users b, the entity moves a round by at most
A·Σ_w b_w·min(K_w, 2ŵ) sentence clips, K_w ~ Binomial(n_w, q_s) (docs/privacy.md, Theorem 1, step (b) and remark iv).

That law, and with it ε, never falls when a profile gains users or sentences. So ε of one profile bounds the ε of every
profile that it *dominates*, which is one with, largest first, no entry above its own. :func:`bound_all` uses this
where a corpus has more profiles than can be computed one by one.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from strategies import composition, shifts
from strategies.accounting import MAX_ROUNDS, RoundEvent, dominating_laws, exposed_mixtures
from strategies.privacy_loss import Floats, ShiftMixture
from strategies.units import Adjacency, PrivacyError, Reach

Profile = NDArray[np.int64]

_MOST_CASES = 128  # revealed cases of one round, as for a reach
_MOST_CASES_BETWEEN = 8192
_NEGLIGIBLE = 1e-60
_STEPS = 16  # of a sentence, on which a fractional cap is rounded up
_TRIM = 1e-3  # share of the tail that each convolution may cut


def epsilon(event: RoundEvent, user_sentences: float, profile: Profile, rounds: int, delta: float) -> float:
    """ε after ``rounds`` equal rounds of a user with at most n' sentences and an entity with exactly this profile.

    It never exceeds the ε of a reach that the profile lies within.

    Args:
        event: what every round releases; ``event.robust()`` for an entity that the detector may have missed.
        user_sentences: n' of the protected user; 0 protects no user.
        profile: sentences of each user that mention the entity, largest first; empty protects no entity.
        rounds: number of rounds.
        delta: δ, in (0, 1).

    Raises:
        PrivacyError: if ``rounds``, ``delta``, ``user_sentences`` or the profile is impossible.
    """
    _check(rounds, delta)
    adjacency = Adjacency(user_sentences, _reach_of(profile))
    tail = composition.tail_share(delta, rounds)
    own = _revealing(event, user_sentences, reduced(event, profile), tail)
    laws = [own, *dominating_laws(event, adjacency, tail)[1:]]
    count = np.array([rounds], dtype=np.int64)
    return min(float(composition.epsilon_curve(law, event.noise_multiplier, count, delta)[0]) for law in laws)


def reduced(event: RoundEvent, profile: Profile) -> Profile:
    """The simplest profile with the same ε; equal results need only be computed once.

    With the user clip alone only the number of users counts. Where every sentence is drawn, no user counts for more
    than ⌈2ŵ⌉ sentences. Where every user is, it does not matter whose a sentence is, up to the cap of 2ŵ.
    """
    if not event.clips_sentences:
        return np.ones(len(profile), dtype=np.int64)
    most = 2 * event.user_cap
    if event.q_s == 1:
        profile = np.minimum(profile, math.ceil(most))
    if event.q_u == 1:
        below = profile <= most
        profile = np.concatenate([profile[~below], np.ones(int(profile[below].sum()), dtype=np.int64)])
    return profile


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


def bound_all(
    profiles: Sequence[Profile], multiplicities: Sequence[int], epsilon_of: Callable[[Profile], float], most: int
) -> Bounds:
    """ε of distinct profiles by at most about ``most`` evaluations of ``epsilon_of``.

    With no more profiles than that each gets its own. Else the commonest half of ``most`` do, and the others are
    gathered in groups, which are bounded from both sides by the smallest profile that dominates all of a group and
    the largest that all dominate. The group with the widest ratio is divided until ``most`` is spent.

    Args:
        profiles: distinct, each largest first.
        multiplicities: how many entities have each.
        epsilon_of: ε of a profile; never falls when the profile grows.
        most: at least 4.

    Raises:
        PrivacyError: if ``most`` is below 4.
    """
    if most < 4:
        raise PrivacyError(f"evaluations is {most}; allowed: an integer of at least 4")
    upper, lower = np.zeros(len(profiles)), np.zeros(len(profiles))
    order = np.argsort(-np.asarray(multiplicities), kind="stable")
    singles = order if len(order) <= most else order[: most // 2]
    for index in singles:
        upper[index] = lower[index] = epsilon_of(profiles[index])
    rest = np.sort(order[len(singles) :])
    evaluations = len(singles)
    if len(rest):
        grouping = _Grouping(profiles, epsilon_of)
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

    def __init__(self, profiles: Sequence[Profile], epsilon_of: Callable[[Profile], float]) -> None:
        self._profiles = profiles
        self._epsilon_of = epsilon_of
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
        return self._epsilon_of(profile)

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


def _check(rounds: int, delta: float) -> None:
    if not 1 <= rounds <= MAX_ROUNDS:
        raise PrivacyError(f"rounds is {rounds}; allowed: an integer from 1 to {MAX_ROUNDS}")
    if not 0 < delta < 1:
        raise PrivacyError(f"delta is {delta}; allowed: between 0 and 1, both excluded")


def _reach_of(profile: Profile) -> Reach:
    if len(profile) and (profile.min() < 1 or (np.diff(profile) > 0).any()):
        raise PrivacyError(f"profile is {profile[:8].tolist()}…; allowed: numbers of at least 1, largest first")
    return Reach(len(profile), int(profile.max(initial=0)), int(profile.sum()))


def _revealing(event: RoundEvent, user_sentences: float, profile: Profile, tail: float) -> tuple[ShiftMixture, ...]:
    """Theorem 1 for a reduced profile: who was sampled is revealed."""
    above = int(np.count_nonzero(profile > 2 * event.user_cap)) if event.clips_sentences else 0
    if event.q_u == 1 and above:
        return (_all_sampled(event, user_sentences, profile, above, tail),)
    exposure = _exposure(event, profile, above > 0, tail)
    return exposed_mixtures(event, user_sentences, exposure, tail)


def _all_sampled(event: RoundEvent, user_sentences: float, profile: Profile, above: int, tail: float) -> ShiftMixture:
    """Everybody is sampled, and the first ``above`` users may exceed the cap of 2ŵ; the others have no cap."""
    capped = _capped_sum(profile[:above], event.q_s, 2 * event.user_cap, tail)
    free = shifts.binomial(int(profile[above:].sum()), event.q_s, tail)
    values, position = np.unique(np.add.outer(capped.values, free.values), return_inverse=True)
    together = np.multiply.outer(capped.probabilities, free.probabilities)
    probabilities = event.q_e * np.bincount(position.ravel(), together.ravel(), minlength=len(values))
    if event.q_e < 1:
        values, probabilities = np.append(0.0, values), np.append(1 - event.q_e, probabilities)
    user = shifts.user_shift(event.q_u, event.q_s, user_sentences, event.user_cap, tail)
    (mixture,) = shifts.mixtures(user, [shifts.Law(values, probabilities)], np.ones(1), event.user_cap, tail)
    return mixture


def _capped_sum(counts: Profile, q_s: float, cap: float, tail: float) -> shifts.Law:
    """Law of Σ_w min(K_w, cap), K_w ~ Binomial(n_w, q_s) for the n_w in ``counts``, all above ``cap``.

    A cap that is no whole number is rounded up to a multiple of 1/16.
    """
    steps = 1 if float(cap).is_integer() else _STEPS
    below = math.ceil(cap)
    total = _Ladder(0, np.ones(1))
    for count, users in zip(*np.unique(counts, return_counts=True), strict=True):
        masses = np.zeros(math.ceil(cap * steps) + 1)
        masses[: below * steps : steps] = stats.binom.pmf(np.arange(below), count, q_s)
        masses[-1] += stats.binom.sf(below - 1, count, q_s)
        total = _sum(total, _times(_Ladder(0, masses), int(users), tail), tail)
    values: Floats = (total.first + np.flatnonzero(total.masses)) / float(steps)
    return shifts.Law(values, total.masses[total.masses > 0])


@dataclass(frozen=True, slots=True)
class _Ladder:
    """A law on the whole numbers from ``first`` on; what its masses miss of 1 counts as a certain loss."""

    first: int
    masses: Floats


def _times(law: _Ladder, times: int, tail: float) -> _Ladder:
    """The sum of ``times`` independent draws."""
    if times == 1:
        return law
    half = _times(law, times // 2, tail)
    twice = _sum(half, half, tail)
    return _sum(twice, law, tail) if times % 2 else twice


def _sum(first: _Ladder, second: _Ladder, tail: float) -> _Ladder:
    """The sum of two draws; hardly any mass is cut above, and negligible mass below is moved up."""
    masses = np.convolve(first.masses, second.masses)
    high = max(1, int(np.count_nonzero(np.cumsum(masses[::-1])[::-1] > _TRIM * tail)))
    low = min(int(np.count_nonzero(np.cumsum(masses) <= _NEGLIGIBLE)), high - 1)
    kept = masses[low:high].copy()
    kept[0] += masses[:low].sum()
    return _Ladder(first.first + second.first + low, kept)


def _exposure(event: RoundEvent, profile: Profile, capped: bool, tail: float) -> shifts.Exposure:
    """Law of how many of the profile's users were sampled, M, and of how many sentences they have, J = Σ b_w·n_w.

    Unless the cap of 2ŵM ``capped`` matters, only J is kept. Cases are joined as for a reach: to the larger one.
    """
    cases = _Cases(np.ones(1), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    counts, multiplicities = np.unique(profile, return_counts=True)
    for count, multiplicity in zip(counts, multiplicities, strict=True):
        drawn = shifts.binomial(int(multiplicity), event.q_u, tail / len(counts))
        cases = cases.plus(drawn, int(count), track_users=capped).coarsened(_MOST_CASES_BETWEEN)
    final = cases.without_rare(tail).coarsened(_MOST_CASES)
    users = final.users if capped else final.sentences
    return shifts.Exposure(final.probabilities, users, final.sentences)


@dataclass(frozen=True, slots=True)
class _Cases:
    """What may be revealed, by ascending sentences: probability, sampled users (0 if not kept), their sentences."""

    probabilities: Floats
    users: Profile
    sentences: Profile

    def plus(self, drawn: shifts.Law, count: int, *, track_users: bool) -> _Cases:
        """Add ``drawn`` users with ``count`` sentences each."""
        more = drawn.values.astype(np.int64)
        sentences = np.add.outer(self.sentences, more * count).ravel()
        users = np.add.outer(self.users, more * int(track_users)).ravel()
        probabilities = np.multiply.outer(self.probabilities, drawn.probabilities).ravel()
        base = int(users.max()) + 1
        keys, position = np.unique(sentences * base + users, return_inverse=True)
        together = np.bincount(position, probabilities, minlength=len(keys)).astype(float)
        return _Cases(together, keys % base, keys // base)

    def without_rare(self, tail: float) -> _Cases:
        """The rarest few sentences, at most ``tail`` together, become more."""
        low = int(np.searchsorted(np.cumsum(self.probabilities), tail))
        low = min(low, len(self.probabilities) - 1)
        probabilities = self.probabilities[low:].copy()
        probabilities[0] += self.probabilities[:low].sum()
        users = self.users[low:].copy()
        users[0] = self.users[: low + 1].max()
        return _Cases(probabilities, users, self.sentences[low:])

    def coarsened(self, most: int) -> _Cases:
        """At most ``most`` cases: neighbours are joined to one with the most users and sentences among them."""
        size = -(-len(self.probabilities) // most)
        starts = np.arange(0, len(self.probabilities), size)
        return _Cases(
            np.add.reduceat(self.probabilities, starts),
            np.maximum.reduceat(self.users, starts),
            np.maximum.reduceat(self.sentences, starts),
        )
