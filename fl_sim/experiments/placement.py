"""Where workers fit: machines with their free cores and GPUs, counted GPU by GPU.

Ray reserves a fraction on one GPU, never on two, so two GPUs have room for two workers of 0.6, not for three.

>>> count_workers([Machine("10.0.0.1", cpus=8, gpus=2, free_cpus=8, free_gpus=2)], cpus=1, gpus=0.6)
2
>>> count_workers([Machine("10.0.0.1", cpus=8, gpus=2, free_cpus=8, free_gpus=1)], cpus=1, gpus=0.3)
3
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fl_sim.config import EngineConfig

_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # "max 100000", or microseconds of each 100,000
_SETTLE_SECONDS = 5.0
_LOOK_SECONDS = 0.1
_ROUNDING = 1e-6  # Ray's shares are multiples of 1e-4, in floating point


class EngineError(ValueError):
    """An engine that cannot be started as configured."""


def cores_here() -> int:
    """Return the CPU cores that this process may use: those of its affinity, within the container's quota if any."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _CGROUP_QUOTA.read_text(encoding="ascii").split()
        return min(cores, max(1, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):  # another system, or no quota
        return cores


def check_request(engine: EngineConfig) -> None:
    """Check that this machine has the cores and GPUs that Ray is to use; a running cluster is asked once it is joined.

    Raises:
        EngineError: it has fewer.
    """
    if engine.name != "ray" or engine.address is not None:
        return
    there = cores_here()
    if engine.num_cpus is not None and engine.num_cpus > there:
        raise EngineError(
            f"engine.num_cpus is {engine.num_cpus}; allowed: at most {there}, the CPU cores that this machine has for "
            "it, or engine.address, a cluster that has more"
        )
    cpus = engine.num_cpus or there
    if engine.cpus_per_node > cpus:
        raise EngineError(f"engine.cpus_per_node is {engine.cpus_per_node}; allowed: at most {cpus}, what Ray has")
    if engine.num_gpus:
        import torch

        gpus = torch.cuda.device_count()
        if engine.num_gpus > gpus:
            raise EngineError(
                f"engine.num_gpus is {engine.num_gpus}; allowed: at most {gpus}, the GPUs of this machine, or "
                "engine.address, a cluster that has more"
            )


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of a Ray cluster.

    Attributes:
        cpus, gpus: cores and GPUs that it gave to Ray.
        free_cpus, free_gpus: those that nothing has reserved; the GPUs are summed over fractions.
    """

    address: str
    cpus: float
    gpus: float
    free_cpus: float
    free_gpus: float

    def room_for(self, cpus: float, gpus: float) -> int:
        """Return how many workers of ``cpus`` cores and ``gpus`` GPUs fit beside what is reserved.

        Where fractions of GPUs are reserved, Ray tells only their sum, and this is the most that may fit.
        """
        room = _times(self.free_cpus, cpus)
        if gpus == 0:
            return room
        whole = math.floor(self.gpus + _ROUNDING)
        return min(room, _times(self.free_gpus, gpus), whole * _times(1, gpus) if gpus <= 1 else room)

    def __str__(self) -> str:
        return (
            f"{self.address} ({self.free_cpus:g} of {self.cpus:g} CPUs and {self.free_gpus:g} of {self.gpus:g} GPUs "
            "free)"
        )

    @property
    def emptied(self) -> Machine:
        """The machine as it is when nothing is reserved."""
        return replace(self, free_cpus=self.cpus, free_gpus=self.gpus)


def count_workers(machines: Sequence[Machine], cpus: float, gpus: float) -> int:
    """Return how many workers of so many cores and GPUs (a fraction, or a whole number) fit on the machines.

    Raises:
        EngineError: no machine has room for one; the message names all machines, and what is free there.
    """
    workers = sum(machine.room_for(cpus, gpus) for machine in machines)
    if workers < 1:
        there = ", ".join(map(str, machines)) or "no machine"
        raise EngineError(
            f"engine.cpus_per_node is {cpus} and engine.gpus_per_node is {gpus:g}; allowed: at most what is free on "
            f"one machine of Ray: {there}"
        )
    return workers


def machines_of(nodes: Sequence[Mapping[str, Any]], free: Mapping[str, Mapping[str, float]]) -> list[Machine]:
    """Return the machines that are alive, of what ``ray.nodes()`` returns, with the free resources by node.

    A node that has not reported yet counts as free.
    """
    machines = []
    for node in nodes:
        if node["Alive"]:
            has = node["Resources"]
            left = free.get(node["NodeID"], has)
            machines.append(
                Machine(
                    address=node["NodeManagerAddress"],
                    cpus=has.get("CPU", 0.0),
                    gpus=has.get("GPU", 0.0),
                    free_cpus=left.get("CPU", 0.0),
                    free_gpus=left.get("GPU", 0.0),
                )
            )
    return machines


def settled_machines(cpus: float, gpus: float) -> list[Machine]:
    """Return the machines of Ray, and wait up to five seconds for what others are giving back.

    The workers of a run that has just ended, of so many cores and GPUs each, count as reserved for a moment.
    """
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        machines = machines_of_ray()
        free = all(machine.room_for(cpus, gpus) == machine.emptied.room_for(cpus, gpus) for machine in machines)
        if free or time.monotonic() > deadline:
            return machines
        time.sleep(_LOOK_SECONDS)


def machines_of_ray() -> list[Machine]:
    """Return the machines of the Ray that this process has joined."""
    import ray
    from ray._private.state import available_resources_per_node  # Ray's public API tells only the cluster's sum

    return machines_of(ray.nodes(), available_resources_per_node())


def _times(room: float, share: float) -> int:
    return max(0, math.floor((room + _ROUNDING) / share))
