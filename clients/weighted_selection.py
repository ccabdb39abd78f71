"""Which sentences take part in the UeDP paper's algorithm, and with which weight (docs/strategies.md, ``published``).

A sentence with entities takes part as soon as ANY of them is sampled, and counts with the weights of all that are; a
sentence without one is an extended entity of its own and takes part if it is sampled itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

from fl_sim.clients.selection import IntArray, Selection, select, select_for
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.strategies.client_rules import WeightedGradients, weights_of
from fl_sim.strategies.primitives import sampling

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WeightedSelection(Selection):
    """A selection whose sentences and users count with weights.

    Attributes:
        weights: m_s = Σ w_e over the sampled entities of sentence s, or w_s of an extended entity, float64 (K,).
        user_weights: w_u, float64 (U,).
    """

    weights: Floats
    user_weights: Floats

    def nonempty(self) -> Self:
        """Return the selection without the users who have no eligible sentence, and without their weights."""
        # not super(): a dataclass with slots is another class than the one this method was written in
        return replace(Selection.nonempty(self), user_weights=self.user_weights[self.counts > 0])


@select_for.register
def select_weighted(
    rule: WeightedGradients, ownership: Ownership, user_runs: IntArray, round_seed: int
) -> WeightedSelection:
    """Return the sentences with a sampled entity, and under f_E+ the sampled ones without any, with their weights."""
    everything = select(ownership, user_runs, round_seed, 1.0, 1.0)
    weights = _sentence_weights(ownership, everything.sentences, round_seed, rule)
    kept = weights > 0
    owners = np.repeat(np.arange(len(everything.users)), everything.counts)
    return WeightedSelection(
        users=everything.users,
        sentences=everything.sentences[kept],
        counts=np.bincount(owners[kept], minlength=len(everything.users)),
        weights=weights[kept],
        user_weights=weights_of(ownership.sentences_per_user, rule.user_weight_cap)[everything.users],
    )


def sentences_per_entity(ownership: Ownership) -> IntArray:
    """Return n_e, how many sentences of the corpus mention each entity, int64 (E,)."""
    return np.bincount(ownership.entity_ids, minlength=ownership.num_entities)


def num_extended(ownership: Ownership) -> int:
    """Return |S|, how many sentences have no entity at all."""
    return int(np.count_nonzero(ownership.entities_per_sentence == 0))


def _sentence_weights(ownership: Ownership, sentences: IntArray, round_seed: int, rule: WeightedGradients) -> Floats:
    """Return m_s, float64 (K,); 0 for a sentence that does not take part."""
    entities, counts = ownership.entities_of(sentences)
    sampled = sampling.sampled_entities(round_seed, entities, rule.q_e)
    weights = weights_of(sentences_per_entity(ownership), rule.entity_weight_cap)[entities[sampled]]
    mentioned_by = np.repeat(np.arange(len(sentences)), counts)[sampled]
    total = np.bincount(mentioned_by, weights=weights, minlength=len(sentences)).astype(np.float64)
    if rule.extended:
        alone = counts == 0
        chosen = sampling.sampled_sentences(round_seed, sentences, rule.q_s)
        total[alone & chosen] = weights_of(np.array([num_extended(ownership)]), rule.extended_weight_cap)
    return total
