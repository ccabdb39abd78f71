"""Areas, rates and intervals against other ways to compute them; the test of pairs against mechanisms with a proof."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from fl_sim.auditing.leakage import rates
from fl_sim.auditing.leakage.rates import Rates, Scores
from fl_sim.auditing.lower_bounds import curve_trade_off
from fl_sim.config import ConfigError
from tests.fl_sim.auditing.test_lower_bounds_f_dp import gaussian_trade_off


def test_the_area_and_the_rates_by_counting() -> None:
    rng = np.random.default_rng(0)
    members, others = rng.integers(0, 9, 50), rng.integers(0, 7, 80)  # with ties
    scores = Scores(members.astype(float), others.astype(float))
    above = (members[:, None] > others).mean() + (members[:, None] == others).mean() / 2
    assert scores.area == pytest.approx(above)
    assert scores.area == pytest.approx(stats.mannwhitneyu(members, others).statistic / (50 * 80))
    for false in (0.0, 0.01, 0.2, 0.6, 1.0):
        allowed = [level for level in range(-1, 9) if (others > level).mean() <= false]
        expected = (members > max(min(allowed), others.min())).mean()
        assert scores.true_positive_rate(false) == pytest.approx(expected)


@pytest.mark.nightly
def test_intervals_cover_the_truth() -> None:
    rng = np.random.default_rng(1)
    truth, inside = stats.norm.cdf(1 / np.sqrt(2)), 0
    for _ in range(200):
        found = Rates.of(Scores(rng.normal(1, 1, 60), rng.normal(0, 1, 60)), rng, (0.01, 0.1), resamples=200)
        inside += found.area.low <= truth <= found.area.high
    assert inside >= 180
    assert (found.members, found.non_members) == (60, 60)
    tpr = found.at[0.1]
    assert tpr is not None
    assert found.at[0.01] is None
    low, high = stats.binomtest(round(tpr.value * 60), 60).proportion_ci(0.95, method="exact")
    assert (tpr.low, tpr.high) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize(
    ("members", "non_members", "words"),
    [([1.0, 2.0], [], "2 members and 0 non-members"), ([np.nan], [1.0], "not finite")],
)
def test_scores_that_show_nothing(members: list[float], non_members: list[float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Scores(np.array(members), np.array(non_members))


def test_pairs_refute_a_proof_that_is_wrong_and_no_other() -> None:
    """Which of N(3, 1) and N(0, 1) is which can be told as for a Gaussian of μ = 3√2; μ = 1/2 is contradicted."""
    rng = np.random.default_rng(3)
    units = Scores(rng.normal(3, 1, 400), rng.normal(0, 1, 300))
    right = rates.judge_pairs(units, gaussian_trade_off(3.0 * np.sqrt(2)), 1e-3, np.random.default_rng(0))
    wrong = rates.judge_pairs(units, gaussian_trade_off(0.5), 1e-3, np.random.default_rng(0))
    assert (right.state, wrong.state, wrong.pairs) == ("within", "beyond", 300)
    assert rates.judge_pairs(Scores(np.ones(1), np.zeros(9)), gaussian_trade_off(0), 1e-3, rng).state == "not tested"


@pytest.mark.nightly
def test_a_mechanism_that_rarely_publishes_everything_is_not_refuted_more_often_than_stated() -> None:
    """It is (0, δ)-DP. With intervals that take units as independent it would be refuted in a share δ of trainings."""
    delta, rng = 0.2, np.random.default_rng(4)
    once = curve_trade_off([(delta, 0.0)])
    states: list[str] = []
    above: list[bool] = []
    for _ in range(200):
        published = rng.random() < delta
        members = rng.normal(9.0 * published, 1, 100)
        units = Scores(members, rng.normal(0, 1, 100))
        states.append(rates.judge_pairs(units, lambda right: once(once(right)), 0.01, rng).state)
        above.append(rates.is_above(units, lambda false: min(1.0, false + 2 * delta), 0.01))
    assert states.count("beyond") <= 2 + 0.01 * 200
    assert sum(above) > 0.1 * 200


def test_rates_above_a_bound_if_scores_are_independent() -> None:
    rng, above = np.random.default_rng(8), []
    for _ in range(100):
        units = Scores(rng.normal(1, 1, 200), rng.normal(0, 1, 200))
        above.append(
            [rates.is_above(units, lambda w, mu=mu: special.ndtr(special.ndtri(w) + mu), 0.05) for mu in (0, 1)]
        )
    caught, wrong = np.sum(above, axis=0)
    assert (caught, wrong <= 8) == (100, True)


def test_splits_that_differ_before_training() -> None:
    rng = np.random.default_rng(6)
    same = rates.differ_before_training(Scores(rng.normal(0, 1, 300), rng.normal(0, 1, 200)))
    other = rates.differ_before_training(Scores(rng.normal(1, 1, 300), rng.normal(0, 1, 200)))
    assert same > rates.SAME_BEFORE > other
    assert rates.differ_before_training(Scores(np.ones(3), np.ones(4))) == 1.0
