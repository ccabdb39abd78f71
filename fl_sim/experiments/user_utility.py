"""What the last evaluation of a run says by user: intervals, deciles, users with few and many sentences, entity tokens.

Everything is computed from the losses of that evaluation. The figures are about private text, without noise: like all
held-out metrics they are for the corpus's owner, and no ε covers them.

>>> covers = [(0, 3), (4, 9), (9, 10)]
>>> is_entity_token(covers, [(4, 9)]).tolist(), covered_bytes("Ada läuft.", covers).tolist()
([False, True, False, False], [3, 7, 1, 1])

>>> size_class(1), size_class(3), size_class(200)
(0, 1, 6)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.tasks import HeldOut, NextWord, TextSizes
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.evaluation import HeldOutSentences
from fl_sim.reporting.bootstrap import METHOD, RESAMPLES, Figure, intervals
from fl_sim.reporting.held_out import HeldOutFigures, SizeClass, TextPart
from fl_sim.strategies.primitives import streams

Span = tuple[int, int]
"""First character, and the one after the last."""


def token_spans(texts: Sequence[str], tokenizer: Any) -> list[list[Span]] | None:
    """Return the characters of every token of every text, without special tokens.

    Args:
        texts: the sentences.
        tokenizer: of transformers, as the model reads its texts.

    Returns:
        A list per text; None if the tokenizer does not know its tokens' places.
    """
    if not getattr(tokenizer, "is_fast", False):
        return None
    options = {"add_special_tokens": False, "split_special_tokens": True, "return_offsets_mapping": True}
    return tokenizer(list(texts), **options)["offset_mapping"] if texts else []


def is_entity_token(spans: Sequence[Span], mentions: Sequence[Span]) -> NDArray[np.bool_]:
    """Return which targets of a sentence have a character in a mention, bool (k + 1,); the last is its end.

    Args:
        spans: the characters of its k tokens.
        mentions: those of its mentions.
    """
    overlaps = [any(max(start, first) < min(end, last) for first, last in mentions) for start, end in spans]
    return np.array([*overlaps, False])


def covered_bytes(text: str, spans: Sequence[Span]) -> NDArray[np.int64]:
    """Return the bytes that each of a sentence's targets covers, int64 (k + 1,); their sum is the text's and 1.

    A token covers the text from the end of the one before it, the end of the sentence the rest and one byte more.
    """
    ends = np.maximum.accumulate(np.array([0, *(end for _, end in spans)], dtype=np.int64))
    bytes_before = np.cumsum([0, *(len(character.encode()) for character in text)])
    return np.diff(np.append(bytes_before[ends], bytes_before[-1] + 1))


_SIZE_CLASSES = (1, 2, 4, 8, 16, 32, 64)
"""The smallest number of sentences of each class of users."""

_TENTHS = np.arange(1, 10) / 10
_EVERYBODY = 0  # number of the stream of all users; that of a class is its smallest number of sentences

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Ratio:
    """A figure that is a ratio of sums over sentences, or an increasing function of it.

    Attributes:
        name: of the figure.
        above, below: numerator and denominator of each sentence, float64 (n,).
        function: of the ratio.
    """

    name: str
    above: FloatArray
    below: FloatArray
    function: Callable[[float], float] = float


def task_ratios(model: LanguageModel, measured: HeldOut, sizes: TextSizes) -> list[Ratio]:
    """Return the figures of the model's task; the first one is that of deciles.

    Args:
        model: its task decides.
        measured: losses and errors of n sentences.
        sizes: of their texts.
    """
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
    model: LanguageModel, corpus: Corpus, split: str, sentences: HeldOutSentences, measured: HeldOut, seed: int
) -> HeldOutFigures | None:
    """Return what an evaluation says by user.

    Args:
        model: that was evaluated.
        corpus: of the run.
        split: the held-out split.
        sentences: the n sentences of the evaluation.
        measured: the model's losses on them.
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
    parts = _parts(model, corpus, split, sentences, measured)
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
        by_mention={name: TextPart(share, people.figures(kind, _EVERYBODY)) for name, (kind, share) in parts.items()},
    )


