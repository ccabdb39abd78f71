"""One run on different engines, cut into different nodes, interrupted and killed: the result is the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from clients.client_app import reply_with_failure
from clients.selection import select
from data_prep.corpus import Corpus
from fl_sim import simulate
from fl_sim.config import EngineConfig
from fl_sim.engines import run_on_ray
from fl_sim.grids import GridError
from fl_sim.results import ResultsError, RunFolder
from strategies import sampling
from tests.e2e.processes import end_all_in, free_ports, needs_proc, processes_in, wait_until_none_in
from tests.e2e.small_runs import (
    SAME_MODEL,
    USERS,
    apart,
    command_line,
    configuration,
    measured,
    model_of,
    settings,
    small_corpus,
)

Run = Callable[..., RunFolder]
LEARNING_RATE = 0.01
PLAIN = {"server__optimizer": "sgd", "server__learning_rate": LEARNING_RATE}
STRATEGIES = {
    "uedp": {"privacy__q_s": 0.8, "privacy__user_cap": 2.0},
    "user_level": {},
    "noiseless": {"privacy__q_s": 0.8},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_corpus(tmp_path_factory.mktemp("corpus") / "small")


@pytest.fixture(autouse=True)
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than these runs do, and is tested elsewhere."""
    monkeypatch.setattr("fl_sim.plots.write_run_plots", lambda run: None)


@pytest.fixture
def run(corpus: Path, tmp_path: Path) -> Run:
    """``run("name", rounds=3)`` runs inline in this process and returns the run folder."""
    return lambda name, **changes: simulate.run(configuration(corpus, tmp_path / name, **changes))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A working folder for commands; whatever process a failed test leaves in it is ended."""
    folder = tmp_path / "place"
    folder.mkdir()
    yield folder
    end_all_in(folder)


# --- the same model whatever the number of nodes ---------------------------------------------------------------------


@pytest.mark.parametrize("q_u", [1.0, 0.5])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_model_does_not_depend_on_the_number_of_nodes(run: Run, strategy: str, q_u: float) -> None:
    changes = {"privacy__strategy": strategy, "privacy__q_u": q_u, **PLAIN, **STRATEGIES[strategy]}
    runs = {nodes: run(f"{nodes}", engine__nodes=nodes, **changes) for nodes in (1, 2, 5, USERS)}
    whole = runs.pop(1)
    for divided in runs.values():
        assert apart(whole, divided, LEARNING_RATE) < SAME_MODEL
        counts = ["cohort_users", "cohort_sentences", "clipped_fraction", "failed_nodes", "nonfinite", "noise_norm"]
        assert divided.metrics()[counts].equals(whole.metrics()[counts])


def test_some_users_have_more_eligible_sentences_than_their_cap_and_some_fewer(corpus: Path) -> None:
    """Else the test above would not see one of the two ways to a user's sum."""
    everybody = np.array([[0, USERS]])
    ownership = Corpus.open(corpus).ownership("train")
    eligible = select(ownership, everybody, sampling.round_seed(0, 1), q_e=0.5, q_s=0.8).counts
    cap = STRATEGIES["uedp"]["privacy__user_cap"]
    assert (eligible > cap).any()
    assert ((eligible > 0) & (eligible <= cap)).any()


def test_the_tolerance_is_narrow_enough_to_miss_no_user(run: Run) -> None:
    changes = {"privacy__strategy": "noiseless", **PLAIN, **STRATEGIES["noiseless"]}
    assert apart(run("one"), run("other", seed=1), LEARNING_RATE) > 1000 * SAME_MODEL
    all_of_them, all_but_some = run("all", **changes), run("some", privacy__q_u=0.5, **changes)
    assert apart(all_of_them, all_but_some, LEARNING_RATE) > 1000 * SAME_MODEL


def test_with_adam_and_noise_the_model_does_not_depend_on_the_number_of_nodes(run: Run) -> None:
    one, six = (run(f"{nodes}", engine__nodes=nodes, **STRATEGIES["uedp"]) for nodes in (1, USERS))
    assert apart(one, six, LEARNING_RATE) < SAME_MODEL


