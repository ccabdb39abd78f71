"""Choose all settings of a run from what ships: rates by the planner, the rest by a tuned file or a search.

Of the private corpus nothing is read but N, the number of users, and that under a public mention graph alone; under a
private one N must be stated. Rates, cap and q_e are planned on public text for that many users, the number of sentences
follows from the time that is allowed, measured on public text, and z from the target and the bounds. Clip norm, cap,
optimizer and learning rate come from a file that ships, if one was tuned for such a run, or from a search on public
text.

>>> public_text("irc"), public_text("my/corpus")
('bundled', 'bundled')
>>> public_text("bundled"), round_down_to_grid(1234.0)
('irc', 1000.0)
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_sim.clients.batches import Examples
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep import SHIPPED_CORPORA
from fl_sim.data_prep.store.corpus import BUNDLED, Corpus
from fl_sim.data_prep.store.encode import encode_split
from fl_sim.experiments.cost import CLIPPING, seconds_per_sentence, threads_of, workers_of
from fl_sim.experiments.plan.guarantees import EnforcedBounds, target_of
from fl_sim.experiments.run_inputs import build_model, held_out_split, task_of
from fl_sim.search.planner import Goal, propose
from fl_sim.search.settings_search import DESCRIPTION, PrivateRun, PublicText, Search, Tried, tune
from fl_sim.storage import environment

TARGET = 8.0
MINUTES = 5.0
ROUNDS = 20

CHOSEN = (
    *("rounds", "origin", "privacy.strategy", "privacy.q_u", "privacy.q_e", "privacy.q_s", "privacy.clip_norm"),
    *("privacy.user_cap", "privacy.noise_multiplier", "privacy.noise_cohort", "privacy.epsilon_budget"),
    *("server.optimizer", "server.learning_rate", "server.momentum"),
)
"""Keys that are chosen, and so cannot be given."""

_PLANNED = ("q_u", "q_e", "q_s", "user_cap")

_TUNED = Path(__file__).parent / "tuned"
_SAMPLE = 64  # sentences of public text on which time is measured
_SHARE_OF_SEARCH = 1 / 3  # of the time, if no file was tuned for such a run
_TRIALS = 4
_NEAR = 2.0  # a tuned file serves runs of half to twice its users and target


@dataclass(frozen=True)
class Automatic:
    """A configuration with all settings chosen.

    Attributes:
        config: of the run, with the origin of its settings.
        notes: what was chosen and where it comes from, a sentence each.
    """

    config: RunConfig
    notes: tuple[str, ...]


def choose_settings(
    config: RunConfig, minutes: float, trials: Path, observe: Callable[[Tried], None] = lambda _: None
) -> Automatic | Tried:
    """Return the configuration with all settings chosen, or the trial at which the search was interrupted.

    Args:
        config: with what is stated: corpus, N, target, δ, bounds, model.
        minutes: for search and training together.
        trials: a folder for the search, if there is one; a stopped search in it goes on.
        observe: called with every trial that ended.

    Raises:
        ConfigError: no settings meet the target, or N is missing.
    """
    if not 0 < minutes < math.inf:
        raise ConfigError(f"--minutes is {minutes:g}; allowed: a finite number above 0")
    stated = _stated(config)
    corpus = Corpus.open(public := public_text(config.corpus.path), verify=True)
    tuned = tuned_file(stated, public)
    if tuned is not None:
        rates = _rates(stated, corpus, _affordable(stated, corpus, minutes))
        searched = {} if tuned.tuned_on is None else tuned.tuned_on.settings
        chosen = stated.changed({**rates, **searched, "rounds": ROUNDS, "origin": tuned.origin})
        text = PublicText.open(public, PrivateRun.of(chosen))
        chosen = _with_equal_steps(chosen, text)
        return Automatic(chosen, _notes(chosen, text, "a file that ships"))
    run, search = _kept(stated, trials) or _begun(stated, corpus, minutes)
    ended = tune(run, text := PublicText.open(public, run), search, trials, observe)
    if isinstance(ended, Tried):
        return ended
    chosen = RunConfig.load(ended).changed({"out": config.out})
    return Automatic(chosen, _notes(chosen, text, str(ended)))


def _with_equal_steps(config: RunConfig, public: PublicText) -> RunConfig:
    """Return the configuration with SGD's learning rate for as many sentences a user and round as it was tuned for.

    An average over the expected users is longer if more of their sentences take part; Adam divides by its length.
    """
    origin = config.tuned_on
    if origin is None or config.server.optimizer != "sgd":
        return config
    sentences = public.expected_sentences(PrivateRun.of(config)) / (config.privacy.population or 1)
    rate = config.server.learning_rate * origin.sentences / origin.users / sentences
    return config.changed({"server.learning_rate": float(f"{rate:.4g}")})


def public_text(corpus: str) -> str:
    """Return the name of the shipped corpus on which settings for ``corpus`` are chosen: never the same."""
    return next(name for name in (BUNDLED, *SHIPPED_CORPORA) if name != corpus)


def tuned_file(config: RunConfig, public: str) -> RunConfig | None:
    """Return the shipped file that was tuned for a run like ``config`` by this version on ``public``; None for none.

    A run is like another if it has the same model, task and δ, and half to twice the users and the target.
    """
    version = environment.version("fl-sim") or ""
    for file in sorted(_TUNED.glob("*.toml")):
        tuned = RunConfig.load(file)
        origin = tuned.tuned_on
        if origin is None or origin.corpus != public or not origin.made_by.endswith(version):
            continue
        same = (tuned.model, tuned.task, origin.delta, origin.unit) == (
            *(config.model, config.task),
            *(config.privacy.delta, config.privacy.target_unit),
        )
        pairs = ((origin.users, config.privacy.population), (origin.epsilon, config.privacy.target_epsilon))
        near = all(a is not None and b is not None and 1 / _NEAR <= a / b <= _NEAR for a, b in pairs)
        if same and near:
            return tuned
    return None


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
    if users is None:  # a private mention graph has been refused without it
        splits = Corpus.open(config.corpus.path).manifest.splits
        if config.corpus.train_split not in splits:
            raise ConfigError(f"corpus.train_split is '{config.corpus.train_split}'; allowed: {', '.join(splits)}")
        users = splits[config.corpus.train_split].users
    return config.changed(
        {"privacy.population": users, "privacy.target_epsilon": privacy.target_epsilon or TARGET, "rounds": ROUNDS}
    )


def _begun(stated: RunConfig, corpus: Corpus, minutes: float) -> tuple[PrivateRun, Search]:
    """Return a new search, which has a third of the time, and the run that it is for."""
    affordable = _affordable(stated, corpus, minutes)
    run = PrivateRun.of(stated.changed(_rates(stated, corpus, (1 - _SHARE_OF_SEARCH) * affordable)))
    passes = _TRIALS / 3 + math.ceil(_TRIALS / 3)  # the first trials have a third of the sentences
    sentences = round_down_to_grid(_SHARE_OF_SEARCH * affordable / passes / ROUNDS)
    return run, Search(_TRIALS, max(10.0, sentences), stated.seed, round_factors=(1.0,))


def _kept(stated: RunConfig, trials: Path) -> tuple[PrivateRun, Search] | None:
    """Return the search that stopped in a folder and the run that it is for; None if it is of another run.

    It goes on with the rates that it began with, whatever a sentence takes today.
    """
    try:
        kept = json.loads((trials / DESCRIPTION).read_bytes())
        config = RunConfig.from_mapping(kept["run"])
        rates = {f"privacy.{name}": getattr(config.privacy, name) for name in (*_PLANNED, "strategy")}
        if stated.changed(rates).model_dump() != config.model_dump():
            return None
        factors = tuple(kept["round_factors"])
        search = Search(kept["trials"], kept["trial_sentences"], kept["seed"], round_factors=factors)
        return PrivateRun.of(stated.changed(rates)), search
    except (OSError, ValueError, KeyError, TypeError):
        return None  # what is in the folder is refused by the search


def _rates(stated: RunConfig, corpus: Corpus, affordable: float) -> dict[str, Any]:
    """Return strategy, rates and cap of the best signal-to-noise ratio, planned on public text.

    Args:
        stated: the run.
        corpus: the public text.
        affordable: sentences of all rounds.
    """
    privacy = stated.privacy
    bounds = EnforcedBounds.of(privacy, corpus.ownership("train"), 0)
    users, target = privacy.population or 1, privacy.target_epsilon or TARGET
    _, units = target_of(bounds.guarantee, privacy.target_unit, clips_sentences=True, population=users)
    if not units:
        raise ConfigError(
            "privacy.target_epsilon is for any user with any entity, but no bound on entities is set; allowed: "
            "privacy.entity_bound, or privacy.target_unit = user"
        )
    sentences = round_down_to_grid(affordable) / ROUNDS * bounds.ownership.num_users / users
    event = propose(
        bounds, tuple(units.values()), Goal(target, privacy.target_unit, privacy.delta, sentences, ROUNDS)
    ).best.event
    return {f"privacy.{name}": getattr(event, name) for name in (*_PLANNED, "strategy")}


def _affordable(stated: RunConfig, corpus: Corpus, minutes: float) -> float:
    """Return for how many sentences the time is enough, measured on public text."""
    return 60 * minutes * workers_of(stated.placed_engine) / _seconds_of_sentence(stated, corpus)


def _seconds_of_sentence(config: RunConfig, corpus: Corpus) -> float:
    """Return the seconds that the clipped gradient of a sentence takes, measured on public text."""
    model = build_model(config, task_of(config, corpus))
    texts = corpus.texts(held_out_split(RunConfig(), corpus)).slice(0, _SAMPLE)
    with tempfile.TemporaryDirectory() as folder:
        encoded = encode_split(
            texts,
            model.tokenizer,
            model.max_tokens,
            Path(folder) / "sample",
            bos_id=model.bos_id,
            eos_id=model.eos_id,
        )
        sample, threads = Examples(encoded).read(range(len(texts))), threads_of(config.engine)
        return max(1e-6, CLIPPING * seconds_per_sentence(model, sample, threads))


def _notes(config: RunConfig, public: PublicText, file: str) -> tuple[str, ...]:
    privacy, server = config.privacy, config.server
    sentences = public.expected_sentences(PrivateRun.of(config))
    origin = "" if config.tuned_on is None else config.tuned_on.in_words(config.model_dump())
    return (
        f"ε ≤ {privacy.target_epsilon:g} ({privacy.target_unit}) at δ {privacy.delta:g}, {privacy.population:,} users; "
        f"{config.rounds} rounds of about {sentences:,.0f} sentences, if users write as on {public.name}",
        f"q_u {privacy.q_u:g}, q_s {privacy.q_s:g}, q_e {privacy.q_e:g}: planned on {public.name}",
        f"clip norm {privacy.clip_norm:g}, user cap {privacy.user_cap:g}, {server.optimizer} with learning rate "
        f"{server.learning_rate:g}: {origin} ({file})",
    )
