"""Measure an attack by its scores, and bound what any attack on a run can reach.

A high score says *member*. The threshold of a false positive rate is a score of the non-members: the smallest one that
at most that share of them exceeds; a unit is guessed to be a member if its score is above it. So nothing is chosen on
the members. Intervals are 95 %: of areas and rates by a percentile bootstrap that resamples users with all of their
scores, members and non-members separately; of true positive rates of users, who have one score each, the exact one of
Clopper and Pearson, given the threshold.

First area under the curve and true positive rate at a false positive rate, with intervals; then the trade-off function
that the run's ledger proves for one unit.

A test decides whether the unit took part. With M the released models, D the corpus without the unit and D' with it, a
ledger that proves (ε, δ) for the pair D, D' bounds every test at a false positive rate FPR (Wasserman and Zhou 2010;
Kairouz, Oh and Viswanath 2015; Dong, Roth and Su 2022, proposition 2.5):

    TPR ≤ e^ε·FPR + δ,    TPR ≤ 1 − e^−ε·(1 − δ − FPR),    TPR − FPR ≤ (e^ε − 1 + 2δ)/(e^ε + 1).

The bound here is the least over a few δ that are fixed in advance, so it is valid and a few per cent above the exact
trade-off function. ε counts all releases of the ledger and of the runs on the same corpus from which the run started.

Guarantee and assumptions: those of the run's ε (docs/privacy.md). The bound holds for one pair of corpora that differ
in the unit alone: everybody else's text is fixed, and the attacker may know it. Its rates are over the randomness of
training. With a public mention graph, D holds null sentences in place of the unit's, and the selection of sentences by
the graph is the same on both; with a private one D lacks them. What a unit contributes is what takes part under the
run's bounds: a user's sentences of weight above 0, and an entity's profile of them.

Two units are exchanged in :meth:`ProvenRates.exchanged`: D'∪{x} and D'∪{y} differ by two such steps.

>>> scored = Scored(np.array([3.0, 2.0, 1.0, 0.0]), np.array([True, True, False, False]), np.arange(4))
>>> curve = Curve.of(scored)
>>> curve.area, curve.true_positive_rate(0.5)
(1.0, 1.0)
>>> clopper_pearson(0, 10).high.__round__(2)
0.31

>>> from fl_sim.strategies.ledger import ReleaseRecord
>>> from fl_sim.strategies.user_level import UserLevelDP
>>> mechanism = UserLevelDP(
...     strategy="user_level", population=2, q_u=1.0, q_e=1.0, q_s=1.0, clip_norm=1.0, user_cap=1.0,
...     noise_multiplier=1.0)
>>> entry = Entry("run", 1, ReleaseRecord.of(mechanism, seed=0))
>>> rates = LedgerProof((entry,), "run", Guarantee()).of_user(12)
>>> 0.092 < rates.largest_true_positive_rate(0.01) < 0.097  # one Gaussian with μ = 1: Φ(Φ⁻¹(0.01) + 1) is 0.0924
True
>>> 0.3829 < rates.largest_advantage < 0.40  # 2Φ(1/2) − 1
True
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_sim.auditing.lower_bounds import InverseTradeOff, curve_trade_off, refutes_by_ranking
from fl_sim.config import ConfigError
from fl_sim.data_prep.store.ownership import EntityContributions
from fl_sim.experiments.held_out_users.bootstrap import RESAMPLES, Figure
from fl_sim.experiments.plan.guarantees import EnforcedBounds
from fl_sim.experiments.privacy_spent import read_ledgers
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import NO_ENTITY, Adjacency, ContributionBound
from fl_sim.strategies.accounting.attack_success import DELTAS, largest_true_positive_rate
from fl_sim.strategies.accounting.attack_success import FALSE_POSITIVE_RATES as PROVEN_AT_RATES
from fl_sim.strategies.accounting.entity_profiles import ProfileAccountant
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.ledger import Entry, has_repeated_sums, parts_of, together

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
_LEVELS = (0.025, 0.975)
_JUDGED = (0.01, 0.1, 0.5)
_SAME_BEFORE = 1e-3  # p-value below which two splits differ before training

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scored:
    """Hold n scores of an attack.

    Attributes:
        scores: float64 (n,), finite; high for members.
        is_member: bool (n,).
        users: int64 (n,), whose unit it is; a number of a member and of a non-member are two users.

    Raises:
        ConfigError: there is no member or no non-member, or a score is not finite.
    """

    scores: Floats
    is_member: NDArray[np.bool_]
    users: NDArray[np.int64]

    def __post_init__(self) -> None:
        members = int(self.is_member.sum())
        if not 0 < members < len(self.scores):
            count = len(self.scores) - members
            raise ConfigError(f"scores are of {members} members and {count} non-members; allowed: at least one of each")
        if not np.isfinite(self.scores).all():
            raise ConfigError("a score is not finite; allowed: a model that has not diverged")

    def one_per_user(self) -> Scored:
        """Return the first score of each user."""
        _, first = np.unique(self.clusters, return_index=True)
        return Scored(self.scores[first], self.is_member[first], self.users[first])

    @functools.cached_property
    def clusters(self) -> NDArray[np.int64]:
        """Return the number of each score's user among all users of both sides, int64 (n,)."""
        keys = np.stack([self.is_member.astype(np.int64), self.users], axis=1)
        return np.unique(keys, axis=0, return_inverse=True)[1].ravel()

    @functools.cached_property
    def levels(self) -> NDArray[np.int64]:
        """Return the rank of each score among the distinct scores, int64 (n,)."""
        return np.unique(self.scores, return_inverse=True)[1].ravel()

    def resamples(self, rng: np.random.Generator, count: int) -> Iterator[Floats]:
        """Yield how often each score counts in a sample of users with replacement, float64 (n,).

        Args:
            rng: draws the users.
            count: how many samples.
        """
        side = np.zeros(self.clusters.max() + 1, dtype=np.bool_)
        side[self.clusters] = self.is_member
        both = [np.flatnonzero(side == one) for one in (False, True)]
        for _ in range(count):
            times = np.zeros(len(side))
            for own in both:
                times[own] = np.bincount(rng.integers(len(own), size=len(own)), minlength=len(own))
            yield times[self.clusters]


