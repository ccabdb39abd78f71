"""Open a prepared corpus; its columns are read on demand from memory-mapped Parquet files.

>>> corpus = Corpus.open("bundled")
>>> corpus.splits
('train', 'validation', 'public')
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fl_sim.data_prep import SHIPPED_CORPORA, shipped_path
from fl_sim.data_prep.records import ChangedCorpusError, CorpusError, KnownIds
from fl_sim.data_prep.store.index import check_part, check_whole, open_index
from fl_sim.data_prep.store.layout import (
    CANARIES_FILE,
    COUNTS_FILE,
    ENTITIES,
    USERS,
    part_files,
    part_folder,
    readable,
    table_file,
)
from fl_sim.data_prep.store.manifest import Manifest, fingerprint_of, read_manifest, sum_counts
from fl_sim.data_prep.store.ownership import Ownership, join_parts
from fl_sim.files import sha256_of
from fl_sim.formats import counted, printable

if TYPE_CHECKING:
    import pandas as pd  # takes as long to import as everything else here

BUNDLED = "bundled"
"""The name that opens the corpus of made-up users that ships with the project."""

_PART_FOLDER = re.compile(r"append-\d{4,}")  # a split may be called so, but its files are no folders

HELD_OUT_SPLITS = ("validation", "test")


@dataclass(frozen=True)
class Part:
    """What was written to a corpus at once: the first part in its folder, an appended part in a folder below."""

    folder: Path
    manifest: Manifest


@dataclass(frozen=True)
class Corpus:
    """A folder made by :func:`fl_sim.data_prep.corpus_writer.write_corpus`, with its appended parts.

    Ids of sentences, users and entities count from 0 in every split and never change; appended ones are numbered on.
    Sentences are stored part by part, and by user within a part.

    Attributes:
        path: the folder.
        manifest: the first part's, with the ``splits``, ``classes`` and ``fingerprint`` of all parts together.
        parts: in the order in which they were appended.
    """

    path: Path
    manifest: Manifest
    parts: tuple[Part, ...]

    @classmethod
    def open(cls, path: Path | str, *, verify: bool = False, fingerprint: str | None = None) -> Corpus:
        """Open a prepared corpus, after checking presence and size of every file.

        Args:
            path: the folder; the texts ``"bundled"`` and ``"irc"`` mean corpora that ship.
            verify: whether to check every checksum, too, and all that is stored about users and entities against the
                incidence, because ε depends on it.
            fingerprint: opens the corpus as it was when it had this fingerprint, without later parts.

        Raises:
            CorpusError: the folder is absent, no corpus, incomplete or damaged.
            ChangedCorpusError: no state of the corpus had that fingerprint.
        """
        folder = shipped_path(path) if isinstance(path, str) and path in SHIPPED_CORPORA else Path(path)
        parts = _parts(folder)
        if fingerprint is not None:
            fingerprints = [part.manifest.fingerprint for part in parts]
            if fingerprint not in fingerprints:
                raise ChangedCorpusError(
                    f"{folder}: the corpus has changed; it has no state with fingerprint {fingerprint[:12]}…"
                )
            parts = parts[: fingerprints.index(fingerprint) + 1]
        splits: set[str] = set()
        for part in parts:
            _check_files(part, splits, verify)
            splits |= set(part.manifest.splits)
        corpus = cls(path=folder, manifest=_combined_manifest(parts), parts=parts)
        for split in corpus.splits if verify else ():
            corpus._check(split)
        return corpus

    def __repr__(self) -> str:
        """The corpus in one line: its name, and the users and sentences of its splits."""
        splits = self.manifest.splits.items()
        counts = "; ".join(
            f"{name} {counted(each.users, 'user')}, {counted(each.sentences, 'sentence')}" for name, each in splits
        )
        return f"Corpus({printable(self.manifest.name)}: {printable(counts)})"

    def _repr_html_(self) -> str:
        """What a notebook shows: a row for each split."""
        import pandas as pd

        counts = {printable(split): record.model_dump() for split, record in self.manifest.splits.items()}
        table = pd.DataFrame.from_dict(counts, orient="index").rename_axis(columns=printable(self.manifest.name))
        return table.to_html(formatters=["{:,}".format] * table.shape[1])

    @property
    def shipped_name(self) -> str | None:
        """The name that opens the corpus; None for one that does not ship."""
        name = self.path.name
        return name if name in SHIPPED_CORPORA and self.path == shipped_path(name) else None

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.manifest.splits)

    @property
    def held_out_split(self) -> str:
        """The split to evaluate on: ``validation``, else ``test``; :class:`CorpusError` if neither exists."""
        for split in HELD_OUT_SPLITS:
            if split in self.manifest.splits:
                return split
        raise CorpusError(
            f"{self.path}: no held-out split ({' or '.join(HELD_OUT_SPLITS)}), only {', '.join(self.splits)}"
        )

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the data files: equal fingerprints mean the same corpus."""
        return self.manifest.fingerprint

    @property
    def fingerprints(self) -> frozenset[str]:
        """The fingerprint, those before sentences were appended, and those of all corpora that this one was made of."""
        settings = [part.manifest.settings for part in self.parts]
        places = [*settings, *(one["deidentified"] for one in settings if isinstance(one.get("deidentified"), dict))]
        made_of = " ".join(f"{place.get('parent', '')} {place.get('before', '')}" for place in places).split()
        return frozenset([*(part.manifest.fingerprint for part in self.parts), *made_of])

    @property
    def as_parent(self) -> dict[str, str]:
        """What a corpus made of this one records of it: its fingerprint, and before it those of what it was made of."""
        before = " ".join(sorted(self.fingerprints - {self.fingerprint}))
        return {"parent": self.fingerprint} | ({"before": before} if before else {})

    @property
    def has_canaries(self) -> bool:
        """Whether canaries were planted (:mod:`fl_sim.data_prep.canaries`)."""
        return CANARIES_FILE in self.manifest.files

    @property
    def has_text(self) -> bool:
        """Whether the training text is here, and not with nodes (:mod:`fl_sim.data_prep.declared_counts`)."""
        return COUNTS_FILE not in self.manifest.files

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of an ε of a training on this corpus must know about any part of it, a sentence each."""
        every = (warning for part in self.parts for warning in part.manifest.settings.get("warnings", ()))
        return tuple(dict.fromkeys(every))

    def ownership(self, split: str) -> Ownership:
        """Return the incidence of users, sentences and entities of ``split``; memory-mapped, and checked.

        The arrays of several parts are joined in memory, and have no stored profiles.
        """
        return join_parts([index for _, index in self._indexes(split)])

    def _check(self, split: str) -> None:
        """Check all that is stored about ``split`` against its incidence; raise CorpusError if they differ."""
        indexes = self._indexes(split)
        for part, index in indexes:
            check_part(part.folder, split, index)
        check_whole(self.path, split, join_parts([index for _, index in indexes]))

    def _indexes(self, split: str) -> list[tuple[Part, Ownership]]:
        """Return the parts with ``split``, each with its incidence."""
        indexes: list[tuple[Part, Ownership]] = []
        num_users = num_entities = 0
        for part in self._parts_with(split):
            counts = part.manifest.splits[split]
            num_users += counts.users
            num_entities += counts.entities
            index = open_index(part.folder, split, num_entities, profiles=not indexes)
            if (index.num_users, index.num_sentences) != (num_users, counts.sentences):
                raise CorpusError(f"{part.folder}: the index of split {split} is not of the counts in the manifest")
            indexes.append((part, index))
        return indexes

    def texts(self, split: str) -> pa.ChunkedArray:
        """Return the texts of the sentences; row = sentence id."""
        return self._read(split, "sentences", ["text"]).column("text")

    def sentences(self, split: str) -> pd.DataFrame:
        """Return one row per sentence, index = sentence id: user (its id), text, mentions (how many), and class.

        ``class`` is None for a sentence without one; a corpus without classes has no such column.

        Raises:
            CorpusError: the corpus has no such split.
        """
        import pandas as pd

        mentions = self.mentions(split).column("sentence").to_numpy()
        per_sentence = np.bincount(mentions, minlength=self.manifest.splits[split].sentences)
        columns: dict[str, object] = {
            "user": self.ownership(split).user_of_sentence,
            "text": self.texts(split).to_pandas(),
            "mentions": per_sentence,
        }
        if self.classes:
            names = np.array([*self.classes, None], dtype=object)  # -1, no class, is the last
            columns["class"] = names[self.targets(split)]
        return pd.DataFrame(columns)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; empty for a corpus without classes."""
        return self.manifest.classes

    def targets(self, split: str) -> NDArray[np.int32]:
        """Return the class of each sentence, int32 (S,): its position in :attr:`classes`, -1 for none."""
        return self._read(split, "sentences", ["target"]).column("target").to_numpy()

    def mentions(self, split: str) -> pa.Table:
        """Return all mentions, one row each: sentence (int64), start, end (int32, characters), label (string)."""
        columns = ["mention_start", "mention_end", "mention_label"]
        table = self._read(split, "sentences", columns).combine_chunks()
        starts, ends, labels = (table.column(name).combine_chunks() for name in columns)
        per_sentence = np.diff(starts.offsets.to_numpy())
        sentence = np.repeat(np.arange(table.num_rows, dtype=np.int64), per_sentence)
        arrays = [pa.array(sentence), starts.flatten(), ends.flatten(), labels.flatten()]
        return pa.Table.from_arrays(arrays, names=["sentence", "start", "end", "label"])

    def users(self, split: str) -> pd.DataFrame:
        """Return the users, index = user id: user (the key in the source), sentences (their number)."""
        users = self._read(split, "users", USERS.names).to_pandas().groupby("user_id", sort=True)
        return users.agg({"user": "first", "sentences": "sum"}).rename_axis(None)

    def entities(self, split: str) -> pd.DataFrame:
        """Return the entities, index = entity id: entity (the key), labels, users, sentences, max_per_user."""
        table = self._read(split, "entities", ENTITIES.names).to_pandas().set_index("entity_id").rename_axis(None)
        if len(self._parts_with(split)) == 1:
            return table
        labels = table["labels"].groupby(level=0).agg(lambda parts: sorted(set().union(*parts)))
        table = table[~table.index.duplicated()].assign(labels=labels)
        contributions = self.ownership(split).entity_contributions()
        return table.assign(
            users=contributions.users, sentences=contributions.sentences, max_per_user=contributions.max_per_user
        )

    def known_ids(self, split: str) -> KnownIds | None:
        """Return the ids of the users and entities of ``split`` by their keys; None if there is no such split."""
        if split not in self.manifest.splits:
            return None
        users = self._read(split, "users", ["user"]).column("user").to_pylist()
        entities = self._read(split, "entities", ["entity"]).column("entity").to_pylist()
        ids = ({key: number for number, key in enumerate(dict.fromkeys(keys))} for keys in (users, entities))
        return KnownIds(*ids)

    def _parts_with(self, split: str) -> list[Part]:
        if split not in self.manifest.splits:
            raise CorpusError(f"{self.path}: no split {split!r}, only {', '.join(self.splits)}")
        return [part for part in self.parts if split in part.manifest.splits]

    def _read(self, split: str, table: str, columns: Sequence[str]) -> pa.Table:
        files = [part.folder / table_file(split, table) for part in self._parts_with(split)]
        return pa.concat_tables([_read_table(path, columns) for path in files])


