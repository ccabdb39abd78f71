"""The base of all checked specifications of research: immutable, without unknown keys.

>>> class Point(StrictModel):
...     x: float
>>> Point(x=1).x
1.0
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """A frozen pydantic model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
