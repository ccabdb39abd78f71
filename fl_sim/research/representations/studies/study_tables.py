"""Shared parts of the reproductions of published tables: options, stored experiments and cells.

>>> from fl_sim.research.representations.studies.agreement import estimate
>>> table_cell(estimate([80.0, 82.0, 81.0]), seeds=3, digits=1, published="79")
'81.0 ± 1.0 [± 2.5] (79)'
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fl_sim.config import ConfigError
from fl_sim.files import remove_temporaries
from fl_sim.research.representations.config import ExperimentConfig
from fl_sim.research.representations.representation_experiment import RECORD_FORMAT
from fl_sim.research.representations.studies.agreement import Estimate
from fl_sim.research.representations.studies.experiment_grid import Observer, Record, run_grid
from fl_sim.storage.run_folder import decode, encode, replace_file

Log = Callable[[str], None]
RowKey = TypeVar("RowKey")
Figures = TypeVar("Figures")


@dataclass(frozen=True)
class Options:
    """Options of a reproduction.

    Attributes:
        source: the folder of the corpus.
        seeds: at least one.
        full: the paper's grid instead of the thin one.
        layer: of Adult: ``l1``, the paper's normalisation, or ``l2``, that of the published code.
        jobs: experiments at once.
        work: a folder for finished experiments, so that a stopped command resumes; None stores nothing.
    """

    source: Path
    seeds: tuple[int, ...] = tuple(range(10))
    full: bool = False
    layer: str = "l1"
    jobs: int = 1
    work: Path | None = None

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ConfigError("seeds are missing; allowed: at least one")


def collect_records(configs: Sequence[ExperimentConfig], options: Options, log: Log) -> list[dict[str, Any]]:
    """Return the records of all experiments, in order; run those that the work folder lacks, equal ones once.

    Args:
        configs: the experiments.
        options: of the reproduction.
        log: called with a line of progress.
    """

    def run_missing(missing: Sequence[int], observe: Observer) -> None:
        run_grid([configs[number] for number in missing], options.jobs, observe)

    def words(record: Record) -> str:
        return f"{record['config']['method']} seed {record['seed']}: {record['seconds']:.1f} s,"

    return collect_stored([_name(config) for config in configs], run_missing, options.work, words, log)


def collect_stored(
    names: Sequence[str],
    run_missing: Callable[[Sequence[int], Observer], None],
    work: Path | None,
    words: Callable[[Record], str],
    log: Log,
) -> list[Record]:
    """Return the records of all tasks, in order; run those that the work folder lacks, equal ones once.

    Args:
        names: of each task's file; tasks of one name are equal.
        run_missing: runs the tasks of the numbers that it gets, and calls the observer with each one's position among
            them and its record, which is stored at once.
        work: a folder for finished tasks; None stores nothing.
        words: the beginning of a record's line of progress.
        log: called with that line.
    """
    records = {name: _load_record(name, work) for name in names}
    missing = [number for name, number in _first_numbers(names).items() if records[name] is None]

    left = len(missing)

    def store(position: int, record: Record) -> None:
        nonlocal left
        name, left = names[missing[position]], left - 1
        records[name] = record
        if work is not None:
            replace_file(work / name, json.dumps(encode(record)).encode())
        log(f"  {words(record)} {left} to go")

    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        remove_temporaries(work)
    if missing:
        run_missing(missing, store)
    return [record for name in names if (record := records[name]) is not None]


def collect_figures(
    configs: Callable[[int], Iterable[ExperimentConfig]],
    figures: Callable[[dict[str, Any]], Iterable[tuple[RowKey, Figures]]],
    options: Options,
    log: Log,
) -> dict[RowKey, list[Figures]]:
    """Return the figures of every row of a table, one value per seed.

    Args:
        configs: the experiments of a seed.
        figures: the rows of a record, each with its figures.
        options: of the reproduction.
        log: called with a line of progress.
    """
    rows: dict[RowKey, list[Figures]] = {}
    for seed in options.seeds:
        for record in collect_records(list(configs(seed)), options, log):
            for key, values in figures(record):
                rows.setdefault(key, []).append(values)
    return rows


def heading(name: str, paper: str, options: Options) -> dict[str, Any]:
    """Return the first entries of a table's mapping: format, name, paper, grid and seeds."""
    grid = "full" if options.full else "thin"
    return {"format": RECORD_FORMAT, "name": name, "paper": paper, "grid": grid, "seeds": list(options.seeds)}


def spread(measured: Estimate, seeds: int, digits: int) -> str:
    """Return ``mean ± deviation [± half width of the 95 % interval]``; without what a single seed does not have."""
    text = f"{measured['mean']:.{digits}f}"
    if seeds > 1:
        text += f" ± {measured['deviation']:.{digits}f}"
    return text + (f" [± {measured['half_width']:.{digits}f}]" if measured["half_width"] > 0 else "")


def table_cell(measured: Estimate, seeds: int, digits: int, published: str | None) -> str:
    """Return ``mean ± deviation [± half width] (published)``.

    Args:
        measured: the figure over the seeds.
        seeds: number of seeds.
        digits: after the decimal point.
        published: the paper's figure; None is shown as a dash.
    """
    return f"{spread(measured, seeds, digits)} ({'–' if published is None else published})"


def digest(text: str) -> str:
    """Return 32 digits that stand for a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _first_numbers(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in reversed(list(enumerate(names)))}


def _load_record(name: str, work: Path | None) -> Record | None:
    """Return the stored record of a task; None if there is none of the current format."""
    if work is None or not (file := work / name).exists():
        return None
    try:
        record = decode(json.loads(file.read_bytes()))
    except ValueError as error:
        raise ConfigError(f"{file}: is corrupt (no JSON); remove it") from error
    return dict(record) if record.get("format") == RECORD_FORMAT else None


def _name(config: ExperimentConfig) -> str:
    """Return the name of an experiment's file, made of what it was asked for beyond the defaults.

    So a new key leaves stored records valid; a default that changes must raise RECORD_FORMAT. Where features are
    stored changes no record.
    """
    asked = config.model_dump_json(exclude_defaults=True, exclude={"feature_cache"})
    return f"{digest(asked)}.json"
