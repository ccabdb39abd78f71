"""Attack the names of a training text: what the model writes unasked, completes, and tells from other names.

* Extraction: the names of private entities in texts that a model writes by itself.
* Inference: which of m names of one kind stood in a sentence of the training text.
* Reconstruction: what a model writes in the place of a name, after what stood before it.

At the end all three, on one run.

Lukas, Salem, Sim, Tople, Wutschitz, Zanella-Béguelin 2023 ("Analyzing Leakage of Personally Identifiable Information in
Language Models", arXiv 2302.00539), section 4.1. The attacker has the model alone and lets it write texts without a
prompt. Let E be the names in these texts and T the private entities of the training split
(:mod:`fl_sim.auditing.leakage.entity_targets`). Recall is |E ∩ T|/|T|, precision |E ∩ T|/|E|.

E is found by a tagger, or, without one, by the names of all entities of the corpus, of which the private ones are a
part. By names nothing is missed that the corpus marks, but what the model made up is not counted: the precision is then
the share of private names among those of the corpus, and larger than an attacker's.

The same is counted for the model with which the training began. It has seen no training text, so its recall says how
many names come up by chance, and ``gain`` is the difference, entity by entity. Texts have streams of their own, the
same for both models.

Lukas et al. 2023 (arXiv 2302.00539), section 4.3. The attacker knows a sentence of the training split but for one
mention of a private entity (:mod:`~fl_sim.auditing.leakage.entity_targets`), and m candidates for it: the true
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

Lukas et al. 2023 (arXiv 2302.00539), section 4.2. The attacker knows a sentence of the training split but for one
mention of a private entity (:mod:`~fl_sim.auditing.leakage.entity_targets`), and how many words it has. The model
continues the text before the mention, once with its most probable words and k times by sampling. A continuation is cut
to as many words as the name has. Three guesses are judged, by the identity of the corpus:

* ``greedy``: the most probable continuation;
* ``ranked``: of all continuations, the one with which the whole sentence has the least perplexity, so that the text
  after the mention counts;
* ``any``: whether the name is among the k + 1 continuations.

The same is done with the model with which the training began; ``gain`` is the difference of ``ranked``, entity by
entity.

The three attacks of Lukas et al. 2023, on the same private entities. Beside them stands what the run states for any
user with any entity: the largest true positive rate of a test whether they took part. No verdict follows from it,
because the names that are ranked beside the true one trained, too, with sentences of their own.

>>> from fl_sim.clients.models.language_model import load_model
>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> from fl_sim.data_prep.store.corpus import Corpus
>>> entities = TrainingEntities.of(Corpus.open("bundled"), "validation")
>>> model = load_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0)
>>> result = extract_entities(model, model, entities, seed=0, samples=2)
>>> [group.figures["gain"].value for group in result.groups][0]
0.0

>>> entities = TrainingEntities.of(Corpus.open("bundled"), "validation")
>>> model = load_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0)
>>> result = infer_entities(model, model, entities, seed=0, most=3, candidates=4)
>>> result.groups[0].figures["gain"].value, round(result.groups[0].figures["chance"].value, 2)
(0.0, 0.25)

>>> cut_to_words(" Ada Byron, who left", 2)
'Ada Byron,'
>>> cut_to_words(" Ada", 2) is None
True
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_sim.auditing.leakage.attacked_run import AttackedRun, KnownResults, NotApplicableError, Options
from fl_sim.auditing.leakage.canary_exposure import check_next_word, figure_record
from fl_sim.auditing.leakage.entity_targets import (
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
from fl_sim.clients.generation import Sampling, generate
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.tasks import HeldOut
from fl_sim.data_prep.identity import Identity, Name, NameIndex, name_of
from fl_sim.data_prep.taggers.tagger import Tagger
from fl_sim.experiments.held_out_users.bootstrap import Figure, intervals
from fl_sim.strategies.primitives import streams

EXTRACTION_TEXTS = 1000
BATCH = 128
EXTRACTION_SAMPLING = Sampling(max_tokens=40)

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
    samples: int = EXTRACTION_TEXTS,
    sampling: Sampling = EXTRACTION_SAMPLING,
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


RECONSTRUCTION_SAMPLES = 8
RECONSTRUCTION_SAMPLING = Sampling(max_tokens=16)

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
    samples: int = RECONSTRUCTION_SAMPLES,
    sampling: Sampling = RECONSTRUCTION_SAMPLING,
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


def attack_entities(
    run: AttackedRun, rng: np.random.Generator, options: Options, observer: Observer = lambda done, total: None
) -> dict[str, Any]:
    """Extract, reconstruct and infer the private names of the training split; return the record.

    Args:
        run: the run.
        rng: not used; every attack draws from streams of ``options.seed``, so that all runs meet the same names.
        options: of the attacks.
        observer: called with the number of attacks that are done, and 3.

    Raises:
        NotApplicableError: the model predicts classes, or no private entity can be attacked.
    """
    if run.model.task.classes:
        raise NotApplicableError("the model predicts classes; allowed: next-word models, to attack entities")
    models, seed, most, known = (run.model, run.initial), options.seed, options.entities, run.of_initial
    try:
        entities = TrainingEntities.of(run.corpus, run.members.split)
        observer(0, 3)
        extraction = extract_entities(*models, entities, seed=seed, samples=options.texts, known=known)
        observer(1, 3)
        reconstruction = reconstruct_entities(*models, entities, seed=seed, most=most, known=known)
        observer(2, 3)
        inference = infer_entities(*models, entities, seed=seed, most=most, candidates=options.candidates, known=known)
        observer(3, 3)
    except NoEntityError as error:
        raise NotApplicableError(str(error)) from error
    show = options.show_names
    return {
        "private_entities": len(entities.targets),
        "extraction": extraction.record(show_names=show),
        "reconstruction": reconstruction.record(show_names=show),
        "inference": inference.record(show_names=show),
        "bound": (run.folder.result or {}).get("attacker"),
    }
