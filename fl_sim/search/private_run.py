"""A private run, described by public numbers alone, and trials on public text at its size and noise.

Nothing here reads the private corpus: N, the expected sentences of a round, rates, bounds, target and δ are stated. The
noise multiplier of each setting is calibrated for the target from rates and bounds. A trial on fewer public users draws
its sentences at higher or lower rates, and shrinks its noise (``privacy.noise_cohort``) to the noise-to-signal ratio of
the private run's rounds, with S as in :mod:`fl_sim.search.planner`, the expected number of sentences that count.

>>> stated = {"privacy.population": 5000, "privacy.target_epsilon": 3.0, "rounds": 4, "privacy.q_s": 0.02}
>>> run = PrivateRun.of(RunConfig.from_mapping(stated))
>>> run.target, run.noise({"privacy.user_cap": 1.0}) < run.noise({"rounds": 16, "privacy.user_cap": 1.0})
(3.0, True)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep import SHIPPED_CORPORA
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import NOTHING_EARLIER, EnforcedBounds, Protected, guarantee_of
from fl_sim.experiments.plan.run_plan import noise_for_target, untuned_plan
from fl_sim.experiments.run_inputs import declared_names, held_out_split
from fl_sim.search.planner import Crowd
from fl_sim.strategies.mechanism import Mechanism, PrivacyPlan
from fl_sim.strategies.registry import load_strategy

_NOBODY = Ownership(np.zeros(1, np.int64), np.zeros(1, np.int64), np.empty(0, np.int32), num_entities=0)
"""The corpus that a plan by public numbers reads."""

_NOT_OF_A_TRIAL: dict[str, Any] = {
    "out": None, "anchor": None, "observers": (), "origin": {}, "privacy.secure_noise": False,
    "privacy.target_epsilon": None, "engine.name": "inline", "engine.address": None, "corpus.train_split": "train",
    "corpus.held_out_split": None, "corpus.feature_cache": None,
}  # fmt: skip


@dataclass(frozen=True)
class PrivateRun:
    """The run whose settings are searched.

    Attributes:
        config: as stated, with N.
        target: the ε that all settings meet; None if the strategy adds no noise.
        sentences: expected sentences a round at the configured rates; None for as many a user as on the public text.
    """

    config: RunConfig
    target: float | None
    sentences: float | None = None
    _noise: dict[tuple[float, int], float] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, config: RunConfig, sentences: float | None = None) -> PrivateRun:
        """Return the run of a configuration; ε of its noise multiplier is the target if it states none.

        Raises:
            ConfigError: a number is missing or would be read from the private corpus, or no ε is finite.
        """
        _check(config)
        if sentences is not None and not 0 < sentences < math.inf:
            raise ConfigError(f"--sentences is {sentences:g}; allowed: a finite number above 0")
        strategy = load_strategy(config.privacy.strategy)
        if strategy.headline is not None and "noise_cohort" not in strategy.keys:
            raise ConfigError(
                f"privacy.strategy is {config.privacy.strategy}; allowed: uedp, user_level or noiseless, whose noise a "
                "trial can rescale"
            )
        plan = untuned_plan(config, _NOBODY)
        if plan.mechanism.event() is None:
            return cls(config, None, sentences)
        return cls(config, config.privacy.target_epsilon or _epsilon(config, plan), sentences)

    @property
    def population(self) -> int:
        """Return N."""
        return self.config.privacy.population or 1

    def with_settings(self, settings: Mapping[str, Any]) -> RunConfig:
        """Return the run's configuration with other settings and the target."""
        target = {} if self.target is None else {"privacy.target_epsilon": self.target}
        return self.config.changed({**settings, **target})

    def mechanism(self, settings: Mapping[str, Any]) -> Mechanism:
        """Return the mechanism of the run with other settings, with the noise that meets the target."""
        plan = untuned_plan(self.with_settings(settings), _NOBODY)
        return plan.mechanism if self.target is None else plan.with_noise(self.noise(settings)).mechanism

    def noise(self, settings: Mapping[str, Any]) -> float:
        """Return the noise multiplier that meets the target with other settings, which must change no rate.

        Raises:
            ConfigError: none meets it.
        """
        config = self.with_settings(settings)
        plan = untuned_plan(config, _NOBODY)
        key = plan.mechanism.user_cap, plan.rounds
        if key not in self._noise:
            self._noise[key] = noise_for_target(plan, config.privacy, _protected(config), NOTHING_EARLIER)
        return self._noise[key]


