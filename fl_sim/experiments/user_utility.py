"""What the last evaluation of a run says by user: intervals, deciles, users with few and many sentences, entity tokens.

Everything is computed from the losses of that evaluation. The figures are about private text, without noise: like all
held-out metrics they are for the corpus's owner, and no ε covers them.

>>> covers = [(0, 3), (4, 9), (9, 10)]
>>> is_entity_token(covers, (4, 9)).tolist(), covered_bytes("Ada läuft.", covers).tolist()
([False, True, False, False], [3, 7, 1, 1])

>>> size_class(1), size_class(3), size_class(200)
(0, 1, 6)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.tasks import HeldOut, NextWord, TextSizes
from fl_sim.data_prep.identity import keys_of_mentions
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.evaluation import HeldOutSentences
from fl_sim.reporting.bootstrap import METHOD, RESAMPLES, Figure, intervals
from fl_sim.reporting.held_out import CountClass, HeldOutFigures, TextPart
from fl_sim.strategies.primitives import streams

T = TypeVar("T")
Span = tuple[int, int]
"""First character, and the one after the last."""


def token_spans(texts: Sequence[str], tokenizer: Any) -> list[list[Span]] | None:
    """Return the characters of every token of every text, without special tokens, as the model reads its texts.

    Returns:
        A list per text; None if the tokenizer does not know its tokens' places.
    """
    if not getattr(tokenizer, "is_fast", False):
        return None
    options = {"add_special_tokens": False, "split_special_tokens": True, "return_offsets_mapping": True}
    return tokenizer(list(texts), **options)["offset_mapping"] if texts else []


def is_entity_token(spans: Sequence[Span], mention: Span) -> NDArray[np.bool_]:
    """Return which targets of a sentence have a character in a mention, bool (k + 1,); the last is its end."""
    first, last = mention
    return np.array([*(max(start, first) < min(end, last) for start, end in spans), False])


def covered_bytes(text: str, spans: Sequence[Span]) -> NDArray[np.int64]:
    """Return the bytes that each of a sentence's targets covers, int64 (k + 1,); their sum is the text's and 1.

    A token covers the text from the end of the one before it, the end of the sentence the rest and one byte more.
    """
    ends = np.maximum.accumulate(np.array([0, *(end for _, end in spans)], dtype=np.int64))
    bytes_before = np.cumsum([0, *(len(character.encode()) for character in text)])
    return np.diff(np.append(bytes_before[ends], bytes_before[-1] + 1))


_SIZE_CLASSES = (1, 2, 4, 8, 16, 32, 64)
"""The smallest number of sentences of each class of users."""
_NAME_CLASSES = (0, 1, 2, 4, 8, 16, 32, 64, 128)
"""The smallest number of sentences in training of each class of names."""

_TENTHS = np.arange(1, 10) / 10
_EVERYBODY = 0  # number of the stream of all users; that of a class is its smallest number of sentences
_NAMES_FROM = 1 << 20  # and that of a class of names, by its smallest number of mentions

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Ratio:
    """A figure that is a ratio of sums over sentences, or an increasing function of it.

    Attributes:
        above, below: numerator and denominator of each sentence, float64 (n,).
    """

    name: str
    above: FloatArray
    below: FloatArray
    function: Callable[[float], float] = float


def task_ratios(model: LanguageModel, measured: HeldOut, sizes: TextSizes) -> list[Ratio]:
    """Return the figures of the model's task, from what n sentences measured; the first one is that of deciles."""
    targets = measured.predictions.astype(float)
    if not isinstance(model.task, NextWord):
        return [Ratio("error", measured.wrong.astype(float), targets)]
    nats = np.where(sizes.whole, measured.nats, 0.0)
    return [
        Ratio("bits_per_byte", nats / math.log(2), sizes.bytes.astype(float)),
        Ratio("perplexity_per_word", nats, sizes.words.astype(float), _exp),
        Ratio("perplexity_per_token", measured.nats, targets, _exp),
        Ratio("accuracy", targets - measured.wrong, targets),
    ]


