"""Runs in folders, a line each: strategy, ε, utility, rounds done of planned, and state; a run as a line of words.

>>> shortened("sweeps/many/point0003-seed1", 20), shortened("runs/one", 20)
('sweeps/man…003-seed1', 'runs/one')
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fl_sim.formats import format_delta, format_epsilon, one_line, printable, printable_lines, round_up
from fl_sim.reporting.recorded import measured_in_words
from fl_sim.reporting.report import public_names_note
from fl_sim.reporting.run_facts import (
    CHOSEN,
    FINISHED,
    LEFT_OUT,
    NO_GUARANTEE,
    PROVEN,
    RUNNING,
    STATES,
    UNITS,
    UNTRUSTED,
    RunFacts,
    read_facts,
)
from fl_sim.storage.run_claim import is_held, is_starting
from fl_sim.storage.run_folder import ResultsError, RunFolder, check_is_folder
from fl_sim.strategies.ledger import LEDGER_FILE

FORMAT = 1
"""Version of the record; raised when a reader of an older version would misread it."""

STARTING = "starting"
"""The state of a folder that a process holds for a run which has recorded nothing yet."""

_MARKS = ("environment.json", "metrics.jsonl", LEDGER_FILE)  # a model of Hugging Face has a config.json, too
_DEPTH = 3  # SWEEP/runs/point0000-seed0
_WIDTH = 80
_LONGEST_STRATEGY = 10
_SHORTEST_NAME = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """A run of a list; a figure that it has not recorded is None.

    Attributes:
        name: the path of its folder, below the folder that was listed if that is one.
        state: as :class:`~fl_sim.reporting.run_facts.RunFacts` has it, or ``starting``.
        epsilon_state, unit, epsilon, epsilon_user, delta: as of the headline that leads its report.
        metric, utility, measured_round: the last held-out figure, its name, and the round after which it was measured.
        rounds_done, rounds: the last round, and the number planned.
        seconds: that the recorded rounds took.
        problem: why no ε of the run can be trusted.
        notes: what the ε leave out: releases of a killed run, what the initial model was trained on, the choice of
            settings, public names.
    """

    name: str
    folder: str
    state: str
    strategy: str | None = None
    epsilon_state: str | None = None
    unit: str | None = None
    epsilon: float | None = None
    epsilon_user: float | None = None
    delta: float | None = None
    metric: str | None = None
    utility: float | None = None
    measured_round: int | None = None
    rounds_done: int | None = None
    rounds: int | None = None
    seconds: float | None = None
    problem: str | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, path: Path, facts: RunFacts) -> ListedRun:
        """Return the line of a run with these facts."""
        head, metric, value = facts.headline, facts.utility.metric, facts.utility.final
        measured = facts.app_figure()
        if value is None and measured is not None:
            metric, value = measured[0], measured[1][-1]
        return cls(
            name=name,
            folder=str(path),
            state=facts.state,
            strategy=facts.strategy,
            epsilon_state=head.state,
            unit=head.unit,
            epsilon=math.inf if head.state == NO_GUARANTEE else head.epsilon,
            epsilon_user=math.inf if head.state == NO_GUARANTEE else head.epsilon_user,
            delta=head.delta,
            metric=None if value is None else metric,
            utility=value,
            measured_round=facts.utility.measured_round,
            rounds_done=facts.rounds_done,
            rounds=facts.rounds,
            seconds=facts.seconds,
            problem=facts.problem,
            notes=(
                *(() if facts.state in (FINISHED, RUNNING) else facts.ledger.notes),
                *((LEFT_OUT,) if facts.left_out else ()),
                *((CHOSEN,) if facts.settings_from_corpus and head.state == PROVEN else ()),
                *((listed,) if (listed := public_names_note(facts)) and head.state == PROVEN else ()),
            ),
        )

    def cells(self) -> tuple[str, ...]:
        """Return the line's cells."""
        none = "none" if self.epsilon_state == UNTRUSTED else "–"
        user = none if self.epsilon_user is None else format_epsilon(self.epsilon_user)
        led = none if self.epsilon is None else format_epsilon(self.epsilon)
        any_entity = "–" if self.unit == "user" else f"{led}*" if self.unit == "stated" else led
        rounds = f"{self.rounds_done or 0}/{'?' if self.rounds is None else self.rounds}"
        strategy = shortened(printable(self.strategy or "–"), _LONGEST_STRATEGY)
        return printable(self.name), strategy, any_entity, user, self._utility(), rounds, self.state

    @property
    def stale(self) -> bool:
        """Return whether rounds were run after the last measurement, so that ε is of a later model than utility."""
        return (self.rounds_done or 0) > (self.measured_round or 0) and self.measured_round is not None

    def _utility(self) -> str:
        if self.utility is None or not math.isfinite(self.utility):
            return "–" if self.utility is None else "not finite"
        form = {"error": ".1%", "perplexity": ",.1f"}.get(self.metric or "", ".4g")
        return f"{self.utility:{form}}{f' @{self.measured_round}' if self.stale else ''}"


