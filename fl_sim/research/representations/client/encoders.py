"""Encoders: a client's text, or its row of numbers, to a vector of k numbers.

| kind | reads | trains |
|---|---|---|
| ``table`` | numbers as they are (a frozen encoder's features) | nothing |
| ``mlp`` | numbers, through linear layers with ReLU and dropout between them (FEDERATE) | everything |
| ``bag`` | words of a vocabulary: the mean of their vectors (``nn.EmbeddingBag``; the study of DPNR) | everything |
| ``transformer`` | tokens of any Hugging Face model: its pooled last state | everything, or its upper layers |

A frozen Hugging Face encoder reads every text once (`fl_sim.research.representations.client.frozen_layers`); its
features are the input of ``table`` or ``mlp``.

>>> encoder = build_encoder(EncoderSection(kind="mlp", width=8), inputs=3, seed=0)
>>> encoder(torch.ones(2, 3)).shape
torch.Size([2, 8])
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import nn

from fl_sim.clients.batches import Batch
from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.classifier import Classifier
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.model_names import POOLER
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.tasks import Classification
from fl_sim.research.representations.client.encoder_inputs import Ragged
from fl_sim.research.representations.client.feed_forward import Draw, FeedForward
from fl_sim.research.representations.config import EncoderSection

_ROWS_OF_UPPER_LAYERS = 64  # their states fit into a processor's cache


class Encoder(nn.Module, ABC):
    """Inputs to vectors, float32 (B, k).

    Attributes:
        width: k.
        rows_at_once: of a pass in evaluation.
    """

    width: int
    rows_at_once: int = 2048

    @abstractmethod
    def forward(self, batch: Any, draw: Draw | None = None) -> torch.Tensor:
        """Return the vectors of a batch, float32 (B, k); ``draw`` is a training step's, None in evaluation."""


class PassThrough(Encoder):
    """Rows of numbers, unchanged."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, batch: torch.Tensor, draw: Draw | None = None) -> torch.Tensor:
        return batch


class MlpEncoder(Encoder):
    """A feed-forward network, linear at its output (FEDERATE, appendix D.3)."""

    def __init__(self, inputs: int, width: int, layers: int, dropout: float, first_width: int | None = None) -> None:
        super().__init__()
        self.width = width
        widths = [width] * layers
        if first_width is not None:
            widths[0] = first_width
        self.network = FeedForward([inputs, *widths], dropout, "encoder")

    def forward(self, batch: torch.Tensor, draw: Draw | None = None) -> torch.Tensor:
        return self.network(batch, draw)


class WordBag(Encoder):
    """The mean of the words' vectors; the zero vector for a text without words."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.vectors = nn.EmbeddingBag(vocabulary, width, mode="mean")
        nn.init.uniform_(self.vectors.weight, -0.5, 0.5)

    def forward(self, batch: Ragged, draw: Draw | None = None) -> torch.Tensor:
        return self.vectors(batch.tokens, batch.offsets)


class Transformer(Encoder):
    """The pooled last state of a Hugging Face encoder, all of which trains, or its upper layers."""

    def __init__(self, spec: EncoderSection, seed: int) -> None:
        super().__init__()
        model = load_partly_frozen(spec, seed)
        self.module = classifier_of(model)
        self.module.head.requires_grad_(False)
        self.width = self.module.width
        self._lower = model.lower
        if self._lower is not None:
            self.rows_at_once = _ROWS_OF_UPPER_LAYERS

    def train(self, mode: bool = True) -> Transformer:
        """Leave the model's own dropout off, as all training here does.

        Its masks would come from torch's global generator, not from the seed.
        """
        super().train(mode)
        self.module.eval()
        return self

    def forward(self, batch: Ragged, draw: Draw | None = None) -> torch.Tensor:
        padded = padded_batch(batch)
        if self._lower is None or padded.states is None:
            return self.module.features(padded)[:, 0]
        with self._lower.replaced_by(padded.states):
            return self.module.features(padded)[:, 0]


def load_partly_frozen(spec: EncoderSection, seed: int) -> LanguageModel:
    """Return the model of a ``transformer``, frozen below its trained layers, which ``lower`` then are.

    Raises:
        ModelError: no model is named, it is no encoder, or it has fewer layers.
    """
    if spec.source is None:
        raise ModelError("encoder.model is missing; encoder.kind = 'transformer' needs a model's name or folder")
    model = load_model(model_spec(spec, "full"), seed, Classification(("0", "1")))
    if spec.trained_layers is not None:
        body = classifier_of(model).body
        blocks = model.architecture.blocks(body)
        if not spec.trained_layers <= len(blocks):
            raise ModelError(
                f"encoder.trained_layers is {spec.trained_layers}; allowed for {spec.source!r}: 1 to {len(blocks)}"
            )
        _freeze_below(body, blocks[-spec.trained_layers :])
        model.lower = model.architecture.split_below(body, spec.trained_layers)
    return model


def classifier_of(model: LanguageModel) -> Classifier:
    """Return the module of a model that was loaded for classification."""
    if model.classifier is None:
        raise ModelError(f"encoder.model {model.spec.name!r} is no encoder")
    return model.classifier


def _freeze_below(body: nn.Module, trained: Sequence[nn.Module]) -> None:
    """Freeze all parameters of ``body`` but those of ``trained`` layers and of the pooler."""
    kept = {id(parameter) for block in trained for parameter in block.parameters()}
    for name, parameter in body.named_parameters():
        parameter.requires_grad_(id(parameter) in kept or POOLER in name.split("."))


def model_spec(spec: EncoderSection, tune: Literal["full", "head"]) -> ModelSpec:
    """Return the spec of ``spec.model`` for `fl_sim.clients.models.language_model`."""
    if spec.source is None:
        raise ModelError("encoder.model is missing; allowed: a model's name or folder")
    return ModelSpec(name=spec.source, tune=tune, max_tokens=spec.max_tokens, pooling=spec.pooling)


def build_encoder(spec: EncoderSection, inputs: int, seed: int) -> Encoder:
    """Return an encoder whose weights are a pure function of ``seed``; torch's global generator keeps its state.

    ``inputs`` are the numbers of a row (table, mlp) or the words of the vocabulary (bag).
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if spec.kind == "table":
            return PassThrough(inputs)
        if spec.kind == "mlp":
            return MlpEncoder(inputs, spec.width, spec.layers, spec.dropout, spec.first_width)
        if spec.kind == "bag":
            return WordBag(inputs, spec.width)
        return Transformer(spec, seed)


def padded_batch(batch: Ragged) -> Batch:
    """Return lists of token ids as a padded batch for `fl_sim.clients.models.classifier`."""
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
        states=None if batch.states is None else _padded_states(batch.states, positions < lengths[:, None]),
    )


def _padded_states(states: torch.Tensor, is_token: torch.Tensor) -> torch.Tensor:
    """Return states (total, h) as rows, (B, T, h), zero where ``is_token`` (B, T) is false."""
    rows = torch.zeros(*is_token.shape, states.shape[1])
    rows[is_token] = states
    return rows
