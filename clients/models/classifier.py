"""A body and a softmax head, which predict a sentence's class.

The head is linear and reads one state of each sentence, so a frozen body has to read a sentence only once
(`fl_sim.clients.frozen_states`).

>>> states = torch.arange(6.0).view(1, 3, 2)
>>> _pool(states, None, "cls")  # the first
tensor([[[0., 1.]]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from fl_sim.clients.batches import Batch
from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.architectures.architecture import Architecture
from fl_sim.clients.models.model_names import POOLER, Pooling

if TYPE_CHECKING:
    from fl_sim.clients.models.model_spec import ModelSpec


class Classifier(nn.Module):
    """softmax(W · pooled state + b); W and b start at zero, so that every class is as likely as any other.

    Attributes:
        body: the module that reads the tokens, without output layer.
        head: ``nn.Linear`` (classes, h).
        pooling: which state the head reads.
        normalize: whether that state is scaled to length 1 first.
    """

    def __init__(self, architecture: Architecture, body: nn.Module, classes: int, spec: ModelSpec) -> None:
        super().__init__()
        self.architecture = architecture
        self.body = body
        self.head = nn.Linear(architecture.width(body), classes)
        self.pooling: Pooling = spec.pooling or ("mean" if architecture.reads_both_ways(body) else "last")
        if self.pooling == POOLER and not architecture.has_pooler(body):
            raise ModelError(
                f"model.pooling is 'pooler'; allowed for {spec.name!r}: mean, cls, last, it has no pooler with weights"
            )
        self.normalize = spec.normalize
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @property
    def width(self) -> int:
        """h, the size of the state that the head reads."""
        return self.head.in_features

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return scores, (B, 1, classes)."""
        return self.head(self.features(batch) if batch.features is None else batch.features)

    def features(self, batch: Batch) -> torch.Tensor:
        """Return the state of each sentence that the head reads, (B, 1, h)."""
        if self.pooling == POOLER:
            pooled = self.architecture.pooler_states(self.body, batch).unsqueeze(1)
        else:
            pooled = _pool(self.architecture.states(self.body, batch), batch, self.pooling)
        return functional.normalize(pooled, dim=-1) if self.normalize else pooled


def _pool(states: torch.Tensor, batch: Batch, pooling: Pooling) -> torch.Tensor:
    """Return one state per sentence, (B, 1, h), of states (B, T, h); padding counts for nothing, even if not finite."""
    if pooling == "cls":
        return states[:, :1]
    if pooling == "last":
        last = (batch.lengths - 1).view(-1, 1, 1).expand(-1, 1, states.shape[2])
        return states.gather(1, last)
    kept = states.masked_fill(~batch.is_token.unsqueeze(-1), 0.0)
    return kept.sum(dim=1, keepdim=True) / batch.lengths.view(-1, 1, 1)
