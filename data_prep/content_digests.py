"""Digests of what each user of a prepared corpus trains on, under the key of the entities' digests.

They are the same whether all users are in one corpus or each node holds its own, and so is the seeded noise of a run,
which is keyed by what the run is computed from.

>>> ownership = Ownership(np.array([0, 1, 2]), np.array([0, 1, 1]), np.array([0], dtype=np.int32), num_entities=1)
>>> encoded = EncodedSplit(tokens=np.array([0, 7, 1, 0, 9, 1], dtype=np.int32), offsets=np.array([0, 3, 6]))
>>> draws, key = np.array([12345]), b"sixteen bytes .."
>>> ann, bob = content_digests(replace(ownership, entity_draws=draws), encoded, None, ["ann", "bob"], key)
>>> ann == bob, len(ann)
(False, 16)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.name_digests import entity_digests, keyed_digest
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.encode import EncodedSplit
from fl_sim.data_prep.store.ownership import Ownership


def named_ownership(corpus: Corpus, split: str, key: bytes) -> Ownership:
    """Return the incidence of a split whose entities are sampled by the keyed digests of their names.

    Raises:
        CorpusError: two names have the same digest.
    """
    digests = entity_digests(corpus.entities(split)["entity"].tolist(), key)
    return replace(corpus.ownership(split), entity_draws=digests, check=False)


def content_digests(
    ownership: Ownership,
    encoded: EncodedSplit,
    targets: NDArray[np.int32] | None,
    users: Sequence[str],
    key: bytes,
) -> Iterator[bytes]:
    """Yield a digest of each user's name, tokens, classes and entities, 16 bytes.

    Args:
        ownership: of the split, with the entities' digests.
        encoded: its tokens.
        targets: the class of each sentence, int32 (S,); None without classes.
        users: their names, by id.
        key: of :func:`fl_sim.data_prep.name_digests.read_key`.
    """
    for number, name in enumerate(users):
        sentences, _ = ownership.sentences_of(np.array([number]))
        entities, counts = ownership.entities_of(sentences)
        draws = [np.sort(part) for part in np.split(ownership.draws_of(entities), np.cumsum(counts)[:-1])]
        parts = [
            np.concatenate([encoded.sentence(s) for s in sentences.tolist()]),
            encoded.lengths[sentences],
            np.empty(0, np.int32) if targets is None else targets[sentences],
            counts,
            np.concatenate(draws).astype(np.int64),
        ]
        yield keyed_digest(key, "fl_sim text", name.encode(), *(part.tobytes() for part in parts))


def digest_of_all(digests: Iterable[bytes]) -> str:
    """Return one digest for the users of a training, in their order."""
    return hashlib.sha256(b"".join(digests)).hexdigest()
