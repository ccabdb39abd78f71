"""What is audited: a mechanism with its worst case, beside everything that is claimed for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fl_sim.auditing.attack import Audit, Claims, Target, audit
from fl_sim.auditing.mutations import mutate
from fl_sim.auditing.own_targets import OwnMechanism, published_target, seam_of, worst_case
from fl_sim.auditing.published_round import AS_STATED, Defects, PublishedMechanism
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting import paper_model as as_published
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.paper_model import PublishedSettings

# Beside the δ that was asked for, the claimed curve is tested at these: some bugs show at a large δ only.
_CURVE_DELTAS = (1e-3, 0.01, 0.1, 0.2, 0.5)
_NOISE_DELTAS = (1e-3, 0.01, 0.05, 0.1, 0.2, 0.4, 0.7)  # and at these, where the noise is sought
_CHEAP_BOUND = 100  # users in reach beyond which a curve takes too long to be computed at many noise multipliers


@dataclass(frozen=True, slots=True)
class Case:
    """A mechanism on its worst-case corpora, and the claims to hold against it.

    Attributes:
        name: what it is called in reports.
        target: the mechanism.
        rounds: T.
        delta: δ.
        proven: pairs (δ, ε) that our accountant proves; the first is the one at ``delta``. Empty if it proves nothing.
        as_published: ε by the published accountant, or None.
        noise: the claimed noise multiplier, and what our accountant proves at any other; None if that is not sought.
    """

    name: str
    target: Target
    rounds: int
    delta: float
    proven: tuple[tuple[float, float], ...]
    as_published: float | None = None
    noise: tuple[float, Callable[[float], Claims]] | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """A case and what its audit showed."""

    case: Case
    audit: Audit
    confidence: float

    @property
    def epsilon_proven(self) -> float:
        """Our ε at the case's δ; inf where nothing is proven."""
        return self.case.proven[0][1] if self.case.proven else math.inf

    @property
    def epsilon_lower(self) -> float:
        """The audited lower bound, for any mechanism."""
        return self.audit.bound.epsilon

    @property
    def epsilon_lower_model(self) -> float | None:
        """Our ε at the largest noise that the audit leaves possible: a lower bound if only the noise is in question."""
        if self.case.noise is None or self.audit.noise_at_most is None:
            return None
        if math.isinf(self.audit.noise_at_most):
            return 0.0
        _, claims_at = self.case.noise
        return float(claims_at(self.audit.noise_at_most)[0][1])

    @property
    def holds(self) -> bool:
        """Whether nothing that our accountant proves is refuted."""
        gaussian, verdict, noise = self.audit.gaussian, self.audit.verdict, self.audit.noise_at_most
        within = max(self.epsilon_lower, gaussian.epsilon if gaussian else 0.0) <= self.epsilon_proven
        enough_noise = noise is None or self.case.noise is None or noise >= self.case.noise[0]
        return within and enough_noise and not (verdict and verdict.refuted)

    @property
    def as_published_holds(self) -> bool | None:
        """Whether the published ε survives the bound that needs no assumption; None where there is none."""
        if self.case.as_published is None:
            return None
        return self.epsilon_lower <= self.case.as_published

    def record(self) -> dict[str, Any]:
        """One flat JSON object; an infinite ε is the word ``inf``."""
        audit_, verdict = self.audit, self.audit.verdict
        values: dict[str, Any] = {
            "case": self.case.name,
            "rounds": self.case.rounds,
            "delta": self.case.delta,
            "epsilon_as_published": self.case.as_published,
            "epsilon_proven": self.epsilon_proven,
            "epsilon_lower": self.epsilon_lower,
            "epsilon_lower_gaussian": audit_.gaussian.epsilon if audit_.gaussian else None,
            "epsilon_lower_model": self.epsilon_lower_model,
            "noise_multiplier": self.case.noise[0] if self.case.noise else None,
            "noise_multiplier_at_most": audit_.noise_at_most,
            "confidence": self.confidence,
            "trials": audit_.trials,
            "worst_claim": {
                "delta": verdict.delta,
                "epsilon_claimed": verdict.claimed,
                "epsilon_lower": verdict.epsilon,
            }
            if verdict
            else None,
            "holds": self.holds,
            "as_published_holds": self.as_published_holds,
        }
        return {name: "inf" if value == math.inf else value for name, value in values.items()}


