"""Test averages of the iterates: evaluated, but not trained from; resumable to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from fl_sim.strategies.postprocessing import AveragingConfig, IterateAverage
from tests.strategies.federation import plan, run_rounds

MODELS = np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32)
EXPONENTIAL = AveragingConfig(kind="exponential", decay=0.7)
TAIL = AveragingConfig(kind="tail", tail=0.3)


def average_of(config: AveragingConfig, models: np.ndarray, rounds: int = 10) -> IterateAverage:
    average = IterateAverage(config, models.shape[1], rounds)
    for number, model in enumerate(models, start=1):
        average.add(number, model)
    return average


def test_without_averaging_the_last_model_is_the_model() -> None:
    average = average_of(AveragingConfig(), MODELS)
    np.testing.assert_array_equal(average.value(MODELS[-1]), MODELS[-1])
    assert average.state() == {}


def test_the_exponential_average_weights_sum_to_one_from_the_first_round_on() -> None:
    for count in (1, 2, 10):
        weights = 0.7 ** np.arange(count)[::-1]
        expected = weights @ MODELS[:count] / weights.sum()
        np.testing.assert_allclose(average_of(EXPONENTIAL, MODELS[:count]).value(MODELS[0]), expected, rtol=1e-5)


@pytest.mark.parametrize(("tail", "count"), [(0.3, 3), (0.25, 3), (0.01, 1), (1.0, 10)])
def test_the_tail_is_the_mean_of_the_last_share_of_rounds(tail: float, count: int) -> None:
    average = average_of(AveragingConfig(kind="tail", tail=tail), MODELS)
    np.testing.assert_allclose(average.value(MODELS[0]), MODELS[-count:].mean(axis=0), rtol=1e-5)


def test_before_the_tail_the_model_is_the_last_one() -> None:
    np.testing.assert_array_equal(average_of(TAIL, MODELS[:7]).value(MODELS[6]), MODELS[6])


@pytest.mark.parametrize("config", [EXPONENTIAL, TAIL])
def test_a_restored_average_goes_on_the_same(config: AveragingConfig) -> None:
    uninterrupted, resumed = average_of(config, MODELS), IterateAverage(config, 3, 10)
    resumed.restore(average_of(config, MODELS[:8]).state())
    for number in (9, 10):
        resumed.add(number, MODELS[number - 1])
    np.testing.assert_array_equal(uninterrupted.value(MODELS[0]), resumed.value(MODELS[0]))


@pytest.mark.parametrize("config", [EXPONENTIAL, TAIL])
def test_training_goes_on_from_the_iterate_and_not_from_its_average(config: AveragingConfig) -> None:
    privacy = plan(noise_multiplier=1.0, rounds=4)
    plain, _ = run_rounds(privacy, rounds=4)
    models, strategy = run_rounds(privacy, rounds=4, averaging=config)
    np.testing.assert_array_equal(models, plain)
    assert not np.array_equal(strategy.averaged(models[-1]), models[-1])
    _, half = run_rounds(privacy, rounds=3, averaging=config)
    assert half.state().keys() >= {"average.sum", "average.weight"}
