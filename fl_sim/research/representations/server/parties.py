"""The clients as training sees them: vectors come from them, gradients go back; here in this process.

`fl_sim.research.representations.server.federated` has the same over Flower messages, with the same numbers.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.research.representations.client.client_workspace import Workspace
from fl_sim.research.representations.client.draws import Draw
from fl_sim.research.representations.client.encoders import Encoder, WordBag
from fl_sim.research.representations.server.optimizers import OptimizerSpec

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]


class Clients(Protocol):
    """Who has the texts, the encoder and the privacy layer."""

    @property
    def width(self) -> int:
        """k."""

    def forward(self, rows: Rows, seed: int, scale: float | None) -> torch.Tensor:
        """Perturbed vectors (B, k) of training rows, without a graph; the randomness is that of ``seed``."""

    def backward(self, gradient: torch.Tensor) -> None:
        """One step of the encoder along the gradient (B, k) in what the last :meth:`forward` sent."""

    def validation(self, seed: int) -> torch.Tensor:
        """Perturbed vectors of the validation rows, for choosing a model."""

    def released(self, split: str, seed: int | None) -> Floats:
        """What is sent of a split when the encoder is done, (n, k), with the promise of the privacy layer."""


class LocalClients:
    """All clients at once, in this process."""

    def __init__(self, workspace: Workspace, optimizer: OptimizerSpec) -> None:
        self.workspace = workspace
        _walk_sparsely(workspace.encoder, optimizer)
        trainable = [p for p in workspace.encoder.parameters() if p.requires_grad]
        self._optimizer = optimizer.build(trainable) if trainable else None
        self._sent: torch.Tensor | None = None

    @property
    def width(self) -> int:
        return self.workspace.encoder.width

    def forward(self, rows: Rows, seed: int, scale: float | None) -> torch.Tensor:
        self._sent = self.workspace.perturbed("train", rows, Draw.whole(seed, len(rows)), scale)
        return self._sent.detach()

    def backward(self, gradient: torch.Tensor) -> None:
        if self._optimizer is None or self._sent is None:
            return
        self._optimizer.zero_grad()
        self._sent.backward(gradient)
        self._optimizer.step()

    def validation(self, seed: int) -> torch.Tensor:
        count = self.workspace.rows("validation")
        with torch.no_grad():
            vectors = self.workspace.encoded("validation")
            return self.workspace.layer(vectors, Draw.whole(seed, count))

    def released(self, split: str, seed: int | None) -> Floats:
        return self.workspace.released(split, seed)


def _walk_sparsely(encoder: Encoder, optimizer: OptimizerSpec) -> None:
    """Gradients of a bag of words touch the words of the batch; plain SGD can leave all others alone, too."""
    if isinstance(encoder, WordBag) and optimizer.name == "sgd" and optimizer.weight_decay == 0:
        encoder.vectors.sparse = True
