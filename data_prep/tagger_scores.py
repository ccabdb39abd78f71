"""Score a tagger against a gold corpus: pure functions from mentions to metrics.

There are two sets of metrics. *Does it find names as an annotator does?* Precision, recall and F1 of exact matches,
with and without the label. *Does it find what must be protected?* (:data:`HIDING`) Here the label does not matter, and
an extra mention costs nothing but data.

Every metric is a ratio of two sums over *clusters* (users or documents), so one bootstrap serves all.

>>> tally = Tally(frozenset({"PER"}))
>>> ada, bo = Mention(0, 3, "PER"), Mention(8, 10, "PER")
>>> tally.add("ann", "Ada met Bo.", gold=(ada, bo), tagged=(ada,))
>>> metrics = figures(tally, resamples=10)
>>> metrics["exact", "any", "precision"].value, metrics["exact", "any", "recall"].value
(1.0, 0.5)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fl_sim.data_prep.identity import entity_key
from fl_sim.data_prep.records import Mention
from fl_sim.data_prep.store.manifest import Record
from fl_sim.data_prep.taggers.categories import NAMES, Category, category_of

UNKNOWN_NAME = "NAME"
"""The kind of a mention whose tagger does not tell persons from places; it matches a gold mention by place alone."""

ANY = "any"
"""The kind of label-agnostic and overall metrics."""

HIDING = ("sensitive_sentences", "mentions_hidden", "mentions_with_coin", "entities_covered")
"""The metrics that matter for privacy, shares of what the gold corpus marks:

