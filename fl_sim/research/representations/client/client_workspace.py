"""The clients' data, encoder and privacy layer, opened from the experiment's configuration.

>>> from tempfile import TemporaryDirectory
>>> from fl_sim.research.representations.corpora.labelled_tables import write_toy_adult
>>> from fl_sim.research.representations.config import load_mapping
>>> with TemporaryDirectory() as folder:
...     source = str(write_toy_adult(Path(folder), rows=40))
...     settings = {"method": "robust", "privacy.epsilon": 1.0, "encoder.width": 4, "data.source": source}
...     workspace = Workspace(load_mapping(settings))
>>> workspace.release("test", seed=0).shape
(8, 4)
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.architectures.model_source import source_of
from fl_sim.clients.models.tokenizers import boundary_ids, load_tokenizer
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.research.representations.client.encoder_inputs import (
    EncoderInputs,
    MaskedLists,
    Ragged,
    Table,
    TokenLists,
    Vocabulary,
    drop_words,
    token_ids,
)
from fl_sim.research.representations.client.encoders import (
    Encoder,
    FrozenEncoder,
    LowerStates,
    Transformer,
    build_encoder,
    model_spec,
)
from fl_sim.research.representations.client.feed_forward import Draw, short_seed
from fl_sim.research.representations.client.privacy_layers import PrivacyLayer
from fl_sim.research.representations.config import DataSection, EncoderSection, ExperimentConfig
from fl_sim.research.representations.corpora.labelled import SPLITS, TRAIN, LabelledData
from fl_sim.research.representations.corpora.labelled_tables import (
    TableColumns,
    read_adult,
    read_own_table,
    write_toy_adult,
)
from fl_sim.research.representations.corpora.labelled_text import TEXT_READERS, entity_words, read_dpnr_ag
from fl_sim.research.representations.local_privacy import (
    NO_DROPOUT,
    LocalGuarantee,
    WordDropout,
    build_mechanism,
)
from fl_sim.strategies.primitives import streams

_TOY_ROWS = 6000

_dpnr_ag = functools.lru_cache(maxsize=1)(read_dpnr_ag)
"""DPNR's AG set: one object for all seeds, because its splits are the file's."""

_SPLIT_NUMBER = {name: number for number, name in enumerate(SPLITS)}


def word_dropout(config: ExperimentConfig) -> WordDropout:
    """Return the dropout of words before the encoder."""
    privacy, ngrams = config.privacy, config.encoder.ngrams
    tokens: int | None = 1
    if privacy.masks:  # a text's pieces are not its words: nobody knows how many of them hold one
        tokens = ngrams * (ngrams + 1) // 2 if config.encoder.kind == "bag" else None
    listed = frozenset(privacy.sensitive) | _cached_entity_words(privacy.entities_of)
    return WordDropout(privacy.word_dropout, listed, tokens)


class Workspace:
    """The clients' inputs, encoder and privacy layer."""

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config
        self.data = open_data(config.data, config.seed)
        read_by, cache = config.encoder, config.feature_cache
        if read_by.kind == "bag":  # it reads the same words whatever its width
            read_by = EncoderSection(kind="bag", ngrams=read_by.ngrams, vocabulary=read_by.vocabulary)
        masks = config.privacy.masks and read_by.kind == "transformer"
        self._encoding = None if self.data.is_table else _encoding_of(self.data, read_by, cache, masks=masks)
        size = self.data.train.table.shape[1] if self._encoding is None else self._encoding.size
        if self._encoding is None and config.encoder.kind not in ("table", "mlp"):
            raise ModelError(f"encoder.kind is {config.encoder.kind!r}; allowed for {self.data.name}: table, mlp")
        dropout = word_dropout(config)
        self._dropout = dict.fromkeys(SPLITS, dropout)
        if not config.privacy.dropout_in_training:
            self._dropout[TRAIN] = NO_DROPOUT
        self._inputs = {name: self.read(name, self._dropout[name], config.seed) for name in SPLITS}
        self.encoder: Encoder = build_encoder(config.encoder, size, short_seed(config.seed, "encoder"))
        if masks and isinstance(self.encoder, Transformer) and not self.encoder.reads_both_ways:
            raise ModelError("privacy.dropped_words is 'masked'; allowed with an encoder that reads both ways")
        self.layer = PrivacyLayer(config.mechanism(self.encoder.width), dropout)

    def read(self, split: str, dropout: WordDropout, seed: int | None) -> EncoderInputs:
        """Return the encoder's inputs of a split, after ``dropout`` of its words.

        One ``seed`` drops the same words in every call, and at a smaller rate some of them: one draw of uniforms is
        compared with the rate. None draws from the operating system, anew in every call.
        """
        drops = bool(dropout.rate or dropout.sensitive)
        if self._encoding is None:
            if drops:
                raise ModelError(f"word_dropout is {dropout.rate}; allowed for {self.data.name}, which has no words: 0")
            return Table(self.data.splits[split].table)
        texts = self.data.splits[split].texts
        generator = None if seed is None else streams.generator(seed, "word dropout", _SPLIT_NUMBER[split])
        if drops and not self.config.privacy.masks:
            return self._encoding.encode(drop_words(texts, dropout, generator))
        if split not in self._encoding.plain:
            self._encoding.plain[split] = self._encoding.encode(texts)
        plain = self._encoding.plain[split]
        return MaskedLists(plain, dropout.rate, generator) if drops and isinstance(plain, TokenLists) else plain

    def training_batch(self, rows: NDArray[np.int64], draw: Draw) -> Any:
        """Return the encoder's input of training ``rows``, int64 (B,); a mask of their tokens is the step's own."""
        batch = self._inputs[TRAIN].batch(rows)
        if not isinstance(batch, Ragged) or batch.visible is None:
            return batch
        uniform = Draw(draw.seed, len(batch.tokens)).uniform("masked tokens", 1)[:, 0]
        return replace(batch, visible=uniform >= self.config.privacy.word_dropout)

    def encode(self, split: str) -> torch.Tensor:
        """Return the encoder's vectors of a split before the privacy layer, float32 (n, k), in evaluation."""
        return self._encode(self._inputs[split])

    def _encode(self, inputs: EncoderInputs) -> torch.Tensor:
        rows = np.arange(len(inputs))
        self.encoder.eval()
        with torch.no_grad():
            parts = [
                self.encoder(inputs.batch(rows[start : start + self.encoder.rows_at_once]))
                for start in range(0, len(rows), self.encoder.rows_at_once)
            ]
        return torch.cat(parts) if parts else torch.zeros(0, self.encoder.width)

    def release(self, split: str, seed: int | None) -> NDArray[np.float32]:
        """Return the vectors that the clients send of a split, float32 (n, k).

        Noise follows from ``seed``, and dropped words from the experiment's, as in every other release of it. None
        draws both from the operating system.
        """
        if seed is None:
            return self.layer.release(self._encode(self.read(split, self._dropout[split], None)), None)
        return self.layer.release(self.encode(split), streams.generator(seed, "release", _SPLIT_NUMBER[split]))

    def release_with(
        self, split: str, epsilon: float, word_dropout: float, seed: int | None
    ) -> tuple[NDArray[np.float32], LocalGuarantee]:
        """Return what the same encoder sends of a split at another ε and μ, float32 (n, k), and its guarantee.

        Noise follows from ``seed``, independent of releases at another ε or μ, and dropped words from the experiment's
        seed. So all releases of an experiment drop the same words, or at a smaller μ some of these, and their ε' do
        not add: ``local_privacy.py`` says what they have together. None draws noise and words from the operating
        system, for this release alone.
        """
        dropout = replace(self.layer.dropout, rate=word_dropout)
        layer = PrivacyLayer(build_mechanism(self.config.layer, self.encoder.width, epsilon), dropout)
        vectors = self._encode(self.read(split, dropout, None if seed is None else self.config.seed))
        purpose = f"release {epsilon!r} {word_dropout!r}"
        generator = None if seed is None else streams.generator(seed, purpose, _SPLIT_NUMBER[split])
        return layer.release(vectors, generator), layer.guarantee


