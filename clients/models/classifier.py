"""A body and a softmax head: what tells a sentence's class.

The head reads one state of each sentence and is linear, so that a frozen body needs to read a sentence only once
(`fl_sim.clients.features`).
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fl_sim.clients.batches import Batch
from fl_sim.clients.models.architectures.awd_lstm import AwdLstm
from fl_sim.clients.models.architectures.pretrained import counts_positions_itself, is_two_way
from fl_sim.clients.models.model_names import Pooling

if TYPE_CHECKING:
    from fl_sim.clients.models.model_spec import ModelSpec


class Classifier(nn.Module):
    """softmax(W · pooled state + b); W and b start at zero, so that every class is as likely as any other.

    Attributes:
        body: the model that reads, a transformers model (or peft's wrapper of one) or `AwdLstm`.
        head: ``nn.Linear`` (classes, width).
        pooling: which state the head reads.
        normalize: whether it is scaled to length 1 before.
    """

    def __init__(self, body: nn.Module, classes: int, spec: ModelSpec) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(width_of(body), classes)
        self.pooling: Pooling = spec.pooling or ("mean" if _is_two_way(body) else "last")
        self.normalize = spec.normalize
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> torch.Tensor:
        """(B, 1, classes) scores."""
        return self.head(self.features(batch) if batch.features is None else batch.features)

    def features(self, batch: Batch) -> torch.Tensor:
        """(B, 1, h): the state of each sentence that the head reads."""
        states = hidden_states(self.body, batch)
        pooled = _pool(states, batch, self.pooling)
        return functional.normalize(pooled, dim=-1) if self.normalize else pooled


def hidden_states(body: nn.Module, batch: Batch) -> torch.Tensor:
    """The body's last states, (B, T, h)."""
    if isinstance(body, AwdLstm):
        return body(batch)
    core: Any = core_of(body)
    takes = inspect.signature(core.forward).parameters
    given: dict[str, Any] = {}
    if "position_ids" in takes and not counts_positions_itself(core.config):
        given["position_ids"] = batch.positions
    if is_two_way(core):  # the others see nothing to their right, where the padding is
        given["attention_mask"] = batch.is_token.long()
        if "token_type_ids" in takes:
            given["token_type_ids"] = torch.zeros_like(batch.inputs)
    if "use_cache" in takes:
        given["use_cache"] = False
    return body(input_ids=batch.inputs, **given).last_hidden_state


def core_of(module: Any) -> Any:
    """The transformers model itself, also where peft's adapters wrap it."""
    return module.get_base_model() if hasattr(module, "get_base_model") else module


def width_of(body: nn.Module) -> int:
    """h, the size of a state."""
    return body.width if isinstance(body, AwdLstm) else core_of(body).config.hidden_size


def _is_two_way(body: nn.Module) -> bool:
    return not isinstance(body, AwdLstm) and is_two_way(core_of(body))


def _pool(states: torch.Tensor, batch: Batch, pooling: Pooling) -> torch.Tensor:
    """(B, T, h) to (B, 1, h); what stands in the padding counts for nothing, even where it is not finite."""
    if pooling == "cls":
        return states[:, :1]
    if pooling == "last":
        last = (batch.lengths - 1).view(-1, 1, 1).expand(-1, 1, states.shape[2])
        return states.gather(1, last)
    kept = states.masked_fill(~batch.is_token.unsqueeze(-1), 0.0)
    return kept.sum(dim=1, keepdim=True) / batch.lengths.view(-1, 1, 1)
