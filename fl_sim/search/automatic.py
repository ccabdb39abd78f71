"""Choose all settings of a run in a given time, by trials on public text: rates by the planner, the rest by a search.

What is released rests on what the guarantee takes as known, and on public text. Counts, or the mention graph, tell how
many sentences a round has, so bounds, rates, cap and z are planned by them; where nothing is known, N is stated and its
users are taken to write as much as those of the public text. Lengths of sentences are private under every guarantee: a
sentence is taken to last as long as one of the public text, or as one of so many tokens as are stated to be usual.

So the plan may be wrong about the time, and must not be corrected by the private text: fewer rounds, or fewer
sentences, would tell of it. Before the search the time of the training is measured on the private sentences and shown
to their owner. If it does not fit, the plan is refused, so that nothing is released, and the owner may state a public
length. Half of the minutes are planned for the training and a quarter for trials; the rest is for the planning, which
takes as long as the private counts are many, and for longer sentences.

>>> public_text("irc"), public_text("my/corpus")
('bundled', 'bundled')
>>> public_text("bundled"), round_down_to_grid(1234.0)
('irc', 1000.0)
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep import SHIPPED_CORPORA
from fl_sim.data_prep.store.corpus import BUNDLED, Corpus
from fl_sim.experiments.cost import Pace, forecast_of, sentences_of, threads_of, workers_at_once
from fl_sim.experiments.run_inputs import build_model, declared, task_of
from fl_sim.formats import duration, format_delta, round_up
from fl_sim.search.bounds import Candidate, Users
from fl_sim.search.planner import Goal, Tradeoff, best_first, propose
from fl_sim.search.settings_search import (
    DESCRIPTION,
    MOST_BOUNDS,
    Chosen,
    PrivateRun,
    PublicText,
    Search,
    Tried,
    settings_under,
    tune,
)
from fl_sim.storage.run_folder import ResultsError
from fl_sim.strategies.privacy_config import PrivacyConfig
from fl_sim.strategies.registry import target_unit

TARGET = 8.0
ROUNDS = 20

CHOSEN = (
    *("rounds", "origin", "privacy.strategy", "privacy.q_u", "privacy.q_e", "privacy.q_s", "privacy.clip_norm"),
    *("privacy.user_cap", "privacy.noise_multiplier", "privacy.noise_cohort", "privacy.epsilon_budget"),
    *("server.optimizer", "server.learning_rate", "server.momentum"),
)
"""Keys that are chosen, and so cannot be given."""

_PLANNED = ("q_u", "q_e", "q_s", "user_cap", "strategy")

_SHARE_OF_TRIALS = 1 / 4  # of the time
_SHARE_OF_TRAINING = 1 / 2
_TRIALS = 4
_FEWEST = 10.0  # sentences of a round of a trial
_START = 0.5  # seconds in which a trial opens its corpus, model and folder


@dataclass(frozen=True)
class Automatic:
    """A configuration with all settings chosen and their origin, and what was chosen and where it comes from."""

    config: RunConfig
    notes: tuple[str, ...]


def choose_settings(
    config: RunConfig,
    minutes: float,
    trials: Path,
    keep_mentions: float | None = None,
    tokens: float | None = None,
    say: Callable[[str], None] = lambda _: None,
    weigh: Callable[[Sequence[Tradeoff]], None] = lambda _: None,
    observe: Callable[[Tried], None] = lambda _: None,
) -> Automatic | Tried:
    """Return the configuration with all settings chosen, or the trial at which the search was interrupted.

    The arguments are those of :func:`fl_sim.api.planning.plan_automatically`; ``trials`` is the search's folder.

    Raises:
        ConfigError: no settings meet the target, no bounds keep the mentions, N is missing, or search and training
            would take longer than ``minutes``.
        ResultsError: ``trials`` holds something else.
    """
    began = time.monotonic()
    for name, value in (("--minutes", minutes), ("--tokens", tokens)):
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{name} is {value:g}; allowed: a finite number above 0")
    stated, public = _stated(config), public_text(config.corpus.path)
    opened = Corpus.open(public, verify=True)
    users = _users(stated, opened)
    stated = stated.changed({"privacy.population": users.population})
    kept = _kept(stated, trials, users)
    if kept is None and (trials.is_file() or (trials.is_dir() and any(trials.iterdir()))):
        raise ResultsError(f"{trials}: holds another search, or something else; allowed: a new folder")
    of_trials, spent = _pace(stated, opened), 0.0
    if kept is None:
        rates, trades = _planned(stated, users, _affordable(stated, of_trials, minutes, tokens), keep_mentions)
        if trades:
            weigh(trades)
        search = _search(stated, trades, of_trials, 60 * minutes * _SHARE_OF_TRIALS)
        spent = time.monotonic() - began + _seconds_of(search, of_trials)
        run = _private_run(stated.changed(rates), users)
    else:
        run, search = kept
    text = PublicText.open(public, run)
    training = forecast_of(run.with_settings(search.bounds[0] if search.bounds else {}))
    owners = f"{training.in_words()}: measured on the corpus's own sentences, for its owner alone"
    say(f"{f'search about {duration(spent)}; ' if spent else ''}training {owners}")
    _check_time(minutes, spent, training.seconds * training.rounds, tokens or of_trials.tokens)
    ended = tune(run, text, search, trials, observe)
    if isinstance(ended, Tried):
        return ended
    chosen = RunConfig.load(ended).changed({"out": config.out})
    return Automatic(chosen, (*_notes(chosen, text, users, ended), f"training on this machine: {owners}"))


def public_text(corpus: str) -> str:
    """Return the name of the shipped corpus on which settings for ``corpus`` are chosen: never the same."""
    return next(name for name in (BUNDLED, *SHIPPED_CORPORA) if name != corpus)


def round_down_to_grid(value: float) -> float:
    """Return the largest of 1, 2 and 5 times a power of ten that is at most ``value``: settings no clock can shift."""
    power = 10.0 ** math.floor(math.log10(value))
    return max(step * power for step in (1.0, 2.0, 5.0) if step * power <= value)


def _stated(config: RunConfig) -> RunConfig:
    """Return the configuration with a target, and refuse what would be chosen on the private corpus."""
    privacy = config.privacy
    if privacy.settings_from_corpus:
        raise ConfigError("privacy.settings_from_corpus is true with fl-sim plan auto; allowed: false")
    if config.task == "classification":
        raise ConfigError(
            "task is classification; allowed: next-word, because no text with classes ships to choose settings on"
        )
    return config.changed({"privacy.target_epsilon": privacy.target_epsilon or TARGET, "rounds": ROUNDS})


def _users(stated: RunConfig, public: Corpus) -> Users:
    """Return the users of the run, by their counts or graph; by those of public text where nothing is known."""
    privacy, split = stated.privacy, stated.corpus.train_split
    if privacy.known == "nothing":  # N is stated, or its absence has been refused
        like, population = public.ownership("train"), privacy.population or 1
        return Users(like, population, scale=population / like.num_users)
    corpus = Corpus.open(stated.corpus.path)
    if split not in corpus.splits:
        raise ConfigError(f"corpus.train_split is '{split}'; allowed: {', '.join(corpus.splits)}")
    ownership, told = corpus.ownership(split), declared(stated, corpus)
    population = told.counts.population if told.counts else ownership.num_users
    return Users(ownership, privacy.population or population, by_counts=privacy.known == "counts", declared=told)


def _private_run(config: RunConfig, users: Users) -> PrivateRun:
    return PrivateRun.of(config, users=None if config.privacy.known == "nothing" else users)


def _pace(stated: RunConfig, public: Corpus) -> Pace:
    """Return how fast a worker is on public text."""
    engine = stated.placed_engine
    model = build_model(stated, task_of(stated, public))
    sample = sentences_of(public, "train", model, stated.evaluation.max_sentences)
    return Pace.of(model, sample, threads_of(engine))


def _affordable(stated: RunConfig, pace: Pace, minutes: float, tokens: float | None) -> float:
    """Return how many sentences all rounds may have, if these take as long as those of public text, or have ``tokens``.

    Raises:
        ConfigError: not one a round.
    """
    if tokens is not None:
        pace = pace.at_length(tokens)
    workers, every = workers_at_once(stated.placed_engine), stated.evaluation.every
    sentences = pace.sentences(60 * minutes * _SHARE_OF_TRAINING / ROUNDS, workers, every)
    if sentences < 1:
        least = pace.seconds(1, workers, every) * ROUNDS / _SHARE_OF_TRAINING / 60
        raise ConfigError(
            f"--minutes is {minutes:g}; allowed here: at least {round_up(least, 2)}, and more for a search"
        )
    return sentences * ROUNDS


def _search(stated: RunConfig, trades: Sequence[Tradeoff], pace: Pace, seconds: float) -> Search:
    """Return a search of so many seconds, on one worker; at least one with trials of a few sentences."""
    bounds = tuple(
        settings_under(trade.privacy, q_s=trade.settings.event.q_s, q_e=trade.settings.event.q_e) for trade in trades
    )
    shortest = Search(_TRIALS, _FEWEST, stated.seed, round_factors=(1.0,), bounds=bounds)
    fixed = _seconds_of(shortest, pace)
    a_sentence = (_seconds_of(replace(shortest, sentences=2 * _FEWEST), pace) - fixed) / _FEWEST
    more = (seconds - fixed) / a_sentence
    return replace(shortest, sentences=round_down_to_grid(_FEWEST + more)) if more > 0 else shortest


def _seconds_of(search: Search, pace: Pace) -> float:
    """Return what the trials of a search take, with two evaluations each."""
    return sum(
        number * (ROUNDS * pace.seconds(sentences, every=ROUNDS) + pace.evaluation + _START)
        for number, sentences in search.rungs
    )


def _check_time(minutes: float, search: float, training: float, tokens: float) -> None:
    """Check that search and training fit into the minutes; a time that cannot be measured from here passes.

    Args:
        search: seconds; 0 for a search that was planned before.

    Raises:
        ConfigError: they do not, because sentences are longer than the ``tokens`` that were planned for, or because
            the minutes are few.
    """
    if not search + training > 60 * minutes:
        return
    takes = round_up((search + training) / 60, 2)
    if search and training > 60 * minutes * _SHARE_OF_TRAINING:
        raise ConfigError(
            f"--minutes is {minutes:g}, and search and training would take {takes}: the corpus has longer sentences "
            f"than planned for, {tokens:.0f} tokens each; allowed: --tokens N, a larger mean number that is public "
            "(one that is read off the corpus needs privacy.settings_from_corpus = true in the run)"
        )
    least = max(search / _SHARE_OF_TRIALS, search + training) / 60
    another = "" if search else ", or another --out, which this plan is not in"
    raise ConfigError(f"--minutes is {minutes:g}; allowed here: at least {round_up(least, 2)}{another}")


def _kept(stated: RunConfig, trials: Path, users: Users) -> tuple[PrivateRun, Search] | None:
    """Return the search that stopped in a folder and the run that it is for; None if it is of another run.

    It goes on with the rates that it began with, whatever a sentence takes today.
    """
    try:
        kept = json.loads((trials / DESCRIPTION).read_bytes())
        config = RunConfig.from_mapping(kept["run"])
        same = stated.changed({f"privacy.{name}": getattr(config.privacy, name) for name in _PLANNED})
        if same.model_dump(mode="json") != config.model_dump(mode="json"):
            return None
        factors = tuple(kept["round_factors"])
        bounds = tuple(kept["bounds"])
        search = Search(kept["trials"], kept["trial_sentences"], kept["seed"], round_factors=factors, bounds=bounds)
        return _private_run(same, users), search
    except (OSError, ValueError, KeyError, TypeError):
        return None  # what is in the folder is refused by the search


def _planned(
    stated: RunConfig, users: Users, affordable: float, keep_mentions: float | None
) -> tuple[Chosen, list[Tradeoff]]:
    """Return strategy, rates and cap of the best ratio, planned for users, and what is found under other bounds.

    ``affordable`` counts the sentences of all rounds.
    """
    privacy = stated.privacy

    def candidate(bounded: PrivacyConfig) -> Candidate:
        found = users.candidate(bounded)
        if not found.units:
            raise ConfigError(
                "privacy.target_epsilon is for any user with any entity, but no bound on entities is set; allowed: "
                "privacy.entity_bound, or privacy.target_unit = user"
            )
        return found

    sentences = round_down_to_grid(affordable) / ROUNDS / users.scale
    goal = Goal(privacy.target_epsilon or TARGET, privacy.delta, sentences, ROUNDS)
    choices = users.bounds_to_try(privacy)
    proposal = propose(choices, candidate, goal, keep_mentions)
    trades = best_first(proposal.trades)[:MOST_BOUNDS] if len(choices) > 1 else []
    return {f"privacy.{name}": getattr(proposal.best.event, name) for name in _PLANNED}, trades


def _notes(chosen: RunConfig, text: PublicText, users: Users, file: Path) -> Iterator[str]:
    """Yield what was chosen, and what it rests on."""
    privacy, server, private = chosen.privacy, chosen.server, _private_run(chosen, users)
    known = {
        "counts": "the counts of this corpus",
        "graph": "the mention graph of this corpus",
        "nothing": f"the users of {text.name}",
    }[privacy.known]
    yield (
        f"ε ≤ {privacy.target_epsilon:g} ({target_unit(privacy)}) at δ {format_delta(privacy.delta)}, "
        f"{privacy.population:,} users; {chosen.rounds} rounds of about "
        f"{text.expected_sentences(private, {}):,.0f} sentences"
    )
    bounds = {"k": privacy.entity_bound, "m": privacy.user_sentences}
    yield (
        "".join(f"{name} {value}, " for name, value in bounds.items() if value is not None)
        + f"q_u {privacy.q_u:g}, q_s {privacy.q_s:g}, q_e {privacy.q_e:g}: planned by {known}, and by the time of "
        f"sentences of {text.name}"
    )
    origin = "" if chosen.tuned_on is None else chosen.tuned_on.in_words(chosen.model_dump())
    yield (
        f"clip norm {privacy.clip_norm:g}, user cap {privacy.user_cap:g}, {server.optimizer} with learning rate "
        f"{server.learning_rate:g}: {origin} ({file})"
    )
