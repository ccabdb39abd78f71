"""Run a sweep: many runs in one folder, in sequence or in parallel; a stopped sweep resumes.

    OUT/sweep.json             the sweep, so that another one cannot use the same folder
    OUT/runs/point0003-seed1/  one run folder per run
    OUT/table.json, table.md   the figures of every setting over its seeds, best first

Trying settings on private data is itself a release: the choice of the best setting depends on all runs. The table has
the ε of all runs together, from their ledgers, beside the ε of each.

First its points: a grid, or random draws, on top of a base configuration; then a batch of runs.

The file of a sweep:

base = "conll2003_uedp.toml"      # relative to this file; without it, the defaults
seeds = [0, 1, 2]                 # every point runs once per seed

[set]                             # settings of all points
rounds = 10

[grid]                            # every combination
"privacy.user_cap" = [1, 2, 5]

[random]                          # alone, or draws at each point of the grid
samples = 8
seed = 0
[random.keys]
"server.learning_rate" = { low = 0.1, high = 3.0, log = true }
"server.momentum" = { choices = [0.0, 0.9] }

>>> sweep = Sweep(seeds=(0, 1), grid={"privacy.user_cap": (1, 2)})
>>> [point.name for point in sweep.points()]
['point0000-seed0', 'point0000-seed1', 'point0001-seed0', 'point0001-seed1']

>>> list(run_batch({"bad": RunConfig(out="/dev/null/run")}))  # doctest: +ELLIPSIS
[Ending(name='bad', status='failed', reason='/dev/null/run: is a file, or lies below one; a run needs a folder')]

>>> row = dict.fromkeys(("noise_multiplier", "mean", "deviation", *EPSILONS), 2.0)
>>> row |= {"settings": {"privacy.q_s": 0.1}, "runs": 1, "failed": {}}
>>> print(as_markdown({"metric": "perplexity", "rows": [row], "all_runs": {"note": ""}}).strip())
| privacy.q_s | z | perplexity | ± (sd) | runs | ε any | ε user | ε + entity p95 | robust |
|---|---|---|---|---|---|---|---|---|
| 0.1 | 2 | 2 | 2 | 1 | 2.00 | 2.00 | 2.00 | 2.00 |
"""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import signal
import statistics
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fl_sim.config import ConfigError, RunConfig, read_toml
from fl_sim.files import owner_only, read_bytes, remove_temporaries
from fl_sim.formats import format_epsilon, markdown_cell, numbered, printable, round_up
from fl_sim.stop_signals import Stopped, follow_parent, raising_stops, stops_deferred, stops_handled_by, stops_seen
from fl_sim.storage.run_claim import tidy
from fl_sim.storage.run_folder import DIVERGED, INTERRUPTED, ResultsError, RunFolder, decode, encode, replace_file
from fl_sim.strategies.primitives import streams

MOST_RUNS = 10_000

