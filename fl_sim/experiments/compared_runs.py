"""Several runs side by side: ε and what it rests on, utility, paired differences, settings that differ, warnings.

Figures are compared where they may be. ε of runs with another δ, unit or mention graph are other statements, and a
note says so; differences of utility are taken user by user, of runs on the same held-out text.

>>> from pathlib import Path
>>> run = RunFolder(Path("runs/first"), config={"run": {"seed": 3, "privacy": {"q_u": None}}}, environment={})
>>> settings_of(run)
{'seed': 3, 'privacy.q_u': None}
>>> [name_of([Path("a/run"), Path("b/run"), Path("b/other")], number) for number in range(3)]
['a/run', 'b/run', 'other']
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_sim.experiments.held_out_users.bootstrap import are_same_users, paired_difference
from fl_sim.formats import format_delta
from fl_sim.reporting.comparison_words import by_value
from fl_sim.reporting.report import report
from fl_sim.storage.run_folder import ResultsError, RunFolder

FORMAT = 1
"""Version of the record; raised when a reader of an older version would misread it."""

MOST_RUNS = len(string.ascii_uppercase)

UNIT_WORDS = {
    "any": "any user + any entity",
    "stated": "any user + an entity within the stated bound",
    "user": "any user",
}
"""The protected units that lead, in words."""

PROVEN, NO_GUARANTEE, UNTRUSTED, NO_ROUND = "proven", "no guarantee", "not trusted", "no round"
"""The states of a run's ε; ``not trusted`` means that its ledger does not support it."""

_NOT_SETTINGS = ("out", "anchor", "observers", "origin")
_RESOLVED = ("plan", "guarantee")


@dataclass(frozen=True)
class ComparedRun:
    """A run among others.

    Attributes:
        key: a letter, by which tables and notes name it.
        name: the shortest end of its path that no other run shares.
        folder: of the run.
        facts: as :func:`fl_sim.reporting.report.report` returns them.
    """

    key: str
    name: str
    folder: RunFolder
    facts: Mapping[str, Any]

    @property
    def headline(self) -> dict[str, Any]:
        """Return the ε that leads, its unit, δ and mention graph; ``epsilon`` is None unless ``state`` is proven."""
        epsilon, bounds = self.facts["epsilon"], self.facts["bounds"] or {}
        unit = "user" if self.facts["app"] else "stated" if "epsilon_stated" in epsilon else "any"
        proven = self.facts["guarantee"]
        return {
            "state": self.state,
            "unit": unit,
            "unit_words": UNIT_WORDS[unit],
            "epsilon": epsilon.get(f"epsilon_{unit}") if proven else None,
            "epsilon_missed": epsilon.get(f"epsilon_{unit}_robust") if proven else None,
            "epsilon_user": epsilon.get("epsilon_user") if proven else None,
            "delta": self.facts["delta"],
            "mention_graph": bounds.get("mention_graph"),
        }

    @property
    def state(self) -> str:
        """Return whether the run's ε is proven, or why there is none."""
        if self.facts["guarantee"]:
            return PROVEN
        if self.facts["epsilon"]:
            return NO_GUARANTEE
        return UNTRUSTED if self.facts["ledger"]["problem"] else NO_ROUND


@dataclass(frozen=True)
class Comparison:
    """Runs side by side; :func:`compare_runs` makes one.

    Attributes:
        runs: in the order given.
    """

    runs: tuple[ComparedRun, ...]

    @property
    def problems(self) -> list[str]:
        """Return why the ε of runs cannot be trusted, one line for each such run."""
        return [run.facts["ledger"]["problem"] for run in self.runs if run.state == UNTRUSTED]

    def settings(self) -> dict[str, list[Any]]:
        """Return the settings that differ, with the value of every run, None where one has none."""
        of_runs = [settings_of(run.folder) | _versions(run.folder) for run in self.runs]
        names = dict.fromkeys(name for settings in of_runs for name in settings)
        values = {name: [settings.get(name) for settings in of_runs] for name in names}
        return {name: column for name, column in values.items() if any(value != column[0] for value in column)}

    def notes(self) -> list[str]:
        """Return in words what must not be compared, one sentence each."""
        return [*_notes_on_epsilon(self.runs), *_notes_on_utility(self.runs)]

    def paired(self) -> list[dict[str, Any]]:
        """Return the difference of every later run to the first, with its interval, or ``reason`` why there is none."""
        first, *others = self.runs
        return [{"run": other.key, "baseline": first.key, **_paired(first, other)} for other in others]

    def record(self) -> dict[str, Any]:
        """Return the comparison as plain values (``fl-sim compare --json``)."""
        return {
            "format": FORMAT,
            "runs": [
                {"key": r.key, "name": r.name, "folder": str(r.folder.path), "headline": r.headline, "report": r.facts}
                for r in self.runs
            ],
            "epsilon_comparable": not any(_notes_on_epsilon(self.runs)),
            "notes": self.notes(),
            "paired": self.paired(),
            "settings": self.settings(),
        }


