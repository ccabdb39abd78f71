"""Measure an attack by its scores: area under the curve, true positive rate at a false positive rate, with intervals.

A high score says *member*. The threshold of a false positive rate is a score of the non-members: the smallest one that
at most that share of them exceeds; a unit is guessed to be a member if its score is above it. So nothing is chosen on
the members. Intervals are 95 %: of areas and rates by a percentile bootstrap that resamples users with all of their
scores, members and non-members separately; of true positive rates of users, who have one score each, the exact one of
Clopper and Pearson, given the threshold.

>>> scored = Scored(np.array([3.0, 2.0, 1.0, 0.0]), np.array([True, True, False, False]), np.arange(4))
>>> curve = Curve.of(scored)
>>> curve.area, curve.true_positive_rate(0.5)
(1.0, 1.0)
>>> clopper_pearson(0, 10).high.__round__(2)
0.31
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fl_sim.auditing.one_run.f_dp_bounds import InverseTradeOff, refutes_by_ranking
from fl_sim.config import ConfigError
from fl_sim.experiments.held_out_users.bootstrap import RESAMPLES, Figure

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
_LEVELS = (0.025, 0.975)
_JUDGED = (0.01, 0.1, 0.5)
_SAME_BEFORE = 1e-3  # p-value below which two splits differ before training

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scored:
    """Hold n scores of an attack.

    Attributes:
        scores: float64 (n,), finite; high for members.
        is_member: bool (n,).
        users: int64 (n,), whose unit it is; a number of a member and of a non-member are two users.

    Raises:
        ConfigError: there is no member or no non-member, or a score is not finite.
    """

    scores: Floats
    is_member: NDArray[np.bool_]
    users: NDArray[np.int64]

    def __post_init__(self) -> None:
        members = int(self.is_member.sum())
        if not 0 < members < len(self.scores):
            count = len(self.scores) - members
            raise ConfigError(f"scores are of {members} members and {count} non-members; allowed: at least one of each")
        if not np.isfinite(self.scores).all():
            raise ConfigError("a score is not finite; allowed: a model that has not diverged")

    def one_per_user(self) -> Scored:
        """Return the first score of each user."""
        _, first = np.unique(self.clusters, return_index=True)
        return Scored(self.scores[first], self.is_member[first], self.users[first])

    @functools.cached_property
    def clusters(self) -> NDArray[np.int64]:
        """Return the number of each score's user among all users of both sides, int64 (n,)."""
        keys = np.stack([self.is_member.astype(np.int64), self.users], axis=1)
        return np.unique(keys, axis=0, return_inverse=True)[1].ravel()

    @functools.cached_property
    def levels(self) -> NDArray[np.int64]:
        """Return the rank of each score among the distinct scores, int64 (n,)."""
        return np.unique(self.scores, return_inverse=True)[1].ravel()

    def resamples(self, rng: np.random.Generator, count: int) -> Iterator[Floats]:
        """Yield how often each score counts in a sample of users with replacement, float64 (n,).

        Args:
            rng: draws the users.
            count: how many samples.
        """
        side = np.zeros(self.clusters.max() + 1, dtype=np.bool_)
        side[self.clusters] = self.is_member
        both = [np.flatnonzero(side == one) for one in (False, True)]
        for _ in range(count):
            times = np.zeros(len(side))
            for own in both:
                times[own] = np.bincount(rng.integers(len(own), size=len(own)), minlength=len(own))
            yield times[self.clusters]


@dataclass(frozen=True, eq=False, slots=True)
class Curve:
    """Hold the weight of members and of non-members at each distinct score, ascending, float64 (levels,)."""

    members: Floats
    others: Floats

    @classmethod
    def of(cls, scored: Scored, weights: Floats | None = None) -> Self:
        """Return the curve of scores; ``weights`` says how often each counts, None for once."""
        counts = np.ones(len(scored.levels)) if weights is None else weights
        size = int(scored.levels.max()) + 1
        sides = (counts * scored.is_member, counts * ~scored.is_member)
        members, others = (np.bincount(scored.levels, side, size).astype(np.float64) for side in sides)
        return cls(members, others)

    @property
    def area(self) -> float:
        """Return the probability that a member's score is above a non-member's, a tie counting half."""
        below = np.cumsum(self.others) - self.others / 2
        return float(self.members @ below / (self.members.sum() * self.others.sum()))

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """Return the share of members above the smallest score that at most this share of non-members exceeds."""
        above = self.others.sum() - np.cumsum(self.others)
        level = int(np.argmax(above <= false_positive_rate * self.others.sum() * (1 + 1e-12)))
        return float(self.members[level + 1 :].sum() / self.members.sum())

    def figures(self, rates: Sequence[float]) -> list[float]:
        """Return the area, the advantage at the non-members' median, and the true positive rate at each rate."""
        return [self.area, self.true_positive_rate(0.5) - 0.5, *map(self.true_positive_rate, rates)]


