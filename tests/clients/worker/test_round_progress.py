"""The counts of a round under way: what is written, what is read, and that a node never fails by them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from fl_sim.clients.worker import round_progress
from fl_sim.clients.worker.round_progress import RoundProgress, progress_of_round


def test_the_nodes_of_a_round_add_up_and_other_rounds_do_not_count(tmp_path: Path) -> None:
    for node, server_round, done in ((2, 7, 3), (3, 7, 4), (4, 6, 9)):
        progress = RoundProgress(tmp_path, node, server_round, total=10)
        progress.add(done)
        progress.close()
    assert progress_of_round(tmp_path, 7) == (7, 20)
    RoundProgress(tmp_path, 2, 8, total=5).close()
    assert progress_of_round(tmp_path, 8) == (0, 5)
    assert stat.S_IMODE((tmp_path / "2").stat().st_mode) & 0o077 == 0


def test_nothing_is_written_where_nobody_watches(tmp_path: Path) -> None:
    progress = RoundProgress(tmp_path / "absent", 2, 1, total=3)
    progress.add(3)
    progress.close()
    assert list(tmp_path.iterdir()) == []
    assert progress_of_round(tmp_path / "absent", 1) == (0, 0)


def test_a_count_is_written_a_few_times_a_second_and_at_the_end(tmp_path: Path, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(round_progress.time, "monotonic", lambda: now[0])
    progress = RoundProgress(tmp_path, 2, 1, total=100)
    for _ in range(10):
        progress.add(1)
    assert progress_of_round(tmp_path, 1) == (0, 100)
    now[0] = 1.0
    progress.add(1)
    assert progress_of_round(tmp_path, 1) == (11, 100)
    progress.add(1)
    progress.close()
    assert progress_of_round(tmp_path, 1) == (12, 100)


def test_a_full_disk_does_not_fail_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    progress = RoundProgress(tmp_path, 2, 1, total=3)
    progress.add(3)
    progress.close()
    (tmp_path / "3").write_bytes(b"half")
    assert progress_of_round(tmp_path, 1) == (0, 0)