def compare_runs(folders: Sequence[RunFolder]) -> Comparison:
    """Return a comparison of one run or more.

    Raises:
        ResultsError: no run is given, more than 26, or one of them twice; metrics or result are corrupt.
    """
    if not 1 <= len(folders) <= MOST_RUNS:
        raise ResultsError(f"{len(folders)} runs are given; allowed: 1 to {MOST_RUNS}")
    paths = [folder.path.resolve() for folder in folders]
    for number, path in enumerate(paths):
        if path in paths[:number]:
            raise ResultsError(f"{folders[number].path}: is given twice; allowed: different runs")
    return Comparison(
        tuple(
            ComparedRun(string.ascii_uppercase[number], name_of(paths, number), folder, report(folder))
            for number, folder in enumerate(folders)
        )
    )


def name_of(paths: Sequence[Path], number: int) -> str:
    """Return the shortest end of a path that no other one of ``paths`` has."""
    parts = paths[number].parts
    others = [path.parts for place, path in enumerate(paths) if place != number]
    for length in range(1, len(parts) + 1):
        if all(other[-length:] != parts[-length:] for other in others):
            return "/".join(parts[-length:])
    return str(paths[number])


def settings_of(run: RunFolder) -> dict[str, Any]:
    """Return a run's settings by dotted key; what was left open has the value that the run resolved it to."""
    configured = run.config.get("run") or {}
    settings = dict(_flat({name: value for name, value in configured.items() if name not in _NOT_SETTINGS}))
    for part in _RESOLVED:
        for name, value in ((run.result or {}).get(part) or run.config.get(part) or {}).items():
            if settings.get(f"privacy.{name}", value) is None:
                settings[f"privacy.{name}"] = value
    return settings


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _versions(run: RunFolder) -> dict[str, Any]:
    """Return what else may tell two runs apart: the corpus's content, the version and the commit."""
    values = {
        "corpus (fingerprint)": str((run.config.get("corpus") or {}).get("fingerprint") or "")[:12] or None,
        "fl_sim": run.environment.get("fl_sim"),
        "commit": str((run.environment.get("git") or {}).get("commit") or "")[:12] or None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _notes_on_epsilon(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Yield in which respect the ε of runs are different statements."""
    proven = [run for run in runs if run.state == PROVEN]
    subjects = {
        "δ": {run.key: format_delta(run.headline["delta"]) for run in proven},
        "the protected unit": {run.key: _unit(run) for run in proven},
        "the mention graph": {run.key: run.headline["mention_graph"] or "not recorded" for run in proven},
    }
    for subject, values in subjects.items():
        if len(set(values.values())) > 1:
            yield f"ε are not comparable: {subject} is {by_value(values, ' and ')}."
    corpora = {run.key: run.folder.config.get("corpus", {}).get("fingerprint") for run in proven}
    if len(set(corpora.values())) > 1:
        yield "ε protect different people: the runs have different corpora."


def _unit(run: ComparedRun) -> str:
    """Return the unit of a run's ε in words, with the bound where it is stated and not enforced."""
    headline = run.headline
    if headline["unit"] == "any":
        return str(headline["unit_words"])
    return f"{headline['unit_words']} of {(run.facts['bounds'] or {}).get('entity_bound')} sentences"


def _notes_on_utility(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Yield in which respect the utilities of runs are not measured alike."""
    measured = [run for run in runs if run.facts["utility"]["final"] is not None]
    tasks = {run.key: run.facts["task"] for run in measured}
    if len(set(tasks.values())) > 1:
        yield f"Utilities are not comparable: the task is {by_value(tasks, ' and ')}."
        return
    models = {run.key: str(_tokenizer(run.folder)) for run in measured}
    if len(set(models.values())) > 1 and "next-word" in tasks.values():
        yield "Perplexities per token are of different models, perhaps of different tokenizers; bits per byte compare."
    texts = {run.key: (run.folder.config.get("corpus") or {}).get("fingerprint") for run in measured}
    if len(set(texts.values())) > 1:
        yield "Utilities are measured on different corpora."
        return
    by_user = [sums for run in measured if (sums := run.folder.held_out_users) is not None]
    if any(not are_same_users(by_user[0], other) for other in by_user[1:]):
        yield "Utilities are measured on different held-out sentences or tokens; another seed draws other sentences."


def _tokenizer(run: RunFolder) -> Any:
    model = (run.config.get("run") or {}).get("model") or {}
    return model.get("tokenizer") or model.get("name")


def _paired(first: ComparedRun, other: ComparedRun) -> dict[str, Any]:
    """Return the difference of two runs on the same users, or why there is none."""
    metric = first.facts["utility"]["metric"]
    if other.facts["utility"]["metric"] != metric:
        return {"reason": "another task"}
    before, after = first.folder.held_out_users, other.folder.held_out_users
    if before is None or after is None:
        return {"reason": "a run has recorded nothing by user"}
    fingerprints = [(run.folder.config.get("corpus") or {}).get("fingerprint") for run in (first, other)]
    if None in fingerprints or fingerprints[0] != fingerprints[1] or not are_same_users(before, after):
        return {"reason": "not the same held-out text and tokens"}
    if not all(math.isfinite(value) for value in (*before["nats"], *after["nats"])):
        return {"reason": "a model is not finite"}
    return paired_difference(before, after, metric)