def own_case(
    name: str,
    event: RoundEvent,
    adjacency: Adjacency,
    rounds: int,
    delta: float,
    *,
    mutation: str | None = None,
    companions: int = 0,
) -> Case:
    """One of our mechanisms, or a broken copy of it, beside what is proven for the whole one."""
    seam = seam_of(event, rounds, delta)
    if mutation is not None:
        seam = mutate(seam, mutation)
    target = OwnMechanism(seam, worst_case(event, adjacency, companions))

    def claims_at(noise_multiplier: float) -> Claims:
        changed = replace(event, noise_multiplier=noise_multiplier)
        return _curve(changed, adjacency, rounds, delta, _NOISE_DELTAS)

    cheap = event.q_u == 1 or adjacency.entity_bound.users <= _CHEAP_BOUND
    noise = (event.noise_multiplier, claims_at) if cheap else None
    return Case(name, target, rounds, delta, _curve(event, adjacency, rounds, delta), noise=noise)


def published_case(
    name: str,
    settings: PublishedSettings,
    rounds: int,
    delta: float,
    *,
    entities: int,
    reach_users: int,
    user: bool = True,
    defects: Defects = AS_STATED,
    user_clip: float = 0.1,
    update_norm: float = 0.1,
) -> Case:
    """The published algorithm beside its published ε and, as far as it is run as stated, what we prove for it.

    f_E+ as stated is the product's own strategy; where an entity reaches so many users that this would take hours, and
    for what the authors' code did, it is a model of the round (:mod:`fl_sim.auditing.published_round`).

    Args:
        name: of the case.
        settings: the training.
        rounds: T.
        delta: δ.
        entities: |E|.
        reach_users: F, users that know e'; 0 protects no entity.
        user: whether a user is protected too.
        defects: where the code departs from the paper.
        user_clip: β.
        update_norm: of a user's AdamW update, if the clip comes before it.
    """
    stated = defects == AS_STATED
    target: Target
    if stated and settings.estimator == "f_e_plus" and reach_users <= _CHEAP_BOUND:
        target = published_target(settings, entities, user_clip, reach_users, user)
    else:
        target = _modelled(settings, entities, reach_users, user, defects, user_clip, update_norm)
    adjacency = Adjacency(math.inf if user else 0, ContributionBound(reach_users, 1 if reach_users else 0))
    proven = _curve(as_published.proven_event(settings), adjacency, rounds, delta) if stated else ()
    claimed = as_published.epsilon_as_published(settings, rounds, delta)
    return Case(name, target, rounds, delta, proven, claimed)


def _modelled(
    settings: PublishedSettings,
    entities: int,
    reach_users: int,
    user: bool,
    defects: Defects,
    user_clip: float,
    update_norm: float,
) -> PublishedMechanism:
    return PublishedMechanism(
        estimator=settings.estimator,
        users=settings.users,
        users_per_round=settings.users_per_round,
        q_e=settings.q_e,
        noise_multiplier=settings.noise_multiplier,
        entities=entities,
        plain_sentences=settings.sentences - settings.sensitive_sentences,
        user_clip=user_clip,
        update_norm=update_norm,
        reach_users=reach_users,
        user=user,
        defects=defects,
    )


def examine(case: Case, *, trials: int, seed: int, confidence: float, pin_noise: bool = False) -> Finding:
    """Audit a case; ``pin_noise`` also seeks its true noise, which takes seconds of accounting."""
    found = audit(
        case.target,
        rounds=case.rounds,
        trials=trials,
        seed=seed,
        delta=case.delta,
        confidence=confidence,
        claims=case.proven,
        noise=case.noise if pin_noise else None,
    )
    return Finding(case, found, confidence)


def _curve(
    event: RoundEvent,
    adjacency: Adjacency,
    rounds: int,
    delta: float,
    others: tuple[float, ...] = _CURVE_DELTAS,
) -> tuple[tuple[float, float], ...]:
    """The pairs (δ, ε) that are proven, the one at ``delta`` first."""
    return tuple((d, accountant.epsilon(event, adjacency, rounds, d)) for d in (delta, *others))
