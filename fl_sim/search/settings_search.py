"""Tune clip norm, user cap, server optimizer and rounds on public text, for a private run at its size and noise.

    OUT/tuning.json            what is searched, so that another search cannot use the same folder
    OUT/runs/rung1-trial02/    one run folder per trial, on public text
    OUT/tuned.toml             the settings that won, with their origin, for ``fl-sim run``

All trials spend the private run's ε. A search is successive halving: in each rung the trials train on more sentences a
round, and the best third goes on. The first trial is the configuration as given. A stopped search resumes.

First the private run, described by public numbers alone, and trials on public text at its size and noise.

Nothing here reads the private corpus: N, the expected sentences of a round, rates, bounds, target and δ are stated. The
noise multiplier of each setting is calibrated for the target from rates and bounds. A trial on fewer public users draws
its sentences at higher or lower rates, and shrinks its noise (``privacy.noise_cohort``) to the noise-to-signal ratio of
the private run's rounds, with S as in :mod:`fl_sim.search.planner`, the expected number of sentences that count.

>>> stated = {"privacy.population": 5000, "privacy.target_epsilon": 3.0, "rounds": 4, "privacy.q_s": 0.02}
>>> run = PrivateRun.of(RunConfig.from_mapping(stated))
>>> run.target, run.noise({"privacy.user_cap": 1.0}) < run.noise({"rounds": 16, "privacy.user_cap": 1.0})
(3.0, True)

>>> [(rung.trials, rung.sentences) for rung in rungs(trials=9, sentences=600)]
[(9, 200.0), (3, 600)]
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fl_sim.config import ConfigError, RunConfig, merged, nested
from fl_sim.data_prep import SHIPPED_CORPORA
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import EnforcedBounds, Units, guarantee_of, target_of
from fl_sim.experiments.plan.run_plan import noise_for_target, untuned_plan
from fl_sim.experiments.run_inputs import declared_names, held_out_split
from fl_sim.files import owner_only
from fl_sim.search.planner import Crowd
from fl_sim.search.sweep import DONE, claim_folder, run_batch
from fl_sim.settings_origin import Origin, Trial, sentence_sample
from fl_sim.stop_signals import stops_seen
from fl_sim.storage import environment
from fl_sim.storage.run_folder import INTERRUPTED, RunFolder, replace_file
from fl_sim.strategies.mechanism import Mechanism, PrivacyPlan
from fl_sim.strategies.primitives import streams
from fl_sim.strategies.privacy_config import GaussianSumConfig
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
        if strategy.headline is not None and not issubclass(strategy.Config, GaussianSumConfig):
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
            self._noise[key] = noise_for_target(plan, config.privacy, _target_units(config, plan.mechanism))
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
    cohort = privacy.noise_cohort if isinstance(privacy, GaussianSumConfig) else None
    for name, value in (("noise_cohort", cohort), ("epsilon_budget", privacy.epsilon_budget)):
        if value is not None:
            raise ConfigError(f"privacy.{name} is {value:g}; allowed: nothing, in tuning")


def _target_units(config: RunConfig, mechanism: Mechanism) -> Units:
    """Return the units of the target, which rest on public bounds alone."""
    guarantee = guarantee_of(config.privacy, 0, weighted_names=config.privacy.public_weights is not None)
    clips, population = mechanism.clips_sentences, mechanism.population
    return target_of(guarantee, config.privacy.target_unit, clips_sentences=clips, population=population)[1]


def _epsilon(config: RunConfig, plan: PrivacyPlan) -> float:
    """Return ε of the configured noise, for the unit of a target."""
    units = _target_units(config, plan.mechanism)
    curve = [plan.epsilon_curve(unit.adjacency, [plan.rounds], robust=unit.robust)[0] for unit in units.values()]
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


TUNED_FILE, DESCRIPTION = "tuned.toml", "tuning.json"
MOST_TRIALS = 1000

_KEPT = 3  # one in so many trials goes on to the next rung
_CAPS = (1.0, 2.0, 3.0, 5.0)
_MOMENTUM = 0.9


@dataclass(frozen=True, slots=True)
class Rung:
    """One round of a search.

    Attributes:
        trials: number of trials.
        sentences: the most expected sentences of a round of training.
    """

    trials: int
    sentences: float


def rungs(trials: int, sentences: float) -> list[Rung]:
    """Return the rungs of a search; the last one trains on the most sentences.

    Args:
        trials: of the first rung.
        sentences: expected sentences a round in the last rung.
    """
    if trials == 1:
        return [Rung(1, sentences)]
    return [Rung(trials, sentences / _KEPT), Rung(math.ceil(trials / _KEPT), sentences)]


@dataclass(frozen=True, slots=True)
class Search:
    """Hold what a search does.

    Attributes:
        trials: number of settings.
        sentences: expected sentences a round of the last trials.
        seed: of the settings and the trials.
        jobs: trials at once.
        round_factors: numbers of rounds that are tried, as multiples of the given one.

    Raises:
        ConfigError: a number is out of range.
    """

    trials: int = 9
    sentences: float = 600.0
    seed: int = 0
    jobs: int = 1
    round_factors: tuple[float, ...] = (0.5, 1.0, 2.0)

    def __post_init__(self) -> None:
        allowed = {"trials": (1, MOST_TRIALS), "seed": (0, 2**63 - 1), "jobs": (1, 1024)}
        for name, (least, most) in allowed.items():
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"--{name} is {getattr(self, name)}; allowed: an integer from {least} to {most}")
        if not 1 <= self.sentences < math.inf:
            raise ConfigError(f"--trial-sentences is {self.sentences:g}; allowed: a finite number of at least 1")


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial that ended.

    Attributes:
        name: of its folder.
        number: of its settings, from 0.
        trial: its settings and score.
        reason: of a failure; the name of the signal that interrupted it.
        interrupted: whether it was interrupted, so that the search ends.
    """

    name: str
    number: int
    trial: Trial
    reason: str = ""
    interrupted: bool = False


