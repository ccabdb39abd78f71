"""Attack mechanisms, for a lower bound on ε, and finished runs, for what their models give away.

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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fl_sim.api.accounts import EntityBound, adjacencies, check_settings, round_event
from fl_sim.api.runs import Run, folder_of
from fl_sim.config import LARGEST_SEED
from fl_sim.storage.run_folder import listed
from fl_sim.strategies.accounting.accountant import Strategy
from fl_sim.strategies.accounting.adjacency import Adjacency, PrivacyError

if TYPE_CHECKING:
    from fl_sim.auditing.cases import Case, Finding
    from fl_sim.auditing.leakage.leak import Leakage, Progress
    from fl_sim.auditing.ledger_audit import LedgerAudit
    from fl_sim.auditing.one_run_audit import OneRunAudit
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
    user_sentences: float = math.inf,
    entity: EntityBound = (1, 1),
    units: Sequence[AuditedUnit] = UNITS,
    trials: int = 20_000,
    seed: int = 0,
    confidence: float = 0.95,
    pin_noise: bool = False,
    progress: Callable[[str], None] = lambda name: None,
    **mechanism: Any,
) -> list[Finding]:
    """Attack a mechanism on its worst-case corpora, as ``fl-sim audit mechanism`` does.

    Args:
        strategy: The mechanism that trains: uedp, or user_level.
        noise_multiplier: The noise multiplier z: the standard deviation of the noise on the sum / the user clip.
        rounds: The number of rounds T.
        delta: The δ at which ε is stated, in (0, 1).
        user_sentences: The bound n' on the protected user's sentences.
        entity: The contribution bound of the protected entity.
        units: Whom to audit for; units that the bounds leave out are skipped.
        trials: The number of trainings per corpus.
        seed: The seed of all random draws.
        confidence: The probability that a bound holds, in (0, 1).
        pin_noise: Also bound the true noise, which takes seconds.
        progress: Called with the name of each case before it starts.
        mechanism: The other settings of a round, as for :func:`fl_sim.account`: q_u, q_e, q_s, user_cap and clipping.

    Returns:
        One finding per unit: ``epsilon_lower``, ``epsilon_proven``, ``holds`` and :meth:`record`.

    Raises:
        PrivacyError: a value is impossible.
    """
    from fl_sim.auditing.cases import own_case

    if unknown := set(units) - set(UNITS):
        raise PrivacyError(f"unit is {unknown.pop()!r}; allowed: {', '.join(UNITS)}")
    check_settings(mechanism)
    event = round_event(strategy, noise_multiplier=noise_multiplier, **mechanism)
    user, both = adjacencies(user_sentences, entity)
    known = {"user": user, "entity": Adjacency(0, both.entity_bound), "user_entity": both}
    cases = (
        (own_case(unit, event, known[unit], rounds, delta), trials)
        for unit in UNITS
        if unit in units
        and (known[unit].user_sentences > 0 or unit == "entity")
        and (known[unit].entity_bound.total or unit == "user")
    )
    return _findings(cases, seed, confidence, pin_noise, progress)


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
        settings: The training as the paper describes it.
        rounds: The number of rounds T.
        delta: The δ at which ε is stated, in (0, 1).
        entities: The number of entities |E|; needed as coded.
        entity_users: The number of users that mention the protected entity (all by default).
        units: Whom to audit for.
        as_coded: Audit the noise of the authors' code, whose standard deviation is σ² in place of σ.
        trials: The number of trainings per corpus; at most 2,000 for an entity of more than 100 users, whose rounds are
            slow.
        seed: The seed of all random draws.
        confidence: The probability that a bound holds, in (0, 1).
        pin_noise: Also bound the true noise, which takes seconds.
        progress: Called with the name of each case before it starts.

    Raises:
        PrivacyError: a value is impossible or missing.
    """
    from fl_sim.auditing.cases import published_case

    if as_coded and entities is None:
        raise PrivacyError("entities is missing; allowed: a value is needed as coded")
    users = settings.users if entity_users is None else entity_users
    knowers = {"user": 0, "entity": users, "user_entity": users}
    cases = (
        published_case(
            unit,
            settings,
            rounds,
            delta,
            entity_users=knowers[unit],
            user=unit != "entity",
            entities=entities or 1,
            as_coded=as_coded,
        )
        for unit in units
        if knowers[unit] or unit == "user"
    )
    return _findings(((case, case.affordable(trials)) for case in cases), seed, confidence, pin_noise, progress)


