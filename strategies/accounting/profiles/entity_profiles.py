"""Compute the distribution of an entity's shift from its own profile instead of a contribution bound.

A *profile* holds, for each user who mentions an entity, the number of that user's sentences that do: whole numbers of
at least 1, int64 (num_users,), largest first. A contribution bound
(:class:`~fl_sim.strategies.accounting.adjacency.ContributionBound`) bounds a profile by three numbers; the profile
itself gives a stochastically smaller shift and so a smaller ε. Given the sampled users b, the entity shifts a round's
sum by at most A·Σ_w b_w·min(K_w, 2ŵ) sentence clips, K_w ~ Binomial(n_w, q_s) (docs/privacy.md, Theorem 1, step (b) and
remark iv). :mod:`fl_sim.strategies.accounting.profiles.profile_accountant` computes ε from it.

>>> event = RoundEvent("uedp", noise_multiplier=1.0, q_s=0.5, user_cap=2)
>>> shift = all_sampled(event, np.array([2, 1]), tail=1e-12)
>>> shift.values, shift.probabilities
(array([0., 1., 2., 3.]), array([0.125, 0.375, 0.375, 0.125]))
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.losses import dominating_pairs
from fl_sim.strategies.accounting.losses.privacy_loss import Floats

Profile = NDArray[np.int64]

_MOST_CASES = 256  # revealed cases of one round
_MOST_CASES_BETWEEN = 2048
_NEGLIGIBLE = 1e-60
_STEPS = 16  # a fractional cap is rounded up to a multiple of 1/16 of a sentence
_TRIM = 1e-3  # share of the tail that each convolution may cut off


def reduced(event: RoundEvent, profile: Profile) -> Profile:
    """Return the simplest profile with the same ε, int64 (num_users,); equal results share one computation.

    If only users are clipped, only the number of users counts. If every sentence takes part, no user counts for more
    than ⌈2ŵ⌉ sentences. If every user takes part, the sentences of a user with at cap 2ŵ of them count as those of
    separate users.
    """
    if not event.clips_sentences:
        return np.ones(len(profile), dtype=np.int64)
    cap = 2 * event.user_cap
    if event.q_s == 1:
        profile = np.minimum(profile, math.ceil(cap))
    if event.q_u == 1:
        within = profile <= cap
        profile = np.concatenate([profile[~within], np.ones(int(profile[within].sum()), dtype=np.int64)])
    return profile


def users_above_cap(event: RoundEvent, profile: Profile) -> int:
    """Return the number of users of a reduced profile who have more sentences than the cap of 2ŵ."""
    return int(np.count_nonzero(profile > 2 * event.user_cap)) if event.clips_sentences else 0


def all_sampled(event: RoundEvent, profile: Profile, tail: float) -> dominating_pairs.Distribution:
    """Return the distribution of an active entity's shift where q_u is 1, counted in sentences.

    Args:
        event: the event of every round.
        profile: a reduced profile, int64 (num_users,).
        tail: probability mass that each truncation may cut off.
    """
    if not event.clips_sentences:
        return accountant.entity_distribution(event, len(profile), len(profile), tail)
    above = users_above_cap(event, profile)
    uncapped = dominating_pairs.binomial(int(profile[above:].sum()), event.q_s, tail)
    if not above:
        return uncapped
    capped = _capped_sum(profile[:above], event.q_s, 2 * event.user_cap, tail)
    values, position = np.unique(np.add.outer(capped.values, uncapped.values), return_inverse=True)
    probabilities = np.multiply.outer(capped.probabilities, uncapped.probabilities)
    return dominating_pairs.Distribution(
        values, np.bincount(position.ravel(), probabilities.ravel(), minlength=len(values)).astype(np.float64)
    )


def _capped_sum(counts: Profile, q_s: float, cap: float, tail: float) -> dominating_pairs.Distribution:
    """Return the distribution of Σ_w min(K_w, cap), K_w ~ Binomial(n_w, q_s), for the n_w in ``counts`` above ``cap``.

    A fractional cap is rounded up to a multiple of 1/16.
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
    """Hold a distribution on the integers from ``first`` on; what its masses miss of 1 counts as a certain loss."""

    first: int
    masses: Floats


