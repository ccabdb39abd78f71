"""Runs small enough to do and compare many: users with few and many sentences, a model of 70,000 parameters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fl_sim.config import RunConfig
from fl_sim.data_prep.prepare import write_corpus
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.storage.run_folder import RunFolder

USERS = 6
MODEL = {"model.hidden": 16, "model.layers": 1, "model.heads": 2, "model.max_tokens": 32}
QUICK_TO_LOAD = {"model__name": "awd-lstm", "model__embedding": 8}
"""A model for runs of many processes: loading GPT-2 takes half the start of a worker."""
_NAMES = ("Ada", "Blaise", "Carl", "Emmy")

# Two runs with different nodes add the same float32 gradients in a different order and in batches of a different shape.
# That moves the model by about 1e-7 of the total update. A sentence sampled differently, a user lost or counted twice,
# or a different clip would move it by a share of order one.
SAME_MODEL = 2e-6


def small_corpus(folder: Path, *, users: int = USERS, longest: int = 12, word: str = "boats") -> Path:
    """Write a prepared corpus whose first user has ``longest`` sentences and the others 1, 2, 3 and so on."""
    write_corpus(_sentences(users, longest, word), folder, name="small")
    return folder


def _sentences(users: int, longest: int, word: str) -> Iterator[Sentence]:
    for split in ("train", "validation"):
        for user in range(users):
            for number in range(longest if user == 0 else user):
                name = _NAMES[(user + number) % len(_NAMES)]
                named = number % 3 < 2
                text = f"{name} saw {number} {word} in street {user}." if named else f"Rain fell on day {number}."
                mentions = (Mention(0, len(name), "PER"),) if named else ()
                yield Sentence(split, f"user {user}", text, mentions)


def settings(corpus: Path, out: Path, **changes: Any) -> dict[str, Any]:
    """Return the settings of a short run; in ``changes`` a double underscore stands for the dot of a key."""
    base = {"corpus.path": str(corpus), "out": str(out), "rounds": 2, "engine.name": "inline", **MODEL}
    return base | {key.replace("__", "."): value for key, value in changes.items()}


def configuration(corpus: Path, out: Path, **changes: Any) -> RunConfig:
    """Return :func:`settings` as a validated configuration."""
    return RunConfig.from_mapping(settings(corpus, out, **changes))


def command_line(values: dict[str, Any]) -> list[str]:
    """Return settings as the flags of ``fl-sim run``."""
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


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


def apart(one: RunFolder, other: RunFolder, learning_rate: float) -> float:
    """Return the distance of two runs' models, relative to the total update of the first."""
    total_update = learning_rate * one.metrics()["update_norm"].sum()
    return float(np.linalg.norm(model_of(one).astype(np.float64) - model_of(other)) / total_update)
