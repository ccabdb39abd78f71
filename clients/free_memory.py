"""Tell how much memory a process may still take, and return what it has freed to the system.

A lack of memory is then an error and not a killed process.

>>> free_memory() > 0
True
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

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
    """Return freed memory to the system, where the C library can (glibc): it keeps much after a large model's passes.

    The next pass has to ask for it again, which costs more than it gains if the model is small.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
