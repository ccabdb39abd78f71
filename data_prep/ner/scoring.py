"""How well a tagger finds the entities that a gold corpus marks: pure functions from mentions to figures.

Two questions, two sets of figures. *Does it find names as an annotator does?* Precision, recall and F1, matched
exactly, by overlap, and by token, with and without the label. *Does it hide what has to be hidden?* Here the label
does not matter and a mention too many costs nothing but data: the share of sensitive sentences that are flagged, of
mentions under a flag, of mentions whose entity has its coin, and of entities with their coin in each of their
sentences.

Every figure is a ratio of two sums over *clusters* (users or documents), so one bootstrap serves them all.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.identity import entity_key
from fl_sim.data_prep.records import CorpusError, Mention
from fl_sim.data_prep.taggers.categories import Category, category_of

UNKNOWN_NAME = "NAME"
"""The kind of a mention whose tagger cannot tell people from places; it matches a gold mention by its place alone."""

ANY = "any"
"""The kind under which label-agnostic and overall figures stand."""

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
    """One sentence with the mentions that a gold corpus marks and those that a tagger found; ``cluster`` owns it."""

    cluster: str
    text: str
    gold: tuple[Mention, ...]
    tagged: tuple[Mention, ...]


def kind_of(label: str) -> str:
    """What a label is compared as: PER, ORG, LOC (with GPE and FAC), MISC (all other names), else its category.

    Schemes differ in how finely they divide; this is the coarsest of them, CoNLL-2003's.
    """
    if label.strip().upper() == UNKNOWN_NAME:
        return UNKNOWN_NAME
    category = category_of(label)
    return _KINDS.get(category, category.value)


@dataclass
class Tally:
    """Sums per figure and cluster: :meth:`add` sentence after sentence, then read the figures.

    ``gold_kinds`` are the kinds that the gold corpus marks at all. A found mention of any other kind (a date, where
    only names are marked) is neither right nor wrong and left out of precision, recall and F1; it counts where
    the question is what is hidden.
    """

    gold_kinds: frozenset[str]
    clusters: dict[str, int] = field(default_factory=dict)
    sentences: int = 0
    outside_scheme: int = 0
    _sums: dict[tuple[str, ...], Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    _entities: dict[str, _EntitySeen] = field(default_factory=dict)

    def add(self, sentence: ScoredSentence) -> None:
        """Count one sentence."""
        cluster = self.clusters.setdefault(sentence.cluster, len(self.clusters))
        self.sentences += 1
        comparable = tuple(m for m in sentence.tagged if self._in_scheme(m.label))
        self.outside_scheme += len(sentence.tagged) - len(comparable)
        self._add_matches(sentence, comparable, cluster)
        self._add_hiding(sentence, cluster)

    @property
    def num_entities(self) -> int:
        """How many gold entities were met."""
        return len(self._entities)

    def ratios(self) -> dict[tuple[str, ...], tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Name → numerator and denominator per cluster, each float64 (clusters,).

        Names are ``(match, kind, "precision" | "recall")``, where ``exact``, ``partial`` and ``token`` need the same
        kind and ``exact_any_label`` and so on do not, and the four of :data:`HIDING`, with ``flag_precision``.
        """
        sums: _Sums = {**self._sums, **self._entity_sums()}
        names = [*self._match_names(), *((name,) for name in HIDING), ("flag_precision",)]
        return {name: (self._vector(sums, (*name, "hit")), self._vector(sums, (*name, "of"))) for name in names}

    def _in_scheme(self, label: str) -> bool:
        kind = kind_of(label)
        return kind == UNKNOWN_NAME or kind in self.gold_kinds

    def _add_matches(self, sentence: ScoredSentence, found: tuple[Mention, ...], cluster: int) -> None:
        for match, units in _UNITS.items():
            for suffix, kind in (("", kind_of), ("_any_label", _any_kind)):
                gold_units, found_units = units(sentence.text, sentence.gold, kind), units(sentence.text, found, kind)
                for side, these, others in (
                    ("recall", gold_units, found_units),
                    ("precision", found_units, gold_units),
                ):
                    for unit in these:
                        hit = _is_matched(unit, others, match)
                        for name in {unit[-1], ANY}:
                            self._count((match + suffix, name, side), hit, cluster)

    def _add_hiding(self, sentence: ScoredSentence, cluster: int) -> None:
        flagged = bool(sentence.tagged)
        if sentence.gold:
            self._count(("sensitive_sentences",), flagged, cluster)
        if flagged:
            self._count(("flag_precision",), bool(sentence.gold), cluster)
        uniforms = {entity_key(sentence.text[m.start : m.end]) for m in sentence.tagged}
        for mention in set(sentence.gold):
            hidden = any(_overlap(mention, other) for other in sentence.tagged)
            self._count(("mentions_hidden",), hidden, cluster)
            key = entity_key(sentence.text[mention.start : mention.end])
            self._count(("mentions_with_coin",), key in uniforms, cluster)
            self._entities.setdefault(key, _EntitySeen()).add(cluster, key in uniforms)

    def _count(self, name: tuple[str, ...], hit: bool, cluster: int) -> None:
        self._sums[(*name, "of")][cluster] += 1
        if hit:
            self._sums[(*name, "hit")][cluster] += 1

    def _entity_sums(self) -> _Sums:
        """An entity weighs 1, in equal parts in the clusters that mention it, and is right or wrong as a whole."""
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
"""What matters for privacy, each a share of what gold marks:

sensitive_sentences: sentences with a gold mention that are flagged, by a mention of any kind at any place.
mentions_hidden: gold mentions that a found mention overlaps.
mentions_with_coin: gold mentions whose entity is found in their sentence under the same key, so that it has its coin.
entities_covered: gold entities that have their coin in every sentence that mentions them.
"""