def clopper_pearson(hits: int, trials: int) -> Figure:
    """Return the share of ``hits`` with its exact 95 % interval."""
    low = 0.0 if hits == 0 else float(stats.beta.ppf(_LEVELS[0], hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(stats.beta.ppf(_LEVELS[1], hits + 1, trials - hits))
    return Figure(hits / trials, low, high)


@dataclass(frozen=True, eq=False)
class Rates:
    """Hold how well an attack tells members from non-members.

    Attributes:
        members: the number of members' scores.
        non_members: that of non-members'.
        users: the number of users on both sides.
        area: under the curve of true against false positive rates; ½ for guessing.
        advantage: TPR − FPR at the median of the non-members.
        at: the true positive rate at each false positive rate; None for fewer non-members than that rate can show.
    """

    members: int
    non_members: int
    users: int
    area: Figure
    advantage: Figure
    at: dict[float, Figure | None]

    @classmethod
    def of(
        cls,
        scored: Scored,
        rng: np.random.Generator,
        rates: Sequence[float] = FALSE_POSITIVE_RATES,
        resamples: int = RESAMPLES,
    ) -> Rates:
        """Return the rates of an attack.

        Args:
            scored: its scores.
            rng: draws the resamples.
            rates: the false positive rates.
            resamples: how many.
        """
        values = Curve.of(scored).figures(rates)
        drawn = [Curve.of(scored, weights).figures(rates) for weights in scored.resamples(rng, resamples)]
        low, high = np.quantile(drawn, _LEVELS, axis=0).tolist()
        area, advantage, *at = map(Figure, values, low, high)
        members, users = int(scored.is_member.sum()), int(scored.clusters.max()) + 1
        if users == len(scored.scores):
            at = [clopper_pearson(round(figure.value * members), members) for figure in at]
        others = len(scored.scores) - members
        shown = {rate: one if rate * others >= 1 else None for rate, one in zip(rates, at, strict=True)}
        return cls(members, others, users, area, advantage, shown)

    def record(self) -> dict[str, Any]:
        """Return the rates as a JSON object."""
        return {
            "members": self.members,
            "non_members": self.non_members,
            "users": self.users,
            "auc": self.area.record(),
            "advantage": self.advantage.record(),
            "tpr_at_fpr": {f"{false:g}": one and one.record() for false, one in self.at.items()},
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say whether an attack contradicts what is proven.

    Attributes:
        state: ``within`` (no contradiction), ``beyond`` (contradicted, whatever the scores depend on), ``above``
            (contradicted if one model's scores are independent of each other, which no proof says), or ``not tested``.
        pairs: how many pairs of a member and a non-member were tested.
        failure: the probability that ``beyond`` is said of a run whose proof holds.
        reason: why nothing was tested; empty otherwise.
    """

    state: str
    pairs: int
    failure: float
    reason: str = ""

    def record(self) -> dict[str, Any]:
        """Return the verdict as a JSON object."""
        facts = {"state": self.state, "pairs": self.pairs, "failure": self.failure}
        return facts | ({"reason": self.reason} if self.reason else {})


def judge_pairs(scored: Scored, trade_off: InverseTradeOff, failure: float, rng: np.random.Generator) -> Verdict:
    """Test whether scores of users contradict a trade-off function of exchanging two users.

    If the split is exchangeable, then given a random pairing of members with non-members, each of a pair is the member
    with probability ½, independently of other pairs: a game of many canaries in one training, in which another outcome
    exchanges two users. The bound of :mod:`~fl_sim.auditing.one_run.f_dp_bounds` holds for it, however much the scores
    depend on each other.

    Args:
        scored: one score per user.
        trade_off: F⁻¹ of exchanging two users.
        failure: the largest probability of ``beyond`` if the trade-off function holds.
        rng: draws the pairs.
    """
    members, others = scored.scores[scored.is_member], scored.scores[~scored.is_member]
    pairs = min(len(members), len(others))
    if pairs < 2:
        return Verdict("not tested", pairs, failure, "fewer than two pairs")
    gap = rng.permutation(members)[:pairs] - rng.permutation(others)[:pairs]
    is_first = rng.random(pairs) < 0.5
    refuted = refutes_by_ranking(trade_off, is_first, np.where(is_first, gap, -gap), 1 - failure)
    return Verdict("beyond" if refuted else "within", pairs, failure)


def is_above(scored: Scored, largest: Callable[[float], float], failure: float) -> bool:
    """Return whether the true positive rate exceeds its bound, if the scores of one model are independent.

    At a few false positive rates the lower limit of Clopper and Pearson of the true positive rate is compared with the
    bound at the upper limit of the false positive rate.

    Args:
        scored: one score per user.
        largest: the largest true positive rate at a false positive rate in (0, 1).
        failure: the largest probability of True if the bound holds and the scores are independent.
    """
    each, curve = failure / (2 * len(_JUDGED)), Curve.of(scored)
    members, others = int(curve.members.sum()), int(curve.others.sum())
    for rate in _JUDGED:
        positives = math.floor(rate * others + 1e-9)
        hits = round(curve.true_positive_rate(rate) * members)
        false = 1.0 if positives == others else float(stats.beta.ppf(1 - each, positives + 1, others - positives))
        least = float(stats.beta.ppf(each, hits, members - hits + 1)) if hits else 0.0
        if false < 1 and least > largest(false):
            return True
    return False


def differ_before_training(scored: Scored) -> float:
    """Return the p-value that members and non-members have equal scores (Mann and Whitney 1947), of one score per user.

    With the scores of a model that saw neither, a small one says that the splits are not exchangeable.
    """
    inside, outside = scored.scores[scored.is_member], scored.scores[~scored.is_member]
    if np.ptp(scored.scores) == 0:
        return 1.0
    return float(stats.mannwhitneyu(inside, outside).pvalue)


def are_exchangeable(p_value: float) -> bool:
    """Return whether two splits do not differ before training, at a significance of 0.1 %."""
    return not p_value < _SAME_BEFORE or math.isnan(p_value)
