"""Compute the state of every sentence in a frozen encoder once, so that a round is a matrix product.

The file's name is a checksum over everything that determines it (weights, pooling, tokens, versions). Runs can share
the file, and no run can read a wrong one. It is as private as the text. A sentence's features depend on that sentence
alone (docs/privacy.md, section 2).

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "features.npy"
...     np.save(path, np.ones((3, 2), np.float32))
...     open_features(path).shape
(3, 2)
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.clients.batches import micro_batches
from fl_sim.clients.errors import ModelError
from fl_sim.clients.examples import Example, Examples
from fl_sim.clients.models.classifier import Classifier
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.out_of_memory import in_parts
from fl_sim.clients.products import full_precision
from fl_sim.data_prep.store.arrays import write_array
from fl_sim.data_prep.store.encode import EncodedSplit

Observer = Callable[[int, int], None]
_SLICE = 4096  # sentences that are sorted by length together


def feature_path(model: LanguageModel, encoded: EncodedSplit, folder: Path) -> Path:
    """Return the path of the file of features.

    Args:
        model: a classifier with a frozen body.
        encoded: the tokens of the sentences.
        folder: the folder of the file.

    Raises:
        ModelError: the model's body trains.
    """
    return folder / f"features-{_key(model, encoded)[:32]}.npy"


def ensure_features(
    model: LanguageModel, encoded: EncodedSplit, path: Path, observer: Observer = lambda done, total: None
) -> NDArray[np.float32]:
    """Return the features of every sentence, float32 (S, h), memory-mapped from ``path``; compute absent ones.

    Args:
        model: a classifier with a frozen body (``LanguageModel.reads_features``).
        encoded: the tokens of the sentences.
        path: the path of :func:`feature_path`; its folder is created if it is absent.
        observer: called with (sentences done, all sentences) while features are computed.

    Raises:
        ModelError: the model's body trains, or the file is damaged.
    """
    if not path.exists():
        ids = range(len(encoded.offsets) - 1)
        _write(sentence_features(model, Examples(encoded).read(ids), observer), path)
    return open_features(path)


def open_features(path: Path) -> NDArray[np.float32]:
    """Return the features that :func:`ensure_features` wrote, float32 (S, h), memory-mapped.

    Raises:
        ModelError: the file is absent or damaged.
    """
    try:
        features = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # on a damaged header numpy raises the errors of its tokenizer
        raise ModelError(f"{path}: not a file of features: {error}") from error
    if features.dtype != np.float32 or features.ndim != 2:
        raise ModelError(f"{path}: not a file of features: {features.dtype} of {features.ndim} dimensions")
    return features


def sentence_features(
    model: LanguageModel, examples: Sequence[Example], observer: Observer = lambda done, total: None
) -> NDArray[np.float32]:
    """Return the state of each sentence that the head reads, float32 (n, h).

    Args:
        model: a classifier with a frozen body.
        examples: the n sentences; their classes do not matter.
        observer: called with (sentences done, all sentences).

    Raises:
        ModelError: the model's body trains, or it cannot read a sentence.
    """
    module = _frozen_classifier(model)
    model.validate(examples)
    features = np.empty((len(examples), module.width), dtype=np.float32)
    done = 0

    def compute(group: list[int]) -> None:
        # A class is needed to make a batch, and does not matter here.
        batch = model.batch([Example(examples[i].tokens, target=0) for i in group])
        features[group] = module.features(batch)[:, 0].cpu().numpy()

    with torch.no_grad(), full_precision():
        for group in _groups(examples, model.batch_tokens):
            in_parts(model, group, compute, lambda i: len(examples[i]))
            done += len(group)
            observer(done, len(examples))
    return features


def _write(features: NDArray[np.float32], path: Path) -> None:
    """Write the file whole or not at all, also while another run writes the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.npy")
    try:
        write_array(scratch, features)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _groups(examples: Sequence[Example], max_batch_tokens: int) -> Iterable[list[int]]:
    """Yield micro-batches of sentences of similar length, each within one slice of the sentences."""
    for start in range(0, len(examples), _SLICE):
        sizes = [len(example) for example in examples[start : start + _SLICE]]
        for group in micro_batches(sizes, max_batch_tokens):
            yield [start + index for index in group]


def _frozen_classifier(model: LanguageModel) -> Classifier:
    if model.classifier is None or not model.reads_features:
        raise ModelError(f"model {model.spec.name!r} has no frozen body; allowed: model.tune = 'head', classification")
    return model.classifier


def _key(model: LanguageModel, encoded: EncodedSplit) -> str:
    """Return a checksum over everything that the features depend on."""
    module = _frozen_classifier(model)
    digest = hashlib.sha256()
    versions = [f"{package} {metadata.version(package)}" for package in ("torch", "transformers")]
    for word in (*versions, module.pooling, str(module.normalize), str(getattr(module.body, "config", ""))):
        digest.update(f"{word}\n".encode())
    for name, value in module.body.state_dict().items():
        digest.update(f"{name} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    for array in (encoded.offsets, encoded.tokens):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
