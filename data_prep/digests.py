"""Keyed digests by which holders of several corpora agree without showing them.

An entity is sampled by a number. Within one corpus its id will do; nodes with corpora of their own need a number that
is a function of the name alone. It is a keyed digest, so that whoever lacks the key can neither read a name off it nor
test a guess.

Two names with one digest share their draw. Within a corpus that is refused (:func:`entity_digests`); across corpora
they count as one entity, and ε is of both together (docs/privacy-proofs.md, section 15, which bounds the probability).

Digests of what users train on have the key of the names' digests. They are the same whether all users are in one
corpus or each node holds its own, and so is the seeded noise of a run, which is keyed by what the run is computed
from.

>>> ada, carl = entity_digests(["ada", "carl"], b"sixteen bytes ..").tolist()
>>> entity_digests(["carl", "ada"], b"sixteen bytes ..").tolist() == [carl, ada]
True
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.encode import EncodedSplit
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.files import read_bytes

SHORTEST_KEY, LONGEST_KEY = 16, 64
"""Bytes of a key; BLAKE2b takes no longer one."""

_ITEM_BYTES = 8
_SIGN = np.uint64(2**63 - 1)


def read_key(path: str | Path) -> bytes:
    """Return the key in a file: its bytes, without white space at the ends.

    Raises:
        CorpusError: the file cannot be read, or has too few or too many bytes.
    """
    try:
        key = read_bytes(Path(path)).strip()
    except OSError as error:
        reason = error.strerror or error
        raise CorpusError(f"entity key {path}: cannot be read ({reason}); allowed: a file with the key") from error
    if not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
        allowed = f"{SHORTEST_KEY} to {LONGEST_KEY}, such as of openssl rand -hex 32"
        raise CorpusError(f"entity key {path}: has {len(key)} bytes; allowed: {allowed}")
    return key


def keyed_digest(key: bytes, purpose: str, *parts: bytes, size: int = 16) -> bytes:
    """Return a digest of ``parts`` under a key, for one purpose.

    Args:
        key: of :func:`read_key`.
        purpose: at most 16 ASCII characters; digests for different purposes have nothing in common.
        parts: are told apart by their lengths.
        size: bytes of the digest.
    """
    digest = hashlib.blake2b(key=key, person=purpose.encode(), digest_size=size)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def entity_digests(names: Sequence[str], key: bytes) -> NDArray[np.int64]:
    """Return the number by which each entity is sampled, int64 (E,), in [0, 2^63).

    The names are the keys of :mod:`fl_sim.data_prep.identity`, each once.

    Raises:
        CorpusError: two of the names have the same digest.
    """
    joined = b"".join(_digests(names, key, "fl_sim entity", _ITEM_BYTES))
    digests = (np.frombuffer(joined, dtype="<u8") & _SIGN).astype(np.int64)
    if len(np.unique(digests)) < len(digests):
        raise CorpusError("the entity key gives two names one digest; allowed: a key that tells all names apart")
    return digests


def user_digests(users: Iterable[str], key: bytes) -> list[str]:
    """Return the pseudonym of each user, 32 hexadecimal digits."""
    return [digest.hex() for digest in _digests(users, key, "fl_sim user", 16)]


def key_check(key: bytes) -> str:
    """Return a value that tells keys apart and nothing about them."""
    return keyed_digest(key, "fl_sim key check").hex()


def _digests(names: Iterable[str], key: bytes, purpose: str, size: int) -> list[bytes]:
    return [keyed_digest(key, purpose, name.encode(), size=size) for name in names]


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
        targets: the class of each sentence, int32 (S,); None without classes.
        users: their names, by id.
        key: of :func:`read_key`.
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
