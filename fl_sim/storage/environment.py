"""The environment of a run: commit, versions and machine, without names of people, hosts or folders.

>>> sorted(describe())
['cpus', 'fl_sim', 'git', 'libraries', 'platform', 'python']
>>> commit_of({"git": {"commit": "a1b2", "dirty": True}}), commit_of({"git": None})
('a1b2 dirty', 'unknown')
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TypedDict


class GitState(TypedDict):
    """The commit of a checkout, and whether files that can change a result differ from it."""

    commit: str
    dirty: bool


class Environment(TypedDict, total=False):
    """What :func:`describe` returns; a folder of another version may lack some of it.

    Attributes:
        git: of the checkout; None in an installed wheel.
        libraries: version by name; None for one that is not installed.
    """

    fl_sim: str | None
    git: GitState | None
    python: str
    platform: str
    cpus: int | None
    libraries: dict[str, str | None]


LIBRARIES = ("torch", "transformers", "flwr", "ray", "numpy", "dp-accounting", "pyarrow", "spacy")
"""The libraries that can change a run's figures."""

UNKNOWN, DIRTY = "unknown", " dirty"
"""The commit of sources outside a checkout, and what follows that of sources with changes."""

_ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("fl_sim", "strategies", "clients", "data_prep", "pyproject.toml")
"""What can change the figures of a run."""
_GIT_SECONDS = 10


def describe(more: Sequence[str] = ()) -> Environment:
    """Return a JSON-ready description of this installation and machine, with the versions of ``more`` libraries."""
    return {
        "fl_sim": version("fl-sim"),
        "git": git_state(_ROOT),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "libraries": {name: version(name) for name in (*LIBRARIES, *more)},
    }


def commit_of(environment: Environment) -> str:
    """Return the commit of an environment as records state it."""
    git = environment.get("git")
    return UNKNOWN if git is None else f"{git['commit']}{DIRTY if git['dirty'] else ''}"


def history(source: Path = _ROOT) -> frozenset[str]:
    """Return HEAD's commit and all commits before it; none without a checkout or git."""
    return frozenset((_git(source, "rev-list", "HEAD") or "").split())


def git_state(source: Path, sources: Sequence[str] = SOURCES) -> GitState | None:
    """Return the commit of the checkout with root ``source``, and whether ``sources`` have changes.

    None without a checkout or git.

    A virtual environment may be inside another repository, whose commit says nothing about fl_sim. So the root must be
    ``source`` itself, and fl_sim must be tracked in it.
    """
    root = _git(source, "rev-parse", "--show-toplevel")
    if root is None or Path(root).resolve() != source.resolve():
        return None
    if _git(source, "ls-files", "--error-unmatch", "fl_sim/__init__.py") is None:
        return None
    commit = _git(source, "rev-parse", "HEAD")
    status = _git(source, "status", "--porcelain", "--", *sources)
    return None if commit is None or status is None else {"commit": commit, "dirty": bool(status)}


def _git(folder: Path, *arguments: str) -> str | None:
    """Return git's output without the line end; None if git fails or is not installed."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def version(name: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
