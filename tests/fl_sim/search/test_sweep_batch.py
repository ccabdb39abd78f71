"""Runs in a row: a stop signal starts no other run, whenever it arrives."""

from __future__ import annotations

import signal
from typing import cast

import pytest

from fl_sim.config import RunConfig
from fl_sim.search import sweep
from fl_sim.search.sweep import DONE, INTERRUPTED, Ending, run_batch
from fl_sim.stop_signals import stops_handled_by


def test_a_stop_in_the_last_round_of_a_run_starts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a run just finishes, as it would have without the signal."""
    stops = iter([False, True, False, False])

    def finished(name: str, config: RunConfig) -> Ending:
        with stops_handled_by(lambda signal_name: None):
            if next(stops):
                signal.raise_signal(signal.SIGTERM)
        return Ending(name, DONE)

    monkeypatch.setattr(sweep, "run_one", finished)
    runs = {name: cast("RunConfig", None) for name in "abcd"}
    assert list(run_batch(runs)) == [Ending("a", DONE), Ending("b", DONE), Ending("c", INTERRUPTED, "SIGTERM")]
    assert list(run_batch({"d": runs["d"]})) == [Ending("d", DONE)]  # it was said, and the next command begins anew
