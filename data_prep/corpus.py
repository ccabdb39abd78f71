"""A prepared corpus, opened: columns read on demand from memory-mapped Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_prep import bundled_path
from data_prep.layout import TABLES, table_file
from data_prep.manifest import Manifest, SplitCounts, fingerprint_of, read_manifest
from data_prep.ownership import Ownership
from data_prep.records import CorpusError
from data_prep.textfiles import sha256_of

BUNDLED = "bundled"
"""The name by which the corpus that ships with the project is opened."""

HELD_OUT_SPLITS = ("validation", "test")


@dataclass(frozen=True)
class Corpus:
    """A folder that :func:`data_prep.prepare.write_corpus` made. Sentence, user and entity ids are row
    numbers,
    counted anew in every split."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: Path | str, *, verify: bool = False) -> Corpus:
        """Open the folder ``path``, or the corpus that ships for ``"bundled"``.

        Presence and size of every file are checked, and with ``verify`` every checksum. Raises
        :class:`CorpusError` for a folder that is absent, foreign, incomplete or changed.
        """
        folder = bundled_path() if str(path) == BUNDLED else Path(path)
        manifest = read_manifest(folder)
        _check_files(folder, manifest, verify)
        return cls(path=folder, manifest=manifest)

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.manifest.splits)

    @property
    def held_out_split(self) -> str:
        """The split to measure on: ``validation``, else ``test``; :class:`CorpusError` where neither exists."""
        for split in HELD_OUT_SPLITS:
            if split in self.manifest.splits:
                return split
        raise CorpusError(
            f"{self.path}: no held-out split ({' or '.join(HELD_OUT_SPLITS)}), only {', '.join(self.splits)}"
        )

    @property
    def fingerprint(self) -> str:
        """Checksum over the data files: equal fingerprints mean the same corpus."""
        return self.manifest.fingerprint

    def ownership(self, split: str) -> Ownership:
        """Who owns which sentence and which sentence mentions what; validated."""
        counts = self._counts(split)
        table = self._read(split, "sentences", ["user_id", "entity_ids"])
        if (np.diff(table.column("user_id").to_numpy()) < 0).any():
            raise CorpusError(f"{self.path / table_file(split, 'sentences')}: sentences are not sorted by user")
        return ownership_of(table, counts.users, counts.entities)

    def texts(self, split: str) -> pa.ChunkedArray:
        """The sentences' texts, row = sentence id."""
        return self._read(split, "sentences", ["text"]).column("text")

    @property
    def classes(self) -> tuple[str, ...]:
        """What the sentences are classified into; empty for a corpus without classes."""
        return self.manifest.classes

    def targets(self, split: str) -> NDArray[np.int32]:
        """int32 (S,): each sentence's class as a position in :attr:`classes`, -1 where it has none."""
        return self._read(split, "sentences", ["target"]).column("target").to_numpy()

    def mentions(self, split: str) -> pa.Table:
        """All mentions, one row each: sentence (int64), start, end (int32, characters), label (string)."""
        columns = ["mention_start", "mention_end", "mention_label"]
        table = self._read(split, "sentences", columns).combine_chunks()
        starts, ends, labels = (table.column(name).combine_chunks() for name in columns)
        per_sentence = np.diff(starts.offsets.to_numpy())
        sentence = np.repeat(np.arange(table.num_rows, dtype=np.int64), per_sentence)
        arrays = [pa.array(sentence), starts.flatten(), ends.flatten(), labels.flatten()]
        return pa.Table.from_arrays(arrays, names=["sentence", "start", "end", "label"])

    def users(self, split: str) -> pd.DataFrame:
        """One row per user, index = user id: user (the key in the source), sentences."""
        return self._read(split, "users", TABLES["users"].names).to_pandas()

    def entities(self, split: str) -> pd.DataFrame:
        """One row per entity, index = entity id: entity (its key), labels, users, sentences, max_per_user."""
        return self._read(split, "entities", TABLES["entities"].names).to_pandas()

    def _counts(self, split: str) -> SplitCounts:
        if split not in self.manifest.splits:
            raise CorpusError(f"{self.path}: no split {split!r}, only {', '.join(self.splits)}")
        return self.manifest.splits[split]

    def _read(self, split: str, table: str, columns: Sequence[str]) -> pa.Table:
        self._counts(split)
        path = self.path / table_file(split, table)
        try:
            found = pq.read_table(path, columns=list(columns), memory_map=True)
        except (pa.ArrowException, OSError) as error:
            raise CorpusError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from error
        missing = [name for name in columns if name not in found.column_names]
        if missing:
            raise CorpusError(f"{path}: no column {', '.join(missing)}")
        return found


def ownership_of(table: pa.Table, num_users: int, num_entities: int) -> Ownership:
    """The incidence that a table of sentences, sorted by user, states in ``user_id`` and ``entity_ids``."""
    users = table.column("user_id").to_numpy()
    entity_lists = table.column("entity_ids").combine_chunks()
    return Ownership(
        user_offsets=np.searchsorted(users, np.arange(num_users + 1)).astype(np.int64),
        entity_offsets=entity_lists.offsets.to_numpy().astype(np.int64),
        entity_ids=entity_lists.values.to_numpy(),
        num_entities=num_entities,
    )


def _check_files(folder: Path, manifest: Manifest, verify: bool) -> None:
    expected = {table_file(split, table) for split in manifest.splits for table in TABLES}
    if expected != set(manifest.files) or fingerprint_of(manifest.files) != manifest.fingerprint:
        raise CorpusError(
            f"{folder}: the manifest contradicts itself (its files, splits and fingerprint); prepare it again"
        )
    for name, record in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise CorpusError(f"{path}: missing; the manifest lists it, prepare the corpus again")
        size = path.stat().st_size
        if size != record.bytes:
            raise CorpusError(f"{path}: {size} bytes, the manifest says {record.bytes}; prepare the corpus again")
        if verify and sha256_of(path) != record.sha256:
            raise CorpusError(f"{path}: changed since it was prepared (checksum differs); prepare the corpus again")
