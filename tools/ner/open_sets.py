"""Read the openly licensed sets that our tagger is trained and evaluated on, in fixed parts and one label scheme.

The parts do not depend on a seed: a held-out sentence is held out of every model of ours. The files are those of the
distributions, plain or compressed; none of them ships.

>>> [open_set.name for open_set in OPEN_SETS]
['wikigold', 'wnut17', 'btc', 'uner_ewt', 'uner_pud']
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fl_sim.data_prep.readers.iob import IobReader
from fl_sim.data_prep.readers.prepared_corpus import sentences_of_split
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.corpus import BUNDLED, Corpus
from fl_sim.data_prep.store.manifest import FileRecord, record_of
from fl_sim.data_prep.store.textfiles import stored_file
from fl_sim.data_prep.tagger_evaluation import GoldCorpus
from fl_sim.data_prep.tagger_scores import kind_of

LABELS = ("LOC", "MISC", "ORG", "PER")
"""The labels of our tagger: the scheme of CoNLL-2003."""

TRAIN, VALIDATION, TEST = "train", "validation", "test"


@dataclass(frozen=True)
class OpenSet:
    """A set in ``folder``: a part for each file, or None where ``cut`` decides, and which :data:`LABELS` it marks.

    ``cut`` maps a percentage in [0, 100), from a hash of the name of a document or run of sentences, to a part.
    """

    name: str
    folder: str
    files: dict[str, str | None]
    labels: tuple[str, ...]
    licence: str
    source: str
    cut: Callable[[int], str] = lambda percent: TRAIN


OPEN_SETS = (
    OpenSet(
        name="wikigold",
        folder="wikigold",
        files={"wikigold.conll.txt": None},
        labels=LABELS,
        licence="CC BY 4.0",
        source='Balasuriya, Ringland, Nothman, Murphy and Curran (2009), "Named Entity Recognition in Wikipedia"',
        cut=lambda percent: TEST if percent < 25 else VALIDATION if percent < 35 else TRAIN,
    ),
    OpenSet(
        name="wnut17",
        folder="wnut17",
        files={"wnut17train.conll": TRAIN, "emerging.dev.conll": VALIDATION, "emerging.test.annotated": TEST},
        labels=LABELS,
        licence="CC BY 4.0",
        source=(
            "Derczynski, Nichols, van Erp and Limsopatham (2017), "
            '"Results of the WNUT2017 Shared Task on Novel and Emerging Entity Recognition"'
        ),
    ),
    OpenSet(
        name="btc",
        folder="btc",
        files={**{f"{part}.conll": None for part in "abefg"}, "h.conll": TEST},
        labels=("LOC", "ORG", "PER"),
        licence="CC BY 4.0",
        source=(
            "Derczynski, Bontcheva and Roberts (2016), "
            '"Broad Twitter Corpus: A Diverse Named Entity Recognition Resource"'
        ),
        cut=lambda percent: VALIDATION if percent < 5 else TRAIN,
    ),
    OpenSet(
        name="uner_ewt",
        folder="uner",
        files={"en_ewt-ud-dev.iob2": None, "en_ewt-ud-test.iob2": TEST},
        labels=("LOC", "ORG", "PER"),
        licence="CC BY-SA 4.0",
        source='Mayhew et al. (2024), "Universal NER: A Gold-Standard Multilingual NER Benchmark" (English EWT)',
        cut=lambda percent: VALIDATION if percent < 10 else TRAIN,
    ),
    OpenSet(
        name="uner_pud",
        folder="uner",
        files={"en_pud-ud-test.iob2": TEST},
        labels=("LOC", "ORG", "PER"),
        licence="CC BY-SA 4.0",
        source='Mayhew et al. (2024), "Universal NER" (English PUD); measured on, never trained on',
    ),
)
"""In the order of the model card. BTC's file h and all of PUD are out of domain for models trained on the rest."""


@dataclass(frozen=True)
class NamedPart:
    """The sentences of one part of a set, train, validation or test, and those of :data:`LABELS` that it marks."""

    name: str
    part: str
    labels: tuple[str, ...]
    sentences: tuple[Sentence, ...]

    def gold(self) -> GoldCorpus:
        """Return the part to measure a tagger on."""
        texts = "\n".join(sentence.text for sentence in self.sentences)
        fingerprint = hashlib.sha256(texts.encode()).hexdigest()
        return GoldCorpus(self.name, self.part, fingerprint, lambda: iter(self.sentences))


def read_open_sets(source: Path, sets: Iterable[OpenSet] = OPEN_SETS) -> tuple[list[NamedPart], dict[str, FileRecord]]:
    """Return every part of the sets in ``source``, and size and checksum of each file by ``folder/name``.

    A set whose folder is absent is left out. A missing file is an error, because the parts would not be the documented
    ones. Labels are mapped to :data:`LABELS`; mentions of other kinds are dropped.

    Raises:
        CorpusError: ``source`` has none of the sets, or a file of a set is missing.
    """
    parts: list[NamedPart] = []
    records: dict[str, FileRecord] = {}
    for open_set in sets:
        if not (source / open_set.folder).is_dir():
            continue
        by_part: dict[str, list[Sentence]] = {}
        for name, part in open_set.files.items():
            path = stored_file(source / open_set.folder, name)
            if path is None:
                raise CorpusError(
                    f"{source / open_set.folder}: {name} (or .xz, .gz) is missing; the set is used whole or not at all"
                )
            records[f"{open_set.folder}/{path.name}"] = record_of(path)
            for sentence in _map_labels(IobReader(path).sentences_of(path, part or TRAIN)):
                where = part or open_set.cut(_percent(f"{open_set.name}:{sentence.user}"))
                by_part.setdefault(where, []).append(replace(sentence, split=where))
        for part_name, sentences in by_part.items():
            parts.append(NamedPart(open_set.name, part_name, open_set.labels, tuple(sentences)))
    if not parts:
        folders = ", ".join(sorted({open_set.folder for open_set in sets}))
        raise CorpusError(f"{source}: --source must be a folder with at least one of the folders {folders}")
    return parts, records


def synthetic_parts() -> list[NamedPart]:
    """Return the bundled corpus's train and validation splits; its public split is for tokenizers."""
    corpus = Corpus.open(BUNDLED)
    return [
        NamedPart("synthetic", split, LABELS, tuple(_map_labels(sentences_of_split(corpus, split))))
        for split in (TRAIN, VALIDATION)
    ]


def _map_labels(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    for sentence in sentences:
        kinds = [(mention, kind_of(mention.label)) for mention in sentence.mentions]
        yield replace(sentence, mentions=tuple(replace(m, label=kind) for m, kind in kinds if kind in LABELS))


def _percent(name: str) -> int:
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 100
