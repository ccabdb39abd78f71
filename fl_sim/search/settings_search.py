"""Trials on public text: tune clip norm, user cap, server optimizer and rounds for a private run at its size and noise.

    OUT/tuning.json            what is searched, so that another search cannot use the same folder
    OUT/runs/rung1-trial02/    one run folder per trial, on public text
    OUT/tuned.toml             the settings that won, with their origin, for ``fl-sim run``

Nothing here reads the private corpus: N, the expected sentences of a round, rates, bounds, target and δ are stated, or
:class:`~fl_sim.search.bounds.Users` has the counts or the graph that the guarantee takes as known. All trials spend the
private run's ε: z of each setting is calibrated for the target from rates and bounds. A trial on fewer public users
draws its sentences at other rates, and shrinks its noise (``privacy.noise_cohort``) to the noise-to-signal ratio of the
private run's rounds. A search is successive halving: in each rung the trials train on more sentences a round, and the
best third goes on (docs/settings.md).

>>> Search(trials=9, sentences=600).rungs
[(9, 200.0), (3, 600)]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import tomli_w

from fl_sim.config import ConfigError, RunConfig, merged, nested
from fl_sim.data_prep import SHIPPED_CORPORA
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import Units, guarantee_of, target_of
from fl_sim.experiments.plan.run_plan import noise_for_target, untuned_plan
from fl_sim.experiments.run_inputs import declared, held_out_split
from fl_sim.files import owner_only
from fl_sim.search.bounds import Candidate, Users, bounds_to_try, keeping
from fl_sim.search.crowd import Crowd
from fl_sim.search.planner import Settings, Tradeoff, best_first, rounded_down
from fl_sim.search.sweep import DONE, claim_folder, run_batch
from fl_sim.settings_origin import Origin, Trial, sentence_sample
from fl_sim.stop_signals import stops_seen
from fl_sim.storage import environment
from fl_sim.storage.run_folder import INTERRUPTED, RunFolder, numbers_of, replace_file
from fl_sim.strategies.mechanism import Mechanism
from fl_sim.strategies.primitives import streams
from fl_sim.strategies.privacy_config import GaussianSumConfig, PrivacyConfig
from fl_sim.strategies.registry import load_strategy, target_unit

Chosen = Mapping[str, float | str]
"""Settings by key, such as ``privacy.user_cap``."""

OF_BOUNDS = ("privacy.entity_bound", "privacy.user_sentences", "privacy.q_s", "privacy.q_e")
"""Keys of the bounds that are tried, and of the rates under them."""

TUNED_FILE, DESCRIPTION = "tuned.toml", "tuning.json"
MOST_TRIALS = 1000
MOST_BOUNDS = 4
"""Bounds that trials draw from: those that the formula ranks first."""

_KEPT = 3  # one in so many trials goes on to the next rung
_CAPS = (1.0, 2.0, 3.0, 5.0)
_MOMENTUM = 0.9

_NOBODY = Ownership(np.zeros(1, np.int64), np.zeros(1, np.int64), np.empty(0, np.int32), num_entities=0)
"""The corpus that a plan by public numbers reads."""

_NOT_OF_A_TRIAL: dict[str, object] = {
    "out": None, "anchor": None, "observers": (), "origin": {}, "privacy.secure_noise": False,
    "privacy.target_epsilon": None, "engine.name": "inline", "engine.address": None, "corpus.train_split": "train",
    "corpus.held_out_split": None, "corpus.feature_cache": None, "privacy.counts": None,
}  # fmt: skip


@dataclass(frozen=True)
class PrivateRun:
    """The run whose settings are searched.

    Attributes:
        config: as stated, with N.
        target: the ε that all settings meet; None if the strategy adds no noise.
        sentences: expected sentences a round at the configured rates; None for as many a user as on the public text.
        users: who they are, where their counts or their mention graph are known; then these tell the sentences.
    """

    config: RunConfig
    target: float | None
    sentences: float | None = None
    users: Users | None = field(default=None, repr=False, compare=False)
    _noise: dict[tuple[object, ...], float] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, config: RunConfig, sentences: float | None = None, users: Users | None = None) -> PrivateRun:
        """Return the run of a configuration; ε of its noise multiplier is the target if it states none.

        Raises:
            ConfigError: a number is missing or would be read from the private corpus, or no ε is finite.
        """
        privacy = config.privacy
        if privacy.population is None:
            raise ConfigError("privacy.population is not given; allowed: N, the public number of users (--users)")
        if privacy.user_sentences == "corpus":
            raise ConfigError(
                "privacy.user_sentences is corpus; allowed: a number or unbounded, because tuning does not read the "
                "corpus"
            )
        cohort = privacy.noise_cohort if isinstance(privacy, GaussianSumConfig) else None
        for name, value in (("noise_cohort", cohort), ("epsilon_budget", privacy.epsilon_budget)):
            if value is not None:
                raise ConfigError(f"privacy.{name} is {value:g}; allowed: nothing, in tuning")
        if sentences is not None and not 0 < sentences < math.inf:
            raise ConfigError(f"--sentences is {sentences:g}; allowed: a finite number above 0")
        strategy = load_strategy(privacy.strategy)
        if strategy.headline is not None and not issubclass(strategy.Config, GaussianSumConfig):
            raise ConfigError(
                f"privacy.strategy is {privacy.strategy}; allowed: uedp, user_level or noiseless, whose noise a "
                "trial can rescale"
            )
        plan = untuned_plan(config, _NOBODY)
        if plan.mechanism.event() is None:
            return cls(config, None, sentences, users)
        target = privacy.target_epsilon
        if target is None:
            units = _target_units(config, plan.mechanism).values()
            curves = [plan.epsilon_curve(unit.adjacency, [plan.rounds], robust=unit.robust) for unit in units]
            target = round(max((float(curve[0]) for curve in curves), default=math.inf), 5)
        if math.isinf(target):
            raise ConfigError(
                "privacy.noise_multiplier has no finite ε for any user with any entity; allowed: privacy.entity_bound, "
                "privacy.entity_users under user_level, or privacy.target_unit = user"
            )
        return cls(config, target, sentences, users)

    @property
    def population(self) -> int:
        """Return N."""
        return self.config.privacy.population or 1

    def with_settings(self, settings: Chosen) -> RunConfig:
        """Return the run's configuration with other settings and the target."""
        target = {} if self.target is None else {"privacy.target_epsilon": self.target}
        return self.config.changed({**settings, **target})

    def mechanism(self, settings: Chosen) -> Mechanism:
        """Return the mechanism of the run with other settings, at the noise for the target.

        Raises:
            ConfigError: no noise meets it.
        """
        config = self.with_settings(settings)
        plan = untuned_plan(config, _NOBODY)
        if self.target is None:
            return plan.mechanism
        bounds = config.privacy.entity_bound, config.privacy.user_sentences
        key = (*bounds, plan.mechanism.event(), plan.rounds)
        if key not in self._noise:
            self._noise[key] = noise_for_target(plan, config.privacy, _target_units(config, plan.mechanism))
        return plan.with_noise(self._noise[key]).mechanism

    def chosen(self, settings: Chosen) -> dict[str, float | str]:
        """Return the values of all searched keys under ``settings``, by key."""
        config, mechanism = self.with_settings(settings), self.mechanism(settings)
        chosen = {"rounds": config.rounds} | {key: settings[key] for key in OF_BOUNDS if key in settings}
        if self.target is not None:
            chosen["privacy.clip_norm"] = mechanism.clip_norm
            if "user_cap" not in mechanism.fixed_at_one:
                chosen["privacy.user_cap"] = mechanism.user_cap
        read = ("optimizer", "learning_rate", *(["momentum"] if config.server.optimizer == "sgd" else []))
        return chosen | {f"server.{name}": getattr(config.server, name) for name in read}


