"""The runs of a sweep: the points of a grid, or random draws, on top of a base configuration.

>>> sweep = Sweep(seeds=(0, 1), grid={"privacy.user_cap": (1, 2)})
>>> [point.name for point in sweep.points()]
['point0000-seed0', 'point0000-seed1', 'point0001-seed0', 'point0001-seed1']

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
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fl_sim.config import ConfigError, RunConfig, read_toml
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
