"""Engines and grids without Ray: what they ask for, what they refuse, how they wait."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp import ClientApp
from flwr.common.config import flatten_dict
from flwr.serverapp import ServerApp
from flwr.supercore import telemetry

from fl_sim.clients.client_app import app as client_app
from fl_sim.config import ConfigError, EngineConfig, RunConfig, run_keys
from fl_sim.engines import engine as engines
from fl_sim.engines import ray_engine
from fl_sim.engines.grids import AttendedGrid, GridError, InlineGrid, RunStopped
from fl_sim.engines.ray_engine import RayEngine, backend_config, check_engine, ray_arguments
from fl_sim.engines.server_app import describe_row, read_run_config, results_folder, with_notes
from fl_sim.experiments.placement import EngineError, Machine
from tests.conftest import REPOSITORY

# --- what Ray is asked for -------------------------------------------------------------------------------------------


def test_fractions_of_a_gpu_reach_every_worker() -> None:
    asked = backend_config(EngineConfig(gpus_per_node=0.25, cpus_per_node=3))["client_resources"]
    assert (asked["num_gpus"], asked["num_cpus"]) == (0.25, 3)


def test_a_ray_of_its_own_is_started_whatever_cluster_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    arguments = ray_arguments(EngineConfig(num_cpus=3, num_gpus=1))
    assert arguments["address"] == "local"
    assert (arguments["num_cpus"], arguments["num_gpus"]) == (3, 1)


@pytest.mark.parametrize(("cores", "threads"), [(3, "3"), (0.5, "1")])
def test_a_cluster_decides_its_size_and_is_told_where_our_packages_are_and_how_many_threads_a_worker_has(
    monkeypatch: pytest.MonkeyPatch, cores: float, threads: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # of this process
    arguments = ray_arguments(EngineConfig(address="10.0.0.1:6379", cpus_per_node=cores))
    assert arguments["address"] == "10.0.0.1:6379"
    assert not {"num_cpus", "num_gpus"} & set(arguments)
    variables = arguments["runtime_env"]["env_vars"]
    packages = Path(ray_engine.__file__).parents[2]
    assert variables["PYTHONPATH"].split(os.pathsep) == [str(packages), "/elsewhere"]
    assert variables["OMP_NUM_THREADS"] == threads


def test_a_start_of_ray_that_makes_progress_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in its thread could leave a lock held, that of logging say, for which this process then waits."""
    ray, begun, steps = Mock(), threading.Event(), []

    def init(**arguments: Any) -> None:
        begun.set()
        for _ in range(40):  # a start that takes its time, in Python code
            time.sleep(0.05)
        steps.append("started")

    ray.init.side_effect = init
    ray.shutdown.side_effect = lambda: steps.append("shut down")
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_engine, "_start_workers", lambda engine: steps.append("workers"))
    with engines.Engine() as engine:
        engine.start(EngineConfig())
        assert begun.wait(30)
    assert steps == ["started", "shut down"]


def test_more_cpus_than_there_are_are_refused_before_ray_starts() -> None:
    with pytest.raises(EngineError, match=r"engine\.cpus_per_node is 3; allowed: at most 2"):
        check_engine(EngineConfig(num_cpus=2, cpus_per_node=3))
    check_engine(EngineConfig(num_cpus=2, cpus_per_node=2))
    check_engine(EngineConfig(name="inline", num_cpus=2, cpus_per_node=3))


@pytest.mark.system
def test_an_address_where_nobody_answers_is_refused_at_once() -> None:
    """Ray itself would try for a quarter of an hour."""
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"engine\.address is 127\.0\.0\.1:1, but nothing answers"):
        engines.Engine(EngineConfig(address="127.0.0.1:1"))
    assert time.monotonic() - began < 5


