"""What a client has open: its data, its encoder and its privacy layer, from a description that fits a message."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from clients.errors import ModelError
from clients.representations.draws import Draw
from clients.representations.encoders import Encoder, EncoderSpec, build_encoder, model_spec
from clients.representations.frozen import FrozenEncoder
from clients.representations.inputs import EncoderInputs, Table, TokenLists, Vocabulary, drop_words, words_of
from clients.representations.layers import PrivacyLayer
from clients.tokenizers import boundary_ids, load_tokenizer
from data_prep.corpus import Corpus
from data_prep.entity_words import entity_words
from data_prep.labelled import SPLITS, TRAIN, LabelledData
from data_prep.readers_adult import AdultColumns, read_adult
from data_prep.readers_labelled_text import TEXT_READERS, read_dpnr_ag
from strategies import streams
from strategies.local_privacy import LayerName, WordDropout, build_mechanism

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
    """

    name: DataName = "adult"
    source: str = Field(default="", description="the folder that the corpus lies in")
    rows: int | None = Field(default=None, ge=2)
    columns: AdultColumns = "nine"


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
        self._inputs, size = _inputs_of(spec, self.data)
        self.encoder: Encoder = build_encoder(spec.encoder, size, streams.derived_seed(spec.seed, "encoder") >> 65)
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
        wanted = np.arange(self.rows(split)) if rows is None else rows
        self.encoder.eval()
        with torch.no_grad():
            parts = [
                self.encoder(self._inputs[split].batch(wanted[start : start + _ROWS_AT_ONCE]))
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
    return read_adult(source, seed, spec.columns) if spec.name == "adult" else read_dpnr_ag(source)


@functools.lru_cache(maxsize=2)
def _words_of_entities(path: str | None) -> frozenset[str]:
    return frozenset() if path is None else entity_words(Corpus.open(Path(path).expanduser()))


def _inputs_of(spec: ClientSpec, data: LabelledData) -> tuple[dict[str, EncoderInputs], int]:
    """The inputs of every split, and how many numbers a row has or words there are."""
    if isinstance(data.train.inputs, np.ndarray):
        if spec.encoder.kind not in ("table", "mlp"):
            raise ModelError(f"encoder.kind is {spec.encoder.kind!r}; allowed for {data.name}: table, mlp")
        if spec.dropout.rate or spec.dropout.sensitive:
            raise ModelError(f"word_dropout is {spec.word_dropout}; allowed for {data.name}, which has no words: 0")
        return {name: Table(data.splits[name].table) for name in SPLITS}, data.train.table.shape[1]
    texts = {name: _after_dropout(spec, name, data.splits[name].texts) for name in SPLITS}
    if spec.encoder.kind == "bag":
        vocabulary = Vocabulary(data.train.texts)
        return _tokens(texts, lambda some: [vocabulary.encode(words_of(text)) for text in some]), len(vocabulary)
    if spec.encoder.kind == "transformer":
        return _tokens(texts, _tokenizer_of(spec.encoder)), 0
    cache = None if spec.feature_cache is None else Path(spec.feature_cache).expanduser()
    frozen = FrozenEncoder(spec.encoder, cache)
    tables = {name: frozen.features(texts[name]) for name in SPLITS}
    return {name: Table(table) for name, table in tables.items()}, tables[TRAIN].shape[1]


def _tokens(
    texts: dict[str, Sequence[str]], encode: Callable[[Sequence[str]], list[list[int]]]
) -> dict[str, EncoderInputs]:
    return {name: TokenLists(encode(some)) for name, some in texts.items()}


def _tokenizer_of(spec: EncoderSpec) -> Callable[[Sequence[str]], list[list[int]]]:
    tokenizer = load_tokenizer(model_spec(spec, "full").tokenizer_name)
    bos, eos = boundary_ids(tokenizer)

    def encode(texts: Sequence[str]) -> list[list[int]]:
        found = tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return [[bos, *ids, eos][: spec.max_tokens] for ids in found]

    return encode


def _after_dropout(spec: ClientSpec, split: str, texts: Sequence[str]) -> Sequence[str]:
    dropout = spec.dropout
    if not (dropout.rate or dropout.sensitive) or (split == TRAIN and not spec.dropout_in_training):
        return texts
    return drop_words(texts, dropout, streams.generator(spec.seed, "word dropout", _SPLIT_NUMBER[split]))
