"""Placement on a real Ray with pretended GPUs: a head without any, a machine with two and a machine with one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from fl_sim.clients.worker_resources import check_reserved, reserved_cores
from fl_sim.config import EngineConfig
from fl_sim.engines import ray_engine
from fl_sim.experiments.placement import EngineError, machines_of_ray
from tests.e2e.engines.raylets import cluster_in
from tests.e2e.processes import needs_proc

pytestmark = [pytest.mark.nightly, needs_proc]

MACHINE = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
GPUS = {"first": 2, "second": 1}

Start = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cluster of three raylets that this process has joined; each machine has a resource of its name."""
    import ray

    with cluster_in(tmp_path_factory.mktemp("machines"), **MACHINE, num_cpus=4) as cluster:
        try:
            for name, gpus in GPUS.items():
                cluster.add_node(num_cpus=8, num_gpus=gpus, resources={name: 100}, **MACHINE)
            ray.init(**ray_engine.ray_arguments(EngineConfig(address=cluster.address, cpus_per_node=2)))
            yield
        finally:
            ray.shutdown()


@pytest.fixture
def start(cluster: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """``start(gpus_per_node=0.6)`` starts workers as an engine does, without libraries; they end with the test."""
    import ray

    monkeypatch.setattr(ray_engine, "load_libraries", nothing)
    started: list[Any] = []

    def begin(**settings: Any) -> list[Any]:
        ready = ray_engine._start_workers(EngineConfig(**settings))
        started.extend(ready.workers + ([ready.share.holder] if ready.share else []))
        return ready.workers

    yield begin
    for worker in started:
        ray.kill(worker)
    wait_until_free()


def nothing() -> None:
    """Stand in for the import of torch."""


def wait_until_free() -> None:
    """Wait until nothing is reserved any more: Ray reports it a moment later."""
    wait_until(lambda: all((m.free_cpus, m.free_gpus) == (m.cpus, m.gpus) for m in machines_of_ray()))


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def told_by(workers: list[Any], question: Callable[[object], Any]) -> list[Any]:
    import ray

    return list(ray.get([worker.__ray_call__.remote(question) for worker in workers], timeout=60))


class Place(NamedTuple):
    """The raylet of a worker, the GPUs that it sees, its reserved cores, and the threads of its libraries."""

    raylet: int
    gpus: str
    cores: int
    threads: str


def place_of(actor: object) -> Place:
    check_reserved("cuda")
    variables = os.environ
    return Place(os.getppid(), variables["CUDA_VISIBLE_DEVICES"], reserved_cores(), variables["OMP_NUM_THREADS"])


def test_every_worker_sees_one_gpu_and_uses_its_cores_and_the_head_without_gpus_has_none(start: Start) -> None:
    places = told_by(start(gpus_per_node=0.6, cpus_per_node=2), place_of)
    raylets = {place.raylet for place in places}
    assert len(raylets) == 2
    seen = [sorted(place.gpus for place in places if place.raylet == raylet) for raylet in raylets]
    assert sorted(seen) == [["0"], ["0", "1"]]
    assert {(place.cores, place.threads) for place in places} == {(2, "2")}


def test_the_server_reserves_its_share_on_its_own_machine_or_is_refused(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    with monkeypatch.context() as patch:
        patch.setattr(ray_engine, "_RESERVE_SECONDS", 5.0)  # for what is refused; a process may take longer to start
        with pytest.raises(EngineError, match=r"server_device is 'cuda', .* no 1 of a GPU to give; allowed: cpu"):
            start(gpus_per_node=1.0, server_device="cuda")
    (first,) = (node["NodeID"] for node in ray.nodes() if "first" in node["Resources"])
    with monkeypatch.context() as patch:
        patch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: first))
        patch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
        share = ray_engine.reserve_server_share("cuda", 2.0)
    assert share.device in ("cuda:0", "cuda:1")
    assert sum(machine.free_gpus for machine in machines_of_ray()) == 2.0
    ray.kill(share.holder)
    wait_until_free()
