"""Read a prepared corpus back as sentences, to prepare it again: with canaries, another identity, or preprocessing.

It can be read with fewer users: of each split those whose keys have the smallest hashes.

>>> sentence = next(sentences_of(Corpus.open("bundled")))
>>> sentence.split, sentence.user
('train', 'train-00001')
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.readers.cleaning import Preprocessing, Reading
from fl_sim.data_prep.readers.reader import RawCorpus
from fl_sim.data_prep.readers.tables import TRAIN
from fl_sim.data_prep.records import OF_THIS_CORPUS, CorpusError, Mention, Sentence, StoredEntities
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.layout import table_file

_PREPROCESSING = tuple(field.name for field in fields(Preprocessing))

FEWER = (
    "At most {most:,} users were kept, those with the smallest hashes: where one is taken out of the source, or loses "
    f"every sentence with an entity that is, another comes in. {OF_THIS_CORPUS}; of a user of the source it is that of "
    "two users."
)


@dataclass(frozen=True, kw_only=True)
class PreparedReader:
    """A corpus that is prepared already, or ships: its texts, users, splits, classes and marks.

    Entities of preprocessed text are those that were identified before it was preprocessed.

    Attributes:
        source: A folder made by fl-sim prepare, or: bundled, irc.
        max_users: Keep at most N users of each split, by a hash.

    Raises:
        CorpusError: ``max_users`` is below 1.
    """

    source: str
    max_users: int | None = None

    def __post_init__(self) -> None:
        if self.max_users is not None and self.max_users < 1:
            raise CorpusError(f"max-users is {self.max_users}; allowed: an integer of at least 1")

    def read(self) -> RawCorpus:
        """Return the prepared corpus as a raw one.

        Raises:
            CorpusError: the folder is no prepared corpus, or has appended parts or canaries.
        """
        corpus = Corpus.open(self.source)
        if len(corpus.parts) > 1:
            raise CorpusError(f"{corpus.path}: has appended parts; allowed with prepared: a corpus of one part")
        if corpus.has_canaries:
            raise CorpusError(f"{corpus.path}: has canaries; allowed with prepared: the corpus without them")
        kept = {split: _smallest(corpus, split, self.max_users) for split in corpus.splits}

        preprocessed = {name: True for name in _PREPROCESSING if corpus.manifest.settings.get(name)}

        def read(reading: Reading) -> Iterator[Sentence]:
            sentences = _with_entities(corpus) if preprocessed else sentences_of(corpus)
            chosen = (s for s in sentences if (users := kept[s.split]) is None or s.user in users)
            return chosen if preprocessed else reading.clean(chosen)  # preprocessed text was cleaned before

        settings: dict[str, object] = {**corpus.as_parent, "parent_tagger": dict(corpus.manifest.tagger)}
        settings |= preprocessed
        settings |= {} if self.max_users is None else {"max_users": self.max_users}
        of_train = kept.get(TRAIN)
        fewer = of_train is not None and len(of_train) < corpus.manifest.splits[TRAIN].users
        warnings = [*corpus.warnings, *([FEWER.format(most=self.max_users)] if fewer else [])]
        settings |= {"warnings": warnings} if warnings else {}
        files = {(name := table_file(split, "sentences")): corpus.path / name for split in corpus.splits}
        raw = RawCorpus.from_files("prepared", corpus.manifest.name, read, files, settings=settings, has_gold=True)
        return replace(raw, identity=Identity.of_corpus(corpus.manifest.settings), stores_entities=bool(preprocessed))


def is_preprocessed(corpus: Corpus) -> bool:
    """Return whether text of a corpus was preprocessed, so that it no longer tells the keys of all names."""
    return any(part.manifest.settings.get(name) for part in corpus.parts for name in _PREPROCESSING)


def sentences_of(corpus: Corpus, part: int = 0) -> Iterator[Sentence]:
    """Yield the sentences of one part of ``corpus``, split by split, in the order of their ids."""
    for split in corpus.parts[part].manifest.splits:
        counts = [p.manifest.splits[split].sentences if split in p.manifest.splits else 0 for p in corpus.parts]
        first = sum(counts[:part])
        yield from _rows(corpus, split, first, first + counts[part])


def sentences_of_split(corpus: Corpus, split: str) -> Iterator[Sentence]:
    """Yield the sentences of a split, of all parts of ``corpus``, in the order of their ids."""
    return _rows(corpus, split, 0, corpus.manifest.splits[split].sentences)


def _with_entities(corpus: Corpus) -> Iterator[Sentence]:
    """Yield the sentences of a corpus of one part with the entities that they had before they were preprocessed.

    Which of its labels an entity has in a sentence is not stored, so it has them all.
    """
    for split in corpus.splits:
        ownership, table = corpus.ownership(split), corpus.entities(split)
        named = [
            tuple((key, label) for label in labels)
            for key, labels in zip(table["entity"], table["labels"], strict=True)
        ]
        ids, offsets = ownership.entity_ids.tolist(), ownership.entity_offsets.tolist()
        for row, sentence in enumerate(sentences_of_split(corpus, split)):
            known = itertools.chain.from_iterable(named[number] for number in ids[offsets[row] : offsets[row + 1]])
            yield replace(sentence, stored=StoredEntities(tuple(known), frozenset(sentence.mentions)))


def _smallest(corpus: Corpus, split: str, most: int | None) -> frozenset[str] | None:
    """Return the users of a split whose keys have the smallest hashes; None for all."""
    if most is None:
        return None
    users = map(str, corpus.users(split)["user"])
    return frozenset(sorted(users, key=lambda user: hashlib.sha256(user.encode()).digest())[:most])


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
