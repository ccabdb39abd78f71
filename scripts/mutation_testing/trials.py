"""Run tests in a copy of the tree and judge a mutation by them."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mutation_testing.catalogue import Mutation
from mutation_testing.copies import mutated

Outcome = Literal["killed", "survived", "broken"]

_PASSED, _FAILED = 0, 1  # exit codes of pytest
_LINE = re.compile(r"^(FAILED|ERROR) (\S+(?:\[.*?\])?)(?: - (.*))?$", re.MULTILINE)
_NO_FAULT = re.compile(r"^(SyntaxError|IndentationError|ImportError|ModuleNotFoundError|NameError)\b")
# In one process, without the plug-ins of other packages, which take longer to import than most of these tests run.
_SCRIPTS = Path(__file__).resolve().parents[1]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    ["pytest", "hypothesis", "numpy", "scipy.stats", "pandas", "torch", "transformers.models.gpt2.modeling_gpt2"]
)
_OPTIONS = ("-x", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", "-o", "addopts=--strict-markers")


@dataclass(frozen=True, slots=True)
class TestRun:
    """Hold the result of a run of pytest.

    Attributes:
        code: its exit code; None if it took too long.
        failures: the failing tests, each with the first line of its reason.
        ran: whether any test ran to its end.
        output: its last lines.
        seconds: the time it took.
    """

    code: int | None
    failures: tuple[tuple[str, str], ...]
    ran: bool
    output: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Judge one mutation.

    Attributes:
        mutation: the mutation.
        outcome: ``killed`` if a test failed or took too long, ``survived`` if all passed, ``broken`` if the tests prove
            nothing: they fail without the fault, did not run, or the mutated module could not be imported.
        by: the test that noticed; None if none did.
        reason: the first line of the failure, or why the entry is broken.
        seconds: the time of its tests.
    """

    mutation: Mutation
    outcome: Outcome
    by: str | None
    reason: str
    seconds: float

    @property
    def accepted(self) -> bool:
        """Return whether the gate accepts it: killed, or explained as equivalent and not noticed."""
        return self.outcome == ("killed" if self.mutation.equivalent is None else "survived")


def environment_of(copy: Path) -> dict[str, str]:
    """Return the environment in which tests import the copy, use one thread, and stay off the network."""
    offline = {"HF_HUB_OFFLINE": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    own = {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "COLUMNS": "500", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return inherited | offline | own


def check_imports(copy: Path) -> None:
    """Check that a test in the copy imports the copy.

    Raises:
        RuntimeError: it imports another tree.
    """
    code = "import fl_sim.strategies.primitives.limits as module; print(module.__file__)"
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=copy, env=environment_of(copy), capture_output=True, text=True, check=True)
    if not Path(found.stdout.strip()).resolve().is_relative_to(copy.resolve()):
        raise RuntimeError(f"tests in {copy} would import {found.stdout.strip()}")


def run_tests(copy: Path, tests: Sequence[str], timeout: float, *, to_the_end: bool = False) -> TestRun:
    """Run tests in a copy of the tree, with all processes that they start, up to ``timeout`` seconds.

    The process is a fork of one that has the libraries imported, and nothing of fl_sim.
    """
    options = [option for option in _OPTIONS if not (to_the_end and option == "-x")]
    began = time.monotonic()
    with tempfile.NamedTemporaryFile() as output:
        process = _FORKS.Process(target=_be_pytest, args=(copy, output.name, [*options, *tests]))
        process.start()
        process.join(timeout)
        code = process.exitcode
        with suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        content = output.read().decode(errors="replace") if code is not None else ""
    failures = tuple((test, reason or "") for _, test, reason in _LINE.findall(content))
    ran = re.search(r"\b[1-9]\d* (passed|failed|error)", content) is not None
    return TestRun(code, failures, ran, content[-3000:], time.monotonic() - began)


def _be_pytest(copy: Path, output: str, words: list[str]) -> None:
    """Become a session of pytest in ``copy``, with its own process group and all output in a file; never return."""
    os.setsid()
    os.chdir(copy)
    os.environ.clear()
    os.environ.update(environment_of(copy))
    sys.path[:] = [str(copy), *(path for path in sys.path if path != str(_SCRIPTS))]
    file = os.open(output, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(file, stream)
    import pytest

    code = int(pytest.main(words))
    sys.stdout.flush()
    os._exit(code)


def failing_without_fault(copy: Path, tests: Sequence[str], timeout: float) -> dict[str, str]:
    """Return those of ``tests`` that fail or do not run in an unmutated copy, with the reason."""
    by_file: dict[str, list[str]] = {}
    for test in tests:
        by_file.setdefault(test.partition("::")[0], []).append(test)
    failing: dict[str, str] = {}
    for own in by_file.values():
        run = run_tests(copy, own, timeout, to_the_end=True)
        if run.code == _PASSED and run.ran:
            continue
        for test in own:
            reasons = [reason for failed, reason in run.failures if _is_part(failed, test)]
            if reasons or run.code != _FAILED:
                failing[test] = (reasons or [last_line(run)])[0]
    return failing


def _is_part(failed: str, test: str) -> bool:
    """Return whether the failed node, or the file that could not be imported, belongs to ``test``."""
    return failed == test or failed.startswith((f"{test}::", f"{test}[")) or test.startswith(f"{failed}::")


def last_line(run: TestRun) -> str:
    """Return the last line of a run's output, or that it took too long."""
    lines = [line for line in run.output.splitlines() if line.strip()]
    return "took too long" if run.code is None else (lines or ["no output"])[-1]


def judge(copy: Path, mutation: Mutation, timeout: float) -> Verdict:
    """Put the fault of a mutation into the copy, run its tests, and take the fault out again."""
    with mutated(copy, mutation):
        run = run_tests(copy, mutation.tests, timeout)
    return verdict_of(mutation, run)


def verdict_of(mutation: Mutation, run: TestRun) -> Verdict:
    """Return the verdict on a mutation from the run of its tests."""
    test, reason = (run.failures or [(None, last_line(run))])[0]
    if run.code is None:
        return Verdict(mutation, "killed", None, "the tests took too long", run.seconds)
    if run.code == _PASSED and run.ran:
        return Verdict(mutation, "survived", None, "", run.seconds)
    if run.code == _FAILED and test is not None and "::" in test and not _NO_FAULT.match(reason):
        return Verdict(mutation, "killed", test, reason, run.seconds)
    return Verdict(mutation, "broken", None, f"no test could tell: {reason}", run.seconds)
