"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import rings
from tests.command_server import CommandServer, serving
from tests.rings import Guard

_USER = Path(tempfile.gettempdir()) / "fl-sim-tests"  # not the real user's
os.environ |= {"XDG_STATE_HOME": str(_USER), "XDG_CACHE_HOME": str(_USER / "cache")}
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# A slow machine is not a failure; benchmarks/ measures speed. The same examples in every run, so that no chance decides
# what a test notices; benchmarks/fuzz.py looks for others.
settings.register_profile("fl_sim", deadline=None, derandomize=True)
settings.load_profile("fl_sim")

REPOSITORY = Path(__file__).resolve().parents[1]

_guard = Guard()


def pytest_configure(config: pytest.Config) -> None:
    """Run files whole, whatever the ring of their tests, where the command names nothing but files.

    Ctrl-C reaches what the tests start, also in a job in the background, for which shells have it ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.option.markexpr == rings.DEFAULT and all(".py" in argument for argument in config.args):
        config.option.markexpr = ""


@pytest.hookimpl(optionalhook=True)  # also without xdist
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return a worker per processor, and one more where tests wait for Ray, for a disk or for a signal."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return processors + (config.option.markexpr not in (rings.DEFAULT, "research"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out, without importing them, the files that have no test of the selected ring."""
    is_tests = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    return True if is_tests and rings.holds_none_of(collection_path, config.option.markexpr) else None


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test its ring, and refuse one that is in two."""
    rings.put_most_cases_into_nightly(items)
    rings.put_research_into_its_ring(items)
    for item in items:
        if len(found := rings.rings_of(item)) > 1:
            raise pytest.UsageError(f"{item.nodeid} is in the rings {', '.join(found)}; allowed: one (tests/rings.py)")


def pytest_collectstart() -> None:
    """Collect no garbage while importing what the tests need, which makes a million objects that stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what is imported by now out of every later garbage collection."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Guard a test of the default or the research ring, its fixtures included."""
    _guard.test = item.nodeid if rings.keeps_to_itself(item) else None
    try:
        return (yield)
    finally:
        _guard.test = None


@pytest.fixture(scope="session")
def corpus() -> Path:
    """Return the tiny corpus of :mod:`tests.tiny`, which all tests share: it is only read."""
    from tests.tiny import shared_corpus  # not at the top: the variables above come before what it imports

    return shared_corpus()


@pytest.fixture(scope="session")
def small() -> Path:
    """Return the small corpus of :mod:`tests.e2e.small_runs`, which all tests share: it is only read."""
    from tests.e2e.small_runs import shared_corpus

    return shared_corpus()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real corpora next to the checkout; skip the test if it is absent."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the real corpora (../shared/data) are not on this machine")
    return folder


@pytest.fixture(scope="session")
def command_server() -> Iterator[CommandServer]:
    """Return the server that runs command lines without a start of their own (tests/command_server.py)."""
    with serving() as server:
        yield server


@pytest.fixture
def clean_commit(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the sources be those of a commit of the history without changes, which a record may name; return it."""
    from fl_sim.research import study_files
    from fl_sim.storage import environment

    commit = "c" * 40
    monkeypatch.setattr(environment, "git_state", lambda *_: {"commit": commit, "dirty": False})
    monkeypatch.setattr(study_files, "history", lambda: frozenset({commit}))
    return commit


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``refusal("run", "--rounds", 0)`` is the one line with which ``fl-sim`` refuses its input (exit code 2)."""
    from fl_sim.cli.main import main

    def of(*words: object) -> str:
        capsys.readouterr()
        code, output = main([*map(str, words)]), capsys.readouterr()
        assert (code, output.out, output.err.count("\n")) == (2, "", 1), output
        return output.err

    return of


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the plots of runs, which take longer than a small run and are tested elsewhere."""
    monkeypatch.setattr("fl_sim.reporting.plots.write_run_plots", lambda run: None)
