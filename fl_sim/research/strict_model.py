"""Folders that may hold the project's ``conf`` and ``results``.

>>> [root.is_dir() for root in project_roots()]
[True, True]

The base of all checked specifications of research: immutable, without unknown keys.

>>> class Point(StrictModel):
...     x: float
>>> Point(x=1).x
1.0
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict


def project_roots() -> tuple[Path, Path]:
    """Return the working directory and the root of the sources, in the order of search."""
    return Path.cwd(), Path(__file__).parents[2]


class StrictModel(BaseModel):
    """A frozen pydantic model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
