"""Runs small enough to make many of and compare: users with few and with many sentences, a model of 70,000 numbers."""

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
"""For runs of many processes: half of what a worker does before its first round is to load transformers' GPT-2."""
_NAMES = ("Ada", "Blaise", "Carl", "Emmy")

# Two runs whose nodes hold other users add the same float32 gradients in another order and in batches of another
# shape. That moves the model by some 1e-7 of what the gradients moved it in all; a coin that fell otherwise, a user
# lost or counted twice, or another clip would move it by a share of the order of one.
SAME_MODEL = 2e-6


def small_corpus(folder: Path, *, users: int = USERS, longest: int = 12, word: str = "boats") -> Path:
    """A prepared corpus whose first user has ``longest`` sentences and the others 1, 2, 3 and so on."""
    write_corpus(_sentences(users, longest, word), folder, name="small")
    return folder


def _sentences(users: int, longest: int, word: str) -> Iterator[Sentence]:
    for split in ("train", "validation"):
        for user in range(users):
            for number in range(longest if user == 0 else user):
                name = _NAMES[(user + number) % len(_NAMES)]
                known = number % 3 < 2
                text = f"{name} saw {number} {word} in street {user}." if known else f"Rain fell on day {number}."
                mentions = (Mention(0, len(name), "PER"),) if known else ()
                yield Sentence(split, f"user {user}", text, mentions)


def settings(corpus: Path, out: Path, **changes: Any) -> dict[str, Any]:
    """The settings of a short run; in ``changes`` a double underscore stands for the dot of a key."""
    base = {"corpus.path": str(corpus), "out": str(out), "rounds": 2, "engine.name": "inline", **MODEL}
    return base | {key.replace("__", "."): value for key, value in changes.items()}


def configuration(corpus: Path, out: Path, **changes: Any) -> RunConfig:
    """:func:`settings`, checked."""
    return RunConfig.from_mapping(settings(corpus, out, **changes))


def command_line(values: dict[str, Any]) -> list[str]:
    """Settings as the flags of ``fl-sim run``."""
    return [word for key, value in values.items() for word in ("--set", f"{key}={value}")]


def model_of(run: RunFolder) -> np.ndarray:
    """The trained parameters, from the last checkpoint."""
    checkpoint = Checkpoint.read(run.checkpoint_dir)
    if checkpoint is None:
        raise FileNotFoundError(run.checkpoint_dir)
    return checkpoint.vector


def measured(run: RunFolder) -> list[dict[str, Any]]:
    """All that was measured, round by round, but for the time that it took; NaN as text, to be equal to itself."""
    rows = run.metrics().drop(columns="seconds").to_dict("records")
    return [{key: "nan" if value != value else value for key, value in row.items()} for row in rows]


def apart(one: RunFolder, other: RunFolder, learning_rate: float) -> float:
    """How far two models are apart, as a share of how far the users' gradients moved the first one."""
    moved = learning_rate * one.metrics()["update_norm"].sum()
    return float(np.linalg.norm(model_of(one).astype(np.float64) - model_of(other)) / moved)