_OWN_KEYS = ("seed", "out")  # every run of a sweep has its own


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Range(_Strict):
    """The distribution of a random setting: uniform from ``low`` to ``high`` (or log-uniform), or over ``choices``."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple[Any, ...] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _one_kind(self) -> Range:
        bounds = self.low is not None and self.high is not None
        if bounds == (self.choices is not None) or (self.low is None) != (self.high is None):
            raise ValueError("allowed: either low and high, or choices")
        if self.low is not None and self.high is not None:
            if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
                raise ValueError(f"low is {self.low:g} and high is {self.high:g}; allowed: low below high")
            if self.log and self.low <= 0:
                raise ValueError(f"low is {self.low:g}; allowed with log: above 0")
        return self

    def draw(self, rng: np.random.Generator) -> Any:
        """Return one value."""
        if self.choices is not None:
            return self.choices[int(rng.integers(len(self.choices)))]
        low, high = float(self.low or 0.0), float(self.high or 0.0)
        value = math.exp(rng.uniform(math.log(low), math.log(high))) if self.log else rng.uniform(low, high)
        return float(f"{value:.4g}")  # short enough for a table, and exactly the value that runs


class RandomSearch(_Strict):
    """Draws from the ranges of several keys.

    Attributes:
        samples: number of draws.
        seed: of the draws.
        keys: range of each key.
    """

    samples: int = Field(ge=1, le=MOST_RUNS)
    seed: int = Field(default=0, ge=0)
    keys: dict[str, Range] = Field(min_length=1)


class Sweep(_Strict):
    """The content of a sweep's file.

    Attributes:
        base: path of the base configuration; None for the defaults.
        seeds: every point runs once per seed.
        metric: a figure of the run's result; lower is better.
        set: settings of all points.
        grid: values by key, in every combination.
        random: draws, instead of a grid or at each of its points.
    """

    base: str | None = None
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    metric: str = "perplexity"
    set: dict[str, Any] = {}
    grid: dict[str, tuple[Any, ...]] = {}
    random: RandomSearch | None = None

    @model_validator(mode="after")
    def _something_varies(self) -> Sweep:
        if not self.grid and self.random is None:
            raise ValueError("neither a grid nor a random search; allowed: [grid] with lists, or [random]")
        if min(self.seeds) < 0 or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds is {list(self.seeds)}; allowed: different integers of at least 0")
        for key, values in self.grid.items():
            if not values:
                raise ValueError(f"grid.{key} is empty; allowed: a list of values")
        varied = [*self.set, *self.grid, *(self.random.keys if self.random else {})]
        for key in varied:
            if key in _OWN_KEYS:
                raise ValueError(f"{key} cannot be set; every run of a sweep has its own (seeds)")
            if varied.count(key) > 1:
                raise ValueError(f"{key} is given twice; allowed: in one of set, grid and random")
        return self

    @classmethod
    def load(cls, path: str | Path) -> Sweep:
        """Return the sweep of a file, with its base and all of its configurations checked.

        Raises:
            ConfigError: the file is invalid; names the file and the key.
        """
        try:
            sweep = cls.model_validate(read_toml(path))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            reason = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
            raise ConfigError(f"{path}: {f'{where}: ' if where else ''}{reason}") from error
        if sweep.base is not None:
            sweep = sweep.model_copy(update={"base": str(Path(path).absolute().parent / sweep.base)})
        try:
            for point in sweep.points():
                sweep.config(point)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        return sweep

    def points(self) -> list[Point]:
        """Return all runs in a fixed order: setting by setting, each with every seed.

        Every run has its own root seed, so the noise of two runs is independent and their ε compose.
        """
        runs = []
        for number, settings in enumerate(self._settings()):
            if (number + 1) * len(self.seeds) > MOST_RUNS:
                raise ConfigError(f"the sweep has more than {MOST_RUNS} runs; allowed: at most so many")
            runs += [Point(number, dict(settings), seed, _seed_of_run(seed, number)) for seed in self.seeds]
        return runs

    def config(self, point: Point, out: Path | None = None) -> RunConfig:
        """Return the configuration of one run; :class:`ConfigError` if it is impossible."""
        over = {"engine.name": "inline", **self.set, **point.settings, "seed": point.run_seed}
        if out is not None:
            over["out"] = str(out)
        return RunConfig.load(self.base, over)

    def _settings(self) -> Iterator[Mapping[str, Any]]:
        corners = itertools.product(*([(key, value) for value in values] for key, values in self.grid.items()))
        search = self.random
        for corner in corners:
            if search is None:
                yield dict(corner)
                continue
            for sample in range(search.samples):
                rng = streams.generator(search.seed, "sweep", sample)
                yield dict(corner) | {key: search.keys[key].draw(rng) for key in search.keys}


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a sweep.

    Attributes:
        number: of the setting, from 0; runs that differ in the seed alone share it.
        settings: varied values by key.
        seed: of the sweep, names the repetition.
        run_seed: root seed of the run.
    """

    number: int
    settings: Mapping[str, Any]
    seed: int
    run_seed: int

    @property
    def name(self) -> str:
        """Return the name of the run's folder."""
        return f"point{self.number:04d}-seed{self.seed}"


def _seed_of_run(seed: int, number: int) -> int:
    return streams.derived_seed(seed, "sweep run", number) % 2**63


