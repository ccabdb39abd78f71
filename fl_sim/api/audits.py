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
from typing import TYPE_CHECKING, Literal

from fl_sim.api.accounts import EntityBound, adjacencies
from fl_sim.strategies.accounting.accountant import Clipping, RoundEvent, Strategy
from fl_sim.strategies.accounting.adjacency import NO_ENTITY, Adjacency, PrivacyError

if TYPE_CHECKING:
    from fl_sim.auditing.cases import Case, Finding
    from fl_sim.strategies.accounting.paper_model import PublishedSettings

AuditedUnit = Literal["user", "entity", "user_entity"]
UNITS: tuple[AuditedUnit, ...] = ("user", "entity", "user_entity")
"""Who ε protects: the user, the entity, or both at once."""

DEFECTS = ("variance-as-std", "fixed-cohort", "clip-before-adam")
"""Where the published code departs from its paper (docs/audit.md)."""

_CLIP = 0.1
_ADAM_PARAMETERS, _ADAM_RATE = 124_439_808, 5e-5  # GPT-2 small; AdamW's usual rate for fine-tuning


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
    defects: Sequence[str] = (),
    trials: int = 20_000,
    seed: int = 0,
    confidence: float = 0.95,
    pin_noise: bool = False,
    progress: Callable[[str], None] = lambda name: None,
) -> list[Finding]:
    """Attack the UeDP paper's algorithm, as stated or as its code ran.

    Args:
        settings: the training as the paper describes it.
        rounds: T.
        delta: δ, in (0, 1).
        entities: |E|, all entities; needed where the code draws the variance as standard deviation. Default: 1.
        entity_users: how many users mention the protected entity; default: all.
        units: whom to audit for.
        as_coded: audit what the authors' code ran.
        defects: as coded, only these of :data:`DEFECTS`; default: all.
        trials: as for :func:`audit`, like all arguments that follow.

    Raises:
        PrivacyError: a value is impossible or missing.
    """
    from fl_sim.auditing.cases import published_case
    from fl_sim.auditing.published_round import AS_CODED, AS_STATED, Defects, adamw_update_norm

    departures = AS_STATED
    if as_coded:
        departures = Defects(**{name.replace("-", "_"): True for name in defects}) if defects else AS_CODED
    if entities is None and departures.variance_as_std:
        raise PrivacyError("entities is missing; allowed: a value is needed with the defect variance-as-std")
    norm = adamw_update_norm(_ADAM_PARAMETERS, _ADAM_RATE, 1, _CLIP) if departures.clip_before_adam else _CLIP
    users = settings.users if entity_users is None else entity_users
    knowers = {"user": 0, "entity": users, "user_entity": users}
    cases = [
        published_case(
            unit,
            settings,
            rounds,
            delta,
            entities=1 if entities is None else entities,
            reach_users=knowers[unit],
            user=unit != "entity",
            defects=departures,
            user_clip=_CLIP,
            update_norm=norm,
        )
        for unit in units
        if knowers[unit] or unit == "user"
    ]
    return _findings(cases, trials, seed, confidence, pin_noise, progress)


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
