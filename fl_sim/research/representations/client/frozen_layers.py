"""Frozen Hugging Face encoders, or the frozen lower layers of one, which read every text once.

Features of texts, and what enters the first trained layer (in float16), are kept in files of ``feature_cache`` if there
is one, which experiments, seeds and processes share. They are as private as the texts.

>>> tokens, states = [[2, 5, 3], [2, 3]], [np.zeros((3, 4), np.float16), np.ones((2, 4), np.float16)]
>>> batch = TokenStates(tokens, states).batch(np.array([1]))
>>> batch.tokens.tolist(), batch.states.shape, batch.states.dtype
([2, 3], torch.Size([2, 4]), torch.float32)
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.clients.batches import Examples
from fl_sim.clients.errors import ModelError
from fl_sim.clients.frozen_states import SentenceStates, ensure_features, feature_path, sentence_features, state_path
from fl_sim.clients.models.classifier import Classifier
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.tasks import Classification
from fl_sim.data_prep.store.encode import EncodedSplit
from fl_sim.research.representations.client.encoder_inputs import EncoderInputs, Ragged, TokenLists, token_ids
from fl_sim.research.representations.client.encoders import load_partly_frozen, model_spec
from fl_sim.research.representations.config import EncoderSection

_SEED = 0  # irrelevant: a frozen encoder has no new weights


class FrozenEncoder:
    """A Hugging Face encoder that is not trained.

    Args:
        spec: ``spec.model`` names the model.
        cache: a folder for features, as private as the texts; None stores nothing.
    """

    def __init__(self, spec: EncoderSection, cache: Path | None = None) -> None:
        self._model: LanguageModel = load_model(model_spec(spec, "head"), _SEED, Classification(("0", "1")))
        self._cache = cache

    @property
    def width(self) -> int:
        """Return h, the numbers per text."""
        module = self._model.module
        if not isinstance(module, Classifier):  # what load_model returns for classification
            raise ModelError(f"encoder.model {self._model.spec.name!r} is no encoder")
        return module.width

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
    """The frozen lower layers of an encoder with ``trained_layers``.

    Args:
        spec: of the encoder.
        cache: a folder for states; None stores nothing.
    """

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
