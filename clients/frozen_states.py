"""Compute once what the frozen part of a model makes of every sentence, and keep it in a file.

With a frozen encoder a round is a matrix product of *features*, one state per sentence, computed before the first
round. With frozen lower layers a round starts from *states*, one per token, of the sentences that are sampled. A file's
name is a checksum over everything that determines its content (weights, tokens, versions), so that runs and processes
can share it and none can read a wrong one. It is as private as the text. What is kept of a sentence depends on that
sentence alone (docs/privacy.md, section 2).

>>> _equal_lengths([5, 2, 5, 1, 1], at_once=10)
[[0, 2], [1], [3], [4]]
"""

from __future__ import annotations

import functools
import hashlib
import logging
import mmap
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fl_sim.clients.batches import Example, Examples, micro_batches
from fl_sim.clients.device import full_precision, in_parts
from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.architectures.lower_layers import LowerLayers
from fl_sim.clients.models.classifier import Classifier
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.data_prep.store.encode import EncodedSplit
from fl_sim.data_prep.store.layout import write_array
from fl_sim.files import owner_only, replace_file_by

log = logging.getLogger(__name__)

Observer = Callable[[int, int], None]

_SLICE = 4096  # sentences that are sorted by length together
_SUM = np.dtype(np.uint32)
_STATE = np.dtype(np.float16)
_LARGEST = float(np.finfo(_STATE).max)
_SHORT = 4  # inputs: products of fewer rows often have code of their own, so shorter sentences are computed alone
_TRIED = ((25, 4), (3, 5), (20, 12))  # numbers and lengths of the sentences that are computed together and alone


def feature_path(model: LanguageModel, encoded: EncodedSplit, folder: Path) -> Path:
    """Return the path of the file of features in ``folder``; ModelError if the model's body trains."""
    module = _frozen_classifier(model)
    words, weights = (module.pooling, str(module.normalize)), module.body.state_dict().items()
    return folder / f"features-{_checksum(module.body, words, weights, encoded)}.npy"


