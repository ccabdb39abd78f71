"""The optimizers of encoder and server.

>>> layer = torch.nn.Linear(2, 1)
>>> type(OptimizerSpec(name="sgd", learning_rate=0.1).build(layer.parameters())).__name__
'SGD'
>>> OptimizerSpec().build_for(torch.nn.ReLU()) is None
True
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from pydantic import Field

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
