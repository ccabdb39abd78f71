"""Store the incidence of a part of a corpus as compressed sparse rows in ``.npy`` files, opened memory-mapped.

Opening reads only what the checks of :class:`~fl_sim.data_prep.store.ownership.Ownership` need, and processes that open
the same corpus share its pages.

ε depends on contributions of users and entities. The stored ones save time and are never trusted: whoever can write a
corpus can write profiles that understate them, with checksums to match. So all that a part stores beside its incidence
is compared with it, in time proportional to reading it.

>>> import tempfile
>>> rows = [(np.array([1, 0, 2]), np.array([0, 0, 1], dtype=np.int32))]  # three sentences, two entities
>>> with tempfile.TemporaryDirectory() as folder:
...     ownership = write_index(Path(folder), "train", np.array([2, 1]), rows, num_entities=2)
...     ownership.sentences_per_user.tolist(), ownership.entities_per_sentence.tolist()
([2, 1], [1, 0, 2])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.layout import INDEX, PROFILES, array_file, open_vector, readable, table_file, write_vector
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
    """Write the incidence of ``split`` while its sentences are read, and open it, checked, without profiles.

    Args:
        sentences_per_user: int64 (N,).
        rows: the sentences, sorted by user.
        num_entities: E, of the corpus.
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
    """Return the incidence of ``split`` in the folder of a part, with its stored profiles if it has them.

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


def check_part(folder: Path, split: str, index: Ownership) -> None:
    """Check the stored profiles, if any, and the tables of a part against its incidence.

    Raises:
        CorpusError: they contradict one another; the message names the file.
    """
    stored, profiles = index.stored_profiles, replace(index, stored_profiles=None, check=False).entity_profiles()
    if stored is not None:
        for name in ("offsets", "sentences"):
            if not np.array_equal(getattr(stored, name), getattr(profiles, name)):
                raise _contradiction(folder / array_file(split, f"profile_{name}"))
    _check_sentences(folder / table_file(split, "sentences"), index)
    owners = np.flatnonzero(index.sentences_per_user)
    of_users = {"user_id": owners, "sentences": index.sentences_per_user[owners]}
    _check_rows(folder / table_file(split, "users"), of_users)
    of = replace(index, stored_profiles=profiles, check=False).entity_contributions()
    mentioned = np.flatnonzero(of.users)
    rows = {name: values[mentioned] for name, values in vars(of).items()}
    _check_rows(folder / table_file(split, "entities"), {"entity_id": mentioned, **rows})


def check_whole(path: Path, split: str, index: Ownership) -> None:
    """Check that every user of a split has a sentence and every entity a mention, given the incidence of all parts.

    Those without any would raise N, and lower what entities contribute at a percentile.

    Raises:
        CorpusError: a user or an entity is only counted.
    """
    mentioned = np.zeros(index.num_entities, dtype=np.bool_)
    mentioned[index.entity_ids] = True
    for kind, present in (("user", index.sentences_per_user > 0), ("entity", mentioned)):
        if not present.all():
            number = int(np.argmin(present))
            raise CorpusError(f"{path}: {kind} {number} of split {split} has no sentence; prepare the corpus again")


def _check_sentences(path: Path, index: Ownership) -> None:
    """Compare owner and entities of every sentence, one group of rows at a time."""
    owners, first = index.user_of_sentence, 0
    for batch in row_batches(path, ["user_id", "entity_ids"]):
        ids, rows = batch.column("entity_ids"), slice(first, first + len(batch))
        offsets = index.entity_offsets[first : first + len(batch) + 1]
        fits = len(offsets) == len(batch) + 1 and np.array_equal(_values(batch.column("user_id")), owners[rows])
        if not fits or not np.array_equal(_values(ids.value_lengths()), np.diff(offsets)):
            raise _contradiction(path)
        if not np.array_equal(_values(ids.flatten()), index.entity_ids[offsets[0] : offsets[-1]]):
            raise _contradiction(path)
        first += len(batch)
    if first != index.num_sentences:
        raise _contradiction(path)


def _check_rows(path: Path, expected: Mapping[str, NDArray[Any]]) -> None:
    """Compare the columns of a table; the values of each, one per row, are ``expected`` (n,)."""
    batches = list(row_batches(path, list(expected)))
    for name, values in expected.items():
        stored = [_values(batch.column(name)) for batch in batches]
        if not np.array_equal(np.concatenate([np.empty(0, np.int64), *stored]), values):
            raise _contradiction(path)


def row_batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of a table, a group of rows at a time."""
    with readable(path), pq.ParquetFile(path, memory_map=True) as file:
        yield from file.iter_batches(columns=columns)


def _values(array: pa.Array) -> NDArray[Any]:
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _contradiction(path: Path) -> CorpusError:
    return CorpusError(f"{path}: contradicts the incidence of users, sentences and entities; prepare the corpus again")
