"""SIGTERM and SIGHUP end a command as Ctrl-C does: at its round, at start-up, on Ray, and in a preparation."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_sim.experiments.training_text
from fl_sim import stop_signals
from fl_sim.cli.main import main
from fl_sim.data_prep.corpus_writer import SplitWriter
from fl_sim.engines import simulation
from fl_sim.engines.engine import Engine
from fl_sim.stop_signals import Stopped, raising_stops, stops_handled_by
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.storage.run_folder import RunFolder
from tests.e2e.processes import needs_proc, processes_in, wait_until_none_in, wait_while_running
from tests.e2e.small_runs import QUICK_TO_LOAD, configuration, measured, model_of, settings
from tests.tiny import command_line

STATUS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def hang_ups_are_heard() -> Iterator[None]:
    """Count SIGHUP also where the tests run under nohup: commands leave a signal ignored that they find ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def no_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count every signal, however soon after another."""
    monkeypatch.setattr(stop_signals, "_ECHO_SECONDS", 0.0)


def raise_after(monkeypatch: pytest.MonkeyPatch, owner: Any, method: str, *names: str) -> None:
    """Make ``owner.method`` raise signals after its first call."""
    original, left = getattr(owner, method), list(names)

    def raising(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        while left:
            signal.raise_signal(signal.Signals[left.pop(0)])
        return result

    monkeypatch.setattr(owner, method, raising)


@pytest.mark.sample(1)
@pytest.mark.system
@pytest.mark.parametrize("name", STATUS)
def test_a_run_stops_after_its_round_and_resumes_to_the_same_end(
    name: str, corpus: Path, tmp_path: Path, no_plots: None, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        raise_after(patched, Checkpoint, "write", name)
        words = ["run", "--quiet", "--json", *command_line(settings(corpus, out, rounds=4, **QUICK_TO_LOAD))]
        assert main(words) == STATUS[name]
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert (result["stopped"], result["rounds"], result["signal"]) == ("interrupted", 1, name)
    assert printed.err == f"interrupted after round 1; continue with: fl-sim resume {out}\n"
    assert not (out / "encoded").exists()
    resumed = simulation.resume(out)
    assert (resumed.result or {})["stopped"] == "rounds"
    assert "signal" not in (resumed.result or {})
    whole = simulation.run(configuration(corpus, tmp_path / "whole", rounds=4, **QUICK_TO_LOAD))
    assert measured(resumed) == measured(whole)
    assert np.array_equal(model_of(resumed), model_of(whole))


@pytest.mark.sample(1)
@pytest.mark.system
@pytest.mark.parametrize("name", STATUS)
def test_a_second_signal_stops_at_once(
    name: str, corpus: Path, tmp_path: Path, no_plots: None, no_echo: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    raise_after(monkeypatch, Checkpoint, "write", "SIGHUP", name)
    assert main(["run", "--quiet", *command_line(settings(corpus, out, rounds=4, **QUICK_TO_LOAD))]) == STATUS[name]
    assert RunFolder.open(out).result is None
    assert not (out / "encoded").exists()


@pytest.mark.parametrize("name", STATUS)
def test_a_run_that_is_stopped_at_its_start_leaves_nothing(
    name: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    raise_after(monkeypatch, fl_sim.experiments.training_text, "encode_once", name)
    out = tmp_path / "runs" / "first"
    assert main(["run", "--quiet", *command_line(settings(corpus, out, **QUICK_TO_LOAD))]) == STATUS[name]
    words = "interrupted" if name == "SIGINT" else f"interrupted by {name}"
    assert capsys.readouterr().err == f"fl-sim run: {words}\n"
    assert not out.parent.exists()


@pytest.mark.parametrize("name", STATUS)
def test_a_preparation_that_is_stopped_leaves_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text('{"user": "ann", "text": "Ada left."}\n' * 3)
    raise_after(monkeypatch, SplitWriter, "add", name)
    monkeypatch.setattr("fl_sim.data_prep.store.tagged_store._SECONDS_PER_BATCH", math.inf)  # a slow machine too
    columns = ["--source", str(source), "--text-column", "text", "--user-column", "user", "--tagger", "rules"]
    assert main(["prepare", "jsonl", *columns, "--out", str(tmp_path / "corpus")]) == STATUS[name]
    said = capsys.readouterr().err.splitlines()  # a slow machine has said how far it is
    assert said[-1].startswith("fl-sim prepare jsonl: interrupted")
    assert "Traceback" not in said[0]
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


class Finalized:
    """An object whose finalizer is interrupted, so that Python discards the exception."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.system
@pytest.mark.parametrize(("owner", "function"), [(fl_sim.experiments.training_text, "encode_once"), (Engine, "run")])
def test_a_stop_that_python_discards_still_stops_the_run(
    owner: Any, function: str, corpus: Path, tmp_path: Path, no_plots: None, monkeypatch: pytest.MonkeyPatch,
    capfd: Capture,
) -> None:  # fmt: skip
    out, original = tmp_path / "run", getattr(owner, function)

    def interrupted(*arguments: Any, **named: Any) -> Any:
        Finalized()
        return original(*arguments, **named)

    monkeypatch.setattr(owner, function, interrupted)
    assert main(["run", "--quiet", *command_line(settings(corpus, out, rounds=50, **QUICK_TO_LOAD))]) == 143
    assert "Exception ignored" not in capfd.readouterr().err
    assert not out.exists() or len(RunFolder.open(out).metrics()) <= 2


