"""The server's step: against torch's optimizers, and exactly resumable."""

import numpy as np
import pytest
import torch

from strategies.server_optimizer import ServerOptimizerConfig, build_optimizer

CONFIGS = [
    ServerOptimizerConfig(optimizer="sgd", learning_rate=0.3),
    ServerOptimizerConfig(optimizer="sgd", learning_rate=0.3, momentum=0.9),
    ServerOptimizerConfig(optimizer="adam", learning_rate=0.01, beta_1=0.8, beta_2=0.95),
]


def torch_twin(config: ServerOptimizerConfig, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
    if config.optimizer == "sgd":
        return torch.optim.SGD([parameter], lr=config.learning_rate, momentum=config.momentum)
    return torch.optim.Adam(
        [parameter], lr=config.learning_rate, betas=(config.beta_1, config.beta_2), eps=config.stabilizer
    )


@pytest.mark.parametrize("config", CONFIGS)
def test_steps_equal_torchs(config: ServerOptimizerConfig) -> None:
    rng = np.random.default_rng(0)
    model = np.zeros(5)
    ours = build_optimizer(config, 5)
    parameter = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
    theirs = torch_twin(config, parameter)
    for _ in range(6):
        update = rng.normal(size=5)
        model = model + ours.step(update)
        parameter.grad = torch.from_numpy(-update)  # an update points where the loss falls
        theirs.step()
    np.testing.assert_allclose(model, parameter.detach().numpy(), rtol=1e-10)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_restored_optimizer_takes_the_same_next_step(config: ServerOptimizerConfig) -> None:
    rng = np.random.default_rng(1)
    ours = build_optimizer(config, 3)
    for _ in range(3):
        ours.step(rng.normal(size=3))
    twin = build_optimizer(config, 3)
    twin.restore({name: value.copy() for name, value in ours.state().items()})
    update = rng.normal(size=3)
    np.testing.assert_array_equal(ours.step(update), twin.step(update))
