"""The version of fl_sim, which pyproject.toml alone states.

>>> __version__.count(".")
2
"""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

_DISTRIBUTION = "fl-sim"


def version_of(project: Path) -> str:
    """Return the version in the checkout whose ``pyproject.toml`` is ``project``, else that of the installed package.

    What an editable installation recorded when it was made may be older than its checkout.
    """
    if project.is_file():
        stated = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {})
        if stated.get("name") == _DISTRIBUTION:
            return str(stated["version"])
    return metadata.version(_DISTRIBUTION)


__version__ = version_of(Path(__file__).resolve().parents[1] / "pyproject.toml")
