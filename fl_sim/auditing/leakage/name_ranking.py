"""Attack the names of a training text: rank the true name of a masked mention among other names of its kind.

Lukas, Salem, Sim, Tople, Wutschitz, Zanella-Béguelin 2023 ("Analyzing Leakage of Personally Identifiable Information in
Language Models", arXiv 2302.00539), section 4.3. The attacker knows a sentence of the training split but for one
mention of an entity, and m candidates for it: the true name, and m − 1 others that are drawn uniformly from the
entities of its kind. Ties count against the attacker. The candidates are ranked by

* the perplexity of the whole sentence under the attacked model, as in the paper;
* the *ratio* of the perplexities under the attacked model and under the model with which the training began. What makes
  a name likely in any text cancels.

A model may know a name from public text, or from the language itself ("May", "Bill"). A name therefore counts as
*private* if its words follow one another in no text of the other splits, marked or not. Names are compared by their
words, without case and punctuation; those with fewer than three letters or digits are not private. Which mentions are
one entity is decided by the corpus's identity (docs/corpora.md).

Attacked are a sample of the private entities, one mention of each, or all mentions of one entity that the caller names.
Figures are means over the attacked mentions: ``ahead`` is the share of the other candidates that come after the true
name, ½ for an attacker who knows nothing; ``ratio_ahead`` is that of the ratio, ``initial_ahead`` that of the initial
model, and ``gain`` the difference of ``ahead`` and ``initial_ahead``. Beside them stands what the ledger proves;
docs/audit.md says why no verdict follows.

>>> [bin_of(mentions) for mentions in (1, 2, 3, 4, 100)]
[(1, 1), (2, 3), (2, 3), (4, 7), (64, 127)]
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fl_sim.auditing.leakage.attacked_run import AttackedRun, BeforeTraining, NotApplicableError, Options
from fl_sim.auditing.leakage.proven_rates import NOT_MARKED, EntityContribution, ProvenRates
from fl_sim.auditing.lower_bounds import Bools, Floats
from fl_sim.clients.frozen_states import Observer
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.losses import held_out
from fl_sim.data_prep.identity import Identity, NameIndex, keys_of_mentions, name_of
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.taggers.categories import category_of
from fl_sim.reporting.bootstrap import Figure, intervals
from fl_sim.strategies.primitives import streams

METHOD = "percentile bootstrap over mentions, 95 %"

_POSSESSIVE = re.compile(r"\s*['’][sS]$")
_FEWEST_CHARACTERS = 3


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Hold a mention with the text of its sentence before and after it; a possessive 's belongs to what follows.

    >>> sentence = Occurrence.of("I saw Ada's boat.", 6, 11)
    >>> sentence.name, sentence.with_name("Eve")
    ('Ada', "I saw Eve's boat.")
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
    """Hold an entity of the training split.

    Attributes:
        key: the key that the corpus's identity gives it.
        name: its commonest surface.
        occurrences: its mentions in the training split.
        is_private: whether its names stand in no other split.
    """

    key: str
    kind: str
    name: str
    occurrences: tuple[Occurrence, ...]
    is_private: bool = True


def training_entities(corpus: Corpus, split: str) -> list[Target]:
    """Return the entities of a split by the mentions of the corpus, in the order of their first mentions.

    A mention whose preprocessed text no longer tells its entity is left out: nobody could say whose bound holds for it.

    Args:
        corpus: the attacked text; of a de-identified corpus, the one with the names.
        split: the training split; all other splits are public here.
    """
    mentions: dict[str, list[tuple[Occurrence, str]]] = defaultdict(list)
    texts = corpus.texts(split).to_pylist()
    columns = (corpus.mentions(split).column(name).to_pylist() for name in ("sentence", "start", "end", "label"))
    for key, sentence, start, end, label in zip(keys_of_mentions(corpus, split), *columns, strict=True):
        if key is not None:
            mentions[key].append((Occurrence.of(texts[sentence], start, end), label))
    index = NameIndex(occurrence.name for entity in mentions.values() for occurrence, _ in entity)
    others = (str(text) for name in corpus.splits if name != split for text in corpus.texts(name).to_pylist())
    public = {name for text in others for name in index.names_in(text)}
    entities = []
    for key, entity in mentions.items():
        occurrences, labels = zip(*entity, strict=True)
        surfaces = Counter(occurrence.name for occurrence in occurrences)
        names = {name_of(surface) for surface in surfaces}
        private = not names & public and all(sum(map(len, name)) >= _FEWEST_CHARACTERS for name in names)
        kind = str(category_of(Counter(labels).most_common(1)[0][0]))
        entities.append(Target(key, kind, surfaces.most_common(1)[0][0], occurrences, private))
    return entities


def entity_of_name(corpus: Corpus, split: str, entities: list[Target], name: str) -> Target:
    """Return the entity that the corpus's identity gives to ``name``.

    Raises:
        CorpusError: the split has no mention of it.
    """
    key = Identity.of_corpus(corpus.manifest.settings).key(name)
    for entity in entities:
        if entity.key == key:
            return entity
    raise CorpusError(f"entity is '{name}'; allowed: one that split {split} of {corpus.path} mentions")


@dataclass(frozen=True, slots=True)
class Question:
    """Hold a masked mention of an entity and the candidates for it: the names of others of its kind, at least one."""

    target: Target
    occurrence: Occurrence
    others: tuple[str, ...]

    @property
    def texts(self) -> list[str]:
        """Return the sentence with the true name, and after it with each of the others."""
        return [self.occurrence.with_name(name) for name in (self.occurrence.name, *self.others)]


@dataclass(frozen=True, slots=True)
class RankedName:
    """Hold the ranks of the true name of one mention, from 1.

    Attributes:
        rank: by the attacked model.
        ratio_rank: by the ratio of its perplexity and the initial model's.
        initial_rank: by the model with which the training began.
    """

    target: Target
    candidates: int
    rank: int
    ratio_rank: int
    initial_rank: int


@dataclass(frozen=True, slots=True)
class EntityGroup:
    """Hold means over the mentions of entities of one kind, with one number of mentions, or over all.

    Attributes:
        kind: of the entities; None for any.
        mentions: the fewest and the most mentions; None for any number.
        entities: how many mentions are attacked, one of each entity unless the caller named one.
        figures: the means, by name.
    """

    kind: str | None
    mentions: tuple[int, int] | None
    entities: int
    figures: Mapping[str, Figure]

    def record(self) -> dict[str, object]:
        """Return the group as JSON values."""
        figures = {name: figure.record() for name, figure in self.figures.items()}
        return {"kind": self.kind, "mentions": self.mentions, "entities": self.entities, **figures}


@dataclass(frozen=True)
class NameAttack:
    """Hold what the attack on names found.

    Attributes:
        ranked: the attacked mentions.
        groups: the figures, those of all mentions first.
        candidates: m, or fewer where a kind has fewer names.
        private_entities: how many entities of the training split are private.
        bound: what the ledger proves, for any user with any entity or for the named entity.
        named: the entity that the caller named; None for a sample of the private ones.
        show_names: whether records have names.
    """

    ranked: tuple[RankedName, ...]
    groups: tuple[EntityGroup, ...]
    candidates: int
    private_entities: int
    bound: ProvenRates
    named: Target | None = None
    show_names: bool = False

    def record(self) -> dict[str, object]:
        """Return the attack as one JSON object; names are private and left out unless asked for."""
        one = self.named
        named = {} if one is None else {"kind": one.kind, "mentions": len(one.occurrences), "private": one.is_private}
        ranks = [{"name": one.target.name, "rank": one.rank, "of": one.candidates} for one in self.ranked]
        return {
            "private_entities": self.private_entities,
            "entities": len(self.ranked),
            "candidates": self.candidates,
            "intervals": METHOD,
            "groups": [group.record() for group in self.groups],
            "bound": self.bound.record(),
            **({"one": named} if named else {}),
            **({"ranks": ranks} if self.show_names else {}),
        }


def attack_names(run: AttackedRun, options: Options, observer: Observer = lambda done, total: None) -> NameAttack:
    """Rank the private names of the training split, or the one of ``options.entity``.

    Args:
        options: of the attack; names are drawn from streams of its seed, so that all runs meet the same ones.
        observer: called with the number of mentions that are ranked, and of all.

    Raises:
        NotApplicableError: the model predicts classes, or no name can be attacked.
        CorpusError: the training split does not mention ``options.entity``.
    """
    if run.model.task.classes:
        raise NotApplicableError("the model predicts classes; allowed: next-word models, to attack entities")
    entities = training_entities(run.corpus, run.members.split)
    known, unprotected = run.corpus.known_ids(run.members.split), set(run.bounds.declared.public)
    ids = {} if run.has_raw_text or known is None else known.entities
    private = [one for one in entities if one.is_private and ids.get(one.key) not in unprotected]
    named = None
    if options.entity is None:
        questions = list(questions_about(run.model, private, options))
        bound = run.proof.of_any()
    else:
        named = entity_of_name(run.corpus, run.members.split, entities, options.entity)
        questions = list(questions_about_one(run.model, named, entities, options))
        bound = _bound_of(run, named)
    if not questions:
        raise NotApplicableError(
            f"no {'private entity' if named is None else 'mention of the entity'} fits into the model's context with "
            "another name of its kind; allowed: one at least"
        )
    ranked = []
    for done, question in enumerate(questions, start=1):
        ranked.append(rank_names(question, run.model, run.before))
        observer(done, len(questions))
    groups = grouped(ranked, streams.generator(options.seed, "leak-inference-bootstrap"))
    return NameAttack(
        ranked=tuple(ranked),
        groups=tuple(groups if named is None else groups[:1]),
        candidates=max(one.candidates for one in ranked),
        private_entities=len(private),
        bound=bound,
        named=named,
        show_names=options.show_names,
    )


def questions_about(model: LanguageModel, private: Sequence[Target], options: Options) -> Iterator[Question]:
    """Yield a masked mention of each of a seeded sample of entities; those that do not fit the context are left out."""
    drawn = streams.generator(options.seed, "leak-inference-entities")
    for position in sorted(drawn.permutation(len(private))[: options.entities].tolist()):
        rng, target = streams.generator(options.seed, "leak-inference-candidates", position), private[position]
        occurrences = (target.occurrences[number] for number in rng.permutation(len(target.occurrences)).tolist())
        occurrence = next((one for one in occurrences if fits(model, one.with_name(one.name))), None)
        if occurrence is not None and (others := other_names(model, target, occurrence, private, options, rng)):
            yield Question(target, occurrence, tuple(others))


def questions_about_one(
    model: LanguageModel, target: Target, entities: Sequence[Target], options: Options
) -> Iterator[Question]:
    """Yield a seeded sample of the masked mentions of one entity, as far as they fit the context."""
    drawn, asked = streams.generator(options.seed, "leak-one-entity-mentions"), 0
    for position in drawn.permutation(len(target.occurrences)).tolist():
        occurrence = target.occurrences[position]
        if asked == options.sentences_per_user or not fits(model, occurrence.with_name(occurrence.name)):
            continue
        rng = streams.generator(options.seed, "leak-one-entity-candidates", position)
        others = other_names(model, target, occurrence, entities, options, rng)
        if others:
            asked += 1
            yield Question(target, occurrence, tuple(others))


def other_names(
    model: LanguageModel,
    target: Target,
    occurrence: Occurrence,
    entities: Sequence[Target],
    options: Options,
    rng: np.random.Generator,
) -> list[str]:
    """Return the names of m − 1 other entities, drawn uniformly from those of the kind of ``target`` that fit."""
    of_kind = [other for other in entities if other.kind == target.kind and other.key != target.key]
    names: list[str] = []
    for position in rng.permutation(len(of_kind)).tolist():
        if len(names) == options.candidates - 1:
            break
        if fits(model, occurrence.with_name(of_kind[position].name)):
            names.append(of_kind[position].name)
    return names


def fits(model: LanguageModel, text: str) -> bool:
    """Return whether a text is not cut to the model's context."""
    return int(model.encode([text])[0].tokens[-1]) == model.eos_id


