"""Run every attack on finished runs, and say which contradicts what a run's ledger proves.

The table :data:`ATTACKS` names the attacks: functions of an open run, the options and an observer. The probability
that any attack on any run is called ``beyond`` although all proofs hold is at most ``Options.failure``, which all of
them share.

>>> chosen(["everything"])
Traceback (most recent call last):
fl_sim.config.ConfigError: attack is 'everything'; allowed: users, canaries, entities
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fl_sim.auditing.leakage.attacked_run import AttackedRun, NotApplicableError, Options
from fl_sim.auditing.leakage.canary_exposure import CanaryAttack, attack_canaries
from fl_sim.auditing.leakage.membership import Sample, UserAttack, attack_users, log_likelihoods
from fl_sim.auditing.leakage.name_ranking import NameAttack, attack_names
from fl_sim.auditing.leakage.rates import Verdict
from fl_sim.clients.frozen_states import Observer
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.canaries import read_canaries
from fl_sim.formats import duration
from fl_sim.reporting.run_facts import RunFacts, read_facts
from fl_sim.storage.run_folder import RunFolder

Attack = Callable[[AttackedRun, Options, Observer], UserAttack | CanaryAttack | NameAttack]
Progress = Callable[[str], AbstractContextManager[Observer]]

ATTACKS: dict[str, Attack] = {"users": attack_users, "canaries": attack_canaries, "entities": attack_names}

PRIVATE = (
    "These figures are computed from private text, without noise: they are for the corpus's owner, and no ε covers "
    "their publication."
)
_TIMED = 64  # texts
_OF_AN_ATTACK = 2.0  # seconds, for what it proves and its intervals
_EPSILONS = ("epsilon_any", "epsilon_stated", "epsilon_user")  # the first that a run has leads


@dataclass(frozen=True)
class RunLeakage:
    """Hold what the attacks found in one run.

    Attributes:
        facts: what its folder says, as ``fl-sim report`` shows it.
        raw_text: whether it was attacked with the text from before names were removed.
        known: what its guarantee takes as known.
        left_out: why attacks make no sense for the run, by name.
        seconds: how long each attack took, by name.
        users, canaries, entities: the results; None where an attack was not asked for or makes no sense.
    """

    folder: RunFolder
    config: RunConfig
    facts: RunFacts
    raw_text: bool
    known: str
    left_out: Mapping[str, str]
    seconds: Mapping[str, float]
    users: UserAttack | None = None
    canaries: CanaryAttack | None = None
    entities: NameAttack | None = None

    @property
    def epsilon(self) -> dict[str, float]:
        """Return the run's ε by their names, the one that leads first; none that its ledger does not support."""
        return {name: self.facts.epsilon[name] for name in _EPSILONS if name in self.facts.epsilon}

    @property
    def attacks(self) -> dict[str, UserAttack | CanaryAttack | NameAttack | str]:
        """Return the result of each attack by name, or the reason why it was left out, in the order of ATTACKS."""
        found = {"users": self.users, "canaries": self.canaries, "entities": self.entities, **self.left_out}
        return {name: attack for name, attack in found.items() if attack is not None}

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """Return the verdict of each attack that has one, by name."""
        judged = {"users": self.users, "canaries": self.canaries}
        return {name: result.verdict for name, result in judged.items() if result is not None}

    def record(self) -> dict[str, object]:
        """Return everything as one JSON object, with the attacks under ``attacks``."""
        attacks = {
            name: {"left_out": attack} if isinstance(attack, str) else attack.record() | {"seconds": self.seconds[name]}
            for name, attack in self.attacks.items()
        }
        config, utility = self.config, self.facts.utility
        return {
            "run": str(self.folder.path),
            "strategy": config.privacy.strategy,
            "task": config.task,
            "model": config.model.name,
            "corpus": str(config.corpus.path),
            "raw_text": self.raw_text,
            "rounds": self.folder.last_round,
            "delta": config.privacy.delta,
            "epsilon": self.epsilon,
            "known": self.known,
            "utility": {"metric": utility.metric, "initial": utility.initial, "final": utility.final},
            "seconds": self.facts.seconds,
            "attacks": attacks,
        }


@dataclass(frozen=True)
class Leakage:
    """Hold what all attacks found, one result per run, and their options."""

    runs: tuple[RunLeakage, ...]
    options: Options

    def in_state(self, state: str) -> list[str]:
        """Return the attacks whose verdict has this state, each as ``run: attack``."""
        return [
            f"{run.folder.path}: {name}"
            for run in self.runs
            for name, verdict in run.verdicts.items()
            if verdict.state == state
        ]

    @property
    def holds(self) -> bool:
        """Return whether no attack is beyond or above its bound."""
        return not self.in_state("beyond") and not self.in_state("above")

    def page(self) -> str:
        """Return everything as an HTML page of one file, with pictures."""
        from fl_sim.auditing.leakage.leak_page import leak_page

        return leak_page(self)

    def record(self) -> dict[str, object]:
        """Return everything as one JSON object."""
        return {
            "runs": [run.record() for run in self.runs],
            "options": self.options.record(),
            "beyond": self.in_state("beyond"),
            "above": self.in_state("above"),
            "holds": self.holds,
            "note": PRIVATE,
        }


