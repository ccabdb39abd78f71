"""The incidence of a part of a corpus on disk: compressed rows in ``.npy`` files, opened by memory map.

Nothing is read when it is opened but what the checks of :class:`~fl_sim.data_prep.store.ownership.Ownership` look at,
and processes that open the same corpus share its pages.
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
"""Some consecutive sentences: how many entities each mentions, and these, sentence by sentence."""


def write_index(
    folder: Path,
    split: str,
    sentences_per_user: NDArray[np.int64],
    rows: Iterable[Rows],
    num_entities: int,
) -> Ownership:
    """Write the incidence of ``split`` while its sentences, sorted by user, come by; returns it, opened and checked."""
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
    """The incidence of ``split`` as it lies in ``folder``, with the entities' profiles if they are there.

    Raises :class:`~fl_sim.data_prep.records.CorpusError` where the arrays are absent, or do not describe an incidence.
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
