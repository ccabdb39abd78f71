"""Findings follow from what was measured, and from nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fl_sim.auditing.lower_bounds import Scores, epsilon_lower_bound, gaussian_lower_bound
from fl_sim.checking.faults import findings, proven
from fl_sim.checking.measurements import Measured, _bounds, _is_gaussian, _sampling_of, _shape, epsilon_of
from fl_sim.checking.stated import Stated
from fl_sim.checking.trials import Seen

RIGHT = Measured(
    nodes=10, rounds=5, seen=Seen(), stated=Stated(6.0, 1e-5), parameters=4, sampling="poisson", rate=0.5,
    rate_low=0.45, cohort=5, noise={"w": 1.0, "b": 1.0}, noise_error=0.05, fresh=True, effect={"w": 0.8, "b": 0.6},
    growth={"": 1.0, "w": 1.0, "b": 1.0}, heavier=1.0, of_all=0.2,
)  # fmt: skip


def names(found: Measured) -> list[str]:
    return [finding.name for finding in findings(found)]


def test_nothing_is_found_where_the_stated_epsilon_holds() -> None:
    assert RIGHT.mu == pytest.approx(1.0)
    stated = replace(RIGHT, stated=Stated(RIGHT.epsilon(), 1e-5))
    assert names(stated) == []
    assert proven(stated, []) == RIGHT.epsilon()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"noise": {"w": 0.0, "b": 0.0}}, "no-noise"),
        ({"noise": {"w": 0.0, "b": 0.0}, "fixed": True}, "fixed-seed"),
        ({"fresh": False}, "noise-reused"),
        ({"growth": {"": 1000.0, "w": 1000.0, "b": 1000.0}}, "unbounded-update"),
        ({"growth": {"": 1.0, "w": 1.0, "b": 1000.0}}, "unclipped-array"),
        ({"noise": {"w": 1.0, "b": 0.0}}, "array-without-noise"),
        ({"stops": {"w": 2}}, "noise-stops"),
        ({"lines": {"w": 1}}, "noise-in-step"),
        ({"of_all": 1.0}, "clip-on-mean"),
        ({"heavier": 1.8}, "example-weights"),
        ({"nan": True}, "nan-passes"),
        ({"failure": "lost"}, "failure-shows"),
        ({"metrics": ["loss"]}, "metrics-leave"),
        ({"text": True}, "exception-text"),
    ],
)
def test_one_measurement_is_one_finding(change: dict[str, object], name: str) -> None:
    right = replace(RIGHT, stated=Stated(RIGHT.epsilon(), 1e-5))
    assert names(replace(right, **change)) == [name]


@pytest.mark.parametrize(
    "change",
    [{"nan": True}, {"failure": "lost"}, {"growth": {"": 1000.0, "w": 1000.0, "b": 1000.0}}, {"fresh": False}],
)
def test_no_epsilon_is_proven_where_one_user_is_not_bounded_or_seen(change: dict[str, object]) -> None:
    found = replace(RIGHT, **change)
    assert math.isfinite(found.epsilon())
    assert proven(found, findings(found)) == math.inf


def test_effects_of_arrays_add_up_and_the_same_users_are_not_amplified() -> None:
    assert replace(RIGHT, effect={"w": 3.0, "b": 4.0}).mu == pytest.approx(5.0)
    assert replace(RIGHT, noise={"w": 0.0, "b": 1.0}).mu == math.inf
    whole = replace(RIGHT, sampling="all", rate=1.0).epsilon()
    assert replace(RIGHT, sampling="same", rate=0.5).epsilon() == whole > RIGHT.epsilon()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({}, "noise-below-claim"),
        ({"sampling": "fixed"}, "fixed-cohort"),
        ({"sampling": "same"}, "same-cohort"),
        ({"rescaled": 0.5, "stated": Stated(5.0, 1e-5)}, "realised-denominator"),
        ({"stated": Stated(3.0, 1e-5, (3.0, 3.0, 3.0))}, "accountant-reset"),
    ],
)
def test_a_stated_epsilon_below_the_proven_one_has_its_reason(change: dict[str, object], name: str) -> None:
    found = replace(RIGHT, stated=Stated(2.0, 1e-5))
    assert names(replace(found, **change)) == [name]


def test_errors_of_measurement_contradict_nobody() -> None:
    least = RIGHT.epsilon(least=True)
    assert least < 0.95 * RIGHT.epsilon()
    assert names(replace(RIGHT, stated=Stated(least, 1e-5))) == []


def test_a_gaussian_epsilon_contradicts_no_other_noise() -> None:
    """Laplace noise of scale 1 on a sum that a user moves by 1 has ε = 1; a Gaussian of its deviation has 2.9."""
    rng = np.random.default_rng(0)
    scores = rng.laplace(size=300), 1 + rng.laplace(size=300)
    found = replace(
        RIGHT, rounds=1, sampling="all", rate=1.0, noise={"w": math.sqrt(2)}, effect={"w": 1.0},
        stated=Stated(1.0, 1e-5), gaussian=False, scores=scores,
    )  # fmt: skip
    assert findings(found) == []
    assert 0 < proven(found, []) <= 1
    assert found.epsilon() > 2.8
    assert replace(found, gaussian=True).attacked() > 1.2
    assert names(replace(found, gaussian=True)) == ["noise-below-claim"]


@pytest.mark.parametrize("size", [(200, 1), (40, 50), (3, 4000)])
def test_noise_that_is_not_gaussian_is_told_from_its_draws(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    lengths = rng.uniform(0.5, 2.0, (size[0], 1)) if size[0] < size[1] else 1.0  # of local noise of several nodes
    assert _is_gaussian([_shape(rng.normal(size=size) * lengths)])
    assert not _is_gaussian([_shape(rng.laplace(size=size))])
    assert not _is_gaussian([_shape(rng.uniform(size=size))])


def test_findings_on_users_are_notes_where_opacus_states_the_epsilon_of_an_example() -> None:
    found = findings(replace(RIGHT, seen=Seen(opacus=True), nan=True, stated=Stated(9.0, 1e-5)))
    assert [(finding.name, finding.severity) for finding in found] == [("nan-passes", "note")]


def test_an_accountant_of_opacus_that_is_reset_is_found_by_two_rounds() -> None:
    found = findings(replace(RIGHT, seen=Seen(opacus=True), stated=Stated(4.39, 1e-5, (4.39, 4.39))))
    assert [(finding.name, finding.severity) for finding in found] == [("accountant-reset", "breaks")]
    assert findings(replace(RIGHT, seen=Seen(opacus=True), stated=Stated(4.39, 1e-5, (3.1, 4.39)))) == []


def test_epsilon_of_full_cohorts_is_that_of_the_gaussian() -> None:
    """δ of ε by Balle and Wang 2018, equation 6, for μ = 2 over four rounds: one Gaussian of μ = 4."""
    epsilon, mu = epsilon_of(2.0, 1.0, 4, 1e-5), 4.0
    delta = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-3)
    assert epsilon_of(math.inf, 0.1, 4, 1e-5) == math.inf


@pytest.mark.parametrize(
    ("runs", "kind"),
    [
        ([[[0, 1, 2, 3], [0, 1, 2, 3]]], "all"),
        ([[[0, 1], [0, 1]], [[0, 1]]], "same"),
        ([[[0, 1], [2, 3]], [[1, 3]]], "fixed"),
        ([[[0, 1], [2]], [[]]], "poisson"),
    ],
)
def test_sampling_is_told_from_cohorts(runs: list[list[list[int]]], kind: str) -> None:
    cohorts = [[[(node, "") for node in cohort] for cohort in run] for run in runs]
    assert _sampling_of(cohorts, nodes=4, many_users=False)[0] == kind


def test_more_users_than_nodes_have_no_rate_of_nodes() -> None:
    cohorts = [[[(node, str(user)) for user in range(users) for node in range(4)]] for users in (3, 4)]
    assert _sampling_of(cohorts, nodes=4, many_users=True) == ("poisson", 1.0)


@pytest.mark.parametrize(
    ("first", "later", "rate"),
    [
        ([[0], [1], [2], [3]] * 40, [[0], [3]] * 10, 0.25),
        ([[0], [1], [2], [3]] * 40, [[0, 1, 2, 3]] * 10, 1.0),
        ([[0, 1], [0, 2], [0, 3], [0]] * 40, [[0, 2]] * 10, 1.0),
    ],
)
def test_the_largest_rate_of_first_and_later_rounds_and_of_users_counts(
    first: list[list[int]], later: list[list[int]], rate: float
) -> None:
    runs = [[[(node, "") for node in cohort] for cohort in run] for run in [*([one] for one in first), [[0], *later]]]
    assert _sampling_of(runs, nodes=4, many_users=False)[1] == pytest.approx(rate, abs=0.02)


def test_an_attack_that_shows_more_than_is_stated_is_a_finding() -> None:
    apart = (np.zeros(500), np.full(500, 9.0))
    small = replace(RIGHT, effect={"w": 0.08, "b": 0.06})
    found = replace(small, stated=Stated(small.epsilon(), 1e-5), scores=apart)
    assert found.attacked() > small.epsilon()
    assert names(found) == ["attack-above-claim"]
    assert proven(found, findings(found)) == found.attacked()
    assert ["later round" in findings(one)[0].words for one in (found, replace(found, gaussian=False))] == [True, False]


def test_two_bounds_of_an_attack_share_its_confidence() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=200), 1 + rng.normal(size=200)
    found = replace(RIGHT, sampling="all", scores=scores)
    assert found.attacked() == gaussian_lower_bound(Scores(*scores), found.stated.delta, 0.975) > 0
    assert replace(found, sampling="poisson").attacked() == epsilon_lower_bound(Scores(*scores), 1e-5, 0.95)


def test_updates_of_one_length_look_clipped() -> None:
    assert _bounds([1.0, 1.0, 0.4], 1.0)
    assert not _bounds([1.0, 0.7, 0.4], 1.0)
    assert not _bounds([0.5, 0.5, 0.5, 0.5], 0.5)  # equal updates of equal data
