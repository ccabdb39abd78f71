"""Measure an attack by its scores, and test them against what a ledger proves.

A high score says *member*. The threshold of a false positive rate is a score of the non-members: the smallest one that
at most that share of them exceeds; a user is guessed to be a member if the user's score is above it. So nothing is
chosen on the members. Intervals are 95 %: of the area and the advantage by a percentile bootstrap that resamples
members and non-members separately; of true positive rates the exact one of Clopper and Pearson, given the threshold.

>>> scores = Scores(members=np.array([3.0, 2.0]), non_members=np.array([1.0, 0.0]))
>>> scores.area, scores.true_positive_rate(0.5)
(1.0, 1.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from scipy import stats

from fl_sim.auditing.lower_bounds import Floats, InverseTradeOff, lower_limit, refutes_by_ranking, upper_limit
from fl_sim.config import ConfigError
from fl_sim.reporting.bootstrap import RESAMPLES, Figure

_LEVELS = (0.025, 0.975)
_JUDGED = (0.01, 0.1, 0.5)
SAME_BEFORE = 1e-3
"""The p-value below which two splits differ before training."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Hold one score per attacked user, high for members.

    Attributes:
        members: of the users who trained, float64 (m,), finite.
        non_members: of the others, float64 (n,), finite.

    Raises:
        ConfigError: there is no member or no non-member, or a score is not finite.
    """

    members: Floats
    non_members: Floats

    def __post_init__(self) -> None:
        members, others = len(self.members), len(self.non_members)
        if not (members and others):
            raise ConfigError(
                f"scores are of {members} members and {others} non-members; allowed: at least one of each"
            )
        if not (np.isfinite(self.members).all() and np.isfinite(self.non_members).all()):
            raise ConfigError("a score is not finite; allowed: a model that has not diverged")

    @property
    def area(self) -> float:
        """Return the probability that a member's score is above a non-member's, a tie counting half."""
        others = np.sort(self.non_members)
        below = np.searchsorted(others, self.members, "left") + np.searchsorted(others, self.members, "right")
        return float(below.sum() / (2 * len(others) * len(self.members)))

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """Return the share of members above the smallest score that at most this share of non-members exceeds."""
        others = np.sort(self.non_members)
        above = math.floor(false_positive_rate * len(others) * (1 + 1e-12))
        return float((self.members > others[max(len(others) - 1 - above, 0)]).mean())

    @property
    def advantage(self) -> float:
        """Return TPR − FPR at the median of the non-members."""
        return self.true_positive_rate(0.5) - 0.5

    def resampled(self, rng: np.random.Generator) -> Scores:
        """Return as many members and non-members, drawn with replacement."""
        return Scores(*(side[rng.integers(len(side), size=len(side))] for side in (self.members, self.non_members)))


def clopper_pearson(hits: int, trials: int) -> Figure:
    """Return the share of ``hits`` with its exact 95 % interval."""
    successes, failure = np.array([hits]), _LEVELS[0]
    low, high = lower_limit(successes, trials, failure), upper_limit(successes, trials, failure)
    return Figure(hits / trials, float(low[0]), float(high[0]))


@dataclass(frozen=True, eq=False)
class Rates:
    """Hold how well an attack tells members from non-members.

    Attributes:
        area: under the curve of true against false positive rates; ½ for guessing.
        advantage: TPR − FPR at the median of the non-members.
        at: the true positive rate at each false positive rate; None for fewer non-members than that rate can show.
    """

    members: int
    non_members: int
    area: Figure
    advantage: Figure
    at: dict[float, Figure | None]

    @classmethod
    def of(
        cls, scores: Scores, rng: np.random.Generator, rates: Sequence[float] = (), resamples: int = RESAMPLES
    ) -> Rates:
        """Return how well an attack does, at these false positive rates too, with intervals from resamples."""
        drawn = [(sample.area, sample.advantage) for sample in (scores.resampled(rng) for _ in range(resamples))]
        (low, low_advantage), (high, high_advantage) = np.quantile(drawn, _LEVELS, axis=0).tolist()
        members, others = len(scores.members), len(scores.non_members)
        at = {
            rate: clopper_pearson(round(scores.true_positive_rate(rate) * members), members)
            if rate * others >= 1
            else None
            for rate in rates
        }
        advantage = Figure(scores.advantage, low_advantage, high_advantage)
        return cls(members, others, Figure(scores.area, low, high), advantage, at)

    def record(self) -> dict[str, object]:
        """Return the rates as a JSON object."""
        return {
            "members": self.members,
            "non_members": self.non_members,
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

    def record(self) -> dict[str, str | float]:
        """Return the verdict as a JSON object."""
        return {name: value for name, value in asdict(self).items() if name != "reason" or value}


def judge_pairs(scores: Scores, trade_off: InverseTradeOff, failure: float, rng: np.random.Generator) -> Verdict:
    """Test whether scores of users contradict a trade-off function of exchanging two users.

    If the split is exchangeable, then given a random pairing of members with non-members, each of a pair is the member
    with probability ½, independently of other pairs: a game of many canaries in one training, in which another outcome
    exchanges two users. The bound of :mod:`~fl_sim.auditing.lower_bounds` holds for it, however much the scores
    depend on each other.

    Args:
        trade_off: F⁻¹ of exchanging two users.
        failure: the largest probability of ``beyond`` if the trade-off function holds.
    """
    pairs = min(len(scores.members), len(scores.non_members))
    if pairs < 2:
        return Verdict("not tested", pairs, failure, "fewer than two pairs")
    gap = rng.permutation(scores.members)[:pairs] - rng.permutation(scores.non_members)[:pairs]
    is_first = rng.random(pairs) < 0.5
    refuted = refutes_by_ranking(trade_off, is_first, np.where(is_first, gap, -gap), 1 - failure)
    return Verdict("beyond" if refuted else "within", pairs, failure)


def is_above(scores: Scores, largest: Callable[[float], float], failure: float) -> bool:
    """Return whether the true positive rate exceeds its bound, if the scores of one model are independent.

    At a few false positive rates the lower limit of Clopper and Pearson of the true positive rate is compared with the
    bound at the upper limit of the false positive rate.

    Args:
        largest: the largest true positive rate at a false positive rate in (0, 1).
        failure: the largest probability of True if the bound holds and the scores are independent.
    """
    each = failure / (2 * len(_JUDGED))
    members, others, rates = len(scores.members), len(scores.non_members), np.array(_JUDGED)
    hits = np.array([round(scores.true_positive_rate(rate) * members) for rate in _JUDGED])
    false = upper_limit(np.floor(rates * others + 1e-9).astype(np.int64), others, each)
    least = lower_limit(hits, members, each)
    return any(rate < 1 and true > largest(rate) for rate, true in zip(false.tolist(), least.tolist(), strict=True))


def differ_before_training(scores: Scores) -> float:
    """Return the p-value that members and non-members have equal scores (Mann and Whitney 1947).

    With the scores of a model that saw neither, a small one says that the splits are not exchangeable.
    """
    if np.ptp(np.concatenate([scores.members, scores.non_members])) == 0:
        return 1.0
    return float(stats.mannwhitneyu(scores.members, scores.non_members).pvalue)
