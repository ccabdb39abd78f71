"""Encoders: a client's text, or its row of numbers, to a vector of k numbers.

| kind | reads | trains |
|---|---|---|
| ``table`` | numbers as they are (a frozen encoder's features) | nothing |
| ``mlp`` | numbers, through linear layers with ReLU and dropout between them (FEDERATE) | everything |
| ``bag`` | words of a vocabulary: the mean of their vectors (``nn.EmbeddingBag``; the study of DPNR) | everything |
| ``transformer`` | tokens of any Hugging Face model: its pooled last state | everything, or its upper layers |

A frozen Hugging Face encoder, or the frozen lower layers of one, reads every text once. Its features are the input of
``table`` or ``mlp``. Features, and what enters the first trained layer (in float16), are kept in files of
``feature_cache`` if there is one, which experiments, seeds and processes share. They are as private as the texts.

>>> encoder = build_encoder(EncoderSection(kind="mlp", width=8), inputs=3, seed=0)
>>> encoder(torch.ones(2, 3)).shape
torch.Size([2, 8])
>>> tokens, states = [[2, 5, 3], [2, 3]], [np.zeros((3, 4), np.float16), np.ones((2, 4), np.float16)]
>>> batch = TokenStates(tokens, states).batch(np.array([1]))
>>> batch.tokens.tolist(), batch.states.shape, batch.states.dtype
([2, 3], torch.Size([2, 4]), torch.float32)
"""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fl_sim.clients.batches import Batch, Examples
from fl_sim.clients.errors import ModelError
from fl_sim.clients.frozen_states import SentenceStates, ensure_features, feature_path, sentence_features, state_path
from fl_sim.clients.models.classifier import Classifier
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.model_names import POOLER
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.tasks import Classification
from fl_sim.data_prep.store.encode import EncodedSplit
from fl_sim.research.representations.client.encoder_inputs import UNKNOWN, EncoderInputs, Ragged, TokenLists, token_ids
from fl_sim.research.representations.client.feed_forward import Draw, FeedForward
from fl_sim.research.representations.config import EncoderSection

_SEED = 0  # irrelevant: a frozen encoder has no new weights
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
        tokens = batch.tokens if batch.visible is None else batch.tokens.masked_fill(~batch.visible, UNKNOWN)
        return self.vectors(tokens, batch.offsets)


class Transformer(Encoder):
    """The pooled last state of a Hugging Face encoder, all of which trains, or its upper layers."""

    def __init__(self, spec: EncoderSection, seed: int) -> None:
        super().__init__()
        model = load_partly_frozen(spec, seed)
        self.module = classifier_of(model)
        self.module.head.requires_grad_(False)
        self.width = self.module.width
        self._lower = model.lower
        self.reads_both_ways = model.architecture.reads_both_ways(self.module.body)
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


@dataclass(frozen=True)
class MaskedBatch(Batch):
    """A batch with tokens that no token attends to, false in ``visible``, bool (B, T); a mean takes them for zero."""

    visible: torch.Tensor = field(kw_only=True)

    @property
    def is_token(self) -> torch.Tensor:
        return super().is_token & self.visible


def padded_batch(batch: Ragged) -> Batch:
    """Return lists of token ids as a padded batch for `fl_sim.clients.models.classifier`."""
    lengths = torch.diff(batch.offsets, append=torch.tensor([len(batch.tokens)]))
    positions = torch.arange(int(lengths.max())).expand(len(lengths), -1)
    is_token = positions < lengths[:, None]
    inputs = torch.zeros_like(positions)
    inputs[is_token] = batch.tokens
    states = None
    if batch.states is not None:
        states = torch.zeros(*is_token.shape, batch.states.shape[1])
        states[is_token] = batch.states
    padded = Batch(
        inputs=inputs,
        targets=torch.zeros(len(lengths), 1, dtype=torch.int64),
        positions=positions.contiguous(),
        predictions=torch.ones(len(lengths)),
        lengths=lengths,
        states=states,
    )
    if batch.visible is None:
        return padded
    visible = torch.ones_like(is_token)
    visible[is_token] = batch.visible
    visible[:, 0] = True  # it is no word, and a text of masked words alone would have nothing to attend to
    return MaskedBatch(**vars(padded), visible=visible)


class FrozenEncoder:
    """A Hugging Face encoder that is not trained; ``cache`` is a folder for features, None stores nothing."""

    def __init__(self, spec: EncoderSection, cache: Path | None = None) -> None:
        self._model = load_model(model_spec(spec, "head"), _SEED, Classification(("0", "1")))
        self._cache = cache
        self.width = classifier_of(self._model).width

    def features(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the features of ``texts``, float32 (n, h), from the cache if it has those of the same texts."""
        encoded = encode_texts(texts, self._model)
        if self._cache is None:
            return sentence_features(self._model, Examples(encoded).read(range(len(texts))))
        return np.asarray(ensure_features(self._model, encoded, feature_path(self._model, encoded, self._cache)))


def encode_texts(texts: Sequence[str], model: LanguageModel) -> EncodedSplit:
    """Return ``[bos] + tokens + [eos]`` of each text, truncated to the model's context."""
    rows = token_ids(model.tokenizer, texts, (model.bos_id, model.eos_id), model.max_tokens)
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    tokens = np.fromiter((token for row in rows for token in row), dtype=np.int32, count=int(offsets[-1]))
    return EncodedSplit(tokens, offsets)


class TokenStates(TokenLists):
    """Token ids of each text with what enters the first trained layer, float16 (tokens, h) each."""

    def __init__(self, texts: Sequence[Sequence[int]], states: Sequence[NDArray[Any]]) -> None:
        super().__init__(texts)
        self._states = states

    def batch(self, rows: NDArray[np.int64]) -> Ragged:
        states = np.concatenate([self._states[row] for row in rows]).astype(np.float32)
        return replace(super().batch(rows), states=torch.from_numpy(states))


class LowerStates:
    """The frozen lower layers of an encoder with ``trained_layers``; ``cache`` is a folder for their states."""

    def __init__(self, spec: EncoderSection, cache: Path | None = None) -> None:
        self._model = load_partly_frozen(spec, _SEED)
        self._cache = cache

    def read(self, texts: Sequence[str]) -> EncoderInputs:
        """Return the inputs of ``texts``; of tokens alone if every layer trains."""
        encoded = encode_texts(texts, self._model)
        bounds = encoded.offsets[1:-1]
        tokens = [part.tolist() for part in np.split(encoded.tokens, bounds)] if texts else []
        if self._model.lower is None:
            return TokenLists(tokens)
        with tempfile.TemporaryDirectory() as scratch:
            path = state_path(self._model, encoded, self._cache or Path(scratch))
            states = SentenceStates(self._model, encoded, path)
            return TokenStates(tokens, states(np.arange(len(texts))))
