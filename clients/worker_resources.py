"""What this process may use: free memory, and what Ray reserved for it if it is one of Ray's workers.

>>> free_memory() > 0
True
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from fl_sim.clients.errors import ModelError

_MEMINFO = Path("/proc/meminfo")
_LIMIT, _USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")


def free_memory() -> int:
    """Return the bytes that are available on this machine, and within the limit of a container if there is one."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        limit = int(_LIMIT.read_text(encoding="ascii"))
        return max(0, min(free, limit - int(_USED.read_text(encoding="ascii"))))
    except (OSError, ValueError, StopIteration):  # another system, or no limit
        return free


def return_freed_memory() -> None:
    """Return freed memory to the system, where glibc can; it pays off after a large model's passes alone."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


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
