"""Write the sentences of a split: pack them into columns, sort them by user, index them.

Memory holds one batch of rows and the keys of all users and entities. The rows wait in a file until all have come.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     writer = SplitWriter("train", Path(folder))
...     writer.add(Sentence("train", "ann", "Ada left.", ()), [("ada", "PER")])
...     counts = writer.write(Path(folder), classes=())
>>> counts.users, counts.sentences, counts.entities
(1, 1, 1)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fl_sim.data_prep.identity import Entity
from fl_sim.data_prep.records import KnownIds, Sentence
from fl_sim.data_prep.store.index import Rows, write_index, write_profiles
from fl_sim.data_prep.store.layout import ENTITIES, SENTENCES, USERS, table_file
from fl_sim.data_prep.store.manifest import SplitCounts
from fl_sim.data_prep.store.ownership import EntityContributions, Ownership
from fl_sim.data_prep.store.source_limits import SourceLimits

_ROWS_PER_BATCH = 65_536
_CHARACTERS_PER_BATCH = 1 << 25
_CHARACTERS_PER_BUCKET = 1 << 26
_CHARACTERS_PER_ROW = 100  # what a row costs besides its text
_UNSORTED = "unsorted.arrow"


@dataclass
class _Batch:
    """Columns of the rows that are not written yet."""

    user_id: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    entities: list[int] = field(default_factory=list)
    entity_ids: list[int] = field(default_factory=list)
    mentions: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    characters: int = 0

    def table(self) -> pa.Table:
        columns = {
            "user_id": pa.array(self.user_id, pa.int32()),
            "text": pa.array(self.text, pa.large_string()),
            "entity_ids": _lists(self.entities, pa.array(self.entity_ids, pa.int32())),
            "mention_start": _lists(self.mentions, pa.array(self.starts, pa.int32())),
            "mention_end": _lists(self.mentions, pa.array(self.ends, pa.int32())),
            "mention_label": _lists(self.mentions, pa.array(self.labels, pa.string())),
            "target": pa.array(self.target, pa.int32()),
        }
        return pa.Table.from_arrays(list(columns.values()), schema=SENTENCES)


class SplitWriter:
    """Takes the sentences of a split one by one, then writes their tables and index to a folder.

    New users and entities are numbered on, in the order of their first sentence or mention.

    Attributes:
        split: its name.
        targets: class → number, in the order of first appearance.
    """

    def __init__(
        self, split: str, scratch: Path, known: KnownIds | None = None, limits: SourceLimits | None = None
    ) -> None:
        """Start without sentences.

        Args:
            split: its name.
            scratch: a folder for the rows to wait in.
            known: the ids of the corpus to append to.
            limits: of the number of classes and labels; by default those of a source.
        """
        self.split = split
        self._limits = limits or SourceLimits()
        self.targets: dict[str, int] = {}
        self._known = known
        self._users = dict(known.users) if known else {}
        self._entities = dict(known.entities) if known else {}
        self._labels: dict[str, int] = {}
        self._labels_of = [0] * len(self._entities)  # a bit for each label
        self._mentions = 0
        self._batch = _Batch()
        self._scratch = scratch
        self._file = scratch / f"{split}.{_UNSORTED}"
        self._spill = pa.ipc.new_stream(str(self._file), SENTENCES)
        self._load = np.zeros(0, dtype=np.int64)  # sentences, and characters, of every user
        self._weight = np.zeros(0, dtype=np.int64)
        self._last_user, self._in_order = -1, True

    @property
    def users(self) -> int:
        """Number of users so far."""
        return len(self._users)

    @property
    def new_users(self) -> list[str]:
        """The users that the corpus did not have before."""
        return list(itertools.islice(self._users, len(self._known.users) if self._known else 0, None))

    @property
    def entities(self) -> int:
        """Number of entities so far."""
        return len(self._entities)

    @property
    def labels(self) -> list[str]:
        """The labels of the mentions so far."""
        return list(self._labels)

    def add(self, sentence: Sentence, entities: Iterable[Entity]) -> None:
        """Add a sentence that counts as mentioning ``entities``; raise :class:`CorpusError` for too many classes."""
        batch = self._batch
        user = self._users.setdefault(sentence.user, len(self._users))
        ids = {self._entity_id(key, label) for key, label in entities}
        batch.user_id.append(user)
        batch.text.append(sentence.text)
        batch.target.append(
            -1 if sentence.target is None else self.targets.setdefault(sentence.target, len(self.targets))
        )
        batch.entities.append(len(ids))
        batch.entity_ids += sorted(ids) if len(ids) > 1 else ids
        batch.mentions.append(len(sentence.mentions))
        for mention in sentence.mentions:
            batch.starts.append(mention.start)
            batch.ends.append(mention.end)
            batch.labels.append(mention.label)
        batch.characters += len(sentence.text)
        self._limits.check_kinds("classes", len(self.targets))
        if len(batch.text) == _ROWS_PER_BATCH or batch.characters > _CHARACTERS_PER_BATCH:
            self._pack()

    def write(self, folder: Path, classes: Sequence[str]) -> SplitCounts:
        """Write tables and index, targets as positions in ``classes``; return the counts that the sentences add."""
        self._pack()
        self._spill.close()
        position_of = {name: position for position, name in enumerate(classes)}
        positions = np.array([*(position_of[target] for target in self.targets), -1], dtype=np.int32)
        with pq.ParquetWriter(folder / table_file(self.split, "sentences"), SENTENCES, **_PARQUET) as file:
            rows = self._rows(file, positions)
            ownership = write_index(folder, self.split, self._sentences_per_user(), rows, self.entities)
        ownership = replace(ownership, stored_profiles=ownership.entity_profiles())
        if self._known is None:
            write_profiles(folder, self.split, ownership.entity_profiles())
        self._write_users(folder, ownership)
        self._write_entities(folder, ownership.entity_contributions())
        return SplitCounts(
            users=len(self.new_users),
            sentences=ownership.num_sentences,
            entities=self.entities - (len(self._known.entities) if self._known else 0),
            mentions=self._mentions,
        )

    def _entity_id(self, key: str, label: str) -> int:
        number = self._entities.setdefault(key, len(self._entities))
        bit = self._labels.get(label)
        if bit is None:
            bit = self._labels[label] = 1 << len(self._labels)
            self._limits.check_kinds("labels of entities", len(self._labels))
        if number == len(self._labels_of):
            self._labels_of.append(bit)
        else:
            self._labels_of[number] |= bit
        return number

    def _pack(self) -> None:
        batch, self._batch = self._batch, _Batch()
        if not batch.text:
            return
        users = np.array(batch.user_id, dtype=np.int64)
        self._in_order &= bool(users[0] >= self._last_user and (users[1:] >= users[:-1]).all())
        self._last_user = int(users[-1])
        self._mentions += len(batch.labels)
        weights = np.fromiter(map(len, batch.text), dtype=np.int64, count=len(users)) + _CHARACTERS_PER_ROW
        self._load = _add_padded(self._load, np.bincount(users))
        self._weight = _add_padded(self._weight, np.bincount(users, weights).astype(np.int64))
        self._spill.write_table(batch.table())

    def _sentences_per_user(self) -> NDArray[np.int64]:
        return _add_padded(self._load, np.zeros(self.users, dtype=np.int64))[: self.users]

    def _rows(self, file: pq.ParquetWriter, class_of: NDArray[np.int32]) -> Iterator[Rows]:
        column = SENTENCES.get_field_index("target")
        for table in self._by_user():
            targets = pa.array(class_of[table.column(column).to_numpy()])
            file.write_table(
                table.set_column(column, SENTENCES.field("target"), targets), row_group_size=_ROWS_PER_BATCH
            )
            ids = table.column("entity_ids").combine_chunks()
            yield np.diff(ids.offsets.to_numpy()), ids.flatten().to_numpy()

    def _by_user(self) -> Iterator[pa.Table]:
        """Yield all rows sorted by user, in a stable order, some at a time."""
        if self._in_order:
            yield from _tables(self._file)
            return
        bucket_of_user = (np.cumsum(self._weight) - self._weight) // _CHARACTERS_PER_BUCKET
        files = [self._scratch / f"{self.split}.{bucket}.arrow" for bucket in range(int(bucket_of_user.max()) + 1)]
        if len(files) == 1:
            files = [self._file]
        else:
            self._distribute(files, bucket_of_user)
        for path in files:
            with pa.memory_map(str(path)) as source:
                table = pa.ipc.open_stream(source).read_all().combine_chunks()
                if len(table):
                    yield table.take(pa.array(np.argsort(table.column("user_id").to_numpy(), kind="stable")))
            path.unlink()

    def _distribute(self, files: Sequence[Path], bucket_of_user: NDArray[np.int64]) -> None:
        """Distribute the rows over files of consecutive users, each small enough to sort in memory."""
        buckets = [pa.ipc.new_stream(str(path), SENTENCES) for path in files]
        for table in _tables(self._file):
            bucket = bucket_of_user[table.column("user_id").to_numpy()]
            order = np.argsort(bucket, kind="stable")
            ordered = table.take(pa.array(order))
            ends = np.searchsorted(bucket[order], np.arange(len(files) + 1))
            for number, writer in enumerate(buckets):
                if ends[number + 1] > ends[number]:
                    writer.write_table(ordered.slice(ends[number], ends[number + 1] - ends[number]))
        for writer in buckets:
            writer.close()
        self._file.unlink()

    def _write_users(self, folder: Path, ownership: Ownership) -> None:
        counts = ownership.sentences_per_user
        ids = np.flatnonzero(counts)
        keys = pa.array(list(self._users), pa.string()).take(pa.array(ids))
        columns = [pa.array(ids, pa.int32()), keys, pa.array(counts[ids])]
        _write_table(pa.Table.from_arrays(columns, schema=USERS), folder / table_file(self.split, "users"))

    def _write_entities(self, folder: Path, contributions: EntityContributions) -> None:
        ids = np.flatnonzero(contributions.users)
        keys = pa.array(list(self._entities), pa.string()).take(pa.array(ids))
        sets = {
            bits: sorted(label for label, bit in self._labels.items() if bits & bit) for bits in set(self._labels_of)
        }
        labels = pa.array([sets[self._labels_of[number]] for number in ids.tolist()], pa.list_(pa.string()))
        figures = [
            pa.array(values[ids])
            for values in (contributions.users, contributions.sentences, contributions.max_per_user)
        ]
        columns = [pa.array(ids, pa.int32()), keys, labels, *figures]
        _write_table(pa.Table.from_arrays(columns, schema=ENTITIES), folder / table_file(self.split, "entities"))


_PARQUET: dict[str, Any] = {"compression": "zstd", "compression_level": 6}


def _write_table(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=_ROWS_PER_BATCH, **_PARQUET)


def _tables(path: Path) -> Iterator[pa.Table]:
    with pa.memory_map(str(path)) as source:
        for batch in pa.ipc.open_stream(source):
            yield pa.Table.from_batches([batch])


def _lists(counts: Sequence[int], values: pa.Array) -> pa.Array:
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _add_padded(totals: NDArray[np.int64], more: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add ``more`` to ``totals`` in place, after padding it with zeros if it is shorter; return it.

    Args:
        totals: int64 (n,).
        more: int64 (m,).
    """
    if len(totals) < len(more):
        totals = np.concatenate((totals, np.zeros(max(len(more), 2 * len(totals)) - len(totals), dtype=np.int64)))
    totals[: len(more)] += more
    return totals
