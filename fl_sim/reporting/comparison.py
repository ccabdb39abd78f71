"""Several runs side by side: ε and what it rests on, utility, paired differences, settings that differ, warnings.

Figures are compared where they may be. ε of runs with another δ or unit, or with something else known, are other
statements, and a note says so; differences of utility are taken user by user, of runs on the same held-out text.

>>> by_value({"A": "1", "B": "1", "C": "2"})
'1 in A, B; 2 in C'
>>> pair_words(Pair("B", "A", PairedDifference("perplexity", -5.17, -6.94, -3.48, 40, 0.9)))
'perplexity -5.2 (-6.9 to -3.5); better for 90 % of 40 users'
>>> pair_words(Pair("B", "A", PairedDifference("error", 0.1, float("nan"), float("nan"), 1, 0.0)))
'error +10.0 points; better for 0 % of 1 users'
"""

from __future__ import annotations

import math
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_sim.files import replace_private_file
from fl_sim.formats import counted, format_delta, format_epsilon, hanging, printable
from fl_sim.reporting.bootstrap import PairedDifference, Sums, are_same_users, paired_difference
from fl_sim.reporting.held_out import interval, metric_words
from fl_sim.reporting.recorded import measured_in_words, setting_in_words
from fl_sim.reporting.report import text_of
from fl_sim.reporting.run_facts import NO_GUARANTEE, PROVEN, STATES, UNITS, RunFacts, pooled, read_facts
from fl_sim.settings_origin import leaves
from fl_sim.storage.run_folder import ResultsError, RunFolder

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 2
"""Version of the record; raised when a reader of an older version would misread it."""

MOST_RUNS = len(string.ascii_uppercase)

_NOT_SETTINGS = ("out", "anchor", "observers", "origin")
_RESOLVED = ("plan", "guarantee")


@dataclass(frozen=True)
class ComparedRun:
    """A run among others.

    Attributes:
        key: a letter, by which tables and notes name it.
        name: the shortest end of its path that no other run shares.
        facts: what is said of it.
        by_user: sums of its last evaluation by held-out user; None if it recorded none.
        settings: by dotted key, as the run resolved them, with version, commit and corpus.
        fingerprint: of its corpus; None if it is not recorded.
        tokenizer: the name of its tokenizer or model.
    """

    key: str
    name: str
    path: Path
    facts: RunFacts
    by_user: Sums | None
    settings: Mapping[str, object]
    fingerprint: str | None
    tokenizer: str

    @property
    def label(self) -> str:
        """Return letter and name; the name alone where it has no letter."""
        return f"{self.key} · {self.name}" if self.key else self.name

    def unit(self) -> str:
        """Return the unit of the run's ε in words, with the bound where it is stated and not enforced."""
        words = self.facts.headline.unit_words
        return f"{UNITS['stated']} of {self.stated}{self.facts.apart('stated')}" if self.stated else words

    @property
    def stated(self) -> str:
        """Return the bound within which an entity must be where it is stated: "4 sentences of 2 users"; else empty."""
        bounds = self.facts.bounds
        if bounds is None or self.facts.headline.unit != "stated":
            return ""
        limits = {"sentence": bounds.entity_bound, "user": bounds.entity_users}
        return " of ".join(counted(limit, noun) for noun, limit in limits.items() if limit is not None)

    @property
    def public_list(self) -> str:
        """Return the beginning of the digest of the run's list of public names; empty without a list."""
        return self.facts.bounds.public_names[:8] if self.facts.bounds else ""

    def record(self) -> dict[str, object]:
        """Return the run as JSON values."""
        return {"key": self.key, "name": self.name, "folder": str(self.path), "report": self.facts.record()}


@dataclass(frozen=True, slots=True)
class Pair:
    """The difference of a run to the first one, or the reason why there is none."""

    run: str
    baseline: str
    difference: PairedDifference | None
    reason: str = ""

    def record(self) -> dict[str, str | float]:
        """Return the pair as JSON values."""
        found = {"reason": self.reason} if self.difference is None else asdict(self.difference)
        return {"run": self.run, "baseline": self.baseline, **found}


