"""Who takes part in the UeDP paper's algorithm, and with which weight (docs/strategies.md, ``published``).

A sentence with entities takes part as soon as ANY of them is sampled, and counts with the weights of all that are; a
sentence without one is an extended entity of its own and takes part if it is sampled itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from fl_sim.clients.selection import IntArray, Selection, select
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.strategies.messages import LocalRule
from fl_sim.strategies.primitives import sampling

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WeightedSelection(Selection):
    """A selection whose sentences and users count with weights.

    Attributes:
        weights: m_s = Σ w_e over the sampled entities of sentence s, or w_s of an extended entity (K,).
        user_weights: w_u (U,).
    """

    weights: Floats
    user_weights: Floats

    def nonempty(self) -> Self:
        """The same without the users who have no eligible sentence, and without their weights."""
        # not super(): a dataclass with slots is another class than the one this method was written in
        return replace(Selection.nonempty(self), user_weights=self.user_weights[self.counts > 0])


def select_for(rule: LocalRule, ownership: Ownership, user_runs: IntArray, round_seed: int) -> Selection:
    """The sampled sentences of the users of ``user_runs`` (R, 2) under the rule's own way of sampling."""
    if rule.update != "published":
        return select(ownership, user_runs, round_seed, rule.q_e, rule.q_s)
    everything = select(ownership, user_runs, round_seed, 1.0, 1.0)
    weights = _sentence_weights(ownership, everything.sentences, round_seed, rule)
    kept = weights > 0
    owners = np.repeat(np.arange(len(everything.users)), everything.counts)
    return WeightedSelection(
        users=everything.users,
        sentences=everything.sentences[kept],
        counts=np.bincount(owners[kept], minlength=len(everything.users)),
        weights=weights[kept],
        user_weights=user_weights(ownership, rule.user_weight_cap)[everything.users],
    )


def user_weights(ownership: Ownership, cap: float | None) -> Floats:
    """w_u = min(n_u/ŵ_u, 1) with n_u the user's sentences (N,); 1 without a cap."""
    return _weights(ownership.sentences_per_user, cap)


def entity_weights(ownership: Ownership, cap: float | None) -> Floats:
    """w_e = min(n_e/ŵ_e, 1) with n_e the sentences of the corpus that mention e (E,); 1 without a cap."""
    return _weights(np.bincount(ownership.entity_ids, minlength=ownership.num_entities), cap)


def extended_weight(ownership: Ownership, cap: float | None) -> float:
    """w_s = min(n_s/ŵ_s, 1), the same for all s, with n_s = |S| as the paper has it; 1 without a cap."""
    return float(_weights(np.array([num_extended(ownership)]), cap)[0])


def num_extended(ownership: Ownership) -> int:
    """|S|, the sentences without any entity."""
    return int(np.count_nonzero(ownership.entities_per_sentence == 0))


def _weights(counts: npt.NDArray[np.integer], cap: float | None) -> Floats:
    if cap is None:
        return np.ones(len(counts))
    return np.minimum(counts / cap, 1.0).astype(np.float64)


def _sentence_weights(ownership: Ownership, sentences: IntArray, round_seed: int, rule: LocalRule) -> Floats:
    """m_s (K,); 0 for a sentence that does not take part."""
    entities, counts = ownership.entities_of(sentences)
    sampled = sampling.sampled_entities(round_seed, entities, rule.q_e)
    weights = entity_weights(ownership, rule.entity_weight_cap)[entities[sampled]]
    mentioned_by = np.repeat(np.arange(len(sentences)), counts)[sampled]
    total = np.bincount(mentioned_by, weights=weights, minlength=len(sentences)).astype(np.float64)
    if rule.extended:
        alone = counts == 0
        up = sampling.sampled_sentences(round_seed, sentences, rule.q_s)
        total[alone & up] = extended_weight(ownership, rule.extended_weight_cap)
    return total
