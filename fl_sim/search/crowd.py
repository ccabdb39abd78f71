"""Expect the sentences of a round from what may be known of a corpus: its mention graph, or counts alone.

Where the graph is known, or the text is public, every sentence's weight w(s) is at hand (:class:`KnownCrowd`). Where
counts are known, Σ w(s), the share of sentences without a name and the size of a round are hidden, so nothing may be
set from them. :class:`CountedCrowd` takes their expected values if the mentions fell on the sentences at random: n_e
and n_u decide these, whoever mentions whom. On the corpora that ship they are within 15 % of the true ones.

>>> counts = DeclaredCounts.exactly(np.array([4, 4]), np.array([4]))
>>> crowd = CountedCrowd(counts, Guarantee(known="counts", entity_bound=2, user_sentences=4))
>>> round(crowd.kept_sentences, 3), round(float(1 + np.exp(-4 / 8)) / 2, 3)  # w is 1/2 with a mention, else 1
(0.803, 0.803)
>>> crowd.kept_mentions, crowd.most_mentions
(0.5, 0.5)
>>> capped_mean(np.array([10.0]), np.array([0.5]), cap=3.0).round(3).tolist()
[2.934]
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
from scipy import stats

from fl_sim.data_prep.store.contribution_limits import DeclaredCounts, IntArray
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.mechanism import Mechanism

Floats = npt.NDArray[np.float64]


Rates = RoundEvent | Mechanism
"""What has the rates and the cap of a round."""


class Crowd(ABC):
    """The users of a corpus under bounds: their sentences n_u, int64 (N,), and the probabilities that these count."""

    def __init__(self, sentences_per_user: IntArray) -> None:
        self.sentences_per_user = sentences_per_user

    @abstractmethod
    def active_share(self, q_e: float) -> Floats:
        """Return each user's mean of w(s)·q_e^(entities of s) over the sentences s, float64 (N,)."""

    @property
    @abstractmethod
    def kept_mentions(self) -> float:
        """Return the mean weight of the sentence of a mention; 1 without mentions."""

    @property
    def kept_sentences(self) -> float:
        """Return the mean weight of a sentence."""
        return self.sampled_sentences(1.0) / max(1, int(self.sentences_per_user.sum()))

    def sampled_sentences(self, q_e: float) -> float:
        """Return the expected weight of the sentences with all entities active."""
        return float((self.sentences_per_user * self.active_share(q_e)).sum())

    def sentences(self, rates: Rates) -> float:
        """Return the expected number of sentences of a round."""
        return rates.q_u * rates.q_s * self.sampled_sentences(rates.q_e)

    def signal(self, rates: Rates) -> float:
        """Return q_u·Σ_u E min(k_u, ŵ) with k_u ~ Binomial(n_u, q_s·share of active sentences).

        The binomial distribution ignores that sentences with a common entity are active together.
        """
        _, users, counted = self._counted(rates)
        return float((users * counted).sum())

    def different(self, rates: Rates, rounds: int) -> float:
        """Return how many different sentences count in so many rounds, as if those of a user counted equally often."""
        sentences, users, counted = self._counted(rates)
        never = (1 - counted / np.maximum(sentences, 1)) ** rounds
        return float((users * sentences * (1 - never)).sum())

    def _counted(self, rates: Rates) -> tuple[Floats, IntArray, Floats]:
        """Return kinds of users: sentences of a user, number of users, expected sentences of theirs that count."""
        pairs = np.stack([self.sentences_per_user.astype(np.float64), self.active_share(rates.q_e)], axis=1)
        kinds, users = np.unique(pairs, axis=0, return_counts=True)
        counted = rates.q_u * capped_mean(kinds[:, 0], rates.q_s * kinds[:, 1], rates.user_cap)
        return kinds[:, 0], users, counted