def _target_units(config: RunConfig, mechanism: Mechanism) -> Units:
    """Return the units of the target, which rest on public bounds alone."""
    guarantee = guarantee_of(config.privacy, 0, public_weights=config.privacy.public_weights is not None)
    clips, population = mechanism.clips_sentences, mechanism.population
    return target_of(guarantee, target_unit(config.privacy), clips_sentences=clips, population=population)[1]


@dataclass(frozen=True)
class PublicText:
    """The public corpus on which trials train, and whose held-out users score them."""

    name: str
    corpus: Corpus
    users: Users
    _candidates: dict[tuple[object, ...], Candidate] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, path: str, run: PrivateRun) -> PublicText:
        """Open the public corpus of a search; every checksum is verified.

        Raises:
            CorpusError: the folder is no prepared corpus, or has no held-out split.
            ConfigError: it has no split to train on, a single user, or is the private run's own corpus.
        """
        corpus = Corpus.open(path, verify=True)
        if "train" not in corpus.splits or corpus.manifest.splits["train"].users < 2:
            raise ConfigError(f"--public is {path}; allowed: a corpus whose split train has at least 2 users")
        held_out_split(RunConfig(), corpus)
        _check_other(path, corpus, run)
        name = path if path in SHIPPED_CORPORA else corpus.manifest.name
        ownership, told = corpus.ownership("train"), declared(run.config.changed(_NOT_OF_A_TRIAL), corpus)
        return cls(name, corpus, Users(ownership, ownership.num_users, declared=told))

    def candidate(self, privacy: PrivacyConfig) -> Candidate:
        """Return the bounds of a section ``[privacy]``, and this text's training users under them, by their own counts.

        What they protect is of the N of the section, that of the private run, if it has one.
        """
        bounds = privacy.entity_bound, privacy.user_sentences
        if bounds not in self._candidates:
            of_run = replace(self.users, population=privacy.population or self.users.population)
            self._candidates[bounds] = of_run.candidate(privacy)
        return self._candidates[bounds]

    def sentences_of(self, run: PrivateRun, settings: Chosen) -> float:
        """Return the expected sentences of a round on this text."""
        return self.candidate(run.with_settings(settings).privacy).crowd.sentences(run.mechanism(settings))

    def scale(self, run: PrivateRun) -> float:
        """Return how many users of the private run one of this text stands for, by their number or their sentences."""
        if run.sentences is not None:
            return run.sentences / self.sentences_of(run, {})
        return run.population / self.users.population

    def crowd_of(self, run: PrivateRun, settings: Chosen) -> tuple[Crowd, float]:
        """Return the private run's users as they are known, else those of this text, and for how many one stands."""
        privacy = run.with_settings(settings).privacy
        if run.users is not None:
            return run.users.candidate(privacy).crowd, 1.0
        return self.candidate(privacy).crowd, self.scale(run)

    def expected_sentences(self, run: PrivateRun, settings: Chosen) -> float:
        """Return the expected sentences of a round of the private run: as known or stated, else as on this text."""
        crowd, scale = self.crowd_of(run, settings)
        return scale * crowd.sentences(run.mechanism(settings))

    def trial(
        self, run: PrivateRun, settings: Chosen, sentences: float, seed: int, out: str
    ) -> tuple[RunConfig, Mechanism]:
        """Return the configuration of a trial, whose rounds have the private run's noise-to-signal ratio.

        Args:
            sentences: the most expected sentences a round; the signal of a round is at most the private run's.

        Returns:
            The configuration, and the mechanism of the trial's rates.

        Raises:
            ConfigError: the settings cannot be tried.
        """
        tried = run.config.changed({**_NOT_OF_A_TRIAL, **settings})
        mechanism, server = run.mechanism(settings), run.with_settings(settings).server
        crowd, users = self.candidate(tried.privacy).crowd, self.users.population
        theirs, scale = self.crowd_of(run, settings)
        own, wanted = crowd.sentences(mechanism), scale * theirs.signal(mechanism)
        scaled = mechanism
        changes: dict[str, float | str | None] = {}
        if getattr(mechanism, "epoch_rounds", None) is None:  # else q_u is 1/t
            name = "q_u" if "q_s" in mechanism.fixed_at_one else "q_s"
            rate = rounded_down(min(1.0, getattr(mechanism, name) * sentences / own), 4)
            while crowd.signal(scaled := _at_rate(mechanism, name, rate)) > wanted:
                rate = rounded_down(rate * 0.98 * wanted / crowd.signal(scaled), 4)
            changes[f"privacy.{name}"] = rate
        signal, cohort = crowd.signal(scaled), scaled.q_u * users
        if run.target is not None:
            changes["privacy.noise_multiplier"] = mechanism.noise_multiplier
            changes["privacy.noise_cohort"] = math.ceil(cohort * wanted / signal)
        if server.optimizer == "sgd":  # the average has another length; adam divides by it
            longer = (signal / cohort) / (wanted / mechanism.expected_cohort)
            changes["server.learning_rate"] = server.learning_rate / longer
        changes |= {
            "seed": seed,
            "out": out,
            "corpus.path": str(self.corpus.path),
            "privacy.population": users,
            "evaluation.every": tried.rounds,
            "checkpoint_every": max(1, tried.rounds // 4),
        }
        return tried.changed(changes), scaled


def _at_rate(mechanism: Mechanism, name: str, rate: float) -> Mechanism:
    return replace(mechanism, q_u=rate) if name == "q_u" else replace(mechanism, q_s=rate)


def _check_other(path: str, corpus: Corpus, run: PrivateRun) -> None:
    """Refuse the private run's own corpus, and one that is made of the same."""
    private = run.config.corpus
    here = private.path in SHIPPED_CORPORA or Path(private.path).expanduser().is_dir()  # it may be on another machine
    if "path" not in private.model_fields_set or not here or run.config.privacy.settings_from_corpus:
        return
    if corpus.fingerprints & Corpus.open(private.path).fingerprints:
        raise ConfigError(
            f"--public is {path}, the corpus of the run itself (corpus.path), or is made of the same; allowed: other, "
            "public text, or privacy.settings_from_corpus = true"
        )


@dataclass(frozen=True, slots=True)
class Search:
    """Hold what a search does.

    Attributes:
        sentences: expected sentences a round of the last trials.
        round_factors: numbers of rounds that are tried, as multiples of the given one.
        bounds: bounds that are tried, with the rates under them, best first; none if they are given.

    Raises:
        ConfigError: a number is out of range.
    """

    trials: int = 9
    sentences: float = 600.0
    seed: int = 0
    jobs: int = 1
    round_factors: tuple[float, ...] = (0.5, 1.0, 2.0)
    bounds: tuple[Chosen, ...] = ()

    def __post_init__(self) -> None:
        allowed = {"trials": (1, MOST_TRIALS), "seed": (0, 2**63 - 1), "jobs": (1, 1024)}
        for name, (least, most) in allowed.items():
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"--{name} is {getattr(self, name)}; allowed: an integer from {least} to {most}")
        if not 1 <= self.sentences < math.inf:
            raise ConfigError(f"--trial-sentences is {self.sentences:g}; allowed: a finite number of at least 1")

    @property
    def rungs(self) -> list[tuple[int, float]]:
        """Return the number of trials of each rung, and the most expected sentences of a round of theirs."""
        if self.trials == 1:
            return [(1, self.sentences)]
        return [(self.trials, self.sentences / _KEPT), (math.ceil(self.trials / _KEPT), self.sentences)]


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial that ended.

    Attributes:
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
    described = {
        "run": run.config.model_dump(mode="json"),
        "target": run.target,
        "sentences": run.sentences,
        "public": public.corpus.fingerprint,
        "trials": search.trials,
        "round_factors": list(search.round_factors),
        "bounds": [dict(bounds) for bounds in search.bounds],
        "trial_sentences": search.sentences,
        "seed": search.seed,
    }
    claim_folder(out, DESCRIPTION, described, "search")
    settings = dict(enumerate(candidates(run, search)))
    ended: list[Tried] = []
    best, before, levels = 0, stops_seen(), search.rungs
    for level, (_, sentences) in enumerate(levels, start=1):
        numbers = {f"rung{level}-trial{number:02d}": number for number in settings}
        trials = {
            name: public.trial(run, settings[number], sentences, search.seed, str(out / "runs" / name))
            for name, number in numbers.items()
        }
        last: list[Tried] = []
        for ending in run_batch({name: config for name, (config, _) in trials.items()}, search.jobs):
            number, (config, mechanism) = numbers[ending.name], trials[ending.name]
            trial = Trial(
                rung=level,
                sentences=_short(public.candidate(config.privacy).crowd.sentences(mechanism)),
                score=_score(config) if ending.status == DONE else None,
                settings=run.chosen(settings[number]),
            )
            last.append(Tried(ending.name, number, trial, ending.reason, ending.status == INTERRUPTED))
            observe(last[-1])
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
    replace_file(file, tomli_w.dumps(tuned).encode())
    return file


