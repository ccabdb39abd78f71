"""Attack a mechanism: a lower bound on ε, beside what is claimed for it.

>>> import fl_sim
>>> (finding,) = fl_sim.audit(
...     "user_level", noise_multiplier=2.0, user_sentences=1, units=("user",), trials=2000, confidence=0.9
... )
>>> finding.holds, finding.epsilon_lower <= finding.epsilon_proven
(True, True)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal

from fl_sim.api.accounts import EntityBound, adjacencies
from fl_sim.strategies.accounting.accountant import Clipping, RoundEvent, Strategy
from fl_sim.strategies.accounting.adjacency import NO_ENTITY, Adjacency, PrivacyError

if TYPE_CHECKING:
    from fl_sim.auditing.cases import Case, Finding
    from fl_sim.auditing.ledger_audit import LedgerAudit
    from fl_sim.auditing.real_rounds.canary_audit import CanaryAudit
    from fl_sim.auditing.real_rounds.round_sensitivity import RoundDifference
    from fl_sim.strategies.accounting.paper_model import PublishedSettings

AuditedUnit = Literal["user", "entity", "user_entity"]
UNITS: tuple[AuditedUnit, ...] = ("user", "entity", "user_entity")
"""Who ε protects: the user, the entity, or both at once."""


def audit(
    strategy: Strategy = "uedp",
    *,
    noise_multiplier: float,
    rounds: int = 1,
    delta: float = 1e-5,
    q_u: float = 1.0,
    q_e: float = 1.0,
    q_s: float = 1.0,
    user_cap: float = 1.0,
    clipping: Clipping = "sentence",
    user_sentences: float = math.inf,
    entity: EntityBound = (1, 1),
    companions: int = 0,
    units: Sequence[AuditedUnit] = UNITS,
    mutation: str | None = None,
    trials: int = 20_000,
    seed: int = 0,
    confidence: float = 0.95,
    pin_noise: bool = False,
    progress: Callable[[str], None] = lambda name: None,
) -> list[Finding]:
    """Attack a mechanism on its worst-case corpora, as ``fl-sim audit --strategy`` does.

    Args:
        strategy: "uedp" or "user_level".
        noise_multiplier: z; as for :func:`fl_sim.account`, like all settings of the mechanism.
        companions: how many other entities each sentence of the entity mentions.
        units: whom to audit for; units that the bounds leave out are skipped.
        mutation: breaks the mechanism on purpose (docs/audit.md).
        trials: trainings per corpus.
        seed: of all draws.
        confidence: that a bound holds, in (0, 1).
        pin_noise: also bound the true noise, which takes seconds.
        progress: called with the name of each case before it starts.

    Returns:
        One finding per unit: ``epsilon_lower``, ``epsilon_proven``, ``holds`` and :meth:`record`.

    Raises:
        PrivacyError: a value is impossible.
    """
    event = RoundEvent(strategy, noise_multiplier, q_u, q_e, q_s, user_cap, clipping)
    cases = _own_cases(event, rounds, delta, _units(units, user_sentences, entity), mutation, companions)
    return _findings(cases, trials, seed, confidence, pin_noise, progress)


def audit_published(
    settings: PublishedSettings,
    *,
    rounds: int = 1,
    delta: float = 1e-5,
    entities: int | None = None,
    entity_users: int | None = None,
    units: Sequence[AuditedUnit] = UNITS,
    as_coded: bool = False,
    trials: int = 20_000,
    seed: int = 0,
    confidence: float = 0.95,
    pin_noise: bool = False,
    progress: Callable[[str], None] = lambda name: None,
) -> list[Finding]:
    """Attack the UeDP paper's algorithm, with the noise that the paper states or that its code draws.

    Args:
        settings: the training as the paper describes it.
        rounds: T.
        delta: δ, in (0, 1).
        entities: |E|, all entities; needed as coded.
        entity_users: how many users mention the protected entity; default: all.
        units: whom to audit for.
        as_coded: audit the noise of the authors' code, whose standard deviation is σ² in place of σ.
        trials: as for :func:`audit`, like all arguments that follow; at most 2,000 for an entity of more than 100
            users, whose rounds are slow.

    Raises:
        PrivacyError: a value is impossible or missing.
    """
    from fl_sim.auditing.cases import WIDE, WIDE_TRIALS, published_case

    if as_coded and entities is None:
        raise PrivacyError("entities is missing; allowed: a value is needed as coded")
    users = settings.users if entity_users is None else entity_users
    knowers = {"user": 0, "entity": users, "user_entity": users}
    findings = []
    for unit in units:
        if knowers[unit] or unit == "user":
            case = published_case(
                unit,
                settings,
                rounds,
                delta,
                entity_users=knowers[unit],
                user=unit != "entity",
                entities=entities or 1,
                as_coded=as_coded,
            )
            of_case = min(trials, WIDE_TRIALS) if knowers[unit] > WIDE else trials
            findings += _findings([case], of_case, seed, confidence, pin_noise, progress)
    return findings


def audit_real_rounds(
    cases: Sequence[str] = (),
    *,
    canaries: int = 256,
    rounds: int = 30,
    delta: float = 1e-5,
    noise_multiplier: float | None = None,
    mutation: str | None = None,
    seed: int = 0,
    confidence: float = 0.95,
    progress: Callable[[str], None] = lambda name: None,
) -> list[CanaryAudit]:
    """Train a real model once per case with random canaries, as ``fl-sim audit --random-canaries`` does.

    Args:
        cases: keys of :data:`fl_sim.auditing.real_rounds.canary_cases.CASES`; default: all.
        canaries: m, each included with probability ½.
        rounds: T.
        delta: δ.
        noise_multiplier: z; None for that of the case.
        mutation: breaks the product on purpose (:data:`fl_sim.auditing.real_rounds.round_faults.FAULTS`).
        seed: of all draws.
        confidence: with which the bounds of one case hold together.
        progress: called with each case and each round.

    Raises:
        PrivacyError: a value is impossible.
    """
    from fl_sim.auditing.real_rounds.canary_cases import CASES, audit_case

    audits = []
    for name in cases or tuple(CASES):
        with _broken(mutation):
            audits.append(
                audit_case(
                    name,
                    canaries=canaries,
                    rounds=rounds,
                    delta=delta,
                    noise_multiplier=noise_multiplier,
                    seed=seed,
                    confidence=confidence,
                    progress=_of_rounds(progress, name, rounds),
                )
            )
    return audits


def audit_sensitivity(
    *, mutation: str | None = None, seed: int = 0, progress: Callable[[str], None] = lambda name: None
) -> list[RoundDifference]:
    """Compare real rounds on adjacent corpora without noise, as ``fl-sim audit --sensitivity`` does.

    Args:
        mutation: breaks the product on purpose, as for :func:`audit_real_rounds`.
        seed: of all draws.
        progress: called with each case.

    Raises:
        PrivacyError: there is no such mutation.
    """
    from fl_sim.auditing.real_rounds.round_sensitivity import SENSITIVITY_CASES, measure_rounds

    with _broken(mutation):
        return [
            difference
            for name in SENSITIVITY_CASES
            for difference in measure_rounds(name, seed=seed, progress=progress)
        ]


def audit_ledgers(
    folders: Sequence[str], *, seed: int = 0, progress: Callable[[str], None] = lambda name: None
) -> list[LedgerAudit]:
    """Check the ledgers of run folders against their records and metrics, as ``fl-sim audit --ledger`` does.

    Args:
        folders: run folders.
        seed: of the simulated attack.
        progress: called with each folder.

    Raises:
        ResultsError: a folder is no run folder.
    """
    from fl_sim.auditing.ledger_audit import audit_ledger

    audits = []
    for folder in folders:
        progress(str(folder))
        audits.append(audit_ledger(folder, seed=seed))
    return audits


def _of_rounds(progress: Callable[[str], None], name: str, rounds: int) -> Callable[[int], None]:
    """Return ``progress`` as a function of the round of the case ``name``."""
    return lambda number: progress(f"{name}, round {number} of {rounds}")


def _broken(mutation: str | None) -> AbstractContextManager[None]:
    """Return a block in which the product has the fault ``mutation``; None for the intact product."""
    if mutation is None:
        return nullcontext()
    from fl_sim.auditing.real_rounds.round_faults import fault

    return fault(mutation)


def _units(units: Sequence[AuditedUnit], user_sentences: float, entity: EntityBound) -> dict[AuditedUnit, Adjacency]:
    """The adjacency of each unit that the bounds do not leave empty."""
    user, both = adjacencies(user_sentences, entity)
    known: dict[AuditedUnit, Adjacency] = {
        "user": user,
        "entity": Adjacency(0, both.entity_bound),
        "user_entity": both,
    }
    for unit in units:
        if unit not in known:
            raise PrivacyError(f"unit is {unit!r}; allowed: {', '.join(known)}")
    return {
        unit: adjacency
        for unit, adjacency in known.items()
        if unit in units
        and (adjacency.user_sentences > 0 or unit == "entity")
        and (adjacency.entity_bound.total or unit == "user")
    }


def _own_cases(
    event: RoundEvent,
    rounds: int,
    delta: float,
    protected: dict[AuditedUnit, Adjacency],
    mutation: str | None,
    companions: int,
) -> Iterable[Case]:
    from fl_sim.auditing.cases import own_case

    return [
        own_case(
            unit,
            event,
            adjacency,
            rounds,
            delta,
            mutation=mutation,
            companions=companions if adjacency.entity_bound != NO_ENTITY else 0,
        )
        for unit, adjacency in protected.items()
    ]


def _findings(
    cases: Iterable[Case], trials: int, seed: int, confidence: float, pin_noise: bool, progress: Callable[[str], None]
) -> list[Finding]:
    from fl_sim.auditing.cases import examine

    findings = []
    for case in cases:
        progress(case.name)
        findings.append(examine(case, trials=trials, seed=seed, confidence=confidence, pin_noise=pin_noise))
    return findings