def _read_table(path: Path, columns: Sequence[str]) -> pa.Table:
    with readable(path):
        table = pq.read_table(path, columns=list(columns), memory_map=True)
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise CorpusError(f"{path}: no column {', '.join(missing)}")
    return table


def _parts(folder: Path) -> tuple[Part, ...]:
    """Return all parts in ``folder``; each must follow the one before."""
    parts = [Part(folder, read_manifest(folder))]
    while (below := folder / part_folder(len(parts))).is_dir():
        part = Part(below, read_manifest(below))
        if part.manifest.follows != parts[-1].manifest.fingerprint:
            raise CorpusError(f"{below}: was not appended to the corpus in {folder} as it is; prepare it again")
        parts.append(part)
    found = {path for path in folder.iterdir() if _PART_FOLDER.fullmatch(path.name) and path.is_dir()}
    strays = found - {part.folder for part in parts}
    if strays:
        raise CorpusError(f"{folder}: {part_folder(len(parts))} is missing, but {min(strays).name} is there")
    if parts[0].manifest.follows is not None:
        raise CorpusError(f"{folder}: is a part of another corpus; open the folder that it lies in")
    return tuple(parts)


def _combined_manifest(parts: Sequence[Part]) -> Manifest:
    """Return the first manifest with the counts, classes and fingerprint of all parts."""
    first, last = parts[0].manifest, parts[-1].manifest
    names = dict.fromkeys(split for part in parts for split in part.manifest.splits)
    counts = {
        split: sum_counts(part.manifest.splits[split] for part in parts if split in part.manifest.splits)
        for split in names
    }
    return first.model_copy(update={"splits": counts, "classes": last.classes, "fingerprint": last.fingerprint})


def _check_files(part: Part, before: Container[str], verify: bool) -> None:
    manifest, folder = part.manifest, part.folder
    expected = {name for split in manifest.splits for name in part_files(split, first=split not in before)}
    if (
        expected != set(manifest.files) - {CANARIES_FILE, COUNTS_FILE}
        or fingerprint_of(manifest.files, manifest.follows) != manifest.fingerprint
    ):
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
