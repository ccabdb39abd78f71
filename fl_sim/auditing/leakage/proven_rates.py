"""Bound what any attack on a run can reach: the trade-off function that the run's ledger proves for one unit.

A test decides whether the unit took part. With M the released models, D the corpus without the unit and D' with it, a
ledger that proves (ε, δ) for the pair D, D' bounds every test at a false positive rate FPR (Wasserman and Zhou 2010;
Kairouz, Oh and Viswanath 2015; Dong, Roth and Su 2022, proposition 2.5):

    TPR ≤ e^ε·FPR + δ,    TPR ≤ 1 − e^−ε·(1 − δ − FPR),    TPR − FPR ≤ (e^ε − 1 + 2δ)/(e^ε + 1).

The bound here is the least over a few δ that are fixed in advance, so it is valid and a few per cent above the exact
trade-off function. ε counts all releases of the ledger and of the runs on the same corpus from which the run started.

Guarantee and assumptions: those of the run's ε (docs/privacy.md), for one pair of corpora that differ in the unit
alone; the rates are over the randomness of training. What a unit contributes is what takes part under the run's
bounds: a user's sentences of weight above 0, or the sum of their weights, and an entity's profile of them. Two units
are exchanged in :meth:`ProvenRates.exchanged`: D'∪{x} and D'∪{y} differ by two such steps.

>>> from fl_sim.strategies.ledger import ReleaseRecord
>>> from fl_sim.strategies.user_level import UserLevelDP
>>> mechanism = UserLevelDP(
...     strategy="user_level", population=2, q_u=1.0, q_e=1.0, q_s=1.0, clip_norm=1.0, user_cap=1.0,
...     noise_multiplier=1.0)
>>> entry = Entry("run", 1, ReleaseRecord.of(mechanism, seed=0))
>>> rates = LedgerProof((entry,), "run", Guarantee()).of_user(12)
>>> 0.092 < rates.largest_true_positive_rate(0.01) < 0.097  # one Gaussian with μ = 1: Φ(Φ⁻¹(0.01) + 1) is 0.0924
True
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fl_sim.auditing.lower_bounds import Claim, InverseTradeOff, curve_trade_off
from fl_sim.experiments.plan.guarantees import EnforcedBounds
from fl_sim.experiments.privacy_spent import corpora_of, read_ledgers
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import NO_ENTITY, Adjacency, ContributionBound
from fl_sim.strategies.accounting.attack_success import DELTAS, largest_true_positive_rate
from fl_sim.strategies.accounting.entity_profiles import ProfileAccountant
from fl_sim.strategies.accounting.guarantee import Guarantee, ProtectedUnit
from fl_sim.strategies.ledger import Entry, epsilon_of_any, has_repeated_sums, parts_of, together

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
"""At which attacks and their bounds are reported."""

ALL_DELTAS = (*DELTAS, 0.2, 0.5, 0.7, 0.9)
"""The δ at which ε is computed; the large ones decide the largest advantage."""

_ROUNDING = 1e-12  # relative, of a bound's arithmetic in float64
_NOTHING = ((0.0, 0.0),)  # the claim of a unit that does not take part

NOT_MARKED = "the run's own text may not mark the entity wherever it is mentioned, so nothing bounds its sentences"


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
        """Return an upper bound on the true positive rate of every test at an FPR in (0, 1); 1 if nothing is proven."""
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

    def record(self) -> dict[str, object]:
        """Return the bound as a JSON object; its rates are upper bounds."""
        rates = {f"{rate:g}": self.largest_true_positive_rate(rate) for rate in FALSE_POSITIVE_RATES}
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
    def of(cls, bounds: EnforcedBounds, entity: int) -> Self:
        """Return the contribution of the entity with an id, under the bounds of a run and their weights."""
        profiles = bounds.kept.entity_profiles()
        start, end = profiles.offsets[entity : entity + 2]
        plain = cls.of_profile(profiles.sentences[start:end])
        if not bounds.guarantee.weighted or not len(plain.profile):
            return plain
        weights = int(bounds.contributions().sentences[entity])
        limit = ContributionBound(plain.limit.users, plain.limit.sentences_per_user, weights, weighted=True)
        return cls(plain.profile, limit)


@dataclass(frozen=True, slots=True)
class LedgerProof:
    """Hold the releases of a run, and prove rates for units from them.

    Attributes:
        entries: the releases of the run, and of its ancestors on the same corpus.
        run: the identity of the run; entries of others are those of ancestors.
        guarantee: the bounds on contributions under which the run released.
        corpora: the fingerprint of each run's corpus.
    """

    entries: tuple[Entry, ...]
    run: str
    guarantee: Guarantee
    corpora: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: RunFolder) -> Self:
        """Return the proof of a run's ledger.

        Raises:
            LedgerError: the ledger is missing, changed, cut off or reordered, or not that of the run's result.
        """
        ledgers = read_ledgers([folder.path])
        own = ledgers[-1]
        guarantee = own.entries[-1].terms.guarantee if own.entries else Guarantee()
        return cls(tuple(together(ledgers)), own.run, guarantee, corpora_of(ledgers))

    def of_user(self, sentences: float) -> ProvenRates:
        """Return the rates of a user with ``sentences`` sentences that take part; ``math.inf`` for any number."""
        unit = "any user" if math.isinf(sentences) else f"a user with {sentences:,.0f} sentences that take part"
        return self._rates(unit, Adjacency(sentences))

    def of_any(self) -> ProvenRates:
        """Return the rates of any user with any entity, for whom the run's printed ε holds."""
        unit = "any user with any entity"
        if not self.entries:
            return ProvenRates(unit, _NOTHING)
        if reason := self._unproven():
            return ProvenRates(unit, (), reason)
        return _proven(unit, [(delta, epsilon_of_any(self.entries, delta, self.corpora)) for delta in ALL_DELTAS])

    def of_entity(self, contribution: EntityContribution) -> ProvenRates:
        """Return the rates of an entity by its profile."""
        count, users = int(contribution.profile.sum()), len(contribution.profile)
        unit = f"an entity in {count:,} sentences of {users:,} users that take part"
        if not count:
            return self._rates(unit, Adjacency(0.0))
        adjacency = replace(self.guarantee.with_entity(contribution.limit), user_sentences=0.0)
        event = self._event_of_profiles(adjacency)
        if event is None:
            return self._rates(unit, adjacency)
        rounds, profile = len(self.entries), contribution.profile
        claims = [(delta, ProfileAccountant(event, 0.0, rounds, delta).epsilon(profile)) for delta in ALL_DELTAS]
        return _proven(unit, claims)

    def _unproven(self) -> str:
        """Return why the releases prove nothing for anybody; empty if they prove something."""
        unproven = sorted({e.terms.mechanism.strategy for e in self.entries if e.terms.mechanism.event() is None})
        return f"{', '.join(unproven)} guarantees nothing" if unproven else ""

    def _event_of_profiles(self, adjacency: Adjacency) -> RoundEvent | None:
        """Return the event of all rounds if ε of a profile can be computed for it; else None.

        That needs equal rounds of this run alone, one sum each, sampled independently, without weights on sentences or
        users.
        """
        mechanisms = {entry.terms.mechanism for entry in self.entries}
        if len(mechanisms) != 1 or any(entry.run != self.run for entry in self.entries):
            return None
        (mechanism,) = mechanisms
        event = mechanism.event()
        plain = not (adjacency.entity_bound.weighted or has_repeated_sums(self.entries))
        plain = plain and mechanism.exposed(adjacency) == adjacency
        return event if plain and event is not None and event.epoch_rounds is None else None

    def _rates(self, unit: str, adjacency: Adjacency) -> ProvenRates:
        """Return the rates of an adjacency in the releases of the run, and of the largest unit in its ancestors'."""
        takes_part = adjacency.user_sentences or adjacency.entity_bound.total
        if not self.entries or (not takes_part and all(entry.run == self.run for entry in self.entries)):
            return ProvenRates(unit, _NOTHING)
        if reason := self._unproven():
            return ProvenRates(unit, (), reason)
        bounded = all(e.run == self.run or e.terms.guarantee.covers_any_entity for e in self.entries)
        if adjacency.entity_bound.total and not bounded:
            return ProvenRates(unit, (), "the run starts from one that bounds no entity's contribution")

        def unit_of(entry: Entry, event: RoundEvent) -> ProtectedUnit:
            own = entry.run == self.run
            return ProtectedUnit(adjacency if own else _in_ancestor(entry, event, adjacency), robust=not own)

        parts = parts_of(self.entries, unit_of)
        if parts is None:
            return ProvenRates(unit, (), "a release had hardly any noise")
        return _proven(unit, [(delta, accountant.composed_epsilon(parts, delta)) for delta in ALL_DELTAS])


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
