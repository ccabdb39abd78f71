"""Describe one trial of an app, what was seen in it, and the updates with which nodes answer.

A trial is a run of the ServerApp on nodes in the same process; two of them differ in what one user does alone.

>>> push = Answer("push", scale=-3.0)
>>> model = {"w": np.zeros(4, np.float32), "steps": np.array(7)}
>>> moved(model, push, own={})["w"].tolist() == (-1.5 * signs("w", (4,))).tolist()
True
>>> moved(model, Answer("push", scale=10.0, array="steps"), own={})["steps"]
array(17)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from flwr.app import RecordDict

Arrays = dict[str, npt.NDArray[Any]]
Unit = tuple[int, str]
"""A user: the partition of its node, and its name where a node holds several (else empty)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Say how a user answers a request to train.

    Attributes:
        kind: ``own`` (the update that its train function returned), ``same`` (that of the attacked user), ``push``,
            ``nan``, ``inf``, or ``fail``.
        scale: the length of a push along :func:`signs`, negative for the other way.
        array: the only array that is pushed; None for all arrays of floats.
    """

    kind: Literal["own", "same", "push", "nan", "inf", "fail"] = "own"
    scale: float = 0.0
    array: str | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """Say what is done in a trial.

    Attributes:
        seed: of the global generators of Python, numpy and torch.
        entropy: of what the operating system gives as randomness.
        rounds: after which the trial ends; 0 ends it before the first aggregation, None lets the app end.
        steady: seed again before every training and aggregation, so that two trials with one seed draw the same.
        noise: changes what aggregations draw in a steady trial, and nothing else.
        real: the number of rounds in which nodes train, instead of answering with what they once returned.
        warm: run it in the process that later trials are forked from, so that they find loaded what it loaded.
        attacked, others: what the attacked user and all others answer.
        target: the attacked user.
        absent: the attacked user is not there.
        weight: a factor on the attacked user's number of examples, and on its other metrics.
    """

    seed: int = 0
    entropy: int = 0
    rounds: int | None = 1
    steady: bool = True
    noise: int = 0
    real: int = 0
    warm: bool = False
    attacked: Answer = Answer()
    others: Answer = Answer()
    target: Unit | None = None
    absent: bool = False
    weight: float = 1.0


@dataclass(slots=True)
class Seen:
    """Hold what was seen in a trial.

    Attributes:
        cohorts: the users who trained, by round.
        steps: how far each round moved the model, by array; of our own strategy the noisy average.
        start: the initial model.
        asked: the types of messages, beside training and evaluation, that the app's own functions answered.
        metrics: what the server's strategy returned beside the model, by round, and what it measured on nodes.
        replies: of the last round: each user's metrics, and the norm of its update as it left the node.
        own: the update of each train function in this trial, and what it returned beside, for later trials.
        log, node_log: what the server and the nodes printed and logged, with a line ``ROUND n`` where a round ends.
        strategy: the classes of the strategy and of those that it wraps, with the numbers among their settings.
        mods: the names of the client's mods, with theirs.
        stated: ε that known objects state at the end of the trial.
        error: why it ended early: ``absent``, ``waits``, ``stopped`` or ``node``, and words.
        waits_for: the number of nodes for which the app waits.
        opacus: a node trained with an optimizer of Opacus.
    """

    cohorts: list[list[Unit]] = field(default_factory=list)
    steps: list[Arrays] = field(default_factory=list)
    start: Arrays = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    metrics: list[dict[str, float]] = field(default_factory=list)
    replies: dict[Unit, dict[str, float]] = field(default_factory=dict)
    own: dict[Unit, tuple[Arrays, RecordDict]] = field(default_factory=dict)
    log: str = ""
    node_log: str = ""
    strategy: list[tuple[str, dict[str, float]]] = field(default_factory=list)
    mods: list[tuple[str, dict[str, float]]] = field(default_factory=list)
    stated: float | None = None
    error: tuple[str, str] | None = None
    seconds: float = 0.0
    waits_for: int = 0
    opacus: bool = False


def signs(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return fixed signs for an array, ±1, float64."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.default_rng(seed).choice((-1.0, 1.0), size=shape)


def moved(model: Arrays, answer: Answer, own: Arrays) -> Arrays:
    """Return the model with which a user answers, in the types of ``model``."""
    if answer.kind in ("own", "same"):
        return {name: _typed(value + own[name], value) for name, value in model.items()}
    floats = {name: value for name, value in model.items() if value.dtype.kind == "f"}
    if answer.kind in ("nan", "inf"):
        return model | {name: np.full_like(value, float(answer.kind)) for name, value in floats.items()}
    if answer.array is not None and answer.array not in floats:  # an array of whole numbers
        value = model[answer.array]
        return model | {answer.array: _typed(value + int(answer.scale), value)}
    pushed = floats if answer.array is None else {answer.array: floats[answer.array]}
    by = answer.scale / np.sqrt(max(1, sum(value.size for value in pushed.values())))
    return model | {name: _typed(value + by * signs(name, value.shape), value) for name, value in pushed.items()}


def _typed(value: npt.NDArray[Any], like: npt.NDArray[Any]) -> npt.NDArray[Any]:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(value).astype(like.dtype)


def flat(arrays: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
    """Return arrays as one vector, float64."""
    parts = [np.ravel(np.asarray(value, dtype=np.float64)) for value in arrays.values()]
    return np.concatenate(parts) if parts else np.zeros(0)