sensitive_sentences: sentences with a gold mention in which the tagger marks anything.
mentions_hidden: gold mentions that a tagged mention overlaps.
mentions_with_coin: gold mentions whose entity key the tagger finds in their sentence, which is sampled with it.
entities_covered: gold entities whose key the tagger finds in every sentence that mentions them.
"""

_KINDS = {
    **dict.fromkeys(NAMES, "MISC"),
    **dict.fromkeys((Category.LOC, Category.GPE, Category.FAC), "LOC"),
    Category.PERSON: "PER",
    Category.ORG: "ORG",
}
Name = tuple[str, ...]
"""The name of a metric: (match, kind, "precision" | "recall" | "f1"), or one of :data:`HIDING` or flag_precision."""


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
    _hits: dict[Name, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    _totals: dict[Name, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    _clusters_of: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    _missed: set[str] = field(default_factory=set)

    def add(self, owner: str, text: str, *, gold: tuple[Mention, ...], tagged: tuple[Mention, ...]) -> None:
        """Add a sentence of a user or document, with its gold mentions and those of a tagger."""
        cluster = self.clusters.setdefault(owner, len(self.clusters))
        self.sentences += 1
        in_scheme = [m for m in tagged if kind_of(m.label) in {UNKNOWN_NAME, *self.gold_kinds}]
        self.outside_scheme += len(tagged) - len(in_scheme)
        for match, kind in (("exact", kind_of), ("exact_any_label", lambda _: ANY)):
            true, found = ({(m.start, m.end, kind(m.label)) for m in side} for side in (gold, in_scheme))
            for metric, counted, others in (("recall", true, found), ("precision", found, true)):
                for span in counted:
                    for name in {span[-1], ANY}:
                        self._count((match, name, metric), span in others, cluster)
        if gold:
            self._count(("sensitive_sentences",), bool(tagged), cluster)
        if tagged:
            self._count(("flag_precision",), bool(gold), cluster)
        keys = {entity_key(text[m.start : m.end]) for m in tagged}
        for mention in set(gold):
            hidden = any(mention.start < other.end and other.start < mention.end for other in tagged)
            self._count(("mentions_hidden",), hidden, cluster)
            key = entity_key(text[mention.start : mention.end])
            self._count(("mentions_with_coin",), key in keys, cluster)
            self._clusters_of[key].add(cluster)
            if key not in keys:
                self._missed.add(key)

    @property
    def num_entities(self) -> int:
        """Number of gold entities so far."""
        return len(self._clusters_of)

    def ratios(self) -> dict[Name, NDArray[np.float64]]:
        """Return metric → numerator and denominator per cluster, float64 (clusters, 2)."""
        spans = [("exact", kind) for kind in (ANY, *sorted(self.gold_kinds))] + [("exact_any_label", ANY)]
        names: list[Name] = [(*span, metric) for span in spans for metric in ("precision", "recall")]
        ratios = {}
        for name in [*names, *((name,) for name in HIDING), ("flag_precision",)]:
            ratios[name] = np.zeros((len(self.clusters), 2))
            for column, counts in enumerate((self._hits[name], self._totals[name])):
                ratios[name][list(counts), column] = list(counts.values())
        covered = ratios[("entities_covered",)]
        for key, clusters in self._clusters_of.items():  # an entity weighs 1, divided equally among its clusters
            covered[list(clusters)] += np.array([key not in self._missed, True]) / len(clusters)
        return ratios

    def _count(self, name: Name, hit: bool, cluster: int) -> None:
        self._totals[name][cluster] += 1
        self._hits[name][cluster] += hit


class Estimate(Record):
    """A ratio in [0, 1] with its 95 % bootstrap interval; None where nothing is counted.

    The interval is None with fewer than two clusters, because only clusters vary.
    """

    value: float | None = Field(ge=0, le=1)
    low: float | None = Field(ge=0, le=1)
    high: float | None = Field(ge=0, le=1)


def figures(tally: Tally, *, resamples: int = 1000, seed: int = 0) -> dict[Name, Estimate]:
    """Return every metric of ``tally``.

    Intervals are percentile intervals of a cluster bootstrap: whole clusters are drawn with replacement, because the
    sentences of a user are not independent.
    """
    ratios, clusters = tally.ratios(), len(tally.clusters)
    columns = np.concatenate(list(ratios.values()), axis=1)  # (clusters, 2·metrics)
    rng = np.random.default_rng(seed)
    sums = np.zeros((1 + resamples, columns.shape[1]))  # of all clusters, then of each resample
    sums[0] = columns.sum(axis=0)
    for row in range(1, 1 + resamples if clusters else 1):
        sums[row] = np.bincount(rng.integers(clusters, size=clusters), minlength=clusters) @ columns
    with np.errstate(divide="ignore", invalid="ignore"):
        hits, totals = sums[:, ::2], sums[:, 1::2]
        values = dict(zip(ratios, np.where(totals > 0, hits / totals, np.nan).T, strict=True))
    for name in [name for name in values if name[-1] == "precision"]:
        values[(*name[:-1], "f1")] = _f1(values[name], values[(*name[:-1], "recall")])
    return {name: _estimate(ratio, clusters > 1) for name, ratio in values.items()}


def _f1(precision: NDArray[np.float64], recall: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the harmonic mean; 0 where both are 0, and where one is undefined (nothing tagged, or nothing to tag)."""
    total = np.nan_to_num(precision) + np.nan_to_num(recall)
    with np.errstate(divide="ignore", invalid="ignore"):
        f1 = np.where(total > 0, 2 * np.nan_to_num(precision) * np.nan_to_num(recall) / total, 0.0)
    return np.where(np.isnan(precision) & np.isnan(recall), np.nan, f1)


def _estimate(ratio: NDArray[np.float64], enough: bool) -> Estimate:
    """Return the estimate of a metric: its value, then those of the resamples, float64 (1 + resamples,)."""
    point, known = ratio[0], ratio[1:][~np.isnan(ratio[1:])]
    if np.isnan(point):
        return Estimate(value=None, low=None, high=None)
    if not enough or not len(known):
        return Estimate(value=float(point), low=None, high=None)
    low, high = np.quantile(known, [0.025, 0.975])
    return Estimate(value=float(point), low=float(low), high=float(high))
