"""Score a tagger against a gold corpus: pure functions from mentions to metrics.

There are two sets of metrics. *Does it find names as an annotator does?* Precision, recall and F1, matched exactly, by
overlap, and by token, with and without the label. *Does it find what must be protected?* Here the label does not
matter, and an extra mention costs nothing but data: the shares of sensitive sentences that are flagged, of mentions
that overlap a tagged one, of mentions whose entity key is found in the sentence, and of entities whose key is found in
all of their sentences.

Every metric is a ratio of two sums over *clusters* (users or documents), so one bootstrap serves all.

>>> tally = Tally(frozenset({"PER"}))
>>> ada, bo = Mention(0, 3, "PER"), Mention(8, 10, "PER")
>>> tally.add(ScoredSentence("ann", "Ada met Bo.", gold=(ada, bo), tagged=(ada,)))
>>> metrics = figures(tally, resamples=10)
>>> metrics["exact", "any", "precision"].value, metrics["exact", "any", "recall"].value
(1.0, 0.5)
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from fl_sim.data_prep.identity import entity_key
from fl_sim.data_prep.records import CorpusError, Mention
from fl_sim.data_prep.taggers.categories import Category, category_of

UNKNOWN_NAME = "NAME"
"""The kind of a mention whose tagger does not tell persons from places; it matches a gold mention by place alone."""

ANY = "any"
"""The kind of label-agnostic and overall metrics."""

MATCHES = ("exact", "partial", "token")

_KINDS = {
    **dict.fromkeys((Category.LOC, Category.GPE, Category.FAC), "LOC"),
    **dict.fromkeys(
        (
            Category.MISC,
            Category.NORP,
            Category.PRODUCT,
            Category.EVENT,
            Category.LAW,
            Category.LANGUAGE,
            Category.WORK_OF_ART,
        ),
        "MISC",
    ),
    Category.PERSON: "PER",
    Category.ORG: "ORG",
}
_TOKEN = re.compile(r"\S+")
_Sums = Mapping[tuple[str, ...], Mapping[int, float]]


@dataclass(frozen=True, slots=True)
class ScoredSentence:
    """A sentence with its gold mentions and those of a tagger.

    Attributes:
        cluster: the user or document.
        text: any text.
        gold: the mentions of the gold corpus.
        tagged: the mentions of the tagger.
    """

    cluster: str
    text: str
    gold: tuple[Mention, ...]
    tagged: tuple[Mention, ...]


def kind_of(label: str) -> str:
    """Return the kind of a label: PER, ORG, LOC (with GPE and FAC), MISC (all other names), else its category.

    This is the coarsest of the schemes, CoNLL-2003's.
    """
    if label.strip().upper() == UNKNOWN_NAME:
        return UNKNOWN_NAME
    category = category_of(label)
    return _KINDS.get(category, category.value)


@dataclass
class Tally:
    """Sums per metric and cluster: :meth:`add` all sentences, then compute :func:`figures`.

    Attributes:
        gold_kinds: the kinds that the gold corpus marks. A tagged mention of another kind (a date, if only names are
            marked) is left out of precision, recall and F1, but counts in the metrics of what is protected.
        clusters: cluster → number.
        sentences: added so far.
        outside_scheme: tagged mentions of other kinds.
    """

    gold_kinds: frozenset[str]
    clusters: dict[str, int] = field(default_factory=dict)
    sentences: int = 0
    outside_scheme: int = 0
    _sums: dict[tuple[str, ...], Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    _entities: dict[str, _EntitySeen] = field(default_factory=dict)

    def add(self, sentence: ScoredSentence) -> None:
        """Add one sentence."""
        cluster = self.clusters.setdefault(sentence.cluster, len(self.clusters))
        self.sentences += 1
        comparable = tuple(m for m in sentence.tagged if self._in_scheme(m.label))
        self.outside_scheme += len(sentence.tagged) - len(comparable)
        self._add_matches(sentence, comparable, cluster)
        self._add_hiding(sentence, cluster)

    @property
    def num_entities(self) -> int:
        """Number of gold entities so far."""
        return len(self._entities)

    def ratios(self) -> dict[tuple[str, ...], tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Return metric → numerator and denominator per cluster, each float64 (clusters,).

        Metrics are ``(match, kind, "precision" | "recall")``, where ``exact``, ``partial`` and ``token`` need the same
        kind and ``exact_any_label`` and so on do not, and the four of :data:`HIDING`, with ``flag_precision``.
        """
        sums: _Sums = {**self._sums, **self._entity_sums()}
        names = [*self._match_names(), *((name,) for name in HIDING), ("flag_precision",)]
        return {name: (self._vector(sums, (*name, "hit")), self._vector(sums, (*name, "of"))) for name in names}

    def _in_scheme(self, label: str) -> bool:
        kind = kind_of(label)
        return kind == UNKNOWN_NAME or kind in self.gold_kinds

    def _add_matches(self, sentence: ScoredSentence, tagged: tuple[Mention, ...], cluster: int) -> None:
        for match, units in _UNITS.items():
            for suffix, kind in (("", kind_of), ("_any_label", _any_kind)):
                gold_units, tagged_units = units(sentence.text, sentence.gold, kind), units(sentence.text, tagged, kind)
                for side, counted, others in (
                    ("recall", gold_units, tagged_units),
                    ("precision", tagged_units, gold_units),
                ):
                    for unit in counted:
                        hit = _is_matched(unit, others, match)
                        for name in {unit[-1], ANY}:
                            self._count((match + suffix, name, side), hit, cluster)

    def _add_hiding(self, sentence: ScoredSentence, cluster: int) -> None:
        flagged = bool(sentence.tagged)
        if sentence.gold:
            self._count(("sensitive_sentences",), flagged, cluster)
        if flagged:
            self._count(("flag_precision",), bool(sentence.gold), cluster)
        keys = {entity_key(sentence.text[m.start : m.end]) for m in sentence.tagged}
        for mention in set(sentence.gold):
            hidden = any(_overlap(mention, other) for other in sentence.tagged)
            self._count(("mentions_hidden",), hidden, cluster)
            key = entity_key(sentence.text[mention.start : mention.end])
            self._count(("mentions_with_coin",), key in keys, cluster)
            self._entities.setdefault(key, _EntitySeen()).add(cluster, key in keys)

    def _count(self, name: tuple[str, ...], hit: bool, cluster: int) -> None:
        self._sums[(*name, "of")][cluster] += 1
        if hit:
            self._sums[(*name, "hit")][cluster] += 1

    def _entity_sums(self) -> _Sums:
        """Return the sums over entities: each weighs 1, divided equally among the clusters that mention it."""
        hit: dict[int, float] = defaultdict(float)
        of: dict[int, float] = defaultdict(float)
        for entity in self._entities.values():
            for cluster in entity.clusters:
                of[cluster] += 1 / len(entity.clusters)
                hit[cluster] += entity.always / len(entity.clusters)
        return {("entities_covered", "hit"): hit, ("entities_covered", "of"): of}

    def _match_names(self) -> Iterator[tuple[str, ...]]:
        for match in MATCHES:
            for side in ("precision", "recall"):
                for kind in (ANY, *sorted(self.gold_kinds)):
                    yield (match, kind, side)
                yield (f"{match}_any_label", ANY, side)

    def _vector(
        self, sums: Mapping[tuple[str, ...], Mapping[int, float]], name: tuple[str, ...]
    ) -> NDArray[np.float64]:
        vector = np.zeros(len(self.clusters))
        for cluster, amount in sums.get(name, {}).items():
            vector[cluster] = amount
        return vector