def ranked_bounds(run: PrivateRun, public: PublicText, keep_mentions: float | None = None) -> list[Tradeoff]:
    """Return what the formula finds under the bounds that trials draw from, best first; nothing if they are given.

    A round has about as many sentences under all of them: q_s follows, and z from the target.

    Args:
        keep_mentions: the least share of its mentions that bounds keep, in weight.

    Raises:
        ConfigError: no bounds keep the share, or no noise meets the target under any of them.
    """
    choices = bounds_to_try(run.config.privacy, public.users.ownership)
    candidates = list(keeping(map(public.candidate, choices), keep_mentions))
    if len(choices) == 1:
        return []
    mechanism, sentences, found = run.mechanism({}), public.sentences_of(run, {}), []
    for candidate in candidates:
        active = mechanism.q_u * candidate.crowd.sampled_sentences(mechanism.q_e)
        rate = min(1.0, rounded_down(sentences / active, 4))
        event = run.mechanism(settings_under(candidate.privacy, q_s=rate)).event()
        if event is not None:
            found.append(Tradeoff.of(candidate, Settings.of(event, run.config.rounds, candidate.crowd)))
    return best_first(found)[:MOST_BOUNDS]


def settings_under(privacy: PrivacyConfig, **rates: float) -> Chosen:
    """Return bounds and the rates under them, by key."""
    bounds = {"entity_bound": privacy.entity_bound, "user_sentences": privacy.user_sentences}
    return {f"privacy.{name}": value for name, value in {**bounds, **rates}.items() if value is not None}


