"""Attack one user by name: how far the user's text stands out, and how the model ranks how its sentences end.

* The score of user inference (:mod:`fl_sim.auditing.leakage.membership`) of this user, and the share of held-out users
  who have a lower one. Half of held-out users do if the model knows nothing.
* For next-word models: each sentence is cut in the middle. The attacker knows the first half, and m candidates for the
  second: the true one and m − 1 second halves of held-out users' sentences. What the model writes after the first half
  is compared with the true next word.

Beside the run's model stand the one with which the run began and those of runs on the same text without the user. The
bound is that of the user's own contribution. There is no verdict: one unit of one training cannot contradict a bound on
rates over trainings.

>>> halves("we met Ada at the mill")
('we met Ada', 'at the mill')
>>> halves("see you") is None
True
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fl_sim.auditing.leakage import membership
from fl_sim.auditing.leakage.attacked_run import AttackedRun, NotApplicableError
from fl_sim.auditing.leakage.membership import Sample, Samples
from fl_sim.auditing.leakage.names.entity_reconstruction import BATCH, SAMPLING
from fl_sim.auditing.leakage.names.entity_targets import fits
from fl_sim.auditing.leakage.one_name.compared_models import (
    ComparedModel,
    Floats,
    compared_models,
    ranks_record,
    read_groups,
)
from fl_sim.auditing.leakage.options import Options
from fl_sim.auditing.leakage.other_runs import OtherRun
from fl_sim.auditing.leakage.rates import FALSE_POSITIVE_RATES, clopper_pearson
from fl_sim.clients.frozen_states import Observer
from fl_sim.clients.generation import generate
from fl_sim.config import ConfigError
from fl_sim.strategies.primitives import streams

_FEWEST_WORDS = 4
_EXAMPLES = 5


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
    models = compared_models(run, _without(run, samples, options))
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


def _without(run: AttackedRun, samples: Samples, options: Options) -> dict[str, OtherRun]:
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
    texts = generate(compared.model, prompts, replace(SAMPLING, temperature=0.0), seed=seed, batch_size=BATCH)
    return [text.text for text in texts]