def test_telemetry_stays_off_although_flower_was_imported_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLWR_TELEMETRY_ENABLED", raising=False)
    monkeypatch.setattr(telemetry, "FLWR_TELEMETRY_ENABLED", "1")
    ray_engine._stay_local()
    assert telemetry.FLWR_TELEMETRY_ENABLED == "0"
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")  # whoever wants it
    ray_engine._stay_local()
    assert telemetry.FLWR_TELEMETRY_ENABLED == "1"


@pytest.mark.parametrize("failure", [OSError("no space left\non the device"), Exception("node timed out")])
def test_a_ray_that_does_not_start_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    monkeypatch.setattr("ray.init", Mock(side_effect=failure))
    engine = RayEngine(EngineConfig())
    told = (
        r"^Ray cannot be started \(tried for \S+ s\): (no space left|node timed out); allowed: .* \(--engine inline\)$"
    )
    with pytest.raises(EngineError, match=told):
        engine.run(ServerApp(), ClientApp())
    engine.close()


@pytest.mark.parametrize(("nodes", "workers"), [(None, 4), (3, 3), (64, 4)])
def test_no_more_workers_are_started_than_nodes_can_keep_busy(
    monkeypatch: pytest.MonkeyPatch, nodes: int | None, workers: int
) -> None:
    monkeypatch.setattr(ray_engine, "settled_machines", lambda *share: [])
    monkeypatch.setattr(ray_engine, "machines_of_ray", lambda: [Machine("here", 4, 0, 4, 0)])
    monkeypatch.setattr("fl_sim.engines.ray_workers.start_workers", lambda number, *others: ["worker"] * number)
    assert len(ray_engine._start_workers(EngineConfig(nodes=nodes)).workers) == workers


# --- the grid that is attended to ------------------------------------------------------------------------------------


class SlowGrid(InlineGrid):
    """Nodes that register one by one, at every look, and of which some never answer."""

    def __init__(self, client: ClientApp, num_nodes: int, silent: Iterable[int] = ()) -> None:
        super().__init__(client, num_nodes)
        self.silent = set(silent)
        self.looks = 0

    def get_node_ids(self) -> list[int]:
        self.looks += 1
        return list(super().get_node_ids())[: self.looks]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = super().pull_messages(message_ids)
        return [reply for reply in replies if reply.metadata.src_node_id not in self.silent]


def nodes_that_fail(*failing: int) -> ClientApp:
    """A ClientApp that echoes, but for the nodes with these partition ids."""
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] in failing:
            raise OSError("the corpus\nis not here")
        return Message(message.content, reply_to=message)

    return client


def exchange(grid: AttendedGrid, timeout: float | None = 5.0) -> list[Message]:
    """One message to every node of ``grid``, and the replies."""
    content = RecordDict({"config": ConfigRecord({"round": 1})})
    requests = [Message(content, node, "train") for node in grid.get_node_ids()]
    return list(grid.send_and_receive(requests, timeout=timeout))


@pytest.fixture(autouse=True)
def identity() -> Iterator[None]:
    """Messages bear the identity of a task."""
    with engines._identity():
        yield


def test_the_server_begins_when_all_nodes_are_there() -> None:
    grid = AttendedGrid(SlowGrid(nodes_that_fail(), 3), num_nodes=3)
    assert len(exchange(grid)) == 3


def test_nodes_that_do_not_come_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_sim.engines.grids._NODES_SECONDS", 0.2)
    with pytest.raises(GridError, match="only 2 of 3 nodes"):
        AttendedGrid(InlineGrid(nodes_that_fail(), 2), num_nodes=3)


def test_a_round_in_which_every_node_fails_is_refused_with_the_reason_in_one_line() -> None:
    with pytest.raises(GridError, match=r"all 2 nodes failed in this round: OSError: the corpus is not here$"):
        exchange(AttendedGrid(InlineGrid(nodes_that_fail(0, 1), 2)))


def test_a_round_that_nobody_was_asked_to_do_is_no_failure() -> None:
    assert list(AttendedGrid(InlineGrid(nodes_that_fail(), 2)).send_and_receive([], timeout=1)) == []


