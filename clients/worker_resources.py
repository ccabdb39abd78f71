"""What Ray reserved for this process, if it is one of Ray's workers.

>>> reserved_cores()  # not a worker of Ray
1
"""

from __future__ import annotations

import sys
from typing import Any

from fl_sim.clients.errors import ModelError


def reserved_cores() -> int:
    """Return the number of cores that are reserved for this worker; 1 outside Ray."""
    context = _context()
    return 1 if context is None else max(1, int(context.get_assigned_resources().get("CPU", 1)))


def check_reserved(device: str) -> None:
    """Raise ModelError if this is a worker of Ray without a GPU, although ``device`` is one.

    Such a worker would see every GPU of its machine and use the first, as all others do.
    """
    context = _context()
    if device != "cpu" and context is not None and not context.get_accelerator_ids().get("GPU"):
        raise ModelError(
            f"model.device is '{device}', but no GPU is reserved for this worker; allowed: engine.gpus_per_node above "
            "0 (under flwr run: client-resources-num-gpus)"
        )


def _context() -> Any:
    """Return Ray's context of the actor that runs here; None in any other process."""
    ray = sys.modules.get("ray")
    if ray is None or not hasattr(ray, "is_initialized") or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return None if context.get_actor_id() is None else context