@dataclass(frozen=True, slots=True)
class RunList:
    """The runs that were found, and why folders among them could not be read, a line each."""

    runs: tuple[ListedRun, ...]
    unreadable: tuple[str, ...]

    @property
    def problems(self) -> list[str]:
        """Return what the reader of the list must know: folders that are not in it, and ε that are left out."""
        return [
            *self.unreadable,
            *(f"{run.problem}; no ε of this run can be trusted" for run in self.runs if run.problem),
        ]

    def record(self) -> dict[str, object]:
        """Return what ``fl-sim list --json`` prints."""
        return {"format": FORMAT, "runs": [asdict(run) for run in self.runs], "unreadable": list(self.unreadable)}

    def text(self) -> str:
        """Return what ``fl-sim list`` prints, in 80 columns; empty without a run."""
        if not self.runs:
            return ""
        metrics = {run.metric for run in self.runs if run.metric}
        header = (
            "run",
            "strategy",
            "ε",
            "any user",
            metrics.pop() if len(metrics) == 1 else "utility",
            "rounds",
            "state",
        )
        rows = [header, *(run.cells() for run in self.runs)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        widths[0] = max(_SHORTEST_NAME, min(widths[0], _WIDTH - sum(widths[1:]) - 2 * (len(widths) - 1)))
        lines = []
        for name, strategy, *figures, state in rows:
            cells = [f"{cell:>{width}}" for cell, width in zip(figures, widths[2:-1], strict=True)]
            lines.append(
                "  ".join([f"{shortened(name, widths[0]):<{widths[0]}}", f"{strategy:<{widths[1]}}", *cells, state])
            )
        return printable_lines("\n".join([*(line.rstrip() for line in lines), *self._legend()]) + "\n")

    def _legend(self) -> Iterator[str]:
        """Yield what the figures mean that the header does not say."""
        proven = [run for run in self.runs if run.epsilon_state == PROVEN]
        deltas = sorted({run.delta for run in proven if run.delta is not None})
        if deltas:
            several = " (not comparable)" if len(deltas) > 1 else ""
            words = " and ".join(map(format_delta, deltas))
            yield f"ε: any user + any entity, after the rounds done, at δ = {words}{several}"
        if any(run.unit == "stated" for run in proven):
            yield "* any user + an entity within the stated bound"
        if any(run.stale for run in self.runs):
            yield "@ the round after which it was measured"
        yield from (f"{run.name}: {note}" for run in self.runs for note in run.notes)


def list_runs(folders: Sequence[str | Path] = ("runs",)) -> RunList:
    """List the runs in folders, by path; a folder that cannot be read is named in the list and does not end it.

    Args:
        folders: Folders of runs, also of sweeps, or runs; by default ``runs``.
    """
    runs: list[ListedRun] = []
    unreadable: list[str] = []
    for folder in map(Path, folders):
        for path in _found(folder, _DEPTH, unreadable):
            name = str(path if len(folders) > 1 or path == folder else path.relative_to(folder))
            try:
                runs.append(_listed(name, path))
            except (ResultsError, OSError) as error:
                unreadable.append(_in_words(path, error))
    return RunList(tuple(runs), tuple(unreadable))


def _found(folder: Path, depth: int, unreadable: list[str]) -> Iterator[Path]:
    """Yield the folders of runs at ``folder`` and below, and note what cannot be looked into."""
    try:
        check_is_folder(folder)
        is_run = any((folder / name).exists() for name in _MARKS) or is_held(folder)
        children = [] if is_run or not depth else sorted(folder.iterdir())
        below = [child for child in children if child.is_dir() and not child.is_symlink() and child.name[0] != "."]
    except (ResultsError, OSError) as error:
        unreadable.append(_in_words(folder, error))
        return
    if is_run:
        yield folder
    for child in below:
        yield from _found(child, depth - 1, unreadable)


def _listed(name: str, path: Path) -> ListedRun:
    if is_starting(path):
        return ListedRun(name=name, folder=str(path), state=STARTING)
    return ListedRun.of(name, path, read_facts(RunFolder.open(path)))


def _in_words(path: Path, error: Exception) -> str:
    """Return in one line why a folder cannot be read."""
    if isinstance(error, OSError):
        return printable(f"{error.filename or path}: {error.strerror or error}")
    return printable(one_line(error))


def shortened(text: str, width: int) -> str:
    """Return a text of at most ``width`` characters, the middle of a longer one left out."""
    if len(text) <= width:
        return text
    begin = width // 2
    return f"{text[:begin]}…{text[len(text) - (width - begin - 1) :]}"


def in_one_line(facts: RunFacts) -> str:
    """Return name, strategy, the first finite ε with its unit and δ, rounds and utility."""
    head = facts.headline
    values = [(head.unit_words, head.epsilon), (UNITS["user"], head.epsilon_user)]
    known = [(words, epsilon) for words, epsilon in values if epsilon is not None and head.state == PROVEN]
    privacy = f"ε {STATES[head.state]}" if head.state in STATES else "no ε is recorded"
    if known:
        words, epsilon = next((one for one in known if math.isfinite(one[1])), known[0])
        delta = "?" if facts.delta is None else round_up(facts.delta)
        privacy = f"ε {format_epsilon(epsilon)} for {words} at δ {delta}"
    return f"{printable(facts.run)}: {facts.strategy}, {privacy}, {facts.ended()}, {_ends(facts)}"


def _ends(facts: RunFacts) -> str:
    """Return the figure at the start and at the end."""
    if facts.app:
        return measured_in_words(facts.measured) or "nothing measured"
    return facts.utility.ends_in_words() or f"no {facts.utility.metric}"