class KnownCrowd(Crowd):
    """A crowd of whom it is known who mentions whom, with weights on sentences' sampling rates, float64 (S,)."""

    def __init__(self, ownership: Ownership, weights: Floats) -> None:
        super().__init__(ownership.sentences_per_user)
        self._ownership = ownership
        self._weights = weights

    def active_share(self, q_e: float) -> Floats:
        """Return the means of the known weights."""
        probabilities = self._weights * np.power(q_e, self._ownership.entities_per_sentence)
        totals = np.bincount(self._ownership.user_of_sentence, probabilities, minlength=self._ownership.num_users)
        return totals / np.maximum(self.sentences_per_user, 1)

    @property
    def kept_mentions(self) -> float:
        """Return the mean of the known weights."""
        mentions = self._ownership.entities_per_sentence
        return float((self._weights * mentions).sum() / mentions.sum()) if mentions.any() else 1.0


class CountedCrowd(Crowd):
    """A crowd of whom the declared n_u and n_e are known: all is a function of these, and of k and m.

    Counts that are declared larger than they are, or of absent users, are taken at their word. So a round may have more
    sentences than expected: fewer mentions than declared lower fewer weights.
    """

    def __init__(self, counts: DeclaredCounts, guarantee: Guarantee) -> None:
        users, entities = counts.declared
        super().__init__(users)
        self._of_user = _factors(guarantee.user_sentences, users)
        of_entity = _factors(guarantee.entity_bound, entities)
        self._factors, places = np.unique(np.append(of_entity, 1.0), return_inverse=True)
        self._mentions = np.bincount(places[:-1], entities, minlength=len(self._factors))

    def active_share(self, q_e: float) -> Floats:
        """Return each user's expected mean of w(s)·q_e^(entities of s), float64 (N,)."""
        return self._mean_weight(self._of_user, q_e)

    @property
    def kept_mentions(self) -> float:
        """Return the expected mean weight of the sentence of a mention; 1 without mentions."""
        if not self._mentions.any():
            return 1.0
        of_user, places = np.unique(self._of_user, return_inverse=True)
        sentences = np.bincount(places, self.sentences_per_user)
        weights = self._mean_weight(np.minimum.outer(of_user, self._factors), 1.0)
        return float(sentences @ weights @ self._mentions / (sentences.sum() * self._mentions.sum()))

    @property
    def most_mentions(self) -> float:
        """Return the most that k keeps in weight of the mentions, if they are as declared: Σ min(n_e, k)/Σ n_e."""
        return float(self._mentions @ self._factors / self._mentions.sum()) if self._mentions.any() else 1.0

    def _mean_weight(self, most: Floats, q_e: float) -> Floats:
        """Return E[min(most, k/n_e over the entities e of s)·q_e^(entities of s)], of the shape of ``most``.

        The number of entities of s is Poisson, and that of the entities with k/n_e below t, too: so that the integral
        over t from 0 to ``most`` of the probability that there is none, with q_e for each of the others, is
        ∫ exp(−(mentions − q_e·mentions with k/n_e ≥ t) / sentences) dt, which is piecewise linear.
        """
        at_least = np.cumsum(self._mentions[::-1])[::-1]
        none_below = np.exp((q_e * at_least - self._mentions.sum()) / max(1, int(self.sentences_per_user.sum())))
        edges = np.append(0.0, self._factors)
        return np.interp(most, edges, np.append(0.0, np.cumsum(none_below * np.diff(edges))))


def _factors(bound: int | None, counts: IntArray) -> Floats:
    """Return min(1, bound / count), float64 (len(counts),)."""
    return np.ones(len(counts)) if bound is None else np.minimum(1.0, bound / np.maximum(counts, 1))


def capped_mean(n: Floats, p: Floats, cap: float) -> Floats:
    """Return E min(K, cap) with K ~ Binomial(n, p), float64 (m,); n and p are (m,), and the cap may be fractional."""
    floor = int(cap)
    mean = np.zeros(len(n))
    for below in range(min(floor, int(n.max(initial=0)))):
        mean += stats.binom.sf(below, n, p)
    return mean + (cap - floor) * stats.binom.sf(floor, n, p)
