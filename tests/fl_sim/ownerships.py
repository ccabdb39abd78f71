"""Small incidences of users, sentences and entities, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fl_sim.data_prep.store.ownership import Ownership


def ownership(*users: Sequence[Sequence[int]]) -> Ownership:
    """Each user is a list of sentences, each sentence the ascending ids of its entities."""
    sentences = [sentence for user in users for sentence in user]
    ids = [entity for sentence in sentences for entity in sentence]
    return Ownership(
        user_offsets=np.cumsum([0, *(len(user) for user in users)]).astype(np.int64),
        entity_offsets=np.cumsum([0, *(len(sentence) for sentence in sentences)]).astype(np.int64),
        entity_ids=np.array(ids, dtype=np.int32),
        num_entities=max(ids, default=-1) + 1,
    )


def village(users: int = 20) -> Ownership:
    """``users`` with four sentences each but for one who has twelve; entity 0 in every user, entities 1… in one."""
    return ownership(*([[0], [1 + u], [], []] * (3 if u == 0 else 1) for u in range(users)))
