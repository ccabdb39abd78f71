"""Features of texts from a frozen Hugging Face encoder, computed once and cached in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_sim.clients.batches import Examples
from fl_sim.clients.errors import ModelError
from fl_sim.clients.frozen_states import ensure_features, feature_path, sentence_features
from fl_sim.clients.models.classifier import Classifier
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.tasks import Classification
from fl_sim.data_prep.store.encode import EncodedSplit
from fl_sim.research.representations.client.encoder_inputs import token_ids
from fl_sim.research.representations.client.encoders import EncoderSpec, model_spec

_SEED = 0  # irrelevant: a frozen encoder has no new weights


class FrozenEncoder:
    """A Hugging Face encoder that is not trained.

    Args:
        spec: ``spec.model`` names the model.
        cache: a folder for features, as private as the texts; None stores nothing.
    """

    def __init__(self, spec: EncoderSpec, cache: Path | None = None) -> None:
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
