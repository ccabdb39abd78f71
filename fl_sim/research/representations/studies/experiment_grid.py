"""Many tasks, in this process or in parallel on Ray; their results do not depend on the number of workers.

>>> from pathlib import Path
>>> from tempfile import TemporaryDirectory
>>> from fl_sim.research.representations.config import load_mapping
>>> from fl_sim.research.representations.corpora.adult_reader import write_toy_adult
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

Record = dict[str, Any]
Work = Callable[[str], Record]
Observer = Callable[[int, Record], None]


def run_grid(
    configs: Sequence[ExperimentConfig], jobs: int = 1, observe: Observer = lambda number, record: None
) -> list[Record]:
    """Run all experiments and return their records, in order.

    A record is a function of its configuration alone, and each worker computes on one thread, so ``jobs`` changes the
    time only (and the seconds in the records).

    Args:
        configs: the grid points.
        jobs: experiments at once; above 1, each in a worker of Ray.
        observe: called with the number and the record of each experiment as it ends.
    """
    return run_tasks(_run_json, [config.model_dump_json() for config in configs], jobs, observe)


def run_tasks(work: Work, tasks: Sequence[str], jobs: int, observe: Observer) -> list[Record]:
    """Return what ``work`` makes of every task, in order.

    Args:
        work: a function of a module, which depends on its task alone.
        tasks: as JSON, because workers are other processes.
        jobs: tasks at once; above 1, each in a worker of Ray.
        observe: called with the number and the result of each task as it ends.
    """
    records: dict[int, Record] = {}
    for number, record in _run_serially(work, tasks) if jobs == 1 else _run_on_ray(work, tasks, jobs):
        records[number] = record
        observe(number, record)
    return [records[number] for number in range(len(tasks))]


def _run_serially(work: Work, tasks: Sequence[str]) -> Iterator[tuple[int, Record]]:
    for number, task in enumerate(tasks):
        yield number, work(task)


def _run_on_ray(work: Work, tasks: Sequence[str], jobs: int) -> Iterator[tuple[int, Record]]:
    import ray
    from ray.exceptions import RayTaskError

    started = not ray.is_initialized()
    if started:
        _start_ray(jobs)
    try:
        remote = ray.remote(num_cpus=1, max_retries=0)(work)
        pending = {remote.remote(task): number for number, task in enumerate(tasks)}
        while pending:
            ready, _ = ray.wait(list(pending), num_returns=1)
            yield pending.pop(ready[0]), ray.get(ready[0])
    except RayTaskError as error:
        raise error.cause from error  # the task's own error, which is a line and no traceback
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


def _run_json(config: str) -> Record:
    return run(ExperimentConfig.model_validate_json(config))