def summarise(
    model: LanguageModel,
    corpus: Corpus,
    train_split: str,
    split: str,
    sentences: HeldOutSentences,
    measured: HeldOut,
    seed: int,
) -> HeldOutFigures | None:
    """Return what an evaluation of a model on a held-out split says by user.

    Args:
        sentences: the n sentences of the evaluation.
        seed: of the run; the resamples follow from it.

    Returns:
        Intervals, deciles, classes of users and kinds of tokens; None if there is no sentence or a loss is not finite.
    """
    if not len(sentences.ids) or not np.isfinite(measured.nats).all():
        return None
    users, of_sentence = np.unique(corpus.ownership(split).user_of_sentence[sentences.ids], return_inverse=True)
    counts = corpus.ownership(split).sentences_per_user[users]
    ratios = task_ratios(model, measured, sentences.sizes)
    people = _Users(of_sentence, seed)
    tokens, parts = _Tokens.of(model, corpus, train_split, split, sentences, measured), {}
    if tokens is not None:
        parts = tokens.parts()
    elif not isinstance(model.task, NextWord):
        parts = _classified(corpus, split, sentences, measured)
    return HeldOutFigures(
        users=len(users),
        sentences=len(sentences.ids),
        cut=int((~sentences.sizes.whole).sum()),
        interval=METHOD,
        resamples=RESAMPLES,
        metric=ratios[0].name,
        figures=people.figures(ratios, _EVERYBODY),
        deciles=people.deciles(ratios[0]),
        by_sentences=people.by_size(ratios[0], counts),
        by_mention={
            name: TextPart(share, people.figures(kind, _EVERYBODY)) for name, (kind, share) in parts.items() if share
        },
        by_training_mentions=tokens.by_training_mentions(people) if tokens and corpus.has_text else [],
    )


def sums_by_user(ownership: Ownership, ids: NDArray[np.int64], measured: HeldOut) -> dict[str, list[float]]:
    """Return the sums of an evaluation by held-out user, so that runs on the same users compare user by user.

    Args:
        ids: of the n sentences, int64 (n,).

    Returns:
        Lists of one entry a user, in the order of the users' numbers and without these: ``predictions``, the number of
        prediction targets; ``nats``, their total cross-entropy; ``wrong``, how many are not predicted.
    """
    _, of_sentence = np.unique(ownership.user_of_sentence[ids], return_inverse=True)
    columns = {"predictions": measured.predictions, "nats": measured.nats, "wrong": measured.wrong}
    return {name: np.bincount(of_sentence, weights=values).tolist() for name, values in columns.items()}


class _Users:
    """The users of n sentences, over whom figures are summed and resampled."""

    def __init__(self, of_sentence: NDArray[np.int64], seed: int) -> None:
        self._of_sentence = of_sentence
        self._seed = seed

    def sums(self, ratios: Sequence[Ratio]) -> FloatArray:
        """Return numerator and denominator of each ratio by user, float64 (U, 2·k)."""
        columns = [column for ratio in ratios for column in (ratio.above, ratio.below)]
        return np.stack([np.bincount(self._of_sentence, weights=column) for column in columns], axis=1)

    def figures(
        self, ratios: Sequence[Ratio], stream: int, chosen: NDArray[np.bool_] | None = None
    ) -> dict[str, Figure]:
        """Return the ratios over all or the chosen users, with intervals from the stream of that number."""
        sums = self.sums(ratios) if chosen is None else self.sums(ratios)[chosen]
        found = intervals(sums, streams.generator(self._seed, "bootstrap", stream))
        return {r.name: f.mapped(r.function) for r, f in zip(ratios, found, strict=True)}

    def deciles(self, ratio: Ratio) -> list[float]:
        """Return the nine deciles of the figure over users; empty if no user has one."""
        above, below = self.sums([ratio]).T
        known = below > 0
        return np.quantile(above[known] / below[known], _TENTHS).tolist() if known.any() else []

    def by_size(self, ratio: Ratio, counts: NDArray[np.int64]) -> list[CountClass]:
        """Return the figure by class of users with so many sentences in the split; classes without users are absent."""
        classes = np.array([size_class(count) for count in counts])
        rows = []
        for number in np.unique(classes):
            lowest = _SIZE_CLASSES[number]
            highest = _SIZE_CLASSES[number + 1] - 1 if number + 1 < len(_SIZE_CLASSES) else None
            chosen = classes == number
            figure = self.figures([ratio], lowest, chosen)[ratio.name]
            rows.append(CountClass(lowest, highest, int(chosen.sum()), figure))
        return rows