def test_what_is_late_is_left_out_and_all_too_late_is_refused() -> None:
    grid = SlowGrid(nodes_that_fail(), 2, silent=[2])
    assert len(exchange(AttendedGrid(grid, num_nodes=2), timeout=0.2)) == 1
    grid.silent = {2, 3}
    with pytest.raises(GridError, match=r"no answer within 0\.2 seconds \(engine\.timeout\)"):
        exchange(AttendedGrid(grid, num_nodes=2), timeout=0.2)


class LossyGrid(InlineGrid):
    """Nodes whose workers are lost: node ``k`` for the first ``losses[k]`` times that it is asked."""

    def __init__(self, client: ClientApp, num_nodes: int, losses: dict[int, float]) -> None:
        super().__init__(client, num_nodes)
        self.losses = losses
        self.asked: list[tuple[int, RecordDict]] = []

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        self.asked.append((node, message.content))
        if self.losses.get(node, 0) > 0:
            self.losses[node] -= 1
            return Message(Error(0, "<class 'ray.exceptions.ActorUnavailableError'>:<'it is gone'>"), reply_to=message)
        return super()._answer(message)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_sim.engines.grids._PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("fl_sim.engines.grids._RETRY_SECONDS", 0.01)


@pytest.mark.usefixtures("impatient")
def test_what_was_lost_with_a_worker_is_asked_again_and_nothing_else() -> None:
    grid = LossyGrid(nodes_that_fail(), 3, losses={2: 1, 4: 2})
    replies = exchange(AttendedGrid(grid))
    assert sorted(reply.metadata.src_node_id for reply in replies) == [2, 3, 4]
    assert not any(reply.has_error() for reply in replies)
    assert [node for node, _ in grid.asked] == [2, 3, 4, 2, 4, 4]
    assert all(content == grid.asked[0][1] for _, content in grid.asked)


@pytest.mark.usefixtures("impatient")
def test_a_node_whose_workers_are_lost_every_time_has_failed() -> None:
    grid = LossyGrid(nodes_that_fail(), 3, losses={3: math.inf})
    replies = exchange(AttendedGrid(grid))
    assert {reply.metadata.src_node_id: reply.has_error() for reply in replies} == {2: False, 3: True, 4: False}
    assert len(grid.asked) == 3 + 2
    with pytest.raises(GridError, match=r"all 2 nodes failed in this round: .*it is gone"):
        exchange(AttendedGrid(LossyGrid(nodes_that_fail(), 2, losses={2: math.inf, 3: math.inf})))


def test_a_worker_that_starts_again_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_sim.engines.grids._RETRY_SECONDS", 0.01)
    grid = LossyGrid(nodes_that_fail(), 1, losses={2: 20})
    assert not any(reply.has_error() for reply in exchange(AttendedGrid(grid)))


@pytest.mark.usefixtures("impatient")
def test_a_node_that_fails_by_itself_is_not_asked_again() -> None:
    """It would fail again, also if what it says sounds like a lost worker's."""
    client, calls = ClientApp(), list[int]()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        calls.append(context.node_id)
        if context.node_id == 2:
            raise MemoryError("OutOfMemoryError: ray.exceptions.OutOfMemoryError'")
        return Message(message.content, reply_to=message)

    assert [reply.has_error() for reply in exchange(AttendedGrid(InlineGrid(client, 2)))] == [True, False]
    assert calls == [2, 3]


