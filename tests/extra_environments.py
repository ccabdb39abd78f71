"""Environments that have what ``pip install -e ".[EXTRA]"`` would install and nothing else, made of links, offline.

A package that an extra forgot to name is not there, as it would not be for its user.
"""

from __future__ import annotations

import sysconfig
import venv
from collections import defaultdict
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import REPOSITORY


def python_with(extra: str, folder: Path, *besides: str) -> Path:
    """Return the Python of a new environment in ``folder`` with the packages of fl_sim[extra]; an empty one is plain.

    ``besides`` are further requirements.

    The checkout is on its path, as after ``pip install -e``. The test is skipped where one of the packages is absent.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    paths = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", paths))
    packages = packages_of(f"fl-sim[{extra}]", *besides)
    owners: defaultdict[str, set[str]] = defaultdict(set)
    for name, package in packages.items():
        for file in package.files or ():
            owners[file.parts[0]].add(name)
    for name, package in packages.items():
        for file in package.files or ():
            top = file.parts[0]
            shared = len(owners[top]) > 1  # such as google/: a folder of links to files
            link = site / (file if shared else top)
            is_of_another_checkout = name == "fl-sim" and file.suffix == ".pth"
            if top == ".." or is_of_another_checkout or (not shared and link.is_symlink()):
                continue
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(package.locate_file(file if shared else top))
    (site / "checkout.pth").write_text(f"{REPOSITORY}\n")
    return folder / "bin" / "python"


def packages_of(*requirements: str) -> dict[str, metadata.Distribution]:
    """Return the installed packages that requirements bring, themselves included, by name."""
    found: dict[str, metadata.Distribution] = {}
    asked, seen = [Requirement(line) for line in requirements], set()
    while asked:
        need = asked.pop()
        key = (need.name.lower().replace("_", "-"), frozenset(need.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            found[key[0]] = package = metadata.distribution(need.name)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{need.name} is not installed")
        for line in package.requires or ():
            further = Requirement(line)
            if further.marker is None or any(further.marker.evaluate({"extra": name}) for name in ("", *need.extras)):
                asked.append(further)
    return found