@owner_only()
def tune(
    run: PrivateRun, public: PublicText, search: Search, out: Path, observe: Callable[[Tried], None] = lambda _: None
) -> Path | Tried:
    """Search, and write ``tuned.toml``; return its path, or the trial at which the search was interrupted.

    Raises:
        ConfigError: all trials of a rung failed; the message has the reason of one.
        ResultsError: ``out`` is the folder of something else.
    """
    claim_folder(out, DESCRIPTION, _described(run, public, search), "search")
    settings = {number: dict(tried) for number, tried in enumerate(candidates(run, search))}
    ended: list[Tried] = []
    best = 0
    before, levels = stops_seen(), rungs(search.trials, search.sentences)
    for level, rung in enumerate(levels, start=1):
        last = list(_run_rung(run, public, search, out, level, rung, settings, observe))
        if last[-1].interrupted:
            return last[-1]
        if level < len(levels) and (missed := stops_seen()) != before:  # in the last round of the rung's last trial
            return replace(last[-1], reason=missed[-1], interrupted=True)
        ended += sorted(last, key=lambda tried: tried.number)  # they end in any order
        scores = {tried.number: tried.trial.score for tried in last if tried.trial.score is not None}
        if not scores:
            raise ConfigError(f"all {len(last)} trials failed: {last[0].reason or 'their models diverged'}")
        ranked = sorted(scores, key=lambda number: (scores[number], number))
        best, kept = ranked[0], ranked[: math.ceil(len(settings) / _KEPT)]
        settings = {number: settings[number] for number in sorted(kept)}
    file = out / TUNED_FILE
    tuned = tuned_settings(run, public, search, settings[best], [tried.trial for tried in ended])
    replace_file(file, as_toml(tuned).encode())
    return file


