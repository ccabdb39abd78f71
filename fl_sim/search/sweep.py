"""Sweeps: a grid or random draws of settings, run one after the other or in parallel; a stopped sweep resumes.

    OUT/sweep.json             the sweep, so that another one cannot use the same folder
    OUT/runs/point0003-seed1/  one run folder per run
    OUT/table.json, table.txt  the figures of every setting over its seeds, best first

Trying settings on private data is itself a release: the choice of the best setting depends on all runs. The table has
the ε of all runs together, from their ledgers, beside the ε of each. docs/settings.md shows a sweep's file.

>>> sweep = Sweep(seeds=(0, 1), grid={"privacy.user_cap": (1, 2)})
>>> [point.name for point in sweep.points()]
['point0000-seed0', 'point0000-seed1', 'point0001-seed0', 'point0001-seed1']
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from fl_sim.config import ConfigError, RunConfig, read_toml
from fl_sim.experiments.privacy_spent import Account, account_for, are_covered, read_ledgers
from fl_sim.files import owner_only, read_bytes, remove_temporaries
from fl_sim.formats import first_mistake, format_delta, format_epsilon, numbered, one_line, printable, round_up
from fl_sim.stop_signals import Stopped, follow_parent, raising_stops, stops_deferred, stops_handled_by, stops_seen
from fl_sim.storage.run_claim import tidy
from fl_sim.storage.run_folder import (
    DIVERGED,
    INTERRUPTED,
    SWEEP_FILE,
    ResultsError,
    RunFolder,
    check_free,
    encode,
    numbers_of,
    replace_file,
)
from fl_sim.strategies.accounting.adjacency import NO_ENTITY, Adjacency, ContributionBound, covering
from fl_sim.strategies.ledger import LEDGER_FILE
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
    choices: tuple[JsonValue, ...] | None = Field(default=None, min_length=1)

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

    def draw(self, rng: np.random.Generator) -> JsonValue:
        """Return one value."""
        if self.choices is not None:
            return self.choices[int(rng.integers(len(self.choices)))]
        low, high = float(self.low or 0.0), float(self.high or 0.0)
        value = math.exp(rng.uniform(math.log(low), math.log(high))) if self.log else rng.uniform(low, high)
        return float(f"{value:.4g}")  # short enough for a table, and exactly the value that runs


class RandomSearch(_Strict):
    """Draws from the ranges of several keys."""

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
    set: dict[str, JsonValue] = {}
    grid: dict[str, tuple[JsonValue, ...]] = {}
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
            raise ConfigError(f"{path}: {first_mistake(error, '')}") from error
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
            for seed in self.seeds:
                run_seed = streams.derived_seed(seed, "sweep run", number) % 2**63
                runs.append(Point(number, dict(settings), seed, run_seed))
        return runs

    def config(self, point: Point, out: Path | None = None) -> RunConfig:
        """Return the configuration of one run; :class:`ConfigError` if it is impossible."""
        over = {"engine.name": "inline", **self.set, **point.settings, "seed": point.run_seed}
        if out is not None:
            over["out"] = str(out)
        return RunConfig.load(self.base, over)

    def _settings(self) -> Iterator[Mapping[str, JsonValue]]:
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
        seed: of the sweep, names the repetition.
    """

    number: int
    settings: Mapping[str, JsonValue]
    seed: int
    run_seed: int

    @property
    def name(self) -> str:
        """Return the name of the run's folder."""
        return f"point{self.number:04d}-seed{self.seed}"


DONE, FAILED = "done", "failed"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended.

    Attributes:
        status: ``done``, ``interrupted``, ``failed`` or ``diverged``.
        reason: of a failure or divergence, in one line; the name of the signal that interrupted.
    """

    name: str
    status: str
    reason: str = ""


def claim_folder(out: Path, name: str, described: Mapping[str, object], noun: str) -> None:
    """Create the folder of many runs, or check that it is that of the same: the file ``name`` in it describes them.

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
    check_free(out)
    (out / "runs").mkdir(parents=True, exist_ok=True)
    replace_file(file, json.dumps(described, indent=2).encode() + b"\n")


