"""Every option of a strategy through a whole run: failed nodes, noise, ε from the ledger alone, what is said of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fl_sim.clients.training import bounded_sum
from fl_sim.experiments.privacy_spent import read_ledgers
from fl_sim.reporting.report import report_text
from fl_sim.reporting.run_facts import read_facts
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.ledger import epsilon_of
from tests.e2e.small_runs import OPTIONS, PLAIN, PUBLISHED, Run, model_of

pytestmark = pytest.mark.usefixtures("no_plots")


@pytest.mark.sample(2)
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


@pytest.mark.sample(2)
@pytest.mark.system
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


@pytest.mark.system
def test_the_noise_on_the_model_is_as_the_paper_states(run: Run) -> None:
    """Check σ = z·(q_u|U| + 1)·β / D on the model's step, and σ² as coded."""
    settings = PUBLISHED | {"privacy__noise_multiplier": 50.0, "privacy__entity_weights": 8.0}
    settings |= {"privacy__extended_weights": 5.0, "server__optimizer": "sgd", "server__learning_rate": 1.0}
    sigma = 50 * (0.7 * 6 + 1) * 0.1 / (0.7 * 6 * (0.5 * 8 + 0.8 * 5))
    for noise, std in (("as-stated", sigma), ("as-coded", sigma**2)):
        row = run(noise, rounds=1, privacy__noise=noise, **settings).metrics().iloc[-1]
        assert row["noise_norm"] / math.sqrt(69_360) == pytest.approx(std, rel=0.02)


@pytest.mark.system
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


@pytest.mark.system
def test_the_claim_stands_in_the_record_beside_what_is_proven(run: Run) -> None:
    folder = run("run", rounds=3, **PUBLISHED)
    result, metrics = folder.result or {}, folder.metrics()
    assert result["epsilon_as_published"] == metrics["epsilon_as_published"].iloc[-1] > 0
    assert math.isfinite(result["epsilon_user"])
    assert "epsilon_as_published" not in read_facts(folder).record()["epsilon"]
    assert read_facts(folder).record()["epsilon_as_published"] == result["epsilon_as_published"]
    text = report_text(read_facts(folder))
    assert "a claim, no guarantee" in text
    assert text.index("any user ") < text.index("as published")
    assert "epsilon_as_published is what the paper's accountant says" in " ".join(text.split())
