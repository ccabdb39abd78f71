"""Define audit cases: a mechanism on its worst-case corpora, with all claims about it.

:func:`cases` are the rows of ``fl-sim audit table``: every mechanism, for entities of 1, 15 and all users, in the
federation of the published evaluation on CoNLL-2003 (946 users, 50 of them expected per round, 14,040 sentences, 11,176
of them with one of 7,610 entities): T = 50, δ = 1e-5, z = 2 for the published algorithm and its user-level baseline.
Our mechanisms have z = 1 and ŵ = 15, so that their noise is that of the baseline at z = 1, and use 5 % of the sentences
in expectation per round.

>>> event = RoundEvent("uedp", noise_multiplier=1.0)
>>> target = AuditedMechanism(mechanism_of(event), worst_case(event, Adjacency(user_sentences=1)))
>>> case = Case("one user, of whom ε = 2 is claimed", target, rounds=1, delta=1e-5, proven=((1e-5, 2.0),))
>>> finding = examine(case, trials=4000, seed=0, confidence=0.95)
>>> round(finding.epsilon_lower_gaussian, 1), finding.holds
(3.5, False)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from fl_sim.auditing.audited_rounds import AuditedMechanism, attack, mechanism_of, published_target, worst_case
from fl_sim.auditing.lower_bounds import (
    CURVE_DELTAS,
    Claim,
    Verdict,
    check_confidence,
    epsilon_lower_bound,
    gaussian_lower_bound,
    judge_claims,
    noise_at_most,
)
from fl_sim.formats import numbered, round_down, round_up
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting import paper_model as as_published
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound, PrivacyError
from fl_sim.strategies.accounting.paper_model import PublishedSettings

_NOISE_DELTAS = (1e-3, 0.01, 0.05, 0.1, 0.2, 0.4, 0.7)  # what CURVE_DELTAS is, for the bound on the noise
_USER_CLIP = 0.1  # β; it scales the noise as coded
_WIDE = 100  # beyond this number of users with the entity trials and curves at many noise multipliers take long,
_WIDE_TRIALS = 2_000  # and the bound is at its ceiling anyway


@dataclass(frozen=True, slots=True)
class Case:
    """Hold a mechanism on its worst-case corpora, and the claims to test.

    Attributes:
        proven: pairs (δ, ε) that our accountant proves, that at ``delta`` first; empty if it proves nothing.
        as_published: ε by the published accountant, or None.
        noise: the claimed noise multiplier, and the pairs that our accountant proves at any other; None if the noise is
            not to be bounded.
    """

    name: str
    target: AuditedMechanism
    rounds: int
    delta: float
    proven: tuple[Claim, ...]
    as_published: float | None = None
    noise: tuple[float, Callable[[float], Sequence[Claim]]] | None = None

    def affordable(self, trials: int) -> int:
        """Return the number of trainings per corpus: at most 2,000 for an entity of more than 100 users."""
        return min(trials, _WIDE_TRIALS) if self.target.scenario.entity_users > _WIDE else trials


@dataclass(frozen=True, slots=True)
class Finding:
    """Hold what the attack on a case shows; all of it holds at once with the stated confidence.

    Attributes:
        epsilon_lower: the lower bound on ε at the case's δ, valid for any mechanism.
        epsilon_lower_gaussian: the Gaussian lower bound if the shift is fixed (nothing is sampled), else None.
        verdict: the verdict on the whole claimed curve; None if nothing is claimed.
        noise_at_most: an upper bound on the true noise multiplier if all else is as claimed; None if not requested.
        trials: the number of trainings per corpus; half of them choose the event, the other half test it.
    """

    case: Case
    epsilon_lower: float
    epsilon_lower_gaussian: float | None
    verdict: Verdict | None
    noise_at_most: float | None
    trials: int
    confidence: float

    @property
    def epsilon_proven(self) -> float:
        """Return our ε at the case's δ; inf if nothing is proven."""
        return self.case.proven[0][1] if self.case.proven else math.inf

    @property
    def epsilon_lower_model(self) -> float | None:
        """Return our ε at the largest noise that is not refuted: a lower bound if all but the noise is as claimed."""
        if self.case.noise is None or self.noise_at_most is None:
            return None
        if math.isinf(self.noise_at_most):
            return 0.0
        _, claims_at = self.case.noise
        return float(claims_at(self.noise_at_most)[0][1])

    @property
    def holds(self) -> bool:
        """Tell whether the audit refutes nothing that our accountant proves."""
        noise, verdict = self.noise_at_most, self.verdict
        within = max(self.epsilon_lower, self.epsilon_lower_gaussian or 0.0) <= self.epsilon_proven
        enough_noise = noise is None or self.case.noise is None or noise >= self.case.noise[0]
        return within and enough_noise and not (verdict and verdict.refuted)

    @property
    def as_published_holds(self) -> bool | None:
        """Tell whether the published ε withstands the bound without assumptions; None if no ε is published."""
        if self.case.as_published is None:
            return None
        return self.epsilon_lower <= self.case.as_published

    def record(self) -> dict[str, object]:
        """Return the finding as one JSON object; an infinite ε is the word ``inf``."""
        worst = self.verdict and {
            "delta": self.verdict.delta,
            "epsilon_claimed": self.verdict.claimed,
            "epsilon_lower": self.verdict.epsilon,
        }
        values = {
            "case": self.case.name,
            "rounds": self.case.rounds,
            "delta": self.case.delta,
            "epsilon_as_published": self.case.as_published,
            "epsilon_proven": self.epsilon_proven,
            "epsilon_lower": self.epsilon_lower,
            "epsilon_lower_gaussian": self.epsilon_lower_gaussian,
            "epsilon_lower_model": self.epsilon_lower_model,
            "noise_multiplier": self.case.noise and self.case.noise[0],
            "noise_multiplier_at_most": self.noise_at_most,
            "confidence": self.confidence,
            "trials": self.trials,
            "worst_claim": worst,
            "holds": self.holds,
            "as_published_holds": self.as_published_holds,
        }
        return {name: "inf" if value == math.inf else value for name, value in values.items()}