def sums_by_user(ownership: Ownership, ids: NDArray[np.int64], measured: HeldOut) -> dict[str, list[float]]:
    """Return the sums of an evaluation by held-out user, so that runs on the same users compare user by user.

    Args:
        ownership: of the held-out split.
        ids: of the n sentences, int64 (n,).
        measured: the model's losses and errors on them.

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

    def by_size(self, ratio: Ratio, counts: NDArray[np.int64]) -> list[SizeClass]:
        """Return the figure by class of users with so many sentences in the split; classes without users are absent."""
        classes = np.array([size_class(count) for count in counts])
        rows = []
        for number in np.unique(classes):
            lowest = _SIZE_CLASSES[number]
            highest = _SIZE_CLASSES[number + 1] - 1 if number + 1 < len(_SIZE_CLASSES) else None
            chosen = classes == number
            figure = self.figures([ratio], lowest, chosen)[ratio.name]
            rows.append(SizeClass(lowest, highest, int(chosen.sum()), figure))
        return rows


def size_class(sentences: int) -> int:
    """Return the class of a user with so many sentences: 1, 2–3, 4–7, …, 64 and more."""
    return int(np.searchsorted(_SIZE_CLASSES, sentences, side="right")) - 1


Part = tuple[list[Ratio], float]


def _parts(
    model: LanguageModel, corpus: Corpus, split: str, sentences: HeldOutSentences, measured: HeldOut
) -> dict[str, Part]:
    """Return the figures on mentions and on all else: on tokens, or for classification on sentences with a mention.

    Each part has its ratios, and its share of all tokens or sentences; empty if the tokens' places are unknown.
    """
    mentions = _mentions(corpus, split, sentences.ids)
    if not isinstance(model.task, NextWord):
        named = np.array([float(bool(spans)) for spans in mentions])
        parts = {"with_mention": named, "without_mention": 1 - named}
        wrong, known = measured.wrong, measured.predictions
        return {
            name: ([Ratio("error", kept * wrong, kept * known)], _share(kept * known, known))
            for name, kept in parts.items()
        }
    texts = corpus.texts(split).take(pa.array(sentences.ids)).to_pylist()
    spans = token_spans(texts, model.tokenizer)
    return {} if spans is None else _token_parts(texts, spans, mentions, sentences.sizes, measured)


def _token_parts(
    texts: Sequence[str],
    spans: Sequence[Sequence[Span]],
    mentions: Sequence[Sequence[Span]],
    sizes: TextSizes,
    measured: HeldOut,
) -> dict[str, Part]:
    """Return the figures of entity tokens and of all others."""
    if measured.target_nats is None:
        return {}
    numbers = np.repeat(np.arange(len(texts)), measured.predictions)
    cut = [slice(0, count) for count in measured.predictions]  # a cut sentence lacks its last tokens
    marks = [is_entity_token(s, m)[kept] for s, m, kept in zip(spans, mentions, cut, strict=True)]
    size = [covered_bytes(text, s)[kept] for text, s, kept in zip(texts, spans, cut, strict=True)]
    entity, bytes_ = np.concatenate(marks), np.concatenate(size) * sizes.whole[numbers]
    nats = measured.target_nats.astype(float)
    whole_nats = nats * sizes.whole[numbers]

    def summed(values: NDArray[Any], kept: NDArray[np.bool_]) -> FloatArray:
        return np.bincount(numbers[kept], weights=values[kept], minlength=len(texts)).astype(np.float64)

    def part(kept: NDArray[np.bool_]) -> Part:
        in_bits = Ratio("bits_per_byte", summed(whole_nats, kept) / math.log(2), summed(bytes_, kept))
        per_token = Ratio("perplexity_per_token", summed(nats, kept), summed(np.ones(len(nats)), kept), _exp)
        return [in_bits, per_token], _share(kept, np.ones(len(kept)))

    return {"entity_tokens": part(entity), "other_tokens": part(~entity)}


def _mentions(corpus: Corpus, split: str, ids: NDArray[np.int64]) -> list[list[Span]]:
    """Return the characters of the mentions in each of the sentences ``ids``, which are sorted."""
    table = corpus.mentions(split)
    sentence, starts, ends = (table.column(name).to_numpy() for name in ("sentence", "start", "end"))
    places = np.searchsorted(ids, sentence)
    spans: list[list[Span]] = [[] for _ in ids]
    for row in np.flatnonzero((places < len(ids)) & (ids[np.minimum(places, len(ids) - 1)] == sentence)):
        spans[places[row]].append((int(starts[row]), int(ends[row])))
    return spans


def _share(part: NDArray[Any], whole: NDArray[Any]) -> float:
    return float(part.sum() / whole.sum()) if whole.sum() else math.nan


def _exp(loss: float) -> float:
    return math.exp(loss) if not loss >= 700 else math.inf
