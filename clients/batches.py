"""Sentences (token id arrays) to padded micro-batches of similar length.

A *sentence* is an int32 array of token ids, boundary tokens included, as ``LanguageModel.encode`` makes it:
``[bos] w1 … wn [eos]``. All but the last token are inputs, all but the first are targets, so a sentence of k
tokens has k - 1 predictions, and one of a single token has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from clients.errors import ModelError

Sentence = NDArray[np.integer]
NO_TARGET = -100  # what torch's cross-entropy ignores


@dataclass(frozen=True)
class Batch:
    """B sentences, padded on the right to T predictions.

    Attributes:
        inputs: (B, T) int64 token ids.
        targets: (B, T) int64 token ids, ``NO_TARGET`` where a sentence has ended.
        positions: (B, T) int64, 0 … T-1 in each row (a row each, so that a position's gradient stays per
            sentence).
        predictions: (B,) float32, the number of targets of each sentence, at least 1.
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor
    predictions: torch.Tensor


def collate(sentences: Sequence[Sentence], device: torch.device) -> Batch:
    """Pad sentences of at least two tokens with token 0: nothing real attends to it, and it has no target."""
    lengths = np.array([len(s) for s in sentences])
    tokens = np.zeros((len(sentences), int(lengths.max())), dtype=np.int64)
    for row, sentence in zip(tokens, sentences, strict=True):
        row[: len(sentence)] = sentence
    ended = np.arange(1, tokens.shape[1])[None, :] >= lengths[:, None]
    targets = np.where(ended, NO_TARGET, tokens[:, 1:])
    positions = np.tile(np.arange(tokens.shape[1] - 1), (len(sentences), 1))
    return Batch(
        inputs=torch.from_numpy(tokens[:, :-1].copy()).to(device),
        targets=torch.from_numpy(targets).to(device),
        positions=torch.from_numpy(positions).to(device),
        predictions=torch.from_numpy((lengths - 1).astype(np.float32)).to(device),
    )


def batch_tokens(requested: int | None, device: torch.device) -> int:
    """The padded size of a micro-batch: as requested, else what was fast for a model of a million parameters.

    On a CPU the scores of a micro-batch (tokens × vocabulary) should stay in the cache; a GPU wants more rows.

    Raises:
        ModelError: if the request is below 1.
    """
    if requested is None:
        return 1024 if device.type == "cpu" else 8192
    if requested < 1:
        raise ModelError(f"max_batch_tokens is {requested}; allowed: an integer of at least 1")
    return requested


def micro_batches(lengths: Sequence[int], max_batch_tokens: int) -> Iterator[list[int]]:
    """Indices of the sentences that have something to predict, grouped by length.

    Each group's padded size (rows × longest) stays within ``max_batch_tokens``; a longer sentence goes alone.
    """
    order = sorted((i for i, n in enumerate(lengths) if n > 1), key=lambda i: -lengths[i])
    group: list[int] = []
    for index in order:
        if group and (len(group) + 1) * (lengths[group[0]] - 1) > max_batch_tokens:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def validate(sentences: Sequence[Sentence], max_tokens: int, vocabulary_size: int) -> None:
    """Refuse what would otherwise fail deep inside a layer, or index another token's row.

    Raises:
        ModelError: naming the first sentence that is not a flat integer array, is empty, is longer than the
            context allows, or holds an id outside the vocabulary.
    """
    for index, sentence in enumerate(sentences):
        if sentence.ndim != 1 or not np.issubdtype(sentence.dtype, np.integer):
            raise ModelError(f"sentence {index} is a {sentence.ndim}-d {sentence.dtype} array; allowed: 1-d integers")
        if not 1 <= len(sentence) <= max_tokens + 1:
            raise ModelError(f"sentence {index} has {len(sentence)} tokens; allowed: 1 to {max_tokens + 1}")
        low, high = int(sentence.min()), int(sentence.max())
        if low < 0 or high >= vocabulary_size:
            wrong = low if low < 0 else high
            raise ModelError(f"sentence {index} holds token id {wrong}; allowed: 0 to {vocabulary_size - 1}")
