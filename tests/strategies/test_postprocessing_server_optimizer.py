"""Test the server's step against torch's optimizers, and that it resumes exactly."""

import numpy as np
import pytest
import torch

from fl_sim.strategies import postprocessing
from fl_sim.strategies.postprocessing import ServerOptimizerConfig, build_optimizer, learning_rate_at

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