@dataclass
class _EntitySeen:
    clusters: set[int] = field(default_factory=set)
    always: bool = True

    def add(self, cluster: int, sampled_with_entity: bool) -> None:
        self.clusters.add(cluster)
        self.always = self.always and sampled_with_entity


@dataclass(frozen=True)
class Figure:
    """A ratio in [0, 1] with the 95 % interval of the bootstrap; None where nothing is counted.

    The interval is None with fewer than two clusters: they are all that could vary.
    """

    value: float | None
    low: float | None
    high: float | None

    def record(self) -> dict[str, float | None]:
        return {"value": self.value, "low": self.low, "high": self.high}


def figures(tally: Tally, *, resamples: int = 1000, seed: int = 0) -> dict[tuple[str, ...], Figure]:
    """Every figure of ``tally``, F1 included under ``(match, kind, "f1")``.

    Intervals are percentile intervals of a cluster bootstrap: whole clusters are drawn with replacement, as many as
    there are, ``resamples`` times, from a generator of ``seed``; sentences of one user are not independent, so they
    are drawn together. An entity's share of an interval lies with the clusters that mention it.

    Raises:
        CorpusError: ``resamples`` is less than 1.
    """
    check_resamples(resamples)
    ratios = tally.ratios()
    columns = np.stack([part for pair in ratios.values() for part in pair], axis=1)
    drawn = _resampled(columns, resamples, seed)
    replicates = dict(zip(ratios, np.moveaxis(drawn.reshape(resamples, -1, 2), 1, 0), strict=True))
    points = {name: np.array([[hit.sum(), of.sum()]]) for name, (hit, of) in ratios.items()}
    enough = len(tally.clusters) > 1
    made = {name: _figure(_ratio(points[name]), _ratio(replicates[name]), enough) for name in ratios}
    for name in [name for name in ratios if name[-1] == "precision"]:
        recall = (*name[:-1], "recall")
        f1 = [_f1(_ratio(sums[name]), _ratio(sums[recall])) for sums in (points, replicates)]
        made[(*name[:-1], "f1")] = _figure(f1[0], f1[1], enough)
    return made


def check_resamples(resamples: int) -> None:
    """Raise :class:`CorpusError` for fewer than one."""
    if resamples < 1:
        raise CorpusError(f"resamples {resamples} must be at least 1")


_Unit = tuple[int, int, str]
_Kind = Callable[[str], str]


def _any_kind(label: str) -> str:
    return ANY


def _spans(text: str, mentions: Iterable[Mention], kind: _Kind) -> set[_Unit]:
    return {(mention.start, mention.end, kind(mention.label)) for mention in mentions}


def _tokens(text: str, mentions: Collection[Mention], kind: _Kind) -> set[_Unit]:
    """The tokens (by white space) that a mention touches."""
    if not mentions:
        return set()
    tokens = [found.span() for found in _TOKEN.finditer(text)]
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


def _resampled(columns: NDArray[np.float64], resamples: int, seed: int) -> NDArray[np.float64]:
    """Column sums (resamples, columns) over clusters drawn with replacement."""
    rng = np.random.default_rng(seed)
    clusters = len(columns)
    sums = np.zeros((resamples, columns.shape[1]))
    for row in range(resamples if clusters else 0):
        sums[row] = np.bincount(rng.integers(clusters, size=clusters), minlength=clusters) @ columns
    return sums


def _ratio(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numerator over denominator of ``(…, 2)``; NaN where nothing is counted."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(sums[..., 1] > 0, sums[..., 0] / sums[..., 1], np.nan)


def _f1(precision: NDArray[np.float64], recall: NDArray[np.float64]) -> NDArray[np.float64]:
    """Their harmonic mean; 0 where both are, and where one is undefined (nothing found, or nothing to find)."""
    total = np.nan_to_num(precision) + np.nan_to_num(recall)
    with np.errstate(divide="ignore", invalid="ignore"):
        f1 = np.where(total > 0, 2 * np.nan_to_num(precision) * np.nan_to_num(recall) / total, 0.0)
    return np.where(np.isnan(precision) & np.isnan(recall), np.nan, f1)


def _figure(point: NDArray[np.float64], replicates: NDArray[np.float64], enough: bool) -> Figure:
    if np.isnan(point[0]):
        return Figure(None, None, None)
    known = replicates[~np.isnan(replicates)]
    if not enough or not len(known):
        return Figure(float(point[0]), None, None)
    low, high = np.quantile(known, [0.025, 0.975])
    return Figure(float(point[0]), float(low), float(high))
