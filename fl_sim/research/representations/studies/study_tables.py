"""Shared parts of the reproductions of published tables: options, stored experiments, means and cells.

>>> figures = mean_and_deviation([80.0, 82.0])
>>> table_cell(figures, seeds=2, digits=1, published="79")
'81.0 ± 1.4 (79)'
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fl_sim.config import ConfigError
from fl_sim.research.representations.config import ExperimentConfig
from fl_sim.research.representations.representation_experiment import RECORD_FORMAT
from fl_sim.research.representations.studies.experiment_grid import run_grid
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
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    full: bool = False
    layer: str = "l1"
    jobs: int = 1
    work: Path | None = None

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ConfigError("seeds are missing; allowed: at least one")


def collect_records(configs: Sequence[ExperimentConfig], options: Options, log: Log) -> list[dict[str, Any]]:
    """Return the records of all experiments, in order; run those that the work folder lacks.

    Args:
        configs: the experiments.
        options: of the reproduction.
        log: called with a line of progress.
    """
    records = [_load_record(config, options.work) for config in configs]
    missing = [number for number, record in enumerate(records) if record is None]

    def store(position: int, record: dict[str, Any]) -> None:
        number = missing[position]
        records[number] = record
        if options.work is not None:
            replace_file(_file(configs[number], options.work), json.dumps(encode(record)).encode())
        config = configs[number]
        log(f"  {config.method} seed {config.seed}: {record['seconds']:.1f} s, {len(missing) - position - 1} to go")

    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
    run_grid([configs[number] for number in missing], options.jobs, store)
    return [record for record in records if record is not None]


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


def mean_and_deviation(values: Sequence[float]) -> list[float]:
    """Return the mean and the sample deviation (0 for one value), rounded to four digits."""
    return [round(statistics.fmean(values), 4), round(statistics.stdev(values) if len(values) > 1 else 0.0, 4)]


def spread(measured: Sequence[float], seeds: int, digits: int) -> str:
    """Return ``mean ± deviation``; the mean alone for a single seed."""
    mean, deviation = measured
    return f"{mean:.{digits}f}" + (f" ± {deviation:.{digits}f}" if seeds > 1 else "")


def table_cell(measured: Sequence[float], seeds: int, digits: int, published: str | None) -> str:
    """Return ``mean ± deviation (published)``.

    Args:
        measured: mean and deviation.
        seeds: number of seeds.
        digits: after the decimal point.
        published: the paper's figure; None is shown as a dash.
    """
    return f"{spread(measured, seeds, digits)} ({'–' if published is None else published})"


def _load_record(config: ExperimentConfig, work: Path | None) -> dict[str, Any] | None:
    """Return the stored record of an experiment; None if there is none of the current format."""
    if work is None or not (file := _file(config, work)).exists():
        return None
    try:
        record = decode(json.loads(file.read_bytes()))
    except ValueError as error:
        raise ConfigError(f"{file}: is corrupt (no JSON); remove it") from error
    return dict(record) if record.get("format") == RECORD_FORMAT else None


def _file(config: ExperimentConfig, work: Path) -> Path:
    return work / f"{hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:32]}.json"
