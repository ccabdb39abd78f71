"""A run with a larger population's noise: every ε is that of the noise it adds, and ε at z is a forecast."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_sim.config import ConfigError, RunConfig
from fl_sim.engines import simulation
from fl_sim.experiments.plan.run_plan import Planned, plan_run
from fl_sim.experiments.privacy_spent import account_for, read_ledgers
from fl_sim.reporting.report import report_text
from fl_sim.reporting.run_facts import read_facts
from fl_sim.strategies.accounting.adjacency import Adjacency
from tests import tiny
from tests.fl_sim.ownerships import village

USERS, COHORT = 20, 160
LARGER = {"noise_cohort": COHORT}


def planned(**privacy: Any) -> Planned:
    return plan_run(RunConfig.from_mapping({"rounds": 5, "privacy": privacy}), village(USERS))


@pytest.mark.system
@pytest.mark.parametrize("privacy", [{"q_u": 0.5}, {"strategy": "user_level", "q_u": 0.5}, {"clip_quantile": 0.5}])
def test_every_epsilon_is_that_of_the_noise_really_added(privacy: dict[str, Any]) -> None:
    share = privacy.get("q_u", 1.0) * USERS / COHORT
    rescaled, plain = planned(**privacy, **LARGER, noise_multiplier=4.0), planned(**privacy, noise_multiplier=4 * share)
    assert rescaled.plan == plain.plan
    assert rescaled.guarantees.after(5) == plain.guarantees.after(5)
    assert plain.forecast is None


@pytest.mark.system
@pytest.mark.parametrize("privacy", [{"q_u": 0.5}, {"strategy": "user_level", "q_u": 0.5, "entity_users": 3}])
def test_the_forecast_is_the_epsilon_of_the_larger_population(privacy: dict[str, Any]) -> None:
    forecast = planned(**privacy, **LARGER, noise_multiplier=4.0).forecast
    there = planned(**privacy, noise_multiplier=4.0, population=2 * COHORT).guarantees.after(5)
    assert forecast is not None
    assert forecast.plan.mechanism.population == 2 * COHORT
    assert forecast.epsilons == pytest.approx({name: there[name] for name in ("epsilon_any", "epsilon_user")})
    assert forecast.record()["forecast"]["guarantee"] is False


def test_the_noise_per_user_is_that_of_the_larger_cohort() -> None:
    mechanism = planned(**LARGER, noise_multiplier=4.0).plan.mechanism
    assert mechanism.noise_std(1.0) / mechanism.denominator == pytest.approx(4.0 * mechanism.user_clip(1.0) / COHORT)


@pytest.mark.system
def test_a_target_is_met_by_the_forecast_alone() -> None:
    rescaled = planned(**LARGER, target_epsilon=4.0)
    assert rescaled.forecast is not None
    assert 3.9 < rescaled.forecast.epsilons["epsilon_any"] <= 4.0 + 1e-9
    assert rescaled.guarantees.after(5)["epsilon_any"] > 20
    config = RunConfig.from_mapping({"rounds": 5, "privacy": LARGER | {"target_epsilon": 4.0}})
    resumed = plan_run(config, village(USERS), noise_multiplier=rescaled.plan.mechanism.noise_multiplier)
    assert (resumed.plan, resumed.forecast) == (rescaled.plan, rescaled.forecast)


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        ({"noise_cohort": USERS - 1}, "privacy.noise_cohort is 19; allowed: at least 20"),
        ({"noise_cohort": 10**9}, "privacy.noise_cohort is 1000000000; allowed: at most 80000 at z 4"),
        (LARGER | {"secure_noise": True}, "secure_noise is true; allowed: one of them"),
        (LARGER | {"epsilon_budget": 3.0}, "epsilon_budget is 3; allowed: one of them"),
        (LARGER | {"strategy": "noiseless"}, "allowed: with uedp or user_level only"),
        ({"noise_cohort": 0}, "privacy.noise_cohort is 0; allowed"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(privacy: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        planned(**privacy)
    assert "\n" not in str(error.value)


@pytest.mark.system
@pytest.mark.usefixtures("no_plots")
def test_a_run_records_a_guarantee_of_its_release_and_a_forecast_beside_it(tmp_path: Path) -> None:
    corpus = tiny.tiny_corpus(tmp_path / "corpus")
    settings = {"corpus.path": str(corpus), "out": str(tmp_path / "run"), "engine.name": "inline", **tiny.MODEL}
    privacy = {"noise_cohort": 600, "noise_multiplier": 40.0, "q_s": 0.5}
    run = simulation.run(RunConfig.from_mapping({"rounds": 2, **settings, "privacy": privacy}))
    result, facts, text = run.result or {}, read_facts(run).record(), report_text(read_facts(run))
    ledgers = read_ledgers([run.path])
    account = account_for(ledgers, Adjacency(32), Adjacency(32), 1e-5, None)
    assert {entry.terms.mechanism.noise_multiplier for entry in ledgers[0].entries} == {0.4}
    assert account["epsilon_any"] == pytest.approx(result["epsilon_any"])
    assert account["epsilon_any"] == pytest.approx(facts["epsilon"]["epsilon_any"])
    assert result["epsilon_any"] > 10 > 1 > result["forecast"]["forecast_epsilon_any"]
    assert result["forecast"]["population"] == 600
    assert "Forecast for a population of 600 users, no guarantee of anything released" in " ".join(text.split())
    assert not any(name.startswith("epsilon") for name in result["forecast"])
    assert math.isfinite(result["perplexity"])
    assert np.isfinite(list(result["forecast"].values())[1:]).all()
