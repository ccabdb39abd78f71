"""Folders that may hold the project's ``conf`` and ``results``.

>>> [root.is_dir() for root in project_roots()]
[True, True]
"""

from __future__ import annotations

from pathlib import Path


def project_roots() -> tuple[Path, Path]:
    """Return the working directory and the root of the sources, in the order of search."""
    return Path.cwd(), Path(__file__).parents[2]
