"""Select and weight sentences as the UeDP paper's algorithm does (docs/strategies.md, ``published``).

A sentence with entities is eligible iff ANY of them is sampled; its weight is the sum over its sampled entities. A
sentence without entities is an extended entity of its own, sampled with probability q_s. Because one sampled entity
suffices, q_e does not amplify privacy (docs/privacy.md, section 3).

>>> ownership = Ownership(  # user 0 has sentences 0 and 1, user 1 has sentence 2; entity 0 is in sentences 0 and 2
...     user_offsets=np.array([0, 2, 3]), entity_offsets=np.array([0, 1, 1, 3]),
...     entity_ids=np.array([0, 0, 1], dtype=np.int32), num_entities=2)
>>> rule = WeightedGradients(q_e=1.0, q_s=1.0, user_clip=1.0)
>>> select_weighted(rule, ownership, user_runs=np.array([[0, 2]]), round_seed=0).weights
array([1., 1., 2.])
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
    """Hold a selection with the weights of its sentences and users.

    Attributes:
        weights: m_s = Σ w_e over the sampled entities of sentence s, or w_s of an extended entity, float64 (K,).
        user_weights: w_u, float64 (U,).
    """

    weights: Floats
    user_weights: Floats

    def nonempty(self) -> Self:
        """Return the selection without users who have no eligible sentence."""
        # slots=True replaces the class, so super() without arguments would fail
        return replace(Selection.nonempty(self), user_weights=self.user_weights[self.counts > 0])


@select_for.register
def select_weighted(
    rule: WeightedGradients, ownership: Ownership, user_runs: IntArray, round_seed: int
) -> WeightedSelection:
    """Return the sentences with a sampled entity and, under f_E+, the sampled sentences without entities.

    Args:
        rule: the client rule.
        ownership: the users, sentences and entities of the split.
        user_runs: the sampled users as runs of consecutive ids, int64 (R, 2).
        round_seed: the seed of the round's draws.
    """
    owned = select(ownership, user_runs, round_seed, 1.0, 1.0)
    weights = _sentence_weights(ownership, owned.sentences, round_seed, rule)
    kept = weights > 0
    owners = np.repeat(np.arange(len(owned.users)), owned.counts)
    return WeightedSelection(
        users=owned.users,
        sentences=owned.sentences[kept],
        counts=np.bincount(owners[kept], minlength=len(owned.users)),
        weights=weights[kept],
        user_weights=weights_of(ownership.sentences_per_user, rule.user_weight_cap)[owned.users],
    )


def sentences_per_entity(ownership: Ownership) -> IntArray:
    """Return n_e, the number of sentences of the corpus that mention each entity, int64 (E,)."""
    return np.bincount(ownership.entity_ids, minlength=ownership.num_entities)


def num_extended(ownership: Ownership) -> int:
    """Return |S|, the number of sentences without an entity."""
    return int(np.count_nonzero(ownership.entities_per_sentence == 0))


def _sentence_weights(ownership: Ownership, sentences: IntArray, round_seed: int, rule: WeightedGradients) -> Floats:
    """Return m_s of each sentence, float64 (K,); 0 for a sentence that is not eligible."""
    entities, counts = ownership.entities_of(sentences)
    sampled = sampling.sampled_entities(round_seed, ownership.draws_of(entities), rule.q_e)
    weights = weights_of(sentences_per_entity(ownership), rule.entity_weight_cap)[entities[sampled]]
    mentioned_by = np.repeat(np.arange(len(sentences)), counts)[sampled]
    total = np.bincount(mentioned_by, weights=weights, minlength=len(sentences)).astype(np.float64)
    if rule.extended:
        alone = counts == 0
        is_sampled = sampling.sampled_sentences(round_seed, sentences, rule.q_s)
        total[alone & is_sampled] = weights_of(np.array([num_extended(ownership)]), rule.extended_weight_cap)
    return total