def _times(distribution: _Ladder, times: int, tail: float) -> _Ladder:
    """Return the distribution of the sum of ``times`` independent draws."""
    if times == 1:
        return distribution
    half = _times(distribution, times // 2, tail)
    doubled = _sum(half, half, tail)
    return _sum(doubled, distribution, tail) if times % 2 else doubled


def _sum(first: _Ladder, second: _Ladder, tail: float) -> _Ladder:
    """Return the distribution of the sum of two independent draws."""
    return _trimmed(first.first + second.first, np.convolve(first.masses, second.masses), tail)


def _plus_multiple(ladder: _Ladder, users: dominating_pairs.Distribution, count: int, tail: float) -> _Ladder:
    """Return the distribution of a draw of ``ladder`` plus ``count`` times a draw of ``users``."""
    offsets = count * users.values.astype(np.int64)
    size, lowest = len(ladder.masses), int(offsets[0])
    masses = np.zeros(size + int(offsets[-1]) - lowest)
    for offset, probability in zip((offsets - lowest).tolist(), users.probabilities, strict=True):
        masses[offset : offset + size] += probability * ladder.masses
    return _trimmed(ladder.first + lowest, masses, tail)


def _trimmed(first: int, masses: Floats, tail: float) -> _Ladder:
    """Cut off a small share of ``tail`` at the top and move negligible mass at the bottom up."""
    high = max(1, int(np.count_nonzero(np.cumsum(masses[::-1])[::-1] > _TRIM * tail)))
    low = min(int(np.count_nonzero(np.cumsum(masses) <= _NEGLIGIBLE)), high - 1)
    kept = masses[low:high].copy()
    kept[0] += masses[:low].sum()
    return _Ladder(first + low, kept)


def exposure(event: RoundEvent, profile: Profile, tail: float) -> dominating_pairs.Exposure:
    """Return the distribution of the sampled users of a reduced profile, M, and of their sentences, J = Σ b_w·n_w.

    M is kept beside J where the cap of 2ŵM is likely to matter: a user has more than 2ŵ sentences, and more than ŵ of
    them take part on average. Elsewhere M counts as all users. Too many cases are joined to larger ones, the same for
    all profiles.

    Args:
        event: the event of every round.
        profile: a reduced profile, int64 (num_users,).
        tail: probability mass that each truncation may cut off.
    """
    capped = users_above_cap(event, profile) > 0 and event.q_s * int(profile.max()) > event.user_cap
    counts, multiplicities = np.unique(profile, return_counts=True)
    # Only powers of two divide the tail, so that many profiles share a cached distribution.
    share = tail / 2 ** math.ceil(math.log2(max(1, len(counts))))
    sampled = [
        (int(count), _sampled(int(users), event.q_u, share))
        for count, users in zip(counts, multiplicities, strict=True)
    ]
    cases = _with_users(sampled) if capped else _without_users(sampled, tail)
    final = cases.without_rare(tail).joined(_MOST_CASES)
    users = final.users if capped else np.minimum(final.sentences, len(profile))
    return dominating_pairs.Exposure(final.probabilities, users, final.sentences)


@functools.lru_cache(maxsize=1 << 14)
def _sampled(users: int, q_u: float, tail: float) -> dominating_pairs.Distribution:
    return dominating_pairs.binomial(users, q_u, tail)


def _without_users(sampled: Sequence[tuple[int, dominating_pairs.Distribution]], tail: float) -> _Cases:
    """Return the distribution of J alone, from (sentences of a user, number of sampled users with as many)."""
    ladder = _Ladder(0, np.ones(1))
    for count, distribution in sampled:
        ladder = _plus_multiple(ladder, distribution, count, tail)
    present = np.flatnonzero(ladder.masses)
    return _Cases(ladder.masses[present], np.zeros(len(present), dtype=np.int64), ladder.first + present)


def _with_users(sampled: Sequence[tuple[int, dominating_pairs.Distribution]]) -> _Cases:
    """Return the distribution of J and M, from (sentences of a user, number of sampled users with as many)."""
    cases = _Cases(np.ones(1), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    for count, distribution in sampled:
        cases = cases.plus(distribution, count).coarsened(_MOST_CASES_BETWEEN)
    return cases


@dataclass(frozen=True, slots=True)
class _Cases:
    """Hold the cases that a round may reveal, by ascending number of sentences; ``users`` is 0 where M is not kept."""

    probabilities: Floats
    users: Profile
    sentences: Profile

    def plus(self, sampled: dominating_pairs.Distribution, count: int) -> _Cases:
        """Add a random number of sampled users with ``count`` sentences each."""
        added_users = sampled.values.astype(np.int64)
        sentences = np.add.outer(self.sentences, added_users * count).ravel()
        users = np.add.outer(self.users, added_users).ravel()
        probabilities = np.multiply.outer(self.probabilities, sampled.probabilities).ravel()
        base = int(users.max()) + 1
        keys, position = np.unique(sentences * base + users, return_inverse=True)
        merged = np.bincount(position, probabilities, minlength=len(keys)).astype(float)
        return _Cases(merged, keys % base, keys // base)

    def without_rare(self, tail: float) -> _Cases:
        """Move the cases with the fewest sentences, at most ``tail`` together, to the next larger case."""
        low = int(np.searchsorted(np.cumsum(self.probabilities), tail))
        low = min(low, len(self.probabilities) - 1)
        probabilities = self.probabilities[low:].copy()
        probabilities[0] += self.probabilities[:low].sum()
        users = self.users[low:].copy()
        users[0] = self.users[: low + 1].max()
        return _Cases(probabilities, users, self.sentences[low:])

    def joined(self, most: int) -> _Cases:
        """Reduce to about ``most`` cases: round sentences up to a multiple of a power of two, users to the largest."""
        if len(self.probabilities) <= most:
            return self
        unit = 1 << max(0, math.ceil(math.log2((self.sentences[-1] - self.sentences[0] + 1) / most)))
        rounded = -(-self.sentences // unit) * unit
        starts = np.flatnonzero(np.diff(rounded, prepend=-1))
        return replace(self._grouped(starts), sentences=rounded[starts])

    def coarsened(self, most: int) -> _Cases:
        """Reduce to at most ``most`` cases: join neighbours to one with their largest users and sentences."""
        size = -(-len(self.probabilities) // most)
        return self._grouped(np.arange(0, len(self.probabilities), size))

    def _grouped(self, starts: NDArray[np.intp]) -> _Cases:
        return _Cases(
            np.add.reduceat(self.probabilities, starts),
            np.maximum.reduceat(self.users, starts),
            np.maximum.reduceat(self.sentences, starts),
        )
