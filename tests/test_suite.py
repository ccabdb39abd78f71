"""The suite as pyproject.toml and tests/conftest.py run it."""

from __future__ import annotations

import tomllib

from tests.conftest import LONGEST, REPOSITORY


def test_the_files_that_run_first_exist() -> None:
    missing = [name for name in LONGEST if not (REPOSITORY / "tests" / name).is_file()]
    assert missing == []
    assert len(set(LONGEST)) == len(LONGEST)


def test_pytest_alone_runs_on_all_cores_a_file_per_worker() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    words = project["tool"]["pytest"]["ini_options"]["addopts"].split()
    assert {"-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder"} <= set(words)


def test_ci_runs_pytest_as_anyone_does() -> None:
    lines = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("pytest")] == [
        "pytest --durations=40",
        "pytest -m documented -n 2 --dist worksteal --durations=0",
    ]
