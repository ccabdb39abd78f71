"""The experiments of a study: run at once or one by one, kept in a folder, and found there by the next command.

A record is a function of its task alone and each worker computes on one thread, so the number of jobs changes the time
only (and the seconds in the records).

>>> from fl_sim.research.representations.config import load_mapping
>>> asked = {"method": "random", "data": {"name": "toy-adult", "rows": 50}, "attacks": {"leakage": False, "mdl": False}}
>>> log = lambda words, left=None: print(words)
>>> records = collect_records([load_mapping(asked)], Options(Path("data")), log)  # doctest: +ELLIPSIS
  1 experiment, 0 of them finished
  random seed 0: ... s, 0 to go
"""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from fl_sim.config import ConfigError
from fl_sim.experiments.placement import EngineError
from fl_sim.files import remove_temporaries
from fl_sim.formats import counted
from fl_sim.research.representations.config import ExperimentConfig
from fl_sim.research.representations.experiment_record import ExperimentRecord
from fl_sim.research.representations.representation_experiment import RECORD_FORMAT, run
from fl_sim.research.study_files import Point, read_json, write_json
from fl_sim.stop_signals import follow_parent, stops_deferred
from fl_sim.storage.environment import UNKNOWN

Record = dict[str, Any]
Log = Callable[..., None]
"""Is called with a line of progress, and the seconds that are left once they are known."""
RowKey = TypeVar("RowKey")
Figures = TypeVar("Figures")
Made = TypeVar("Made", bound=Mapping[str, Any])


@dataclass
class Used:
    """What experiments took: how many there were, their seconds of a core, and the commits of the code."""

    experiments: int = 0
    cpu_seconds: float = 0.0
    commits: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Options:
    """Options of a reproduction.

    Attributes:
        source: the folder of the corpus.
        seeds: at least one.
        full: the paper's grid instead of the thin one.
        layer: of Adult: ``l1``, the paper's normalisation, or ``l2``, that of the published code.
        jobs: experiments at once; above 1, each in a process of its own.
        work: a folder for finished experiments, so that a stopped command resumes; None stores nothing.
        commit: of the running code.
        used: is filled with what the experiments took that the table is made of.
    """

    source: Path
    seeds: tuple[int, ...] = tuple(range(10))
    full: bool = False
    layer: str = "l1"
    jobs: int = 1
    work: Path | None = None
    commit: str = UNKNOWN
    used: Used = field(default_factory=Used)


def heading(name: str, paper: str, options: Options) -> Record:
    """Return the first entries of a table's record: format, name, paper, grid and seeds."""
    grid = "full" if options.full else "thin"
    return {"format": RECORD_FORMAT, "name": name, "paper": paper, "grid": grid, "seeds": list(options.seeds)}


def collect_figures(
    configs: Callable[[int], Iterable[ExperimentConfig]],
    figures: Callable[[ExperimentRecord], Iterable[tuple[RowKey, Figures]]],
    options: Options,
    log: Log,
) -> dict[RowKey, list[Figures]]:
    """Return the figures of every row of a table, one value per seed; ``figures`` yields the rows of a record."""
    rows: dict[RowKey, list[Figures]] = {}
    for record in collect_records([config for seed in options.seeds for config in configs(seed)], options, log):
        for key, values in figures(record):
            rows.setdefault(key, []).append(values)
    return rows


def points_of_experiments(
    table: Record,
    configs: Callable[[int], Iterable[ExperimentConfig]],
    figures: Callable[[ExperimentRecord], Iterable[tuple[RowKey, Figures]]],
    row: Callable[[RowKey, list[Figures]], Record],
    names: Sequence[str],
    options: Options,
) -> list[Point]:
    """Return a point for each experiment of a table, with all its seeds: the rows that ``row`` makes of its figures.

    A row is found in the table by its ``names``.
    """
    name = itemgetter(*names)

    def compared(number: int) -> tuple[Any, Any]:
        rows = collect_figures(lambda seed: list(configs(seed))[number : number + 1], figures, options, lambda *_: None)
        again = [row(key, values) for key, values in rows.items()]
        recorded = {name(one): one for one in table["rows"]}
        return [recorded.get(name(one)) for one in again], again

    def words(config: ExperimentConfig) -> str:
        epsilon = "" if config.privacy.epsilon is None else f" at {config.privacy.epsilon:g}"
        encoder = f"{config.encoder.kind} {config.encoder.width}"
        return f"{config.data.name}, {encoder}, {config.method}{epsilon}, all seeds"

    of_seed = list(configs(options.seeds[0]))
    seconds = seconds_of(table, len(options.seeds))
    return [Point(words(config), seconds, partial(compared, number)) for number, config in enumerate(of_seed)]


