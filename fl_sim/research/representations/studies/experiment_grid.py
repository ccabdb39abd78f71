"""Many experiments side by side: in this process, in Ray's workers, with the same records whatever their number."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fl_sim.research.representations.config import ExperimentConfig
from fl_sim.research.representations.representation_experiment import run

# No telemetry, no GPU, plain workers of one thread each.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

Observer = Callable[[int, dict[str, Any]], None]


def run_grid(
    configs: Sequence[ExperimentConfig], jobs: int = 1, observe: Observer = lambda number, record: None
) -> list[dict[str, Any]]:
    """The records of all experiments, in their order.

    An experiment's numbers are a function of its configuration alone, and each worker computes on one thread, so that
    ``jobs`` changes nothing but the time (and the seconds in the records).

    Args:
        configs: the grid points.
        jobs: how many at once; above 1 each in a worker of Ray.
        observe: called with the number and the record of each as it ends.
    """
    found: dict[int, dict[str, Any]] = {}
    for number, record in _serially(configs) if jobs == 1 else _in_ray(configs, jobs):
        found[number] = record
        observe(number, record)
    return [found[number] for number in range(len(configs))]


def _serially(configs: Sequence[ExperimentConfig]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, config in enumerate(configs):
        yield number, run(config)


def _in_ray(configs: Sequence[ExperimentConfig], jobs: int) -> Iterator[tuple[int, dict[str, Any]]]:
    import ray

    started = not ray.is_initialized()
    if started:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        ray.init(num_cpus=jobs, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        work = ray.remote(num_cpus=1, max_retries=0)(_of_text)
        waiting = {work.remote(config.model_dump_json()): number for number, config in enumerate(configs)}
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            yield waiting.pop(ready[0]), ray.get(ready[0])
    finally:
        if started:
            ray.shutdown()


def _of_text(config: str) -> dict[str, Any]:
    """What a worker does; a configuration travels as JSON."""
    return run(ExperimentConfig.model_validate_json(config))
