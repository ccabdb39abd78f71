"""Write sentences as a prepared corpus: Parquet files, an index and a manifest in a folder that appears atomically.

Memory holds one batch of rows and the keys of all users and entities. The rows wait in a file until all have come.

>>> import tempfile
>>> from fl_sim.data_prep.records import Mention
>>> sentences = [Sentence("train", user, "Ada left.", (Mention(0, 3, "PER"),)) for user in ("ann", "bob")]
>>> with tempfile.TemporaryDirectory() as folder:
...     corpus = write_corpus(sentences, Path(folder) / "corpus", name="example")
...     list(corpus.entities("train")["entity"])
['ada']
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Required, TypedDict, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fl_sim.data_prep.identity import DEFAULT_IDENTITY, Entity, Identity
from fl_sim.data_prep.records import CorpusError, KnownIds, Sentence, Settings
from fl_sim.data_prep.store.atomic import folder_appearing_at
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.index import Rows, write_index, write_profiles
from fl_sim.data_prep.store.layout import ENTITIES, SENTENCES, USERS, part_folder, table_file
from fl_sim.data_prep.store.manifest import FileRecord, Manifest, SplitCounts, fingerprint_of, record_of, tool_versions
from fl_sim.data_prep.store.ownership import EntityContributions, Ownership
from fl_sim.files import owner_only

_ROWS_PER_BATCH = 65_536
_CHARACTERS_PER_BATCH = 1 << 25
_CHARACTERS_PER_BUCKET = 1 << 26
_CHARACTERS_PER_ROW = 100  # what a row costs besides its text
_PARQUET: dict[str, str | int] = {"compression": "zstd", "compression_level": 6}

MAX_KINDS, MAX_SPLITS = 1000, 100
"""The most classes, the most labels of entities, and the most splits, each of which takes files of its own."""


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
        targets: class → number, in the order of first appearance.
    """

    def __init__(self, split: str, scratch: Path, known: KnownIds | None = None) -> None:
        """Start without sentences; rows wait in ``scratch``, and a corpus to append to has ``known`` ids."""
        self.split = split
        self.targets: dict[str, int] = {}
        self._is_first_part = known is None
        self._known = known or KnownIds()
        self._users = dict(self._known.users)
        self._entities = dict(self._known.entities)
        self._labels: dict[str, int] = {}
        self._labels_of = [0] * len(self._entities)  # a bit for each label
        self._mentions = 0
        self._batch = _Batch()
        self._scratch = scratch
        self._file = scratch / f"{split}.unsorted.arrow"
        self._spill = pa.ipc.new_stream(str(self._file), SENTENCES)
        self._load = self._weight = np.zeros(0, dtype=np.int64)  # sentences, and characters, of every user
        self._last_user, self._in_order = -1, True

    @property
    def users(self) -> int:
        """Number of users so far."""
        return len(self._users)

    @property
    def new_users(self) -> list[str]:
        """The users that the corpus did not have before."""
        return list(itertools.islice(self._users, len(self._known.users), None))

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
        _check_number(len(self.targets), MAX_KINDS, "classes")
        if len(batch.text) == _ROWS_PER_BATCH or batch.characters > _CHARACTERS_PER_BATCH:
            self._pack()

    def write(self, folder: Path, classes: Sequence[str]) -> SplitCounts:
        """Write tables and index, targets as positions in ``classes``; return the counts that the sentences add."""
        self._pack()
        self._spill.close()
        position_of = {name: position for position, name in enumerate(classes)}
        positions = np.array([*(position_of[target] for target in self.targets), -1], dtype=np.int32)
        with pq.ParquetWriter(folder / table_file(self.split, "sentences"), SENTENCES, **_PARQUET) as file:
            ownership = write_index(folder, self.split, self._load, self._rows(file, positions), self.entities)
        ownership = replace(ownership, stored_profiles=ownership.entity_profiles())
        if self._is_first_part:
            write_profiles(folder, self.split, ownership.entity_profiles())
        self._write_users(folder, ownership)
        self._write_entities(folder, ownership.entity_contributions())
        return SplitCounts(
            users=len(self.new_users),
            sentences=ownership.num_sentences,
            entities=self.entities - len(self._known.entities),
            mentions=self._mentions,
        )

    def _entity_id(self, key: str, label: str) -> int:
        number = self._entities.setdefault(key, len(self._entities))
        bit = self._labels.get(label)
        if bit is None:
            bit = self._labels[label] = 1 << len(self._labels)
            _check_number(len(self._labels), MAX_KINDS, "labels of entities")
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
        new = (0, self.users - len(self._load))
        self._load = np.pad(self._load, new) + np.bincount(users, minlength=self.users)
        self._weight = np.pad(self._weight, new) + np.bincount(users, weights, self.users).astype(np.int64)
        self._spill.write_table(batch.table())

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


