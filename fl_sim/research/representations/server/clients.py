"""The clients as the training loop sees them: they send vectors and receive gradients; here in this process.

`fl_sim.research.representations.server.federated` does the same over Flower messages, with the same numbers.

>>> from pathlib import Path
>>> from tempfile import TemporaryDirectory
>>> from fl_sim.research.representations.config import load_mapping
>>> from fl_sim.research.representations.corpora.adult_reader import write_toy_adult
>>> with TemporaryDirectory() as folder:
...     source = str(write_toy_adult(Path(folder), rows=40))
...     workspace = Workspace(load_mapping({"method": "li", "encoder.width": 4, "data.source": source}))
>>> clients = LocalClients(workspace)
>>> sent = clients.forward(np.arange(5), seed=1, scale=None)
>>> clients.backward(torch.ones_like(sent))
>>> sent.shape, sent.requires_grad
(torch.Size([5, 4]), False)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.research.representations.client.client_workspace import Workspace
from fl_sim.research.representations.client.encoders import WordBag
from fl_sim.research.representations.client.feed_forward import Draw
from fl_sim.research.representations.config import OptimizerSection
from fl_sim.research.representations.corpora.labelled import TRAIN, VALIDATION


def build_optimizer(section: OptimizerSection, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return a new optimizer of ``parameters``, at least one."""
    if section.name == "sgd":
        return torch.optim.SGD(parameters, lr=section.learning_rate, weight_decay=section.weight_decay)
    # One pass over all small tensors: the steps of a small network are mostly overhead.
    return torch.optim.AdamW(parameters, lr=section.learning_rate, weight_decay=section.weight_decay, fused=True)


def trainable(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters that train; none of an encoder that passes numbers through."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


Floats = NDArray[np.float32]
Rows = NDArray[np.int64]


class Clients(Protocol):
    """The parties that hold texts, encoder and privacy layer."""

    @property
    def width(self) -> int:
        """Return k."""

    def forward(self, rows: Rows, seed: int, scale: float | None) -> torch.Tensor:
        """Return perturbed vectors of training rows, float32 (B, k), without a graph.

        Args:
            rows: int64 (B,).
            seed: of all randomness of the step.
            scale: of the noise; None for the layer's own.
        """

    def backward(self, gradient: torch.Tensor) -> None:
        """Step the encoder along the gradient in the vectors that :meth:`forward` last sent, float32 (B, k)."""

    def validate(self, seed: int) -> torch.Tensor:
        """Return perturbed vectors of the validation rows, float32 (n, k), for model selection."""

    def release(self, split: str, seed: int | None) -> Floats:
        """Return the released vectors of a split, float32 (n, k), under the privacy layer's guarantee."""


class LocalClients:
    """All clients together, in this process."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        encoder, optimizer = workspace.encoder, workspace.config.optimizer
        if isinstance(encoder, WordBag) and optimizer.name == "sgd" and optimizer.weight_decay == 0:
            encoder.vectors.sparse = True  # a step changes the words of the batch alone
        parameters = trainable(encoder)
        self._optimizer = build_optimizer(optimizer, parameters) if parameters else None
        self._sent: torch.Tensor | None = None

    @property
    def width(self) -> int:
        return self.workspace.encoder.width

    def forward(self, rows: Rows, seed: int, scale: float | None) -> torch.Tensor:
        self._sent = self.workspace.perturb(TRAIN, rows, Draw.full_batch(seed, len(rows)), scale)
        return self._sent.detach()

    def backward(self, gradient: torch.Tensor) -> None:
        if self._optimizer is None or self._sent is None:
            return
        self._optimizer.zero_grad()
        self._sent.backward(gradient)
        self._optimizer.step()

    def validate(self, seed: int) -> torch.Tensor:
        count = self.workspace.rows(VALIDATION)
        with torch.no_grad():
            vectors = self.workspace.encode(VALIDATION)
            return self.workspace.layer(vectors, Draw.full_batch(seed, count))

    def release(self, split: str, seed: int | None) -> Floats:
        return self.workspace.release(split, seed)