def run_batch(configs: Mapping[str, RunConfig], jobs: int = 1) -> Iterator[Ending]:
    """Run the unfinished runs of ``configs``, each in the folder of its ``out``; yield how each ended, as it ends.

    A stopped run resumes after its last checkpoint, a finished one is skipped, and a failed one does not stop the
    others. Ctrl-C, SIGTERM and SIGHUP end each running run after its round and start no other.

    Args:
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
        return Ending(name, FAILED, one_line(error))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The figures of one setting over its seeds.

    Attributes:
        runs: how many ended, diverged ones included.
        mean, deviation: of the metric; None if a seed diverged, which a mean without it would hide.
        noise_multiplier: z; None without a finished run.
        epsilon_any, epsilon_user, epsilon_user_entity_p95, epsilon_user_entity_robust_p95: the largest of any seed.
        failed, diverged: reasons by run.
    """

    settings: Mapping[str, JsonValue]
    runs: int = 0
    values: list[float]
    mean: float | None = None
    deviation: float | None = None
    noise_multiplier: float | None = None
    epsilon_any: float | None = None
    epsilon_user: float | None = None
    epsilon_user_entity_p95: float | None = None
    epsilon_user_entity_robust_p95: float | None = None
    failed: Mapping[str, str]
    diverged: Mapping[str, str]


EPSILONS = ("epsilon_any", "epsilon_user", "epsilon_user_entity_p95", "epsilon_user_entity_robust_p95")


class AllRuns(Account, total=False):
    """ε of all runs together, and what it says in words."""

    runs: int
    unfinished: int
    note: str


@dataclass(frozen=True, slots=True)
class Table:
    """The table of a sweep (table.json): metric, a row per setting with the best first, and ε of all runs together."""

    metric: str
    rows: list[Row]
    all_runs: AllRuns

    def text(self) -> str:
        """Return the table for a terminal of 80 columns: the settings, numbered, and under them their figures."""
        settings, figures, endings = [], [], []
        for row in self.rows:
            values = [f"{key} {printable(_short(value))}" for key, value in sorted(row.settings.items())]
            settings.append(", ".join(values) or "the base")
            noise = "–" if row.noise_multiplier is None else round_up(row.noise_multiplier, 4)
            epsilons = [format_epsilon(getattr(row, name)) for name in EPSILONS]
            figures.append([noise, *map(_short, (row.mean, row.deviation, row.runs)), *epsilons])
        for status in (FAILED, DIVERGED):
            named = [reasons for row in self.rows for reasons in getattr(row, status).items()]
            endings += [printable(f"{status.capitalize()}: {name}: {reason}") for name, reason in named]
        heads = ["z", self.metric, "± (sd)", "runs", "ε any", "ε user", "ε + entity p95", "robust"]
        notes = [line for note in (self.all_runs["note"], *endings) for line in textwrap.wrap(note, 80)]
        return "\n".join([*numbered(settings, heads, figures), "", *notes]) + "\n"


@owner_only()
def run_sweep(
    sweep: Sweep, out: Path, jobs: int = 1, observe: Callable[[Ending], None] = lambda _: None
) -> tuple[list[Ending], Table]:
    """Run the unfinished runs of ``sweep``, write its table, and return how the runs ended and the table.

    A stopped run resumes after its last checkpoint, a finished one is skipped, and a failed one does not stop the
    others. Ctrl-C ends each run after its current round, and then the sweep. ``observe`` gets every ending, also that
    of a finished run.

    Raises:
        ResultsError: ``out`` is not a folder of this sweep.
    """
    base = None if sweep.base is None else read_toml(sweep.base)  # its content, wherever it is; any metric may be read
    claim_folder(out, SWEEP_FILE, sweep.model_dump(mode="json", exclude={"metric"}) | {"base": base}, "sweep")
    points = {point.name: point for point in sweep.points()}
    ended: dict[str, Ending] = {}
    for ending in run_batch({name: sweep.config(point, out / "runs" / name) for name, point in points.items()}, jobs):
        ended[ending.name] = ending
        observe(ending)
    endings = [ended[name] for name in points if name in ended]
    folders = {e.name: RunFolder.open(out / "runs" / e.name) for e in endings if e.status in (DONE, DIVERGED)}
    groups: dict[int, list[Ending]] = {}
    for ending in endings:
        groups.setdefault(points[ending.name].number, []).append(ending)
    rows = [_row(sweep.metric, points[group[0].name].settings, group, folders) for group in groups.values()]
    rows.sort(key=lambda row: (row.mean is None, row.mean or 0.0))
    others = [out / "runs" / name for name in points if name not in folders]
    unfinished = [RunFolder.open(path) for path in others if (path / LEDGER_FILE).exists()]
    table = Table(sweep.metric, rows, _joint_account(list(folders.values()), unfinished))
    replace_file(out / "table.json", json.dumps(encode(table), indent=2).encode() + b"\n")
    replace_file(out / "table.txt", table.text().encode())
    return endings, table