def own_case(name: str, event: RoundEvent, adjacency: Adjacency, rounds: int, delta: float) -> Case:
    """Return a case of one of our mechanisms, with the ε that is proven for it in the same ``event`` every round."""

    def claims_at(noise_multiplier: float) -> Sequence[Claim]:
        changed = replace(event, noise_multiplier=noise_multiplier)
        return _curve(changed, adjacency, rounds, delta, _NOISE_DELTAS)

    target = AuditedMechanism(mechanism_of(event), worst_case(event, adjacency))
    cheap = event.q_u == 1 or adjacency.entity_bound.users <= _WIDE
    noise = (event.noise_multiplier, claims_at) if cheap else None
    return Case(name, target, rounds, delta, _curve(event, adjacency, rounds, delta), noise=noise)


def published_case(
    name: str,
    settings: PublishedSettings,
    rounds: int,
    delta: float,
    *,
    entity_users: int,
    user: bool = True,
    entities: int = 1,
    as_coded: bool = False,
) -> Case:
    """Return a case of the published algorithm with its published ε, if any, and the ε that we prove if run as stated.

    Args:
        entity_users: F, the number of users who mention e'; 0 protects no entity.
        entities: |E|; sets the noise as coded.
        as_coded: whether the noise is that of the authors' code: σ² for σ.

    Raises:
        PrivacyError: more users mention e' than there are, or the baseline is asked for as coded.
    """
    if entity_users > settings.users:
        raise PrivacyError(f"entity_users is {entity_users}; allowed: at most users ({settings.users})")
    adjacency = Adjacency(math.inf if user else 0, ContributionBound(entity_users, 1 if entity_users else 0))
    claimed, event = as_published.epsilon_as_published(settings, rounds, delta), as_published.proven_event(settings)
    if settings.estimator == "user_level":
        if as_coded:
            raise PrivacyError("estimator is user_level; allowed as coded: f_e, f_e_plus")
        of_users = own_case(name, event, adjacency, rounds, delta)
        return of_users if entity_users else replace(of_users, as_published=claimed)  # it claims nothing of entities
    target = published_target(settings, entities, adjacency, _USER_CLIP, "as-coded" if as_coded else "as-stated")
    proven = () if as_coded else _curve(event, adjacency, rounds, delta)
    return Case(name, target, rounds, delta, proven, claimed)