def candidates(run: PrivateRun, search: Search) -> Iterator[Chosen]:
    """Yield the settings of all trials: the given ones under the best bounds, and draws around them.

    Bounds: any of the search's, with the rates under them. Clip norm: from a quarter of the given one to twice it.
    Learning rate: from a quarter to four times. Rounds: half, equal or twice. SGD has a momentum of 0.9 and a tenth of
    Adam's learning rate, divided by the standard deviation of the noise on the average.
    """
    yield dict(search.bounds[0]) if search.bounds else {}
    mechanism, given = run.mechanism({}), run.config
    for number in range(1, search.trials):
        rng = streams.generator(search.seed, "tuning", number)
        rounds = max(1, round(given.rounds * float(rng.choice(search.round_factors))))
        bounds = search.bounds[int(rng.integers(len(search.bounds)))] if search.bounds else {}
        drawn: dict[str, float | str] = {"rounds": rounds, **bounds}
        clip, cap = rng.uniform(-2, 1), float(rng.choice(_CAPS))
        rate = given.server.learning_rate * 2 ** rng.uniform(-2, 2)
        if run.target is not None:
            drawn["privacy.clip_norm"] = _short(mechanism.clip_norm * 2**clip)
            if "user_cap" not in mechanism.fixed_at_one:
                drawn["privacy.user_cap"] = cap
            if rng.random() < 0.25 and given.server.optimizer != "sgd":
                tried = run.mechanism(drawn)
                rate *= (1 - _MOMENTUM) / (tried.noise_std(tried.clip_norm) / tried.denominator)
                drawn |= {"server.optimizer": "sgd", "server.momentum": _MOMENTUM}
        yield drawn | {"server.learning_rate": _short(rate)}