Rewrite = Callable[[Sentence], Sentence | None]
"""Changes the text of a sentence and moves its mentions with it, or drops the sentence (None)."""

_SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_TRAIN = "train"
_SCRATCH = "scratch"


class PartOptions(TypedDict, total=False):
    """What is known of the sentences besides their text, as in the manifest, and how they are written.

    Attributes:
        tagger: what marked the entities; gold by default.
        sought_labels: every label that it can give; those of the mentions need not be among them.
        tools: distributions whose versions go to the manifest.
        notes: counts of bad text; read after the last sentence.
        rewrite: changes the text after the entities are identified.
    """

    name: Required[str]
    sources: Mapping[str, FileRecord]
    settings: Settings
    tagger: Mapping[str, str]
    sought_labels: Iterable[str]
    tools: Sequence[str]
    notes: Mapping[str, int]
    identity: Identity
    rewrite: Rewrite | None


@owner_only()
def write_corpus(
    sentences: Iterable[Sentence],
    out: Path,
    *,
    needs_entities: bool = True,
    beside: Mapping[str, str] | None = None,
    replace: bool = False,
    **options: Unpack[PartOptions],
) -> Corpus:
    """Write ``sentences`` to the folder ``out`` and open it.

    Sentences are sorted by user, users by their first sentence; entities are numbered by their first mention. What is
    stored of a user depends on that user alone, and of a sentence on that sentence alone.

    Args:
        sentences: in any order.
        out: the folder to make.
        needs_entities: whether a train split without entities is an error.
        beside: further files of the corpus by name, such as that of its canaries, and their texts.
        replace: whether to replace what is at ``out`` once everything is written.
        options: :class:`PartOptions`.

    Raises:
        CorpusError: ``out`` is taken, or no private training could use the corpus: it has no train split, fewer than
            two users in it, or no entity in it.
    """
    with folder_appearing_at(out, replace=replace) as folder:
        writers = _collect(sentences, folder, lambda split: None, options)
        _check_trainable(writers, needs_entities)
        classes = sorted({target for writer in writers.values() for target in writer.targets})
        for file, text in (beside or {}).items():
            (folder / file).write_text(text, encoding="utf-8")
        _finish(folder, writers, classes, options)
    return Corpus.open(out)


@owner_only()
def append_corpus(
    corpus: Corpus, sentences: Iterable[Sentence], *, joined_at: int, **options: Unpack[PartOptions]
) -> Corpus:
    """Append ``sentences`` to ``corpus`` as a part of its own, and open the result; no existing file changes.

    Known users, entities and classes keep their ids; new ones, and the sentences, are numbered on. A key names the same
    user as before.

    Args:
        sentences: to append; at least one.
        joined_at: the round from which the part takes part in training.
        options: :class:`PartOptions`, with the identity of the corpus.

    Raises:
        CorpusError: there is no sentence, the identity is not the corpus's, ``joined_at`` is before the last part's, or
            a user would move to another split.
    """
    last = corpus.parts[-1].manifest
    if joined_at < last.joined_at:
        raise CorpusError(f"`joined_at` {joined_at} must be at least {last.joined_at}, the round of the part before")
    if corpus.manifest.settings.get("identity") != options.get("identity", DEFAULT_IDENTITY).manifest_settings():
        raise CorpusError(f"{corpus.path}: entities would get another identity than those of the corpus")
    with folder_appearing_at(corpus.path / part_folder(len(corpus.parts))) as folder:
        writers = _collect(sentences, folder, corpus.known_ids, options)
        if not writers:
            raise CorpusError("there is no sentence to append")
        _check_users_stay(corpus, writers)
        new = {target for writer in writers.values() for target in writer.targets} - set(corpus.classes)
        _finish(folder, writers, [*corpus.classes, *sorted(new)], options, corpus.fingerprint, joined_at)
    return Corpus.open(corpus.path)