@functools.lru_cache(maxsize=2)
def open_data(spec: DataSection, seed: int) -> LabelledData:
    """Return the labelled examples in splits drawn by ``seed``.

    Raises:
        ModelError: the source is missing, or something is set that this corpus does not have.
    """
    if spec.name == "toy-adult":  # the same rows for every seed, which draws the splits
        if spec.source:
            raise ModelError(f"data.source is {spec.source}; allowed with data.name = 'toy-adult': leave it out")
        with tempfile.TemporaryDirectory() as folder:
            generated = write_toy_adult(Path(folder), rows=spec.rows or _TOY_ROWS)
            return replace(read_adult(generated, seed, spec.columns, spec.split), name=spec.name)
    if not spec.source:
        raise ModelError("data.source is missing; allowed: the folder with the corpus, or the file of a table")
    source = Path(spec.source).expanduser()
    if spec.name != "table" and spec.table != TableColumns():
        raise ModelError(
            f"data.table is given with data.name = {spec.name!r}; allowed: leave it out, or name = 'table'"
        )
    if spec.name in TEXT_READERS:
        return TEXT_READERS[spec.name](source, seed, spec.rows, spec.selection)
    if spec.rows is not None:
        raise ModelError(f"data.rows is {spec.rows}; allowed with data.name = {spec.name!r}: leave it out")
    if spec.name == "table":
        return read_own_table(source, seed, spec.table)
    return read_adult(source, seed, spec.columns, spec.split) if spec.name == "adult" else _dpnr_ag(source)


@functools.lru_cache(maxsize=2)
def _cached_entity_words(path: str | None) -> frozenset[str]:
    return frozenset() if path is None else entity_words(Corpus.open(Path(path).expanduser()))


@dataclass(frozen=True, eq=False)
class _Encoding:
    """How texts become an encoder's inputs of ``size`` numbers, or from so many words.

    Experiments on the same examples share it, with the inputs of texts without dropout.
    """

    size: int
    encode: Callable[[Sequence[str]], EncoderInputs]
    plain: dict[str, EncoderInputs] = field(default_factory=dict)


@functools.lru_cache(maxsize=2)
def _encoding_of(data: LabelledData, spec: EncoderSection, feature_cache: str | None, *, masks: bool) -> _Encoding:
    """Return the encoding of texts as n-grams, tokens or frozen features; ``masks`` change every layer's states."""
    if spec.kind == "bag":
        others = (*data.validation.texts, *data.unused) if spec.vocabulary == "file" else ()
        vocabulary = Vocabulary((*data.train.texts, *others), spec.ngrams)
        return _Encoding(len(vocabulary), lambda texts: TokenLists([vocabulary.encode(text) for text in texts]))
    folder = None if feature_cache is None else Path(feature_cache).expanduser()
    if spec.trained_layers is not None and not masks:
        return _Encoding(0, LowerStates(spec, folder).read)
    if spec.kind == "transformer":
        model = model_spec(spec, "full")
        tokenizer = load_tokenizer(source_of(model.name).tokenizer_name(model))
        boundary = boundary_ids(tokenizer)
        return _Encoding(0, lambda texts: TokenLists(token_ids(tokenizer, texts, boundary, spec.max_tokens)))
    frozen = FrozenEncoder(spec, folder)
    return _Encoding(frozen.width, lambda texts: Table(frozen.features(texts)))
