"""The worker processes of a run: asked of Ray, waited for until they have their cores and GPUs, and named by machine.

Ray holds a worker for which it has no room, forever. So a worker without a process half a minute after the last one got
its own is left out, and the run goes on with the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from flwr.simulation.ray_transport.ray_actor import ClientAppActor
from ray._private.state import actors as known_actors  # Ray's public API needs the dashboard's process for it

from fl_sim.engines.placement import EngineError, machines_of_ray

log = logging.getLogger(__name__)

_PLACE_SECONDS = 30.0
_LOOK_SECONDS = 0.05


def start_workers(number: int, resources: Mapping[str, Any], on_start: Callable[[], None]) -> list[Any]:
    """Return handles of workers that have their cores and GPUs; they load their libraries meanwhile.

    Args:
        number: of workers.
        resources: options of Ray's actors.
        on_start: called in every worker's process.

    Raises:
        EngineError: Ray has room for none of them.
    """
    actor: Any = ClientAppActor  # ray.remote made of it what its type does not say
    workers = [actor.options(**resources).remote(on_actor_init_fn=on_start) for _ in range(number)]
    waiting, since = list(workers), time.monotonic()
    while waiting and time.monotonic() - since < _PLACE_SECONDS:
        time.sleep(_LOOK_SECONDS)
        still = [worker for worker in waiting if not is_placed(worker)]
        if len(still) < len(waiting):
            since = time.monotonic()
        waiting = still
    return _without(waiting, workers)


def is_placed(worker: Any) -> bool:
    """Return whether Ray has reserved a worker's cores and GPUs and started its process."""
    return int(_known_of(worker).get("Pid", 0)) > 0


def is_loaded(worker: Any) -> bool:
    """Return whether a worker has loaded its libraries."""
    return _known_of(worker).get("State") == "ALIVE"


def machine_of(worker: Any) -> str:
    """Return the address of the machine that Ray chose for a worker."""
    return str(_known_of(worker).get("Address", {}).get("IPAddress") or "a machine that Ray has not named")


def _without(waiting: Sequence[Any], workers: Sequence[Any]) -> list[Any]:
    """Return the workers but those that wait for room, which are given up."""
    for worker in waiting:
        ray.kill(worker)
    there = ", ".join(map(str, machines_of_ray())) if waiting else ""
    if waiting and len(waiting) == len(workers):
        raise EngineError(f"Ray has started none of {len(workers)} workers within {_PLACE_SECONDS:g} seconds: {there}")
    if waiting:
        log.warning(
            "Ray has no room for %d of %d workers; the run goes on without them: %s", len(waiting), len(workers), there
        )
    return [worker for worker in workers if worker not in waiting]


def _known_of(worker: Any) -> dict[str, Any]:
    return dict(known_actors(worker._actor_id.hex()) or {})
