"""The counts of a round under way: what is written and read, what is shown, and that a node never fails by them."""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import pytest
from rich.console import Console

from fl_sim.cli import console
from fl_sim.clients.worker import round_progress
from fl_sim.clients.worker.round_progress import RoundProgress, progress_of_round
from fl_sim.engines import simulation
from fl_sim.experiments.observers import Observer
from tests.e2e.small_runs import configuration, small_corpus


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


class Follower(Observer):
    """Keeps the progress that it is told, and fails on request."""

    def __init__(self, fails: bool = False) -> None:
        self.seen: list[tuple[int, int, float]] = []
        self.fails = fails

    def on_progress(self, server_round: int, done: int, expected: float) -> None:
        self.seen.append((server_round, done, expected))
        if self.fails:
            raise RuntimeError("no more")


@pytest.mark.system
@pytest.mark.usefixtures("no_plots")
def test_the_progress_is_that_of_the_round_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_progress, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(round_progress, "_WRITE_SECONDS", 0.0)
    corpus = small_corpus(tmp_path / "corpus")
    follower, failing = Follower(), Follower(fails=True)
    config = configuration(corpus, tmp_path / "watched", engine__nodes=2, privacy__q_s=0.8)
    watched = simulation.run(config, observers=[follower, failing])
    sampled = dict(watched.metrics()[["round", "cohort_sentences"]].to_numpy()[1:].tolist())
    assert {server_round for server_round, _, _ in follower.seen} <= set(sampled)
    assert all(0 <= done <= sampled[server_round] for server_round, done, _ in follower.seen)
    assert any(done > 0 for _, done, _ in follower.seen)
    assert all(expected >= done for _, done, expected in follower.seen)
    assert len(failing.seen) == 1
    assert not (watched.path / "encoded").exists()


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize("terminal", [True, False])
def test_the_bar_moves_within_a_round_and_lines_wait_for_half_a_minute(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, out = [100.0], io.StringIO()
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    bar = console.ProgressBar()
    bar._console = Console(file=out, width=200, force_terminal=terminal)
    bar._in_lines, bar._rounds = not terminal, 9
    bar._task = bar._progress.add_task("", total=9)
    bar.on_round({"round": 2, "epsilon_user": 0.5})
    bar.on_progress(3, 30, 120.0)
    assert bar._progress.tasks[0].completed == 2.25
    now[0] = 131.0
    bar.on_progress(3, 60, 120.0)
    now[0] = 140.0
    bar.on_progress(3, 240, 120.0)
    assert bar._progress.tasks[0].completed == 3
    lines = [line for line in out.getvalue().splitlines() if "sentences" in line]
    assert lines == ([] if terminal else ["round 3: 60 of about 120 sentences"])