def test_under_adam_without_noise_only_numbers_that_have_no_gradient_wander(run: Run) -> None:
    """Adam divides by the gradient's own size, so it makes steps of what is only rounding.

    That is so for the biases of the attention's keys (16 of this model's numbers): a softmax does not feel them, so
    they change no prediction.
    """
    one, six = (
        run(f"{nodes}", engine__nodes=nodes, privacy__strategy="noiseless", privacy__q_s=1.0) for nodes in (1, USERS)
    )
    wandered = np.abs(model_of(one) - model_of(six)) > 1e-6
    assert 0 < wandered.sum() < 0.001 * wandered.size
    losses = [folder.metrics()["loss"].iloc[-1] for folder in (one, six)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_run_twice_is_the_same_to_the_last_bit(run: Run, strategy: str) -> None:
    changes = {"privacy__strategy": strategy, "privacy__q_u": 0.5, "engine__nodes": 2, **STRATEGIES[strategy]}
    first, second = run("first", **changes), run("second", **changes)
    assert np.array_equal(model_of(first), model_of(second))
    assert measured(first) == measured(second)


# --- interrupted, killed, resumed ------------------------------------------------------------------------------------


def test_an_interrupted_run_ends_as_if_it_had_not_been(run: Run, corpus: Path, tmp_path: Path) -> None:
    changes = {"rounds": 4, "engine__nodes": 2, **STRATEGIES["uedp"]}
    whole = run("whole", **changes)

    def interrupt(row: simulate.Row) -> None:
        if row["round"] == 1:
            signal.raise_signal(signal.SIGINT)

    stopped = simulate.run(configuration(corpus, tmp_path / "stopped", **changes), observer=interrupt)
    assert stopped.result is not None
    assert stopped.result["stopped"] == "interrupted"
    assert stopped.result["rounds"] < 4
    resumed = simulate.resume(stopped.path)
    assert np.array_equal(model_of(whole), model_of(resumed))
    assert measured(whole) == measured(resumed)
    assert _but_for_time(whole) == _but_for_time(resumed)


def test_a_finished_run_refuses_to_go_on(run: Run) -> None:
    with pytest.raises(ResultsError, match="finished"):
        simulate.resume(run("done", rounds=1).path)


def test_a_run_refuses_to_go_on_with_another_corpus(tmp_path: Path) -> None:
    corpus = small_corpus(tmp_path / "corpus")
    config = configuration(corpus, tmp_path / "run", rounds=3)
    simulate.run(config, observer=lambda row: row["round"] == 0 and signal.raise_signal(signal.SIGINT))
    corpus.rename(tmp_path / "old")
    small_corpus(corpus, word="ships")
    with pytest.raises(ResultsError, match="corpus"):
        simulate.resume(tmp_path / "run")


# Kills its own process while the second of two nodes is at work in round 2: the third and fourth call of four.
_KILLED_IN_ROUND_2 = """
import os, signal, sys
import clients.client_app as node
from fl_sim.cli import main

work, calls = node.bounded_sum, []

def work_or_die(*arguments):
    calls.append(arguments)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return work(*arguments)

node.bounded_sum = work_or_die
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_run_killed_in_the_middle_of_a_round_ends_as_if_it_had_not_been(
    run: Run, corpus: Path, tmp_path: Path, place: Path
) -> None:
    changes = {"rounds": 3, "engine__nodes": 2, **STRATEGIES["uedp"]}
    words = command_line(settings(corpus, tmp_path / "killed", **changes))
    command = [sys.executable, "-c", _KILLED_IN_ROUND_2, "run", "--quiet", *words]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert RunFolder.open(tmp_path / "killed").last_round == 1
    resumed, whole = simulate.resume(tmp_path / "killed"), run("whole", **changes)
    assert np.array_equal(model_of(whole), model_of(resumed))
    assert measured(whole) == measured(resumed)


# --- on Ray ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@needs_proc
def test_ray_gives_the_inline_model_quietly_and_leaves_nothing_behind(
    run: Run, corpus: Path, tmp_path: Path, place: Path
) -> None:
    changes = {"engine__nodes": 2, **PLAIN, **STRATEGIES["uedp"]}
    done = _fl_sim(place, "run", "--json", *_on_ray(corpus, tmp_path / "ray", **changes))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stopped"] == "rounds"
    assert _unexpected(done.stderr) == []
    assert wait_until_none_in(place) == {}
    on_ray = RunFolder.open(tmp_path / "ray")
    assert apart(run("inline", **changes), on_ray, LEARNING_RATE) < SAME_MODEL
    assert (on_ray.metrics()["failed_nodes"].dropna() == 0).all()


@pytest.mark.slow
@needs_proc
def test_ctrl_c_stops_after_the_round_and_says_how_to_go_on(corpus: Path, tmp_path: Path, place: Path) -> None:
    with _started(place, "run", *_on_ray(corpus, tmp_path / "run", rounds=5000, engine__nodes=2)) as process:
        _wait_for_round(tmp_path / "run", 1, process)
        os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to the whole group, Ray's processes included
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert f"go on with: fl-sim resume {tmp_path / 'run'}" in errors
    assert "Traceback" not in errors
    assert wait_until_none_in(place) == {}
    stopped = RunFolder.open(tmp_path / "run")
    assert stopped.result is not None
    assert stopped.result["stopped"] == "interrupted"
    assert (stopped.metrics()["failed_nodes"].dropna() == 0).all()


@pytest.mark.slow
@needs_proc
def test_a_second_ctrl_c_stops_at_once(tmp_path: Path, place: Path) -> None:
    """The nodes are made to work for minutes on a round; the server waits for them in a thread of Flower's."""
    corpus = small_corpus(tmp_path / "corpus", users=40, longest=4000)
    big = {"model__hidden": 384, "model__layers": 6, "evaluation__max_sentences": 1, "privacy__q_s": 1.0}
    with _started(place, "run", *_on_ray(corpus, tmp_path / "run", engine__nodes=2, **big)) as process:
        _wait_for_round(tmp_path / "run", 0, process)
        _wait_for(lambda: any("ClientAppActor.run" in name for name in processes_in(place).values()), process)
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr is not None
        assert any("Ctrl-C again stops at once" in line for line in process.stderr)  # two signals at once would be one
        os.killpg(process.pid, signal.SIGINT)
        asked = time.monotonic()
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert time.monotonic() - asked < 60
    assert "Traceback" not in errors
    assert wait_until_none_in(place) == {}
    assert RunFolder.open(tmp_path / "run").last_round == 0


@pytest.mark.slow
@needs_proc
def test_a_run_joins_an_existing_cluster_and_leaves_it_alive(
    run: Run, corpus: Path, tmp_path: Path, place: Path
) -> None:
    head = place / "head"
    head.mkdir()
    with _cluster(head) as address:
        changes = {"engine__nodes": 2, "engine__address": address, **PLAIN, **STRATEGIES["uedp"]}
        for name in ("first", "second"):
            done = _fl_sim(place, "run", *_on_ray(corpus, tmp_path / name, **changes))
            assert done.returncode == 0, done.stderr
            assert _unexpected(done.stderr) == []
            assert wait_until_none_in(place) == {}
        assert _raylet_in(head)
    assert wait_until_none_in(head) == {}
    first, second = (RunFolder.open(tmp_path / name) for name in ("first", "second"))
    assert np.array_equal(model_of(first), model_of(second))
    assert measured(first) == measured(second)
    inline = run("inline", engine__nodes=2, **PLAIN, **STRATEGIES["uedp"])
    assert apart(inline, first, LEARNING_RATE) < SAME_MODEL


@pytest.mark.slow
@needs_proc
def test_a_worker_that_dies_starts_again_and_repeats_its_work(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    once = "if number == 2 and node == 0 and not mark.exists(): mark.touch(); os.kill(os.getpid(), signal.SIGKILL)"
    assert _failures_on_ray(f"mark = pathlib.Path({str(place / 'died')!r})\n{once}") == [0, 0, 0, 0]
    assert (place / "died").exists()
    assert capsys.readouterr().out == ""
    assert wait_until_none_in(place) == {}


@pytest.mark.slow
@needs_proc
def test_a_run_whose_nodes_all_fail_ends_with_the_reason(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(GridError, match=r"all 2 nodes failed in this round: .*no corpus here"):
        _failures_on_ray("if number == 2: raise OSError('no corpus here')")
    assert wait_until_none_in(place) == {}


def _failures_on_ray(mishap: str) -> list[int]:
    """How many of two nodes failed in each of four rounds in which each node does ``mishap`` and answers."""
    client, server, failed = ClientApp(), ServerApp(), list[int]()

    @client.train(mods=[reply_with_failure])
    def train(message: Message, context: Context) -> Message:
        names = {"number": message.content["config"]["round"], "node": context.node_config["partition-id"]}
        exec(f"import os, pathlib, signal\n{mishap}", names)
        return Message(message.content, reply_to=message)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        for number in range(1, 5):
            content = RecordDict({"config": ConfigRecord({"round": number})})
            requests = [Message(content, node, "train") for node in grid.get_node_ids()]
            replies = grid.send_and_receive(requests, timeout=120)
            failed.append(sum(reply.has_error() for reply in replies))

    run_on_ray(server, client, EngineConfig(nodes=2, num_cpus=2))
    return failed


def _on_ray(corpus: Path, out: Path, **changes: object) -> list[str]:
    return command_line(settings(corpus, out, **{"engine__name": "ray", **changes}))


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "fl_sim.cli", *words]


def _fl_sim(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_command(*words), cwd=place, capture_output=True, text=True, timeout=300, check=False)


@contextmanager
def _started(place: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """``fl-sim`` at work in a process group of its own, as a shell would start it."""
    with subprocess.Popen(
        _command(*words), cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def _cluster(place: Path) -> Iterator[str]:
    """A Ray cluster of one machine with two CPUs; its address.

    Its files lie in a folder of its own: in the usual one, a note of its address would mislead every Ray started after
    it. The folder's name is short, because names of sockets must be.
    """
    ports = [str(port) for port in free_ports(2)]
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"]
    options = ["--node-ip-address=127.0.0.1", f"--port={ports[0]}", f"--ray-client-server-port={ports[1]}"]
    quiet = ["--include-dashboard=false", "--disable-usage-stats"]
    with (
        tempfile.TemporaryDirectory(prefix="ray") as files,
        subprocess.Popen(
            [*ray, *options, *quiet, f"--temp-dir={files}"],
            cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as head,
    ):  # fmt: skip
        try:
            _wait_for(lambda: _raylet_in(place), head)
            yield f"127.0.0.1:{ports[0]}"
        finally:
            head.terminate()
            head.communicate(timeout=60)


def _raylet_in(place: Path) -> bool:
    return any("raylet/raylet" in command for command in processes_in(place).values())


def _wait_for(holds: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"ended too early, or took too long: {process.communicate()}")
        time.sleep(0.1)


def _wait_for_round(folder: Path, number: int, process: subprocess.Popen[str]) -> None:
    metrics = folder / "metrics.jsonl"
    _wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") > number, process)


def _unexpected(errors: str) -> list[str]:
    """The lines of stderr that are neither a note on the run's promise nor the progress bar."""
    lines = [line for line in errors.splitlines() if line.strip()]
    return [line for line in lines if not line.startswith("note: ") and "ε user" not in line]


def _but_for_time(run: RunFolder) -> dict[str, object]:
    """The result without durations, and without the identity of the run, which its ledger has at random."""
    result = dict(run.result or {})
    return {key: value for key, value in result.items() if "seconds" not in key and key != "ledger"}
