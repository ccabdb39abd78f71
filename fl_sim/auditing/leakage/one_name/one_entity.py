"""Attack one entity by its name: what the model writes in its place, and how it ranks it among names of its kind.

The attacks of Lukas et al. 2023 (:mod:`fl_sim.auditing.leakage.names`) on one entity that the caller names. The
attacker knows sentences of the training split but for one mention each. Beside the run's model stand the one with which
the run began and those of runs on the same text without the entity. The bound is that of the entity's own profile in
the run's ledger. There is no verdict: one unit of one training cannot contradict a bound on rates over trainings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fl_sim.auditing.leakage.attacked_run import AttackedRun, NotApplicableError
from fl_sim.auditing.leakage.names.entity_inference import other_names
from fl_sim.auditing.leakage.names.entity_reconstruction import (
    SAMPLES,
    SAMPLING,
    Masked,
    continuations,
    judge_continuations,
)
from fl_sim.auditing.leakage.names.entity_targets import NamedEntity, Target, fits
from fl_sim.auditing.leakage.one_name.compared_models import (
    ComparedModel,
    Floats,
    compared_models,
    ranks_record,
    read_groups,
)
from fl_sim.auditing.leakage.options import Options
from fl_sim.auditing.leakage.other_runs import OtherRun
from fl_sim.auditing.leakage.proven_rates import EntityContribution, ProvenRates
from fl_sim.auditing.leakage.rates import FALSE_POSITIVE_RATES
from fl_sim.clients.frozen_states import Observer
from fl_sim.config import ConfigError
from fl_sim.data_prep.identity import NameIndex
from fl_sim.strategies.primitives import streams

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
    models = compared_models(run, _without(run, entity, options.without))
    losses = read_groups(models, groups, observer)
    texts = [continuations(one.model, masked, SAMPLING, SAMPLES, options.seed) for one in models]
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


def _without(run: AttackedRun, entity: NamedEntity, paths: Sequence[str]) -> dict[str, OtherRun]:
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
