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
>>> finding = Finding(case, audit(target, rounds=1, trials=4000, seed=0, delta=1e-5, confidence=0.95), confidence=0.95)
>>> round(finding.audit.gaussian.epsilon, 1), finding.holds
(3.5, False)

>>> mechanism, entity_users, case = next(cases())
>>> mechanism, entity_users, round(case.as_published, 3)
('published f_E+, as stated', 0, 0.519)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from fl_sim.auditing.attack import Audit, Claims, Target, audit
from fl_sim.auditing.audited_rounds import OwnMechanism, mutate, published_target, seam_of, worst_case
from fl_sim.auditing.published_round import AS_CODED, AS_STATED, Defects, PublishedMechanism, adamw_update_norm
from fl_sim.formats import numbered, round_down, round_up
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


USERS, USERS_PER_ROUND, ENTITIES = 946, 50, 7610
ROUNDS, DELTA, Q_E = 50, 1e-5, 0.5
CONTRIBUTION_QUANTILES = (1, 15, USERS)

_USER_SENTENCES = 15
_ADAM_PARAMETERS, _ADAM_LEARNING_RATE = 124_439_808, 5e-5  # GPT-2 small, the usual rate for fine-tuning it
_WIDE = 100  # beyond this number of users with the entity a trial is slow, and the bound is at its ceiling anyway
_WIDE_TRIALS = 2_000

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
_CODED = {
    "σ² for σ": Defects(variance_as_std=True),
    "fixed cohort": Defects(fixed_cohort=True),
    "clip before AdamW": Defects(clip_before_adam=True),
    "all three": AS_CODED,
}
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
            {"mechanism": row.mechanism, "reach_users": row.entity_users} | row.finding.record() for row in self.rows
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
        row_trials = min(trials, _WIDE_TRIALS) if entity_users > _WIDE and case.as_published is None else trials
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
    for entity_users in (0, *CONTRIBUTION_QUANTILES):
        yield from _published("published f_E+, as stated", _F_E_PLUS, Defects(), entity_users)
    for fault, defects in _CODED.items():
        for entity_users in (0, *CONTRIBUTION_QUANTILES) if defects == AS_CODED else (0, USERS):
            yield from _published(f"published f_E+, as coded: {fault}", _F_E_PLUS, defects, entity_users)
    for entity_users in (0, *CONTRIBUTION_QUANTILES):
        yield from _user_level("user-level (z = 2)", entity_users)
    for mechanism, event in _OURS.items():
        for entity_users in (0, *CONTRIBUTION_QUANTILES):
            unit = Adjacency(_USER_SENTENCES, ContributionBound(entity_users, 1 if entity_users else 0))
            case = own_case(f"{mechanism}, reach {entity_users}", event, unit, ROUNDS, DELTA)
            yield mechanism, entity_users, case


def _published(
    mechanism: str, settings: PublishedSettings, defects: Defects, entity_users: int
) -> Iterator[tuple[str, int, Case]]:
    """Yield a case of the published algorithm; an entity of all users is protected alone.

    The shift of a fixed cohort is then not random, and the Gaussian bound applies.
    """
    norm = 0.1
    if defects.clip_before_adam:
        norm = adamw_update_norm(_ADAM_PARAMETERS, _ADAM_LEARNING_RATE, 1, clip_norm=0.1)
    case = published_case(
        f"{mechanism}, reach {entity_users}",
        settings,
        ROUNDS,
        DELTA,
        entities=ENTITIES,
        reach_users=entity_users,
        user=entity_users < USERS,
        defects=defects,
        update_norm=norm,
    )
    yield mechanism, entity_users, case


def _user_level(mechanism: str, entity_users: int) -> Iterator[tuple[str, int, Case]]:
    """Yield a case of DP-FedAvg in our code, with the ε that the paper claims (for users, none for entities)."""
    event = as_published.proven_event(_USER_LEVEL)
    unit = Adjacency(_USER_SENTENCES, ContributionBound(entity_users, 1 if entity_users else 0))
    case = own_case(f"{mechanism}, reach {entity_users}", event, unit, ROUNDS, DELTA)
    claimed = as_published.epsilon_as_published(_USER_LEVEL, ROUNDS, DELTA) if entity_users == 0 else None
    yield mechanism, entity_users, replace(case, as_published=claimed)


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
    gaussian = finding.audit.gaussian
    return [
        _upper(finding.case.as_published),
        _upper(finding.epsilon_proven if finding.case.proven else None),
        _lower(finding.epsilon_lower),
        _lower(gaussian.epsilon if gaussian else None),
        _lower(finding.epsilon_lower_model),
        str(finding.audit.trials),
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
