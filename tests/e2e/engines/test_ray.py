"""Runs that start Ray: the same model, and stopped by Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.engines import simulation
from fl_sim.storage.run_folder import RunFolder
from tests.e2e.processes import needs_proc, processes_in, wait_until_none_in, wait_while_running
from tests.e2e.small_runs import (
    QUICK_TO_LOAD,
    command_line,
    configuration,
    model_of,
    settings,
)

pytestmark = [needs_proc, pytest.mark.usefixtures("no_plots")]

LEARNING_RATE = 0.01
SETTINGS = {
    "privacy__q_s": 0.8, "privacy__user_cap": 2.0, "server__optimizer": "sgd", "server__learning_rate": LEARNING_RATE,
}  # fmt: skip

# fl-sim without plots, which take longer than these runs. On SIGUSR1 it writes the stacks of its threads to stderr.
_FL_SIM = """
import faulthandler, signal, sys, types
faulthandler.register(signal.SIGUSR1)
plots = sys.modules["fl_sim.reporting.plots"] = types.ModuleType("fl_sim.reporting.plots")
plots.write_run_plots = lambda run: None
from fl_sim.cli.main import main
sys.exit(main())
"""

# The same, with nodes that work on a round for minutes.
_FL_SIM_AT_WORK = (
    """
from flwr.clientapp import ClientApp
from fl_sim.engines import engine
engine.client_app = ClientApp()

@engine.client_app.train("bounded_sum")
def train(message, context):
    import time
    time.sleep(600)
"""
    + _FL_SIM
)


@pytest.mark.system
def test_ray_gives_the_inline_model_quietly_and_leaves_nothing_behind(
    corpus: Path, tmp_path: Path, place: Path
) -> None:
    """Run the real command: with plots, in the folder that it chooses, and on an ASCII terminal.

    The workers share one file of the states of frozen layers, so the model has adapters in its upper layer alone.
    """
    load_model(ModelSpec(hidden=16, heads=2, max_tokens=32), seed=0).save(tmp_path / "model")
    changes = SETTINGS | QUICK_TO_LOAD | {
        "model__name": str(tmp_path / "model"), "model__lora_rank": 2, "model__lora_layers": 1,
        "privacy__initial_model": "disjoint", "corpus__feature_cache": str(tmp_path / "on ray"),
    }  # fmt: skip
    command = [sys.executable, "-m", "fl_sim.cli.main", "run", "--json", *_on_ray(corpus, None, workers=2, **changes)]
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)  # exactly one object
    assert result["stopped"] == "rounds"
    errors = done.stderr.decode("ascii")
    assert "note: N is" in errors
    assert _unexpected(errors) == []
    assert wait_until_none_in(place) == {}
    on_ray = RunFolder.open(result["folder"])
    assert on_ray.path.parent == place / "runs"
    assert not (on_ray.path / "encoded").exists()
    assert list((on_ray.path / "plots").glob("*.png"))
    changes["corpus__feature_cache"] = str(tmp_path / "inline states")
    inline = simulation.run(configuration(corpus, tmp_path / "inline", engine__nodes=2, **changes))
    assert np.array_equal(model_of(inline), model_of(on_ray))
    states = [{p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("inline states", "on ray")]
    assert states[0]
    assert states[0] == states[1]
    assert (on_ray.metrics()["failed_nodes"].dropna() == 0).all()


@pytest.mark.nightly
def test_a_second_ctrl_c_stops_at_once(corpus: Path, tmp_path: Path, place: Path) -> None:
    """The nodes work on a round for minutes, and the server waits for them in one of Flower's threads."""
    with _started(place, _FL_SIM_AT_WORK, "run", *_on_ray(corpus, tmp_path / "run")) as process:
        _wait_for_round(place, tmp_path / "run", 0, process)
        _wait_for(place, lambda: bool(processes_in(place, "ClientAppActor.run")), process)
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr is not None
        assert any(
            "Ctrl-C again stops at once" in line for line in process.stderr
        )  # two signals at once would count as one
        os.killpg(process.pid, signal.SIGINT)
        interrupted = time.monotonic()
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert time.monotonic() - interrupted < 60
    assert "Traceback" not in errors
    assert wait_until_none_in(place) == {}
    assert RunFolder.open(tmp_path / "run").last_round == 0


def _on_ray(corpus: Path, out: Path | None, workers: int = 1, **changes: object) -> list[str]:
    """Return the flags of a run on Ray; without ``out`` the run chooses its folder."""
    engine = {"engine__name": "ray", "engine__nodes": 2, "engine__num_cpus": workers}
    values = settings(corpus, out or Path(), **{**engine, **QUICK_TO_LOAD, **changes})
    return command_line(values if out else {key: value for key, value in values.items() if key != "out"})


def _command(program: str, *words: str) -> list[str]:
    return [sys.executable, "-c", program, *words]


@contextmanager
def _started(place: Path, program: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``fl-sim`` in a new process group, as a shell would start it."""
    with subprocess.Popen(
        _command(program, *words),
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _wait_for(place: Path, holds: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for some five minutes; a failure shows the stacks of the program's threads and its processes."""
    why = wait_while_running(process, holds, 300)
    if why is not None:
        process.send_signal(signal.SIGUSR1)
        time.sleep(2)
        running = processes_in(place)
        process.kill()
        pytest.fail(f"{why}: {process.communicate()}, with {running}")


def _wait_for_round(place: Path, folder: Path, number: int, process: subprocess.Popen[str]) -> None:
    metrics = folder / "metrics.jsonl"
    _wait_for(place, lambda: metrics.exists() and metrics.read_text().count("\n") > number, process)


def _unexpected(errors: str) -> list[str]:
    """Return the lines of stderr that are no note, cost of a round, progress (with ε or inside a round) or reading."""
    lines = [line for line in errors.splitlines() if line.strip()]
    expected = re.compile(r"note: |reading, |\d+ sentences and about .* a round|round \d+: \d+ of about|.*\\u03b5 any")
    return [line for line in lines if not expected.match(line)]
