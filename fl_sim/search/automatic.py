"""Choose all settings of a run in a given time, by trials on public text: rates by the planner, the rest by a search.

Of the private corpus nothing is read but N, the number of users, which its counts make public; where nothing is known N
must be stated. Bounds, rates and cap are planned on public text for that many users, the number of sentences follows
from the time that is allowed, measured on public text, and z from the target and the bounds. Clip norm, cap, optimizer
and learning rate come from a search, which has a third of the time and tries several bounds.

>>> public_text("irc"), public_text("my/corpus")
('bundled', 'bundled')
>>> public_text("bundled"), round_down_to_grid(1234.0)
('irc', 1000.0)
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fl_sim.clients.batches import Examples
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep import SHIPPED_CORPORA
from fl_sim.data_prep.store.corpus import BUNDLED, Corpus
from fl_sim.data_prep.store.encode import encode_split
from fl_sim.experiments.cost import CLIPPING, seconds_per_sentence, threads_of, workers_of
from fl_sim.experiments.run_inputs import build_model, held_out_split, task_of
from fl_sim.search.bounds import Candidate, bounds_to_try
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

_SAMPLE = 64  # sentences of public text on which time is measured
_SHARE_OF_SEARCH = 1 / 3  # of the time
_TRIALS = 4


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
    weigh: Callable[[Sequence[Tradeoff]], None] = lambda _: None,
    observe: Callable[[Tried], None] = lambda _: None,
) -> Automatic | Tried:
    """Return the configuration with all settings chosen, or the trial at which the search was interrupted.

    Args:
        config: with what is stated: corpus, N, target, δ, bounds, model.
        minutes: for search and training together.
        trials: a folder for the search; a stopped search in it goes on.
        keep_mentions: the least share of the public text's mentions that bounds keep, in weight.
        weigh: called with what a new search finds under the bounds that it tries.
        observe: called with every trial that ended.

    Raises:
        ConfigError: no settings meet the target, no bounds keep the mentions, or N is missing.
    """
    if not 0 < minutes < math.inf:
        raise ConfigError(f"--minutes is {minutes:g}; allowed: a finite number above 0")
    stated, public = _stated(config), public_text(config.corpus.path)
    kept = _kept(stated, trials)
    run, search = kept or _begun(stated, Corpus.open(public, verify=True), minutes, keep_mentions, weigh)
    ended = tune(run, text := PublicText.open(public, run), search, trials, observe)
    if isinstance(ended, Tried):
        return ended
    chosen = RunConfig.load(ended).changed({"out": config.out})
    privacy, server, private = chosen.privacy, chosen.server, PrivateRun.of(chosen)
    origin = "" if chosen.tuned_on is None else chosen.tuned_on.in_words(chosen.model_dump())
    notes = (
        f"ε ≤ {privacy.target_epsilon:g} ({target_unit(privacy)}) at δ {privacy.delta:g}, {privacy.population:,} "
        f"users; {chosen.rounds} rounds of about {text.expected_sentences(private, {}):,.0f} sentences, if users write "
        f"as on {text.name}",
        f"{_in_words(privacy)}q_u {privacy.q_u:g}, q_s {privacy.q_s:g}, q_e {privacy.q_e:g}: planned on {text.name}",
        f"clip norm {privacy.clip_norm:g}, user cap {privacy.user_cap:g}, {server.optimizer} with learning rate "
        f"{server.learning_rate:g}: {origin} ({ended})",
    )
    return Automatic(chosen, notes)


def public_text(corpus: str) -> str:
    """Return the name of the shipped corpus on which settings for ``corpus`` are chosen: never the same."""
    return next(name for name in (BUNDLED, *SHIPPED_CORPORA) if name != corpus)


def round_down_to_grid(value: float) -> float:
    """Return the largest of 1, 2 and 5 times a power of ten that is at most ``value``: settings no clock can shift."""
    power = 10.0 ** math.floor(math.log10(value))
    return max(step * power for step in (1.0, 2.0, 5.0) if step * power <= value)


def _stated(config: RunConfig) -> RunConfig:
    """Return the configuration with N and a target, and refuse what would be chosen on the private corpus."""
    privacy = config.privacy
    if privacy.settings_from_corpus:
        raise ConfigError("privacy.settings_from_corpus is true with fl-sim plan auto; allowed: false")
    if config.task == "classification":
        raise ConfigError(
            "task is classification; allowed: next-word, because no text with classes ships to choose settings on"
        )
    users = privacy.population
    if users is None:  # where nothing is known, its absence has been refused
        splits = Corpus.open(config.corpus.path).manifest.splits
        if config.corpus.train_split not in splits:
            raise ConfigError(f"corpus.train_split is '{config.corpus.train_split}'; allowed: {', '.join(splits)}")
        users = splits[config.corpus.train_split].users
    return config.changed(
        {"privacy.population": users, "privacy.target_epsilon": privacy.target_epsilon or TARGET, "rounds": ROUNDS}
    )


def _begun(
    stated: RunConfig,
    corpus: Corpus,
    minutes: float,
    keep_mentions: float | None,
    weigh: Callable[[Sequence[Tradeoff]], None],
) -> tuple[PrivateRun, Search]:
    """Return a new search, which has a third of the time, and the run that it is for."""
    affordable = 60 * minutes * workers_of(stated.placed_engine) / _seconds_of_sentence(stated, corpus)
    rates, trades = _planned(stated, corpus, (1 - _SHARE_OF_SEARCH) * affordable, keep_mentions)
    weigh(trades)
    passes = _TRIALS / 3 + math.ceil(_TRIALS / 3)  # the first trials have a third of the sentences
    sentences = max(10.0, round_down_to_grid(_SHARE_OF_SEARCH * affordable / passes / ROUNDS))
    bounds = tuple(
        settings_under(trade.privacy, q_s=trade.settings.event.q_s, q_e=trade.settings.event.q_e) for trade in trades
    )
    return PrivateRun.of(stated.changed(rates)), Search(
        _TRIALS, sentences, stated.seed, round_factors=(1.0,), bounds=bounds
    )


def _kept(stated: RunConfig, trials: Path) -> tuple[PrivateRun, Search] | None:
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
        return PrivateRun.of(same), search
    except (OSError, ValueError, KeyError, TypeError):
        return None  # what is in the folder is refused by the search


def _planned(
    stated: RunConfig, corpus: Corpus, affordable: float, keep_mentions: float | None
) -> tuple[Chosen, list[Tradeoff]]:
    """Return strategy, rates and cap of the best ratio, planned on public text, and what is found under other bounds.

    ``affordable`` counts the sentences of all rounds.
    """
    ownership, privacy = corpus.ownership("train"), stated.privacy
    users, target = privacy.population or 1, privacy.target_epsilon or TARGET

    def candidate(bounded: PrivacyConfig) -> Candidate:
        found = Candidate.of(bounded, ownership, users)
        if not found.units:
            raise ConfigError(
                "privacy.target_epsilon is for any user with any entity, but no bound on entities is set; allowed: "
                "privacy.entity_bound, or privacy.target_unit = user"
            )
        return found

    goal = Goal(target, privacy.delta, round_down_to_grid(affordable) / ROUNDS * ownership.num_users / users, ROUNDS)
    choices = bounds_to_try(privacy, ownership)
    proposal = propose(choices, candidate, goal, keep_mentions)
    trades = best_first(proposal.trades)[:MOST_BOUNDS] if len(choices) > 1 else []
    return {f"privacy.{name}": getattr(proposal.best.event, name) for name in _PLANNED}, trades


def _in_words(privacy: PrivacyConfig) -> str:
    """Return the bounds that are set, before what follows: "k 3, m 9, "."""
    bounds = {"k": privacy.entity_bound, "m": privacy.user_sentences}
    return "".join(f"{name} {value}, " for name, value in bounds.items() if value is not None)


def _seconds_of_sentence(config: RunConfig, corpus: Corpus) -> float:
    """Return the seconds that the clipped gradient of a sentence takes, measured on public text."""
    model = build_model(config, task_of(config, corpus))
    texts = corpus.texts(held_out_split(RunConfig(), corpus)).slice(0, _SAMPLE)
    ends = {"bos_id": model.bos_id, "eos_id": model.eos_id}
    with tempfile.TemporaryDirectory() as folder:
        encoded = encode_split(texts, model.tokenizer, model.max_tokens, Path(folder) / "sample", **ends)
        sample, threads = Examples(encoded).read(range(len(texts))), threads_of(config.engine)
        return max(1e-6, CLIPPING * seconds_per_sentence(model, sample, threads))
