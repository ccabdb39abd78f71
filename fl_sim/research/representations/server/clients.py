"""The optimizers of encoder and server.

>>> layer = torch.nn.Linear(2, 1)
>>> type(OptimizerSpec(name="sgd", learning_rate=0.1).build(layer.parameters())).__name__
'SGD'
>>> OptimizerSpec().build_for(torch.nn.ReLU()) is None
True

The clients as the training loop sees them: they send vectors and receive gradients; here in this process.

`fl_sim.research.representations.server.federated` does the same over Flower messages, with the same numbers.

>>> from pathlib import Path
>>> from tempfile import TemporaryDirectory
>>> from fl_sim.research.representations.client.client_workspace import ClientSpec, DataSpec
>>> from fl_sim.research.representations.client.encoders import EncoderSpec
>>> from fl_sim.research.representations.corpora.adult_reader import write_toy_adult
>>> with TemporaryDirectory() as folder:
...     data = DataSpec(source=str(write_toy_adult(Path(folder), rows=40)))
...     workspace = Workspace(ClientSpec(data=data, encoder=EncoderSpec(kind="mlp", width=4)))
>>> clients = LocalClients(workspace, OptimizerSpec())
>>> sent = clients.forward(np.arange(5), seed=1, scale=None)
>>> clients.backward(torch.ones_like(sent))
>>> sent.shape, sent.requires_grad
(torch.Size([5, 4]), False)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from fl_sim.research.representations.client.client_workspace import Workspace
from fl_sim.research.representations.client.encoders import Encoder, WordBag
from fl_sim.research.representations.client.feed_forward import Draw
from fl_sim.research.representations.corpora.labelled import TRAIN, VALIDATION
from fl_sim.research.strict_model import StrictModel


class OptimizerSpec(StrictModel):
    """Name and step size of an optimizer; FEDERATE has Adam at 0.001."""

    name: Literal["adam", "sgd"] = Field("adam", description="Adam (Kingma and Ba 2015), or plain SGD")
    learning_rate: float = Field(0.001, gt=0, le=100, description="its step size")
    weight_decay: float = Field(0.0, ge=0, le=1, description="decoupled from Adam's step sizes (AdamW)")

    def build(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """Return a new optimizer of ``parameters``."""
        if self.name == "sgd":
            return torch.optim.SGD(parameters, lr=self.learning_rate, weight_decay=self.weight_decay)
        # One pass over all small tensors: the steps of a small network are mostly overhead.
        return torch.optim.AdamW(parameters, lr=self.learning_rate, weight_decay=self.weight_decay, fused=True)

    def build_for(self, module: torch.nn.Module) -> torch.optim.Optimizer | None:
        """Return a new optimizer of the module's trainable parameters; None if it has none."""
        trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        return self.build(trainable) if trainable else None


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

    def __init__(self, workspace: Workspace, optimizer: OptimizerSpec) -> None:
        self.workspace = workspace
        _allow_sparse_gradients(workspace.encoder, optimizer)
        self._optimizer = optimizer.build_for(workspace.encoder)
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


def _allow_sparse_gradients(encoder: Encoder, optimizer: OptimizerSpec) -> None:
    """Let a bag of words under plain SGD update the words of the batch alone."""
    if isinstance(encoder, WordBag) and optimizer.name == "sgd" and optimizer.weight_decay == 0:
        encoder.vectors.sparse = True
