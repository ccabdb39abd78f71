"""Refuse to build where the links of fl_sim/ were lost; all settings are in pyproject.toml."""

from pathlib import Path

from setuptools import setup

lost = [
    f"fl_sim/{name}" for name in ("clients", "conf", "data_prep", "strategies") if not Path("fl_sim", name).is_dir()
]
if lost:
    raise SystemExit(
        f"{', '.join(lost)}: no links to the folders beside fl_sim/, without which nothing is complete; "
        "unpack with a program that keeps symbolic links (unzip, tar), "
        "or in a git checkout run: git config core.symlinks true && git checkout -- fl_sim"
    )
setup()
