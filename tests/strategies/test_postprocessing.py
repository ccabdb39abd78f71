"""Test the server's step against torch's optimizers, averages of the iterates, and that both resume exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fl_sim.strategies import postprocessing
from fl_sim.strategies.postprocessing import (
    AveragingConfig,
    IterateAverage,
    ServerOptimizerConfig,
    build_optimizer,
    learning_rate_at,
)
from tests.strategies.federation import plan, run_rounds

CONFIGS = [
    ServerOptimizerConfig(optimizer="sgd", learning_rate=0.3),
    ServerOptimizerConfig(optimizer="sgd", learning_rate=0.3, momentum=0.9),
    ServerOptimizerConfig(optimizer="adam", learning_rate=0.01, beta_1=0.8, beta_2=0.95),
]
SCHEDULED = [
    ServerOptimizerConfig(optimizer="sgd", learning_rate=0.3, momentum=0.9, schedule="cosine", warmup=2),
    ServerOptimizerConfig(learning_rate=0.01, schedule="linear", final_share=0.1),
]

ZERO = np.zeros(3, np.float32)


def torch_twin(config: ServerOptimizerConfig, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
    if config.optimizer == "sgd":
        return torch.optim.SGD([parameter], lr=config.learning_rate, momentum=config.momentum)
    return torch.optim.Adam(
        [parameter], lr=config.learning_rate, betas=(config.beta_1, config.beta_2), eps=config.stabilizer
    )


@pytest.mark.parametrize("config", CONFIGS)
def test_steps_equal_torchs(config: ServerOptimizerConfig) -> None:
    rng = np.random.default_rng(0)
    model = np.zeros(5, np.float32)
    ours = build_optimizer(config, 5)
    parameter = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
    theirs = torch_twin(config, parameter)
    for _ in range(6):
        update = rng.normal(size=5)
        model = ours.stepped(model, update)
        parameter.grad = torch.from_numpy(-update)  # an update points where the loss falls
        theirs.step()
    np.testing.assert_allclose(model, parameter.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("config", [*CONFIGS, *SCHEDULED])
def test_a_restored_optimizer_takes_the_same_next_step(config: ServerOptimizerConfig) -> None:
    rng = np.random.default_rng(1)
    ours = build_optimizer(config, 3, rounds=6)
    for _ in range(3):
        ours.stepped(ZERO, rng.normal(size=3))
    twin = build_optimizer(config, 3, rounds=6)
    twin.restore(ours.state())
    update = rng.normal(size=3)
    np.testing.assert_array_equal(ours.stepped(ZERO, update), twin.stepped(ZERO, update))


@pytest.mark.parametrize("config", CONFIGS)
def test_a_step_does_not_depend_on_the_block(config: ServerOptimizerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    updates, models = np.random.default_rng(2).normal(size=(3, 50)), []
    for block in (50, 7):
        monkeypatch.setattr(postprocessing, "_BLOCK", block)
        ours, model = build_optimizer(config, 50), np.zeros(50, np.float32)
        for update in updates:
            model = ours.stepped(model, update)
        models.append(model)
    np.testing.assert_array_equal(*models)


def test_what_lasts_is_as_small_as_the_model() -> None:
    assert all(value.nbytes <= 4 * 100 for config in CONFIGS for value in build_optimizer(config, 100).state().values())


def rates(rounds: int = 10, **settings: object) -> list[float]:
    config = ServerOptimizerConfig(learning_rate=2.0, **settings)
    return [learning_rate_at(config, number, rounds) for number in range(1, rounds + 1)]


def test_the_rate_is_constant_without_a_schedule() -> None:
    assert rates() == [2.0] * 10
    assert rates(warmup=4) == [0.5, 1.0, 1.5, 2.0, *[2.0] * 6]


def test_the_rate_falls_in_a_line_or_a_half_wave_from_full_to_its_share() -> None:
    assert rates(schedule="linear") == pytest.approx([2.0 * left / 10 for left in range(10, 0, -1)])
    assert rates(5, schedule="linear", warmup=1, final_share=0.5) == pytest.approx([2.0, 2.0, 1.75, 1.5, 1.25])
    cosine = rates(schedule="cosine", final_share=0.2)
    assert cosine == pytest.approx([0.4 + 0.8 * (1 + np.cos(np.pi * done / 10)) for done in range(10)])


def test_an_optimizer_follows_its_schedule() -> None:
    for config in SCHEDULED:
        scheduled = build_optimizer(config, 3, rounds=6)
        constant = build_optimizer(config.model_copy(update={"schedule": "constant", "warmup": 0}), 3)
        for number in range(1, 7):
            update = np.full(3, float(number))
            expected = constant.stepped(ZERO, update) * learning_rate_at(config, number, 6) / config.learning_rate
            np.testing.assert_allclose(scheduled.stepped(ZERO, update), expected, rtol=1e-6)


# Averages of the iterates: evaluated, but not trained from

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
