"""All workers open corpus and model before round 1, or the run says which machine cannot and why. Without Ray."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from fl_sim.clients.worker import sent_files, workspace
from fl_sim.engines import ray_workers
from fl_sim.engines.grids import RunStopped
from fl_sim.engines.ray_workers import Refused, WorkerCheck
from fl_sim.experiments.experiment import Experiment
from fl_sim.experiments.placement import EngineError
from tests.e2e.small_runs import configuration, small_corpus


class FakeRay:
    """What the check uses of Ray; a future is what its worker has answered, or ``...``."""

    def __init__(self) -> None:
        self.stored = list[bytes]()
        self.util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7")

    def put(self, content: bytes) -> int:
        self.stored.append(content)
        return len(self.stored) - 1

    def get(self, handle: Any) -> Any:
        if isinstance(handle, int):
            return self.stored[handle]
        if isinstance(handle.answer, Exception):
            raise handle.answer
        return handle.answer

    def wait(self, futures: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return [future for future in futures if future.answer is not ...], []


class FakeWorker:
    """A worker in this process; ``said`` takes the place of what it would say, and ``...`` means that it hangs."""

    def __init__(self, *said: Any) -> None:
        self.said = said
        self.__ray_call__ = self

    def remote(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return _Answer(self.said[0] if self.said else work(None, *arguments))


class _Answer:
    def __init__(self, answer: Any) -> None:
        self.answer = answer


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(ray_workers, "ray", fake)
    monkeypatch.setattr(ray_workers, "is_loaded", lambda worker: worker.said != (...,))
    monkeypatch.setattr(ray_workers, "machine_of", lambda worker: "10.0.0.9")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return fake


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[Experiment]:
    corpus = small_corpus(tmp_path / "corpus")
    prepared = Experiment.create(configuration(corpus, tmp_path / "run", privacy__entity_bound=2))
    workspace.open_workspace.cache_clear()
    yield prepared
    prepared.abandon(RuntimeError())
    workspace.open_workspace.cache_clear()


def checked(workers: list[FakeWorker], spec: str, timeout: float = 60.0) -> None:
    WorkerCheck(workers, spec, timeout).wait(threading.Event())


def changed(experiment: Experiment, **model: Any) -> str:
    spec = json.loads(experiment._strategy.federation.workspace)
    return json.dumps({**spec, "model": {**spec["model"], **model}})


def test_workers_open_corpus_and_model_and_keep_them(ray: FakeRay, experiment: Experiment) -> None:
    spec = experiment._strategy.federation.workspace
    checked([FakeWorker(), FakeWorker()], spec)
    assert workspace.open_workspace.cache_info().misses == 1
    assert ray.stored == []


def test_a_worker_without_the_device_is_named_with_its_machine_in_one_line(
    ray: FakeRay, experiment: Experiment
) -> None:
    with pytest.raises(EngineError) as refused:
        checked([FakeWorker(), FakeWorker()], changed(experiment, device="cuda"))
    assert str(refused.value) == (
        "the worker on 10.0.0.7 cannot work: ModelError: device is 'cuda', but torch sees 0 CUDA devices here; "
        "allowed: 'cpu'"
    )


def test_a_machine_that_does_not_see_the_files_gets_them_once(
    ray: FakeRay, experiment: Experiment, tmp_path: Path
) -> None:
    """Another machine has neither the corpus nor the run's folder, or one of the same name of another run."""
    here = workspace.open_workspace(experiment._strategy.federation.workspace)
    users = here.ownership.sentences_per_user.tolist()
    seen = [example.tokens.tolist() for example in here.examples.read(range(3))]
    workspace.open_workspace.cache_clear()
    spec = experiment._strategy.federation.workspace
    check = WorkerCheck([FakeWorker(), FakeWorker()], spec, 60.0)
    (tmp_path / "run" / "encoded" / workspace.TOKEN_FILE).write_text("another run's")
    first = WorkerCheck([FakeWorker(), FakeWorker()], spec, 60.0)
    assert [pending.answer for pending in check._asked] == [None, None]
    assert [pending.answer.lacks_files for pending in first._asked] == [True, True]
    first.wait(threading.Event())
    stored = len(ray.stored)
    assert 0 < stored == len(list(sent_files.files_of(workspace.WorkspaceSpec.model_validate_json(spec))))
    (folder,) = tmp_path.glob("fl-sim-sent-*")
    assert folder.stat().st_mode & 0o077 == 0
    for folder_of_server in ("corpus", "run"):
        (tmp_path / folder_of_server).rename(tmp_path / f"{folder_of_server}-of-the-server")
    workspace.open_workspace.cache_clear()
    there = workspace.open_workspace(spec)
    assert there.ownership.sentences_per_user.tolist() == users
    assert [example.tokens.tolist() for example in there.examples.read(range(3))] == seen
    assert there.weights is not None
    first.remove_files()
    assert list(tmp_path.glob("fl-sim-sent-*")) == []
    assert len(ray.stored) == stored
    for folder_of_server in ("corpus", "run"):
        (tmp_path / f"{folder_of_server}-of-the-server").rename(tmp_path / folder_of_server)


def test_a_restarted_worker_without_files_is_sent_them_and_asked_again(ray: FakeRay, experiment: Experiment) -> None:
    check = WorkerCheck([], experiment._strategy.federation.workspace, 60.0)
    assert check.judge(Refused("10.0.0.8", "it does not see the files of the run", lacks_files=True)) == "again"
    assert ray.stored
    assert check.judge(Refused("10.0.0.8", "no CUDA")) == "out"
    assert check.judge(None) == "ready"


def test_a_worker_that_is_lost_is_named(ray: FakeRay) -> None:
    with pytest.raises(EngineError, match=r"the worker on 10\.0\.0\.9 was lost before round 1: The actor died"):
        checked([FakeWorker(ActorDiedError())], "{}")


def test_a_worker_that_never_starts_costs_seconds(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_workers, "_LOAD_SECONDS", 0.3)
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"the worker on 10\.0\.0\.9 has not started: for 0\.3 seconds"):
        checked([FakeWorker(None), FakeWorker(...)], "{}", timeout=3600.0)
    assert time.monotonic() - began < 5


def test_a_worker_that_opens_for_too_long_ends_the_run(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_workers, "is_loaded", lambda worker: True)
    with pytest.raises(EngineError, match=r"10\.0\.0\.9 has not opened corpus and model within 0\.2 seconds"):
        checked([FakeWorker(...)], "{}", timeout=0.2)


def test_waiting_for_workers_ends_when_the_run_is_stopped(ray: FakeRay) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(RunStopped):
        WorkerCheck([FakeWorker(...)], "{}", 60.0).wait(stop)
