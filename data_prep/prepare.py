"""Sentences in, a prepared corpus out: Parquet files and a manifest in a folder, written whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.atomic import folder_appearing_at
from data_prep.corpus import Corpus, ownership_of
from data_prep.identity import DEFAULT_IDENTITY, Entity, Identity
from data_prep.layout import ENTITIES, SENTENCES, USERS, table_file
from data_prep.manifest import Manifest, SplitCounts, fingerprint_of, record_of
from data_prep.records import CorpusError, Sentence

__all__ = ["Corpus", "write_corpus"]

_ROWS_PER_BATCH = 65_536
_SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_TRAIN = "train"


def write_corpus(
    sentences: Iterable[Sentence],
    out: Path,
    *,
    name: str,
    sources: Sequence[Path] = (),
    settings: Mapping[str, Any] | None = None,
    tagger: Mapping[str, str] | None = None,
    tools: Sequence[str] = (),
    identity: Identity = DEFAULT_IDENTITY,
) -> Corpus:
    """Write ``sentences`` to the folder ``out`` and open it.

    Sentences are sorted by user (users in the order of their first sentence); entities are numbered in the
    order of their first mention. ``name``, ``sources``, ``settings``, ``tagger`` and the versions of the
    distributions ``tools`` go to the manifest. ``identity`` decides which mentions are one entity. Nothing of one user
    changes what is kept of another, and nothing of one sentence unless ``identity`` links those of a document.

    Raises :class:`CorpusError` where ``out`` is taken, and for a corpus that no private training could use:
    no train split, fewer than two users in it, or no entity in it.
    """
    with folder_appearing_at(out) as folder:
        splits: dict[str, _SplitColumns] = {}
        for sentence, entities in identity.resolved(sentences):
            if sentence.split not in splits:
                splits[sentence.split] = _SplitColumns(_checked_split(sentence.split))
            splits[sentence.split].add(sentence, entities)
        _check_trainable(splits)
        classes = tuple(sorted({target for columns in splits.values() for target in columns.targets}))
        counts = {split: columns.write(folder, classes) for split, columns in splits.items()}
        files = {path.name: record_of(path) for path in sorted(folder.iterdir())}
        Manifest(
            name=name,
            sources={path.name: record_of(path) for path in sources},
            settings={**(settings or {}), "identity": identity.described()},
            tagger=dict(tagger or {"tagger": "gold"}),
            tools={tool: metadata.version(tool) for tool in ("fl-sim", "numpy", "pyarrow", *tools)},
            classes=classes,
            splits=counts,
            files=files,
            fingerprint=fingerprint_of(files),
        ).write(folder)
    return Corpus.open(out)


@dataclass
class _SplitColumns:
    """The columns of one split while its sentences come in; rows are packed into Arrow batch by batch."""

    split: str
    user_ids: dict[str, int] = field(default_factory=dict)
    entity_ids: dict[str, int] = field(default_factory=dict)
    entity_labels: list[set[str]] = field(default_factory=list)
    targets: dict[str, int] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    batches: list[pa.Table] = field(default_factory=list)
    mentions: int = 0

    def add(self, sentence: Sentence, entities: Iterable[Entity]) -> None:
        found = {self._entity_id(key, label) for key, label in entities}
        self.mentions += len(sentence.mentions)
        self.rows.append(
            {
                "user_id": self.user_ids.setdefault(sentence.user, len(self.user_ids)),
                "text": sentence.text,
                "entity_ids": sorted(found),
                "mention_start": [mention.start for mention in sentence.mentions],
                "mention_end": [mention.end for mention in sentence.mentions],
                "mention_label": [mention.label for mention in sentence.mentions],
                "target": self._target_id(sentence.target),
            }
        )
        if len(self.rows) == _ROWS_PER_BATCH:
            self._pack()

    def write(self, folder: Path, classes: Sequence[str]) -> SplitCounts:
        """Write the three tables of the split, targets as positions in ``classes``; returns its counts."""
        self._pack()
        table = pa.concat_tables(self.batches)
        self.batches.clear()
        table = self._with_positions_in(classes, table)
        order = np.argsort(table.column("user_id").to_numpy(), kind="stable")
        table = table.take(pa.array(order))
        ownership = ownership_of(table, len(self.user_ids), len(self.entity_ids))
        reach = ownership.entity_reach()
        users = {"user": list(self.user_ids), "sentences": ownership.sentences_per_user}
        entities = {
            "entity": list(self.entity_ids),
            "labels": [sorted(labels) for labels in self.entity_labels],
            "users": reach.users,
            "sentences": reach.sentences,
            "max_per_user": reach.max_per_user,
        }
        _write_table(table, folder / table_file(self.split, "sentences"))
        _write_table(pa.table(users, schema=USERS), folder / table_file(self.split, "users"))
        _write_table(pa.table(entities, schema=ENTITIES), folder / table_file(self.split, "entities"))
        return SplitCounts(
            users=ownership.num_users,
            sentences=ownership.num_sentences,
            entities=ownership.num_entities,
            mentions=self.mentions,
        )

    def _entity_id(self, key: str, label: str) -> int:
        number = self.entity_ids.setdefault(key, len(self.entity_ids))
        if number == len(self.entity_labels):
            self.entity_labels.append(set())
        self.entity_labels[number].add(label)
        return number

    def _target_id(self, target: str | None) -> int:
        """The order in which this split met its targets; the classes' own order is known when all are."""
        return -1 if target is None else self.targets.setdefault(target, len(self.targets))

    def _with_positions_in(self, classes: Sequence[str], table: pa.Table) -> pa.Table:
        positions = np.array([*(classes.index(target) for target in self.targets), -1], dtype=np.int32)
        column = table.schema.get_field_index("target")
        targets = positions[table.column(column).to_numpy()]
        return table.set_column(column, SENTENCES.field("target"), pa.array(targets))

    def _pack(self) -> None:
        if self.rows:
            self.batches.append(pa.Table.from_pylist(self.rows, schema=SENTENCES))
            self.rows.clear()


def _write_table(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, compression="zstd", compression_level=12, row_group_size=_ROWS_PER_BATCH)


def _checked_split(split: str) -> str:
    """``split`` becomes part of a file name, and may come from somebody's data."""
    if not _SPLIT_NAME.fullmatch(split):
        raise CorpusError(f"split name {split!r} must be 1 to 64 letters, digits, hyphens or underscores")
    return split


def _check_trainable(splits: Mapping[str, _SplitColumns]) -> None:
    if not splits:
        raise CorpusError("the corpus has no sentence, so no user")
    if _TRAIN not in splits:
        raise CorpusError(f"the corpus has no {_TRAIN!r} split, only {', '.join(splits)}")
    train = splits[_TRAIN]
    if len(train.user_ids) < 2:
        raise CorpusError("the train split has one user; federated training needs at least two")
    if not train.entity_ids:
        raise CorpusError(
            "the train split has no entity at all, so there is no entity to protect; "
            "check the entities column or choose another --tagger"
        )
