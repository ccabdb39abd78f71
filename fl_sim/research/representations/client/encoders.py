"""Encoders: what turns a client's text, or its row of numbers, into a vector of k numbers.

| kind | reads | trains |
|---|---|---|
| ``table`` | numbers as they are (a frozen encoder's features) | nothing |
| ``mlp`` | numbers, through linear layers with ReLU and dropout between them (FEDERATE) | everything |
| ``bag`` | words of a vocabulary: the mean of their vectors (``nn.EmbeddingBag``; the study of DPNR) | everything |
| ``transformer`` | tokens of any Hugging Face model: its pooled last state | everything (DPNR fine-tunes) |

A frozen Hugging Face encoder is read once for every text (`fl_sim.research.representations.client.frozen_features`)
and goes on as ``table`` or ``mlp``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any, Literal, cast

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import nn
from torch.autograd import Function

from fl_sim.clients.batches import Batch
from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.classifier import Classifier
from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.model_spec import ModelSpec, Pooling
from fl_sim.clients.tasks import Classification
from fl_sim.research.representations.client.draws import Draw
from fl_sim.research.representations.client.encoder_inputs import Ragged

EncoderKind = Literal["table", "mlp", "bag", "transformer"]


class EncoderSpec(BaseModel):
    """Which encoder.

    Attributes:
        kind: see the table above.
        width: k, of mlp and bag; the others have their own.
        layers: linear layers of the mlp. first_width: how many units the first of several has; left out, k.
        dropout: between them, while training.
        model: a Hugging Face encoder by hub name, folder, or ``minilm``: what ``transformer`` trains, and what makes
            the features of texts for ``table`` and ``mlp``.
        max_tokens: longest input of that model. pooling: which of its states; left out, the mean.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    kind: EncoderKind = "mlp"
    width: int = Field(default=64, ge=1, le=65536)
    layers: int = Field(default=2, ge=1, le=64)
    first_width: int | None = Field(default=None, ge=1, le=65536)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    model: str | None = Field(default=None, min_length=1)
    max_tokens: int = Field(default=128, ge=2, le=131072)
    pooling: Pooling | None = None

    @model_validator(mode="after")
    def _has_a_first_layer(self) -> EncoderSpec:
        if self.first_width is not None and (self.kind != "mlp" or self.layers < 2):
            raise ValueError(f"first_width is {self.first_width}; allowed with kind = 'mlp' and at least two layers")
        return self


class Encoder(nn.Module, ABC):
    """Inputs to vectors (B, k); ``draw`` brings the dropout masks of a training step, None is evaluation.

    Attributes:
        width: k.
    """

    width: int

    @abstractmethod
    def forward(self, batch: Any, draw: Draw | None = None) -> torch.Tensor: ...


class AsIs(Encoder):
    """Rows of numbers, untouched."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, batch: torch.Tensor, draw: Draw | None = None) -> torch.Tensor:
        return batch


class Mlp(Encoder):
    """Linear layers with ReLU and dropout between them; none after the last (FEDERATE, appendix D.3)."""

    def __init__(self, inputs: int, width: int, layers: int, dropout: float, first_width: int | None = None) -> None:
        super().__init__()
        self.width = width
        self.dropout = dropout
        widths = [width] * layers
        if first_width is not None:
            widths[0] = first_width
        self.linears = linear_stack([inputs, *widths])

    def forward(self, batch: torch.Tensor, draw: Draw | None = None) -> torch.Tensor:
        state = batch
        for number, layer in enumerate(self.linears):
            state = layer(state)
            if number < len(self.linears) - 1:
                state = dropped(torch.relu(state), self.dropout, draw, f"encoder dropout {number}")
        return state


class WordBag(Encoder):
    """The mean of the words' vectors; a text without words is the zero vector."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.vectors = nn.EmbeddingBag(vocabulary, width, mode="mean")
        nn.init.uniform_(self.vectors.weight, -0.5, 0.5)

    def forward(self, batch: Ragged, draw: Draw | None = None) -> torch.Tensor:
        return self.vectors(batch.tokens, batch.offsets)


class Transformer(Encoder):
    """The pooled last state of a Hugging Face encoder, all of whose weights train."""

    def __init__(self, spec: EncoderSpec, seed: int) -> None:
        super().__init__()
        if spec.model is None:
            raise ModelError("encoder.model is missing; encoder.kind = 'transformer' needs a model's name or folder")
        model = load_model(model_spec(spec, "full"), seed, Classification(("0", "1")))
        if not isinstance(model.module, Classifier):  # what load_model makes for classification
            raise ModelError(f"encoder.model {spec.model!r} is no encoder")
        self.module = model.module
        self.module.head.requires_grad_(False)
        self.width = self.module.width

    def forward(self, batch: Ragged, draw: Draw | None = None) -> torch.Tensor:
        return self.module.features(padded_batch(batch))[:, 0]


def model_spec(spec: EncoderSpec, tune: Literal["full", "head"]) -> ModelSpec:
    """The same model as `fl_sim.clients.models.language_model` names it."""
    if spec.model is None:
        raise ModelError("encoder.model is missing; allowed: a model's name or folder")
    return ModelSpec(name=spec.model, tune=tune, max_tokens=spec.max_tokens, pooling=spec.pooling)


def build_encoder(spec: EncoderSpec, inputs: int, seed: int) -> Encoder:
    """The encoder with weights that are a pure function of ``seed``; torch's global generator is left as it was.

    Args:
        spec: which.
        inputs: numbers of a row (table, mlp) or words of the vocabulary (bag).
        seed: of new weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if spec.kind == "table":
            return AsIs(inputs)
        if spec.kind == "mlp":
            return Mlp(inputs, spec.width, spec.layers, spec.dropout, spec.first_width)
        if spec.kind == "bag":
            return WordBag(inputs, spec.width)
        return Transformer(spec, seed)


def linear_stack(widths: list[int]) -> nn.ModuleList:
    """Linear layers from each width to the next, Glorot-uniform with zero biases."""
    layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    for layer in layers:
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    return nn.ModuleList(layers)


class _Masked(Function):
    """state·mask without a copy of the state for the gradient."""

    @staticmethod
    def forward(ctx: Any, state: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(mask)
        return state * mask

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (mask,) = ctx.saved_tensors
        return gradients[0] * mask, None


def dropped(state: torch.Tensor, rate: float, draw: Draw | None, purpose: str) -> torch.Tensor:
    """Dropout with the mask of the step; none in evaluation."""
    if draw is None or rate == 0:
        return state
    return cast(torch.Tensor, _Masked.apply(state, draw.kept(purpose, state.shape[1], rate)))


def padded_batch(batch: Ragged) -> Batch:
    """Lists of token ids as what `fl_sim.clients.models.classifier` reads."""
    lengths = torch.diff(batch.offsets, append=torch.tensor([len(batch.tokens)]))
    positions = torch.arange(int(lengths.max())).expand(len(lengths), -1)
    inputs = torch.zeros_like(positions)
    inputs[positions < lengths[:, None]] = batch.tokens
    return Batch(
        inputs=inputs,
        targets=torch.zeros(len(lengths), 1, dtype=torch.int64),
        positions=positions.contiguous(),
        predictions=torch.ones(len(lengths)),
        lengths=lengths,
    )
