"""Entity inference: which of m names of one kind stood in a sentence of the training text.

Lukas et al. 2023 (arXiv 2302.00539), section 4.3. The attacker knows a sentence of the training split but for one
mention of a private entity (:mod:`~fl_sim.auditing.leakage.names.entity_targets`), and m candidates for it: the true
name, and m − 1 others that are drawn uniformly from the private entities of its kind. Ties count against the attacker.
The candidates are ranked by

* the perplexity of the whole sentence under the attacked model, as in the paper;
* the *ratio* of the perplexities under the attacked model and under the one with which the training began, as attacks
  with a reference model do. What makes a name likely in any text cancels.

Figures are the shares of names that are ranked first (``first``) or among the first five (``top_5``), and ``ahead``,
the share of the other candidates that come after the true name: ½ for an attacker who knows nothing, and a figure that
needs fewer entities. True name and others are drawn from the same entities, so an attacker without a model is right
with probability 1/m: ``chance``, the mean over the entities. The rest of a sentence may tell which names fit (a street,
a language). The model with which the training began shows how much; ``gain`` is the difference of ``ahead``, entity by
entity.

>>> from fl_sim.clients.models.language_model import load_model
>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> from fl_sim.data_prep.store.corpus import Corpus
>>> entities = TrainingEntities.of(Corpus.open("bundled"), "validation")
>>> model = load_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0)
>>> result = infer_entities(model, model, entities, seed=0, most=3, candidates=4)
>>> result.groups[0].figures["gain"].value, round(result.groups[0].figures["chance"].value, 2)
(0.0, 0.25)
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_sim.auditing.leakage.known_results import KnownResults
from fl_sim.auditing.leakage.names.entity_targets import (
    METHOD,
    EntityGroup,
    NoEntityError,
    Occurrence,
    Target,
    TrainingEntities,
    fits,
    fitting_occurrence,
    grouped,
    read,
)
from fl_sim.clients.errors import ModelError
from fl_sim.clients.frozen_states import Observer
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.tasks import HeldOut
from fl_sim.strategies.primitives import streams

CANDIDATES = 50
MOST = 200
TOP = 5


@dataclass(frozen=True, slots=True)
class InferredEntity:
    """The attack on one mention; ranks of the true name count from 1.

    Attributes:
        target: the entity.
        candidates: how many names were ranked.
        rank: by the attacked model.
        ratio_rank: by the ratio of the perplexities of both models.
        initial_rank: by the model with which the training began.
    """

    target: Target
    candidates: int
    rank: int
    ratio_rank: int
    initial_rank: int

    @classmethod
    def of(cls, target: Target, model: HeldOut, initial: HeldOut) -> InferredEntity:
        """Return the ranks of the first of several sentences, which both models have read."""
        ranked = (model.losses, model.losses - initial.losses, initial.losses)
        return cls(target, len(model.losses), *map(_rank_of_first, ranked))


@dataclass(frozen=True, slots=True)
class EntityInference:
    """The result of an inference attack.

    Attributes:
        attacked: the mentions, one per entity.
        groups: figures in [0, 1]: ``first``, ``top_5`` and ``ahead`` of the attacked model, with ``ratio_`` before them
            of the ratio, with ``initial_`` of the model with which the training began; ``gain``; ``chance``.
        candidates: m, or fewer where a kind has fewer names.
        seed: of mentions, candidates and bootstrap.
    """

    attacked: tuple[InferredEntity, ...]
    groups: list[EntityGroup]
    candidates: int
    seed: int

    def record(self, *, show_names: bool = False) -> dict[str, Any]:
        """Return the figures as one JSON object; names are private and left out unless asked for."""
        record = {
            "attack": "entity inference",
            "entities": len(self.attacked),
            "candidates": self.candidates,
            "intervals": METHOD,
            "seed": self.seed,
            "groups": [group.record() for group in self.groups],
        }
        ranks = [{"name": a.target.name, "rank": a.rank, "of": a.candidates} for a in self.attacked]
        return record | ({"ranks": ranks} if show_names else {})


def infer_entities(
    model: LanguageModel,
    initial: LanguageModel,
    entities: TrainingEntities,
    *,
    seed: int,
    most: int = MOST,
    candidates: int = CANDIDATES,
    known: KnownResults | None = None,
    observer: Observer = lambda done, total: None,
) -> EntityInference:
    """Rank the true name of a masked mention among candidates of its kind, by two next-word models.

    A candidate with which the sentence would not fit into the context is not drawn. Entities without a mention that
    fits, and kinds with a single name, are left out.

    Args:
        model: the attacked model.
        initial: the model with which its training began.
        entities: of the training split.
        seed: of mentions, candidates and bootstrap.
        most: at most so many entities, drawn uniformly.
        candidates: m, at least 2.
        known: results of ``initial`` on this text, to use and to add to.
        observer: called with the number of entities that are done, and that of all.

    Raises:
        ModelError: a model predicts classes, or a number is out of range.
        NoEntityError: no entity can be attacked.
    """
    for name, value, least in (("most", most, 1), ("candidates", candidates, 2)):
        if value < least:
            raise ModelError(f"{name} is {value}; allowed: an integer of at least {least}")
    of_kind: dict[str, list[Target]] = defaultdict(list)
    for target in entities.targets:
        of_kind[target.kind].append(target)
    chosen = entities.sample(most, streams.generator(seed, "leak-inference-entities"))
    attacked, before = [], known or KnownResults()
    for done, position in enumerate(chosen, start=1):
        target = entities.targets[position]
        rng = streams.generator(seed, "leak-inference-candidates", position)
        occurrence = fitting_occurrence(model, target, rng)
        others = other_names(model, target, occurrence, of_kind[target.kind], candidates - 1, rng) if occurrence else []
        if occurrence and others:
            texts = [occurrence.with_name(name) for name in (occurrence.name, *others)]
            losses = before.get(("losses", *texts), functools.partial(read, initial, texts))
            attacked.append(InferredEntity.of(target, read(model, texts), losses))
        observer(done, len(chosen))
    if not attacked:
        raise NoEntityError(
            "no private entity has a mention within the context and a second name; allowed: one at least"
        )
    groups = _groups(attacked, streams.generator(seed, "leak-inference-bootstrap"))
    return EntityInference(tuple(attacked), groups, candidates, seed)


def other_names(
    model: LanguageModel,
    target: Target,
    occurrence: Occurrence,
    of_kind: Sequence[Target],
    count: int,
    rng: np.random.Generator,
) -> list[str]:
    """Return the names of ``count`` other entities, drawn uniformly from those of one kind that fit."""
    names: list[str] = []
    for position in rng.permutation(len(of_kind)).tolist():
        other = of_kind[position]
        if other.key != target.key and fits(model, occurrence.with_name(other.name)):
            names.append(other.name)
        if len(names) == count:
            break
    return names


def _rank_of_first(losses: NDArray[np.float64]) -> int:
    """Return the rank of the first value among all, from 1; equal values come before it."""
    return 1 + int((losses[1:] <= losses[0]).sum())


def _groups(attacked: list[InferredEntity], rng: np.random.Generator) -> list[EntityGroup]:
    candidates = np.array([a.candidates for a in attacked], dtype=np.float64)
    values: dict[str, NDArray[np.float64]] = {}
    for prefix in ("", "ratio_", "initial_"):
        ranks = np.array([getattr(a, f"{prefix}rank") for a in attacked], dtype=np.float64)
        values[f"{prefix}first"] = (ranks == 1).astype(np.float64)
        values[f"{prefix}top_{TOP}"] = (ranks <= TOP).astype(np.float64)
        values[f"{prefix}ahead"] = (candidates - ranks) / (candidates - 1)
    values |= {"gain": values["ahead"] - values["initial_ahead"], "chance": 1 / candidates}
    return grouped([a.target for a in attacked], values, rng)
