"""A run with a larger population's noise: every ε is that of the noise that it adds."""

from __future__ import annotations

from typing import Any

import pytest

from fl_sim.config import ConfigError, RunConfig
from fl_sim.experiments.plan.run_plan import Planned, plan_run
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


def test_the_noise_per_user_is_that_of_the_larger_cohort() -> None:
    mechanism = planned(**LARGER, noise_multiplier=4.0).plan.mechanism
    assert mechanism.noise_std(1.0) / mechanism.denominator == pytest.approx(4.0 * mechanism.user_clip(1.0) / COHORT)


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        ({"noise_cohort": USERS - 1}, "privacy.noise_cohort is 19; allowed: at least 20"),
        ({"noise_cohort": 10**9}, "privacy.noise_cohort is 1000000000; allowed: at most 80000 at z 4"),
        (LARGER | {"secure_noise": True}, "secure_noise is true; allowed: one of them"),
        (LARGER | {"epsilon_budget": 3.0}, "epsilon_budget is 3; allowed: one of them"),
        (LARGER | {"target_epsilon": 4.0}, "target_epsilon is 4; allowed: one of them"),
        (LARGER | {"strategy": "noiseless"}, "allowed: with uedp or user_level only"),
        ({"noise_cohort": 0}, "privacy.noise_cohort is 0; allowed"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(privacy: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        planned(**privacy)
    assert "\n" not in str(error.value)
