"""One run in different ways ends in one model: with other nodes, after it died between rounds or in the middle of one.

Runs that stop at a signal are in failures/test_stops.py, runs on Ray and under Flower in engines/.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_sim.clients import client_app
from fl_sim.clients.selection import select
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.engines import simulation
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.storage.run_folder import ResultsError, RunFolder
from fl_sim.strategies.messages import TrainReply
from fl_sim.strategies.primitives import sampling
from tests.e2e.processes import forked
from tests.e2e.small_runs import (
    BOUNDS,
    OPTIONS,
    SAME_MODEL,
    SERVER,
    USERS,
    apart,
    configuration,
    measured,
    model_of,
    small_corpus,
)

pytestmark = pytest.mark.usefixtures("no_plots")

Run = Callable[..., RunFolder]
LEARNING_RATE = 0.01
PLAIN = {"server__optimizer": "sgd", "server__learning_rate": LEARNING_RATE}
UEDP = {"privacy__q_s": 0.8, "privacy__user_cap": 2.0}
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
    ("user_level", "adaptive sentences", "local Adam", "bounds, greedy"),
)
"""Those that every change is tried on: each divides users, sentences, weights or counts among nodes in its own way."""


def _in_its_ring(way: str) -> Any:
    marks = () if way in QUICK else pytest.mark.system if way in SHARPEST else pytest.mark.nightly
    return pytest.param(way, marks=marks)


@pytest.fixture
def run(corpus: Path, tmp_path: Path) -> Run:
    """``run("name", rounds=3)`` does an inline run in this process and returns the run folder."""
    return lambda name, **changes: simulation.run(configuration(corpus, tmp_path / name, **changes))


# --- the same model whatever the number of nodes ---------------------------------------------------------------------


@pytest.mark.parametrize("way", map(_in_its_ring, WAYS))
def test_the_model_does_not_depend_on_the_number_of_nodes(run: Run, way: str) -> None:
    whole, divided = (run(f"{nodes}", engine__nodes=nodes, **PLAIN, **WAYS[way]) for nodes in (1, USERS - 1))
    assert apart(whole, divided, LEARNING_RATE) < 10 * SAME_MODEL
    counts = ["cohort_users", "cohort_sentences", "clipped_fraction", "failed_nodes", "nonfinite"]
    assert divided.metrics()[counts].equals(whole.metrics()[counts])
    if "adaptive" in way:
        assert divided.metrics()["clip_norm"].iloc[-1] == pytest.approx(whole.metrics()["clip_norm"].iloc[-1])
        assert whole.metrics()["clip_norm"].nunique() > 1


def test_some_users_have_more_eligible_sentences_than_their_cap_and_some_fewer(corpus: Path) -> None:
    """Check that the test above covers both ways to compute a user's sum."""
    all_users = np.array([[0, USERS]])
    ownership = Corpus.open(corpus).ownership("train")
    eligible = select(ownership, all_users, sampling.round_seed(0, 1), q_e=0.5, q_s=0.8).counts
    cap = UEDP["privacy__user_cap"]
    assert (eligible > cap).any()
    assert ((eligible > 0) & (eligible <= cap)).any()


@pytest.mark.system
def test_the_tolerance_is_narrow_enough_to_miss_no_user(run: Run) -> None:
    changes = PLAIN | WAYS["noiseless"]
    assert apart(run("one"), run("other", seed=1), LEARNING_RATE) > 1000 * SAME_MODEL
    all_users, some_users = run("all", **changes), run("some", privacy__q_u=0.5, **changes)
    assert apart(all_users, some_users, LEARNING_RATE) > 1000 * SAME_MODEL


@pytest.mark.system
def test_with_adam_and_noise_the_model_does_not_depend_on_the_number_of_nodes(run: Run) -> None:
    one, six = (run(f"{nodes}", engine__nodes=nodes, **UEDP) for nodes in (1, USERS))
    assert apart(one, six, LEARNING_RATE) < SAME_MODEL


@pytest.mark.system
def test_under_adam_without_noise_only_parameters_without_gradient_differ(run: Run) -> None:
    """Adam divides by the size of the gradient, so it turns rounding errors into steps.

    This affects the biases of the attention's keys (16 parameters of this model). The softmax is invariant to them, so
    they change no prediction.
    """
    one, six = (
        run(f"{nodes}", engine__nodes=nodes, privacy__strategy="noiseless", privacy__q_s=1.0) for nodes in (1, USERS)
    )
    differs = np.abs(model_of(one) - model_of(six)) > 1e-6
    assert 0 < differs.sum() < 0.001 * differs.size
    losses = [folder.metrics()["loss"].iloc[-1] for folder in (one, six)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


# --- died and resumed ------------------------------------------------------------------------------------------------


class Died(Exception):
    """Stands for the death of a process between two rounds."""


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

    def die(row: simulation.Row) -> None:
        if row["round"] == 3:
            raise Died

    with pytest.raises(Died) as died:
        simulation.run(configuration(corpus, tmp_path / "died", **changes), on_row=die)
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


@pytest.mark.sample(2)
@pytest.mark.system
@pytest.mark.parametrize("way", ["uedp", "bounds, weights", "bounds, private graph"])
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


@pytest.mark.system
def test_a_finished_run_is_not_resumed(run: Run) -> None:
    with pytest.raises(ResultsError, match="finished"):
        simulation.resume(run("done", rounds=1).path)


@pytest.mark.system
def test_a_run_is_not_resumed_with_another_corpus(tmp_path: Path) -> None:
    corpus = small_corpus(tmp_path / "corpus")
    config = configuration(corpus, tmp_path / "run", rounds=3)
    simulation.run(config, on_row=lambda row: row["round"] == 0 and signal.raise_signal(signal.SIGINT))
    corpus.rename(tmp_path / "old")
    small_corpus(corpus, word="ships")
    with pytest.raises(ResultsError, match="corpus"):
        simulation.resume(tmp_path / "run")


def _but_for_time(run: RunFolder) -> dict[str, object]:
    """Return the result without durations and without the ledger, which has the run's random id."""
    result = dict(run.result or {})
    return {key: value for key, value in result.items() if "seconds" not in key and key != "ledger"}