def rank_names(question: Question, model: LanguageModel, initial: BeforeTraining) -> RankedName:
    """Return the ranks of the true name, by log-perplexities per token; equal values come before it."""
    texts = question.texts
    own = held_out(model, model.encode(texts)).losses
    before = initial.once(tuple(texts), lambda: held_out(initial.model, initial.model.encode(texts)).losses)
    ranks = (1 + int((losses[1:] <= losses[0]).sum()) for losses in (own, own - before, before))
    return RankedName(question.target, len(question.texts), *ranks)


def grouped(ranked: Sequence[RankedName], rng: np.random.Generator) -> list[EntityGroup]:
    """Return the figures over all mentions, by kind of entity, and by its number of mentions in the training split."""
    candidates = np.array([one.candidates for one in ranked], dtype=np.float64)
    values: dict[str, Floats] = {}
    for prefix in ("", "ratio_", "initial_"):
        ranks = np.array([getattr(one, f"{prefix}rank") for one in ranked], dtype=np.float64)
        values[f"{prefix}ahead"] = (candidates - ranks) / (candidates - 1)
    values["gain"] = values["ahead"] - values["initial_ahead"]
    kinds = np.array([one.target.kind for one in ranked], dtype=object)
    bins = [bin_of(len(one.target.occurrences)) for one in ranked]
    everyone = np.ones(len(ranked), dtype=bool)
    chosen: list[tuple[str | None, tuple[int, int] | None, Bools]] = [(None, None, everyone)]
    chosen += [(kind, None, kinds == kind) for kind in sorted(set(kinds))]
    chosen += [(None, mentions, np.array([other == mentions for other in bins])) for mentions in sorted(set(bins))]
    groups = []
    for kind, mentions, rows in chosen:
        sums = np.stack([column[rows] for value in values.values() for column in (value, np.ones(len(rows)))], axis=1)
        figures = dict(zip(values, intervals(sums, rng), strict=True))
        groups.append(EntityGroup(kind, mentions, int(rows.sum()), figures))
    return groups


def bin_of(mentions: int) -> tuple[int, int]:
    """Return the fewest and the most mentions of the group of an entity: a power of two, and below the next."""
    fewest = 1 << (mentions.bit_length() - 1)
    return fewest, 2 * fewest - 1


def _bound_of(run: AttackedRun, target: Target) -> ProvenRates:
    """Return what the ledger proves for an entity by its own contribution."""
    known = None if run.has_raw_text else run.corpus.known_ids(run.members.split)
    entity = None if known is None else known.entities.get(target.key)
    if entity is None:  # of the text that is attacked, the run's own may lack some marks
        return ProvenRates("the entity", (), NOT_MARKED)
    if entity in run.bounds.declared.public:
        return ProvenRates("the entity", (), "the run declares its name public, and nothing bounds its sentences")
    return run.proof.of_entity(EntityContribution.of(run.bounds, entity))
