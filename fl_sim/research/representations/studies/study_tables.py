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
from fl_sim.research.representations.config import ExperimentConfig
from fl_sim.research.representations.representation_experiment import RECORD_FORMAT
from fl_sim.research.representations.studies.agreement import Estimate
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
    keys = [config.model_dump_json() for config in configs]
    records = {key: _load_record(config, options.work) for key, config in zip(keys, configs, strict=True)}
    missing = [config for key, config in dict(zip(keys, configs, strict=True)).items() if records[key] is None]
    done = 0

    def store(position: int, record: dict[str, Any]) -> None:
        nonlocal done
        config, done = missing[position], done + 1
        records[config.model_dump_json()] = record
        if options.work is not None:
            replace_file(_file(config, options.work), json.dumps(encode(record)).encode())
        log(f"  {config.method} seed {config.seed}: {record['seconds']:.1f} s, {len(missing) - done} to go")

    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
    run_grid(missing, options.jobs, store)
    return [record for key in keys if (record := records[key]) is not None]


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
    """Return the file of an experiment's record, named after what it was asked for beyond the defaults.

    So a new key leaves stored records valid; a default that changes must raise RECORD_FORMAT. Where features are
    stored changes no record.
    """
    asked = config.model_dump_json(exclude_defaults=True, exclude={"feature_cache"})
    return work / f"{hashlib.sha256(asked.encode()).hexdigest()[:32]}.json"