def _row(
    metric: str, settings: Mapping[str, JsonValue], group: Sequence[Ending], folders: Mapping[str, RunFolder]
) -> Row:
    ended = [folders[ending.name] for ending in group if ending.name in folders]
    results = [folder.result or {} for folder in ended]
    values = [_figure(result, metric) for result in results]
    finite = values if all(map(math.isfinite, values)) else []  # a mean without the seeds that diverged misleads
    spent = [{**folder.metrics().iloc[-1], **numbers_of(folder.result or {})} for folder in ended]  # all releases
    epsilons = {name: max((float(one.get(name, math.inf)) for one in spent), default=None) for name in EPSILONS}
    return Row(
        settings=dict(settings),
        runs=len(results),
        values=values,
        mean=statistics.fmean(finite) if finite else None,
        deviation=statistics.stdev(finite) if len(finite) > 1 else None,
        noise_multiplier=ended[0].setting("noise_multiplier") if ended else None,
        **epsilons,
        failed={ending.name: ending.reason for ending in group if ending.status == FAILED},
        diverged={ending.name: ending.reason for ending in group if ending.status == DIVERGED},
    )


def _figure(result: Mapping[str, object], metric: str) -> float:
    numbers = {k: float(v) for k, v in result.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    if metric not in numbers:
        allowed = ", ".join(sorted(numbers))
        raise ConfigError(f"metric is '{metric}', which a run's result does not have; allowed: {allowed}")
    return numbers[metric]


def _joint_account(finished: Sequence[RunFolder], unfinished: Sequence[RunFolder] = ()) -> AllRuns:
    """Return ε for an adversary who observes the models of all runs, composed from their ledgers.

    The runs are independent: each has its own seed. A run that failed or was interrupted, and one on which an initial
    model rests, count with what they released: by their ledgers, and by what the finished runs under their bounds tell
    of the corpus. Where there are none, a user may have any number of sentences, and ε with an entity at the 95th
    percentile is infinite, as it is on a corpus in which no entity was found.
    """
    runs = [*finished, *unfinished]
    ledgers = read_ledgers([run.path for run in runs])
    if not any(ledger.entries for ledger in ledgers):
        return {"runs": len(finished), "note": "No run has released anything."}
    warning = "Trying settings on private data is a release too. "
    results = [run.result or {} for run in finished]
    corpora = {json.dumps(result["corpus"], sort_keys=True) for result in results}
    fingerprints = {json.dumps(run.config.get("corpus"), sort_keys=True) for run in runs}
    if len(corpora) > 1 or len(fingerprints) > 1:
        note = warning + "These runs are on different corpora, so no single ε covers all of them."
        return {"runs": len(finished), "note": note}
    # One entity for all runs: that of the largest bound of any run, as bounds of runs differ in what they leave of it.
    bounds = [ContributionBound(**result["reach"]["p95"]) for result in results]
    entity_bound = covering(bounds) if bounds else NO_ENTITY
    sentences = max((float(result["user_sentences"]) for result in results), default=math.inf)
    covered = are_covered(ledgers, finished, unfinished)
    delta = max(float(run.setting("delta")) for run in runs)
    user = Adjacency(sentences if covered else math.inf)
    account = account_for(ledgers, user, replace(user, entity_bound=entity_bound), delta, None)
    if not covered or entity_bound.users == 0 or account.get("public_names", 0) > 1:  # of two lists, neither holds
        account |= {"epsilon_user_entity": math.inf, "epsilon_user_entity_robust": math.inf}
    left = f", {len(unfinished)} of them unfinished," if unfinished else ""
    note = warning + (
        f"Guarantee for the models of all {len(runs)} runs{left} and, as far as training text goes, the choice among "
        f"them, at δ = {format_delta(delta)}, {account['known']} known: ε user "
        f"{format_epsilon(account['epsilon_user'])}, with an entity at the 95th percentile "
        f"{format_epsilon(account['epsilon_user_entity'])}, robust "
        f"{format_epsilon(account['epsilon_user_entity_robust'])}. The choice reads held-out scores, which no ε "
        "covers. To publish one run at its own ε, choose its settings on public data."
    )
    return {"runs": len(finished), "unfinished": len(unfinished), **account, "note": note}


def _short(value: JsonValue) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return "∞" if math.isinf(value) else f"{value:.4g}"
    return str(value)