@dataclass(frozen=True, eq=False, slots=True)
class Curve:
    """Hold the weight of members and of non-members at each distinct score, ascending, float64 (levels,)."""

    members: Floats
    others: Floats

    @classmethod
    def of(cls, scored: Scored, weights: Floats | None = None) -> Self:
        """Return the curve of scores; ``weights`` says how often each counts, None for once."""
        counts = np.ones(len(scored.levels)) if weights is None else weights
        size = int(scored.levels.max()) + 1
        sides = (counts * scored.is_member, counts * ~scored.is_member)
        members, others = (np.bincount(scored.levels, side, size).astype(np.float64) for side in sides)
        return cls(members, others)

    @property
    def area(self) -> float:
        """Return the probability that a member's score is above a non-member's, a tie counting half."""
        below = np.cumsum(self.others) - self.others / 2
        return float(self.members @ below / (self.members.sum() * self.others.sum()))

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """Return the share of members above the smallest score that at most this share of non-members exceeds."""
        above = self.others.sum() - np.cumsum(self.others)
        level = int(np.argmax(above <= false_positive_rate * self.others.sum() * (1 + 1e-12)))
        return float(self.members[level + 1 :].sum() / self.members.sum())

    def figures(self, rates: Sequence[float]) -> list[float]:
        """Return the area, the advantage at the non-members' median, and the true positive rate at each rate."""
        return [self.area, self.true_positive_rate(0.5) - 0.5, *map(self.true_positive_rate, rates)]


