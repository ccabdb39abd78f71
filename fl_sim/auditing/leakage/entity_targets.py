"""The entities that attacks look for: those of the training split whose names stand in no public text.

A model may know a name from public text, or from the language itself ("May", "Bill"). A name therefore counts as
*private* if its words follow one another in no text of the other splits, marked or not, and in no public text that is
given. Names are compared by their words, without case and punctuation; those with fewer than three letters or digits
are left out. Which mentions are one entity is decided by the corpus's identity (docs/identity.md).

Figures are means over entities, by kind (:mod:`fl_sim.data_prep.taggers.categories`) and by the number of mentions in
the training split (1, 2–3, 4–7, …). Intervals are bootstraps over entities.

>>> [bin_of(mentions) for mentions in (1, 2, 3, 4, 100)]
[(1, 1), (2, 3), (2, 3), (4, 7), (64, 127)]
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_sim.auditing.leakage.canary_exposure import check_next_word, figure_record
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import held_out
from fl_sim.clients.tasks import HeldOut
from fl_sim.data_prep.identity import Identity, Name, NameIndex, name_of
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.taggers.categories import category_of
from fl_sim.experiments.held_out_users.bootstrap import Figure, intervals

METHOD = "percentile bootstrap over entities, 95 %"

Floats = NDArray[np.float64]

_POSSESSIVE = re.compile(r"\s*['’][sS]$")
_FEWEST_CHARACTERS = 3


class NoEntityError(CorpusError):
    """Report that a corpus has no entity that an attack could look for; one line that says why."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A mention in its sentence; a possessive 's belongs to what follows.

    Attributes:
        before, name, after: the text of the sentence around the name.
    """

    before: str
    name: str
    after: str

    @classmethod
    def of(cls, text: str, start: int, end: int) -> Occurrence:
        """Return the mention of the characters ``[start, end)`` of ``text``."""
        tail = _POSSESSIVE.search(text[start:end])
        if tail and tail.start():
            end = start + tail.start()
        return cls(text[:start], text[start:end], text[end:])

    def with_name(self, name: str) -> str:
        """Return the sentence with another name."""
        return f"{self.before}{name}{self.after}"


@dataclass(frozen=True, slots=True)
class Target:
    """A private entity of the training split.

    Attributes:
        key: of its identity.
        kind: its category.
        name: its commonest surface.
        mentions: how many there are in the training split.
        occurrences: of these.
    """

    key: str
    kind: str
    name: str
    mentions: int
    occurrences: tuple[Occurrence, ...]

    def names(self) -> set[Name]:
        """Return the words of its surfaces."""
        return {name_of(occurrence.name) for occurrence in self.occurrences}


@dataclass(frozen=True)
class TrainingEntities:
    """The private entities of a training split, and the names of all entities of the corpus.

    Attributes:
        targets: the private ones, in the order of their first mentions.
        known: the names of all other entities of any split.
        identity: of the corpus.
    """

    targets: tuple[Target, ...]
    known: frozenset[Name]
    identity: Identity

    @classmethod
    def of(cls, corpus: Corpus, split: str, public_texts: Iterable[str] = ()) -> TrainingEntities:
        """Return the entities of a split, by the mentions of the corpus.

        Args:
            corpus: the attacked text; of a de-identified corpus, the one with the names.
            split: the training split; all other splits are public here.
            public_texts: further texts that the attacker knows.

        Raises:
            NoEntityError: the split has no private entity.
        """
        identity = Identity.of_corpus(corpus.manifest.settings)
        mentioned = _entities(corpus, split, identity)
        index = NameIndex(surface for entity in mentioned.values() for surface in entity.surfaces)
        others = [name for name in corpus.splits if name != split]
        public = _names_in_public(corpus, split, index, public_texts)
        targets = tuple(entity.target(key) for key, entity in mentioned.items() if entity.is_private(public))
        if not targets:
            raise NoEntityError(
                f"{corpus.path}: no entity of split {split} is private; allowed: one that no public text has"
            )
        theirs = {name_of(surface) for name in others for surface in _surfaces(corpus, name)}
        all_names = {name_of(surface) for entity in mentioned.values() for surface in entity.surfaces} | theirs
        private = {name for target in targets for name in target.names()}
        return cls(targets, frozenset(all_names - private - {()}), identity)

    def sample(self, most: int, rng: np.random.Generator) -> list[int]:
        """Return the positions of at most ``most`` targets, drawn uniformly, sorted."""
        return sorted(rng.permutation(len(self.targets))[:most].tolist())


@dataclass(frozen=True, slots=True)
class NamedEntity:
    """One entity of a training split, chosen by its name.

    Attributes:
        target: the entity.
        others: the other entities of its kind in the split.
        is_private: whether no other split has its name.
        identity: of the corpus.
    """

    target: Target
    others: tuple[Target, ...]
    is_private: bool
    identity: Identity

    @classmethod
    def find(cls, corpus: Corpus, split: str, name: str) -> NamedEntity:
        """Return the entity that the corpus's identity gives to ``name``.

        Raises:
            CorpusError: the split has no mention of it.
        """
        identity = Identity.of_corpus(corpus.manifest.settings)
        entities, key = _entities(corpus, split, identity), identity.key(name)
        if key not in entities:
            raise CorpusError(f"entity is '{name}'; allowed: one that split {split} of {corpus.path} mentions")
        target = entities[key].target(key)
        others = [entity.target(other) for other, entity in entities.items() if other != key]
        public = _names_in_public(corpus, split, NameIndex(entities[key].surfaces))
        same_kind = tuple(other for other in others if other.kind == target.kind)
        return cls(target, same_kind, entities[key].is_private(public), identity)


@dataclass(frozen=True, slots=True)
class EntityGroup:
    """Means over the entities of one kind, with one number of mentions, or over all.

    Attributes:
        kind: of the entities; None for any.
        mentions: the fewest and the most mentions; None for any number.
        entities: how many there are.
        figures: the means, by name.
    """

    kind: str | None
    mentions: tuple[int, int] | None
    entities: int
    figures: Mapping[str, Figure]

    def record(self) -> dict[str, Any]:
        """Return the group as JSON values."""
        figures = {name: figure_record(figure) for name, figure in self.figures.items()}
        return {"kind": self.kind, "mentions": self.mentions, "entities": self.entities, **figures}


def grouped(
    targets: Sequence[Target], values: Mapping[str, Floats], rng: np.random.Generator, resamples: int = 1000
) -> list[EntityGroup]:
    """Return the means of values over all targets, by kind, and by number of mentions.

    Args:
        targets: the n entities.
        values: float64 (n,) each, by the name of the figure.
        rng: draws the resamples of the bootstrap.
        resamples: how many.
    """
    kinds = np.array([target.kind for target in targets], dtype=object)
    bins = [bin_of(target.mentions) for target in targets]
    everyone = np.ones(len(targets), dtype=bool)
    chosen: list[tuple[str | None, tuple[int, int] | None, NDArray[np.bool_]]] = [(None, None, everyone)]
    chosen += [(kind, None, kinds == kind) for kind in sorted(set(kinds))]
    chosen += [(None, mentions, np.array([other == mentions for other in bins])) for mentions in sorted(set(bins))]
    groups = []
    for kind, mentions, rows in chosen:
        sums = np.stack(
            [column[rows] for value in values.values() for column in (value, everyone.astype(float))], axis=1
        )
        figures = dict(zip(values, intervals(sums, rng, resamples), strict=True))
        groups.append(EntityGroup(kind, mentions, int(rows.sum()), figures))
    return groups


def bin_of(mentions: int) -> tuple[int, int]:
    """Return the fewest and the most mentions of the group of an entity: a power of two, and below the next."""
    fewest = 1 << (mentions.bit_length() - 1)
    return fewest, 2 * fewest - 1


def fitting_occurrence(model: LanguageModel, target: Target, rng: np.random.Generator) -> Occurrence | None:
    """Return a mention whose sentence fits into the model's context, drawn uniformly; None without one."""
    for number in rng.permutation(len(target.occurrences)).tolist():
        occurrence = target.occurrences[number]
        if fits(model, occurrence.with_name(occurrence.name)):
            return occurrence
    return None