@dataclass(frozen=True)
class Comparison:
    """Runs side by side, in the order given; ε that are different statements are told apart in :attr:`notes`."""

    runs: tuple[ComparedRun, ...]

    @property
    def problems(self) -> list[str]:
        """Why the ε of runs cannot be trusted, one line for each such run; their ε are left out everywhere."""
        return [run.facts.problem for run in self.runs if run.facts.problem]

    @property
    def notes(self) -> list[str]:
        """What must not be compared, one sentence each."""
        return [*_notes_on_epsilon(self.runs), *_notes_on_missed(self.runs), *_notes_on_utility(self.runs)]

    @property
    def epsilon_comparable(self) -> bool:
        """Return whether the proven ε are one kind of statement about one corpus."""
        return not any(_notes_on_epsilon(self.runs))

    @cached_property
    def paired(self) -> list[Pair]:
        """Return the difference of every later run to the first."""
        first, *others = self.runs
        return [_pair(first, other) for other in others]

    @property
    def settings(self) -> dict[str, list[object]]:
        """Return the settings that differ, with the value of every run, None where one has none."""
        names = dict.fromkeys(name for run in self.runs for name in run.settings)
        values = {name: [run.settings.get(name) for run in self.runs] for name in names}
        return {name: column for name, column in values.items() if any(value != column[0] for value in column)}

    @property
    def warnings(self) -> dict[str, list[str]]:
        """Return every warning once, with the letters of the runs that have it."""
        return pooled({run.key: run.facts.warnings for run in self.runs})

    def record(self) -> dict[str, object]:
        """Return what ``fl-sim report --json`` prints (docs/report.md)."""
        return {
            "format": FORMAT,
            "runs": [run.record() for run in self.runs],
            "epsilon_comparable": self.epsilon_comparable,
            "notes": self.notes,
            "paired": [pair.record() for pair in self.paired],
            "settings": self.settings,
        }

    def table(self) -> pd.DataFrame:
        """Return one row per run: ε with unit and δ, utility with intervals, differences to the first, settings.

        ``epsilon`` is NaN where no ε can be trusted, and inf where nothing is guaranteed.
        """
        import pandas as pd

        pairs = {pair.run: pair for pair in self.paired}
        rows = [dict(_columns(run, pairs.get(run.key))) for run in self.runs]
        for name, values in self.settings.items():
            for row, value in zip(rows, values, strict=True):
                row[f"setting {name}"] = value
        return pd.DataFrame(rows)

    def text(self) -> str:
        """Return what ``fl-sim report`` prints."""
        runs = self.runs
        heads = [(f"{run.key}  ", f"{printable(run.name)}: {run.facts.strategy}, {run.facts.ended()}") for run in runs]
        pairs = [(f"  {pair.run:<3}", pair_words(pair)) for pair in self.paired]
        if pairs:
            pairs.insert(0, (f"Difference to {runs[0].key} on the same held-out users (below 0: better)", ""))
        keys = [run.key for run in runs]
        settings = [
            (f"  {name}: ", by_value(dict(zip(keys, map(setting_in_words, values), strict=True))))
            for name, values in self.settings.items()
        ]
        if settings:
            settings.insert(0, ("Settings that differ", ""))
        notes = [(f"{'Note':<9}", note) for note in self.notes]
        warnings = [(f"{'Warning':<9}", f"{', '.join(by)}: {words}") for words, by in self.warnings.items()]
        others = (_utility_rows(runs), pairs, settings, notes, warnings)
        return text_of([_hanging(heads), _privacy_lines(runs), *map(_hanging, others)])

    def page(self, refresh: int | None = None) -> str:
        """Return one page of HTML with pictures, which needs no other file; it is for the corpus's owner.

        Args:
            refresh: seconds after which a browser loads the page again; None for a page that stays as it is.
        """
        from fl_sim.reporting.run_page import run_page

        return run_page(self, refresh)

    def save(self, path: str | Path, refresh: int | None = None) -> Path:
        """Write :meth:`page` for the owner alone; return the path.

        Raises:
            OSError: the file cannot be written.
        """
        target = Path(path)
        replace_private_file(target, self.page(refresh).encode())
        return target


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
    return Comparison(tuple(_compared(folder, paths, number) for number, folder in enumerate(folders)))


