"""Checks that run in one fork of the test's process, with few draws."""

from __future__ import annotations

import pytest

from fl_sim.checking import app_process, measurements


@pytest.fixture
def few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the app's process as a fork, run all trials in it, and take few of them."""
    monkeypatch.setattr(app_process, "METHOD", "fork")
    monkeypatch.setattr(app_process, "_forked", lambda loaded, trial, folder: (loaded.run(trial, folder), {}, []))
    for name, number in {"_USER_DRAWS": 400, "_NOISE_DRAWS": 800, "_ATTACKS": 16}.items():
        monkeypatch.setattr(measurements, name, number)
