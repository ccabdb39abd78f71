"""Compare every mechanism with its claim: claimed ε, our ε and audited lower bound, for entities of 1 to all users.

The federation is that of the published evaluation on CoNLL-2003 (946 users, 50 of them expected per round, 14,040
sentences, 11,176 of them with an entity; 7,610 distinct entities in the training split): T = 50, δ = 1e-5, z = 2 for
the published algorithm and its user-level baseline. Our mechanisms have z = 1 and ŵ = 15, so that their noise is that
of the user-level baseline at z = 1, and use 5 % of the sentences in expectation per round.

>>> mechanism, entity_users, case = next(cases())
>>> mechanism, entity_users, round(case.as_published, 3)
('published f_E+, as stated', 0, 0.519)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from fl_sim.auditing.cases import Case, Finding, examine, own_case, published_case
from fl_sim.auditing.published_round import AS_CODED, Defects, adamw_update_norm
from fl_sim.formats import numbered, round_down, round_up
from fl_sim.strategies.accounting import paper_model as as_published
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.paper_model import PublishedSettings

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
