"""Every option of a strategy through a whole run: many nodes, failed nodes, resumption, ε from the ledger alone."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_sim.clients.training import bounded_sum
from fl_sim.config import ConfigError
from fl_sim.engines import simulation
from fl_sim.experiments.ledger_account import read_ledgers
from fl_sim.reporting.report import report, summary
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.ledger import epsilon_of
from fl_sim.strategies.primitives import sampling
from tests.e2e.small_runs import SAME_MODEL, USERS, apart, configuration, measured, model_of, small_corpus

pytestmark = pytest.mark.usefixtures("no_plots")

Run = Callable[..., RunFolder]
LEARNING_RATE = 0.01
PLAIN = {"server__optimizer": "sgd", "server__learning_rate": LEARNING_RATE}
PUBLISHED = {
    "privacy__strategy": "published", "privacy__q_u": 0.7, "privacy__q_s": 0.8, "privacy__settings_from_corpus": True,
}  # fmt: skip
ADAPTIVE = {"privacy__clip_quantile": 0.5, "privacy__clip_norm": 5.0}
ALLOCATION = {
    "privacy__strategy": "user_level", "privacy__sampling": "random_allocation", "privacy__epoch_rounds": 2,
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "published": PUBLISHED,
    "published f_e": PUBLISHED | {"privacy__estimator": "f_e"},
    "published weights": PUBLISHED | {"privacy__user_weight_cap": 9.0, "privacy__entity_weight_cap": 4.0},
    "published as coded": PUBLISHED | {"privacy__noise": "as-coded"},
    "user clip": {"privacy__clipping": "user", "privacy__q_s": 0.8},
    "FedSGD": {"privacy__strategy": "user_level", "privacy__q_u": 0.7, "local__update": "gradients"},
    "local Adam": {
        "privacy__strategy": "user_level", "privacy__q_u": 0.7, "local__optimizer": "adam",
        "local__learning_rate": 0.01, "local__epochs": 2,
    },
    "noiseless steps": {"privacy__strategy": "noiseless", "local__update": "steps", "privacy__q_s": 0.8},
    "adaptive sentences": ADAPTIVE | {"privacy__q_s": 0.8},
    "adaptive users": ADAPTIVE | {"privacy__strategy": "user_level", "privacy__q_u": 0.7},
    "random allocation": ALLOCATION,
    "adaptive FedSGD": ADAPTIVE
    | {"privacy__strategy": "user_level", "privacy__q_u": 0.7, "local__update": "gradients"},
}  # fmt: skip
SERVER = {
    "exponential": {"averaging__kind": "exponential", "averaging__decay": 0.5, "server__schedule": "cosine"},
    "tail": {"averaging__kind": "tail", "server__schedule": "linear", "server__warmup": 1},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_corpus(tmp_path_factory.mktemp("corpus") / "small")


@pytest.fixture
def run(corpus: Path, tmp_path: Path) -> Run:
    """``run("name", rounds=3)`` runs inline in this process and returns the run folder."""
    return lambda name, **changes: simulation.run(configuration(corpus, tmp_path / name, **changes))


@pytest.mark.parametrize("option", OPTIONS)
def test_the_model_does_not_depend_on_the_number_of_nodes(run: Run, option: str) -> None:
    whole, divided = (run(f"{nodes}", engine__nodes=nodes, **PLAIN, **OPTIONS[option]) for nodes in (1, 5))
    assert apart(whole, divided, LEARNING_RATE) < 10 * SAME_MODEL
    counts = ["cohort_users", "cohort_sentences", "clipped_fraction", "failed_nodes", "nonfinite"]
    assert divided.metrics()[counts].equals(whole.metrics()[counts])
    if "adaptive" in option:
        assert divided.metrics()["clip_norm"].iloc[-1] == pytest.approx(whole.metrics()["clip_norm"].iloc[-1])
        assert whole.metrics()["clip_norm"].nunique() > 1


@pytest.mark.parametrize("option", ["published", "adaptive sentences", "adaptive users", "random allocation", *SERVER])
def test_an_interrupted_run_ends_as_if_it_had_not_been(run: Run, corpus: Path, tmp_path: Path, option: str) -> None:
    changes = {"rounds": 4, "engine__nodes": 2, **(OPTIONS | SERVER)[option]}
    whole = run("whole", **changes)

    def interrupt(row: simulation.Row) -> None:
        if row["round"] == 1:
            signal.raise_signal(signal.SIGINT)

    simulation.run(configuration(corpus, tmp_path / "stopped", **changes), on_row=interrupt)
    resumed = simulation.resume(tmp_path / "stopped")
    assert np.array_equal(model_of(whole), model_of(resumed))
    assert measured(whole) == measured(resumed)
    assert (whole.model_dir / "model.safetensors").read_bytes() == (
        resumed.model_dir / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("option", OPTIONS)
def test_epsilon_of_the_ledger_alone_is_that_of_the_run(run: Run, option: str) -> None:
    folder = run("run", rounds=3, **OPTIONS[option])
    result, (ledger,) = folder.result or {}, read_ledgers([folder.path])
    user, entity_bound = result["user_sentences"], ContributionBound(**result["reach"]["p95"])
    for name, adjacency, robust in (
        ("epsilon_user", Adjacency(user), False),
        ("epsilon_user_entity_p95", Adjacency(user, entity_bound), False),
        ("epsilon_user_entity_robust_p95", Adjacency(user, entity_bound), True),
    ):
        assert epsilon_of(ledger.entries, adjacency, 1e-5, robust=robust) == pytest.approx(result[name], rel=1e-6)


@pytest.mark.parametrize("option", ["published", "published as coded", "adaptive sentences", "adaptive users"])
def test_an_empty_cohort_and_failed_nodes_release_noise(run: Run, option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def fail_first(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 1:
            raise MemoryError
        return bounded_sum(*arguments)

    empty = run("empty", rounds=1, **PLAIN, **(OPTIONS[option] | {"privacy__q_u": 1e-9})).metrics().iloc[-1]
    assert (empty["cohort_users"], empty["update_norm"]) == (0, 0)
    assert empty["noise_norm"] > 0
    whole = run("whole", rounds=1, engine__nodes=2, **PLAIN, **OPTIONS[option])
    monkeypatch.setattr("fl_sim.clients.client_app.bounded_sum", fail_first)
    failed = run("failed", rounds=1, engine__nodes=2, **PLAIN, **OPTIONS[option])
    rows = [folder.metrics().iloc[-1] for folder in (whole, failed)]
    assert [row["failed_nodes"] for row in rows] == [0, 1]
    assert rows[0]["noise_norm"] == rows[1]["noise_norm"] > 0
    assert not np.array_equal(model_of(whole), model_of(failed))


def test_every_user_takes_part_once_in_every_epoch(run: Run) -> None:
    cohorts = run("run", rounds=6, seed=3, **ALLOCATION).metrics()["cohort_users"].iloc[1:].to_numpy().reshape(3, 2)
    assert (cohorts.sum(axis=1) == USERS).all()
    assert len({tuple(epoch) for epoch in cohorts}) > 1
    expected = [len(sampling.allocated_users(3, number, USERS, 2)) for number in range(1, 7)]
    assert cohorts.ravel().tolist() == expected


@pytest.mark.parametrize("option", ["published", "adaptive sentences"])
def test_secure_noise_is_fresh(run: Run, option: str) -> None:
    one, other = (run(name, rounds=1, privacy__secure_noise=True, **PLAIN, **OPTIONS[option]) for name in "ab")
    assert not np.array_equal(model_of(one), model_of(other))


def test_the_noise_on_the_model_is_as_the_paper_states(run: Run) -> None:
    """Check σ = z·(q_u|U| + 1)·β / D on the model's step, and σ² as coded."""
    settings = PUBLISHED | {"privacy__noise_multiplier": 50.0, "privacy__entity_weights": 8.0}
    settings |= {"privacy__extended_weights": 5.0, "server__optimizer": "sgd", "server__learning_rate": 1.0}
    sigma = 50 * (0.7 * 6 + 1) * 0.1 / (0.7 * 6 * (0.5 * 8 + 0.8 * 5))
    for noise, std in (("as-stated", sigma), ("as-coded", sigma**2)):
        row = run(noise, rounds=1, privacy__noise=noise, **settings).metrics().iloc[-1]
        assert row["noise_norm"] / math.sqrt(69_360) == pytest.approx(std, rel=0.02)


