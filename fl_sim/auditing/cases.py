"""Define audit cases: a mechanism on its worst-case corpora, with all claims about it.

Then compare every mechanism with its claim in one table: claimed ε, our ε and audited lower bound, for entities of 1
to all users.

The federation is that of the published evaluation on CoNLL-2003 (946 users, 50 of them expected per round, 14,040
sentences, 11,176 of them with an entity; 7,610 distinct entities in the training split): T = 50, δ = 1e-5, z = 2 for
the published algorithm and its user-level baseline. Our mechanisms have z = 1 and ŵ = 15, so that their noise is that
of the user-level baseline at z = 1, and use 5 % of the sentences in expectation per round.

>>> event = RoundEvent("uedp", noise_multiplier=1.0)
>>> target = OwnMechanism(seam_of(event, rounds=1, delta=1e-5), worst_case(event, Adjacency(user_sentences=1)))
>>> case = Case("one user, of whom ε = 2 is claimed", target, rounds=1, delta=1e-5, proven=((1e-5, 2.0),))
>>> finding = examine(case, trials=4000, seed=0, confidence=0.95)
>>> round(finding.gaussian.epsilon, 1), finding.holds
(3.5, False)

>>> mechanism, entity_users, case = next(cases())
>>> mechanism, entity_users, round(case.as_published, 3)
('published f_E+, as stated', 0, 0.519)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fl_sim.auditing.attack import Target, attack
from fl_sim.auditing.audited_rounds import OwnMechanism, mutate, published_target, seam_of, worst_case
from fl_sim.auditing.lower_bounds import (
    Bound,
    Verdict,
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
from fl_sim.strategies.accounting.guarantee import NoiseScale
from fl_sim.strategies.accounting.paper_model import PublishedSettings

Claims = Sequence[tuple[float, float]]
"""Pairs (δ, ε)."""

# Besides the requested δ, the claimed curve is tested at these: some bugs show at a large δ only.
_CURVE_DELTAS = (1e-3, 0.01, 0.1, 0.2, 0.5)
_NOISE_DELTAS = (1e-3, 0.01, 0.05, 0.1, 0.2, 0.4, 0.7)  # the same for the bound on the noise
_USER_CLIP = 0.1  # β; it scales the noise as coded
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
    """Hold what the attack on a case shows; all of it holds at once with the stated confidence.

    Attributes:
        case: the case.
        bound: the lower bound on ε at the case's δ, valid for any mechanism.
        gaussian: the Gaussian lower bound if the shift is fixed (nothing is sampled), else None.
        verdict: the verdict on the whole claimed curve; None if nothing is claimed.
        noise_at_most: an upper bound on the true noise multiplier if all else is as claimed; None if not requested.
        trials: the number of trainings per corpus; half of them choose the event, the other half test it.
        confidence: the confidence.
    """

    case: Case
    bound: Bound
    gaussian: Bound | None
    verdict: Verdict | None
    noise_at_most: float | None
    trials: int
    confidence: float

    @property
    def epsilon_proven(self) -> float:
        """Return our ε at the case's δ; inf if nothing is proven."""
        return self.case.proven[0][1] if self.case.proven else math.inf

    @property
    def epsilon_lower(self) -> float:
        """Return the audited lower bound, valid for any mechanism."""
        return self.bound.epsilon

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
        within = max(self.epsilon_lower, self.gaussian.epsilon if self.gaussian else 0.0) <= self.epsilon_proven
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
            "epsilon_lower_gaussian": self.gaussian and self.gaussian.epsilon,
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
    entity_users: int,
    user: bool = True,
    entities: int = 1,
    as_coded: bool = False,
) -> Case:
    """Return a case of the published algorithm with its published ε and, if run as stated, the ε that we prove.

    Args:
        name: the name in reports.
        settings: the settings of the training.
        rounds: T.
        delta: δ.
        entity_users: F, the number of users who mention e'; 0 protects no entity.
        user: whether a user is protected too.
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
        return replace(own_case(name, event, adjacency, rounds, delta), as_published=claimed)
    noise: NoiseScale = "as-coded" if as_coded else "as-stated"
    target = published_target(settings, entities, adjacency, _USER_CLIP, noise)
    proven = () if as_coded else _curve(event, adjacency, rounds, delta)
    return Case(name, target, rounds, delta, proven, claimed)


def examine(case: Case, *, trials: int, seed: int, confidence: float, pin_noise: bool = False) -> Finding:
    """Attack a case, and compare what the scores show with what is claimed.

    Args:
        case: the mechanism and the claims.
        trials: the number of trainings per corpus.
        seed: root seed of every draw.
        confidence: confidence with which all results hold at once; the failure probability is shared equally.
        pin_noise: bound the true noise too, which takes seconds of accounting.

    Raises:
        PrivacyError: ``trials``, ``confidence`` or the case's number of rounds is impossible.
    """
    if not 0 < confidence < 1:
        raise PrivacyError(f"confidence is {confidence}; allowed: between 0 and 1, both excluded")
    scores = attack(case.target, case.rounds, trials, seed)
    fixed_shift, noise = not case.target.random_shift, case.noise if pin_noise else None
    each = 1 - (1 - confidence) / (1 + fixed_shift + bool(case.proven) + (noise is not None))
    return Finding(
        case=case,
        bound=epsilon_lower_bound(scores, case.delta, each),
        gaussian=gaussian_lower_bound(scores, case.delta, each) if fixed_shift else None,
        verdict=judge_claims(scores, case.proven, each) if case.proven else None,
        noise_at_most=noise_at_most(scores, noise[1], noise[0], each) if noise else None,
        trials=trials,
        confidence=confidence,
    )


def _curve(
    event: RoundEvent,
    adjacency: Adjacency,
    rounds: int,
    delta: float,
    others: tuple[float, ...] = _CURVE_DELTAS,
) -> tuple[tuple[float, float], ...]:
    """Return the proven pairs (δ, ε), that at ``delta`` first."""
    return tuple((d, accountant.epsilon(event, adjacency, rounds, d)) for d in (delta, *others))


USERS, USERS_PER_ROUND, ENTITIES = 946, 50, 7610
ROUNDS, DELTA, Q_E = 50, 1e-5, 0.5
CONTRIBUTION_QUANTILES = (1, 15, USERS)

_USER_SENTENCES = 15
WIDE = 100  # beyond this number of users with the entity a trial is slow, and the bound is at its ceiling anyway
WIDE_TRIALS = 2_000

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
_OURS = {
    "uedp, users sampled": RoundEvent(
        "uedp", 1.0, q_u=USERS_PER_ROUND / USERS, q_e=Q_E, user_cap=float(_USER_SENTENCES)
    ),
    "uedp, sentences sampled": RoundEvent(
        "uedp", 1.0, q_e=Q_E, q_s=USERS_PER_ROUND / USERS, user_cap=float(_USER_SENTENCES)
    ),
    "user clip only": RoundEvent("uedp", 1.0, q_u=USERS_PER_ROUND / USERS, q_e=Q_E, clipping="user"),
}


@dataclass(frozen=True, slots=True)
class Row:
    """Hold the finding for one mechanism and one protected unit; ``entity_users`` 0 protects the user alone."""

    mechanism: str
    entity_users: int
    finding: Finding


@dataclass(frozen=True, slots=True)
class Table:
    """Hold all rows of the audit and the seed that made them."""

    rows: tuple[Row, ...]
    seed: int

    @property
    def holds(self) -> bool:
        """Tell whether the audit refutes nothing that our accountant proves."""
        return all(row.finding.holds for row in self.rows)

    def record(self) -> dict[str, Any]:
        """Return the table as one JSON object."""
        rows = [
            {"mechanism": row.mechanism, "entity_users": row.entity_users} | row.finding.record() for row in self.rows
        ]
        return {"users": USERS, "rounds": ROUNDS, "delta": DELTA, "seed": self.seed, "rows": rows}


def audit_table(
    *,
    trials: int,
    seed: int,
    confidence: float,
    pin_noise: bool = False,
    progress: Callable[[str], None] = lambda name: None,
) -> Table:
    """Audit every mechanism of the table.

    Args:
        trials: the number of trainings per corpus; slow rows use fewer.
        seed: root seed of every draw.
        confidence: confidence of each row.
        pin_noise: bound the true noise of our mechanisms too, as in :func:`fl_sim.auditing.cases.examine`.
        progress: called with the name of each case before it starts.
    """
    rows = []
    for mechanism, entity_users, case in cases():
        progress(case.name)
        row_trials = min(trials, WIDE_TRIALS) if entity_users > WIDE else trials
        rows.append(
            Row(
                mechanism,
                entity_users,
                examine(case, trials=row_trials, seed=seed, confidence=confidence, pin_noise=pin_noise),
            )
        )
    return Table(tuple(rows), seed)


def cases() -> Iterator[tuple[str, int, Case]]:
    """Yield (mechanism, users with the entity, case) for every row; 0 users protect the user alone."""
    published = {
        "published f_E+, as stated": (_F_E_PLUS, False),
        "published f_E+, as coded: σ² for σ": (_F_E_PLUS, True),
        "user-level (z = 2)": (_USER_LEVEL, False),
    }
    for mechanism, (settings, as_coded) in published.items():
        for entity_users in (0, *CONTRIBUTION_QUANTILES):
            name = f"{mechanism}, entity of {entity_users}"
            user = entity_users < USERS  # an entity of all users is protected alone
            case = published_case(
                name,
                settings,
                ROUNDS,
                DELTA,
                entity_users=entity_users,
                user=user,
                entities=ENTITIES,
                as_coded=as_coded,
            )
            claims_entities = settings.estimator != "user_level" or not entity_users
            yield mechanism, entity_users, case if claims_entities else replace(case, as_published=None)
    for mechanism, event in _OURS.items():
        for entity_users in (0, *CONTRIBUTION_QUANTILES):
            unit = Adjacency(_USER_SENTENCES, ContributionBound(entity_users, 1 if entity_users else 0))
            case = own_case(f"{mechanism}, entity of {entity_users}", event, unit, ROUNDS, DELTA)
            yield mechanism, entity_users, case


def markdown(table: Table) -> str:
    """Return the table as Markdown."""
    head = [
        "mechanism",
        "protected",
        "claimed ε",
        "our ε",
        "audited ε ≥",
        "if Gaussian, ε ≥",
        "if only z is in question, ε ≥",
        "trials",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in table.rows:
        claimed, ours, audited, *others = _figures(row)
        audited += " (claim refuted)" if row.finding.as_published_holds is False else ""
        cells = [row.mechanism, _protected(row.entity_users), claimed, ours, audited, *others]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def text(table: Table) -> str:
    """Return the table for a terminal of 80 columns: the mechanisms, numbered, and under them their figures."""
    names = [
        f"{row.mechanism}: {_protected(row.entity_users)}"
        + (" (claim refuted)" if row.finding.as_published_holds is False else "")
        for row in table.rows
    ]
    head = ["claimed ε", "our ε", "audited ε ≥", "if Gaussian ≥", "if only z ≥", "trials"]
    return "\n".join(numbered(names, head, [_figures(row) for row in table.rows])) + "\n"


def _figures(row: Row) -> list[str]:
    """Return claimed and proven ε, the audit's lower bounds, and the number of trials."""
    finding = row.finding
    gaussian = finding.gaussian
    return [
        _upper(finding.case.as_published),
        _upper(finding.epsilon_proven if finding.case.proven else None),
        _lower(finding.epsilon_lower),
        _lower(gaussian.epsilon if gaussian else None),
        _lower(finding.epsilon_lower_model),
        str(finding.trials),
    ]


def _protected(entity_users: int) -> str:
    if entity_users == 0:
        return "user"
    return (
        f"{'user, ' if entity_users < USERS else ''}entity of {'all' if entity_users == USERS else entity_users} users"
    )


def _upper(value: float | None) -> str:
    return "–" if value is None else round_up(value, 3)


def _lower(value: float | None) -> str:
    return "–" if value is None else round_down(value, 3)
