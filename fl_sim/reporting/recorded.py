"""What a run recorded besides its ε, typed, and each part in words.

A field that a run's result lacks is None; one of another kind is an error that names the file (:func:`parsed`).

>>> contribution_in_words(ContributionBound(users=3, sentences_per_user=2, sentences=5))
'≤ 3 users, ≤ 2 sentences each, ≤ 5 in all'
>>> contribution_in_words(ContributionBound(users=3, sentences_per_user=1, sentences=2, weighted=True))
'≤ 3 users, ≤ 1 sentence each, ≤ 2 in all by weight'
>>> rejected_in_words({"too_large": 2, "silent": 1})
'3 replies of nodes discarded, as zero: 2 for a norm above the bound; 1 for silence'
>>> measured_in_words({"accuracy": [0.1, 0.875]})
'accuracy 0.1 → 0.875'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from fl_sim.formats import counted, first_mistake, format_at_risk, format_number, percent_down, percent_up, printable
from fl_sim.storage.run_folder import ResultsError
from fl_sim.strategies.accounting.adjacency import ContributionBound
from fl_sim.strategies.messages import REJECTIONS

T = TypeVar("T")


def parsed(kind: type[T], values: object, file: Path) -> T:
    """Return values of a file of a run as an object of ``kind``.

    Raises:
        ResultsError: they are not of that kind; the message is one line that names the file and the first key.
    """
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        raise ResultsError(f"{file}: is corrupt ({first_mistake(error)})") from error


class Recorded(BaseModel):
    """A part of a run's result; keys that are not read here are kept for the JSON report."""

    model_config = ConfigDict(frozen=True, extra="allow")


def contribution_in_words(bound: ContributionBound) -> str:
    """Return in words what an entity contributes at a percentile of the corpus."""
    users, each, total = bound.users, bound.sentences_per_user, bound.sentences
    by_weight = " by weight" if bound.weighted else ""
    if users == 1:
        return f"≤ {counted(users, 'user')}, ≤ {counted(each if total is None else total, 'sentence')}{by_weight}"
    words = f"≤ {counted(users, 'user')}, ≤ {counted(each, 'sentence')} each"
    return words if total is None or total >= users * each else f"{words}, ≤ {format_number(total)} in all{by_weight}"


class Kept(Recorded):
    """Shares of the corpus that the bounds kept, by weight."""

    sentences: float
    mentions: float
    mentions_by_kind: dict[str, float] = {}

    def in_words(self) -> str | None:
        """Return the shares in words, rounded down; None if everything was kept."""
        if self.sentences >= 1:
            return None
        kinds = ", ".join(f"{kind} {percent_down(share)} %" for kind, share in self.mentions_by_kind.items())
        return (
            f"Kept, by weight: {percent_down(self.sentences)} % of the sentences, "
            f"{percent_down(self.mentions)} % of the mentions{f' ({kinds})' if kinds else ''}."
        )


class Share(Recorded):
    """A measured share with the ends of its 95 % interval."""

    value: float | None = None
    low: float | None = None
    high: float | None = None

    def in_words(self) -> str:
        """Return the share in percent, rounded down: "94.1 % (93.0 to 95.2)"."""
        if self.value is None:
            return "an unknown share"
        share = f"{percent_down(self.value)} %"
        if self.low is None or self.high is None:
            return share
        return f"{share} ({percent_down(self.low)} to {percent_down(self.high)})"


class Coverage(Recorded):
    """What the tagger of a corpus found of the entities in annotated text."""

    gold: str | None = None
    split: str | None = None
    sensitive_sentences: Share = Share()
    mentions_with_coin: Share = Share()

    def in_words(self, most_mentions: int | None) -> str:
        """Return the coverage, on which plain ε of entities depends.

        Args:
            most_mentions: the sentences in which the tagger found the most mentioned entity, before any bound.
        """
        missed, found = "", self.mentions_with_coin.value
        if found and most_mentions is not None:
            sentences = math.ceil(most_mentions * (1 - found) / found)
            missed = (
                f"; at this share about {sentences:,} sentences with the most mentioned one are missed "
                "(privacy.missed_mentions)"
            )
        return (
            f"Coverage, measured on {self.gold} ({self.split}): the tagger flags {self.sensitive_sentences.in_words()} "
            f"of the sentences with an entity; {self.mentions_with_coin.in_words()} of the mentions are sampled "
            f"together with their entity. A bound on entities holds for mentions that the tagger found{missed}."
        )


class CorpusSize(Recorded):
    """The training split of a run's corpus."""

    name: str = "unnamed"
    users: int | None = None
    sentences: int | None = None
    coverage: Coverage | None = None
    not_looked_for: list[str] | None = None

    def in_words(self) -> str:
        """Return name and size."""
        return f"{printable(self.name)}: {counted(self.users, 'user')}, {counted(self.sentences, 'sentence')}"


class Attacker(Recorded):
    """The largest true positive rates of any test for the protected unit, by false positive rate."""

    unit: str
    largest_tpr_at_fpr: dict[str, float]

    def in_words(self, delta: float | None, population: float | None) -> str:
        """Return the rates, rounded up, and δ·N."""
        whom = "a user and an entity" if self.unit == "any" else "a user"
        shares = " and ".join(
            f"{percent_up(rate)} % (at {100 * float(at):g} % false positives)"
            for at, rate in self.largest_tpr_at_fpr.items()
        )
        return f"A test for {whom} finds at most {shares} of them. δ·N is {format_at_risk(delta, population)}."


class Gradients(Recorded):
    """How gradients of single sentences were computed."""

    path: str
    reason: str = "unknown"

    def in_words(self) -> str:
        """Return the path in words."""
        if self.path == "fast":
            return "fast path, many sentences in one pass"
        return f"slow path, one sentence at a time: {printable(self.reason)}"


def rejected_in_words(rejected: Mapping[str, int] | None) -> str | None:
    """Return how many replies of nodes counted as zero, and why; None if none did."""
    if not rejected:
        return None
    reasons = "; ".join(f"{count} for {REJECTIONS.get(kind, kind)}" for kind, count in rejected.items())
    replies = sum(rejected.values())
    return f"{format_number(replies)} {'reply' if replies == 1 else 'replies'} of nodes discarded, as zero: {reasons}"


def measured_in_words(measured: Mapping[str, Sequence[float]] | None) -> str:
    """Return what a Flower app measured, at the start and at the end; empty if it measured nothing."""
    return "; ".join(f"{printable(name)} {ends[0]:.4g} → {ends[-1]:.4g}" for name, ends in (measured or {}).items())


def setting_in_words(value: Any) -> str:
    """Return the value of a setting as a configuration would have it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if math.isfinite(value) else "∞"
    return printable(value)
