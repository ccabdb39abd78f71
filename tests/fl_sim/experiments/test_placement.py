"""Where workers fit: per machine and per GPU, beside what others have reserved."""

from __future__ import annotations

from typing import Any

import pytest

from fl_sim.config import ConfigError, RunConfig
from fl_sim.engines.ray_engine import visible_index
from fl_sim.experiments import placement
from fl_sim.experiments.placement import EngineError, Machine, count_workers, machines_of, settled_machines


def machine(cpus: float, gpus: float = 0, *, free: float | None = None, address: str = "10.0.0.1") -> Machine:
    """A machine whose cores are all free, and of whose GPUs ``free`` are."""
    return Machine(address, cpus, gpus, cpus, gpus if free is None else free)


@pytest.mark.parametrize(
    ("machines", "cpus", "gpus", "workers"),
    [
        ([machine(2)], 1, 0, 2),
        ([machine(7)], 2, 0, 3),
        ([machine(2), machine(4)], 3, 0, 1),
        ([machine(2)], 0.5, 0, 4),
        ([machine(1), machine(2)], 0.3, 0, 9),
        ([machine(2, 1)], 1, 0.25, 2),
        ([machine(16, 4)], 1, 2, 2),
        ([machine(16, 3)], 1, 2, 1),
        ([machine(64, 1)], 1, 0.3, 3),
        ([machine(64, 2)], 1, 0.6, 2),  # a third would have 0.4 on each
        ([machine(64, 4)], 1, 0.25, 16),
        ([machine(64, 2, free=1.0)], 1, 1.0, 1),
        ([machine(64, 2, free=1.0)], 1, 0.3, 3),
        ([machine(64, 4, free=1.5)], 1, 0.25, 6),
        ([machine(64, 1, free=0.39999999999999997)], 1, 0.4, 1),
        ([machine(64, 4, free=0.9), machine(1, 1)], 1, 1.0, 1),
    ],
)
def test_cores_and_whole_gpus_that_are_free_are_counted_machine_by_machine(
    machines: list[Machine], cpus: float, gpus: float, workers: int
) -> None:
    assert count_workers(machines, cpus, gpus) == workers


def test_a_cluster_without_room_is_refused_with_what_is_there_and_what_is_free() -> None:
    taken = Machine("10.0.0.7", cpus=8, gpus=2, free_cpus=3, free_gpus=0.4)
    with pytest.raises(EngineError) as refused:
        count_workers([machine(2), taken], 1, 0.5)
    assert str(refused.value) == (
        "engine.cpus_per_node is 1 and engine.gpus_per_node is 0.5; allowed: at most what is free on one machine of "
        "Ray: 10.0.0.1 (2 of 2 CPUs and 0 of 0 GPUs free), 10.0.0.7 (3 of 8 CPUs and 0.4 of 2 GPUs free)"
    )


def test_what_a_run_that_just_ended_gives_back_is_waited_for_and_what_others_keep_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = iter([[machine(4, 2, free=0)], [machine(4, 2, free=1)], [machine(4, 2)], [machine(4, 2, free=0)]])
    monkeypatch.setattr(placement, "machines_of_ray", lambda: next(looks))
    assert settled_machines(1, 1.0) == [machine(4, 2)]
    monkeypatch.setattr(placement, "_SETTLE_SECONDS", 0.2)
    monkeypatch.setattr(placement, "machines_of_ray", lambda: [machine(4, 2, free=1)])
    assert settled_machines(1, 1.0) == [machine(4, 2, free=1)]


def test_machines_that_are_gone_have_no_room_and_silent_ones_are_free() -> None:
    def node(name: str, alive: bool = True) -> dict[str, Any]:
        has = {"CPU": 4.0, "GPU": 2.0} if alive else {}
        return {"NodeID": name, "Alive": alive, "Resources": has, "NodeManagerAddress": name}

    nodes = [node("taken"), node("full"), node("new"), node("gone", alive=False)]
    machines = machines_of(nodes, {"taken": {"CPU": 1.0, "GPU": 0.5}, "full": {}, "gone": {"CPU": 4.0}})
    assert [(m.address, m.free_cpus, m.free_gpus) for m in machines] == [
        ("taken", 1.0, 0.5), ("full", 0.0, 0.0), ("new", 4.0, 2.0),
    ]  # fmt: skip