def clopper_pearson(hits: int, trials: int) -> Figure:
    """Return the share of ``hits`` with its exact 95 % interval."""
    low = 0.0 if hits == 0 else float(stats.beta.ppf(_LEVELS[0], hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(stats.beta.ppf(_LEVELS[1], hits + 1, trials - hits))
    return Figure(hits / trials, low, high)


@dataclass(frozen=True, eq=False)
class Rates:
    """Hold how well an attack tells members from non-members.

    Attributes:
        members: the number of members' scores.
        non_members: that of non-members'.
        users: the number of users on both sides.
        area: under the curve of true against false positive rates; ½ for guessing.
        advantage: TPR − FPR at the median of the non-members.
        at: the true positive rate at each false positive rate; None for fewer non-members than that rate can show.
    """

    members: int
    non_members: int
    users: int
    area: Figure
    advantage: Figure
    at: dict[float, Figure | None]

    @classmethod
    def of(
        cls,
        scored: Scored,
        rng: np.random.Generator,
        rates: Sequence[float] = FALSE_POSITIVE_RATES,
        resamples: int = RESAMPLES,
    ) -> Rates:
        """Return the rates of an attack.

        Args:
            scored: its scores.
            rng: draws the resamples.
            rates: the false positive rates.
            resamples: how many.
        """
        values = Curve.of(scored).figures(rates)
        drawn = [Curve.of(scored, weights).figures(rates) for weights in scored.resamples(rng, resamples)]
        low, high = np.quantile(drawn, _LEVELS, axis=0).tolist()
        area, advantage, *at = map(Figure, values, low, high)
        members, users = int(scored.is_member.sum()), int(scored.clusters.max()) + 1
        if users == len(scored.scores):
            at = [clopper_pearson(round(figure.value * members), members) for figure in at]
        others = len(scored.scores) - members
        shown = {rate: one if rate * others >= 1 else None for rate, one in zip(rates, at, strict=True)}
        return cls(members, others, users, area, advantage, shown)

    def record(self) -> dict[str, Any]:
        """Return the rates as a JSON object."""
        return {
            "members": self.members,
            "non_members": self.non_members,
            "users": self.users,
            "auc": self.area.record(),
            "advantage": self.advantage.record(),
            "tpr_at_fpr": {f"{false:g}": one and one.record() for false, one in self.at.items()},
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say whether an attack contradicts what is proven.

    Attributes:
        state: ``within`` (no contradiction), ``beyond`` (contradicted, whatever the scores depend on), ``above``
            (contradicted if one model's scores are independent of each other, which no proof says), or ``not tested``.
        pairs: how many pairs of a member and a non-member were tested.
        failure: the probability that ``beyond`` is said of a run whose proof holds.
        reason: why nothing was tested; empty otherwise.
    """

    state: str
    pairs: int
    failure: float
    reason: str = ""

    def record(self) -> dict[str, Any]:
        """Return the verdict as a JSON object."""
        facts = {"state": self.state, "pairs": self.pairs, "failure": self.failure}
        return facts | ({"reason": self.reason} if self.reason else {})


def judge_pairs(scored: Scored, trade_off: InverseTradeOff, failure: float, rng: np.random.Generator) -> Verdict:
    """Test whether scores of users contradict a trade-off function of exchanging two users.

    If the split is exchangeable, then given a random pairing of members with non-members, each of a pair is the member
    with probability ½, independently of other pairs: a game of many canaries in one training, in which another outcome
    exchanges two users. The bound of :mod:`~fl_sim.auditing.lower_bounds` holds for it, however much the scores
    depend on each other.

    Args:
        scored: one score per user.
        trade_off: F⁻¹ of exchanging two users.
        failure: the largest probability of ``beyond`` if the trade-off function holds.
        rng: draws the pairs.
    """
    members, others = scored.scores[scored.is_member], scored.scores[~scored.is_member]
    pairs = min(len(members), len(others))
    if pairs < 2:
        return Verdict("not tested", pairs, failure, "fewer than two pairs")
    gap = rng.permutation(members)[:pairs] - rng.permutation(others)[:pairs]
    is_first = rng.random(pairs) < 0.5
    refuted = refutes_by_ranking(trade_off, is_first, np.where(is_first, gap, -gap), 1 - failure)
    return Verdict("beyond" if refuted else "within", pairs, failure)


def is_above(scored: Scored, largest: Callable[[float], float], failure: float) -> bool:
    """Return whether the true positive rate exceeds its bound, if the scores of one model are independent.

    At a few false positive rates the lower limit of Clopper and Pearson of the true positive rate is compared with the
    bound at the upper limit of the false positive rate.

    Args:
        scored: one score per user.
        largest: the largest true positive rate at a false positive rate in (0, 1).
        failure: the largest probability of True if the bound holds and the scores are independent.
    """
    each, curve = failure / (2 * len(_JUDGED)), Curve.of(scored)
    members, others = int(curve.members.sum()), int(curve.others.sum())
    for rate in _JUDGED:
        positives = math.floor(rate * others + 1e-9)
        hits = round(curve.true_positive_rate(rate) * members)
        false = 1.0 if positives == others else float(stats.beta.ppf(1 - each, positives + 1, others - positives))
        least = float(stats.beta.ppf(each, hits, members - hits + 1)) if hits else 0.0
        if false < 1 and least > largest(false):
            return True
    return False


def differ_before_training(scored: Scored) -> float:
    """Return the p-value that members and non-members have equal scores (Mann and Whitney 1947), of one score per user.

    With the scores of a model that saw neither, a small one says that the splits are not exchangeable.
    """
    inside, outside = scored.scores[scored.is_member], scored.scores[~scored.is_member]
    if np.ptp(scored.scores) == 0:
        return 1.0
    return float(stats.mannwhitneyu(inside, outside).pvalue)


def are_exchangeable(p_value: float) -> bool:
    """Return whether two splits do not differ before training, at a significance of 0.1 %."""
    return not p_value < _SAME_BEFORE or math.isnan(p_value)


ALL_DELTAS = (*DELTAS, 0.2, 0.5, 0.7, 0.9)
"""The δ at which ε is computed; the large ones decide the largest advantage."""

_ROUNDING = 1e-12  # relative, of a bound's arithmetic in float64
_NOTHING = ((0.0, 0.0),)  # the claim of a unit that does not take part

Claim = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ProvenRates:
    """Hold what is proven for one unit.

    Attributes:
        unit: the unit in words, with its contribution.
        claims: pairs (δ, ε), ε finite; empty if nothing is proven.
        reason: why nothing is proven; empty if something is.
    """

    unit: str
    claims: tuple[Claim, ...]
    reason: str = ""

    @property
    def is_proven(self) -> bool:
        """Return whether any finite ε is proven."""
        return bool(self.claims)

    def largest_true_positive_rate(self, false_positive_rate: float) -> float:
        """Return an upper bound on the true positive rate of every test; 1 if nothing is proven.

        Args:
            false_positive_rate: in (0, 1).
        """
        at = dict(self.claims)
        rate = largest_true_positive_rate(at.__getitem__, false_positive_rate, tuple(at))
        return min(1.0, rate * (1 + _ROUNDING))

    @property
    def largest_advantage(self) -> float:
        """Return an upper bound on TPR − FPR over all FPR; 1 if nothing is proven."""
        # tanh(ε/2) = (e^ε − 1)/(e^ε + 1), which does not overflow
        most = [math.tanh(epsilon / 2) * (1 - delta) + delta for delta, epsilon in self.claims]
        return min([1.0, *(advantage * (1 + _ROUNDING) for advantage in most)])

    def trade_off(self) -> InverseTradeOff:
        """Return F⁻¹, the smallest FPR that allows a TPR, for :func:`~fl_sim.auditing.lower_bounds.refutes`."""
        return curve_trade_off(self.claims) if self.claims else lambda right: 0.0

    def exchanged(self) -> InverseTradeOff:
        """Return F⁻¹ of exchanging one such unit for another: F∘F (Dong, Roth and Su 2022, theorem 2.14).

        Corpora that hold the same number of units, drawn from the same people, differ by such exchanges.
        """
        once = self.trade_off()
        return lambda right: once(once(right))

    def largest_after_exchange(self, false_positive_rate: float) -> float:
        """Return F(F(FPR)), the largest true positive rate of a test that tells two such units apart; FPR in (0, 1)."""
        once = self.largest_true_positive_rate(false_positive_rate)
        return self.largest_true_positive_rate(once) if once < 1 else 1.0

    def record(self, false_positive_rates: Sequence[float] = PROVEN_AT_RATES) -> dict[str, Any]:
        """Return the bound as a JSON object; its rates are upper bounds."""
        rates = {f"{rate:g}": self.largest_true_positive_rate(rate) for rate in false_positive_rates}
        return {
            "unit": self.unit,
            "proven": self.is_proven,
            "largest_tpr_at_fpr": rates,
            "largest_advantage": self.largest_advantage,
            "claims": [{"delta": delta, "epsilon": epsilon} for delta, epsilon in self.claims],
        } | ({"reason": self.reason} if self.reason else {})


@dataclass(frozen=True, eq=False, slots=True)
class EntityContribution:
    """Hold what one entity contributes under the bounds of a run.

    Attributes:
        profile: for each user the sentences that take part and mention the entity, int64 (users,), largest first.
        limit: the contribution bound that the entity just meets.
    """

    profile: NDArray[np.int64]
    limit: ContributionBound

    @classmethod
    def of_profile(cls, profile: Sequence[int] | NDArray[np.integer]) -> Self:
        """Return the contribution of sentences of weight 1, given their number by user, in any order."""
        counts = np.sort(np.asarray(profile, dtype=np.int64))[::-1]
        counts = counts[counts > 0]
        limit = ContributionBound(len(counts), int(counts.max(initial=0)), int(counts.sum()))
        return cls(counts, limit if len(counts) else NO_ENTITY)

    @classmethod
    def of(cls, bounds: EnforcedBounds, entity: int, contributions: EntityContributions | None = None) -> Self:
        """Return the contribution of an entity of a run's training split.

        Args:
            bounds: of the run, with its weights.
            entity: the entity's id.
            contributions: those of ``bounds``, if several entities are asked for.
        """
        profiles = bounds.kept.entity_profiles()
        start, end = profiles.offsets[entity : entity + 2]
        plain = cls.of_profile(profiles.sentences[start:end])
        if not bounds.guarantee.weighted or not len(plain.profile):
            return plain
        weights = int((contributions or bounds.contributions()).sentences[entity])
        limit = ContributionBound(plain.limit.users, plain.limit.sentences_per_user, weights, weighted=True)
        return cls(plain.profile, limit)


@dataclass(frozen=True, slots=True)
class LedgerProof:
    """Hold the releases of a run, and prove rates for units from them.

    Attributes:
        entries: the releases of the run, and of its ancestors on the same corpus.
        run: the identity of the run; entries of others are those of ancestors.
        guarantee: the bounds on contributions under which the run released.
    """

    entries: tuple[Entry, ...]
    run: str
    guarantee: Guarantee

    @classmethod
    def of(cls, folder: RunFolder) -> Self:
        """Return the proof of a run's ledger.

        Raises:
            LedgerError: the ledger is missing, changed, cut off or reordered, or not that of the run's result.
        """
        ledgers = read_ledgers([folder.path])
        own = ledgers[-1]
        guarantee = own.entries[-1].terms.guarantee if own.entries else Guarantee()
        return cls(tuple(together(ledgers)), own.run, guarantee)

    def of_user(self, sentences: float) -> ProvenRates:
        """Return the rates of a user with ``sentences`` sentences that take part; ``math.inf`` for any number."""
        return self._rates(_user_in_words(sentences), Adjacency(sentences))

    def of_sentence(self) -> ProvenRates:
        """Return the rates of one sentence, whatever it mentions."""
        unit = self.guarantee.with_entity(ContributionBound(users=1, sentences_per_user=1))
        return self._rates("one sentence", replace(unit, user_sentences=0), robust=True)

    def of_entity(self, contribution: EntityContribution, *, robust: bool = False) -> ProvenRates:
        """Return the rates of an entity by its profile.

        Args:
            contribution: of the entity.
            robust: whether the bound also holds if the tagger missed some of its mentions in sentences of the profile,
                so that they were not sampled together.
        """
        return self.of_both(0, contribution, robust=robust)

    def of_both(self, sentences: float, contribution: EntityContribution, *, robust: bool = False) -> ProvenRates:
        """Return the rates of a user and an entity at once; arguments as for the methods above."""
        count, users = int(contribution.profile.sum()), len(contribution.profile)
        unit = f"an entity in {count:,} sentences of {users:,} users that take part"
        unit = f"{_user_in_words(sentences)} and {unit}" if sentences else unit
        adjacency = replace(self.guarantee.with_entity(contribution.limit), user_sentences=float(sentences))
        if not count:
            adjacency = Adjacency(float(sentences))
        event = self._event_of_profiles(adjacency)
        if event is None or not count:
            return self._rates(unit, adjacency, robust=robust)
        rounds = len(self.entries)
        accounted = event.robust() if robust else event
        epsilons = [
            ProfileAccountant(accounted, float(sentences), rounds, delta).epsilon(contribution.profile)
            for delta in ALL_DELTAS
        ]
        return _proven(unit, list(zip(ALL_DELTAS, epsilons, strict=True)))

    def _event_of_profiles(self, adjacency: Adjacency) -> RoundEvent | None:
        """Return the event of all rounds if ε of a profile can be computed for it; else None.

        That needs equal rounds of this run alone, one sum each, sampled independently, without weights on sentences or
        users, and without sentences that an entity's displaced.
        """
        mechanisms = {entry.terms.mechanism for entry in self.entries}
        if len(mechanisms) != 1 or any(entry.run != self.run for entry in self.entries):
            return None
        (mechanism,) = mechanisms
        event = mechanism.event()
        plain = not (adjacency.displaced or adjacency.entity_bound.weighted or has_repeated_sums(self.entries))
        plain = plain and mechanism.exposed(adjacency) == adjacency
        return event if plain and event is not None and event.epoch_rounds is None else None

    def _rates(self, unit: str, adjacency: Adjacency, *, robust: bool = False) -> ProvenRates:
        """Return the rates of an adjacency in the releases of the run, and of the largest unit in its ancestors'."""
        takes_part = adjacency.user_sentences or adjacency.entity_bound.total
        if not self.entries or (not takes_part and all(entry.run == self.run for entry in self.entries)):
            return ProvenRates(unit, _NOTHING)
        if unproven := sorted({e.terms.mechanism.strategy for e in self.entries if e.terms.mechanism.event() is None}):
            return ProvenRates(unit, (), f"{', '.join(unproven)} guarantees nothing")
        if adjacency.entity_bound.total and not all(map(self._bounds_entities, self.entries)):
            return ProvenRates(unit, (), "the run starts from one that bounds no entity's contribution")

        def exposed(entry: Entry, event: RoundEvent) -> tuple[RoundEvent, Adjacency]:
            if entry.run == self.run:
                return (event.robust() if robust else event), entry.exposed(adjacency)
            return event.robust(), entry.exposed(_in_ancestor(entry, event, adjacency))

        parts = parts_of(self.entries, exposed)
        if parts is None:
            return ProvenRates(unit, (), "a release had hardly any noise")
        return _proven(unit, [(delta, accountant.composed_epsilon(parts, delta)) for delta in ALL_DELTAS])

    def _bounds_entities(self, entry: Entry) -> bool:
        """Return whether a release is of this run, or of an ancestor that bounds what an entity contributes."""
        return entry.run == self.run or entry.terms.guarantee.covers_any_entity


def _in_ancestor(entry: Entry, event: RoundEvent, adjacency: Adjacency) -> Adjacency:
    """Return the largest contribution to an ancestor's release of a unit that contributes ``adjacency`` to this run."""
    guarantee = entry.terms.guarantee
    user = guarantee.user.user_sentences if adjacency.user_sentences else 0.0
    if not adjacency.entity_bound.total:
        return Adjacency(user)
    units = guarantee.units(clips_sentences=event.clips_sentences, population=entry.terms.mechanism.population)
    return replace(units[0].adjacency, user_sentences=user)


def _proven(unit: str, claims: Sequence[Claim]) -> ProvenRates:
    """Return the rates of those claims that have a finite ε."""
    finite = tuple((delta, epsilon) for delta, epsilon in claims if math.isfinite(epsilon))
    return ProvenRates(unit, finite, "" if finite else "every ε is infinite")


def _user_in_words(sentences: float) -> str:
    return "any user" if math.isinf(sentences) else f"a user with {sentences:,.0f} sentences that take part"