def ensure_features(
    model: LanguageModel, encoded: EncodedSplit, path: Path, observer: Observer = lambda done, total: None
) -> NDArray[np.float32]:
    """Return the features of every sentence, float32 (S, h), memory-mapped from a :func:`feature_path`.

    Where the file is absent it is computed and written, its folder too; ``observer`` is called with (sentences done,
    all sentences) meanwhile.

    Raises:
        ModelError: the model's body trains, or the file is damaged.
    """
    if not path.exists():
        features = sentence_features(model, Examples(encoded).read(range(len(encoded.offsets) - 1)), observer)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file_by(path, lambda scratch: write_array(scratch, features))  # another run may write the same file
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
    """Return the state of each of n sentences that the head reads, float32 (n, h).

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
        for start in range(0, len(examples), _SLICE):
            sizes = [len(example) for example in examples[start : start + _SLICE]]
            for group in micro_batches(sizes, model.batch_tokens):
                in_parts(model, [start + index for index in group], compute, lambda i: len(examples[i]))
                done += len(group)
                observer(done, len(examples))
    return features


def _frozen_classifier(model: LanguageModel) -> Classifier:
    if model.classifier is None or not model.reads_features:
        raise ModelError(f"model {model.spec.name!r} has no frozen body; allowed: model.tune = 'head', classification")
    return model.classifier


def _checksum(
    body: nn.Module, words: Iterable[str], weights: Iterable[tuple[str, torch.Tensor]], encoded: EncodedSplit
) -> str:
    """Return a checksum over everything that what is kept depends on: settings, versions, frozen weights and tokens."""
    digest = hashlib.sha256()
    versions = [f"{package} {metadata.version(package)}" for package in ("torch", "transformers")]
    for word in (*versions, *words, str(getattr(body, "config", ""))):
        digest.update(f"{word}\n".encode())
    for name, value in weights:
        digest.update(f"{name} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    for array in (encoded.offsets, encoded.tokens):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]


def state_path(model: LanguageModel, encoded: EncodedSplit, folder: Path) -> Path:
    """Return the path of the file of states in ``folder``.

    Raises:
        ModelError: no layer is frozen below the first that trains.
    """
    lower, body = _lower_of(model), model.body
    words = (str(lower.first), str(bool(model.task.classes)))
    return folder / f"states-{_checksum(body, words, lower.frozen_weights(body), encoded)}.bin"


def bytes_of_token(model: LanguageModel) -> int:
    """Return the bytes that the states of a token take in the file; 0 for a model without frozen lower layers."""
    return 0 if model.lower is None else model.architecture.width(model.body) * _STATE.itemsize


class SentenceStates:
    """Read the states of sentences from a file, and compute and write those that are absent.

    The file holds a checksum per sentence, uint32 (S,), written after its rows, and a row per token, float16 (tokens,
    h). It begins as a hole, so only rows that were written take room, and rows that are absent, half written or damaged
    are computed again. Sentences of equal length are computed together, without padding, where float16 keeps the same
    bits as for one alone, which is tried first. ``path`` is that of :func:`state_path`; an absent file is made.

    Raises:
        ModelError: no layer is frozen, the file is not of these sentences, or it may not fit on the disk.
    """

    def __init__(self, model: LanguageModel, encoded: EncodedSplit, path: Path) -> None:
        self._file = -1
        self._model, self._encoded, self._path = model, encoded, path
        self._lower = _lower_of(model)
        self._width = model.architecture.width(model.body)
        sentences, tokens = len(encoded.offsets) - 1, int(encoded.offsets[-1])
        self._start = sentences * _SUM.itemsize
        size = self._start + tokens * self._width * _STATE.itemsize
        self._file = _opened(path, size, sentences)
        buffer = mmap.mmap(self._file, size, prot=mmap.PROT_READ) if size else b""
        self._sums = np.frombuffer(buffer, _SUM, sentences)
        self._rows = np.frombuffer(buffer, _STATE, tokens * self._width, self._start).reshape(tokens, self._width)

    def __call__(self, numbers: NDArray[np.int64], observer: Observer = lambda done, total: None) -> list[NDArray[Any]]:
        """Return the states of sentences, float16 (inputs, h) each, given their ids, int64 (n,).

        ``observer`` is called with (sentences computed, all that are absent).
        """
        states: dict[int, NDArray[Any]] = {}
        absent = []
        for number in dict.fromkeys(numbers.tolist()):
            states[number] = rows = self._rows[slice(*self._range(number))]
            if self._sums[number] != _sum(rows):
                absent.append(number)
        states.update(self._computed(absent, observer))
        return [states[number] for number in numbers.tolist()]

    def close(self) -> None:
        """Close the file; arrays that were returned stay valid."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.close()

    def _range(self, number: int) -> tuple[int, int]:
        """Return the first and the last row of a sentence, as many as the model reads of it."""
        start, end = self._encoded.offsets[number : number + 2].tolist()
        return start, end if self._model.task.classes else max(start, end - 1)

    def _computed(self, absent: Sequence[int], observer: Observer) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield the states of sentences that the file lacks, and write them."""
        lengths = [end - start for start, end in map(self._range, absent)]
        done = lengths.count(0)
        yield from ((n, np.empty((0, self._width), _STATE)) for n, k in zip(absent, lengths, strict=True) if k == 0)
        at_once = self._model.batch_tokens if any(lengths) and self._together else 1
        for group in _equal_lengths(lengths, at_once):
            starts = [self._range(absent[index])[0] for index in group]
            tokens = np.stack([self._encoded.tokens[s : s + lengths[group[0]]] for s in starts])
            for index, rows in zip(group, self._states_of(tokens), strict=True):
                self._write(absent[index], rows)
                yield absent[index], rows
            done += len(group)
            observer(done, len(absent))

    def _states_of(self, tokens: NDArray[np.integer]) -> NDArray[Any]:
        """Return the states of sentences of equal length, tokens (B, T), in parts if memory does not suffice."""
        states = np.empty((*tokens.shape, self._width), _STATE)

        def compute(rows: list[int]) -> None:
            states[rows] = _states(self._model, self._lower, tokens[rows])

        in_parts(self._model, range(len(tokens)), compute, lambda _: tokens.shape[1])
        return states

    @functools.cached_property
    def _together(self) -> bool:
        """Whether a sentence has the same states, bit for bit, among others of its length as alone."""
        model, draws = self._model, np.random.default_rng(0)
        for sentences, length in _TRIED:
            tokens = draws.integers(0, model.vocabulary_size, (sentences, min(length, model.max_tokens)))
            together = _states(model, self._lower, tokens)
            for row in (0, sentences // 2, sentences - 1):
                if not np.array_equal(together[row], _states(model, self._lower, tokens[row : row + 1])[0]):
                    return False
        return True

    def _write(self, number: int, rows: NDArray[Any]) -> None:
        """Write rows, then their checksum; without room on the disk they are computed again when they are needed."""
        try:
            os.pwrite(self._file, rows.tobytes(), self._start + self._range(number)[0] * self._width * _STATE.itemsize)
            os.pwrite(self._file, np.array(_sum(rows), _SUM).tobytes(), number * _SUM.itemsize)
        except OSError as error:
            log.warning("%s: states are not kept (%s)", self._path, error.strerror)


def _sum(rows: NDArray[Any]) -> int:
    """Return a checksum of a sentence's rows, never 0, which stands for a sentence that was not computed."""
    return zlib.crc32(np.ascontiguousarray(rows).tobytes()) or 1