# --- what a configuration says of it ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "share", "server"),
    [
        ({}, 0.0, "cpu"),
        ({"model.device": "cuda"}, 1.0, "cpu"),
        ({"model.device": "cuda:0"}, 1.0, "cpu"),
        ({"model.device": "cuda", "engine.gpus_per_node": 0.25}, 0.25, "cpu"),
        ({"model.device": "cuda", "engine.server_device": "cuda"}, 1.0, "cuda"),
        ({"model.device": "cuda:1", "engine.name": "inline"}, 0.0, "cuda:1"),
        ({"model.device": "cuda:1", "engine.name": "inline", "engine.server_device": "cpu"}, 0.0, "cpu"),
        ({"engine.gpus_per_node": 0.5}, 0.5, "cpu"),
    ],
)
def test_a_worker_on_a_gpu_has_one_and_the_server_none(settings: dict[str, Any], share: float, server: str) -> None:
    placed = RunConfig.from_mapping(settings).placed_engine
    assert (placed.gpus_per_node, placed.server_device) == (share, server)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"model.device": "cuda", "engine.gpus_per_node": 0},
            r"engine\.gpus_per_node is 0 and .*'cuda'; allowed: a sh",
        ),
        ({"model.device": "cuda:1"}, r"model\.device is 'cuda:1' and engine\.name is ray; allowed: cuda, .*'inline'$"),
        (
            {"engine.gpus_per_node": 1.5},
            r"engine\.gpus_per_node is 1\.5; allowed: 0, a fraction of at most 1, or whole",
        ),
        ({"engine.gpus_per_node": -0.5}, r"engine\.gpus_per_node is -0\.5; allowed: 0, a fraction"),
        ({"engine.gpus_per_node": 1e-5}, r"engine\.gpus_per_node is 1e-05; allowed: 0, a fraction"),
        ({"engine.cpus_per_node": 1.5}, r"engine\.cpus_per_node is 1\.5; allowed: a fraction from 0\.1 to 1, or whole"),
        ({"engine.cpus_per_node": 0.05}, r"engine\.cpus_per_node is 0\.05; allowed: a fraction from 0\.1"),
        (
            {"engine.server_device": "cuda"},
            r"engine\.server_device is 'cuda' and model\.device is 'cpu'; allowed: cpu$",
        ),
        (
            {"engine.server_device": "cuda:1", "model.device": "cuda"},
            r"engine\.server_device is 'cuda:1' and model\.device is 'cuda'; allowed: cpu or cuda$",
        ),
    ],
)
def test_impossible_placements_are_refused_before_anything_starts(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        RunConfig.from_mapping(settings)
    assert "\n" not in str(refused.value)


def test_a_record_states_the_share_and_leaves_out_a_server_without_a_choice() -> None:
    """Records of runs on CPUs stay as they were, and one of a GPU gives the same placement again."""
    on_cpu = RunConfig().model_dump(mode="json")["engine"]
    assert on_cpu["gpus_per_node"] == 0.0
    assert "server_device" not in on_cpu
    recorded = RunConfig.from_mapping({"model.device": "cuda"}).model_dump(mode="json")
    assert recorded["engine"]["gpus_per_node"] == 1.0
    assert RunConfig.from_mapping(recorded).placed_engine.gpus_per_node == 1.0
    for settings in ({}, {"model.device": "cuda"}, {"model.device": "cuda:1", "engine.name": "inline"}):
        config = RunConfig.from_mapping(settings)
        assert RunConfig.from_mapping(config.model_dump(mode="json")) == config
    assert RunConfig().changed({"model.device": "cuda"}).placed_engine.gpus_per_node == 1.0


@pytest.mark.parametrize(
    ("gpu", "visible", "index"), [("0", None, 0), ("3", None, 3), ("3", "2,3", 1), ("GPU-b", "GPU-a, GPU-b", 1)]
)
def test_the_server_finds_its_gpu_among_those_that_it_sees(gpu: str, visible: str | None, index: int) -> None:
    assert visible_index(gpu, visible) == index
