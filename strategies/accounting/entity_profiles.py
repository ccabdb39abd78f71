"""Compute ε of a user together with one entity from that entity's own profile, for thousands of profiles.

A *profile* holds, for each user who mentions an entity, the number of that user's sentences that do: whole numbers of
at least 1, int64 (num_users,), largest first. A contribution bound bounds a profile by three numbers; the profile
itself gives a stochastically smaller shift and so a smaller ε. Given the sampled users b, the entity shifts a round's
sum by at most A·Σ_w b_w·min(K_w, 2ŵ) sentence clips, K_w ~ Binomial(n_w, q_s) (docs/privacy-proofs.md, Theorem 1, step
(b) and remark iv).

If users are sampled, a round reveals the number of sentences with the entity that belong to sampled users. The
probability of such a case depends on the profile, its loss does not: every case is discretised once, and a profile
takes a weighted sum of cases and one composition. The widths of the grids are powers of two, so that profiles share
grids too; detected and missed entities share the cases, at different q_e.

>>> event = RoundEvent("uedp", noise_multiplier=1.0, q_s=0.5, user_cap=2)
>>> shift = all_sampled(event, np.array([2, 1]), tail=1e-12)
>>> shift.values, shift.probabilities
(array([0., 1., 2., 3.]), array([0.125, 0.375, 0.375, 0.125]))
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound, PrivacyError
from fl_sim.strategies.accounting.losses import composition, dominating_pairs
from fl_sim.strategies.accounting.losses.composition import Window
from fl_sim.strategies.accounting.losses.convolution import combined
from fl_sim.strategies.accounting.losses.privacy_loss import (
    Floats,
    GaussianMixturePair,
    GridLoss,
    LossAtoms,
    both_directions,
    mixed,
)
from fl_sim.strategies.primitives.limits import check_delta

Profile = NDArray[np.int64]

_MOST_CASES = 256  # revealed cases of one round
_MOST_CASES_BETWEEN = 2048
_STEPS = 16  # a fractional cap is rounded up to a multiple of 1/16 of a sentence
_TRIM = 1e-3  # share of the tail that each convolution may cut off
_cached_binomial = functools.lru_cache(maxsize=1 << 14)(dominating_pairs.binomial)


def reduced_profile(event: RoundEvent, profile: Profile) -> Profile:
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


def all_sampled(event: RoundEvent, profile: Profile, tail: float) -> dominating_pairs.Distribution:
    """Return the distribution of the shift of an active entity with a reduced profile where q_u is 1, in sentences."""
    if not event.clips_sentences:
        return accountant.entity_distribution(event, len(profile), len(profile), tail)
    above = int(np.count_nonzero(profile > 2 * event.user_cap))
    uncapped = dominating_pairs.binomial(int(profile[above:].sum()), event.q_s, tail)
    if not above:
        return uncapped
    return dominating_pairs.summed(_capped_sum(profile[:above], event.q_s, 2 * event.user_cap, tail), uncapped)


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
        of_users = combined(_Ladder(0, masses), int(users), lambda one, other: _sum(one, other, tail))
        total = _sum(total, of_users, tail)
    values: Floats = (total.first + np.flatnonzero(total.masses)).astype(np.float64)
    return dominating_pairs.Distribution(values * (1.0 / steps), total.masses[total.masses > 0])


@dataclass(frozen=True, slots=True)
class _Ladder:
    """Hold a distribution on the integers from ``first`` on; what its masses miss of 1 counts as a certain loss."""

    first: int
    masses: Floats


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
    low = min(int(np.count_nonzero(np.cumsum(masses) <= dominating_pairs.NEGLIGIBLE)), high - 1)
    kept = masses[low:high].copy()
    kept[0] += masses[:low].sum()
    return _Ladder(first + low, kept)


def profile_exposure(event: RoundEvent, profile: Profile, tail: float) -> dominating_pairs.Exposure:
    """Return the distribution of the sampled users of a reduced profile, M, and of their sentences, J = Σ b_w·n_w.

    M is kept beside J where the cap of 2ŵM is likely to matter: a user has more than 2ŵ sentences, and more than ŵ of
    them take part on average. Elsewhere M counts as all users. Too many cases are joined to larger ones, the same for
    all profiles.
    """
    most = int(profile.max(initial=0))
    capped = event.clips_sentences and most > 2 * event.user_cap and event.q_s * most > event.user_cap
    counts, multiplicities = np.unique(profile, return_counts=True)
    # Only powers of two divide the tail, so that many profiles share a cached distribution.
    share = tail / 2 ** math.ceil(math.log2(max(1, len(counts))))
    sampled = [
        (int(count), _cached_binomial(int(users), event.q_u, share))
        for count, users in zip(counts, multiplicities, strict=True)
    ]
    if capped:
        cases = _Cases(np.ones(1), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
        for count, distribution in sampled:
            cases = cases.plus(distribution, count).coarsened(_MOST_CASES_BETWEEN)
    else:
        ladder = _Ladder(0, np.ones(1))
        for count, distribution in sampled:
            ladder = _plus_multiple(ladder, distribution, count, tail)
        present = np.flatnonzero(ladder.masses)
        cases = _Cases(ladder.masses[present], np.zeros(len(present), dtype=np.int64), ladder.first + present)
    final = cases.without_rare(tail).joined(_MOST_CASES)
    users = final.users if capped else np.minimum(final.sentences, len(profile))
    return dominating_pairs.Exposure(final.probabilities, users, final.sentences)


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


_GRID = 1 << 14
_COARSER = 4  # the reverse direction, which hardly ever decides, is first tried on a grid this many times as wide

_Case = tuple[int, int]  # sampled users, their sentences


@dataclass(eq=False)
class ProfileAccountant:
    """Compute ε of a user with at most n' sentences together with an entity of a given profile.

    Attributes:
        event: the event of every round.
        user_sentences: n', the largest number of sentences of the protected user; 0 protects no user.
        rounds: number of equal rounds.
        delta: δ, in (0, 1).
        observe: called after each ε that was computed.

    Raises:
        PrivacyError: if ``rounds``, ``delta`` or ``user_sentences`` is impossible.
    """

    event: RoundEvent
    user_sentences: float
    rounds: int
    delta: float
    observe: Callable[[], None] = field(default=lambda: None, repr=False)
    _shared: _CaseLosses | None = field(default=None, repr=False)
    _hidden: dict[int, float] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        accountant.check_rounds([self.rounds])
        check_delta(self.delta)
        Adjacency(self.user_sentences)
        self._tail = composition.tail_share(self.delta, self.rounds)
        self._count = np.array([self.rounds], dtype=np.int64)
        self._cases = self._shared or _CaseLosses(self.event, self.user_sentences, self._tail)

    def robust(self) -> ProfileAccountant:
        """Return the accountant for entities that the detector may have missed; both share their computations."""
        return replace(self, event=self.event.robust(), _shared=self._cases)

    def epsilon(self, profile: Profile) -> float:
        """Return ε for one profile, int64 (num_users,); see :meth:`epsilons`."""
        return float(self.epsilons([profile])[0])

    def epsilons(self, profiles: Sequence[Profile]) -> Floats:
        """Return ε for each profile, float64 (num_profiles,); an empty profile is no entity.

        Raises:
            PrivacyError: if a profile is impossible.
        """
        for profile in profiles:
            if len(profile) and (profile.min() < 1 or (np.diff(profile) > 0).any()):
                raise PrivacyError(f"profile is {profile[:8].tolist()}; allowed: numbers of at least 1, largest first")
        reduced = [reduced_profile(self.event, profile) for profile in profiles]
        if self.event.q_u == 1:  # every profile is a single case, shared with no other profile
            return np.array([self._composed([self._cases.alone(profile, self.event.q_e)])[0] for profile in reduced])
        result = self._composed([self._cases.together(profile, self.event.q_e) for profile in reduced])
        for index in sorted(range(len(profiles)), key=lambda index: len(profiles[index])):
            result[index] = self._or_hidden(float(result[index]), profiles[index])
        return result

    def _or_hidden(self, revealed: float, profile: Profile) -> float:
        """Return the smaller of ``revealed`` and the ε of Theorem 2, which depends on the number of users alone."""
        users = len(profile)
        if any(fewer <= users and epsilon >= revealed for fewer, epsilon in self._hidden.items()):
            return revealed  # Theorem 2 gives no smaller ε for more users
        entity_bound = ContributionBound(users, int(profile.max(initial=0)))
        for pair in accountant.hidden_pairs(self.event, Adjacency(self.user_sentences, entity_bound), self._tail):
            if users not in self._hidden:
                curve = composition.epsilon_curve(pair, self.event.noise_multiplier, self._count, self.delta)
                self._hidden[users] = float(curve[0])
            revealed = min(revealed, self._hidden[users])
        return revealed

    def _composed(self, rounds: Sequence[_Round]) -> Floats:
        """Return ε after ``self.rounds`` of each round, in order of the grids' widths, which share computed losses."""
        windows = [one.windows(self.rounds, self._tail * self.rounds) for one in rounds]
        lengths = np.array([max(window.high - window.low for window in both) for both in windows])
        widths = 2.0 ** np.ceil(np.log2(lengths / (_GRID - 2)))
        result: Floats = np.zeros(len(rounds))
        grids = _Grids(0.0)
        for index in np.argsort(widths, kind="stable"):
            if widths[index] != grids.width:
                grids = _Grids(float(widths[index]))
            if rounds[index].moves:
                result[index] = self._epsilon(rounds[index], windows[index], grids)
            self.observe()
        return result

    def _epsilon(self, one: _Round, windows: Sequence[Window], grids: _Grids) -> float:
        """Return the larger ε of both directions.

        Nearly always the forward direction (the larger corpus against the smaller) decides, and a coarse grid, which
        can only overstate the other one, suffices to show it.
        """
        forward, reverse = windows
        largest = self._on_grid(grids.weighted(one, 0, 1), forward, _GRID)
        if self._on_grid(grids.weighted(one, 1, _COARSER), reverse, _GRID // _COARSER) > largest:
            largest = max(largest, self._on_grid(grids.weighted(one, 1, 1), reverse, _GRID))
        return largest

    def _on_grid(self, loss: GridLoss, window: Window, size: int) -> float:
        return float(composition.epsilons(loss, self._count, self.delta, window, size)[0])


@dataclass(frozen=True, eq=False, slots=True)
class _CaseLoss:
    """Hold the losses of one case in both directions and their moments.

    Attributes:
        directions: larger corpus against smaller, and smaller against larger.
        moments: ln E exp(±order · loss), float64 (2 directions, 2 signs, num_orders).
        moves: whether the two corpora differ in this case.
    """

    directions: tuple[LossAtoms, LossAtoms]
    moments: Floats
    moves: bool

    @classmethod
    def of(cls, directions: tuple[LossAtoms, LossAtoms], *, moves: bool) -> _CaseLoss:
        signs = [[(loss.losses, loss.masses), (-loss.losses[::-1], loss.masses[::-1])] for loss in directions]
        moments = [[composition.log_moments(*sign) for sign in both] for both in signs]
        return cls(directions, np.array(moments), moves)


@dataclass(frozen=True, eq=False, slots=True)
class _Round:
    """Hold the cases that a round may reveal, and their probabilities, float64 (num_cases,)."""

    cases: Sequence[_CaseLoss]
    probabilities: Floats

    @property
    def moves(self) -> bool:
        """Tell whether the two corpora differ in any case."""
        return any(case.moves for case in self.cases)

    def windows(self, rounds: int, tail: float) -> tuple[Window, ...]:
        """Return, per direction, a window with about ``tail`` of the sum of ``rounds`` losses beyond either end."""
        terms = np.stack([case.moments for case in self.cases]) + np.log(self.probabilities)[:, None, None, None]
        top = terms.max(axis=0)
        totals = rounds * (top + np.log(np.exp(terms - top).sum(axis=0)))
        return tuple(composition.window_of_moments(above, below, tail) for above, below in totals)


@dataclass(eq=False)
class _Grids:
    """Cache the losses of cases on the grids of one width."""

    width: float
    _losses: dict[tuple[int, int, int], GridLoss] = field(default_factory=dict, init=False)

    def weighted(self, one: _Round, direction: int, coarser: int) -> GridLoss:
        """Return the loss of a round in one direction, on a grid that is ``coarser`` times as wide.

        What the probabilities of its cases miss of 1 counts as a certain loss.
        """
        losses = []
        for case in one.cases:
            key = (id(case), direction, coarser)
            if key not in self._losses:
                self._losses[key] = case.directions[direction].on_grid(coarser * self.width)
            losses.append(self._losses[key])
        unlisted = max(0.0, 1.0 - float(one.probabilities.sum()))
        infinite = unlisted + float(one.probabilities @ [loss.infinite for loss in losses])
        return mixed(losses, one.probabilities.tolist(), infinite)


_ByRate = dict[float, _CaseLoss]  # by entity sampling rate


class _CaseLosses:
    """Cache the losses of all cases used so far, for detected and missed entities."""

    def __init__(self, event: RoundEvent, user_sentences: float, tail: float) -> None:
        self._event, self._tail = event.robust(), tail
        self._rates = (event.q_e,) if event.q_e == 1 else (event.q_e, 1.0)
        self._user, self._unit = accountant.user_distribution(event, Adjacency(user_sentences), tail)
        self._inactive = self._mixture(dominating_pairs.Distribution(np.zeros(1), np.ones(1)))
        self._losses: dict[_Case, _ByRate] = {}
        self._most: dict[int, float] = {}  # sentences owned → the most that take part, up to the tail
        self._exposures: dict[bytes, tuple[list[_ByRate], Floats]] = {}

    def alone(self, profile: Profile, rate: float) -> _Round:
        """Return the round of a reduced profile if every user is sampled: a single case."""
        distribution = all_sampled(self._event, profile, self._tail)
        return _Round([self._loss(distribution, (rate,))[rate]], np.ones(1))

    def together(self, profile: Profile, rate: float) -> _Round:
        """Return the round of a reduced profile if users are sampled: the cases that it reveals."""
        key = profile.tobytes()
        if key not in self._exposures:
            exposure = profile_exposure(self._event, profile, self._tail)
            pairs = zip(exposure.users.tolist(), exposure.sentences.tolist(), strict=True)
            self._exposures[key] = [self._of(self._simplest(*pair)) for pair in pairs], exposure.probabilities
        cases, probabilities = self._exposures[key]
        return _Round([by_rate[rate] for by_rate in cases], probabilities)

    def _of(self, case: _Case) -> _ByRate:
        if case not in self._losses:
            self._losses[case] = self._loss(accountant.entity_distribution(self._event, *case, self._tail), self._rates)
        return self._losses[case]

    def _simplest(self, users: int, sentences: int) -> _Case:
        """Return the case of equal distribution that most profiles share: no cap where the cap changes nothing."""
        cap = 2 * self._event.user_cap * users
        if self._event.clips_sentences and cap < sentences:
            if sentences not in self._most:
                self._most[sentences] = dominating_pairs.binomial(sentences, self._event.q_s, self._tail).values[-1]
            if cap < self._most[sentences]:
                return users, sentences
        return sentences, sentences

    def _loss(self, distribution: dominating_pairs.Distribution, rates: Sequence[float]) -> _ByRate:
        active = self._mixture(distribution)
        both = both_directions(active, self._inactive, rates, self._event.noise_multiplier, 1 / self._unit, self._tail)
        moves = active.moves or self._inactive.moves
        return {rate: _CaseLoss.of(one, moves=moves) for rate, one in zip(rates, both, strict=True)}

    def _mixture(self, distribution: dominating_pairs.Distribution) -> GaussianMixturePair:
        return dominating_pairs.mixture(self._user, distribution, 1.0, self._unit, self._tail)