def _states(model: LanguageModel, lower: LowerLayers, tokens: NDArray[np.integer]) -> NDArray[Any]:
    """Return the states of sentences of equal length, float16 (B, T, h), for tokens (B, T)."""
    inputs = torch.from_numpy(tokens.astype(np.int64)).to(model.device)
    with model.exact(), full_precision():
        states = lower.states(inputs)
    return states.clamp(-_LARGEST, _LARGEST).cpu().numpy().astype(_STATE)


def _equal_lengths(lengths: Sequence[int], at_once: int) -> list[list[int]]:
    """Return the indices of sentences in groups of equal length, at most ``at_once`` tokens; short ones go alone."""
    groups: list[list[int]] = []
    for index in sorted((i for i, n in enumerate(lengths) if n), key=lambda i: -lengths[i]):
        length = lengths[index]
        if groups and lengths[groups[-1][0]] == length >= _SHORT and (len(groups[-1]) + 1) * length <= at_once:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _opened(path: Path, size: int, sentences: int) -> int:
    """Open the file for reading and writing; an absent one is made as a hole, also while another run makes the same."""
    with owner_only():
        path.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(path.parent).free
        if not path.exists() and free < size:
            raise ModelError(
                f"{path.parent}: {free / 1e9:.2f} GB are free; allowed: at least {size / 1e9:.2f} GB for the states of "
                f"{sentences:,} sentences, another folder (corpus.feature_cache), or model.lora_layers unset"
            )
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise ModelError(f"{path}: not a file of states: {error.strerror}") from error
    if (found := os.fstat(file).st_size) == 0:
        os.ftruncate(file, size)  # changes nothing where another process has done so and written since
    elif found != size:
        os.close(file)
        raise ModelError(f"{path}: not a file of states: {found:,} bytes; allowed: {size:,}, or remove it")
    return file


def _lower_of(model: LanguageModel) -> LowerLayers:
    if model.lower is None:
        raise ModelError(f"model {model.spec.name!r} has no frozen lower layers; allowed: with model.lora_layers")
    return model.lower