def attack_runs(
    runs: Sequence[Path | str],
    options: Options | None = None,
    attacks: Sequence[str] | None = None,
    raw: Path | str | None = None,
    progress: Progress = lambda words: nullcontext(lambda done, total: None),
    say: Callable[[str], None] = lambda words: None,
) -> Leakage:
    """Attack runs, one after the other.

    The arguments are those of :func:`fl_sim.leak`. By default the attacks are all that make sense for a run, or
    ``entities`` where the options name one.

    Raises:
        ConfigError: there is no run, no such attack, or an attack that was asked for makes no sense for a run.
        ResultsError, LedgerError, CorpusError, ModelError: a run cannot be opened.
    """
    given = options or Options()
    names = chosen(attacks, given)
    if not runs:
        raise ConfigError("runs is empty; allowed: at least one run folder")
    shared = replace(given, failure=given.failure / (len(runs) * len(names)))
    strict = attacks is not None or given.entity is not None
    found = []
    for path in runs:
        run = AttackedRun.open(path, raw)
        say(_forecast(run, shared, names))
        found.append(_attacked(run, shared, names, progress, strict=strict))
    return Leakage(tuple(found), given)


def _forecast(run: AttackedRun, options: Options, names: Sequence[str]) -> str:
    """Return in words how long the attacks on a run take on this machine."""
    texts = texts_of(run, options, names)
    seconds = texts * _seconds_of_text(run) + len(names) * _OF_AN_ATTACK
    return f"{run.folder.path}: about {duration(seconds)} ({texts:,} texts to score)"


def texts_of(run: AttackedRun, options: Options, names: Sequence[str]) -> int:
    """Return how many texts the attacks on a run score at most, under both of its models."""
    texts = 0
    if "users" in names:
        for side in (run.members, run.non_members):
            most = np.minimum(side.ownership.sentences_per_user, options.sentences_per_user)
            texts += round(float(most.mean()) * min(options.max_users, len(most)))
    if "canaries" in names and run.corpus.has_canaries:
        planted = read_canaries(run.corpus)
        words = {canary.before for canary in planted.canaries}
        texts += len(words) * min(options.secrets, planted.law.size) + len(planted.canaries)
    if "entities" in names and not run.model.task.classes:
        asked = options.entities if options.entity is None else options.sentences_per_user
        texts += min(asked, run.members.ownership.num_entities) * options.candidates
    return 2 * texts


def _seconds_of_text(run: AttackedRun) -> float:
    """Return the seconds of scoring a text of the run, measured on a few."""
    side = run.members
    ids = np.arange(side.ownership.num_sentences) if side.targets is None else np.flatnonzero(side.targets >= 0)
    few = Sample(side, ids[:_TIMED], np.zeros_like(ids[:_TIMED]))
    log_likelihoods(run.model, few)  # what is set up on first use
    begun = time.perf_counter()
    log_likelihoods(run.model, few)
    return (time.perf_counter() - begun) / max(1, len(few.ids))


def chosen(attacks: Sequence[str] | None, options: Options | None = None) -> tuple[str, ...]:
    """Return the names of the attacks to run, each once; by default all, or ``entities`` where one is named.

    Raises:
        ConfigError: there is no such attack, or none.
    """
    default = tuple(ATTACKS) if options is None or options.entity is None else ("entities",)
    names = default if attacks is None else tuple(dict.fromkeys(attacks))
    for name in names or ("",):
        if name not in ATTACKS:
            raise ConfigError(f"attack is '{name}'; allowed: {', '.join(ATTACKS)}")
    return names


def _attacked(
    run: AttackedRun, options: Options, names: Sequence[str], progress: Progress, *, strict: bool
) -> RunLeakage:
    """Return what is found in one run; attacks that make no sense for it are left out with the reason, or refused."""
    results = dict[str, UserAttack | CanaryAttack | NameAttack]()
    left_out, seconds = dict[str, str](), dict[str, float]()
    for name in names:
        begun = time.perf_counter()
        try:
            with progress(f"{run.folder.path}, {name}") as observer:
                results[name] = ATTACKS[name](run, options, observer)
            seconds[name] = time.perf_counter() - begun
        except NotApplicableError as error:
            if strict:
                raise
            left_out[name] = str(error)
    facts, known = read_facts(run.folder), run.bounds.guarantee.known
    return RunLeakage(
        run.folder,
        run.config,
        facts,
        run.has_raw_text,
        known,
        left_out,
        seconds,
        **results,  # type: ignore[arg-type]
    )