def _compared(folder: RunFolder, paths: Sequence[Path], number: int) -> ComparedRun:
    model, facts = folder.section("run", "model"), read_facts(folder)
    return ComparedRun(
        key=string.ascii_uppercase[number],
        name=name_of(paths, number),
        path=folder.path,
        facts=facts,
        by_user=folder.held_out_users if facts.held_out else None,  # not those of an earlier end
        settings=settings_of(folder) | _versions(folder),
        fingerprint=folder.fingerprint,
        tokenizer=str(model.get("tokenizer") or model.get("name")),
    )


def name_of(paths: Sequence[Path], number: int) -> str:
    """Return the shortest end of a path that no other one of ``paths`` has."""
    parts = paths[number].parts
    others = [path.parts for place, path in enumerate(paths) if place != number]
    for length in range(1, len(parts) + 1):
        if all(other[-length:] != parts[-length:] for other in others):
            return "/".join(parts[-length:])
    return str(paths[number])


def settings_of(run: RunFolder) -> dict[str, object]:
    """Return a run's settings by dotted key; what was left open has the value that the run resolved it to."""
    configured = run.section("run")
    settings = dict(leaves({name: value for name, value in configured.items() if name not in _NOT_SETTINGS}))
    for part in _RESOLVED:
        for name, value in (run.setting(part) or {}).items():
            if settings.get(f"privacy.{name}", value) is None:
                settings[f"privacy.{name}"] = value
    return settings


