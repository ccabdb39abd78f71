"""Every option of a strategy through a whole run: ε from the ledger alone, what is saved and what is said of it."""

from __future__ import annotations

import numpy as np
import pytest

from fl_sim.experiments.privacy_spent import read_ledgers
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.ledger import epsilon_of
from tests.e2e.small_runs import OPTIONS, PLAIN, Run, model_of

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
