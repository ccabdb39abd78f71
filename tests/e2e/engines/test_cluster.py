"""Runs on a Ray cluster of two machines (two raylets with one CPU each), one of which is lost."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_sim.engines import simulation
from fl_sim.experiments.training_text import OwnText
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.ledger import Ledger
from fl_sim.strategies.messages import TRAIN_ACTION
from tests.e2e.engines.raylets import cluster_in
from tests.e2e.processes import needs_proc, processes_in, wait_until_none_in
from tests.e2e.small_runs import PLAIN, QUICK_TO_LOAD, SAME_MODEL, UEDP, apart, configuration, measured, model_of

pytestmark = [pytest.mark.nightly, needs_proc, pytest.mark.usefixtures("no_plots")]

ROUNDS = 4
SETTINGS = {"rounds": ROUNDS, **PLAIN, **UEDP, **QUICK_TO_LOAD}
WORKER_BACK_SECONDS = 600.0  # the test fails if it has to wait for longer
_TOKEN = uuid.uuid4().hex
MACHINE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}


class Machines(NamedTuple):
    """A Ray cluster.

    Attributes:
        address: where runs join it.
        place: the working folder of all its processes.
        raylets: the process of each machine; the server joins through the first.
    """

    address: str
    place: Path
    raylets: tuple[int, int]


@pytest.fixture
def machines(place: Path) -> Iterator[Machines]:
    """Yield a cluster of two raylets on this machine."""
    with cluster_in(place, **MACHINE) as cluster:
        nodes = (cluster.head_node, cluster.add_node(**MACHINE))
        first, second = (node.all_processes["raylet"][0].process.pid for node in nodes)
        yield Machines(cluster.address, place, (first, second))


def test_runs_on_a_cluster_that_loses_a_worker_and_a_machine_give_the_model_of_one_process(
    machines: Machines, corpus: Path, tmp_path: Path
) -> None:
    """In the second run, round 2 loses a worker after its work and before its reply, and round 3 a machine for good.

    Its machines do not see the run's folder, so the files are sent to them, and to the worker that restarts.
    """
    alone = simulation.run(configuration(corpus, tmp_path / "alone", **SETTINGS))
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        whole = _run_on(machines, corpus, tmp_path / "whole", tmp_path / "notes of the whole")
    assert errors.getvalue() == ""
    assert apart(alone, whole) < SAME_MODEL
    assert (whole.metrics()["failed_nodes"].dropna() == 0).all()
    assert {raylet for _, _, raylet in _read(tmp_path / "notes of the whole")} == set(machines.raylets)
    assert _alive(machines) == list(machines.raylets)
    assert wait_until_none_in(machines.place, named="ClientAppActor") == {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OwnText, "_save_token", lambda text: _TOKEN)  # and no file holds it
        run = _run_on(machines, corpus, tmp_path / "run", tmp_path / "notes", worker_lost=2, machine_lost=3)
    assert not _sent().exists()
    assert measured(whole) == measured(run)
    assert np.array_equal(model_of(whole), model_of(run))
    assert [entry.round for entry in Ledger.open(run.path).entries] == list(range(1, ROUNDS + 1))
    done = _read(tmp_path / "notes")
    assert Counter(number for number, _, _ in done) == {1: 2, 2: 3, 3: 3, 4: 2}
    assert {raylet for number, _, raylet in done if number == 3} == set(machines.raylets)
    assert {raylet for number, _, raylet in done if number == 4} == {machines.raylets[0]}
    assert _alive(machines) == [machines.raylets[0]]


def _run_on(
    machines: Machines, corpus: Path, out: Path, notes: Path, *, worker_lost: int = 0, machine_lost: int = 0
) -> RunFolder:
    """Do a run whose nodes write notes, and which loses a worker or a machine in the given rounds (0: never)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "fl_sim.engines.engine.client_app", _noting(notes, worker_lost, machine_lost, machines.raylets[1])
        )
        return simulation.run(
            configuration(corpus, out, engine__name="ray", engine__address=machines.address, **SETTINGS)
        )


def _noting(notes: Path, worker_lost: int, machine_lost: int, second_raylet: int) -> ClientApp:
    """Return our ClientApp, which also notes round, node and raylet; a loss happens when the work is done.

    The round that loses a machine waits until both machines are at work; for that, the worker lost before must be back.
    """
    client = ClientApp()
    deadline = time.monotonic() + WORKER_BACK_SECONDS
    token, sent = _TOKEN, _sent()  # a worker imports this module anew

    def both_at_work(number: int) -> bool:
        raylets = {line.split()[2] for line in notes.read_text().splitlines() if line.startswith(f"{number} ")}
        return len(raylets) == 2 or time.monotonic() > deadline

    @client.train(TRAIN_ACTION)
    def train(message: Message, context: Context) -> Message:
        from fl_sim.clients.client_app import app  # here, because this function is pickled and sent to the workers

        number, node, raylet = (
            message.content["config"]["server_round"],
            context.node_config["partition-id"],
            os.getppid(),
        )
        again = notes.exists() and f"{number} {node} " in notes.read_text()
        with notes.open("a") as file:
            file.write(f"{number} {node} {raylet}\n")
        if token in str(message.content["config"]["workspace"]) and not sent.exists():
            raise FileNotFoundError("the files were not sent")
        reply = app(message, context)
        while number == machine_lost and not both_at_work(number):
            time.sleep(0.05)
        if number == machine_lost and raylet == second_raylet:
            os.kill(raylet, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        if number == worker_lost and node == 0 and not again:
            os.kill(os.getpid(), signal.SIGKILL)
        return reply

    return client


def _sent() -> Path:
    """Return the folder of the files that are sent to machines."""
    return Path(tempfile.gettempdir()) / f"fl-sim-sent-{_TOKEN}"


def _read(notes: Path) -> list[tuple[int, ...]]:
    """Return round, node and raylet of every request."""
    return [tuple(map(int, line.split())) for line in notes.read_text().splitlines()]


def _alive(machines: Machines) -> list[int]:
    return [raylet for raylet in machines.raylets if raylet in processes_in(machines.place)]
