"""One run in different ways ends in one model: with other nodes, after it died between rounds or in the middle of one.

Runs that stop at a signal are in failures/test_stops.py, runs on Ray and under Flower in engines/.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_sim.clients import client_app
from fl_sim.engines import simulation
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.ledger import Ledger
from fl_sim.strategies.messages import TrainReply
from tests.e2e.processes import forked
from tests.e2e.small_runs import (
    BOUNDS,
    OPTIONS,
    PLAIN,
    SAME_MODEL,
    SERVER,
    UEDP,
    USERS,
    Crash,
    Run,
    apart,
    configuration,
    crash_after,
    measured,
    model_of,
)

pytestmark = pytest.mark.usefixtures("no_plots")

WAYS: dict[str, dict[str, Any]] = (
    {
        "uedp": UEDP,
        "uedp, some users": UEDP | {"privacy__q_u": 0.5},
        "user_level": {"privacy__strategy": "user_level"},
        "user_level, some users": {"privacy__strategy": "user_level", "privacy__q_u": 0.5},
        "noiseless": {"privacy__strategy": "noiseless", "privacy__q_s": 0.8},
    }
    | OPTIONS
    | {f"bounds, {name}": {"privacy__q_u": 0.9, **bounds} for name, bounds in BOUNDS.items()}
)
QUICK, SHARPEST = (
    ("uedp, some users", "published"),
    ("user_level", "adaptive sentences", "local Adam", "bounds, counts"),
)
"""Those that every change is tried on: each divides users, sentences, weights or counts among nodes in its own way."""


def _in_its_ring(way: str) -> Any:
    marks = () if way in QUICK else pytest.mark.system if way in SHARPEST else pytest.mark.nightly
    return pytest.param(way, marks=marks)


# --- the same model whatever the number of nodes ---------------------------------------------------------------------


@pytest.mark.parametrize("way", [_in_its_ring(way) for way in WAYS])
def test_the_model_does_not_depend_on_the_number_of_nodes(run: Run, way: str) -> None:
    whole, divided = (run(f"{nodes}", engine__nodes=nodes, **PLAIN, **WAYS[way]) for nodes in (1, USERS - 1))
    assert apart(whole, divided) < 10 * SAME_MODEL
    counts = ["cohort_users", "cohort_sentences", "clipped_fraction", "failed_nodes", "nonfinite"]
    assert divided.metrics()[counts].equals(whole.metrics()[counts])
    if "adaptive" in way:
        assert divided.metrics()["clip_norm"].iloc[-1] == pytest.approx(whole.metrics()["clip_norm"].iloc[-1])
        assert whole.metrics()["clip_norm"].nunique() > 1


# --- died and resumed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "every"),
    [
        ("published", 1),
        pytest.param("adaptive users", 2, marks=pytest.mark.system),
        pytest.param("random allocation", 3, marks=pytest.mark.system),
        pytest.param("exponential", 5, marks=pytest.mark.system),
        *(pytest.param(way, 1, marks=pytest.mark.nightly) for way in ("uedp", "adaptive sentences", "tail")),
    ],
)
def test_a_run_that_died_ends_as_if_it_had_not(way: str, every: int, run: Run, corpus: Path, tmp_path: Path) -> None:
    changes = {"rounds": 5, "engine__nodes": 2, "checkpoint_every": every, **(WAYS | SERVER)[way]}
    whole = run("whole", **changes)
    with pytest.raises(Crash) as died:
        simulation.run(configuration(corpus, tmp_path / "died", **changes), on_row=crash_after(3))
    assert "fl-sim resume" in died.value.__notes__[0]
    checkpoint = Checkpoint.read(tmp_path / "died" / "checkpoint")
    assert checkpoint is not None
    assert checkpoint.server_round == 3 // every * every
    resumed = simulation.resume(tmp_path / "died")
    assert measured(whole) == measured(resumed)
    assert np.array_equal(model_of(whole), model_of(resumed))
    models = [(folder.model_dir / "model.safetensors").read_bytes() for folder in (whole, resumed)]
    assert models[0] == models[1]
    assert _but_for_time(whole) == _but_for_time(resumed)
    recorded = [entry.round for entry in Ledger.read(resumed.path).entries]
    assert recorded == [1, 2, 3, 4, 5]  # the same sum is recorded once


@pytest.mark.sample(2)
@pytest.mark.system
@pytest.mark.parametrize("way", ["uedp", "bounds, counts", "bounds, greedy"])
def test_a_run_killed_in_the_middle_of_a_round_ends_as_if_it_had_not_been(way: str, run: Run, tmp_path: Path) -> None:
    """It is killed while the second of two nodes works in round 2, on the fourth request."""
    changes = {"rounds": 3, "engine__nodes": 2, **WAYS[way]}

    def run_and_die() -> int:
        work, calls = client_app.bounded_sum, list[None]()

        def work_or_die(*arguments: Any) -> TrainReply:
            calls.append(None)
            if len(calls) == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            return work(*arguments)

        client_app.bounded_sum = work_or_die
        run("killed", **changes)
        return 0

    code, errors = forked(run_and_die, tmp_path / "errors")
    assert code == -signal.SIGKILL, errors
    assert RunFolder.open(tmp_path / "killed").last_round == 1
    resumed, whole = simulation.resume(tmp_path / "killed"), run("whole", **changes)
    assert np.array_equal(model_of(whole), model_of(resumed))
    assert measured(whole) == measured(resumed)
    assert not (tmp_path / "killed" / "encoded").exists()


def _but_for_time(run: RunFolder) -> dict[str, object]:
    """Return the result without durations and without the ledger, which has the run's random id."""
    result = dict(run.result or {})
    return {key: value for key, value in result.items() if "seconds" not in key and key != "ledger"}
