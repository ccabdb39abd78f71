"""Choose the settings of a private run: by formula, by trials on public text, or both in a given time.

>>> plan = plan_by_formula("bundled", target_epsilon=8.0, sentences_per_round=700.0, rounds=5, target_unit="user")
>>> plan["proposal"]["epsilon_target"] <= 8
True
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fl_sim.api.accounts import DELTA, Figures, settings_of
from fl_sim.config import RunConfig, parse_value
from fl_sim.files import owner_only
from fl_sim.strategies.accounting.guarantee import Known

if TYPE_CHECKING:
    from fl_sim.experiments.plan.guarantees import EnforcedBounds
    from fl_sim.search.automatic import Automatic
    from fl_sim.search.planner import Goal, Settings
    from fl_sim.search.settings_search import Tried
    from fl_sim.strategies.accounting.guarantee import ProtectedUnit

TargetUnit = Literal["user", "user_entity"]

MINUTES = 5.0
"""The time for search and training unless another is given."""

_PRIVATE = (
    "The planner reads the sizes of the private corpus: a proposal reveals information about it, and no ε covers that. "
    "So the command has privacy.settings_from_corpus=true, which record and report carry. Plan on public text of the "
    "same kind with --public, or choose the settings beforehand, to do without it."
)
_PUBLIC = "The corpus is public, as stated, so its sizes may set what is released."
CONTRIBUTION_QUANTILES = ("p95", "max")
"""The contribution bounds for which a plan states ε besides its target."""


def plan_by_formula(
    corpus: str | Path,
    *,
    split: str = "train",
    target_epsilon: float,
    target_unit: TargetUnit = "user_entity",
    sentences_per_round: float,
    rounds: int,
    delta: float = DELTA,
    entity_bound: str | None = None,
    known: Known = "counts",
    user_sentences: str | None = None,
    public: bool = False,
    say: Callable[[str], None] = lambda words: None,
    observer: Callable[[int, int], None] = lambda done, total: None,
) -> Figures:
    """Return the rates, cap and noise with the best signal-to-noise ratio, as of ``fl-sim plan formula --json``.

    Args:
        corpus: The corpus to plan for.
        split: The training split.
        target_epsilon: The largest ε allowed.
        target_unit: The protected unit: any user, or any user with any entity.
        sentences_per_round: The compute budget: the expected number of sentences per round whose gradients are
            computed.
        rounds: The largest number of rounds T.
        delta: The δ at which ε is stated, in (0, 1).
        entity_bound: The bound k, as privacy.entity_bound: a number or unbounded.
        known: What may be known, as privacy.known.
        user_sentences: The bound m, as privacy.user_sentences: a number or unbounded.
        public: The corpus is public text, so that its sizes may set what is released.
        say: Called with what is done now.
        observer: Called with the number of settings that are tried, and that of all.

    Raises:
        CorpusError: the folder is no prepared corpus.
        ConfigError: a value is impossible, or no settings meet the target.
    """
    from fl_sim.data_prep.store.corpus import Corpus
    from fl_sim.experiments.plan.guarantees import EnforcedBounds
    from fl_sim.search.planner import Goal, propose

    goal = Goal(target_epsilon, target_unit, delta, sentences_per_round, rounds)
    given = {"entity_bound": entity_bound, "known": known, "user_sentences": user_sentences}
    texts = {f"privacy.{name}": text for name, text in given.items() if text is not None}
    values = {key: parse_value(key, text) for key, text in texts.items()}
    privacy = RunConfig.from_mapping(values | {"privacy.settings_from_corpus": not public}).privacy
    opened = Corpus.open(corpus, verify=True)
    say(f"enforcing the bounds on users and entities of {corpus}")
    bounds = replace(EnforcedBounds.of(privacy, opened.ownership(split)), settings_from_corpus=True)
    _, named = bounds.target(goal.unit, clips_sentences=True, population=bounds.ownership.num_users)
    units = tuple(named.values())
    say(f"looking for the best signal-to-noise ratio at ε {goal.target_epsilon:g}")
    proposal = propose(bounds, units, goal, observe=observer)
    say("computing ε of what is proposed, and of its alternatives")
    described = functools.partial(_described, goal=goal, bounds=bounds, units=units)
    return {
        "corpus": opened.manifest.name,
        "split": split,
        "target_epsilon": goal.target_epsilon,
        "target_unit": goal.unit,
        "delta": goal.delta,
        "sentences_per_round": goal.sentences_per_round,
        "rounds": goal.rounds,
        **bounds.record(),
        "proposal": described(proposal.best),
        "alternatives": [described(settings) for settings in proposal.others],
        "fewer_rounds": [described(settings) for settings in proposal.fewer_rounds],
        "note": _PUBLIC if public else _PRIVATE,
    }


def _described(settings: Settings, goal: Goal, bounds: EnforcedBounds, units: Sequence[ProtectedUnit]) -> Figures:
    """Return settings, their cost and their ε as plain values."""
    from fl_sim.search.planner import epsilon_of_units
    from fl_sim.strategies.accounting.accountant import epsilon
    from fl_sim.strategies.accounting.adjacency import Adjacency

    event, rounds, user = settings.event, settings.rounds, bounds.guarantee.user
    report = settings_of(event) | {
        "rounds": rounds,
        "expected_sentences": settings.sentences,
        "signal": settings.signal,
        "signal_to_noise": settings.signal_to_noise,
        "epsilon_target": epsilon_of_units(event, units, rounds, goal.delta),
        "epsilon_user": epsilon(event, user, rounds, goal.delta),
    }
    for name in CONTRIBUTION_QUANTILES:
        adjacency = Adjacency(user.user_sentences, bounds.entity_bounds[name])
        report[f"epsilon_user_entity_{name}"] = epsilon(event, adjacency, rounds, goal.delta)
        report[f"epsilon_user_entity_robust_{name}"] = epsilon(event.robust(), adjacency, rounds, goal.delta)
    return report


@owner_only()
def plan_by_trials(
    config: RunConfig,
    *,
    public: str | Path,
    out: str | Path,
    sentences: float | None = None,
    trials: int = 9,
    trial_sentences: float = 600.0,
    seed: int = 0,
    jobs: int = 1,
    say: Callable[[str], None] = lambda words: None,
    observer: Callable[[Tried], None] = lambda tried: None,
) -> Path | Tried:
    """Tune settings on public text for a private run, as ``fl-sim plan trials`` does; the private corpus is not read.

    Args:
        config: What is stated of the private run, with its number of users (privacy.population).
        public: The public text on which trials train.
        out: The search's folder; a stopped search in it goes on.
        sentences: The expected sentences a round of the private run; by default as many a user as on the public text.
        trials: The number of settings that are tried.
        trial_sentences: The expected sentences a round of the last trials; the first have a third.
        seed: The seed of the settings and of the trials.
        jobs: The number of trials at once, a process each.
        say: Called with what is done now.
        observer: Called with every trial that ended.

    Returns:
        The file with the settings and their origin, for :func:`fl_sim.run`; the trial at which the search was
        interrupted.

    Raises:
        ConfigError: a value is impossible, or all trials failed.
        CorpusError: the public text is no prepared corpus.
    """
    from fl_sim.search.settings_search import PrivateRun, PublicText, Search, tune

    search = Search(trials, trial_sentences, seed, jobs)
    private = PrivateRun.of(config, sentences)
    text = PublicText.open(str(public), private)
    numbers = " then ".join(str(number) for number, _ in search.rungs)
    say(f"training {numbers} settings on {public}, {jobs} at a time")
    return tune(private, text, search, Path(out).expanduser().absolute(), observer)


@owner_only()
def plan_automatically(
    config: RunConfig,
    *,
    out: str | Path,
    minutes: float = MINUTES,
    observer: Callable[[Tried], None] = lambda tried: None,
) -> Automatic | Tried:
    """Choose rates, noise, clip norm and server optimizer by trials on public text, as ``fl-sim plan auto`` does.

    Args:
        config: What is stated: corpus, number of users, target ε, δ, bounds, model.
        out: The folder of the search and its settings (tuned.toml); a stopped search in it goes on.
        minutes: The minutes for search and training together.
        observer: Called with every trial that ended.

    Returns:
        The configuration with all settings, and where they come from; the trial at which the search was interrupted.

    Raises:
        ConfigError: a setting that is chosen is given, no settings meet the target, or the number of users is missing.
        ResultsError: the folder holds another search.
    """
    from fl_sim.search.automatic import choose_settings

    return choose_settings(config, minutes, Path(out).expanduser().absolute(), observer)