def examine(case: Case, *, trials: int, seed: int, confidence: float, pin_noise: bool = False) -> Finding:
    """Attack a case, and compare what the scores show with what is claimed.

    Args:
        confidence: confidence with which all results hold at once; the failure probability is shared equally.
        pin_noise: bound the true noise too, which takes seconds of accounting.

    Raises:
        PrivacyError: ``trials``, ``confidence`` or the case's number of rounds is impossible.
    """
    check_confidence(confidence)
    scores = attack(case.target, case.rounds, trials, seed)
    fixed_shift, noise = not case.target.random_shift, case.noise if pin_noise else None
    each = 1 - (1 - confidence) / (1 + fixed_shift + bool(case.proven) + (noise is not None))
    return Finding(
        case=case,
        epsilon_lower=epsilon_lower_bound(scores, case.delta, each),
        epsilon_lower_gaussian=gaussian_lower_bound(scores, case.delta, each) if fixed_shift else None,
        verdict=judge_claims(scores, case.proven, each) if case.proven else None,
        noise_at_most=noise_at_most(scores, noise[1], noise[0], each) if noise else None,
        trials=trials,
        confidence=confidence,
    )


def _curve(
    event: RoundEvent, adjacency: Adjacency, rounds: int, delta: float, others: tuple[float, ...] = CURVE_DELTAS
) -> tuple[Claim, ...]:
    """Return the proven pairs (δ, ε), that at ``delta`` first."""
    return tuple((d, accountant.epsilon(event, adjacency, rounds, d)) for d in (delta, *others))


USERS, USERS_PER_ROUND, ENTITIES = 946, 50, 7610
ROUNDS, DELTA, Q_E = 50, 1e-5, 0.5
CONTRIBUTION_QUANTILES = (1, 15, USERS)
_USER_SENTENCES = 15

_F_E_PLUS = PublishedSettings(
    "f_e_plus",
    USERS,
    USERS_PER_ROUND,
    noise_multiplier=2.0,
    q_e=Q_E,
    sentences=14_040,
    sensitive_sentences=11_176,
)
_USER_LEVEL = replace(_F_E_PLUS, estimator="user_level")
_RATE, _CAP = USERS_PER_ROUND / USERS, float(_USER_SENTENCES)
_OURS = {
    "uedp, users sampled": RoundEvent("uedp", 1.0, q_u=_RATE, q_e=Q_E, user_cap=_CAP),
    "uedp, sentences sampled": RoundEvent("uedp", 1.0, q_e=Q_E, q_s=_RATE, user_cap=_CAP),
    "user clip only": RoundEvent("uedp", 1.0, q_u=_RATE, q_e=Q_E, clipping="user"),
}


def table_of(findings: Sequence[Finding]) -> str:
    """Return findings as text of 80 columns: the cases, numbered, and under them their figures."""

    def shown(value: float | None, rounded: Callable[[float, int], str]) -> str:
        return "–" if value is None else rounded(value, 3)

    names, figures = [], []
    for finding in findings:
        names.append(finding.case.name + (" (claim refuted)" if finding.as_published_holds is False else ""))
        figures.append(
            [
                shown(finding.case.as_published, round_up),
                shown(finding.epsilon_proven if finding.case.proven else None, round_up),
                shown(finding.epsilon_lower, round_down),
                shown(finding.epsilon_lower_gaussian, round_down),
                shown(finding.epsilon_lower_model, round_down),
                str(finding.trials),
            ]
        )
    head = ["claimed ε", "our ε", "audited ε ≥", "if Gaussian ≥", "if only z ≥", "trials"]
    return "\n".join(numbered(names, head, figures)) + "\n"


def cases() -> Iterator[Case]:
    """Yield the case of every row of the table, named after mechanism and protected unit."""
    published = {
        "published f_E+, as stated": (_F_E_PLUS, False),
        "published f_E+, as coded: σ² for σ": (_F_E_PLUS, True),
        "user-level (z = 2)": (_USER_LEVEL, False),
    }
    for mechanism, (settings, as_coded) in published.items():
        for entity_users in (0, *CONTRIBUTION_QUANTILES):
            yield published_case(
                f"{mechanism}: {_protected(entity_users)}",
                settings,
                ROUNDS,
                DELTA,
                entity_users=entity_users,
                user=entity_users < USERS,
                entities=ENTITIES,
                as_coded=as_coded,
            )
    for mechanism, event in _OURS.items():
        for entity_users in (0, *CONTRIBUTION_QUANTILES):
            unit = Adjacency(_USER_SENTENCES, ContributionBound(entity_users, 1 if entity_users else 0))
            yield own_case(f"{mechanism}: {_protected(entity_users)}", event, unit, ROUNDS, DELTA)


def _protected(entity_users: int) -> str:
    """Return the protected unit in words."""
    if not entity_users:
        return "user"
    return "entity of all users" if entity_users == USERS else f"user, entity of {entity_users} users"