def fits(model: LanguageModel, text: str) -> bool:
    """Return whether a text is not cut to the model's context."""
    return int(model.encode([text])[0].tokens[-1]) == model.eos_id


def read(model: LanguageModel, texts: Sequence[str]) -> HeldOut:
    """Return the losses of a next-word model on texts; ``losses`` are their log-perplexities per token, in nats.

    Raises:
        ModelError: the model predicts classes.
    """
    check_next_word(model)
    return held_out(model, model.encode(texts))


class _Entity:
    """The mentions of an entity, while they are collected."""

    def __init__(self) -> None:
        self.surfaces: Counter[str] = Counter()
        self._labels: Counter[str] = Counter()
        self._occurrences: list[Occurrence] = []

    def add(self, occurrence: Occurrence, label: str) -> None:
        self.surfaces[occurrence.name] += 1
        self._labels[label] += 1
        self._occurrences.append(occurrence)

    def is_private(self, public: set[Name]) -> bool:
        names = {name_of(surface) for surface in self.surfaces}
        return not names & public and all(sum(map(len, name)) >= _FEWEST_CHARACTERS for name in names)

    def target(self, key: str) -> Target:
        kind = str(category_of(self._labels.most_common(1)[0][0]))
        name = self.surfaces.most_common(1)[0][0]
        return Target(key, kind, name, len(self._occurrences), tuple(self._occurrences))


def _entities(corpus: Corpus, split: str, identity: Identity) -> dict[str, _Entity]:
    entities: dict[str, _Entity] = defaultdict(_Entity)
    for text, start, end, label in _mentions(corpus, split):
        entities[identity.key(text[start:end])].add(Occurrence.of(text, start, end), label)
    return entities


def _names_in_public(corpus: Corpus, split: str, index: NameIndex, public_texts: Iterable[str] = ()) -> set[Name]:
    """Return the names of an index that stand in a text of another split, or in a public one."""
    others = (str(text) for name in corpus.splits if name != split for text in corpus.texts(name).to_pylist())
    return {name for text in (*others, *public_texts) for name in index.names_in(text)}


def _surfaces(corpus: Corpus, split: str) -> Iterator[str]:
    for text, start, end, _ in _mentions(corpus, split):
        yield Occurrence.of(text, start, end).name


def _mentions(corpus: Corpus, split: str) -> Iterator[tuple[str, int, int, str]]:
    """Yield text, first character, end and label of every mention of a split."""
    texts = corpus.texts(split).to_pylist()
    columns = (corpus.mentions(split).column(name).to_pylist() for name in ("sentence", "start", "end", "label"))
    for sentence, start, end, label in zip(*columns, strict=True):
        yield texts[sentence], start, end, label
