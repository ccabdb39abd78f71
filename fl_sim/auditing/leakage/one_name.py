"""Attack one entity or one user by name, beside models that did not see them.

First the compared models, and how they rank a truth among candidates; then what the model writes in an entity's place,
and how it ranks it among names of its kind; then how far a user's text stands out, and how its sentences end.

Three kinds of models read the same texts: that of the run, that with which the run began, and those of runs that were
trained on the same text without the unit. What the last two know of it, they know from the language or from others.

A truth is ranked by the perplexity per token of its text among the texts of candidates, and, beside a model that did
not see the unit, by the ratio of the perplexities under both: what makes a text likely to any model cancels.
``ahead`` is the share of candidates that come after the truth: ½ for an attacker who knows nothing. Equal values count
against the attacker.

The attacks of Lukas et al. 2023 (:mod:`fl_sim.auditing.leakage.names`) on one entity that the caller names. The
attacker knows sentences of the training split but for one mention each. Beside the run's model stand the one with which
the run began and those of runs on the same text without the entity. The bound is that of the entity's own profile in
the run's ledger. There is no verdict: one unit of one training cannot contradict a bound on rates over trainings.

* The score of user inference (:mod:`fl_sim.auditing.leakage.membership`) of this user, and the share of held-out users
  who have a lower one. Half of held-out users do if the model knows nothing.
* For next-word models: each sentence is cut in the middle. The attacker knows the first half, and m candidates for the
  second: the true one and m − 1 second halves of held-out users' sentences. What the model writes after the first half
  is compared with the true next word.

Beside the run's model stand the one with which the run began and those of runs on the same text without the user. The
bound is that of the user's own contribution. There is no verdict: one unit of one training cannot contradict a bound on
rates over trainings.

>>> losses = [np.array([2.0, 3.0, 1.0]), np.array([1.0, 4.0, 5.0])]  # of two truths, each with two candidates
>>> ahead(losses).tolist(), first(losses).tolist()
([0.5, 1.0], [0.0, 1.0])

>>> halves("we met Ada at the mill")
('we met Ada', 'at the mill')
>>> halves("see you") is None
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_sim.auditing.leakage import membership
from fl_sim.auditing.leakage.attacked_run import AttackedRun, NotApplicableError, Options, OtherRun
from fl_sim.auditing.leakage.canary_exposure import figure_record
from fl_sim.auditing.leakage.entity_attacks import (
    BATCH,
    RECONSTRUCTION_SAMPLES,
    RECONSTRUCTION_SAMPLING,
    Masked,
    continuations,
    judge_continuations,
    other_names,
)
from fl_sim.auditing.leakage.entity_targets import NamedEntity, Target, fits, read
from fl_sim.auditing.leakage.membership import Sample, Samples
from fl_sim.auditing.leakage.rates import FALSE_POSITIVE_RATES, EntityContribution, ProvenRates, clopper_pearson
from fl_sim.clients.frozen_states import Observer
from fl_sim.clients.generation import generate
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.config import ConfigError
from fl_sim.data_prep.identity import NameIndex
from fl_sim.experiments.held_out_users.bootstrap import intervals
from fl_sim.strategies.primitives import streams

START = "start"
RUN = "run"

Floats = NDArray[np.float64]
Losses = Sequence[Floats]
"""The losses of one model on the text of each truth, and after it on those of its candidates."""


@dataclass(frozen=True, eq=False)
class ComparedModel:
    """A model that reads the text of one user or entity.

    Attributes:
        name: ``run``, ``start``, or the folder of a run without the unit.
        model: the model.
    """

    name: str
    model: LanguageModel

    def baselines(self, models: Sequence[ComparedModel]) -> list[ComparedModel]:
        """Return the models to which this one's likelihoods are compared: all others for the run's, else the start."""
        if self.name == RUN:
            return [other for other in models if other.name != RUN]
        return [other for other in models if other.name == START and self.name != START]


def compared_models(run: AttackedRun, without: Mapping[str, OtherRun]) -> list[ComparedModel]:
    """Return the models to compare, the run's first and the one with which it began second.

    Args:
        run: the attacked run.
        without: runs that were trained without the unit, by their folders.
    """
    others = [ComparedModel(path, other.model) for path, other in without.items()]
    return [ComparedModel(RUN, run.model), ComparedModel(START, run.initial), *others]


def ahead(losses: Losses) -> Floats:
    """Return the share of candidates whose loss is above that of the truth, for each of n truths, float64 (n,)."""
    return np.array([(one[1:] > one[0]).mean() for one in losses])


def first(losses: Losses) -> Floats:
    """Return 1 for each of n truths that is ranked before all candidates, else 0, float64 (n,)."""
    return np.array([float((one[1:] > one[0]).all()) for one in losses])


def read_groups(
    models: Sequence[ComparedModel], groups: Sequence[Sequence[str]], observer: Observer
) -> list[list[Floats]]:
    """Return the losses of each model on the texts of each group, in nats per token.

    Args:
        models: next-word models.
        groups: texts, the truth first.
        observer: called with the number of groups that one model has read, over all models, and of all of them.

    Raises:
        ModelError: a model predicts classes.
    """
    losses: list[list[Floats]] = [[] for _ in models]
    for done, group in enumerate(groups):
        for compared, of_model in zip(models, losses, strict=True):
            of_model.append(read(compared.model, group).losses)
        observer(done + 1, len(groups))
    return losses


def ranks_record(
    models: Sequence[ComparedModel],
    losses: Sequence[Losses],
    values: Sequence[Mapping[str, Floats]],
    rng: np.random.Generator,
) -> list[dict[str, Any]]:
    """Return a JSON object per model: how it ranks n truths, and further figures, with intervals over the truths.

    Args:
        models: the models.
        losses: of each model.
        values: further figures of each model, float64 (n,) each.
        rng: draws the resamples of the bootstrap.
    """
    of_model = {compared.name: own for compared, own in zip(models, losses, strict=True)}
    records = []
    for compared, further in zip(models, values, strict=True):
        own = of_model[compared.name]
        ratios = {
            other.name: ahead([mine - theirs for mine, theirs in zip(own, of_model[other.name], strict=True)])
            for other in compared.baselines(models)
        }
        columns = {"ahead": ahead(own), "first": first(own), **further}
        record = {"model": compared.name, **_figures(columns, rng), "ahead_by_ratio_to": _figures(ratios, rng)}
        records.append(record)
    return records


def _figures(columns: Mapping[str, Floats], rng: np.random.Generator) -> dict[str, dict[str, float | None]]:
    """Return the means of columns of equal length, with intervals; None where there are fewer than two rows."""
    if not columns:
        return {}
    sums = np.stack([one for column in columns.values() for one in (column, np.ones(len(column)))], axis=1)
    return {name: figure_record(figure) for name, figure in zip(columns, intervals(sums, rng), strict=True)}


_EXAMPLES = 5


def attack_entity(
    run: AttackedRun, rng: np.random.Generator, options: Options, observer: Observer = lambda done, total: None
) -> dict[str, Any]:
    """Attack the entity ``options.entity``; return the record.

    Args:
        run: the run.
        rng: not used; mentions and candidates are drawn from streams of ``options.seed``, so that all runs meet the
            same ones.
        options: of the attack.
        observer: called with the number of mentions that are ranked, and of all.

    Raises:
        CorpusError: the training split does not mention the entity.
        ConfigError: a run of ``options.without`` was trained on text that names it.
        NotApplicableError: the model predicts classes, or no mention can be attacked.
    """
    if run.model.task.classes:
        raise NotApplicableError("the model predicts classes; allowed: next-word models, to attack an entity")
    entity = NamedEntity.find(run.corpus, run.members.split, options.entity or "")
    masked, groups = _groups(run, entity, options)
    if not groups:
        raise NotApplicableError(
            "no mention of the entity fits into the model's context, with another name of its kind; allowed: one at "
            "least"
        )
    models = compared_models(run, _without_entity(run, entity, options.without))
    losses = read_groups(models, groups, observer)
    texts = [
        continuations(one.model, masked, RECONSTRUCTION_SAMPLING, RECONSTRUCTION_SAMPLES, options.seed)
        for one in models
    ]
    values = [_completed(one, masked, of_model, entity) for one, of_model in zip(models, texts, strict=True)]
    bootstrap = streams.generator(options.seed, "leak-one-entity-bootstrap")
    facts = {
        "kind": entity.target.kind,
        "mentions": entity.target.mentions,
        "private": entity.is_private,
        "attacked_mentions": len(groups),
        "candidates": max(len(group) for group in groups),
        "models": ranks_record(models, losses, values, bootstrap),
        **_bounds(run, entity.target, options.user),
    }
    return facts | ({"examples": _examples(masked, models, texts)} if options.show_names else {})


def _groups(run: AttackedRun, entity: NamedEntity, options: Options) -> tuple[list[Masked], list[list[str]]]:
    """Return the attacked mentions, a seeded sample, and for each its sentence, before those with other names."""
    masked: list[Masked] = []
    groups: list[list[str]] = []
    drawn = streams.generator(options.seed, "leak-one-entity-mentions")
    for position in drawn.permutation(len(entity.target.occurrences)).tolist():
        if len(masked) == options.sentences_per_user:
            break
        occurrence = entity.target.occurrences[position]
        if not fits(run.model, occurrence.with_name(occurrence.name)):
            continue
        rng = streams.generator(options.seed, "leak-one-entity-candidates", position)
        names = other_names(run.model, entity.target, occurrence, entity.others, options.candidates - 1, rng)
        if names:
            masked.append((entity.target, occurrence))
            groups.append([occurrence.with_name(name) for name in (occurrence.name, *names)])
    return masked, groups


def _without_entity(run: AttackedRun, entity: NamedEntity, paths: Sequence[str]) -> dict[str, OtherRun]:
    """Open the runs without the entity; raise ConfigError if the text of one names it."""
    index = NameIndex(occurrence.name for occurrence in entity.target.occurrences)
    others = {path: OtherRun.open(path, run, "without") for path in paths}
    for path, other in others.items():
        count = sum(bool(index.names_in(text)) for text in other.corpus.texts(other.split).to_pylist())
        if count:
            raise ConfigError(
                f"without is {path}, which was trained on {count:,} sentences with the entity's name; allowed: runs "
                "without it (fl-sim prepare prepared --without-entity)"
            )
    return others


def _completed(
    compared: ComparedModel, masked: Sequence[Masked], texts: Sequence[Sequence[str]], entity: NamedEntity
) -> dict[str, Floats]:
    """Return for each mention whether the model completes it: at once, and in any of its continuations."""
    guesses = judge_continuations(compared.model, masked, texts, entity.identity)
    return {
        "completed": np.array([guess.greedy for guess in guesses], dtype=np.float64),
        "completed_in_any": np.array([guess.any for guess in guesses], dtype=np.float64),
    }


def _bounds(run: AttackedRun, target: Target, user: str | None) -> dict[str, Any]:
    """Return what the ledger proves for the entity, and for it and the named user at once."""
    entity = run.entity_of(target.key)
    if entity is None:
        reason = "the run's own text does not mark the entity, so what it contributes is not known"
        return {"bound": ProvenRates("the entity", (), reason).record(FALSE_POSITIVE_RATES)}
    contribution = EntityContribution.of(run.bounds, entity)
    bounds = {"bound": run.proof.of_entity(contribution).record(FALSE_POSITIVE_RATES)}
    if user is not None and user in run.members.users:
        sentences = run.contribution_of(run.members.users.index(user))
        bounds["bound_with_user"] = run.proof.of_both(sentences, contribution).record(FALSE_POSITIVE_RATES)
    return bounds


def _examples(
    masked: Sequence[Masked], models: Sequence[ComparedModel], texts: Sequence[Sequence[Sequence[str]]]
) -> list[dict[str, Any]]:
    """Return a few mentions, each sentence once, with what each model writes in their place."""
    numbers = {occurrence: number for number, (_, occurrence) in reversed(list(enumerate(masked)))}
    return [
        {
            "before": masked[number][1].before,
            "name": masked[number][1].name,
            "written": {one.name: of_model[number][0] for one, of_model in zip(models, texts, strict=True)},
        }
        for number in sorted(numbers.values())[:_EXAMPLES]
    ]


_FEWEST_WORDS = 4


def attack_user(
    run: AttackedRun, rng: np.random.Generator, options: Options, observer: Observer = lambda done, total: None
) -> dict[str, Any]:
    """Attack the user ``options.user``; return the record.

    Args:
        run: the run.
        rng: not used; sentences and candidates are drawn from streams of ``options.seed``, so that all runs meet the
            same ones.
        options: of the attack.
        observer: called with the number of steps that are done, and of all.

    Raises:
        ConfigError: the training split has no such user, or a run of ``options.without`` was trained on the user.
        NotApplicableError: most held-out users also train, or the user has no sentence of the task.
    """
    if options.user not in run.members.users:
        path, split = run.corpus.path, run.members.split
        raise ConfigError(f"user is '{options.user}'; allowed: a user of split {split} of {path}")
    user = run.members.users.index(options.user)
    samples = _samples(run, user, options)
    models = compared_models(run, _without_user(run, samples, options))
    steps = len(models)
    likelihoods = {}
    for done, one in enumerate(models, start=1):
        likelihoods[one.name] = membership.log_likelihoods(one.model, samples)
        observer(done, steps)
    shares = [
        {
            other.name: _share_below(samples, likelihoods[one.name] - likelihoods[other.name])
            for other in one.baselines(models)
        }
        for one in models
    ]
    records, examples = _endings(run, models, samples, options)
    facts = {
        "sentences": len(run.members.sentences_of(user)),
        "attacked_sentences": len(samples.members.ids),
        "non_members": len(np.unique(samples.non_members.users)),
        "models": [
            {"model": one.name, **record, "share_below_by_ratio_to": share}
            for one, record, share in zip(models, records, shares, strict=True)
        ],
        "bound": run.proof.of_user(float(run.contribution_of(user))).record(FALSE_POSITIVE_RATES),
    }
    return facts | ({"examples": examples} if options.show_names and examples else {})


def halves(text: str) -> tuple[str, str] | None:
    """Return the first and the second half of a sentence by its words; None for fewer than four words."""
    words = text.split()
    if len(words) < _FEWEST_WORDS:
        return None
    middle = len(words) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])


def _samples(run: AttackedRun, user: int, options: Options) -> Samples:
    """Return a seeded sample of the user's sentences, beside those of held-out users."""
    others = membership.sample(run, options)
    if not others.by_user:
        raise NotApplicableError(
            f"most users of split {run.non_members.split} also train; allowed: users on one side, to attack a user"
        )
    own = run.members.sentences_of(user)
    if not len(own):
        raise NotApplicableError("the user has no sentence with a class; allowed: one at least")
    drawn = streams.generator(options.seed, "leak-one-user-sentences").permutation(own)[: options.sentences_per_user]
    return replace(others, members=Sample(run.members, drawn, np.full(len(drawn), user, dtype=np.int64)))


