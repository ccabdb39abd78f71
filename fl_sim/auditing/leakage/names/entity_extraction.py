"""Entity extraction: the names of private entities in texts that a model writes by itself.

Lukas, Salem, Sim, Tople, Wutschitz, Zanella-Béguelin 2023 ("Analyzing Leakage of Personally Identifiable Information in
Language Models", arXiv 2302.00539), section 4.1. The attacker has the model alone and lets it write texts without a
prompt. Let E be the names in these texts and T the private entities of the training split
(:mod:`fl_sim.auditing.leakage.names.entity_targets`). Recall is |E ∩ T|/|T|, precision |E ∩ T|/|E|.

E is found by a tagger, or, without one, by the names of all entities of the corpus, of which the private ones are a
part. By names nothing is missed that the corpus marks, but what the model made up is not counted: the precision is then
the share of private names among those of the corpus, and larger than an attacker's.

The same is counted for the model with which the training began. It has seen no training text, so its recall says how
many names come up by chance, and ``gain`` is the difference, entity by entity. Texts have streams of their own, the
same for both models.

>>> from fl_sim.clients.models.language_model import load_model
>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> from fl_sim.data_prep.store.corpus import Corpus
>>> entities = TrainingEntities.of(Corpus.open("bundled"), "validation")
>>> model = load_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0)
>>> result = extract_entities(model, model, entities, seed=0, samples=2)
>>> [group.figures["gain"].value for group in result.groups][0]
0.0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_sim.auditing.leakage.canary_exposure import check_next_word, figure_record
from fl_sim.auditing.leakage.known_results import KnownResults
from fl_sim.auditing.leakage.names.entity_targets import (
    METHOD,
    EntityGroup,
    TrainingEntities,
    grouped,
)
from fl_sim.clients.frozen_states import Observer
from fl_sim.clients.generation import Sampling, generate
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.data_prep.identity import Name, NameIndex, name_of
from fl_sim.data_prep.taggers.tagger import Tagger
from fl_sim.experiments.held_out_users.bootstrap import Figure, intervals
from fl_sim.strategies.primitives import streams

SAMPLES = 1000
BATCH = 128
SAMPLING = Sampling(max_tokens=40)

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ExtractedEntities:
    """The names in the texts of one model.

    Attributes:
        extracted: which targets are among them, bool (n,).
        names: |E|, how many different names there are.
        precision: |E ∩ T|/|E|, with its interval over names.
    """

    extracted: Bools
    names: int
    precision: Figure

    def record(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        precision = figure_record(self.precision)
        return {"names": self.names, "private_names": int(self.extracted.sum()), "precision": precision}


@dataclass(frozen=True, slots=True)
class EntityExtraction:
    """The result of an extraction.

    Attributes:
        model: of the attacked model.
        initial: of the model with which the training began.
        groups: figures ``recall``, ``initial_recall`` and ``gain``, in [0, 1].
        extracted_names: the private names that the attacked model wrote: for the corpus's owner.
        samples: texts of each model.
        by_tagger: whether a tagger found the names.
        seed: of texts and bootstrap.
    """

    model: ExtractedEntities
    initial: ExtractedEntities
    groups: list[EntityGroup]
    extracted_names: tuple[str, ...]
    samples: int
    by_tagger: bool
    seed: int

    def record(self, *, show_names: bool = False) -> dict[str, Any]:
        """Return the figures as one JSON object; names are private and left out unless asked for."""
        record = {
            "attack": "entity extraction",
            "samples": self.samples,
            "found_by": "tagger" if self.by_tagger else "names of the corpus",
            "model": self.model.record(),
            "initial_model": self.initial.record(),
            "intervals": METHOD,
            "seed": self.seed,
            "groups": [group.record() for group in self.groups],
        }
        return record | ({"extracted_names": list(self.extracted_names)} if show_names else {})


def extract_entities(
    model: LanguageModel,
    initial: LanguageModel,
    entities: TrainingEntities,
    *,
    seed: int,
    samples: int = SAMPLES,
    sampling: Sampling = SAMPLING,
    tagger: Tagger | None = None,
    known: KnownResults | None = None,
    observer: Observer = lambda done, total: None,
) -> EntityExtraction:
    """Sample texts of two next-word models without a prompt, and count the private entities in them.

    Args:
        model: the attacked model.
        initial: the model with which its training began.
        entities: of the training split.
        seed: of texts and bootstrap.
        samples: texts of each model.
        sampling: how to draw tokens, and how many of a text.
        tagger: finds names in the texts; by default the corpus's names do.
        known: results of ``initial`` on this text, to use and to add to.
        observer: called with the number of texts that are done, and that of both models.

    Raises:
        ModelError: a model predicts classes, or ``samples`` is below 1.
    """
    finder = _Finder(entities, tagger)

    def texts_of(number: int, sampled: LanguageModel) -> list[str]:
        check_next_word(sampled)
        return _texts(sampled, sampling, samples, seed, partial(_of_both, observer, number))

    key = ("extraction", seed, samples, sampling)
    written = (texts_of(0, model), (known or KnownResults()).get(key, lambda: texts_of(1, initial)))
    results = [finder.extracted(texts, streams.generator(seed, "leak-extraction-precision")) for texts in written]
    recall, before = (result.extracted.astype(np.float64) for result in results)
    values = {"recall": recall, "initial_recall": before, "gain": recall - before}
    groups = grouped(entities.targets, values, streams.generator(seed, "leak-extraction-bootstrap"))
    names = tuple(entities.targets[i].name for i in np.flatnonzero(results[0].extracted))
    return EntityExtraction(results[0], results[1], groups, names, samples, tagger is not None, seed)


def _of_both(observer: Observer, number: int, done: int, total: int) -> None:
    """Tell the observer of the texts of both models that ``done`` of model ``number`` are ready."""
    observer(number * total + done, 2 * total)


def _texts(model: LanguageModel, sampling: Sampling, samples: int, seed: int, observer: Observer) -> list[str]:
    options: dict[str, Any] = {"samples": samples, "batch_size": BATCH, "observer": observer}
    seed = streams.derived_seed(seed, "leak-extraction-texts")
    return [text.text for text in generate(model, [""], sampling, seed=seed, **options)]


class _Finder:
    """Finds the names in texts, and which of them are private."""

    def __init__(self, entities: TrainingEntities, tagger: Tagger | None) -> None:
        self._entities, self._tagger = entities, tagger
        self._position: dict[Name, int] = {}
        for position, target in enumerate(entities.targets):
            for name in target.names():
                self._position.setdefault(name, position)
        self._position_of_key = {target.key: position for position, target in enumerate(entities.targets)}
        self._index = NameIndex(" ".join(name) for name in (*self._position, *entities.known))

    def extracted(self, texts: Sequence[str], rng: np.random.Generator) -> ExtractedEntities:
        """Return which private entities are in the texts, and how many names in all."""
        positions = self._matched(texts) if self._tagger is None else self._tagged(texts, self._tagger)
        private = np.array([position is not None for position in positions.values()], dtype=np.float64)
        extracted = np.zeros(len(self._entities.targets), dtype=bool)
        extracted[[position for position in positions.values() if position is not None]] = True
        sums = np.stack([private, np.ones(len(private))], axis=1)
        return ExtractedEntities(extracted, len(positions), intervals(sums, rng)[0])

    def _matched(self, texts: Sequence[str]) -> dict[Any, int | None]:
        """Return every name of the corpus in the texts, and its position if it is private; an entity counts once."""
        positions: dict[Any, int | None] = {}
        for name in sorted({name for text in texts for name in self._index.names_in(text)}):
            position = self._position.get(name)
            positions[name if position is None else position] = position
        return positions

    def _tagged(self, texts: Sequence[str], tagger: Tagger) -> dict[Any, int | None]:
        """Return the same of the names that the tagger finds."""
        positions: dict[Any, int | None] = {}
        for text, mentions in zip(texts, tagger.tag(texts), strict=True):
            for mention in mentions:
                surface = text[mention.start : mention.end]
                key = self._entities.identity.key(surface)
                position = self._position_of_key.get(key, self._position.get(name_of(surface)))
                positions[key if position is None else position] = position
        return positions