def test_the_average_is_saved_and_evaluated(run: Run) -> None:
    settings = {"rounds": 4, "privacy__strategy": "noiseless", **PLAIN}  # other settings have other noise
    plain = run("plain", **settings)
    averaged = run("averaged", averaging__kind="tail", averaging__tail=1.0, **settings)
    assert np.array_equal(model_of(plain), model_of(averaged))  # the checkpoint keeps the iterate
    saved = [(folder.model_dir / "model.safetensors").read_bytes() for folder in (plain, averaged)]
    assert saved[0] != saved[1]
    losses = [folder.metrics()["loss"] for folder in (plain, averaged)]
    assert losses[0][1] == losses[1][1]
    assert losses[0][4] != losses[1][4]


# --- the published algorithm's claim ------------------------------------------------------------------------------


def test_the_claim_stands_in_the_record_beside_what_is_proven(run: Run) -> None:
    folder = run("run", rounds=3, **PUBLISHED)
    result, metrics = folder.result or {}, folder.metrics()
    assert result["epsilon_as_published"] == metrics["epsilon_as_published"].iloc[-1] > 0
    assert math.isfinite(result["epsilon_user"])
    assert "epsilon_as_published" not in report(folder)["epsilon"]
    assert report(folder)["epsilon_as_published"] == result["epsilon_as_published"]
    text = summary(folder)
    assert "a claim, no guarantee" in text
    assert text.index("any user ") < text.index("as published")
    assert "epsilon_as_published is what the paper's accountant says" in " ".join(text.split())