def _without_user(run: AttackedRun, samples: Samples, options: Options) -> dict[str, OtherRun]:
    """Open the runs without the user; raise ConfigError if one was trained on the user's text."""
    others = {path: OtherRun.open(path, run, "without") for path in options.without}
    for path, other in others.items():
        users = set(map(str, other.corpus.users(other.split)["user"].tolist()))
        if options.user in users or membership.users_in(other.texts(), samples.members):
            raise ConfigError(
                f"without is {path}, which was trained on the user's text; allowed: runs without it (fl-sim prepare "
                "prepared --without-user)"
            )
    return others


def _share_below(samples: Samples, ratios: Floats) -> dict[str, float]:
    """Return the share of held-out users with a lower mean log-likelihood ratio than the user, with its interval."""
    count = len(samples.members.ids)
    users, index = np.unique(samples.non_members.users, return_inverse=True)
    others = np.bincount(index, ratios[count:]) / np.bincount(index)
    return clopper_pearson(int((others < ratios[:count].mean()).sum()), len(users)).record()


def _endings(
    run: AttackedRun, models: Sequence[ComparedModel], samples: Samples, options: Options
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return how each model ranks the second halves of the user's sentences, and examples; none without halves."""
    nothing: list[dict[str, Any]] = [{} for _ in models]
    if run.model.task.classes:
        return nothing, []
    cut = [parts for parts in map(halves, run.members.read(samples.members.ids)) if parts]
    pool = [parts[1] for parts in map(halves, run.non_members.read(samples.non_members.ids)) if parts]
    groups = [_candidates(run, *parts, pool, options, number) for number, parts in enumerate(cut)]
    kept = [(parts, group) for parts, group in zip(cut, groups, strict=True) if len(group) > 1]
    if not kept:
        return nothing, []
    losses = read_groups(models, [group for _, group in kept], lambda done, total: None)
    written = [_written(one, [parts[0] for parts, _ in kept], options.seed) for one in models]
    truth = [parts[1].split()[0] for parts, _ in kept]
    values = [
        {"next_word": np.array([float(text.split()[:1] == [word]) for text, word in zip(texts, truth, strict=True)])}
        for texts in written
    ]
    examples = [
        {
            "before": parts[0],
            "after": parts[1],
            "written": {one.name: texts[number] for one, texts in zip(models, written, strict=True)},
        }
        for number, (parts, _) in enumerate(kept[:_EXAMPLES])
    ]
    return ranks_record(models, losses, values, streams.generator(options.seed, "leak-one-user-bootstrap")), examples


def _candidates(
    run: AttackedRun, before: str, after: str, pool: Sequence[str], options: Options, number: int
) -> list[str]:
    """Return a sentence with its own ending and then with others, drawn uniformly, as far as they fit the context."""
    rng = streams.generator(options.seed, "leak-one-user-candidates", number)
    group = [f"{before} {after}"]
    if not fits(run.model, group[0]):
        return []
    for position in rng.permutation(len(pool)).tolist():
        text = f"{before} {pool[position]}"
        if len(group) == options.candidates:
            break
        if pool[position] != after and fits(run.model, text):
            group.append(text)
    return group


def _written(compared: ComparedModel, prompts: Sequence[str], seed: int) -> list[str]:
    """Return the most probable continuation of each prompt."""
    seed = streams.derived_seed(seed, "leak-one-user-texts")
    texts = generate(
        compared.model, prompts, replace(RECONSTRUCTION_SAMPLING, temperature=0.0), seed=seed, batch_size=BATCH
    )
    return [text.text for text in texts]
