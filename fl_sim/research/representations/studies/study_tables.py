"""What the reproductions of published tables have in common: options, finished experiments that are kept, means."""

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

Say = Callable[[str], None]
Place = TypeVar("Place")
Figures = TypeVar("Figures")


@dataclass(frozen=True)
class Options:
    """How to reproduce.

    Attributes:
        source: the folder of the corpus. seeds: which. full: the whole grid. layer: of Adult: ``l1``, the paper's
            normalisation, or ``l2``, that of the published code.
        jobs: experiments at once. work: a folder where finished experiments are kept, so that the same command goes
            on where it was stopped; None keeps nothing.
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


def records_of(configs: Sequence[ExperimentConfig], options: Options, say: Say) -> list[dict[str, Any]]:
    """The records of these experiments, from the work folder where they are done."""
    found = [_kept(config, options.work) for config in configs]
    missing = [number for number, record in enumerate(found) if record is None]

    def keep(place: int, record: dict[str, Any]) -> None:
        number = missing[place]
        found[number] = record
        if options.work is not None:
            replace_file(_file(configs[number], options.work), json.dumps(encode(record)).encode())
        config = configs[number]
        say(f"  {config.method} seed {config.seed}: {record['seconds']:.1f} s, {len(missing) - place - 1} to go")

    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
    run_grid([configs[number] for number in missing], options.jobs, keep)
    return [record for record in found if record is not None]


def collected(
    configs: Callable[[int], Iterable[ExperimentConfig]],
    figures: Callable[[dict[str, Any]], Iterable[tuple[Place, Figures]]],
    options: Options,
    say: Say,
) -> dict[Place, list[Figures]]:
    """What the experiments of every seed say of each place of a table, a value a seed.

    Args:
        configs: the experiments of a seed. figures: places and what a record says of them.
        options: what and how. say: called with a line of text as things get done.
    """
    found: dict[Place, list[Figures]] = {}
    for seed in options.seeds:
        for record in records_of(list(configs(seed)), options, say):
            for place, values in figures(record):
                found.setdefault(place, []).append(values)
    return found


def heading(name: str, paper: str, options: Options) -> dict[str, Any]:
    """How the mapping of every table begins: what it is, and what it was made with."""
    grid = "full" if options.full else "thin"
    return {"format": RECORD_FORMAT, "name": name, "paper": paper, "grid": grid, "seeds": list(options.seeds)}


def mean_and_deviation(values: Sequence[float]) -> list[float]:
    """The mean and the sample deviation (0 of a single value), rounded to four digits."""
    return [round(statistics.fmean(values), 4), round(statistics.stdev(values) if len(values) > 1 else 0.0, 4)]


def spread(measured: Sequence[float], seeds: int, digits: int) -> str:
    """``mean ± deviation``; a single seed has no deviation."""
    mean, deviation = measured
    return f"{mean:.{digits}f}" + (f" ± {deviation:.{digits}f}" if seeds > 1 else "")


def _kept(config: ExperimentConfig, work: Path | None) -> dict[str, Any] | None:
    if work is None or not (file := _file(config, work)).exists():
        return None
    try:
        record = decode(json.loads(file.read_bytes()))
    except ValueError as error:
        raise ConfigError(f"{file}: is corrupt (no JSON); remove it") from error
    return dict(record) if record.get("format") == RECORD_FORMAT else None


def _file(config: ExperimentConfig, work: Path) -> Path:
    return work / f"{hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:32]}.json"
