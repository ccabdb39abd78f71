"""One place states the version: pyproject.toml of the checkout, or what was installed from it."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import fl_sim
from tests.conftest import REPOSITORY


def test_a_checkout_has_the_version_of_its_pyproject() -> None:
    stated = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert fl_sim.__version__ == stated
    assert f"## {stated}" in (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("beside", [None, '[project]\nname = "another"\nversion = "9"\n', "[tool.ruff]\n"])
def test_an_installed_copy_has_the_version_of_its_metadata(
    beside: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "version", {"fl-sim": "7.8.9"}.__getitem__)
    if beside is not None:
        (tmp_path / "pyproject.toml").write_text(beside)
    assert fl_sim._version_of(tmp_path / "pyproject.toml") == "7.8.9"