def seconds_of(table: Record, experiments: int) -> float | None:
    """Return what so many experiments of a table take, of its mean; None if it does not say."""
    return experiments * table["cpu_seconds"] / table["experiments"] if "experiments" in table else None


def collect_records(configs: Sequence[ExperimentConfig], options: Options, log: Log) -> list[ExperimentRecord]:
    """Return the records of all experiments, in order; run those that the work folder lacks, equal ones once."""
    names = [experiment_file(config) for config in configs]
    tasks = {name: config.model_dump_json() for name, config in zip(names, configs, strict=True)}

    def words(record: ExperimentRecord) -> str:
        return f"{record['config']['method']} seed {record['seed']}: {record['seconds']:.1f} s,"

    records = collect(_run_json, tasks, options, words, log)
    return [records[name] for name in names]


def collect(
    work: Callable[[str], Made], tasks: Mapping[str, str], options: Options, words: Callable[[Made], str], log: Log
) -> dict[str, Made]:
    """Return what ``work`` makes of every task, by name; run the tasks that the work folder lacks, and keep them there.

    ``work`` is a function of a module and depends on its task alone, which is JSON, because workers are other
    processes; ``tasks`` are by file name. ``words`` is the beginning of a record's line of progress.
    """
    records: dict[str, Made] = {}
    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
        remove_temporaries(options.work)
        records = {name: record for name in tasks if (record := _stored(options.work / name)) is not None}
    missing = [name for name in tasks if name not in records]
    log(f"  {counted(len(tasks), 'experiment')}, {len(records)} of them finished")
    asked = [tasks[name] for name in missing]
    made = _run_in_processes(work, asked, options.jobs) if options.jobs > 1 else enumerate(map(work, asked))
    began = time.monotonic()
    for done, (number, record) in enumerate(made, start=1):
        kept: Any = {**record, "commit": options.commit}
        records[missing[number]] = kept
        if options.work is not None:
            write_json(kept, options.work / missing[number], indent=None)
        left = len(missing) - done
        log(f"  {words(record)} {left} to go", left * (time.monotonic() - began) / done)
    options.used.experiments += len(records)
    options.used.cpu_seconds += sum(record["cpu_seconds"] for record in records.values())
    options.used.commits |= {record.get("commit", UNKNOWN) for record in records.values()}
    return records


def experiment_file(config: ExperimentConfig) -> str:
    """Return the name of an experiment's file, made of what it was asked for beyond the defaults.

    So a new key leaves stored records valid; a default that changes must raise RECORD_FORMAT. Where features are
    stored changes no record.
    """
    return task_file(config.model_dump_json(exclude_defaults=True, exclude={"feature_cache"}))


def task_file(task: str) -> str:
    """Return the name of the file of a task's record."""
    return f"{hashlib.sha256(task.encode()).hexdigest()[:32]}.json"


def _stored(file: Path) -> Any:
    """Return a stored record; None if there is none of the current format."""
    if not file.exists():
        return None
    try:
        record = read_json(file)
    except ValueError as error:
        raise ConfigError(f"{file}: is corrupt (no JSON); remove it") from error
    return record if isinstance(record, dict) and record.get("format") == RECORD_FORMAT else None


def _run_json(config: str) -> ExperimentRecord:
    return run(ExperimentConfig.model_validate_json(config))


def _run_in_processes(work: Callable[[str], Made], tasks: Sequence[str], jobs: int) -> Iterator[tuple[int, Made]]:
    """Yield the number and the result of each task as it ends; a stop, or an error of one, ends the others at once."""
    # Spawned, not forked: torch's threads do not survive a fork.
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), follow_parent)
    try:
        with stops_deferred():
            pending = {pool.submit(work, task): number for number, task in enumerate(tasks)}
        for future in as_completed(pending):
            yield pending[future], future.result()
    except BrokenProcessPool as error:
        raise EngineError("an experiment's process was killed; the same command resumes") from error
    except BaseException:
        for process in list(pool._processes.values()):
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
