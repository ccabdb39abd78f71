"""Run every attack on finished runs, and say which contradicts what a run's ledger proves.

The table :data:`ATTACKS` names the attacks: functions of an open run, a random stream, the options and an observer,
that return a JSON object. One that may contradict the proof has ``verdict`` in its object. The probability that any
attack on any run is called ``beyond`` although all proofs hold is at most ``Options.failure``, which all of them share.

Results are kept in a folder, one file per run and attack and one for the likelihoods that attacks share, and read
again if the run, the corpora, the references and the options are the same; so a stopped command goes on where it was.
Files are for their owner alone.

>>> chosen(["users"])
('users',)
>>> chosen(["everything"])
Traceback (most recent call last):
fl_sim.config.ConfigError: attack is 'everything'; allowed: users, sentences, canaries, entities, entity, user
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fl_sim.auditing.leakage.attacked_run import (
    AttackedRun,
    KnownResults,
    NotApplicableError,
    Options,
    keep_record,
    kept_record,
)
from fl_sim.auditing.leakage.canary_exposure import attack_canaries
from fl_sim.auditing.leakage.entity_attacks import attack_entities
from fl_sim.auditing.leakage.membership import attack_sentences, attack_users
from fl_sim.auditing.leakage.one_name import attack_entity, attack_user
from fl_sim.clients.frozen_states import Observer
from fl_sim.config import ConfigError
from fl_sim.reporting.pages.leak_page import leak_page
from fl_sim.strategies.primitives import streams

Attack = Callable[[AttackedRun, np.random.Generator, Options, Observer], dict[str, Any]]
Progress = Callable[[str], AbstractContextManager[Observer]]

ATTACKS: dict[str, Attack] = {
    "users": attack_users,
    "sentences": attack_sentences,
    "canaries": attack_canaries,
    "entities": attack_entities,
    "entity": attack_entity,
    "user": attack_user,
}
ONE_NAME = ("entity", "user")
"""Attacks that need a name, which is given in the option of the same name."""

WITHOUT_VERDICT = ("entities", *ONE_NAME)
"""Attacks whose records do not depend on the probability of a false alarm."""

FORMAT = 2
"""Version of the records; raised when equal settings give other figures."""

PRIVATE = (
    "These figures are computed from private text, without noise: they are for the corpus's owner, and no ε covers "
    "their publication."
)
_EPSILONS = ("epsilon_any", "epsilon_stated", "epsilon_user")


@dataclass(frozen=True)
class Leakage:
    """Hold what all attacks found.

    Attributes:
        runs: one JSON object per run, with the attacks' records under ``attacks``.
        options: of all attacks.
    """

    runs: tuple[dict[str, Any], ...]
    options: Options

    def in_state(self, state: str) -> list[str]:
        """Return the attacks with a verdict, each as ``run: attack``."""
        return [
            f"{run['run']}: {name}"
            for run in self.runs
            for name, record in run["attacks"].items()
            if (record.get("verdict") or {}).get("state") == state
        ]

    @property
    def holds(self) -> bool:
        """Return whether no attack is beyond or above its bound."""
        return not self.in_state("beyond") and not self.in_state("above")

    def page(self) -> str:
        """Return everything as an HTML page of one file, with pictures."""
        return leak_page(self.record())

    def record(self) -> dict[str, Any]:
        """Return everything as one JSON object."""
        return {
            "runs": list(self.runs),
            "options": self.options.record(),
            "beyond": self.in_state("beyond"),
            "above": self.in_state("above"),
            "holds": self.holds,
            "note": PRIVATE,
        }


def _silent(words: str) -> AbstractContextManager[Observer]:
    return nullcontext(lambda done, total: None)


def leak(
    runs: Sequence[Path | str],
    options: Options | None = None,
    attacks: Sequence[str] | None = None,
    raw: Path | str | None = None,
    out: Path | str | None = None,
    progress: Progress = _silent,
    known: KnownResults | None = None,
) -> Leakage:
    """Attack runs, one after the other.

    Args:
        runs: run folders.
        options: of all attacks; None for the defaults.
        attacks: names in :data:`ATTACKS`; None for all that make sense for a run.
        raw: a corpus whose text is attacked in place of that of runs on its de-identified copy.
        out: a folder in which results are kept and found; None keeps nothing.
        progress: gives a context with an observer for every attack, whose name it is called with.
        known: results that these runs share with runs attacked earlier in this process.

    Raises:
        ConfigError: there is no run, no such attack, or an attack that was asked for makes no sense for a run.
        ResultsError, LedgerError, CorpusError, ModelError: a run cannot be opened.
    """
    given = options or Options()
    names = chosen(attacks, given)
    if not runs:
        raise ConfigError("runs is empty; allowed: at least one run folder")
    if out is not None and Path(out).exists() and not Path(out).is_dir():
        raise ConfigError(f"out is {out}; allowed: a folder")
    shared = replace(given, failure=given.failure / (len(runs) * len(names)))
    strict = attacks is not None or any(name in ONE_NAME for name in names)
    kept, known = None if out is None else Path(out), known or KnownResults()
    found = [
        _attacked(AttackedRun.open(Path(path), raw, kept, known), shared, names, progress, strict=strict)
        for path in runs
    ]
    return Leakage(tuple(found), given)


def chosen(attacks: Sequence[str] | None, options: Options | None = None) -> tuple[str, ...]:
    """Return the names of the attacks to run, each once; by default all on everybody, or those on what is named.

    Raises:
        ConfigError: there is no such attack, or it needs a name that is not given.
    """
    given = options or Options()
    named = [name for name in ONE_NAME if getattr(given, name) is not None]
    default = named or [name for name in ATTACKS if name not in ONE_NAME]
    names = tuple(dict.fromkeys(default if attacks is None else [*attacks, *named]))
    for name in names:
        if name not in ATTACKS:
            raise ConfigError(f"attack is '{name}'; allowed: {', '.join(ATTACKS)}")
        if name in ONE_NAME and name not in named:
            raise ConfigError(f"attack is '{name}', and no {name} is named; allowed: with --{name}")
    if not names:
        raise ConfigError(f"attacks is empty; allowed: {', '.join(ATTACKS)}")
    return names


def _attacked(
    run: AttackedRun, options: Options, names: Sequence[str], progress: Progress, *, strict: bool
) -> dict[str, Any]:
    """Return the record of one run; attacks that make no sense for it are left out with the reason, or refused."""
    records: dict[str, Any] = {}
    for name in names:
        settings = asdict(options)
        if name in WITHOUT_VERDICT:
            del settings["failure"]
        key = {"format": FORMAT, "attack": name, "options": settings}
        file = run.file_of(key, ".json", (*options.references, *options.without))
        record = kept_record(file)
        if record is None:
            try:
                record = _timed(run, name, options, progress)
            except NotApplicableError as error:
                if strict:
                    raise
                record = {"left_out": str(error)}
            keep_record(file, record)
        records[name] = record
    return {**_facts(run), "attacks": records}


def _timed(run: AttackedRun, name: str, options: Options, progress: Progress) -> dict[str, Any]:
    """Run an attack; return its record, with the seconds that it took."""
    rng, begun = streams.generator(options.seed, f"leak-{name}"), time.perf_counter()
    with progress(f"{run.folder.path}, {name}") as observer:
        record = ATTACKS[name](run, rng, options, observer)
    return {**record, "seconds": time.perf_counter() - begun}


def _facts(run: AttackedRun) -> dict[str, Any]:
    """Return what identifies a run and its guarantee."""
    result = run.folder.result or {}
    return {
        "run": str(run.folder.path),
        "strategy": run.config.privacy.strategy,
        "task": run.config.task,
        "model": run.config.model.name,
        "corpus": str(run.config.corpus.path),
        "raw_text": run.has_raw_text,
        "rounds": run.folder.last_round,
        "delta": run.config.privacy.delta,
        "epsilon": {name: result[name] for name in _EPSILONS if name in result},
        "mention_graph": run.bounds.guarantee.mention_graph,
    }