DONE, FAILED = "done", "failed"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended.

    Attributes:
        name: of the run.
        status: ``done``, ``interrupted``, ``failed`` or ``diverged``.
        reason: of a failure or divergence, in one line; the name of the signal that interrupted.
    """

    name: str
    status: str
    reason: str = ""


def claim_folder(out: Path, name: str, described: Mapping[str, Any], noun: str) -> None:
    """Create the folder of many runs, or check that it is the folder of the same.

    Args:
        out: the folder.
        name: of the file in it that describes them.
        described: what they are, JSON-ready.
        noun: what they are called in an error.

    Raises:
        ResultsError: the folder is that of others, or of something else.
    """
    described, file = encode(described), out / name
    remove_temporaries(out)
    if out.exists() and not out.is_dir():
        raise ResultsError(f"{out}: is a file; a {noun} needs a folder")
    if file.exists():
        try:
            other = json.loads(read_bytes(file))
        except (ValueError, RecursionError) as error:
            raise ResultsError(f"{file}: is corrupt (no JSON)") from error
        if other != described:
            raise ResultsError(
                f"{out}: holds another {noun}; choose another folder, or resume the {noun} that it holds"
            )
        return
    if out.exists() and any(out.iterdir()):
        raise ResultsError(f"{out}: exists and is not empty; choose another folder")
    (out / "runs").mkdir(parents=True, exist_ok=True)
    replace_file(file, json.dumps(described, indent=2).encode() + b"\n")


def run_batch(configs: Mapping[str, RunConfig], jobs: int = 1) -> Iterator[Ending]:
    """Run the unfinished runs of ``configs``, each in the folder of its ``out``; yield how each ended, as it ends.

    A stopped run resumes after its last checkpoint, a finished one is skipped, and a failed one does not stop the
    others. Ctrl-C, SIGTERM and SIGHUP end each running run after its round and start no other.

    Args:
        configs: the runs by name.
        jobs: runs at once; above 1, each in its own process.
    """
    if jobs == 1:
        before = stops_seen()
        for name, config in configs.items():
            if (missed := stops_seen()) != before:  # it came in the last round of a run, which finished
                yield Ending(name, INTERRUPTED, missed[-1])
                return
            ending = run_one(name, config)
            yield ending
            if ending.status == INTERRUPTED:
                return
        return
    # Spawned, not forked: torch's threads do not survive a fork.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _prepare_worker) as pool:
        with stops_deferred():
            pending = {pool.submit(_run_in_worker, name, config): name for name, config in configs.items()}
        yield from _endings_in_time(pending, pool)


def run_one(name: str, config: RunConfig) -> Ending:
    """Start, resume or skip one run; return how it ended."""
    from fl_sim.engines import simulation

    path = Path(config.out or "")
    try:
        if (path / "config.json").exists():
            folder = RunFolder.open(path)
            if folder.finished:
                tidy(path)
            else:
                folder = simulation.resume(path)
        else:
            folder = simulation.run(config)
    except KeyboardInterrupt as error:
        return Ending(name, INTERRUPTED, error.name if isinstance(error, Stopped) else "SIGINT")
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        return Ending(name, FAILED, " ".join(str(error).split()) or type(error).__name__)
    if folder.diverged:
        return Ending(name, DIVERGED, f"in round {folder.last_round}: its model is not finite")
    if not folder.finished:
        return Ending(name, INTERRUPTED, (folder.result or {}).get("signal") or "SIGINT")
    return Ending(name, DONE)


def _endings_in_time(pending: dict[Future[Ending], str], pool: ProcessPoolExecutor) -> Iterator[Ending]:
    """Yield the endings in order of time; after an interrupted one start no further run, but let running rounds end."""

    received: list[str] = []

    def pass_on(name: str) -> None:
        """Stop the workers, which may have received the signal, too: they take the second for an echo."""
        received.append(name)
        for process in list(pool._processes.values()):
            with suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.Signals[name if name != "SIGINT" else "SIGTERM"])

    with stops_handled_by(pass_on):
        for future in as_completed(pending):
            if future.cancelled():
                continue
            try:
                ending = future.result()
            except BrokenProcessPool:
                ending = Ending(pending[future], FAILED, "its process was killed; start the same again")
            if ending.status == INTERRUPTED:
                ending = replace(ending, reason=(received or [ending.reason])[0])
                for other in pending:
                    other.cancel()
            yield ending


_stopped_by: list[str] = []
"""The signals that stopped this worker: calls that wait in its queue cannot be cancelled from outside."""


def _prepare_worker() -> None:
    follow_parent(_stopped_by.append)
    import torch

    torch.set_num_threads(1)


def _run_in_worker(name: str, config: RunConfig) -> Ending:
    if _stopped_by:
        return Ending(name, INTERRUPTED, _stopped_by[0])
    with raising_stops():
        ending = run_one(name, config)
    if ending.status == INTERRUPTED:
        _stopped_by.append(ending.reason)
    return ending


EPSILONS = ("epsilon_any", "epsilon_user", "epsilon_user_entity_p95", "epsilon_user_entity_robust_p95")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run of a sweep ended.

    Attributes:
        point: the run.
        status: ``done``, ``interrupted``, ``failed`` or ``diverged``.
        reason: of a failure or divergence, in one line; the name of the signal that interrupted.
    """

    point: Point
    status: str
    reason: str = ""


