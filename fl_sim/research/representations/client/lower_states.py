"""Inputs of a transformer whose upper layers train: its frozen layers read every text once.

What enters the first trained layer is kept in float16, in a file of ``feature_cache`` if there is one, which
experiments, seeds and processes share. The file is as private as the texts.

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

from fl_sim.clients.frozen_states import SentenceStates, state_path
from fl_sim.research.representations.client.encoder_inputs import EncoderInputs, Ragged, TokenLists
from fl_sim.research.representations.client.encoders import EncoderSpec, load_partly_frozen
from fl_sim.research.representations.client.frozen_features import encode_texts

_SEED = 0  # irrelevant: frozen layers have no new weights


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

    def __init__(self, spec: EncoderSpec, cache: Path | None = None) -> None:
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
