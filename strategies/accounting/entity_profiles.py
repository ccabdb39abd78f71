"""The law of the shift of an entity from its own profile, instead of a bound on its reach.

A *profile* says how many sentences of each of its users mention an entity: whole numbers of at least 1, one per user,
largest first. A reach (:class:`~fl_sim.strategies.accounting.adjacency.ContributionBound`) bounds a profile by three
numbers; the profile itself gives
a smaller law of the shift and so a smaller ε. Given the sampled users b, the entity moves a round by at most
A·Σ_w b_w·min(K_w, 2ŵ) sentence clips, K_w ~ Binomial(n_w, q_s) (docs/privacy.md, Theorem 1, step (b) and remark iv).

The figures follow in :mod:`fl_sim.strategies.accounting.profile_accountant`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_sim.strategies.accounting import accountant, dominating_pairs
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.privacy_loss import Floats

Profile = NDArray[np.int64]

_MOST_CASES = 256  # revealed cases of one round
_MOST_CASES_BETWEEN = 2048
_NEGLIGIBLE = 1e-60
_STEPS = 16  # of a sentence, on which a fractional cap is rounded up
_TRIM = 1e-3  # share of the tail that each convolution may cut


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


def users_above_cap(event: RoundEvent, profile: Profile) -> int:
    """How many users of a reduced profile the cap of 2ŵ may stop from counting in full."""
    return int(np.count_nonzero(profile > 2 * event.user_cap)) if event.clips_sentences else 0


def all_sampled(event: RoundEvent, profile: Profile, tail: float) -> dominating_pairs.Distribution:
    """Law of the share of an active entity, counted in sentences, where q_u is 1; may cut ``tail``."""
    if not event.clips_sentences:
        return accountant.entity_distribution(event, len(profile), len(profile), tail)
    above = users_above_cap(event, profile)
    free = dominating_pairs.binomial(int(profile[above:].sum()), event.q_s, tail)
    if not above:
        return free
    capped = _capped_sum(profile[:above], event.q_s, 2 * event.user_cap, tail)
    values, position = np.unique(np.add.outer(capped.values, free.values), return_inverse=True)
    together = np.multiply.outer(capped.probabilities, free.probabilities)
    return dominating_pairs.Distribution(
        values, np.bincount(position.ravel(), together.ravel(), minlength=len(values)).astype(np.float64)
    )


def _capped_sum(counts: Profile, q_s: float, cap: float, tail: float) -> dominating_pairs.Distribution:
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
    values: Floats = (total.first + np.flatnonzero(total.masses)).astype(np.float64)
    return dominating_pairs.Distribution(values * (1.0 / steps), total.masses[total.masses > 0])


@dataclass(frozen=True, slots=True)
class _Ladder:
    """A law on the whole numbers from ``first`` on; what its masses miss of 1 counts as a certain loss."""

    first: int
    masses: Floats


def _times(distribution: _Ladder, times: int, tail: float) -> _Ladder:
    """The sum of ``times`` independent draws."""
    if times == 1:
        return distribution
    half = _times(distribution, times // 2, tail)
    twice = _sum(half, half, tail)
    return _sum(twice, distribution, tail) if times % 2 else twice


def _sum(first: _Ladder, second: _Ladder, tail: float) -> _Ladder:
    """The sum of two draws."""
    return _trimmed(first.first + second.first, np.convolve(first.masses, second.masses), tail)


def _plus_multiple(ladder: _Ladder, drawn: dominating_pairs.Distribution, count: int, tail: float) -> _Ladder:
    """The sum of a draw and ``count`` times a draw of ``drawn``."""
    places = count * drawn.values.astype(np.int64)
    size, lowest = len(ladder.masses), int(places[0])
    masses = np.zeros(size + int(places[-1]) - lowest)
    for place, probability in zip((places - lowest).tolist(), drawn.probabilities, strict=True):
        masses[place : place + size] += probability * ladder.masses
    return _trimmed(ladder.first + lowest, masses, tail)


def _trimmed(first: int, masses: Floats, tail: float) -> _Ladder:
    """Hardly any mass is cut above, and negligible mass below is moved up."""
    high = max(1, int(np.count_nonzero(np.cumsum(masses[::-1])[::-1] > _TRIM * tail)))
    low = min(int(np.count_nonzero(np.cumsum(masses) <= _NEGLIGIBLE)), high - 1)
    kept = masses[low:high].copy()
    kept[0] += masses[:low].sum()
    return _Ladder(first + low, kept)


def exposure(event: RoundEvent, profile: Profile, tail: float) -> dominating_pairs.Exposure:
    """Law of how many of the reduced profile's users were sampled, M, and of how many sentences they have, J.

    M is kept beside J = Σ b_w·n_w where the cap of 2ŵM is likely to matter, which is where a user has more than 2ŵ
    sentences and draws more than ŵ on average; else it counts as all users. Too many cases are joined to larger ones,
    which are the same for all profiles.
    """
    capped = users_above_cap(event, profile) > 0 and event.q_s * int(profile.max()) > event.user_cap
    counts, multiplicities = np.unique(profile, return_counts=True)
    share = tail / 2 ** math.ceil(math.log2(max(1, len(counts))))  # few shares, so that many profiles share a law
    drawn = [
        (int(count), _sampled(int(users), event.q_u, share))
        for count, users in zip(counts, multiplicities, strict=True)
    ]
    cases = _with_users(drawn) if capped else _without_users(drawn, tail)
    final = cases.without_rare(tail).joined(_MOST_CASES)
    users = final.users if capped else np.minimum(final.sentences, len(profile))
    return dominating_pairs.Exposure(final.probabilities, users, final.sentences)


@functools.lru_cache(maxsize=1 << 14)
def _sampled(users: int, q_u: float, tail: float) -> dominating_pairs.Distribution:
    return dominating_pairs.binomial(users, q_u, tail)


def _without_users(drawn: Sequence[tuple[int, dominating_pairs.Distribution]], tail: float) -> _Cases:
    """The law of J alone."""
    ladder = _Ladder(0, np.ones(1))
    for count, distribution in drawn:
        ladder = _plus_multiple(ladder, distribution, count, tail)
    present = np.flatnonzero(ladder.masses)
    return _Cases(ladder.masses[present], np.zeros(len(present), dtype=np.int64), ladder.first + present)


def _with_users(drawn: Sequence[tuple[int, dominating_pairs.Distribution]]) -> _Cases:
    """The law of J and M."""
    cases = _Cases(np.ones(1), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    for count, distribution in drawn:
        cases = cases.plus(distribution, count).coarsened(_MOST_CASES_BETWEEN)
    return cases


@dataclass(frozen=True, slots=True)
class _Cases:
    """What may be revealed, by ascending sentences: probability, sampled users (0 if not kept), their sentences."""

    probabilities: Floats
    users: Profile
    sentences: Profile

    def plus(self, drawn: dominating_pairs.Distribution, count: int) -> _Cases:
        """Add ``drawn`` users with ``count`` sentences each."""
        more = drawn.values.astype(np.int64)
        sentences = np.add.outer(self.sentences, more * count).ravel()
        users = np.add.outer(self.users, more).ravel()
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

    def joined(self, most: int) -> _Cases:
        """About ``most`` cases: sentences are rounded up to a multiple of a power of two, users to the most."""
        if len(self.probabilities) <= most:
            return self
        unit = 1 << max(0, math.ceil(math.log2((self.sentences[-1] - self.sentences[0] + 1) / most)))
        rounded = -(-self.sentences // unit) * unit
        starts = np.flatnonzero(np.diff(rounded, prepend=-1))
        return replace(self._grouped(starts), sentences=rounded[starts])

    def coarsened(self, most: int) -> _Cases:
        """At most ``most`` cases: neighbours are joined to one with the most users and sentences among them."""
        size = -(-len(self.probabilities) // most)
        return self._grouped(np.arange(0, len(self.probabilities), size))

    def _grouped(self, starts: NDArray[np.intp]) -> _Cases:
        return _Cases(
            np.add.reduceat(self.probabilities, starts),
            np.maximum.reduceat(self.users, starts),
            np.maximum.reduceat(self.sentences, starts),
        )