@dataclass(frozen=True)
class PublicText:
    """The public corpus on which trials train, and whose held-out users score them.

    Attributes:
        name: of the corpus.
        corpus: with a split ``train``, and a held-out split.
        crowd: its training users under the bounds of the private run.
    """

    name: str
    corpus: Corpus
    crowd: Crowd

    @classmethod
    def open(cls, path: str, run: PrivateRun) -> PublicText:
        """Open the public corpus of a search; every checksum is verified.

        Raises:
            CorpusError: the folder is no prepared corpus, or has no held-out split.
            ConfigError: it has no split to train on, a single user, or is the private run's own corpus.
        """
        corpus = Corpus.open(path, verify=True)
        _check_public(path, corpus, run)
        config = run.config.changed(_NOT_OF_A_TRIAL)
        bounds = EnforcedBounds.of(config.privacy, corpus.ownership("train"), 0, declared_names(config, corpus))
        name = path if path in SHIPPED_CORPORA else corpus.manifest.name
        return cls(name, corpus, Crowd(bounds.ownership, bounds.weights))

    @property
    def num_users(self) -> int:
        """Return the number of training users."""
        return len(self.crowd.sentences_per_user)

    def expected_sentences(self, run: PrivateRun) -> float:
        """Return the expected sentences of a round of the private run: as stated, or a user's as on this text."""
        mechanism = run.mechanism({})
        return run.sentences or run.population / self.num_users * self._sentences(mechanism, {})

    def trial(self, run: PrivateRun, settings: Mapping[str, Any], sentences: float, seed: int, out: str) -> RunConfig:
        """Return the configuration of a trial.

        Args:
            run: the private run.
            settings: what is tried.
            sentences: the most expected sentences a round; the signal of a round is at most the private run's.
            seed: of the trial.
            out: its folder.

        Raises:
            ConfigError: the settings cannot be tried.
        """
        tried = run.config.changed({**_NOT_OF_A_TRIAL, **settings})
        return tried.changed(
            {
                **self._scaled(run, settings, sentences),
                "seed": seed,
                "out": out,
                "corpus.path": str(self.corpus.path),
                "privacy.population": self.num_users,
                "evaluation.every": tried.rounds,
                "checkpoint_every": max(1, tried.rounds // 4),
            }
        )

    def sentences_of(self, run: PrivateRun, trial: RunConfig) -> float:
        """Return the expected sentences of a round of a trial."""
        rates = {name: rate for name in ("q_u", "q_s") if (rate := getattr(trial.privacy, name)) is not None}
        return self._sentences(run.mechanism({}), rates)

    def _scaled(self, run: PrivateRun, settings: Mapping[str, Any], sentences: float) -> dict[str, Any]:
        """Return rate, noise and step of a trial, at which a round has the private run's noise-to-signal ratio."""
        mechanism, server = run.mechanism(settings), run.with_settings(settings).server
        own = self._sentences(mechanism, {})
        wanted = self.expected_sentences(run) / own * self._signal(mechanism, {})
        name = "q_u" if "q_s" in mechanism.fixed_at_one else "q_s"
        rates: dict[str, float] = {}
        if getattr(mechanism, "epoch_rounds", None) is None:  # else q_u is 1/t
            rates[name] = _rounded_down(min(1.0, getattr(mechanism, name) * sentences / own))
            while self._signal(mechanism, rates) > wanted:
                rates[name] = _rounded_down(rates[name] * 0.98 * wanted / self._signal(mechanism, rates))
        signal, cohort = self._signal(mechanism, rates), rates.get("q_u", mechanism.q_u) * self.num_users
        scaled: dict[str, Any] = {f"privacy.{key}": rate for key, rate in rates.items()}
        if run.target is not None:
            scaled["privacy.noise_multiplier"] = mechanism.noise_multiplier
            scaled["privacy.noise_cohort"] = math.ceil(cohort * wanted / signal)
        if server.optimizer == "sgd":  # the average has another length; adam divides by it
            longer = (signal / cohort) / (wanted / mechanism.expected_cohort)
            scaled["server.learning_rate"] = server.learning_rate / longer
        return scaled

    def _sentences(self, mechanism: Mechanism, rates: Mapping[str, float]) -> float:
        """Return the expected sentences of a round on this text, at other rates where they are given."""
        q_u, q_s = (rates.get(name, getattr(mechanism, name)) for name in ("q_u", "q_s"))
        return q_u * q_s * self.crowd.sampled_sentences(mechanism.q_e)

    def _signal(self, mechanism: Mechanism, rates: Mapping[str, float]) -> float:
        """Return S, the expected sentences that count in a round on this text, at other rates where they are given."""
        q_u, q_s = (rates.get(name, getattr(mechanism, name)) for name in ("q_u", "q_s"))
        return self.crowd.signal(q_u, mechanism.q_e, q_s, mechanism.user_cap)


def _check_public(path: str, corpus: Corpus, run: PrivateRun) -> None:
    if "train" not in corpus.splits:
        raise ConfigError(f"--public is {path}, which has no split train; allowed: a corpus with one")
    if corpus.manifest.splits["train"].users < 2:
        raise ConfigError(f"--public is {path}, which has one user to train; allowed: a corpus of at least 2")
    held_out_split(RunConfig(), corpus)
    private = run.config.corpus
    here = private.path in SHIPPED_CORPORA or Path(private.path).expanduser().is_dir()  # it may be on another machine
    if "path" not in private.model_fields_set or not here or run.config.privacy.settings_from_corpus:
        return
    if Corpus.open(private.path).had_fingerprint(corpus.fingerprint):
        raise ConfigError(
            f"--public is {path}, the corpus of the run itself (corpus.path); allowed: other, public text, or "
            "privacy.settings_from_corpus = true"
        )


def _check(config: RunConfig) -> None:
    """Refuse what is missing, and what would be read from the private corpus."""
    privacy = config.privacy
    if privacy.population is None:
        raise ConfigError("privacy.population is not given; allowed: N, the public number of users (--users)")
    if privacy.user_sentences == "corpus":
        raise ConfigError(
            "privacy.user_sentences is corpus; allowed: a number or unbounded, because tuning does not read the corpus"
        )
    for name in ("noise_cohort", "epsilon_budget"):
        if getattr(privacy, name) is not None:
            raise ConfigError(f"privacy.{name} is {getattr(privacy, name):g}; allowed: nothing, in tuning")


def _protected(config: RunConfig) -> Protected:
    weighted = config.privacy.public_weights is not None
    return Protected(guarantee_of(config.privacy, 0, weighted_names=weighted), {}, {})


def _epsilon(config: RunConfig, plan: PrivacyPlan) -> float:
    """Return ε of the configured noise, for the unit of a target."""
    units = _protected(config).targets(config.privacy.target_unit, plan.mechanism)
    curve = [plan.epsilon_curve(unit.adjacency, [plan.rounds], robust=unit.robust)[0] for unit in units]
    epsilon = max(map(float, curve), default=math.inf)
    if math.isinf(epsilon):
        raise ConfigError(
            "privacy.noise_multiplier has no finite ε for any user with any entity; allowed: privacy.entity_bound, "
            "privacy.entity_users under user_level, or privacy.target_unit = user"
        )
    return round(epsilon, 5)


def _rounded_down(rate: float) -> float:
    digits = 3 - math.floor(math.log10(rate))
    return float(f"{math.floor(rate * 10**digits)}e{-digits}")
