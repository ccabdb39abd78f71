"""What a client has open: its data, its encoder and its privacy layer, from a description that fits a message."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.architectures.model_source import source_of
from fl_sim.clients.models.tokenizers import boundary_ids, load_tokenizer
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.research.representations.client.draws import Draw, short_seed
from fl_sim.research.representations.client.encoder_inputs import (
    EncoderInputs,
    Table,
    TokenLists,
    Vocabulary,
    drop_words,
    words_of,
)
from fl_sim.research.representations.client.encoders import Encoder, EncoderSpec, build_encoder, model_spec
from fl_sim.research.representations.client.frozen_features import FrozenEncoder
from fl_sim.research.representations.client.local_privacy import (
    NO_DROPOUT,
    LayerName,
    LocalGuarantee,
    WordDropout,
    build_mechanism,
)
from fl_sim.research.representations.client.privacy_layers import PrivacyLayer
from fl_sim.research.representations.corpora.adult_reader import AdultColumns, AdultSplit, read_adult
from fl_sim.research.representations.corpora.entity_words import entity_words
from fl_sim.research.representations.corpora.labelled import SPLITS, TRAIN, LabelledData
from fl_sim.research.representations.corpora.labelled_text import TEXT_READERS, read_dpnr_ag
from fl_sim.strategies.primitives import streams

DataName = Literal["adult", "dpnr-ag", "ag-news", "sst2", "sentence-polarity"]

_ROWS_AT_ONCE = 2048
_SPLIT_NUMBER = {name: number for number, name in enumerate(SPLITS)}


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class DataSpec(_Spec):
    """Which labelled examples.

    Attributes:
        name: of the corpus. source: the folder that it lies in.
        rows: training rows to draw, validation included; left out, all (ag-news, sst2, sentence-polarity).
        columns: of Adult: the ``nine`` of FEDERATE's paper, or those of its ``code``.
        split: of Adult: 60 : 20 : 20 as in that ``paper``, or 72 : 8 : 20 as in its ``code``.
    """

    name: DataName = "adult"
    source: str = Field(default="", description="the folder that the corpus lies in")
    rows: int | None = Field(default=None, ge=2)
    columns: AdultColumns = "nine"
    split: AdultSplit = "paper"


class ClientSpec(_Spec):
    """Everything that a client's side depends on.

    Attributes:
        data, encoder: which.
        layer, epsilon: the privacy layer and its ε.
        word_dropout: μ. sensitive: words that are always dropped; entities_of: a prepared corpus, the words of whose
            entities are, too. dropout_in_training: whether training texts lose words, too.
        seed: of the split, the weights, the words that are dropped.
        feature_cache: a folder for a frozen encoder's features.
    """

    data: DataSpec
    encoder: EncoderSpec
    layer: LayerName = "none"
    epsilon: float | None = None
    word_dropout: float = 0.0
    sensitive: tuple[str, ...] = ()
    entities_of: str | None = None
    dropout_in_training: bool = False
    seed: int = 0
    feature_cache: str | None = None

    @property
    def dropout(self) -> WordDropout:
        """The words that never reach the encoder."""
        listed = frozenset(word.lower() for word in self.sensitive)
        return WordDropout(self.word_dropout, listed | _words_of_entities(self.entities_of))


class Workspace:
    """One client's inputs, encoder and privacy layer."""

    def __init__(self, spec: ClientSpec) -> None:
        self.spec = spec
        self.data = open_data(spec.data, spec.seed)
        self._reader = reader_of(spec, self.data)
        self._inputs = {name: self._reader.read(name, _dropout_of(spec, name)) for name in SPLITS}
        size = self._reader.size
        self.encoder: Encoder = build_encoder(spec.encoder, size, short_seed(spec.seed, "encoder"))
        mechanism = build_mechanism(spec.layer, self.encoder.width, spec.epsilon)
        self.layer = PrivacyLayer(mechanism, spec.dropout)

    def rows(self, split: str) -> int:
        """Examples of a split."""
        return len(self._inputs[split])

    def perturbed(
        self, split: str, rows: NDArray[np.int64], draw: Draw | None, scale: float | None = None
    ) -> torch.Tensor:
        """Training: the normalised vectors of ``rows`` with continuous noise, in autograd's graph.

        Args:
            draw: randomness of the step for exactly these rows; None is evaluation, without any noise.
            scale: of the noise where a schedule sets another; 0 for none.
        """
        self.encoder.train(draw is not None)
        return self.layer(self.encoder(self._inputs[split].batch(rows), draw), draw, scale)

    def encoded(self, split: str, rows: NDArray[np.int64] | None = None) -> torch.Tensor:
        """The encoder's vectors (n, k) before the privacy layer, in evaluation."""
        return self._encoded(self._inputs[split], rows)

    def _encoded(self, inputs: EncoderInputs, rows: NDArray[np.int64] | None = None) -> torch.Tensor:
        wanted = np.arange(len(inputs)) if rows is None else rows
        self.encoder.eval()
        with torch.no_grad():
            parts = [
                self.encoder(inputs.batch(wanted[start : start + _ROWS_AT_ONCE]))
                for start in range(0, len(wanted), _ROWS_AT_ONCE)
            ]
        return torch.cat(parts) if parts else torch.zeros(0, self.encoder.width)

    def released(self, split: str, seed: int | None, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """What is sent of a split, or of some of its rows: (n, k) float32.

        Args:
            seed: of the noise, in which every row of the split has its place, whoever asks for it; None draws from
                the operating system.
        """
        if seed is None:
            return self.layer.release(self.encoded(split, rows), None)
        everything = torch.zeros(self.rows(split), self.encoder.width)
        wanted = np.arange(self.rows(split)) if rows is None else rows
        everything[torch.from_numpy(wanted)] = self.encoded(split, wanted)
        generator = streams.generator(seed, "release", _SPLIT_NUMBER[split])
        return self.layer.release(everything, generator)[wanted]

    def released_otherwise(
        self, split: str, epsilon: float, word_dropout: float, seed: int | None
    ) -> tuple[NDArray[np.float32], LocalGuarantee]:
        """What the same encoder sends of a split with another ε and another μ, and what that promises; of noise and
        coins of its own."""
        dropout = WordDropout(word_dropout, self.spec.dropout.sensitive)
        layer = PrivacyLayer(build_mechanism(self.spec.layer, self.encoder.width, epsilon), dropout)
        vectors = self._encoded(self._reader.read(split, dropout))
        purpose = f"release {epsilon!r} {word_dropout!r}"
        generator = None if seed is None else streams.generator(seed, purpose, _SPLIT_NUMBER[split])
        return layer.release(vectors, generator), layer.guarantee


@functools.lru_cache(maxsize=2)
def open_data(spec: DataSpec, seed: int) -> LabelledData:
    """The examples in splits drawn by ``seed``."""
    if not spec.source:
        raise ModelError("data.source is missing; allowed: the folder that the corpus lies in")
    source = Path(spec.source).expanduser()
    if spec.name in TEXT_READERS:
        return TEXT_READERS[spec.name](source, seed, spec.rows)
    if spec.rows is not None:
        raise ModelError(f"data.rows is {spec.rows}; allowed with data.name = {spec.name!r}: leave it out")
    return read_adult(source, seed, spec.columns, spec.split) if spec.name == "adult" else _dpnr_ag(source)


@functools.lru_cache(maxsize=1)
def _dpnr_ag(source: Path) -> LabelledData:
    """One object for all seeds, since its splits are the file's."""
    return read_dpnr_ag(source)


@functools.lru_cache(maxsize=2)
def _words_of_entities(path: str | None) -> frozenset[str]:
    return frozenset() if path is None else entity_words(Corpus.open(Path(path).expanduser()))


class Reader(ABC):
    """Examples to what an encoder reads.

    Attributes:
        size: numbers of a row, or words of the vocabulary.
    """

    size: int

    @abstractmethod
    def read(self, split: str, dropout: WordDropout) -> EncoderInputs:
        """The inputs of a split, without the words that the dropout takes."""


class _Numbers(Reader):
    def __init__(self, spec: ClientSpec, data: LabelledData) -> None:
        if spec.encoder.kind not in ("table", "mlp"):
            raise ModelError(f"encoder.kind is {spec.encoder.kind!r}; allowed for {data.name}: table, mlp")
        self._data = data
        self.size = data.train.table.shape[1]

    def read(self, split: str, dropout: WordDropout) -> EncoderInputs:
        if dropout.rate or dropout.sensitive:
            raise ModelError(f"word_dropout is {dropout.rate}; allowed for {self._data.name}, which has no words: 0")
        return Table(self._data.splits[split].table)


class _Texts(Reader):
    """Texts by a function that goes from texts to inputs, which is called once for texts as they are."""

    def __init__(
        self, data: LabelledData, seed: int, size: int, encode: Callable[[Sequence[str]], EncoderInputs]
    ) -> None:
        self._data, self._seed, self._encode = data, seed, encode
        self.size = size
        self._plain: dict[str, EncoderInputs] = {}

    def of_seed(self, seed: int) -> _Texts:
        """The same texts with the coins of another seed; what was read stays read."""
        other = _Texts(self._data, seed, self.size, self._encode)
        other._plain = self._plain
        return other

    def read(self, split: str, dropout: WordDropout) -> EncoderInputs:
        texts = self._data.splits[split].texts
        if dropout.rate or dropout.sensitive:
            uniforms = streams.generator(self._seed, "word dropout", _SPLIT_NUMBER[split])
            return self._encode(drop_words(texts, dropout, uniforms))
        if split not in self._plain:
            self._plain[split] = self._encode(texts)
        return self._plain[split]


def reader_of(spec: ClientSpec, data: LabelledData) -> Reader:
    """What reads these examples for that encoder."""
    if isinstance(data.train.inputs, np.ndarray):
        return _Numbers(spec, data)
    # Whatever its width, a bag reads the same words.
    encoder = EncoderSpec(kind="bag") if spec.encoder.kind == "bag" else spec.encoder
    return _texts_of(data, encoder, spec.feature_cache).of_seed(spec.seed)


@functools.lru_cache(maxsize=2)
def _texts_of(data: LabelledData, encoder: EncoderSpec, feature_cache: str | None) -> _Texts:
    """A vocabulary and the tokens, or frozen features, of all texts: experiments on the same examples share them."""
    if encoder.kind == "bag":
        vocabulary = Vocabulary(data.train.texts)
        return _Texts(
            data, 0, len(vocabulary), lambda some: TokenLists([vocabulary.encode(words_of(text)) for text in some])
        )
    if encoder.kind == "transformer":
        tokens = _tokenizer_of(encoder)
        return _Texts(data, 0, 0, lambda some: TokenLists(tokens(some)))
    frozen = FrozenEncoder(encoder, None if feature_cache is None else Path(feature_cache).expanduser())
    return _Texts(data, 0, frozen.width, lambda some: Table(frozen.features(some)))


def _tokenizer_of(spec: EncoderSpec) -> Callable[[Sequence[str]], list[list[int]]]:
    model = model_spec(spec, "full")
    tokenizer = load_tokenizer(source_of(model.name).tokenizer_name(model))
    bos, eos = boundary_ids(tokenizer)

    def encode(texts: Sequence[str]) -> list[list[int]]:
        found = tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return [[bos, *ids, eos][: spec.max_tokens] for ids in found]

    return encode


def _dropout_of(spec: ClientSpec, split: str) -> WordDropout:
    return NO_DROPOUT if split == TRAIN and not spec.dropout_in_training else spec.dropout