@owner_only()
def run_sweep(
    sweep: Sweep, out: Path, jobs: int = 1, observe: Callable[[Outcome], None] = lambda _: None
) -> list[Outcome]:
    """Run the unfinished runs of ``sweep``, write its table and return the outcomes.

    A stopped run resumes after its last checkpoint, a finished one is skipped, and a failed one does not stop the
    others. Ctrl-C ends each run after its current round, and then the sweep.

    Args:
        sweep: the runs.
        out: the sweep's folder.
        jobs: runs at once; above 1, each in its own process.
        observe: called with the outcome of every run, finished ones included.

    Raises:
        ResultsError: ``out`` is not a folder of this sweep.
    """
    claim_folder(out, "sweep.json", sweep.model_dump(mode="json"), "sweep")
    outcomes: list[Outcome] = []
    for outcome in _outcomes(sweep, out, jobs):
        outcomes.append(outcome)
        observe(outcome)
    outcomes.sort(key=lambda outcome: (outcome.point.number, sweep.seeds.index(outcome.point.seed)))
    write_table(sweep, out, outcomes)
    return outcomes


def _outcomes(sweep: Sweep, out: Path, jobs: int) -> Iterable[Outcome]:
    points = {point.name: point for point in sweep.points()}
    configs = {name: sweep.config(point, out / "runs" / name) for name, point in points.items()}
    for ending in run_batch(configs, jobs):
        yield Outcome(points[ending.name], ending.status, ending.reason)


