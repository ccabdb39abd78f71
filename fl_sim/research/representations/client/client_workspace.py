"""A client's data, encoder and privacy layer, opened from the experiment's configuration, which fits into a message.

>>> from tempfile import TemporaryDirectory
>>> from fl_sim.research.representations.corpora.adult_reader import write_toy_adult
>>> from fl_sim.research.representations.config import load_mapping
>>> with TemporaryDirectory() as folder:
...     source = str(write_toy_adult(Path(folder), rows=40))
...     settings = {"method": "robust", "privacy.epsilon": 1.0, "encoder.width": 4, "data.source": source}
...     workspace = Workspace(load_mapping(settings))
>>> workspace.rows("train"), workspace.release("test", seed=0).shape
(24, (8, 4))
"""

from __future__ import annotations

import functools
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.architectures.model_source import source_of
from fl_sim.clients.models.tokenizers import boundary_ids, load_tokenizer
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.research.representations.client.encoder_inputs import (
    UNKNOWN_WORD,
    EncoderInputs,
    Table,
    TokenLists,
    Vocabulary,
    drop_words,
    token_ids,
    words_of,
)
from fl_sim.research.representations.client.encoders import Encoder, build_encoder, model_spec
from fl_sim.research.representations.client.feed_forward import Draw, short_seed
from fl_sim.research.representations.client.frozen_layers import FrozenEncoder, LowerStates
from fl_sim.research.representations.client.privacy_layers import PrivacyLayer
from fl_sim.research.representations.config import DataSection, EncoderSection, ExperimentConfig
from fl_sim.research.representations.corpora.adult_reader import read_adult, write_toy_adult
from fl_sim.research.representations.corpora.labelled import SPLITS, TRAIN, LabelledData
from fl_sim.research.representations.corpora.labelled_text import TEXT_READERS, entity_words, read_dpnr_ag
from fl_sim.research.representations.corpora.own_table import TableColumns, read_own_table
from fl_sim.research.representations.local_privacy import (
    NO_DROPOUT,
    LocalGuarantee,
    WordDropout,
    build_mechanism,
)
from fl_sim.strategies.primitives import streams

_TOY_ROWS = 6000

_SPLIT_NUMBER = {name: number for number, name in enumerate(SPLITS)}


def word_dropout(config: ExperimentConfig) -> WordDropout:
    """Return the dropout of words before the encoder."""
    privacy = config.privacy
    listed = frozenset(word.lower() for word in privacy.sensitive)
    filler = UNKNOWN_WORD if privacy.dropped_words == "unknown" else None
    return WordDropout(privacy.word_dropout, listed | _cached_entity_words(privacy.entities_of), filler)


