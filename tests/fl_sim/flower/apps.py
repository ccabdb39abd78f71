"""Flower apps of a few parameters, on nodes in this process with any ids, configurations and faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Result
from flwr.supercore.task_identity import TaskIdentity

from fl_sim.engines.grids import InlineGrid, context_of
from fl_sim.flower import UserLevelClipping, UserLevelDifferentialPrivacy
from fl_sim.flower.app_run import AppRun

Train = Callable[[Message, Context], Message]
Nodes = Mapping[int, tuple[ClientApp, Mapping[str, Any]]]
SETTINGS: dict[str, Any] = {
    "population": 10,
    "sampling_rate": 0.5,
    "clip_norm": 1.0,
    "noise_multiplier": 1.0,
    "seed": 0,
}


def model(size: int = 5) -> ArrayRecord:
    """A model of an array of float32 and a number of float64, all zero."""
    return ArrayRecord({"weight": Array(np.zeros(size, np.float32)), "scale": Array(np.zeros(()))})


def moved(message: Message, by: np.ndarray, **metrics: float) -> Message:
    """The reply of a node whose training moved the weight by ``by``."""
    arrays = message.content["arrays"]
    weight = arrays["weight"].numpy() + by.astype(np.float32)
    record = ArrayRecord({"weight": Array(weight), "scale": arrays["scale"]})
    return Message(
        RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 1} | metrics)}), reply_to=message
    )


def towards_own_coordinate(message: Message, context: Context) -> Message:
    """Move the coordinate of the node's user by 0.5."""
    by = np.zeros(message.content["arrays"]["weight"].shape)
    by[int(context.node_config["partition-id"]) % len(by)] = 0.5
    return moved(message, by)


def client(
    train: Train = towards_own_coordinate, mod: UserLevelClipping | None = None, *, bare: bool = False
) -> ClientApp:
    """A ClientApp with the mod, or a bare one without it."""
    app = ClientApp(mods=[] if bare else [mod or UserLevelClipping()])
    app.train()(train)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 2, "accuracy": 0.75})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


class NodesHere(InlineGrid):
    """Nodes in this process: ``nodes`` may change between rounds, and a message to one that is gone has no reply."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = dict(nodes)
        self.sent: list[Message] = []
        self.replies: list[Message] = []
        self._waiting: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        pushed = list(messages)
        self.sent += pushed
        return super().push_messages(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = [self._reply(self._waiting.pop(one)) for one in list(message_ids) if one in self._waiting]
        self.replies += replies
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node not in self.nodes:
            return Message(Error(3, "gone"), reply_to=message)
        app, config = self.nodes[node]
        copied = Message(
            RecordDict(dict(message.content)), node, message.metadata.message_type
        )  # as the wire does: a node changes its own records alone
        copied.metadata.__dict__["_message_id"] = message.metadata.message_id
        context = context_of(node, dict(config))
        try:
            return app(copied, context)
        except Exception as error:
            return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=copied)


def nodes_of(count: int, app: ClientApp | None = None, first: int = 100) -> dict[int, tuple[ClientApp, dict[str, Any]]]:
    """Nodes of one user each, by id, with partition ids from 0."""
    own = app or client()
    return {first + 7 * k: (own, {"partition-id": k}) for k in range(count)}


def train(
    folder: Path,
    nodes: Nodes | NodesHere,
    *,
    rounds: int = 3,
    initial: ArrayRecord | None = None,
    wrapped: Any = None,
    evaluate_fn: Any = None,
    timeout: Any = 5,
    **changes: Any,
) -> tuple[Result, UserLevelDifferentialPrivacy]:
    """Train with the given nodes; return the result and the strategy."""
    settings = {**SETTINGS, **changes}
    if "server_optimizer" not in settings:
        wrapped = wrapped or FedAvg()
    strategy = UserLevelDifferentialPrivacy(wrapped, folder=folder, **settings)
    grid = nodes if isinstance(nodes, NodesHere) else NodesHere(nodes)
    with as_task():
        result = strategy.start(grid, initial or model(), num_rounds=rounds, timeout=timeout, evaluate_fn=evaluate_fn)
    return result, strategy


def interrupted(folder: Path, nodes: Nodes, at: Any, *, before: str = "checkpoint", **changes: Any) -> None:
    """Train until the server is killed in round ``at``, before that method of its run."""
    method = getattr(AppRun, before)

    def killed(run: AppRun, server_round: Any, *arguments: Any) -> None:
        if server_round == at:
            raise KeyboardInterrupt
        method(run, server_round, *arguments)

    with patch.object(AppRun, before, killed), pytest.raises(KeyboardInterrupt):
        train(folder, nodes, **changes)


def as_task() -> AbstractContextManager[Any]:
    """Set the identity that Flower stamps on messages."""
    return patch.multiple(TaskIdentity, _task_id=1, _run_id=1, _node_id=1)


def weights(result: Result) -> np.ndarray:
    """All parameters of the model, float64."""
    return np.concatenate([array.numpy().astype(np.float64).ravel() for array in result.arrays.values()])