def size_class(sentences: int) -> int:
    """Return the class of a user with so many sentences: 1, 2–3, 4–7, …, 64 and more."""
    return int(np.searchsorted(_SIZE_CLASSES, sentences, side="right")) - 1


Part = tuple[list[Ratio], float]


def _classified(corpus: Corpus, split: str, sentences: HeldOutSentences, measured: HeldOut) -> dict[str, Part]:
    """Return the figures of a classification on sentences with a mention and on all others."""
    named = np.array([float(bool(mentions)) for mentions in _mentions(corpus, split, sentences.ids)])
    wrong, known = measured.wrong, measured.predictions
    return {
        name: ([Ratio("error", kept * wrong, kept * known)], _share(kept * known, known))
        for name, kept in (("with_mention", named), ("without_mention", 1 - named))
    }


@dataclass(frozen=True, eq=False)
class _Tokens:
    """The targets of n sentences, one after another, with their places in the text.

    Attributes:
        sentence: whose target it is, int64 (t,).
        nats, bytes: its loss, and the text that it covers, 0 in a sentence that was cut; float64 (t,).
        raw_nats: its loss in any sentence, float64 (t,).
        named: whether its sentence has a mention, bool (t,).
        in_mention: whether it has a character in a mention, bool (t,).
        mentions_in_training: of that mention, the most often mentioned one of several; -1 elsewhere, and where
            preprocessed text no longer tells whose mention it is.
        mentions: for every mention how often training mentions its name; -1 likewise.
    """

    sentence: NDArray[np.int64]
    nats: FloatArray
    bytes: FloatArray
    raw_nats: FloatArray
    named: NDArray[np.bool_]
    in_mention: NDArray[np.bool_]
    mentions_in_training: NDArray[np.int64]
    mentions: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        corpus: Corpus,
        train_split: str,
        split: str,
        sentences: HeldOutSentences,
        measured: HeldOut,
    ) -> _Tokens | None:
        """Return the targets; None for a classification, or if the tokenizer does not know its tokens' places."""
        texts = corpus.texts(split).take(pa.array(sentences.ids)).to_pylist()
        spans = token_spans(texts, model.tokenizer) if isinstance(model.task, NextWord) else None
        if spans is None or measured.target_nats is None:
            return None
        mentions = _mentions(corpus, split, sentences.ids)
        counts = _by_sentence(corpus, split, sentences.ids, _training_mentions(corpus, train_split, split))
        marks, inside_any, sizes = [], [], []
        for text, said, found, often, targets in zip(
            texts, spans, mentions, counts, measured.predictions.tolist(), strict=True
        ):
            mark, in_mention = np.full(len(said) + 1, -1, dtype=np.int64), np.zeros(len(said) + 1, dtype=np.bool_)
            for mention, count in zip(found, often, strict=True):
                inside = is_entity_token(said, mention)
                in_mention |= inside
                mark[inside] = np.maximum(mark[inside], count)
            marks.append(mark[:targets])  # a cut sentence lacks its last tokens
            inside_any.append(in_mention[:targets])
            sizes.append(covered_bytes(text, said)[:targets])
        sentence = np.repeat(np.arange(len(texts)), measured.predictions)
        whole, nats = sentences.sizes.whole[sentence], measured.target_nats.astype(float)
        named = np.array([bool(found) for found in mentions])[sentence]
        return cls(
            sentence,
            nats * whole,
            np.concatenate(sizes).astype(np.float64) * whole,
            nats,
            named,
            np.concatenate(inside_any),
            np.concatenate(marks),
            np.array([count for often in counts for count in often], dtype=np.int64),
        )

    def parts(self) -> dict[str, Part]:
        """Return the figures of entity tokens and all others, and of sentences with a mention and without."""
        kinds = {"entity_tokens": self.in_mention, "other_tokens": ~self.in_mention}
        kinds |= {"with_mention": self.named, "without_mention": ~self.named}
        return {name: (self._ratios(kept), _share(kept, np.ones(len(kept)))) for name, kept in kinds.items()}

    def by_training_mentions(self, people: _Users) -> list[CountClass]:
        """Return bits per byte of entity tokens by class of their name's mentions in training."""
        rows = []
        for lowest, after in zip(_NAME_CLASSES, (*_NAME_CLASSES[1:], math.inf), strict=True):
            kept = (self.mentions_in_training >= lowest) & (self.mentions_in_training < after)
            if kept.any():
                in_bits, _ = self._ratios(kept)
                members = int(((self.mentions >= lowest) & (self.mentions < after)).sum())
                highest = None if math.isinf(after) else int(after) - 1
                figure = people.figures([in_bits], _NAMES_FROM + lowest)[in_bits.name]
                rows.append(CountClass(lowest, highest, members, figure))
        return rows

    def _ratios(self, kept: NDArray[np.bool_]) -> list[Ratio]:
        def summed(values: FloatArray) -> FloatArray:
            size = int(self.sentence.max(initial=-1)) + 1
            return np.bincount(self.sentence[kept], weights=values[kept], minlength=size).astype(np.float64)

        return [
            Ratio("bits_per_byte", summed(self.nats) / math.log(2), summed(self.bytes)),
            Ratio("perplexity_per_token", summed(self.raw_nats), summed(np.ones(len(kept))), _exp),
        ]