def audit_table(
    *,
    trials: int = 20_000,
    seed: int = 0,
    confidence: float = 0.95,
    pin_noise: bool = False,
    progress: Callable[[str], None] = lambda name: None,
) -> list[Finding]:
    """Attack every mechanism of docs/audit.md, as ``fl-sim audit table`` does.

    Args:
        trials: The number of trainings per corpus; slow rows have fewer.
        seed: The seed of all random draws.
        confidence: The probability that the bounds of a row hold, in (0, 1).
        pin_noise: Also bound the true noise of our mechanisms, which takes seconds.
        progress: Called with the name of each case before it starts.

    Raises:
        PrivacyError: a value is impossible.
    """
    from fl_sim.auditing.cases import cases

    return _findings(((case, case.affordable(trials)) for case in cases()), seed, confidence, pin_noise, progress)


def audit_one_run(
    folder: str | Path,
    *,
    canaries: int = 256,
    rounds: int | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    seed: int = 0,
    confidence: float = 0.95,
) -> OneRunAudit:
    """Plant canary users in one real training, as ``fl-sim audit one-run`` does.

    Args:
        folder: An existing folder for the corpus and the run.
        canaries: The number of canary users, each included with probability ½.
        rounds: The number of rounds T; that of the audit's own run by default.
        delta: The δ at which ε is stated; that of the audit's own run by default.
        noise_multiplier: The noise multiplier z; that of the audit's own run by default.
        seed: The seed of the canaries, of the model and of the training.
        confidence: The probability that the bound holds, in (0, 1).

    Raises:
        PrivacyError: a value is impossible.
    """
    from fl_sim.auditing.one_run_audit import audit_training

    _check_seed(seed)
    wanted = {"rounds": rounds, "privacy.noise_multiplier": noise_multiplier, "privacy.delta": delta}
    overrides = {key: value for key, value in wanted.items() if value is not None}
    return audit_training(Path(folder), canaries=canaries, seed=seed, confidence=confidence, overrides=overrides)


def audit_real_rounds(
    cases: Sequence[str] = (),
    *,
    canaries: int = 256,
    rounds: int = 30,
    delta: float = 1e-5,
    noise_multiplier: float | None = None,
    seed: int = 0,
    confidence: float = 0.95,
    progress: Callable[[str], None] = lambda name: None,
) -> list[CanaryAudit]:
    """Train a real model once per case with random canaries, as ``fl-sim audit rounds`` does.

    Args:
        cases: Train this case of :data:`fl_sim.auditing.real_rounds.canary_cases.CASES`; all by default.
        canaries: The number of canaries, each included with probability ½.
        rounds: The number of rounds T.
        delta: The δ at which ε is stated, in (0, 1).
        noise_multiplier: The noise multiplier z; that of the case by default.
        seed: The seed of all random draws.
        confidence: The probability that the bounds of one case hold together, in (0, 1).
        progress: Called with each case and each round.

    Raises:
        PrivacyError: a value is impossible.
    """
    from fl_sim.auditing.real_rounds.canary_cases import CASES, audit_case

    _check_seed(seed)
    return [
        audit_case(
            name,
            canaries=canaries,
            rounds=rounds,
            delta=delta,
            noise_multiplier=noise_multiplier,
            seed=seed,
            confidence=confidence,
            progress=partial(lambda name, number: progress(f"{name}, round {number} of {rounds}"), name),
        )
        for name in cases or tuple(CASES)
    ]


def audit_sensitivity(*, seed: int = 0, progress: Callable[[str], None] = lambda name: None) -> list[RoundDifference]:
    """Compare real rounds on adjacent corpora without noise, as ``fl-sim audit sensitivity`` does.

    Args:
        seed: The seed of all random draws.
        progress: Called with each case.

    Raises:
        PrivacyError: the seed is out of range.
    """
    from fl_sim.auditing.real_rounds.round_sensitivity import SENSITIVITY_CASES, measure_rounds

    _check_seed(seed)
    differences: list[RoundDifference] = []
    for name in SENSITIVITY_CASES:
        progress(name)
        differences += measure_rounds(name, seed=seed)
    return differences


