"""Runs small enough to do and compare many: users with few and many sentences, a model of 70,000 parameters."""

from __future__ import annotations

import functools
import unittest.mock
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_sim.config import RunConfig
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.engines import simulation
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.storage.run_folder import RunFolder
from tests.made_once import copy_of, made_once
from tests.tiny import MODEL, NAMES

Run = Callable[..., RunFolder]
USERS = 6
QUICK_TO_LOAD = {"model__name": "awd-lstm", "model__embedding": 8}
"""A model for runs of many processes: loading GPT-2 takes half the start of a worker."""
LEARNING_RATE = 0.01
PLAIN = {"server__optimizer": "sgd", "server__learning_rate": LEARNING_RATE}
"""Steps that are proportional to the updates, so that models can be compared by :func:`apart`."""
UEDP = {"privacy__q_s": 0.8, "privacy__user_cap": 2.0}

# Two runs with different nodes add the same float32 gradients in a different order and in batches of a different shape.
# That moves the model by about 1e-7 of the total update. A sentence sampled differently, a user lost or counted twice,
# or a different clip would move it by a share of order one.
SAME_MODEL = 2e-6

K, F, M = 4, 2, 5
"""Bounds on an entity's sentences and users and on a user's sentences, below what the small corpus has."""
COUNTS = {"privacy__entity_bound": K, "privacy__user_sentences": M}
GREEDY = COUNTS | {"privacy__known": "graph"}
BOUNDS = {
    "greedy": GREEDY,
    "users": GREEDY | {"privacy__entity_users": F},
    "counts": COUNTS,
    "rounded counts": COUNTS | {"privacy__round_counts": True},
    "user_level": {
        "privacy__strategy": "user_level",
        "privacy__known": "graph",
        "privacy__entity_users": F,
        "privacy__user_sentences": M,
    },
    "nothing": {"privacy__known": "nothing", "privacy__population": 9, "privacy__entity_bound": K},
}
PUBLISHED = {
    "privacy__strategy": "published", "privacy__q_u": 0.7, "privacy__q_s": 0.8, "privacy__settings_from_corpus": True,
}  # fmt: skip
ADAPTIVE = {"privacy__clip_quantile": 0.5, "privacy__clip_norm": 5.0}
OPTIONS: dict[str, dict[str, Any]] = {
    "published": PUBLISHED,
    "published f_e": PUBLISHED | {"privacy__estimator": "f_e"},
    "published weights": PUBLISHED | {"privacy__user_weight_cap": 9.0, "privacy__entity_weight_cap": 4.0},
    "published steps": PUBLISHED | {
        "local__update": "steps", "local__batch_size": 2, "server__optimizer": "sgd", "server__learning_rate": 1.0,
    },
    "published as coded": PUBLISHED | {"privacy__noise": "as-coded"},
    "user clip": {"privacy__clipping": "user", "privacy__known": "graph", "privacy__q_s": 0.8},
    "FedSGD": {"privacy__strategy": "user_level", "privacy__q_u": 0.7, "local__update": "gradients"},
    "local Adam": {
        "privacy__strategy": "user_level", "privacy__q_u": 0.7, "local__optimizer": "adam",
        "local__learning_rate": 0.01, "local__epochs": 2,
    },
    "noiseless steps": {"privacy__strategy": "noiseless", "local__update": "steps", "privacy__q_s": 0.8},
    "adaptive sentences": ADAPTIVE | {"privacy__q_s": 0.8},
    "adaptive users": ADAPTIVE | {"privacy__strategy": "user_level", "privacy__q_u": 0.7},
    "random allocation": {
        "privacy__strategy": "user_level", "privacy__sampling": "random_allocation", "privacy__epoch_rounds": 2,
    },
    "adaptive FedSGD": ADAPTIVE
    | {"privacy__strategy": "user_level", "privacy__q_u": 0.7, "local__update": "gradients"},
}  # fmt: skip
SERVER = {
    "exponential": {"averaging__kind": "exponential", "averaging__decay": 0.5, "server__schedule": "cosine"},
    "tail": {"averaging__kind": "tail", "server__schedule": "linear", "server__warmup": 1},
}


