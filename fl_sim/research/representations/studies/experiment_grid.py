"""Many experiments, in this process or in parallel on Ray; the records do not depend on the number of workers.

>>> from fl_sim.research.representations.config import load_mapping
>>> from pathlib import Path
>>> from tempfile import TemporaryDirectory
>>> from fl_sim.research.representations.config import load_mapping
>>> from fl_sim.research.representations.corpora.toy_adult import write_toy_adult
>>> off = {"leakage": False, "mdl": False}
>>> with TemporaryDirectory() as folder:
...     data = {"source": str(write_toy_adult(Path(folder), rows=50))}
...     configs = [load_mapping({"method": "random", "seed": seed, "data": data, "attacks": off}) for seed in (0, 1)]
...     records = run_grid(configs)
>>> [record["seed"] for record in records]
[0, 1]
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fl_sim.research.representations.config import ExperimentConfig
from fl_sim.research.representations.representation_experiment import run

Observer = Callable[[int, dict[str, Any]], None]


def run_grid(
    configs: Sequence[ExperimentConfig], jobs: int = 1, observe: Observer = lambda number, record: None
) -> list[dict[str, Any]]:
    """Run all experiments and return their records, in order.

    A record is a function of its configuration alone, and each worker computes on one thread, so ``jobs`` changes the
    time only (and the seconds in the records).

    Args:
        configs: the grid points.
        jobs: experiments at once; above 1, each in a worker of Ray.
        observe: called with the number and the record of each experiment as it ends.
    """
    records: dict[int, dict[str, Any]] = {}
    for number, record in _run_serially(configs) if jobs == 1 else _run_on_ray(configs, jobs):
        records[number] = record
        observe(number, record)
    return [records[number] for number in range(len(configs))]


def _run_serially(configs: Sequence[ExperimentConfig]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, config in enumerate(configs):
        yield number, run(config)


def _run_on_ray(configs: Sequence[ExperimentConfig], jobs: int) -> Iterator[tuple[int, dict[str, Any]]]:
    import ray
    from ray.exceptions import RayTaskError

    started = not ray.is_initialized()
    if started:
        _start_ray(jobs)
    try:
        work = ray.remote(num_cpus=1, max_retries=0)(_run_json)
        pending = {work.remote(config.model_dump_json()): number for number, config in enumerate(configs)}
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1)
            yield pending.pop(ready[0]), ray.get(ready[0])
    except RayTaskError as error:
        raise error.cause from error  # the experiment's own error, which is a line and no traceback
    finally:
        if started:
            ray.shutdown()


def _start_ray(jobs: int) -> None:
    import ray

    from fl_sim.engines.placement import EngineError
    from fl_sim.engines.ray_engine import PLAIN_WORKERS

    for name, value in PLAIN_WORKERS.items():
        os.environ.setdefault(name, value)
    try:
        ray.init(num_cpus=jobs, include_dashboard=False, log_to_driver=False, logging_level=logging.CRITICAL)
    except Exception as error:  # Ray passes on errors of its own processes, often as a plain Exception
        raise EngineError(f"Ray cannot be started: {str(error).partition(chr(10))[0]}; --jobs 1 needs none") from error


def _run_json(config: str) -> dict[str, Any]:
    """Run an experiment in a worker, from its configuration as JSON."""
    return run(ExperimentConfig.model_validate_json(config))
