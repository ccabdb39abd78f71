"""The suite as pyproject.toml and tests/conftest.py run it."""

from __future__ import annotations

import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import rings
from tests.conftest import REPOSITORY
from tests.rings import OutsideOfItsRing


def test_ci_runs_every_ring_but_the_nightly_one() -> None:
    lines = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line.startswith("pytest")]
    marked = [f"pytest -m {ring}" for ring in rings.RINGS if ring != "nightly"]
    assert [command.split(" --")[0] for command in commands] == ["pytest", *marked]
    assert "pytest -m nightly" in (REPOSITORY / ".ci" / "nightly").read_text(encoding="utf-8")


def test_the_default_ring_is_what_pytest_alone_runs() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    assert f"-m '{rings.DEFAULT}'" in project["tool"]["pytest"]["ini_options"]["addopts"]


@pytest.mark.parametrize(
    "deed",
    [
        lambda: subprocess.run([sys.executable, "-c", ""], check=True),
        lambda: subprocess.Popen(["fl-sim", "--help"]),
        lambda: socket.create_connection(("127.0.0.1", 9), timeout=1),
    ],
    ids=["a process of Python's", "a command line", "the network"],
)
def test_the_guard_refuses(deed: Callable[[], object]) -> None:
    with pytest.raises(OutsideOfItsRing, match="allowed in another ring"):
        deed()


def test_the_guard_lets_other_programs_run() -> None:
    assert subprocess.run(["git", "--version"], check=True, capture_output=True).stdout


def test_a_file_that_holds_nothing_of_a_ring_is_not_imported(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    for content, default, system in (
        ("def test_x(): ...", False, True),
        ("pytestmark = pytest.mark.system\n", True, False),
        ("pytestmark = [needs_proc, pytest.mark.system]\n", True, False),
        ("@pytest.mark.system\ndef test_x(): ...", True, False),
        ("@pytest.mark.system\ndef test_x(): ...\ndef test_y(): ...", False, False),
    ):
        file.write_text(content)
        assert (rings.holds_none_of(file, rings.DEFAULT), rings.holds_none_of(file, "system")) == (default, system)
        assert rings.holds_none_of(file, "research")
        assert not rings.holds_none_of(file, "")


def test_research_has_its_own_ring(request: pytest.FixtureRequest) -> None:
    file = next(rings.RESEARCH_TESTS.rglob("test_*.py"))
    assert [ring for ring in (rings.DEFAULT, "system", "research") if not rings.holds_none_of(file, ring)] == [
        "research"
    ]
    of_research = pytest.Function.from_parent(
        pytest.Module.from_parent(request.session, path=file), name="test_x", callobj=lambda: None
    )
    rings.put_research_into_its_ring([request.node, of_research])
    assert (rings.rings_of(request.node), rings.rings_of(of_research)) == ([], ["research"])
    assert rings.keeps_to_itself(of_research)
