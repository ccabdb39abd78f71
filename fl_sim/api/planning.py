"""Choose the settings of a private run: by formula, by trials on public text, or both in a given time.

>>> plan = plan_by_formula("bundled", target_epsilon=8.0, sentences_per_round=700.0, rounds=5, target_unit="user")
>>> plan["proposal"]["epsilon_target"] <= 8
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fl_sim.api.accounts import DELTA, Figures, settings_of
from fl_sim.config import ConfigError, RunConfig, parse_value
from fl_sim.files import owner_only
from fl_sim.formats import percent_up
from fl_sim.strategies.accounting.guarantee import Known
from fl_sim.strategies.privacy_config import TargetUnit

if TYPE_CHECKING:
    from fl_sim.experiments.plan.guarantees import EnforcedBounds
    from fl_sim.search.automatic import Automatic
    from fl_sim.search.bounds import Candidate
    from fl_sim.search.planner import Goal, Proposal, Settings, Tradeoff
    from fl_sim.search.settings_search import Tried

MINUTES = 5.0
"""The time for search and training unless another is given."""

LEARNING_RATE = 0.008
"""The step size that ``plan formula`` proposes for the model and the optimizer of a run that names neither."""

LEARNING_RATE_FROM = (
    "Adam on the small GPT-2, the best of three in trials on public text, Shakespeare's speakers, over 20 rounds "
    "(docs/models.md, Tuning); for another model, rounds or noise it is where to begin"
)

_BASES: Mapping[str, str] = {
    "counts": "Bounds, settings and shares rest on counts alone, which are taken as known: how many sentences each "
    "user has, and how many mention each name. Sentences and shares are what to expect if as many mentions as are "
    "declared fell on sentences at random; whoever had them, the bounds would keep at most {most} % of them.",
    "graph": "Bounds, settings and shares rest on the mention graph, which is taken as known.",
    "corpus": "The planner reads the private corpus: a proposal reveals information about it, and no ε covers that. "
    "So the command has privacy.settings_from_corpus=true, which record and report carry. Plan on public text of the "
    "same kind with --public, or choose the settings beforehand, to do without it.",
    "public": "The corpus is public, as stated, so its sizes may set what is released.",
}
"""What a proposal rests on, in words."""

CONTRIBUTION_QUANTILES = ("p95", "max")
"""The contribution bounds for which a plan states ε besides its target."""


def plan_by_formula(
    corpus: str | Path,
    *,
    split: str = "train",
    target_epsilon: float,
    target_unit: TargetUnit = "user_entity",
    sentences_per_round: float | None = None,
    rounds: int = 20,
    delta: float = DELTA,
    entity_bound: str | None = None,
    known: Known = "counts",
    user_sentences: str | None = None,
    counts: str | None = None,
    round_counts: bool = False,
    keep_mentions: float | None = None,
    public: bool = False,
    say: Callable[[str], None] = lambda words: None,
    observer: Callable[[int, int], None] = lambda done, total: None,
) -> Figures:
    """Return the bounds, rates, cap and noise with the best ratios, as of ``fl-sim plan formula --json``.

    The learning rate is not of the formula: it is the best of trials on public text (:data:`LEARNING_RATE`).

    Args:
        corpus: The corpus to plan for.
        split: The training split.
        target_epsilon: The largest ε allowed.
        target_unit: The protected unit: any user, or any user with any entity.
        sentences_per_round: The compute budget: the expected number of sentences per round whose gradients are
            computed (by default the corpus's declared sentences divided by the rounds).
        rounds: The largest number of rounds T.
        delta: The δ at which ε is stated, in (0, 1).
        entity_bound: The bound k, as privacy.entity_bound: a number or unbounded; searched by default.
        known: What may be known, as privacy.known.
        user_sentences: The bound m, as privacy.user_sentences: a number or unbounded; searched by default.
        counts: A file with the declared counts of the run, as privacy.counts.
        round_counts: Round the declared counts up, as privacy.round_counts.
        keep_mentions: The least share of mentions that the bounds keep, in weight.
        public: The corpus is public text, so that its sizes may set what is released.
        say: Called with what is done now.
        observer: Called with the number of bounds that were tried, and that of all.

    Raises:
        CorpusError: the folder is no prepared corpus.
        ConfigError: a value is impossible, no settings meet the target, or no bounds keep the mentions.
    """
    from fl_sim.data_prep.store.corpus import Corpus
    from fl_sim.experiments.plan.guarantees import EnforcedBounds, counts_of
    from fl_sim.experiments.run_inputs import declared
    from fl_sim.search.bounds import Users
    from fl_sim.search.crowd import CountedCrowd
    from fl_sim.search.planner import Goal, propose, rounded_down

    goal = Goal(target_epsilon, delta, 1.0 if sentences_per_round is None else sentences_per_round, rounds)
    given = {"entity_bound": entity_bound, "user_sentences": user_sentences, "counts": counts}
    stated = {"known": known, "target_unit": target_unit} | {k: v for k, v in given.items() if v is not None}
    values = {f"privacy.{name}": parse_value(f"privacy.{name}", text) for name, text in stated.items()}
    flags = {"privacy.settings_from_corpus": not public, "privacy.round_counts": round_counts}
    config = RunConfig.from_mapping(values | flags | {"privacy.delta": delta, "rounds": rounds})
    privacy = config.privacy
    unbounded = target_unit == "user_entity" and privacy.entity_bound in (None, "unbounded")
    if known == "nothing" and unbounded:
        raise ConfigError(
            f"target_epsilon is {target_epsilon:g} for any user with any entity, but known is nothing and no bound on "
            "entities is stated; allowed: entity_bound, known = counts or graph, or target_unit = user"
        )
    by_percentile = unbounded and privacy.entity_bound is not None
    reads_corpus = not public and (known == "nothing" or by_percentile or privacy.user_sentences == "corpus")
    opened = Corpus.open(corpus, verify=True)
    ownership = opened.ownership(split)
    stated_counts = declared(config.changed({"corpus.train_split": split}), opened)
    population = stated_counts.counts.population if stated_counts.counts else ownership.num_users
    by_counts = known == "counts" and not public
    users = Users(ownership, population, by_counts=by_counts, declared=stated_counts)
    if sentences_per_round is None:
        every = counts_of(privacy, ownership, stated_counts).declared[0].sum()
        goal = replace(goal, sentences_per_round=rounded_down(max(1.0, every / rounds), 2))
    choices = users.bounds_to_try(privacy.model_copy(update={"settings_from_corpus": True}))
    say(f"looking for the bounds and settings of the best signal-to-noise ratio at ε {target_epsilon:g}")
    proposal = propose(choices, users.candidate, goal, keep_mentions, observe=observer)
    say("computing ε of what is proposed, and of its alternatives")
    bounds = EnforcedBounds.of(proposal.bounds.privacy, ownership, stated_counts)
    run = config.changed({"corpus.path": str(corpus), "corpus.train_split": split} | _run_of(proposal))
    most = crowd.most_mentions if isinstance(crowd := proposal.bounds.crowd, CountedCrowd) else 1.0
    rows = (proposal.best, *proposal.others, *proposal.fewer_rounds)
    described = [_described(settings, goal, proposal.bounds) for settings in rows]
    return {
        "corpus": opened.manifest.name,
        "split": split,
        "target_epsilon": target_epsilon,
        "target_unit": target_unit,
        "delta": delta,
        "sentences_per_round": goal.sentences_per_round,
        "rounds": rounds,
        "known": known,
        "entity_bound": bounds.guarantee.entity_bound,
        "user_sentences": bounds.guarantee.user_sentences,
        "settings_from_corpus": reads_corpus or by_percentile,
        "learning_rate": LEARNING_RATE,
        "learning_rate_from": LEARNING_RATE_FROM,
        "proposal": described[0],
        "alternatives": described[1 : 1 + len(proposal.others)],
        "fewer_rounds": described[1 + len(proposal.others) :],
        "bounds": [trade_of(trade) for trade in _worth_showing(proposal.trades)],
        "note": _BASES["corpus" if reads_corpus else "public" if public else known].format(most=percent_up(most)),
        "owner": _for_the_owner(rows, goal, bounds) | (_cost_of(run) if opened.has_text else {}),
    }


def _run_of(proposal: Proposal) -> Figures:
    """Return the settings of the proposed run by key, with its noise."""
    event, privacy = proposal.best.event, proposal.bounds.privacy
    values = {name: getattr(privacy, name) for name in ("entity_bound", "user_sentences")}
    values |= {name: getattr(event, name) for name in ("q_u", "q_e", "q_s", "user_cap", "noise_multiplier")}
    return {f"privacy.{name}": value for name, value in values.items()} | {"rounds": proposal.best.rounds}


def _cost_of(run: RunConfig) -> Figures:
    """Return what a run will cost on this machine: seconds, None if they cannot be measured from here, and words."""
    from fl_sim.experiments.cost import forecast_of

    cost = forecast_of(run)
    seconds = cost.seconds * cost.rounds
    return {"seconds": None if math.isnan(seconds) else seconds, "cost": cost.in_words()}


def _described(settings: Settings, goal: Goal, bounds: Candidate) -> Figures:
    """Return settings, what is expected of them, and ε of the target and of any user, as plain values."""
    from fl_sim.search.planner import epsilon_of_units
    from fl_sim.strategies.accounting.accountant import epsilon

    event, rounds = settings.event, settings.rounds
    return settings_of(event) | {
        "rounds": rounds,
        "expected_sentences": settings.sentences,
        "signal": settings.signal,
        "signal_to_noise": settings.signal_to_noise,
        "epsilon_target": epsilon_of_units(event, bounds.units, rounds, goal.delta),
        "epsilon_user": epsilon(event, bounds.guarantee.user, rounds, goal.delta),
    }


def _worth_showing(trades: Sequence[Tradeoff]) -> list[Tradeoff]:
    """Return the best trade of each entity bound, in their order; all trades of a single one."""
    from fl_sim.search.planner import best_first

    best = best_first(trades)
    return list(trades) if len(best) == 1 else [trade for trade in trades if trade in best]


def trade_of(trade: Tradeoff) -> Figures:
    """Return bounds with what they cost and keep, as plain values."""
    settings = trade.settings
    return settings_of(settings.event) | {
        "entity_bound": trade.guarantee.entity_bound,
        "user_sentences": trade.guarantee.user_sentences,
        "kept_sentences": trade.kept_sentences,
        "kept_mentions": trade.kept_mentions,
        "noise_per_sentence": settings.noise_per_sentence,
        "different_sentences": settings.different,
        "different_to_noise": settings.different_to_noise,
    }


def _for_the_owner(rows: Sequence[Settings], goal: Goal, bounds: EnforcedBounds) -> Figures:
    """Return what is read off the corpus: sentences and shares of the first settings, ε by contribution of them all."""
    from fl_sim.search.crowd import KnownCrowd
    from fl_sim.strategies.accounting.accountant import epsilon

    crowd = KnownCrowd(bounds.ownership, bounds.weights)
    epsilons: list[Figures] = []
    for settings in rows:
        figures: Figures = {}
        for name in CONTRIBUTION_QUANTILES:
            adjacency = bounds.guarantee.with_entity(bounds.entity_bounds[name])
            for kind, event in (("", settings.event), ("robust_", settings.event.robust())):
                spent = epsilon(event, adjacency, settings.rounds, goal.delta)
                figures[f"epsilon_user_entity_{kind}{name}"] = spent
        epsilons.append(figures)
    return bounds.record() | {"expected_sentences": crowd.sentences(rows[0].event), "epsilons": epsilons}


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
    keep_mentions: float | None = None,
    say: Callable[[str], None] = lambda words: None,
    weigh: Callable[[Sequence[Tradeoff]], None] = lambda trades: None,
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
        keep_mentions: The least share of the public text's mentions that the bounds keep, in weight.
        say: Called with what is done now.
        weigh: Called with what the bounds that are tried cost and keep, unless they are given.
        observer: Called with every trial that ended.

    Returns:
        The file with the settings and their origin, for :func:`fl_sim.run`; the trial at which the search was
        interrupted.

    Raises:
        ConfigError: a value is impossible, no bounds keep the mentions, or all trials failed.
        CorpusError: the public text is no prepared corpus.
    """
    from fl_sim.search.settings_search import PrivateRun, PublicText, Search, ranked_bounds, settings_under, tune

    search = Search(trials, trial_sentences, seed, jobs)
    private = PrivateRun.of(config, sentences)
    text = PublicText.open(str(public), private)
    if trades := ranked_bounds(private, text, keep_mentions):
        weigh(trades)
        bounds = tuple(settings_under(trade.privacy, q_s=trade.settings.event.q_s) for trade in trades)
        search = replace(search, bounds=bounds)
    numbers = " then ".join(str(number) for number, _ in search.rungs)
    say(f"training {numbers} settings on {public}, {jobs} at a time")
    return tune(private, text, search, Path(out).expanduser().absolute(), observer)


@owner_only()
def plan_automatically(
    config: RunConfig,
    *,
    out: str | Path,
    minutes: float = MINUTES,
    tokens: float | None = None,
    keep_mentions: float | None = None,
    say: Callable[[str], None] = lambda words: None,
    weigh: Callable[[Sequence[Tradeoff]], None] = lambda trades: None,
    observer: Callable[[Tried], None] = lambda tried: None,
) -> Automatic | Tried:
    """Choose bounds, rates, noise, clip norm and optimizer by trials on public text, as ``fl-sim plan auto`` does.

    Args:
        config: What is stated: corpus, number of users, target ε, δ, model; bounds, which are searched by default.
        out: The folder of the search and its settings (tuned.toml); a stopped search in it goes on.
        minutes: The minutes for search and training together.
        tokens: The mean tokens of a sentence, a public number (by default that of the public text).
        keep_mentions: The least share of mentions that the bounds keep, in weight.
        say: Called with what search and training will take.
        weigh: Called with what the bounds that a new search tries cost and keep, unless they are given.
        observer: Called with every trial that ended.

    Returns:
        The configuration with all settings, and where they come from; the trial at which the search was interrupted.

    Raises:
        ConfigError: a setting that is chosen is given, no settings meet the target, no bounds keep the mentions, the
            number of users is missing, or search and training would take longer.
        ResultsError: the folder holds another search.
    """
    from fl_sim.search.automatic import choose_settings

    trials = Path(out).expanduser().absolute()
    return choose_settings(config, minutes, trials, keep_mentions, tokens, say, weigh, observer)
