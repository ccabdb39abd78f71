"""Utility on held-out text: perplexity of the model, and of the unigram model as a reference."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from clients import models
from clients.models import LanguageModel
from data_prep.encode import EncodedSplit
from strategies import streams

IntArray = npt.NDArray[np.int64]


def held_out_sample(encoded: EncodedSplit, max_sentences: int, seed: int) -> IntArray:
    """The ids of at most ``max_sentences`` held-out sentences, the same for every run with that seed."""
    sentences = len(encoded.offsets) - 1
    if sentences <= max_sentences:
        return np.arange(sentences, dtype=np.int64)
    chosen = streams.generator(seed, "held-out").choice(sentences, max_sentences, replace=False)
    return np.sort(chosen)


def model_loss(model: LanguageModel, encoded: EncodedSplit, sentences: IntArray) -> float:
    """Mean cross-entropy in nats per predicted token (every token after the first, the end of sentence included)."""
    # One thread, as in the workers: several on cores that the workers share slow each other down many times over.
    torch.set_num_threads(1)
    texts = [encoded.sentence(s) for s in sentences.tolist()]
    nats, tokens = models.perplexity(model, texts, range(len(texts)))
    return nats / tokens if tokens else math.nan


def unigram_loss(train: EncodedSplit, held_out: EncodedSplit, sentences: IntArray, vocabulary: int) -> float:
    """Nats per token of the add-one-smoothed unigram model of the training text, on the same predicted tokens.

    It is computed from the private text without noise: a reference for the simulation's owner, not a release.
    """
    counts = np.bincount(_predicted(train, np.arange(len(train.offsets) - 1)), minlength=vocabulary) + 1.0
    log_probability = np.log(counts / counts.sum())
    return float(-log_probability[_predicted(held_out, sentences)].mean())


def perplexity(loss: float) -> float:
    """exp(loss); infinite instead of an overflow."""
    return math.exp(loss) if loss < 700 else math.inf


def _predicted(encoded: EncodedSplit, sentences: IntArray) -> npt.NDArray[np.int32]:
    """All tokens of the sentences but the first of each, which nothing predicts."""
    return np.concatenate([encoded.sentence(s)[1:] for s in sentences.tolist()])