def tuned_settings(
    run: PrivateRun, public: PublicText, search: Search, best: Chosen, trials: Sequence[Trial]
) -> dict[str, object]:
    """Return the settings of the private run with the best ones and their origin, nested, for a configuration file."""
    chosen = nested(run.chosen(best))
    origin = Origin(
        made_by=f"fl-sim plan trials {environment.version('fl-sim')}",
        corpus=public.name,
        fingerprint=public.corpus.fingerprint,
        made_of=tuple(sorted(public.corpus.fingerprints - {public.corpus.fingerprint})),
        sentence_sample=sentence_sample(
            str(text) for split in public.corpus.splits for text in public.corpus.texts(split)
        ),
        seed=search.seed,
        users=run.population,
        sentences=_short(public.expected_sentences(run, best)),
        epsilon=run.target,
        unit=target_unit(run.config.privacy),
        delta=run.config.privacy.delta,
        metric=_metric(run.config),
        settings=chosen,
        trials=tuple(trials),
    )
    given = run.config.model_dump(mode="json", exclude_unset=True, exclude={"out", "origin"}, exclude_none=True)
    tree = merged(given, chosen)
    privacy = tree.get("privacy")
    if run.target is not None and isinstance(privacy, dict):
        calibrated = {key: value for key, value in privacy.items() if key != "noise_multiplier"}
        tree["privacy"] = calibrated | {"target_epsilon": run.target, "target_unit": origin.unit}
    tree["origin"] = origin.model_dump(mode="json", exclude_none=True)
    RunConfig.from_mapping(tree)
    return tree


def _score(config: RunConfig) -> float | None:
    """Return the final metric of a finished trial; None if it is not finite."""
    result = RunFolder.open(Path(config.out or "")).result or {}
    value = numbers_of(result).get(_metric(config), math.nan)
    return _short(value, 6) if math.isfinite(value) else None


def _metric(config: RunConfig) -> str:
    return "error" if config.task == "classification" else "perplexity"


def _short(value: float, digits: int = 4) -> float:
    return float(f"{np.float64(value):.{digits}g}")
