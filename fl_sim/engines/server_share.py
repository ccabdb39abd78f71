"""The share of a GPU that the server reserves in Ray, so that no worker counts on it.

Ray reserves for processes that it starts, and the server is none. So an idle worker on the server's machine holds the
share as long as the run lives, and tells which GPU it is.

>>> visible_index("3", visible="2,3"), visible_index("1", visible=None)
(1, 1)
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

from fl_sim.engines.placement import EngineError, machines_of_ray

_RESERVE_SECONDS = 40.0  # a busy machine takes long to start a process of Ray, which gives it little priority
_REPORT_SECONDS = 2.0  # within which Ray reports a reservation as no longer free
_LOOK_SECONDS = 0.05


class ServerShare(NamedTuple):
    """A reserved share of a GPU.

    Attributes:
        device: in the view of this process, such as ``cuda:1``.
        holder: the worker that holds it, until it is killed or this process ends.
    """

    device: str
    holder: Any


class _Holder:
    """Hold a share, and tell of which GPU."""

    def gpus(self) -> list[str]:
        import ray

        ids: list[str] = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        return ids


def reserve_server_share(device: str, share: float) -> ServerShare:
    """Reserve a share of a GPU on this machine.

    Args:
        device: ``cuda``, say, of which Ray chooses the index.
        share: of the GPU; of several GPUs the server takes one.

    Raises:
        EngineError: this machine has no such share to give.
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    before = sum(machine.free_gpus for machine in machines_of_ray())
    share = min(share, 1.0)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor: Any = ray.remote(_Holder)
    holder = actor.options(num_cpus=0, num_gpus=share, scheduling_strategy=here).remote()
    try:
        (gpu,) = ray.get(holder.gpus.remote(), timeout=_RESERVE_SECONDS)
    except RayError as error:
        ray.kill(holder)
        there = ", ".join(map(str, machines_of_ray()))
        raise EngineError(
            f"engine.server_device is '{device}', but the server's machine has no {share:g} of a GPU to give; allowed: "
            f"cpu, or at most what is free there: {there}"
        ) from error
    _wait_until_reported(before - share)
    kind = device.partition(":")[0]
    return ServerShare(f"{kind}:{visible_index(gpu, os.environ.get('CUDA_VISIBLE_DEVICES'))}", holder)


def visible_index(gpu: str, visible: str | None) -> int:
    """Return the index of a GPU among those that this process sees.

    Args:
        gpu: as Ray names it.
        visible: the names of the GPUs that this process sees, as in CUDA_VISIBLE_DEVICES; None if it sees all.
    """
    names = [name.strip() for name in visible.split(",")] if visible else []
    return names.index(gpu) if gpu in names else int(gpu)


def _wait_until_reported(free: float) -> None:
    deadline = time.monotonic() + _REPORT_SECONDS
    while sum(machine.free_gpus for machine in machines_of_ray()) > free + 1e-6 and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