HIDING = ("sensitive_sentences", "mentions_hidden", "mentions_with_coin", "entities_covered")
"""The metrics that matter for privacy, shares of what the gold corpus marks:

sensitive_sentences: sentences with a gold mention in which the tagger marks anything.
mentions_hidden: gold mentions that a tagged mention overlaps.
mentions_with_coin: gold mentions whose entity key the tagger finds in their sentence, which is sampled with it.
entities_covered: gold entities whose key the tagger finds in every sentence that mentions them.
"""


@dataclass
class _EntitySeen:
    clusters: set[int] = field(default_factory=set)
    always: bool = True

    def add(self, cluster: int, sampled_with_entity: bool) -> None:
        self.clusters.add(cluster)
        self.always = self.always and sampled_with_entity


class Estimate(BaseModel):
    """A ratio in [0, 1] with its 95 % bootstrap interval; None where nothing is counted.

    The interval is None with fewer than two clusters, because only clusters vary.

    >>> Estimate(value=0.9, low=0.85, high=0.94).model_dump()
    {'value': 0.9, 'low': 0.85, 'high': 0.94}
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    value: float | None = Field(ge=0, le=1)
    low: float | None = Field(ge=0, le=1)
    high: float | None = Field(ge=0, le=1)


def figures(tally: Tally, *, resamples: int = 1000, seed: int = 0) -> dict[tuple[str, ...], Estimate]:
    """Return every metric of ``tally``, with F1 under ``(match, kind, "f1")``.

    Intervals are percentile intervals of a cluster bootstrap: whole clusters are drawn with replacement, because the
    sentences of a user are not independent.

    Args:
        tally: of all sentences.
        resamples: of the bootstrap.
        seed: of the bootstrap.

    Raises:
        CorpusError: ``resamples`` is less than 1.
    """
    check_resamples(resamples)
    ratios = tally.ratios()
    columns = np.stack([part for pair in ratios.values() for part in pair], axis=1)
    sums = _resample(columns, resamples, seed)
    replicates = dict(zip(ratios, np.moveaxis(sums.reshape(resamples, -1, 2), 1, 0), strict=True))
    points = {name: np.array([[hit.sum(), of.sum()]]) for name, (hit, of) in ratios.items()}
    enough = len(tally.clusters) > 1
    metrics = {name: _estimate(_ratio(points[name]), _ratio(replicates[name]), enough) for name in ratios}
    for name in [name for name in ratios if name[-1] == "precision"]:
        recall = (*name[:-1], "recall")
        f1 = [_f1(_ratio(ratio[name]), _ratio(ratio[recall])) for ratio in (points, replicates)]
        metrics[(*name[:-1], "f1")] = _estimate(f1[0], f1[1], enough)
    return metrics


def check_resamples(resamples: int) -> None:
    """Check that there is at least one, else raise :class:`CorpusError`."""
    if resamples < 1:
        raise CorpusError(f"resamples {resamples} must be at least 1")


_Unit = tuple[int, int, str]
_Kind = Callable[[str], str]


def _any_kind(label: str) -> str:
    return ANY


def _spans(text: str, mentions: Iterable[Mention], kind: _Kind) -> set[_Unit]:
    return {(mention.start, mention.end, kind(mention.label)) for mention in mentions}


def _tokens(text: str, mentions: Collection[Mention], kind: _Kind) -> set[_Unit]:
    """Return the tokens (by white space) that a mention touches."""
    if not mentions:
        return set()
    tokens = [match.span() for match in _TOKEN.finditer(text)]
    return {
        (start, end, kind(mention.label))
        for mention in mentions
        for start, end in tokens
        if start < mention.end and mention.start < end
    }


_UNITS: Mapping[str, Callable[[str, tuple[Mention, ...], _Kind], set[_Unit]]] = {
    "exact": _spans,
    "partial": _spans,
    "token": _tokens,
}


def _is_matched(unit: _Unit, others: set[_Unit], match: str) -> bool:
    if match != "partial":
        return unit in others
    start, end, kind = unit
    return any(other[2] == kind and start < other[1] and other[0] < end for other in others)


def _overlap(one: Mention, other: Mention) -> bool:
    return one.start < other.end and other.start < one.end


def _resample(columns: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    """Return column sums over clusters drawn with replacement.

    Args:
        columns: float64 (clusters, columns).
        resamples: their number.
        seed: of the draws.

    Returns:
        float64 (resamples, columns).
    """
    rng = np.random.default_rng(seed)
    clusters = len(columns)
    sums = np.zeros((resamples, columns.shape[1]))
    for row in range(resamples if clusters else 0):
        sums[row] = np.bincount(rng.integers(clusters, size=clusters), minlength=clusters) @ columns
    return sums


def _ratio(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numerator over denominator of sums (…, 2); NaN where nothing is counted."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(sums[..., 1] > 0, sums[..., 0] / sums[..., 1], np.nan)


def _f1(precision: NDArray[np.float64], recall: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the harmonic mean; 0 where both are 0, and where one is undefined (nothing tagged, or nothing to tag)."""
    total = np.nan_to_num(precision) + np.nan_to_num(recall)
    with np.errstate(divide="ignore", invalid="ignore"):
        f1 = np.where(total > 0, 2 * np.nan_to_num(precision) * np.nan_to_num(recall) / total, 0.0)
    return np.where(np.isnan(precision) & np.isnan(recall), np.nan, f1)


def _estimate(point: NDArray[np.float64], replicates: NDArray[np.float64], enough: bool) -> Estimate:
    if np.isnan(point[0]):
        return Estimate(value=None, low=None, high=None)
    known = replicates[~np.isnan(replicates)]
    if not enough or not len(known):
        return Estimate(value=float(point[0]), low=None, high=None)
    low, high = np.quantile(known, [0.025, 0.975])
    return Estimate(value=float(point[0]), low=float(low), high=float(high))
