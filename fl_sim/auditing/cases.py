"""Define audit cases: a mechanism on its worst-case corpora, with all claims about it.

>>> event = RoundEvent("uedp", noise_multiplier=1.0)
>>> target = OwnMechanism(seam_of(event, rounds=1, delta=1e-5), worst_case(event, Adjacency(user_sentences=1)))
>>> case = Case("one user, of whom ε = 2 is claimed", target, rounds=1, delta=1e-5, proven=((1e-5, 2.0),))
>>> finding = Finding(case, audit(target, rounds=1, trials=4000, seed=0, delta=1e-5, confidence=0.95), confidence=0.95)
>>> round(finding.audit.gaussian.epsilon, 1), finding.holds
(3.5, False)
"""

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

# Besides the requested δ, the claimed curve is tested at these: some bugs show at a large δ only.
_CURVE_DELTAS = (1e-3, 0.01, 0.1, 0.2, 0.5)
_NOISE_DELTAS = (1e-3, 0.01, 0.05, 0.1, 0.2, 0.4, 0.7)  # the same for the bound on the noise
_CHEAP_BOUND = 100  # beyond this number of users with the entity, curves at many noise multipliers take too long


@dataclass(frozen=True, slots=True)
class Case:
    """Hold a mechanism on its worst-case corpora, and the claims to test.

    Attributes:
        name: the name in reports.
        target: the mechanism on its pair of corpora.
        rounds: T.
        delta: δ.
        proven: pairs (δ, ε) that our accountant proves, that at ``delta`` first; empty if it proves nothing.
        as_published: ε by the published accountant, or None.
        noise: the claimed noise multiplier, and the pairs that our accountant proves at any other; None if the noise is
            not to be bounded.
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
    """Hold a case and the result of its audit."""

    case: Case
    audit: Audit
    confidence: float

    @property
    def epsilon_proven(self) -> float:
        """Return our ε at the case's δ; inf if nothing is proven."""
        return self.case.proven[0][1] if self.case.proven else math.inf

    @property
    def epsilon_lower(self) -> float:
        """Return the audited lower bound, valid for any mechanism."""
        return self.audit.bound.epsilon

    @property
    def epsilon_lower_model(self) -> float | None:
        """Return our ε at the largest noise that is not refuted: a lower bound if all but the noise is as claimed."""
        if self.case.noise is None or self.audit.noise_at_most is None:
            return None
        if math.isinf(self.audit.noise_at_most):
            return 0.0
        _, claims_at = self.case.noise
        return float(claims_at(self.audit.noise_at_most)[0][1])

    @property
    def holds(self) -> bool:
        """Tell whether the audit refutes nothing that our accountant proves."""
        gaussian, verdict, noise = self.audit.gaussian, self.audit.verdict, self.audit.noise_at_most
        within = max(self.epsilon_lower, gaussian.epsilon if gaussian else 0.0) <= self.epsilon_proven
        enough_noise = noise is None or self.case.noise is None or noise >= self.case.noise[0]
        return within and enough_noise and not (verdict and verdict.refuted)

    @property
    def as_published_holds(self) -> bool | None:
        """Tell whether the published ε withstands the bound without assumptions; None if no ε is published."""
        if self.case.as_published is None:
            return None
        return self.epsilon_lower <= self.case.as_published

    def record(self) -> dict[str, Any]:
        """Return the finding as one JSON object; an infinite ε is the word ``inf``."""
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
    """Return a case of one of our mechanisms, or of a broken copy, with the ε proven for the intact one.

    Args:
        name: the name in reports.
        event: the event of every round.
        adjacency: the protected user and entity.
        rounds: T.
        delta: δ.
        mutation: the name of the part to break; None for the intact mechanism.
        companions: further entities in every sentence with e'.
    """
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
    """Return a case of the published algorithm with its published ε and, if run as stated, the ε that we prove.

    f_E+ as stated runs as the product's own strategy. A model of the round (:mod:`fl_sim.auditing.published_round`)
    replaces it for f_E, for the authors' code, and for an entity of so many users that it would take hours.

    Args:
        name: the name in reports.
        settings: the settings of the training.
        rounds: T.
        delta: δ.
        entities: |E|.
        reach_users: F, the number of users who mention e'; 0 protects no entity.
        user: whether a user is protected too.
        defects: where the code departs from the paper.
        user_clip: β.
        update_norm: the norm of a user's AdamW update, if the clip comes before it.
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
    """Audit a case.

    Args:
        case: the mechanism and the claims.
        trials: the number of trainings per corpus.
        seed: root seed of every draw.
        confidence: confidence with which all results hold at once.
        pin_noise: bound the true noise too, which takes seconds of accounting.
    """
    result = audit(
        case.target,
        rounds=case.rounds,
        trials=trials,
        seed=seed,
        delta=case.delta,
        confidence=confidence,
        claims=case.proven,
        noise=case.noise if pin_noise else None,
    )
    return Finding(case, result, confidence)


def _curve(
    event: RoundEvent,
    adjacency: Adjacency,
    rounds: int,
    delta: float,
    others: tuple[float, ...] = _CURVE_DELTAS,
) -> tuple[tuple[float, float], ...]:
    """Return the proven pairs (δ, ε), that at ``delta`` first."""
    return tuple((d, accountant.epsilon(event, adjacency, rounds, d)) for d in (delta, *others))