def _training_mentions(corpus: Corpus, train: str, split: str) -> list[int]:
    """Return for every mention of ``split`` in how many sentences of ``train`` its name occurs; -1 if not known."""
    table = corpus.entities(train)
    often = dict(zip(table["entity"].tolist(), table["sentences"].tolist(), strict=True))
    return [-1 if key is None else often.get(key, 0) for key in keys_of_mentions(corpus, split)]


def _mentions(corpus: Corpus, split: str, ids: NDArray[np.int64]) -> list[list[Span]]:
    """Return the characters of the mentions in each of the sentences ``ids``, which are sorted."""
    starts, ends = (corpus.mentions(split).column(name).to_pylist() for name in ("start", "end"))
    return _by_sentence(corpus, split, ids, list(zip(starts, ends, strict=True)))


def _by_sentence(corpus: Corpus, split: str, ids: NDArray[np.int64], values: Sequence[T]) -> list[list[T]]:
    """Return the values of all mentions of a split, one each, for each of the sentences ``ids``, which are sorted."""
    sentence = corpus.mentions(split).column("sentence").to_numpy()
    places = np.searchsorted(ids, sentence)
    grouped: list[list[T]] = [[] for _ in ids]
    for row in np.flatnonzero((places < len(ids)) & (ids[np.minimum(places, len(ids) - 1)] == sentence)).tolist():
        grouped[places[row]].append(values[row])
    return grouped


def _share(part: NDArray[Any], whole: NDArray[Any]) -> float:
    return float(part.sum() / whole.sum()) if whole.sum() else math.nan


def _exp(loss: float) -> float:
    return math.exp(loss) if not loss >= 700 else math.inf
