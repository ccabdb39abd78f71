"""Link users and the entities that name them: in a chat, who is mentioned writes, too.

A user and an entity are the same person if the user's name has the entity's key. ε of *any user with any entity* then
covers, for every such person, all that they wrote and all that mentions them (docs/privacy-proofs.md, section 15).

>>> corpus = Corpus.open("irc")
>>> entity_of_user = entities_of_users(corpus, "train")
>>> len(entity_of_user), int((entity_of_user >= 0).sum())
(15768, 9558)
>>> named = entity_of_user[0]
>>> corpus.users("train")["user"][0], corpus.entities("train")["entity"][named]
('bathjith', 'bathjith')
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.store.corpus import Corpus

NOBODY = -1
"""Stands for the entity of a user whom no sentence mentions."""


def entities_of_users(corpus: Corpus, split: str) -> NDArray[np.int64]:
    """Return the entity that each user is, int64 (U,), or :data:`NOBODY`.

    A user is an entity if the user's name has its key under the corpus's identity. Two users whose names have one key
    ("ada" and "Ada_") are one entity, so that mentions of either are protected with both.

    Raises:
        CorpusError: the corpus has no such split.
    """
    key_of = Identity.of_corpus(corpus.manifest.settings).key
    ids = {key: number for number, key in corpus.entities(split)["entity"].items()}
    names = corpus.users(split)["user"]
    return np.array([ids.get(key_of(name), NOBODY) for name in names], dtype=np.int64)


def entity_of_name(corpus: Corpus, split: str, name: str) -> int | None:
    """Return the entity that a name means, whatever its case and punctuation; None if no sentence mentions it.

    Raises:
        CorpusError: the corpus has no such split.
    """
    key = Identity.of_corpus(corpus.manifest.settings).key(name)
    entities = corpus.entities(split)["entity"]
    ids = entities.index[entities == key]
    return int(ids[0]) if len(ids) else None