def test_waiting_ends_as_soon_as_it_is_told_to() -> None:
    stop = threading.Event()
    grid = AttendedGrid(SlowGrid(nodes_that_fail(), 1, silent=[2]), stop=stop)
    timer = threading.Timer(0.2, stop.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(RunStopped):
        exchange(grid, timeout=10)
    assert time.monotonic() - began < 5
    timer.join()


def test_a_failing_client_answers_in_one_line() -> None:
    """Flower's engine would send a traceback of fifty lines as the reason."""
    request = Message(RecordDict({"config": ConfigRecord({"nonsense": 1})}), 2, "train.bounded_sum")
    request.metadata.__dict__["_message_id"] = "1"
    reply = client_app(request, InlineGrid(client_app, 1)._contexts[2])
    assert reply.has_error()
    assert reply.error.reason == "KeyError: 'server_round'"


# --- started by flwr run ---------------------------------------------------------------------------------------------


def declared() -> dict[str, Any]:
    """The keys of ``[tool.flwr.app.config]``, as Flower hands them to the ServerApp."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    return flatten_dict(project["tool"]["flwr"]["app"]["config"])


def test_flower_accepts_every_key_of_a_run_but_those_it_decides_itself() -> None:
    decided_by_flower = {key for key in run_keys() if key.startswith("engine.")} - {"engine.timeout"}
    no_scalars = {"model.lora_targets", "origin"}  # Flower takes nothing else
    assert set(declared()) == run_keys().keys() - decided_by_flower - no_scalars


@pytest.mark.parametrize("corpus", ["bundled", "irc"])
def test_the_files_of_the_corpora_that_ship_are_run_configs_of_flower(corpus: str) -> None:
    job = flatten_dict(tomllib.loads((REPOSITORY / "conf" / f"{corpus}.toml").read_text(encoding="utf-8")))
    assert set(job) <= set(declared())
    assert read_run_config(declared() | job, nodes=1).corpus.path == corpus


def test_without_settings_flwr_runs_what_fl_sim_runs() -> None:
    config = read_run_config(declared(), nodes=2)
    placed = {"out": None, "engine": EngineConfig()}
    assert config.model_copy(update=placed) == RunConfig()
    assert config.engine.nodes == 2


def test_results_do_not_depend_on_the_superlinks_working_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    assert results_folder() == tmp_path / "home" / "fl-sim-runs"
    for out in ("", "tonight"):
        path = Path(read_run_config({"out": out}, nodes=1).out or "")
        assert path.parent == results_folder()
    assert read_run_config({"out": str(tmp_path / "here")}, nodes=1).out == str(tmp_path / "here")


def test_a_corpus_must_not_depend_on_the_superlinks_working_folder(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"corpus\.path is 'data/mine'; allowed under flwr run: bundled, irc or an abs"
    ):
        read_run_config({"corpus.path": "data/mine"}, nodes=1)
    for path in (str(tmp_path), "bundled", "irc"):
        assert read_run_config({"corpus.path": path}, nodes=1).corpus.path == path


def test_flowers_bundle_carries_no_code_that_could_hide_the_installed_package() -> None:
    with zipfile.ZipFile(BytesIO(build_fab_from_disk(REPOSITORY))) as bundle:
        assert set(bundle.namelist()) == {"pyproject.toml", "LICENSE", ".info/CONTENT"}


def test_a_failure_is_told_in_one_line_with_what_is_left() -> None:
    error = OSError("no\nspace")
    error.add_note("what was done is in /runs/1")
    assert with_notes(error) == "no space; what was done is in /runs/1"
    assert with_notes(KeyError()) == "KeyError"


def test_a_round_is_told_in_one_line() -> None:
    row = {"round": 2, "perplexity": 655.04, "epsilon_user": 1.5, "epsilon_user_entity_p95": 2.25, "failed_nodes": 1}
    assert describe_row(row, 30) == (
        "round 2/30, perplexity 655.0, ε user+entity (p95) 2.25, user 1.50, 1 nodes failed and count as zero"
    )
    for name, words in (("any", "any"), ("stated", "stated")):
        bounded = row | {"epsilon_any": math.inf, f"epsilon_{name}": 3.0001}
        assert f"perplexity 655.0, ε {words} 3.01, user 1.50, 1 nodes" in describe_row(bounded, 30)
    no_entity = row | {"epsilon_user_entity_p95": math.inf, "epsilon_any": math.inf}
    assert "ε user 1.50, 1 nodes" in describe_row(no_entity, 30)
