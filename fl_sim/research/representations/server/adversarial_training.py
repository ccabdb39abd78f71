"""Schedules over epochs: the weight of the adversaries, and ε of adaptive noise.

>>> [round(rising_weight(1.0, epoch, epochs=10), 3) for epoch in (0, 5, 9)]
[0.0, 0.941, 0.996]

The training loop: clients send vectors, the server returns gradients, and both take a step.

The randomness of a step is a function of (seed, epoch, step) alone. So a training that stops after epoch n is the
beginning of a longer one, and the numbers do not depend on where the clients run.

>>> plan = TrainingPlan(
...     epochs=2, batch_size=8, noise="schedule", epsilon=1.0, noise_scale=4.0, weight=1.0, orthogonal=0.0, seed=0,
...     schedule=lambda epoch: 10 / epoch,
... )
>>> [plan.scale(epoch) for epoch in range(2)]  # ε is 10 in the first epoch, 5 in the second
[0.4, 0.8]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.research.representations.client.feed_forward import Draw, short_seed
from fl_sim.research.representations.corpora.labelled import LabelledSplit
from fl_sim.research.representations.server.clients import Clients, OptimizerSpec
from fl_sim.research.representations.server.group_metrics import accuracy, grms, tpr_gap
from fl_sim.research.representations.server.heads import Server
from fl_sim.strategies.primitives import streams

EpsilonSchedule = Callable[[int], float]
"""ε_n of epoch n, from 1."""

AdaptiveName = Literal["1/n", "10/n"]
ADAPTIVE: dict[AdaptiveName, EpsilonSchedule] = {"1/n": lambda n: 1 / n, "10/n": lambda n: 10 / n}
"""The schedules of the study of DPNR, by name."""

STEEPNESS = 7.0
"""p_i rises from 0 to this over the epochs: "scaled" in the paper, 7·i/epochs in its published code."""


WeightSchedule = Literal["rising", "constant"]
"""λ of an epoch: from 0 to λ (FEDERATE), or always λ."""


def rising_weight(weight: float, epoch: int, epochs: int) -> float:
    """Return λ·λ_i, λ_i = 2/(1 + e^(−p_i)) − 1 with p_i = 7·i/epochs (FEDERATE, appendix D.4).

    Args:
        weight: λ.
        epoch: i, from 0.
        epochs: of the schedule.
    """
    return weight * (2.0 / (1.0 + math.exp(-STEEPNESS * epoch / epochs)) - 1.0)


NoiseInTraining = Literal["none", "same", "schedule"]


@dataclass(frozen=True)
class TrainingPlan:
    """Length, noise and weights of a training.

    Attributes:
        epochs: length of the schedules.
        batch_size: rows of a step; the last step of an epoch has the rest.
        noise: of the privacy layer in training: ``none`` (normalisation alone), the ``same`` as in the release, or
            ``schedule`` (ε_n of epoch n instead of ε).
        epsilon: of the privacy layer in the release; None without one.
        noise_scale: of the privacy layer in the release; None without one.
        weight: λ.
        orthogonal: λ_ort.
        seed: of all randomness.
        schedule: ε_n of epoch n, for ``schedule``.
        stop_after: trained epochs, at most ``epochs``; None for all.
        weight_schedule: λ of each epoch: ``rising`` from 0 as in FEDERATE, or ``constant``.
    """

    epochs: int
    batch_size: int
    noise: NoiseInTraining
    epsilon: float | None
    noise_scale: float | None
    weight: float
    orthogonal: float
    seed: int
    schedule: EpsilonSchedule | None = None
    stop_after: int | None = None
    weight_schedule: WeightSchedule = "rising"

    def weight_of(self, epoch: int) -> float:
        """Return the adversaries' weight in ``epoch``, from 0."""
        return self.weight if self.weight_schedule == "constant" else rising_weight(self.weight, epoch, self.epochs)

    def scale(self, epoch: int) -> float | None:
        """Return the scale of the noise in ``epoch``, from 0; None for the layer's own."""
        if self.noise == "none":
            return 0.0
        if self.noise == "same" or self.noise_scale is None or self.epsilon is None or self.schedule is None:
            return None
        return self.noise_scale * self.epsilon / self.schedule(epoch + 1)


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
    optimizer: OptimizerSpec,
    training: LabelledSplit,
    validation: LabelledSplit,
    plan: TrainingPlan,
    observe: Callable[[EpochRow], None] = lambda row: None,
) -> list[EpochRow]:
    """Train encoder and server; return a row per epoch.

    Args:
        clients: send vectors and receive gradients.
        server: classifier and adversaries.
        optimizer: of the server; the clients have their own.
        training: classes and private attributes of the training rows (public in the papers' setting).
        validation: the same of the validation rows.
        plan: length, noise and weights of the training.
        observe: called with the row of every epoch.
    """
    server_optimizer = optimizer.build(server.parameters())
    classes, private = torch.from_numpy(training.labels), torch.from_numpy(training.private)
    history = []
    for epoch in range(plan.epochs if plan.stop_after is None else plan.stop_after):
        order = streams.generator(plan.seed, "epoch order", epoch).permutation(len(training))
        weight = plan.weight_of(epoch)
        losses = []
        server.train()
        for number, rows in enumerate(_batches(order, plan.batch_size)):
            seed = short_seed(plan.seed, "step", epoch, number)
            z = clients.forward(rows, seed, plan.scale(epoch)).requires_grad_()
            batch = torch.from_numpy(rows)
            loss = server.loss(
                z,
                classes[batch],
                private[batch],
                weight=weight,
                orthogonal=plan.orthogonal,
                draw=Draw.full_batch(seed, len(rows)),
            )
            server_optimizer.zero_grad()
            loss.backward()
            server_optimizer.step()
            if z.grad is not None:
                clients.backward(z.grad)
            losses.append(loss.item())
        row = _validate(clients, server, validation, plan.seed, epoch, float(np.mean(losses)))
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


def _batches(order: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return [order[start : start + size] for start in range(0, len(order), size)]