class Workspace:
    """One client's inputs, encoder and privacy layer."""

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config
        self.data = open_data(config.data, config.seed)
        self._reader = build_reader(config, self.data)
        dropout = word_dropout(config)
        of_training = dropout if config.privacy.dropout_in_training else NO_DROPOUT
        self._inputs = {name: self._reader.read(name, of_training if name == TRAIN else dropout) for name in SPLITS}
        self.encoder: Encoder = build_encoder(config.encoder, self._reader.size, short_seed(config.seed, "encoder"))
        self.layer = PrivacyLayer(config.mechanism(self.encoder.width), dropout)

    def rows(self, split: str) -> int:
        """Return the number of examples of a split."""
        return len(self._inputs[split])

    def perturb(
        self, split: str, rows: NDArray[np.int64], draw: Draw | None, scale: float | None = None
    ) -> torch.Tensor:
        """Return normalised vectors with continuous training noise, float32 (B, k), in autograd's graph.

        Args:
            split: of the rows.
            rows: int64 (B,).
            draw: the step's randomness for exactly these rows; None: evaluation, without noise.
            scale: of the noise, if a schedule sets another than the layer's; 0 for none.
        """
        self.encoder.train(draw is not None)
        return self.layer(self.encoder(self._inputs[split].batch(rows), draw), draw, scale)

    def encode(self, split: str, rows: NDArray[np.int64] | None = None) -> torch.Tensor:
        """Return the encoder's vectors before the privacy layer, float32 (n, k), in evaluation.

        Args:
            split: of the rows.
            rows: int64 (n,); None for all rows of the split.
        """
        return self._encode_inputs(self._inputs[split], rows)

    def _encode_inputs(self, inputs: EncoderInputs, rows: NDArray[np.int64] | None = None) -> torch.Tensor:
        rows = np.arange(len(inputs)) if rows is None else rows
        self.encoder.eval()
        with torch.no_grad():
            parts = [
                self.encoder(inputs.batch(rows[start : start + self.encoder.rows_at_once]))
                for start in range(0, len(rows), self.encoder.rows_at_once)
            ]
        return torch.cat(parts) if parts else torch.zeros(0, self.encoder.width)

    def release(self, split: str, seed: int | None, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """Return the vectors that the client sends, float32 (n, k).

        Args:
            split: of the rows.
            seed: of the noise. A row gets the same noise in every request for it. None draws from the operating
                system.
            rows: int64 (n,); None for all rows of the split.
        """
        if seed is None:
            return self.layer.release(self.encode(split, rows), None)
        full_split = torch.zeros(self.rows(split), self.encoder.width)
        rows = np.arange(self.rows(split)) if rows is None else rows
        full_split[torch.from_numpy(rows)] = self.encode(split, rows)
        generator = streams.generator(seed, "release", _SPLIT_NUMBER[split])
        return self.layer.release(full_split, generator)[rows]

    def release_with(
        self, split: str, epsilon: float, word_dropout: float, seed: int | None
    ) -> tuple[NDArray[np.float32], LocalGuarantee]:
        """Return what the same encoder sends of a split at another ε and μ, float32 (n, k), and its guarantee.

        Args:
            split: all rows of it are sent.
            epsilon: the layer's parameter ε.
            word_dropout: μ.
            seed: of noise and dropped words, independent of other releases; None: the noise is the operating system's.
        """
        dropout = replace(self.layer.dropout, rate=word_dropout)
        layer = PrivacyLayer(build_mechanism(self.config.layer, self.encoder.width, epsilon), dropout)
        vectors = self._encode_inputs(self._reader.read(split, dropout))
        purpose = f"release {epsilon!r} {word_dropout!r}"
        generator = None if seed is None else streams.generator(seed, purpose, _SPLIT_NUMBER[split])
        return layer.release(vectors, generator), layer.guarantee


@functools.lru_cache(maxsize=2)
def open_data(spec: DataSection, seed: int) -> LabelledData:
    """Return the labelled examples in splits drawn by ``seed``.

    Raises:
        ModelError: the source is missing, or something is set that this corpus does not have.
    """
    if spec.name == "toy-adult":
        return _toy_adult(spec, seed)
    if not spec.source:
        raise ModelError("data.source is missing; allowed: the folder with the corpus, or the file of a table")
    source = Path(spec.source).expanduser()
    if spec.name != "table" and spec.table != TableColumns():
        raise ModelError(
            f"data.table is given with data.name = {spec.name!r}; allowed: leave it out, or name = 'table'"
        )
    if spec.name in TEXT_READERS:
        return TEXT_READERS[spec.name](source, seed, spec.rows)
    if spec.rows is not None:
        raise ModelError(f"data.rows is {spec.rows}; allowed with data.name = {spec.name!r}: leave it out")
    if spec.name == "table":
        return read_own_table(source, seed, spec.table)
    return read_adult(source, seed, spec.columns, spec.split) if spec.name == "adult" else _dpnr_ag(source)


def _toy_adult(spec: DataSection, seed: int) -> LabelledData:
    """Return the generated Adult, the same rows for every ``seed``, which draws the splits."""
    if spec.source:
        raise ModelError(f"data.source is {spec.source}; allowed with data.name = 'toy-adult': leave it out")
    with tempfile.TemporaryDirectory() as folder:
        source = write_toy_adult(Path(folder), rows=spec.rows or _TOY_ROWS)
        return replace(read_adult(source, seed, spec.columns, spec.split), name=spec.name)


@functools.lru_cache(maxsize=1)
def _dpnr_ag(source: Path) -> LabelledData:
    """Return DPNR's AG set: one object for all seeds, because its splits are the file's."""
    return read_dpnr_ag(source)


@functools.lru_cache(maxsize=2)
def _cached_entity_words(path: str | None) -> frozenset[str]:
    return frozenset() if path is None else entity_words(Corpus.open(Path(path).expanduser()))


class Reader(ABC):
    """Converts examples to inputs of an encoder.

    Attributes:
        size: numbers of a row, or words of the vocabulary.
    """

    size: int

    @abstractmethod
    def read(self, split: str, dropout: WordDropout) -> EncoderInputs:
        """Return the inputs of a split, after ``dropout`` of its words."""


class _TableReader(Reader):
    def __init__(self, config: ExperimentConfig, data: LabelledData) -> None:
        if config.encoder.kind not in ("table", "mlp"):
            raise ModelError(f"encoder.kind is {config.encoder.kind!r}; allowed for {data.name}: table, mlp")
        self._data = data
        self.size = data.train.table.shape[1]

    def read(self, split: str, dropout: WordDropout) -> EncoderInputs:
        if dropout.rate or dropout.sensitive:
            raise ModelError(f"word_dropout is {dropout.rate}; allowed for {self._data.name}, which has no words: 0")
        return Table(self._data.splits[split].table)


class _TextReader(Reader):
    """Encodes texts by a function of them; texts without dropout are encoded once."""

    def __init__(
        self, data: LabelledData, seed: int, size: int, encode: Callable[[Sequence[str]], EncoderInputs]
    ) -> None:
        self._data, self._seed, self._encode = data, seed, encode
        self.size = size
        self._plain: dict[str, EncoderInputs] = {}

    def with_seed(self, seed: int) -> _TextReader:
        """Return a reader whose dropout has another seed and which shares this one's cache."""
        other = _TextReader(self._data, seed, self.size, self._encode)
        other._plain = self._plain
        return other

    def read(self, split: str, dropout: WordDropout) -> EncoderInputs:
        texts = self._data.splits[split].texts
        if dropout.rate or dropout.sensitive:
            generator = streams.generator(self._seed, "word dropout", _SPLIT_NUMBER[split])
            return self._encode(drop_words(texts, dropout, generator))
        if split not in self._plain:
            self._plain[split] = self._encode(texts)
        return self._plain[split]


def build_reader(config: ExperimentConfig, data: LabelledData) -> Reader:
    """Return the reader of ``data`` for the encoder of ``config``."""
    if isinstance(data.train.inputs, np.ndarray):
        return _TableReader(config, data)
    # A bag reads the same words whatever its width.
    encoder = EncoderSection(kind="bag") if config.encoder.kind == "bag" else config.encoder
    return _build_text_reader(data, encoder, config.feature_cache).with_seed(config.seed)


@functools.lru_cache(maxsize=2)
def _build_text_reader(data: LabelledData, encoder: EncoderSection, feature_cache: str | None) -> _TextReader:
    """Return the reader of texts as words, tokens or frozen features; experiments on the same examples share it."""
    if encoder.kind == "bag":
        vocabulary = Vocabulary(data.train.texts)
        return _TextReader(
            data, 0, len(vocabulary), lambda texts: TokenLists([vocabulary.encode(words_of(text)) for text in texts])
        )
    folder = None if feature_cache is None else Path(feature_cache).expanduser()
    if encoder.trained_layers is not None:
        return _TextReader(data, 0, 0, LowerStates(encoder, folder).read)
    if encoder.kind == "transformer":
        tokenize = _build_tokenizer(encoder)
        return _TextReader(data, 0, 0, lambda texts: TokenLists(tokenize(texts)))
    frozen = FrozenEncoder(encoder, folder)
    return _TextReader(data, 0, frozen.width, lambda texts: Table(frozen.features(texts)))


def _build_tokenizer(spec: EncoderSection) -> Callable[[Sequence[str]], list[list[int]]]:
    model = model_spec(spec, "full")
    tokenizer = load_tokenizer(source_of(model.name).tokenizer_name(model))
    boundary = boundary_ids(tokenizer)
    return lambda texts: token_ids(tokenizer, texts, boundary, spec.max_tokens)
