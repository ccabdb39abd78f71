"""Read a prepared corpus back as sentences, to prepare it again: with canaries, another identity, or preprocessing.

It can be read in part. Without users or entities, to train a model that never saw them: without an entity, every
sentence is left out that mentions it or has the words of one of its names, marked or not, in any split. And with fewer
users: of each split those whose keys have the smallest hashes.

>>> sentence = next(sentences_of(Corpus.open("bundled")))
>>> sentence.split, sentence.user
('train', 'train-00001')
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fl_sim.data_prep.identity import Identity, NameIndex
from fl_sim.data_prep.readers.cleaning import Reading
from fl_sim.data_prep.readers.reader import RawCorpus
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.layout import table_file


@dataclass(frozen=True, kw_only=True)
class PreparedReader:
    """A corpus that is prepared already, or ships: its texts, users, splits, classes and marks.

    Attributes:
        source: A folder made by fl-sim prepare, or: bundled, irc.
        max_users: Keep at most N users of each split, by a hash.
        without_user: Leave out this user.
        without_entity: Leave out all sentences with this name.

    Raises:
        CorpusError: ``max_users`` is below 1.
    """

    source: str
    max_users: int | None = None
    without_user: tuple[str, ...] = ()
    without_entity: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_users is not None and self.max_users < 1:
            raise CorpusError(f"max-users is {self.max_users}; allowed: an integer of at least 1")

    def read(self) -> RawCorpus:
        """Return the prepared corpus as a raw one.

        Raises:
            CorpusError: a user or an entity to leave out is not in the corpus; or the folder is no prepared corpus, or
                has appended parts or canaries.
        """
        corpus = Corpus.open(self.source)
        if len(corpus.parts) > 1:
            raise CorpusError(f"{corpus.path}: has appended parts; allowed with prepared: a corpus of one part")
        if corpus.has_canaries:
            raise CorpusError(f"{corpus.path}: has canaries; allowed with prepared: the corpus without them")
        left_out = _LeftOut(corpus, self)

        def read(reading: Reading) -> Iterator[Sentence]:
            return reading.clean(sentence for sentence in sentences_of(corpus) if not left_out.has(sentence))

        settings: dict[str, object] = {"parent": corpus.fingerprint, "parent_tagger": dict(corpus.manifest.tagger)}
        given = {"users": sorted(self.without_user), "entities": sorted(self.without_entity)}
        without: dict[str, object] = {name: values for name, values in given.items() if values}
        if self.max_users is not None:
            without["users_beyond"] = self.max_users
        settings |= {"without": without} if without else {}
        settings |= {"warnings": list(corpus.warnings)} if corpus.warnings else {}
        files = {(name := table_file(split, "sentences")): corpus.path / name for split in corpus.splits}
        return RawCorpus.from_files("prepared", corpus.manifest.name, read, files, settings=settings, has_gold=True)


def sentences_of(corpus: Corpus, part: int = 0) -> Iterator[Sentence]:
    """Yield the sentences of one part of ``corpus``, split by split, in the order of their ids."""
    for split in corpus.parts[part].manifest.splits:
        counts = [p.manifest.splits[split].sentences if split in p.manifest.splits else 0 for p in corpus.parts]
        first = sum(counts[:part])
        yield from _rows(corpus, split, first, first + counts[part])


def sentences_of_split(corpus: Corpus, split: str) -> Iterator[Sentence]:
    """Yield the sentences of a split, of all parts of ``corpus``, in the order of their ids."""
    return _rows(corpus, split, 0, corpus.manifest.splits[split].sentences)


class _LeftOut:
    """Says which sentences of a corpus are left out."""

    def __init__(self, corpus: Corpus, without: PreparedReader) -> None:
        """Find whom to leave out; raise CorpusError for one that the corpus does not have."""
        self._identity = Identity.of_corpus(corpus.manifest.settings)
        self._users = frozenset(without.without_user)
        self._kept = {split: _smallest(corpus, split, without.max_users) for split in corpus.splits}
        known = {str(user) for split in corpus.splits for user in corpus.users(split)["user"]}
        for user in without.without_user:
            if user not in known:
                raise CorpusError(f"without-user is '{user}'; allowed: a user of {corpus.path}")
        self._surfaces: dict[str, set[str]] = {self._identity.key(name): set() for name in without.without_entity}
        for sentence in sentences_of(corpus) if self._surfaces else ():
            for surface in _surfaces(sentence):
                self._surfaces.get(self._identity.key(surface), set()).add(surface)
        for name in without.without_entity:
            if not self._surfaces[self._identity.key(name)]:
                raise CorpusError(f"without-entity is '{name}'; allowed: an entity that {corpus.path} mentions")
        self._index = NameIndex(surface for surfaces in self._surfaces.values() for surface in surfaces)

    def has(self, sentence: Sentence) -> bool:
        """Return whether a sentence is left out."""
        kept = self._kept[sentence.split]
        if sentence.user in self._users or (kept is not None and sentence.user not in kept):
            return True
        if not self._surfaces:
            return False
        marked = any(self._identity.key(surface) in self._surfaces for surface in _surfaces(sentence))
        return marked or bool(self._index.names_in(sentence.text))


def _smallest(corpus: Corpus, split: str, most: int | None) -> frozenset[str] | None:
    """Return the users of a split whose keys have the smallest hashes; None for all."""
    if most is None:
        return None
    users = map(str, corpus.users(split)["user"])
    return frozenset(sorted(users, key=lambda user: hashlib.sha256(user.encode()).digest())[:most])


def _surfaces(sentence: Sentence) -> Iterator[str]:
    return (sentence.text[mention.start : mention.end] for mention in sentence.mentions)


def _rows(corpus: Corpus, split: str, first: int, stop: int) -> Iterator[Sentence]:
    users = corpus.users(split)["user"].tolist()
    owners = corpus.ownership(split).user_of_sentence
    targets = corpus.targets(split)
    texts = corpus.texts(split)
    table = corpus.mentions(split)
    starts, ends = (table.column(name).to_numpy() for name in ("start", "end"))
    labels = table.column("label").to_pylist()
    bounds = np.searchsorted(table.column("sentence").to_numpy(), np.arange(first, stop + 1))
    for row in range(first, stop):
        indices = range(bounds[row - first], bounds[row - first + 1])
        target = int(targets[row])
        yield Sentence(
            split,
            users[owners[row]],
            texts[row].as_py(),
            tuple(Mention(int(starts[i]), int(ends[i]), labels[i]) for i in indices),
            target=corpus.classes[target] if target >= 0 else None,
        )