def small_corpus(folder: Path) -> Path:
    """Copy a prepared corpus whose first user has 12 sentences and the others 1, 2, 3 and so on."""
    return copy_of("small", _write, folder)


def shared_corpus() -> Path:
    """Return the small corpus that all tests share, which are only to read it."""
    return made_once("small", _write)


def _write(folder: Path) -> None:
    write_corpus(_sentences(), folder, name="small")


def _sentences() -> Iterator[Sentence]:
    for split in ("train", "validation"):
        for user in range(USERS):
            for number in range(user or 12):
                name = NAMES[(user + number) % len(NAMES)]
                named = number % 3 < 2
                text = f"{name} saw {number} boats in street {user}." if named else f"Rain fell on day {number}."
                mentions = (Mention(0, len(name), "PER"),) if named else ()
                yield Sentence(split, f"user {user}", text, mentions)


def settings(corpus: Path, out: Path, **changes: Any) -> dict[str, Any]:
    """Return the settings of a short run; in ``changes`` a double underscore stands for the dot of a key."""
    base = {"corpus.path": str(corpus), "out": str(out), "rounds": 2, "engine.name": "inline", **MODEL}
    return base | {key.replace("__", "."): value for key, value in changes.items()}


def configuration(corpus: Path, out: Path, **changes: Any) -> RunConfig:
    """Return :func:`settings` as a validated configuration."""
    return RunConfig.from_mapping(settings(corpus, out, **changes))


class Crash(RuntimeError):
    """Stands for whatever ends a process."""


def crash_after(number: int) -> Callable[[Mapping[str, Any]], None]:
    """Return what ends a run after a round, and after its checkpoint if it writes one then."""

    def crash(row: Mapping[str, Any]) -> None:
        if row["round"] == number:
            raise Crash

    return crash


def crashed(corpus: Path, out: Path, number: int = 3, **changes: Any) -> Path:
    """Return the folder of a run of four rounds that ended after a round, by default without a checkpoint of it."""
    base = {"rounds": 4, "checkpoint_every": 10, "privacy__q_s": 0.5}
    with pytest.raises(Crash):
        simulation.run(configuration(corpus, out, **base | changes), on_row=crash_after(number))
    return out


def finished_run(strategy: str = "uedp", folder: Path | None = None) -> RunFolder:
    """Return a finished run of two rounds, which all tests share and only read, or a copy of it in ``folder``."""
    name, make = f"run-{strategy}", functools.partial(_run, strategy)
    return RunFolder.open(made_once(name, make) if folder is None else copy_of(name, make, folder))


def _run(strategy: str, folder: Path) -> None:
    with unittest.mock.patch("fl_sim.reporting.plots.write_run_plots"):
        simulation.run(configuration(shared_corpus(), folder, privacy__strategy=strategy))


def model_of(run: RunFolder) -> np.ndarray:
    """Return the trained parameters from the last checkpoint, float32 ``(num_params,)``."""
    checkpoint = Checkpoint.read(run.checkpoint_dir)
    if checkpoint is None:
        raise FileNotFoundError(run.checkpoint_dir)
    return checkpoint.vector


def measured(run: RunFolder) -> list[dict[str, Any]]:
    """Return the metrics of every round except times; NaN becomes text, so that it equals itself."""
    rows = run.metrics().drop(columns="seconds").to_dict("records")
    return [{key: "nan" if value != value else value for key, value in row.items()} for row in rows]


def apart(one: RunFolder, other: RunFolder, learning_rate: float = LEARNING_RATE) -> float:
    """Return the distance of two runs' models, relative to the total update of the first."""
    total_update = learning_rate * one.metrics()["update_norm"].sum()
    return float(np.linalg.norm(model_of(one).astype(np.float64) - model_of(other)) / total_update)