def _versions(run: RunFolder) -> dict[str, str]:
    """Return what else may tell two runs apart: the corpus's content, the version and the commit."""
    git = run.environment.get("git")
    values = {
        "corpus (fingerprint)": (run.fingerprint or "")[:12] or None,
        "fl_sim": run.environment.get("fl_sim"),
        "commit": str(git.get("commit", ""))[:12] or None if git else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def by_value(values: Mapping[str, str], between: str = "; ") -> str:
    """Return values with the runs that have them."""
    kinds = dict.fromkeys(values.values())
    runs = {kind: ", ".join(key for key, value in values.items() if value == kind) for kind in kinds}
    return between.join(f"{kind} in {keys}" for kind, keys in runs.items())


def _notes_on_epsilon(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Yield in which respect the ε of runs are different statements."""
    heads = {run.key: run.facts.headline for run in runs if run.facts.headline.state == PROVEN}
    proven = [run for run in runs if run.key in heads]
    subjects = {
        "δ": {key: format_delta(head.delta) for key, head in heads.items()},
        "the protected unit": {run.key: run.unit() for run in proven},
        "what is known": {key: head.known or "not recorded" for key, head in heads.items()},
        "the list of public names": {run.key: run.public_list for run in proven if run.public_list},
    }
    for subject, values in subjects.items():
        if len(set(values.values())) > 1:
            yield f"ε are not comparable: {subject} is {by_value(values, ' and ')}."
    if len({run.fingerprint for run in proven}) > 1:
        yield "ε protect different people: the runs have different corpora."


def _notes_on_missed(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Yield that the ε with missed mentions count other numbers of them."""
    bounds = {run.key: run.facts.bounds for run in runs if run.facts.headline.epsilon_missed is not None}
    missed = {key: str(bound.missed_mentions) for key, bound in bounds.items() if bound is not None}
    if len(set(missed.values())) > 1:
        yield f"“ε missed” are not comparable: the number of missed mentions is {by_value(missed, ' and ')}."


def _notes_on_utility(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Yield in which respect the utilities of runs are not measured alike."""
    measured = [run for run in runs if run.facts.utility.final is not None]
    tasks = {run.key: run.facts.task for run in measured}
    if len(set(tasks.values())) > 1:
        yield f"Utilities are not comparable: the task is {by_value(tasks, ' and ')}."
        return
    if len({run.tokenizer for run in measured}) > 1 and "next-word" in tasks.values():
        yield "Perplexities per token are of different models, perhaps of different tokenizers; bits per byte compare."
    if len({run.fingerprint for run in measured}) > 1:
        yield "Utilities are measured on different corpora."
        return
    by_user = [run.by_user for run in measured if run.by_user is not None]
    if any(not are_same_users(by_user[0], other) for other in by_user[1:]):
        yield "Utilities are measured on different held-out sentences or tokens; another seed draws other sentences."


def _pair(first: ComparedRun, other: ComparedRun) -> Pair:
    """Return the difference of two runs on the same users, or why there is none."""
    metric, before, after = first.facts.utility.metric, first.by_user, other.by_user
    if other.facts.utility.metric != metric:
        reason = "another task"
    elif before is None or after is None:
        reason = "a run has recorded nothing by user"
    elif first.fingerprint is None or first.fingerprint != other.fingerprint or not are_same_users(before, after):
        reason = "not the same held-out text and tokens"
    elif not all(math.isfinite(value) for value in (*before["nats"], *after["nats"])):
        reason = "a model is not finite"
    else:
        return Pair(other.key, first.key, paired_difference(before, after, metric))
    return Pair(other.key, first.key, None, reason)


def _columns(run: ComparedRun, pair: Pair | None) -> Iterator[tuple[str, Any]]:
    """Yield the columns of a run's row in the table."""
    facts, head = run.facts, run.facts.headline
    found = pair.difference if pair else None
    yield "run", run.name
    yield "strategy", facts.strategy
    yield "rounds", facts.rounds_done
    yield "stopped", facts.stopped
    yield "epsilon_state", head.state
    yield "epsilon_unit", head.unit_words
    yield "epsilon", math.inf if head.state == NO_GUARANTEE else head.epsilon
    yield "epsilon_missed", head.epsilon_missed
    yield "epsilon_user", head.epsilon_user
    yield "delta", head.delta
    yield "known", head.known
    yield "metric", facts.utility.metric
    yield "initial", facts.utility.initial
    yield "final", facts.utility.final
    for name, figure in (facts.held_out.figures if facts.held_out else {}).items():
        yield name, figure.value
        yield f"{name}_low", figure.low
        yield f"{name}_high", figure.high
    yield "difference", found and found.value
    yield "difference_low", found and found.low
    yield "difference_high", found and found.high
    yield "warnings", " | ".join(facts.warnings)


# As text

_FORMS = {"perplexity": ("{:+,.1f}", "", 1.0), "error": ("{:+.1f}", " points", 100.0)}


def _privacy_lines(runs: Sequence[ComparedRun]) -> list[str]:
    lines = [f"{'Privacy':<9}{'ε':>9}{'ε missed':>10}{'any user':>10}  {'δ':<8}{'known':<10}ε of any user with"]
    for run in runs:
        head = run.facts.headline
        if head.state != PROVEN:
            lines.append(f"  {run.key:<7}{'':>3}{STATES[head.state]}")
            continue
        epsilons = map(format_epsilon, (head.epsilon, head.epsilon_missed, head.epsilon_user))
        protected = {"any": "any entity", "user": "no entity"}.get(head.unit, f"an entity in ≤ {run.stated}, stated")
        protected += ", not public" if run.public_list else ""
        lines.append(
            f"  {run.key:<7}{'{:>9}{:>10}{:>10}'.format(*epsilons)}  {format_delta(head.delta):<8}"
            f"{head.known or '–':<10}{protected}"
        )
    return lines


def _utility_rows(runs: Sequence[ComparedRun]) -> list[tuple[str, str]]:
    rows = [("Utility, held-out (95 % intervals by bootstrap over users)", "")]
    for run in runs:
        words = run.facts.utility.ends_in_words()
        if words is None:
            words = measured_in_words(run.facts.measured) or "none is recorded"
        else:
            words = "; ".join([words, *(f"{name} {figure}" for name, figure in end_figures(run.facts).items())])
        rows.append((f"  {run.key:<3}", words))
    return rows


def end_figures(facts: RunFacts) -> dict[str, str]:
    """Return the held-out figures at a run's end by name, each with its interval; empty if none was recorded."""
    figures = facts.held_out.figures if facts.held_out else {}
    return {metric_words(name): interval(figure, name) for name, figure in figures.items()}


def pair_words(pair: Pair) -> str:
    """Return a difference with its sign and interval (of errors: in points of percent), and for whom it is better."""
    found = pair.difference
    if found is None:
        return f"none: {pair.reason}"
    form, unit, scale = _FORMS[found.metric]
    ends = f" ({form.format(scale * found.low)} to {form.format(scale * found.high)})"
    figure = f"{form.format(scale * found.value)}{'' if math.isnan(found.low) else ends}{unit}"
    return f"{found.metric} {figure}; better for {100 * found.better_for:.0f} % of {found.users:,} users"


def _hanging(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Return lines of 80 columns for labels with texts beside them, whose further lines are indented."""
    return [line for label, text in rows for line in hanging(label, text, min(len(label), 9))]
