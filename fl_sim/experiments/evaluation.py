"""Utility on held-out text: the task's metrics of the model, and of a reference without a model.

Metrics and references are computed from private text without noise: they are for the simulation's owner, not for
release.

>>> split = EncodedSplit(np.arange(10, dtype=np.int32), np.arange(6, dtype=np.int64) * 2)  # 5 sentences, 2 tokens each
>>> held_out_sample(split, max_sentences=9, seed=0).tolist()
[0, 1, 2, 3, 4]
>>> len(held_out_sample(split, max_sentences=3, seed=0))
3
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from fl_sim.clients.batches import Example, Examples
from fl_sim.clients.frozen_states import Observer, SentenceStates, ensure_features, feature_path, state_path
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import held_out
from fl_sim.clients.tasks import Classification, HeldOut, NextWord, TextSizes
from fl_sim.data_prep.store.encode import EncodedSplit
from fl_sim.strategies.primitives import streams

IntArray = npt.NDArray[np.int64]

_AT_ONCE = 1 << 20  # tokens counted at a time, so that counting needs no memory of the corpus's size


def held_out_sample(encoded: EncodedSplit, max_sentences: int, seed: int) -> IntArray:
    """Return the ids of a sample of held-out sentences, sorted, int64 (n,); n is at most ``max_sentences``."""
    sentences = len(encoded.offsets) - 1
    if sentences <= max_sentences:
        return np.arange(sentences, dtype=np.int64)
    chosen = streams.generator(seed, "held-out").choice(sentences, max_sentences, replace=False)
    return np.sort(chosen)


@dataclass(frozen=True, eq=False)
class HeldOutSentences:
    """The n sentences on which a run is measured, their ids in the split, int64 (n,), and the sizes of their texts."""

    examples: list[Example]
    sizes: TextSizes
    ids: IntArray

    @classmethod
    def of(cls, model: LanguageModel, source: Examples, texts: pa.ChunkedArray, ids: IntArray) -> HeldOutSentences:
        """Return the sentences ``ids``, int64 (n,), of a split; context and end token of the model say what is cut."""
        examples = source.read(ids)
        whole = np.array([len(e) > 0 and int(e.tokens[-1]) == model.eos_id for e in examples], dtype=bool)
        return cls(examples, TextSizes.of(texts.take(pa.array(ids)).to_pylist(), whole), ids)

    def read_by(
        self, model: LanguageModel, folder: Path, observer: Observer = lambda done, total: None
    ) -> HeldOutSentences:
        """Return the sentences with features or states of what is frozen in ``model``; unchanged if nothing is kept.

        Their file in ``folder`` is written if it is missing.
        """
        if not self.examples or not (model.reads_features or model.lower):
            return self
        offsets = np.cumsum([0, *(len(example) for example in self.examples)], dtype=np.int64)
        encoded = EncodedSplit(np.concatenate([example.tokens for example in self.examples]), offsets)
        if model.lower is not None:
            states = SentenceStates(model, encoded, state_path(model, encoded, folder))
            rows = states(np.arange(len(self.examples)), observer)
            kept = [replace(example, states=row) for example, row in zip(self.examples, rows, strict=True)]
            return replace(self, examples=kept)
        features = ensure_features(model, encoded, feature_path(model, encoded, folder), observer)
        pairs = zip(self.examples, features, strict=True)
        return replace(self, examples=[Example(e.tokens, e.target, e.number, row) for e, row in pairs])


def measure(model: LanguageModel, sentences: HeldOutSentences) -> HeldOut:
    """Return the losses and errors of the model on the sentences."""
    # One thread, as in the workers: more threads on the same cores slow each other down many times over.
    torch.set_num_threads(1)
    return held_out(model, sentences.examples)


def reference(model: LanguageModel, train: Examples, sentences: HeldOutSentences) -> dict[str, float]:
    """Return the metrics of a reference that is estimated from the training text alone, on the held-out sentences.

    For next-word prediction: ``unigram_perplexity``, ``unigram_perplexity_per_word``, ``unigram_bits_per_byte`` and
    ``unigram_accuracy`` of the add-one-smoothed unigram model on the same tokens. For classification:
    ``majority_error`` of the most frequent class.
    """
    if isinstance(model.task, Classification):
        return {"majority_error": _majority_error(train, sentences.examples)}
    metrics = NextWord().metrics(_unigram(train.encoded, sentences.examples, model.vocabulary_size), sentences.sizes)
    return {f"unigram_{name}": value for name, value in metrics.items() if name != "loss"}


def _unigram(train: EncodedSplit, examples: list[Example], vocabulary: int) -> HeldOut:
    counts = _predicted(train, vocabulary) + 1.0
    nats = -np.log(counts / counts.sum())
    return HeldOut(
        losses=np.array([nats[e.tokens[1:]].mean() if len(e) > 1 else 0.0 for e in examples]),
        predictions=np.array([max(len(e) - 1, 0) for e in examples], dtype=np.int64),
        wrong=np.array([(e.tokens[1:] != nats.argmin()).sum() for e in examples], dtype=np.int64),
    )


def _predicted(encoded: EncodedSplit, vocabulary: int) -> IntArray:
    """Return how often each token is predicted, int64 (vocabulary,); the first token of a sentence never is."""
    firsts = encoded.tokens[encoded.offsets[:-1][encoded.lengths > 0]]
    counts = -np.bincount(firsts, minlength=vocabulary)
    for start in range(0, len(encoded.tokens), _AT_ONCE):
        counts += np.bincount(encoded.tokens[start : start + _AT_ONCE], minlength=vocabulary)
    return counts


def _majority_error(train: Examples, examples: list[Example]) -> float:
    targets = np.array([e.target for e in examples if e.target >= 0])
    known = train.targets[train.targets >= 0] if train.targets is not None else np.empty(0, dtype=np.int32)
    if len(targets) == 0 or len(known) == 0:
        return math.nan
    return float((targets != np.bincount(known).argmax()).mean())