def write_table(sweep: Sweep, out: Path, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Write ``table.json`` and ``table.md`` of all finished runs; return the content of the former."""
    ended = [o.point.name for o in outcomes if o.status in (DONE, DIVERGED)]
    folders = {name: RunFolder.open(out / "runs" / name) for name in ended}
    rows = [_row(sweep, group, folders) for group in _by_settings(outcomes)]
    rows.sort(key=lambda row: (row["mean"] is None, row["mean"] if row["mean"] is not None else 0.0))
    table = {"metric": sweep.metric, "rows": rows, "all_runs": _joint_account(list(folders.values()))}
    replace_file(out / "table.json", json.dumps(encode(table), indent=2).encode() + b"\n")
    replace_file(out / "table.md", as_markdown(table).encode())
    return table


def read_table(out: Path) -> dict[str, Any]:
    """Return the table of a sweep's folder; :class:`ResultsError` if there is none."""
    try:
        table = decode(json.loads(read_bytes(out / "table.json")))
    except FileNotFoundError as error:
        raise ResultsError(f"{out}: has no table.json; allowed: the folder of a sweep") from error
    except (ValueError, RecursionError) as error:
        raise ResultsError(f"{out / 'table.json'}: is corrupt (no JSON)") from error
    return dict(table)


def as_markdown(table: dict[str, Any]) -> str:
    """Return the table in Markdown: settings, the metric's mean and deviation, ε."""
    keys = _keys(table)
    names = [*keys, *_heads(table)]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in table["rows"]:
        cells = [markdown_cell(_short(row["settings"].get(key))) for key in keys]
        lines.append("| " + " | ".join([*cells, *_figures(row)]) + " |")
    lines += ["", table["all_runs"]["note"], *map(markdown_cell, _endings(table))]
    return "\n".join(lines) + "\n"


def as_text(table: dict[str, Any]) -> str:
    """Return the table for a terminal of 80 columns: the settings, numbered, and under them their figures."""
    keys = _keys(table)
    settings = [
        ", ".join(f"{key} {printable(_short(row['settings'].get(key)))}" for key in keys) or "the base"
        for row in table["rows"]
    ]
    lines = numbered(settings, _heads(table), [_figures(row) for row in table["rows"]])
    notes = [line for note in (table["all_runs"]["note"], *_endings(table)) for line in textwrap.wrap(note, 80)]
    return "\n".join([*lines, "", *notes]) + "\n"


def _keys(table: dict[str, Any]) -> list[str]:
    return sorted({key for row in table["rows"] for key in row["settings"]})


def _heads(table: dict[str, Any]) -> list[str]:
    return ["z", table["metric"], "± (sd)", "runs", "ε any", "ε user", "ε + entity p95", "robust"]


def _figures(row: dict[str, Any]) -> list[str]:
    noise = row["noise_multiplier"]
    measured = [_short(row[name]) for name in ("mean", "deviation", "runs")]
    return ["–" if noise is None else round_up(noise, 4), *measured, *(format_epsilon(row[name]) for name in EPSILONS)]


def _endings(table: dict[str, Any]) -> list[str]:
    """Return a line for each run that failed or diverged, with the reason."""
    return [
        f"{status.capitalize()}: {name}: {reason}"
        for status in (FAILED, DIVERGED)
        for row in table["rows"]
        for name, reason in row.get(status, {}).items()
    ]


def _by_settings(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    groups: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.point.number, []).append(outcome)
    return list(groups.values())


def _row(sweep: Sweep, group: Sequence[Outcome], folders: dict[str, RunFolder]) -> dict[str, Any]:
    results = [folders[o.point.name].result or {} for o in group if o.point.name in folders]
    values = [_figure(result, sweep.metric) for result in results]
    finite = values if all(map(math.isfinite, values)) else []  # a mean without the seeds that diverged misleads
    epsilons = [_epsilons(folders[o.point.name]) for o in group if o.point.name in folders]
    plan = results[0].get("plan", {}) if results else {}
    return {
        "settings": dict(group[0].point.settings),
        "runs": len(results),
        "values": values,
        "mean": statistics.fmean(finite) if finite else None,
        "deviation": statistics.stdev(finite) if len(finite) > 1 else None,
        "noise_multiplier": plan.get("noise_multiplier"),
        **{name: max((e[name] for e in epsilons), default=None) for name in EPSILONS},
        **{status: {o.point.name: o.reason for o in group if o.status == status} for status in (FAILED, DIVERGED)},
    }


def _figure(result: dict[str, Any], metric: str) -> float:
    value = result.get(metric)
    if isinstance(value, bool) or not isinstance(value, int | float):
        numbers = sorted(k for k, v in result.items() if isinstance(v, int | float) and not isinstance(v, bool))
        raise ConfigError(f"metric is '{metric}', which a run's result does not have; allowed: {', '.join(numbers)}")
    return float(value)


def _epsilons(folder: RunFolder) -> dict[str, float]:
    last = folder.metrics().iloc[-1]
    return {name: float(last.get(name, math.inf)) for name in EPSILONS}


def _joint_account(folders: Sequence[RunFolder]) -> dict[str, Any]:
    """Return ε for an adversary who observes the models of all runs, composed from their ledgers.

    The runs are independent: each has its own seed.
    """
    from fl_sim.experiments.privacy_spent import account_for, read_ledgers
    from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound, covering

    warning = "Trying settings on private data is a release too. "
    if not folders:
        return {"runs": 0, "note": "No run is finished."}
    results = [folder.result or {} for folder in folders]
    corpora = {json.dumps(result["corpus"], sort_keys=True) for result in results}
    if len(corpora) > 1:
        note = warning + "These runs are on different corpora, so no single ε covers all of them."
        return {"runs": len(folders), "note": note}
    sentences = max(float(result["user_sentences"]) for result in results)
    # One entity for all runs: that of the largest bound of any run, as bounds of runs differ in what they leave of it.
    entity_bound = covering([ContributionBound(**result["reach"]["p95"]) for result in results])
    delta = max(float(result["plan"]["delta"]) for result in results)
    user = Adjacency(sentences)
    ledgers = read_ledgers([folder.path for folder in folders])
    account = account_for(ledgers, user, Adjacency(sentences, entity_bound), delta, None)
    note = warning + (
        f"Guarantee for the models of all {len(folders)} runs and the choice among them, at δ = {delta:g}: "
        f"ε user {format_epsilon(account['epsilon_user'])}, with an entity at the 95th percentile "
        f"{format_epsilon(account['epsilon_user_entity'])}, robust "
        f"{format_epsilon(account['epsilon_user_entity_robust'])}. "
        "To publish one run at its own ε, choose its settings on public data."
    )
    return {"runs": len(folders), **account, "note": note}


def _short(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return "∞" if math.isinf(value) else f"{value:.4g}"
    return str(value)