def candidates(run: PrivateRun, search: Search) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of all trials: the given ones, and draws around them.

    Clip norm: from a quarter of the given one to twice it. Learning rate: from a quarter to four times. Rounds: half,
    equal or twice. SGD has a momentum of 0.9 and a tenth of Adam's learning rate, divided by the standard deviation of
    the noise on the average.
    """
    yield {}
    mechanism, given = run.mechanism({}), run.config
    for number in range(1, search.trials):
        rng = streams.generator(search.seed, "tuning", number)
        drawn: dict[str, Any] = {"rounds": max(1, round(given.rounds * float(rng.choice(search.round_factors))))}
        clip, cap, rate = rng.uniform(-2, 1), float(rng.choice(_CAPS)), rng.uniform(-2, 2)
        if run.target is not None:
            drawn["privacy.clip_norm"] = _short(mechanism.clip_norm * 2**clip)
            if "user_cap" not in mechanism.fixed_at_one:
                drawn["privacy.user_cap"] = cap
        drawn |= _server(run, drawn, 2**rate, use_sgd=run.target is not None and bool(rng.random() < 0.25))
        yield drawn


def tuned_settings(
    run: PrivateRun, public: PublicText, search: Search, best: Mapping[str, Any], trials: Sequence[Trial]
) -> dict[str, Any]:
    """Return the settings of the private run with the best ones and their origin, nested."""
    target = {} if run.target is None else {"privacy.target_epsilon": run.target}
    chosen = nested(_chosen(run, best))
    origin = Origin(
        made_by=f"fl-sim plan trials {environment.version('fl-sim')}",
        corpus=public.name,
        fingerprint=public.corpus.fingerprint,
        sampled_sentences=sentence_sample(
            str(text) for split in public.corpus.splits for text in public.corpus.texts(split)
        ),
        seed=search.seed,
        users=run.population,
        sentences=_short(public.expected_sentences(run)),
        epsilon=run.target,
        unit=run.config.privacy.target_unit,
        delta=run.config.privacy.delta,
        metric=_metric(run.config),
        settings=chosen,
        trials=tuple(trials),
    )
    given = run.config.model_dump(mode="json", exclude_unset=True, exclude={"out", "origin"}, exclude_none=True)
    if target:
        given["privacy"] = {k: v for k, v in given["privacy"].items() if k != "noise_multiplier"}
    tree = merged(merged(given, chosen), nested(target))
    tree["origin"] = origin.model_dump(mode="json", exclude_none=True)
    RunConfig.from_mapping(tree)
    return tree


def as_toml(tree: Mapping[str, Any], section: str = "") -> str:
    """Return nested settings in TOML; a list of tables, such as trials, has a table per line.

    >>> print(as_toml({"rounds": 3, "server": {"optimizer": "sgd"}, "list": [{"a.b": 1}]}), end="")
    rounds = 3
    list = [
        { "a.b" = 1 },
    ]
    <BLANKLINE>
    [server]
    optimizer = "sgd"
    """
    lines = [f"{_key(k)} = {_value(v)}" for k, v in tree.items() if not isinstance(v, Mapping)]
    text = "\n".join(lines) + "\n" if lines else ""
    head = f"[{section}]\n" if section and lines else ""
    parts = [head + text] if lines else []
    parts += [
        as_toml(v, f"{section}.{_key(k)}" if section else _key(k)) for k, v in tree.items() if isinstance(v, Mapping)
    ]
    return "\n".join(parts)


def _run_rung(
    run: PrivateRun,
    public: PublicText,
    search: Search,
    out: Path,
    level: int,
    rung: Rung,
    settings: Mapping[int, dict[str, Any]],
    observe: Callable[[Tried], None],
) -> Iterator[Tried]:
    """Run the trials of a rung and yield them, in the order in which they end."""
    numbers = {f"rung{level}-trial{number:02d}": number for number in settings}
    configs = {
        name: public.trial(run, settings[number], rung.sentences, search.seed, str(out / "runs" / name))
        for name, number in numbers.items()
    }
    for ending in run_batch(configs, search.jobs):
        config, number = configs[ending.name], numbers[ending.name]
        score = _score(config) if ending.status == DONE else None
        expected = _short(public.sentences_of(run, config))
        trial = Trial(rung=level, sentences=expected, score=score, settings=_chosen(run, settings[number]))
        ended = Tried(ending.name, number, trial, ending.reason, ending.status == INTERRUPTED)
        observe(ended)
        yield ended
        if ended.interrupted:
            return


def _score(config: RunConfig) -> float | None:
    """Return the final metric of a finished trial; None if it is not finite."""
    result = RunFolder.open(Path(config.out or "")).result or {}
    value = float(result.get(_metric(config), math.nan))
    return _short(value, 6) if math.isfinite(value) else None


def _metric(config: RunConfig) -> str:
    return "error" if config.task == "classification" else "perplexity"


def _chosen(run: PrivateRun, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all searched keys under ``settings``, by key."""
    config, mechanism = run.with_settings(settings), run.mechanism(settings)
    chosen: dict[str, Any] = {"rounds": config.rounds}
    if run.target is not None:
        chosen["privacy.clip_norm"] = mechanism.clip_norm
        if "user_cap" not in mechanism.fixed_at_one:
            chosen["privacy.user_cap"] = mechanism.user_cap
    chosen |= {f"server.{name}": getattr(config.server, name) for name in ("optimizer", "learning_rate")}
    return chosen | ({"server.momentum": config.server.momentum} if config.server.optimizer == "sgd" else {})


def _server(run: PrivateRun, drawn: Mapping[str, Any], factor: float, *, use_sgd: bool) -> dict[str, Any]:
    """Return optimizer and learning rate: the given one times ``factor``, for SGD in units of the noise."""
    server = run.config.server
    if server.optimizer == "sgd" or not use_sgd:
        return {"server.learning_rate": _short(server.learning_rate * factor)}
    mechanism = run.mechanism(drawn)
    noise = mechanism.noise_std(mechanism.clip_norm) / mechanism.denominator
    rate = server.learning_rate * factor * (1 - _MOMENTUM) / noise
    return {"server.optimizer": "sgd", "server.momentum": _MOMENTUM, "server.learning_rate": _short(rate)}


def _described(run: PrivateRun, public: PublicText, search: Search) -> dict[str, Any]:
    return {
        "run": run.config.model_dump(mode="json"),
        "target": run.target,
        "sentences": run.sentences,
        "public": public.corpus.fingerprint,
        "trials": search.trials,
        "round_factors": list(search.round_factors),
        "trial_sentences": search.sentences,
        "seed": search.seed,
    }


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping) for item in value):
            return "[\n" + "".join(f"    {_value(item)},\n" for item in value) + "]"
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _short(value: float, digits: int = 4) -> float:
    return float(f"{np.float64(value):.{digits}g}")
