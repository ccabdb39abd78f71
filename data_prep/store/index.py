"""Store the incidence of a part of a corpus: compressed sparse rows in ``.npy`` files, opened memory-mapped.

Opening reads only what the checks of :class:`~fl_sim.data_prep.store.ownership.Ownership` need, and processes that open
the same corpus share its pages.

>>> import tempfile
>>> rows = [(np.array([1, 0, 2]), np.array([0, 0, 1], dtype=np.int32))]  # three sentences, two entities
>>> with tempfile.TemporaryDirectory() as folder:
...     ownership = write_index(Path(folder), "train", np.array([2, 1]), rows, num_entities=2)
...     ownership.sentences_per_user.tolist(), ownership.entities_per_sentence.tolist()
([2, 1], [1, 0, 2])
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.store.arrays import open_vector, write_vector
from fl_sim.data_prep.store.layout import INDEX, PROFILES, array_file
from fl_sim.data_prep.store.ownership import EntityProfiles, Ownership

Rows = tuple[NDArray[np.int64], NDArray[np.int32]]
"""Consecutive sentences: the number of entities of each, int64 (S,), and the entities sentence by sentence, int32."""


def write_index(
    folder: Path,
    split: str,
    sentences_per_user: NDArray[np.int64],
    rows: Iterable[Rows],
    num_entities: int,
) -> Ownership:
    """Write the incidence of ``split`` while its sentences are read, and open it.

    Args:
        folder: of the part.
        split: its name.
        sentences_per_user: int64 (N,).
        rows: the sentences, sorted by user.
        num_entities: E, of the corpus.

    Returns:
        The incidence, checked, without profiles.
    """
    counts: list[NDArray[np.int32]] = []

    def entities() -> Iterable[NDArray[np.int32]]:
        for of_sentence, ids in rows:
            counts.append(of_sentence.astype(np.int32))
            yield ids

    write_vector(folder / array_file(split, "entity_ids"), np.int32, entities())
    _write_offsets(folder / array_file(split, "entity_offsets"), np.concatenate(counts))
    _write_offsets(folder / array_file(split, "user_offsets"), sentences_per_user)
    return open_index(folder, split, num_entities, profiles=False)


def write_profiles(folder: Path, split: str, profiles: EntityProfiles) -> None:
    """Write the profiles of the entities of ``split`` beside its index."""
    for name, values in (("profile_offsets", profiles.offsets), ("profile_sentences", profiles.sentences)):
        write_vector(folder / array_file(split, name), PROFILES[name], [values])


def open_index(folder: Path, split: str, num_entities: int, *, profiles: bool) -> Ownership:
    """Return the incidence of ``split`` in ``folder``.

    Args:
        folder: of the part.
        split: its name.
        num_entities: E, of the corpus.
        profiles: whether the part stores the profiles of its entities.

    Raises:
        CorpusError: the arrays are absent, or do not describe an incidence.
    """
    stored = None
    if profiles:
        offsets, sentences = (open_vector(folder / array_file(split, name), dtype) for name, dtype in PROFILES.items())
        stored = EntityProfiles(offsets=offsets, sentences=sentences)
    users, sentences, entities = (open_vector(folder / array_file(split, name), dtype) for name, dtype in INDEX.items())
    return Ownership(users, sentences, entities, num_entities, stored_profiles=stored)


def _write_offsets(path: Path, counts: NDArray[np.integer]) -> None:
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    write_vector(path, np.int64, [offsets])