def test_an_ignored_signal_stays_ignored() -> None:
    """As ``nohup`` starts a command."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with raising_stops():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_as_before_after_the_block() -> None:
    before = [signal.getsignal(number) for number in stop_signals.STOP_SIGNALS]
    with stops_handled_by(lambda name: None):
        assert signal.getsignal(signal.SIGTERM) not in before
        signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(number) for number in stop_signals.STOP_SIGNALS] == before


def test_ctrl_c_before_anything_is_parsed_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted(*words: object, **settings: object) -> None:
        raise Stopped("SIGHUP")

    monkeypatch.setattr("fl_sim.cli.main.fl_sim.make_context", interrupted)
    assert main(["run"]) == 129
    assert capsys.readouterr().err == "fl-sim: interrupted by SIGHUP\n"


# Real processes

Start = Callable[..., subprocess.Popen[bytes]]

FL_SIM = ("-m", "fl_sim.cli.main")
WITH_SLOW_NODES = (
    "-c",
    """
import sys, time
from flwr.clientapp import ClientApp
from fl_sim.cli.main import main
from fl_sim.engines import engine

engine.client_app = ClientApp()

@engine.client_app.train("bounded_sum")
def train(message, context):
    time.sleep(600)

sys.exit(main())
""",
)


@pytest.fixture
def start(place: Path) -> Iterator[Start]:
    """Start ``fl-sim`` in ``place``, in a session of its own; what it prints goes to a file there."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(*words: str, program: tuple[str, str] = FL_SIM) -> subprocess.Popen[bytes]:
        with (place / "printed").open("wb") as printed:
            command = [sys.executable, *program, *words]
            started.append(subprocess.Popen(command, cwd=place, stdout=printed, stderr=printed, start_new_session=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def wait_for(process: subprocess.Popen[bytes], place: Path, holds: Callable[[], bool]) -> None:
    why = wait_while_running(process, holds, 300, 0.02)
    assert why is None, f"{why}: {(place / 'printed').read_text()}, with {processes_in(place)}"


def printed_at_end(process: subprocess.Popen[bytes], place: Path, status: int) -> str:
    """Return what a command printed, which must end soon and leave no process."""
    assert process.wait(60) == status
    assert wait_until_none_in(place, 5) == {}
    return (place / "printed").read_text()


def ray_run(corpus: Path) -> list[str]:
    on_ray = {"engine__name": "ray", "engine__nodes": 2, "engine__num_cpus": 2, "rounds": 1000, "checkpoint_every": 1}
    return ["run", "--quiet", *command_line(settings(corpus, Path("run"), **on_ray, **QUICK_TO_LOAD))]


@pytest.mark.nightly
@needs_proc
def test_a_run_on_ray_leaves_no_process_and_no_stack_on_the_screen(corpus: Path, place: Path, start: Start) -> None:
    """A closing terminal hangs up the whole group, Ray's processes included; a SIGTERM then is an echo."""
    process = start(*ray_run(corpus))
    wait_for(process, place, (place / "run" / "checkpoint" / "latest.safetensors").exists)
    os.killpg(process.pid, signal.SIGHUP)
    process.terminate()
    printed = printed_at_end(process, place, STATUS["SIGHUP"])
    assert printed.startswith("stopping after the round under way; SIGHUP again stops at once\n")
    assert "received at time" not in printed
    assert "interrupted after round" in printed
    assert not (place / "run" / "encoded").exists()
    assert (RunFolder.open(place / "run").result or {})["signal"] == "SIGHUP"


@pytest.mark.nightly
@needs_proc
def test_a_second_ctrl_c_stops_a_run_on_ray_at_once(corpus: Path, place: Path, start: Start) -> None:
    """The nodes work on a round for minutes, and the server waits for them in one of Flower's threads."""
    process = start(*ray_run(corpus), program=WITH_SLOW_NODES)
    wait_for(process, place, lambda: bool(processes_in(place, "ClientAppActor.run")))
    os.killpg(process.pid, signal.SIGINT)
    wait_for(process, place, lambda: "Ctrl-C again stops at once" in (place / "printed").read_text())
    os.killpg(process.pid, signal.SIGINT)  # two signals at once would count as one
    assert "Traceback" not in printed_at_end(process, place, STATUS["SIGINT"])
    assert RunFolder.open(place / "run").last_round == 0


@pytest.mark.nightly
@needs_proc
def test_a_run_that_is_stopped_while_ray_starts_leaves_nothing(corpus: Path, place: Path, start: Start) -> None:
    process = start(*ray_run(corpus))
    wait_for(process, place, lambda: len(processes_in(place)) >= 4)
    process.terminate()
    printed = printed_at_end(process, place, STATUS["SIGTERM"])
    assert printed.startswith("fl-sim run: interrupted by SIGTERM")
    assert printed.count("\n") == 1
    assert not (place / "run").exists()


@pytest.mark.nightly
@needs_proc
def test_a_sweep_passes_the_signal_on_to_its_runs(corpus: Path, place: Path, start: Start) -> None:
    given = settings(corpus, place, rounds=1000, **QUICK_TO_LOAD)
    del given["out"]
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in given.items()]
    grid = '[grid]\n"privacy.user_cap" = [1.0, 2.0, 3.0]\n'
    (place / "sweep.toml").write_text("\n".join([grid, "[set]", *lines]))
    process = start("sweep", "sweep.toml", "--out", "sweep", "--jobs", "2", "--quiet")
    wait_for(process, place, lambda: len(list(place.glob("sweep/runs/*/checkpoint/*.safetensors"))) >= 2)
    process.terminate()
    assert "interrupted; continue with" in printed_at_end(process, place, STATUS["SIGTERM"])
    results = [RunFolder.open(folder).result or {} for folder in (place / "sweep" / "runs").iterdir()]
    assert [result["stopped"] for result in results] == ["interrupted"] * 2