def audit_ledgers(
    runs: Sequence[str | Path], *, seed: int = 0, progress: Callable[[str], None] = lambda name: None
) -> list[LedgerAudit]:
    """Check the ledgers of run folders against their records and metrics, as ``fl-sim audit ledger`` does.

    Args:
        runs: The folders of the runs.
        seed: The seed of the simulated attack.
        progress: Called with each folder.

    Raises:
        ResultsError: a folder is no run folder.
        PrivacyError: the seed is out of range.
    """
    from fl_sim.auditing.ledger_audit import audit_ledger

    _check_seed(seed)
    audits = []
    for folder in runs:
        progress(str(folder))
        audits.append(audit_ledger(str(folder), seed=seed))
    return audits


def leak(
    runs: Sequence[Run | str | Path],
    *,
    attacks: Sequence[str] | None = None,
    entity: str | None = None,
    raw: str | Path | None = None,
    thorough: bool = False,
    max_users: int = 500,
    sentences_per_user: int = 20,
    secrets: int | None = None,
    entities: int | None = None,
    candidates: int | None = None,
    seed: int = 0,
    show_names: bool = False,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda words: None,
) -> Leakage:
    """Attack finished runs, as ``fl-sim leak`` does.

    Args:
        runs: at least one, each open or as the path of its folder.
        attacks: names of "users", "canaries", "entities"; by default all that make sense for a run.
        entity: attack this name alone, in all its mentions.
        raw: the corpus from which that of the runs was de-identified; its text is attacked.
        thorough: attack more names, and rank names and canaries among more, in about three times the time.
        max_users: attack at most so many users of each side.
        sentences_per_user: read at most so many sentences of a user, or of the named entity.
        secrets: rank each canary among so many secrets of its distribution (200 by default, 1,000 with thorough).
        entities: attack at most so many names (100 by default, 200 with thorough).
        candidates: rank each name among so many of its kind (25 by default, 50 with thorough).
        seed: the seed of the attacked units and of the intervals.
        show_names: name entities and users; such output is private.
        progress: gives a context with an observer for each attack, whose name it is called with.
        say: called with what the attacks on a run will take, before them.

    Returns:
        ``runs`` (the results of the attacks on each), ``holds`` (no attack reached more than its bound), ``record()``
        and ``page()``. The figures are for the corpus's owner.

    Raises:
        ConfigError: an option is out of range, or an attack that was asked for makes no sense for a run.
        ResultsError: a run has no model, its files or its corpus have changed.
        LedgerError: a ledger cannot be trusted.
    """
    from fl_sim.auditing.leakage.attacked_run import Options
    from fl_sim.auditing.leakage.leak import attack_runs

    sizes = Options() if thorough else Options.quick()
    options = Options(
        seed=seed,
        max_users=max_users,
        sentences_per_user=sentences_per_user,
        secrets=sizes.secrets if secrets is None else secrets,
        entities=sizes.entities if entities is None else entities,
        candidates=sizes.candidates if candidates is None else candidates,
        entity=entity,
        show_names=show_names,
    )
    folders = [folder_of(run).path for run in listed(runs)]
    watched = {} if progress is None else {"progress": progress}
    return attack_runs(folders, options, attacks, raw, say=say, **watched)


def _check_seed(seed: int) -> None:
    """Check that a run could have this seed; PyTorch takes no larger one."""
    if not 0 <= seed <= LARGEST_SEED:
        raise PrivacyError(f"seed is {seed}; allowed: an integer in [0, {LARGEST_SEED}]")


def _findings(
    cases: Iterable[tuple[Case, int]],
    seed: int,
    confidence: float,
    pin_noise: bool,
    progress: Callable[[str], None],
) -> list[Finding]:
    """Examine each case with its number of trials."""
    from fl_sim.auditing.cases import examine

    _check_seed(seed)
    findings = []
    for case, trials in cases:
        progress(case.name)
        findings.append(examine(case, trials=trials, seed=seed, confidence=confidence, pin_noise=pin_noise))
    if not findings:
        raise PrivacyError("the bounds leave nobody to audit for; allowed: a user or an entity with a sentence")
    return findings