def _collect(
    sentences: Iterable[Sentence], folder: Path, known: Callable[[str], KnownIds | None], options: PartOptions
) -> dict[str, SplitWriter]:
    """Return a writer per split with its sentences, which are buffered in a folder inside ``folder``.

    A sentence's text is the final one; its entities are those of the original text.
    """
    identity, rewrite = options.get("identity", DEFAULT_IDENTITY), options.get("rewrite")
    scratch = folder / _SCRATCH
    scratch.mkdir()
    writers: dict[str, SplitWriter] = {}
    for original in sentences:
        entities = identity.entities(original)
        sentence = original if rewrite is None else rewrite(original)
        if sentence is None:
            continue
        writer = writers.get(sentence.split)
        if writer is None:
            split = sentence.split
            if not _SPLIT_NAME.fullmatch(split):  # which may come from data, and becomes part of a file's name
                raise CorpusError(f"split name {split!r} must be 1 to 64 letters, digits, hyphens or underscores")
            writer = writers[split] = SplitWriter(split, scratch, known(split))
            _check_number(len(writers), MAX_SPLITS, "splits")
        writer.add(sentence, entities)
    return writers


def _finish(
    folder: Path,
    writers: Mapping[str, SplitWriter],
    classes: Sequence[str],
    options: PartOptions,
    follows: str | None = None,
    joined_at: int = 1,
) -> None:
    """Write the tables, indexes and manifest of a part."""
    counts = {split: writer.write(folder, classes) for split, writer in writers.items()}
    shutil.rmtree(folder / _SCRATCH)
    files = {path.name: record_of(path) for path in sorted(folder.iterdir())}
    occurring = itertools.chain.from_iterable(writer.labels for writer in writers.values())
    identity = options.get("identity", DEFAULT_IDENTITY).manifest_settings()
    Manifest(
        name=options["name"],
        sources=dict(options.get("sources", {})),
        settings={**options.get("settings", {}), "identity": identity},
        tagger=dict(options.get("tagger", {"tagger": "gold"})),
        sought_labels=tuple(sorted({*options.get("sought_labels", ()), *occurring})),
        tools=tool_versions(options.get("tools", ())),
        classes=tuple(classes),
        notes={name: count for name, count in sorted(options.get("notes", {}).items()) if count},
        splits=counts,
        files=files,
        fingerprint=fingerprint_of(files, follows),
        follows=follows,
        joined_at=joined_at,
    ).write(folder)


def _check_number(number: int, most: int, what: str) -> None:
    """Raise :class:`CorpusError` for more classes, labels or splits than a corpus has."""
    if number > most:
        raise CorpusError(f"the source has more than {most:,} {what}; allowed: at most {most:,}")


def _check_users_stay(corpus: Corpus, writers: Mapping[str, SplitWriter]) -> None:
    """Check that no user moves to another split: a held-out user must not come to train, nor the other way round."""
    users_of = {split: set(corpus.users(split)["user"]) for split in corpus.splits}
    for split, writer in writers.items():
        for user in writer.new_users:
            home = next((name for name, users in users_of.items() if user in users), None)
            if home is not None:
                raise CorpusError(
                    f"user {user!r} is in split {home} of {corpus.path} and would be in split {split} of what is added"
                )


def _check_trainable(splits: Mapping[str, SplitWriter], needs_entities: bool) -> None:
    if not splits:
        raise CorpusError("the corpus has no sentence, so no user")
    if _TRAIN not in splits:
        raise CorpusError(f"the corpus has no {_TRAIN!r} split, only {', '.join(splits)}")
    train = splits[_TRAIN]
    if train.users < 2:
        raise CorpusError("the train split has one user; federated training needs at least two")
    if needs_entities and not train.entities:
        raise CorpusError(
            "the train split has no entity at all, so there is no entity to protect; "
            "check the entities column or choose another `tagger`"
        )
