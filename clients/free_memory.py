"""Tell how much memory a process may still take, so that a lack of it is an error and not a killed process.

>>> free_memory() > 0
True
"""

from __future__ import annotations

import os
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
