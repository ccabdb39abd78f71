"""The training loop, split between the parties: clients send vectors, the server returns gradients, both take a step.

The randomness of a step is a function of (seed, epoch, step) alone, so a training that stops after epoch n is the
beginning of a longer one.

>>> [round(rising_weight(1.0, epoch, epochs=10), 3) for epoch in (0, 5, 9)]
[0.0, 0.941, 0.996]

>>> from fl_sim.research.representations.config import load_mapping
>>> config = load_mapping({"method": "adaptive", "privacy.epsilon": 1.0})
>>> [training_noise(config, 8, epoch) for epoch in range(2)]  # ε_n is 10 in the first epoch, 5 in the second
[0.1, 0.2]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.research.representations.client.client_workspace import Workspace
from fl_sim.research.representations.client.encoders import WordBag
from fl_sim.research.representations.client.feed_forward import Draw, short_seed
from fl_sim.research.representations.config import AdaptiveName, ExperimentConfig, OptimizerSection
from fl_sim.research.representations.corpora.labelled import VALIDATION, LabelledData, LabelledSplit
from fl_sim.research.representations.server.group_metrics import accuracy, grms, tpr_gap
from fl_sim.research.representations.server.heads import Server
from fl_sim.strategies.primitives import streams

ADAPTIVE: dict[AdaptiveName, Callable[[int], float]] = {"1/n": lambda n: 1 / n, "10/n": lambda n: 10 / n}
"""ε_n of epoch n, from 1: the schedules of the study of DPNR, by name."""

STEEPNESS = 7.0
"""p_i rises from 0 to this over the epochs: "scaled" in the paper, 7·i/epochs in its published code."""


def build_optimizer(section: OptimizerSection, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return a new optimizer of ``parameters``, at least one."""
    if section.name == "sgd":
        return torch.optim.SGD(parameters, lr=section.learning_rate, weight_decay=section.weight_decay)
    # One pass over all small tensors: the steps of a small network are mostly overhead.
    return torch.optim.AdamW(parameters, lr=section.learning_rate, weight_decay=section.weight_decay, fused=True)


class Clients:
    """All clients together: they hold texts, encoder and privacy layer, send vectors and step along gradients."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        encoder, optimizer = workspace.encoder, workspace.config.optimizer
        if isinstance(encoder, WordBag) and optimizer.name == "sgd" and optimizer.weight_decay == 0:
            encoder.vectors.sparse = True  # a step changes the words of the batch alone
        parameters = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
        self.optimizer = build_optimizer(optimizer, parameters) if parameters else None
        self._sent = torch.empty(0)

    def forward(self, rows: NDArray[np.int64], seed: int, scale: float | None) -> torch.Tensor:
        """Return perturbed vectors of training rows, int64 (B,), float32 (B, k), without a graph.

        All randomness of the step follows from ``seed``; ``scale`` is that of the noise, None the layer's own.
        """
        workspace, draw = self.workspace, Draw(seed, len(rows))
        workspace.encoder.train()
        self._sent = workspace.layer(workspace.encoder(workspace.training_batch(rows, draw), draw), draw, scale)
        return self._sent.detach()

    def backward(self, gradient: torch.Tensor) -> None:
        """Step the encoder along the gradient in the vectors that :meth:`forward` last sent, float32 (B, k)."""
        if self.optimizer is not None:
            self.optimizer.zero_grad()
            self._sent.backward(gradient)
            self.optimizer.step()

    def validate(self, seed: int) -> torch.Tensor:
        """Return perturbed vectors of the validation rows, float32 (n, k), for model selection."""
        vectors = self.workspace.encode(VALIDATION)
        return self.workspace.layer(vectors, Draw(seed, len(vectors)))


def set_step_size(optimizer: torch.optim.Optimizer | None, section: OptimizerSection, epoch: int) -> None:
    """Set the step size of ``epoch``, from 0."""
    for group in [] if optimizer is None else optimizer.param_groups:
        group["lr"] = section.learning_rate * section.decay**epoch


def rising_weight(weight: float, epoch: int, epochs: int) -> float:
    """Return λ·λ_i of epoch i, from 0, λ_i = 2/(1 + e^(−p_i)) − 1 with p_i = 7·i/epochs (FEDERATE, appendix D.4)."""
    return weight * (2.0 / (1.0 + math.exp(-STEEPNESS * epoch / epochs)) - 1.0)


def weight_of(config: ExperimentConfig, epoch: int) -> float:
    """Return the adversaries' weight in ``epoch``, from 0."""
    weight = config.server.weight
    if config.server.weight_schedule == "constant":
        return weight
    return rising_weight(weight, epoch, config.training.epochs)


def training_noise(config: ExperimentConfig, width: int, epoch: int) -> float | None:
    """Return the scale of the noise in ``epoch``, from 0, on vectors of ``width`` numbers; None for the layer's own."""
    noise, mechanism = config.system.noise, config.mechanism(width)
    if noise == "none":
        return 0.0
    if noise == "same" or mechanism is None:
        return None
    return mechanism.noise_scale * mechanism.epsilon / ADAPTIVE[config.training.adaptive](epoch + 1)


@dataclass(frozen=True, slots=True)
class EpochRow:
    """Training loss and validation metrics after an epoch, from 1; gaps are nan without private attributes."""

    epoch: int
    loss: float
    accuracy: float
    tpr_gap: float
    grms: float


def train(
    clients: Clients,
    server: Server,
    data: LabelledData,
    config: ExperimentConfig,
    observe: Callable[[EpochRow], None] = lambda row: None,
) -> list[EpochRow]:
    """Train encoder and server; return a row per epoch, with which ``observe`` is called.

    Classes and private attributes of the training and validation rows are public in the papers' setting.
    """
    optimizer = build_optimizer(config.optimizer, server.parameters())
    classes, private = torch.from_numpy(data.train.labels), torch.from_numpy(data.train.private)
    history = []
    for epoch in range(config.training.stop_after or config.training.epochs):
        order = streams.generator(config.seed, "epoch order", epoch).permutation(len(data.train))
        weight, scale = weight_of(config, epoch), training_noise(config, clients.workspace.encoder.width, epoch)
        losses = []
        set_step_size(optimizer, config.optimizer, epoch)
        set_step_size(clients.optimizer, config.optimizer, epoch)
        server.train()
        for number, start in enumerate(range(0, len(order), config.training.batch_size)):
            rows = order[start : start + config.training.batch_size]
            seed = short_seed(config.seed, "step", epoch, number)
            z = clients.forward(rows, seed, scale).requires_grad_()
            batch = torch.from_numpy(rows)
            loss = server.loss(z, classes[batch], private[batch], weight, Draw(seed, len(rows)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if z.grad is not None:
                clients.backward(z.grad)
            losses.append(loss.item())
        row = _validate(clients, server, data.validation, config.seed, epoch, float(np.mean(losses)))
        history.append(row)
        observe(row)
    return history


def _validate(
    clients: Clients, server: Server, validation: LabelledSplit, seed: int, epoch: int, loss: float
) -> EpochRow:
    server.eval()
    sent = clients.validate(short_seed(seed, "validation", epoch))
    predicted = server.predictions(sent).numpy()
    gaps = [
        (tpr_gap(predicted, validation.labels, group), grms(predicted, validation.labels, group))
        for group in validation.private.T
    ]
    # The worst of several attributes.
    gap = max((abs(g) for g, _ in gaps), default=float("nan"))
    worst_grms = max((r for _, r in gaps), default=float("nan"))
    return EpochRow(epoch + 1, loss, accuracy(predicted, validation.labels), gap, worst_grms)
