"""Entity reconstruction: what a model writes in the place of a name, after what stood before it.

Lukas et al. 2023 (arXiv 2302.00539), section 4.2. The attacker knows a sentence of the training split but for one
mention of a private entity (:mod:`~fl_sim.auditing.leakage.names.entity_targets`), and how many words it has. The model
continues the text before the mention, once with its most probable words and k times by sampling. A continuation is cut
to as many words as the name has. Three guesses are judged, by the identity of the corpus:

* ``greedy``: the most probable continuation;
* ``ranked``: of all continuations, the one with which the whole sentence has the least perplexity, so that the text
  after the mention counts;
* ``any``: whether the name is among the k + 1 continuations.

The same is done with the model with which the training began; ``gain`` is the difference of ``ranked``, entity by
entity.

>>> cut_to_words(" Ada Byron, who left", 2)
'Ada Byron,'
>>> cut_to_words(" Ada", 2) is None
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fl_sim.auditing.leakage.canary_exposure import check_next_word
from fl_sim.auditing.leakage.known_results import KnownResults
from fl_sim.auditing.leakage.names.entity_targets import (
    METHOD,
    EntityGroup,
    NoEntityError,
    Occurrence,
    Target,
    TrainingEntities,
    fitting_occurrence,
    grouped,
    read,
)
from fl_sim.clients.errors import ModelError
from fl_sim.clients.frozen_states import Observer
from fl_sim.clients.generation import Sampling, generate
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.data_prep.identity import Identity
from fl_sim.strategies.primitives import streams

MOST = 200
SAMPLES = 8
BATCH = 128
SAMPLING = Sampling(max_tokens=16)

Masked = tuple[Target, Occurrence]


@dataclass(frozen=True, slots=True)
class Guesses:
    """A model's guesses of one masked name.

    Attributes:
        greedy, ranked, any: whether each of the three is right.
    """

    greedy: bool
    ranked: bool
    any: bool


@dataclass(frozen=True, slots=True)
class EntityReconstruction:
    """The result of a reconstruction.

    Attributes:
        targets: the entities.
        guesses: of the attacked model, one for each target.
        groups: figures ``greedy``, ``ranked``, ``any``, ``initial_ranked`` and ``gain``, in [0, 1].
        samples: k.
        seed: of mentions, texts and bootstrap.
    """

    targets: tuple[Target, ...]
    guesses: tuple[Guesses, ...]
    groups: list[EntityGroup]
    samples: int
    seed: int

    def record(self, *, show_names: bool = False) -> dict[str, Any]:
        """Return the figures as one JSON object; names are private and left out unless asked for."""
        record = {
            "attack": "entity reconstruction",
            "entities": len(self.targets),
            "samples": self.samples,
            "intervals": METHOD,
            "seed": self.seed,
            "groups": [group.record() for group in self.groups],
        }
        names = [target.name for target, guess in zip(self.targets, self.guesses, strict=True) if guess.ranked]
        return record | ({"reconstructed_names": names} if show_names else {})


def reconstruct_entities(
    model: LanguageModel,
    initial: LanguageModel,
    entities: TrainingEntities,
    *,
    seed: int,
    most: int = MOST,
    samples: int = SAMPLES,
    sampling: Sampling = SAMPLING,
    known: KnownResults | None = None,
    observer: Observer = lambda done, total: None,
) -> EntityReconstruction:
    """Let two next-word models complete masked names.

    Args:
        model: the attacked model.
        initial: the model with which its training began.
        entities: of the training split; those without a mention within the model's context are left out.
        seed: of mentions, texts and bootstrap.
        most: at most so many entities, drawn uniformly.
        samples: k.
        sampling: how the k continuations are drawn; a name of more tokens than ``max_tokens`` is never found.
        known: results of ``initial`` on this text, to use and to add to.
        observer: called with the number of models that are done, and 2.

    Raises:
        ModelError: a model predicts classes, or a number is below 1.
        NoEntityError: no entity has a mention within the context.
    """
    for name, value in (("most", most), ("samples", samples)):
        if value < 1:
            raise ModelError(f"{name} is {value}; allowed: an integer of at least 1")
    masked: list[Masked] = []
    for position in entities.sample(most, streams.generator(seed, "leak-reconstruction-entities")):
        rng = streams.generator(seed, "leak-reconstruction-mention", position)
        occurrence = fitting_occurrence(model, entities.targets[position], rng)
        if occurrence is not None:
            masked.append((entities.targets[position], occurrence))
    if not masked:
        raise NoEntityError("no private entity has a mention within the model's context; allowed: one at least")

    def guesses_of(guessing: LanguageModel) -> list[Guesses]:
        texts = continuations(guessing, masked, sampling, samples, seed)
        return judge_continuations(guessing, masked, texts, entities.identity)

    guesses = guesses_of(model)
    observer(1, 2)
    before = (known or KnownResults()).get(
        ("reconstruction", seed, most, samples, sampling), lambda: guesses_of(initial)
    )
    observer(2, 2)
    targets = tuple(target for target, _ in masked)
    groups = grouped(targets, _values(guesses, before), streams.generator(seed, "leak-reconstruction-bootstrap"))
    return EntityReconstruction(targets, tuple(guesses), groups, samples, seed)


def cut_to_words(text: str, words: int) -> str | None:
    """Return the first ``words`` words of a text; None if it has fewer."""
    first = text.split()[:words]
    return " ".join(first) if len(first) == words else None


def continuations(
    model: LanguageModel, masked: Sequence[Masked], sampling: Sampling, samples: int, seed: int
) -> list[list[str]]:
    """Return what a next-word model writes after the text before each mention: the most probable, then k sampled texts.

    Args:
        model: the model.
        masked: the mentions.
        sampling: how the k continuations are drawn.
        samples: k.
        seed: of the texts; equal for models that are compared.

    Raises:
        ModelError: the model predicts classes.
    """
    check_next_word(model)
    prompts = [occurrence.before.rstrip() for _, occurrence in masked]
    seed = streams.derived_seed(seed, "leak-reconstruction-texts")
    greedy = generate(model, prompts, replace(sampling, temperature=0.0), seed=seed, batch_size=BATCH)
    sampled = generate(model, prompts, sampling, samples=samples, seed=seed, batch_size=BATCH)
    of_prompt = [sampled[number * samples : (number + 1) * samples] for number in range(len(masked))]
    return [[first.text, *(text.text for text in others)] for first, others in zip(greedy, of_prompt, strict=True)]


def judge_continuations(
    model: LanguageModel, masked: Sequence[Masked], texts: Sequence[Sequence[str]], identity: Identity
) -> list[Guesses]:
    """Return which of the three guesses are right for each mention, given the model's :func:`continuations`."""
    return [
        _judged(model, target, occurrence, written, identity)
        for (target, occurrence), written in zip(masked, texts, strict=True)
    ]


def _judged(
    model: LanguageModel, target: Target, occurrence: Occurrence, texts: Sequence[str], identity: Identity
) -> Guesses:
    """Return whether the continuations ``texts``, of which the first is greedy, have the name of ``target``."""
    cut = [cut_to_words(text, len(occurrence.name.split())) for text in texts]
    keys = [None if name is None else identity.key(name) for name in cut]
    candidates = {key: name for key, name in zip(keys, cut, strict=True) if key is not None and name is not None}
    if target.key not in candidates:
        return Guesses(False, False, False)
    perplexities = read(model, [occurrence.with_name(name) for name in candidates.values()]).losses
    best = list(candidates)[int(perplexities.argmin())]
    return Guesses(greedy=keys[0] == target.key, ranked=best == target.key, any=True)


def _values(guesses: list[Guesses], initial: list[Guesses]) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    ranked, before = (np.array([g.ranked for g in of], dtype=np.float64) for of in (guesses, initial))
    return {
        "greedy": np.array([g.greedy for g in guesses], dtype=np.float64),
        "ranked": ranked,
        "any": np.array([g.any for g in guesses], dtype=np.float64),
        "initial_ranked": before,
        "gain": ranked - before,
    }
