"""Read a prepared corpus back as sentences, to prepare it again: with canaries, another identity, or preprocessing.

>>> sentence = next(sentences_of(Corpus.open("bundled")))
>>> sentence.split, sentence.user
('train', 'train-00001')
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fl_sim.data_prep.readers.cleaning import Cleaning, Reading
from fl_sim.data_prep.readers.raw_corpora import RawCorpus
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.layout import table_file


def prepared_corpus(source: str, cleaning: Cleaning | None = None) -> RawCorpus:
    """Return a prepared corpus as a raw one: its texts, users, splits, classes and mentions.

    Args:
        source: a folder, or the name of a corpus that ships.
        cleaning: how to treat bad text.

    Raises:
        CorpusError: the folder is no prepared corpus, has appended parts or canaries, or was prepared with links within
            documents, which it does not name.
    """
    corpus = Corpus.open(source)
    settings = corpus.manifest.settings
    if len(corpus.parts) > 1:
        raise CorpusError(f"{corpus.path}: has appended parts; allowed with prepared: a corpus of one part")
    if corpus.has_canaries:
        raise CorpusError(f"{corpus.path}: has canaries; allowed with prepared: the corpus without them")
    if settings.get("identity", {}).get("link_within_document"):
        raise CorpusError(f"{corpus.path}: names are linked within documents; allowed with prepared: no such links")

    warnings = {"warnings": list(corpus.warnings)} if corpus.warnings else {}

    def read(reading: Reading) -> Iterator[Sentence]:
        return reading.clean(sentences_of(corpus), split_sentences=False)

    return RawCorpus.from_files(
        "prepared",
        corpus.manifest.name,
        read,
        {(name := table_file(split, "sentences")): corpus.path / name for split in corpus.splits},
        cleaning=cleaning,
        settings={"parent": corpus.fingerprint, "parent_tagger": dict(corpus.manifest.tagger), **warnings},
        has_gold=True,
    )


def sentences_of(corpus: Corpus, part: int = 0) -> Iterator[Sentence]:
    """Yield the sentences of one part of ``corpus``, split by split, in the order of their ids."""
    for split in corpus.parts[part].manifest.splits:
        counts = [p.manifest.splits[split].sentences if split in p.manifest.splits else 0 for p in corpus.parts]
        first = sum(counts[:part])
        yield from _rows(corpus, split, first, first + counts[part])


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
