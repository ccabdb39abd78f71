"""Tune clip norm, user cap, server optimizer and rounds on public text, for a private run at its size and noise.

    OUT/tuning.json            what is searched, so that another search cannot use the same folder
    OUT/runs/rung1-trial02/    one run folder per trial, on public text
    OUT/tuned.toml             the settings that won, with their origin, for ``fl-sim run``

All trials spend the private run's ε. A search is successive halving: in each rung the trials train on more sentences a
round, and the best third goes on. The first trial is the configuration as given. A stopped search resumes.

>>> [(rung.trials, rung.sentences) for rung in rungs(trials=9, sentences=600)]
[(9, 200.0), (3, 600)]
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fl_sim.config import ConfigError, RunConfig, merged, nested
from fl_sim.files import owner_only
from fl_sim.search.batch import DONE, claim_folder, run_batch
from fl_sim.search.private_run import PrivateRun, PublicText
from fl_sim.settings_origin import Origin, Trial, sentence_sample
from fl_sim.stop_signals import stops_seen
from fl_sim.storage import environment
from fl_sim.storage.run_folder import INTERRUPTED, RunFolder, replace_file
from fl_sim.strategies.primitives import streams

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
        made_by=f"fl-sim tune {environment.version('fl-sim')}",
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