def test_as_coded_the_claim_is_the_same_and_the_proof_is_not(run: Run) -> None:
    stated, coded = (run(noise, rounds=3, privacy__noise=noise, **PUBLISHED) for noise in ("as-stated", "as-coded"))
    assert (stated.result or {})["epsilon_as_published"] == (coded.result or {})["epsilon_as_published"]
    assert (coded.result or {})["epsilon_user"] > 50 * (stated.result or {})["epsilon_user"]
    assert "gives no useful guarantee" in summary(coded)


def test_weights_from_data_count_for_every_user(run: Run) -> None:
    result = run("run", rounds=2, **OPTIONS["published weights"]).result or {}
    epsilons = {value for name, value in result.items() if name.startswith("epsilon_user_entity")}
    assert len(epsilons) == 1
    assert result["epsilon_user"] == result["epsilon_user_entity_max"]
    assert any("all users mention" in warning for warning in result["warnings"])


def test_a_target_finds_the_published_noise(run: Run) -> None:
    result = run("run", rounds=2, privacy__target_epsilon=3.0, **PUBLISHED).result or {}
    assert 0.99 * 3.0 < result["epsilon_user_entity_p95"] <= 3.0
    with pytest.raises(ConfigError, match=r"privacy\.noise is as-coded and privacy\.target_epsilon is 3"):
        run("coded", privacy__target_epsilon=3.0, privacy__noise="as-coded", **PUBLISHED)


def test_the_settings_of_a_release_are_in_the_ledger(run: Run) -> None:
    folder = run("run", rounds=1, **OPTIONS["published weights"])
    line = json.loads((folder.path / "ledger.jsonl").read_text().splitlines()[0])
    assert line["published"]["entity_cap"] == 4.0
    assert line["published"]["noise"] == "as-stated"
