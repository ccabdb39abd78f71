"""Free memory is what the machine has left, or a container's limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl_sim.clients import worker_resources
from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.architectures import model_size
from fl_sim.clients.models.architectures.model_size import check_count


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
    check_count("tiny", 999)
    with pytest.raises(
        ModelError, match=r"model 'big' has 1,000 parameters, 0\.00 GB, and 0\.00 GB of memory are free"
    ):
        check_count("big", 1000)
