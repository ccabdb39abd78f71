"""What a worker of Ray uses is what Ray reserved for it; other processes have one thread and decide for themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fl_sim.clients import worker_resources
from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.architectures import model_size
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.worker import workspace
from fl_sim.clients.worker_resources import check_reserved, reserved_cores


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A Ray in this process; ``ray.cpus``, ``ray.gpus`` and ``ray.actor`` are what its context tells."""
    told = SimpleNamespace(cpus=1.0, gpus=[], actor="0a1b", is_initialized=lambda: True)
    context = SimpleNamespace(
        get_actor_id=lambda: told.actor,
        get_assigned_resources=lambda: {"CPU": told.cpus},
        get_accelerator_ids=lambda: {"GPU": told.gpus},
    )
    told.get_runtime_context = lambda: context
    monkeypatch.setitem(sys.modules, "ray", told)
    return told


@pytest.fixture(autouse=True)
def nothing_open() -> Iterator[None]:
    workspace.open_workspace.cache_clear()
    yield
    workspace.open_workspace.cache_clear()


def spec_of(**model: str) -> str:
    return workspace.WorkspaceSpec(
        corpus="c", fingerprint="f", split="train", encoded="e", features=None, task="next-word",
        model=ModelSpec(**model), seed=0,
    ).model_dump_json()  # fmt: skip


def test_a_worker_uses_the_cores_that_it_reserved(ray: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    used = list[int]()
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setattr(workspace.Workspace, "of", lambda spec: spec)
    ray.cpus = 3.0
    workspace.open_workspace(spec_of())
    workspace.open_workspace.cache_clear()
    ray.actor = None  # the server's process, which has joined Ray
    workspace.open_workspace(spec_of())
    assert used == [3, 1]


def test_a_device_without_a_reserved_gpu_is_refused_in_a_worker_alone(ray: SimpleNamespace) -> None:
    with pytest.raises(ModelError, match=r"no GPU is reserved for this worker; allowed: engine\.gpus_per_node"):
        check_reserved("cuda")
    check_reserved("cpu")
    ray.gpus = ["1"]
    check_reserved("cuda")
    ray.gpus, ray.actor = [], None
    check_reserved("cuda")
    assert reserved_cores() == 1


@pytest.mark.parametrize(
    ("limit", "used", "free"),
    [
        ("max\n", "5\n", 2048),
        ("1500\n", "1000\n", 500),
        ("99999\n", "0\n", 2048),
        ("10\n", "20\n", 0),
        (None, None, 2048),
    ],
)
def test_the_smaller_of_machine_and_container(
    limit: str | None, used: str | None, free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  9 kB\nMemAvailable:       2 kB\n")
    for name, text in {"_LIMIT": limit, "_USED": used}.items():
        if text is not None:
            (tmp_path / name).write_text(text)
        monkeypatch.setattr(worker_resources, name, tmp_path / name)
    monkeypatch.setattr(worker_resources, "_MEMINFO", tmp_path / "meminfo")
    assert worker_resources.free_memory() == free


def test_without_linux_it_is_the_machines_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_resources, "_MEMINFO", tmp_path / "absent")
    assert worker_resources.free_memory() > 1 << 28


def test_a_model_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_size, "free_memory", lambda: 3999)
    model_size.check_count("tiny", 999)
    with pytest.raises(
        ModelError, match=r"model 'big' has 1,000 parameters, 0\.00 GB, and 0\.00 GB of memory are free"
    ):
        model_size.check_count("big", 1000)
