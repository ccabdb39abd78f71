"""Flower grids: one whose nodes live in this process, and one that watches over another while it works."""

from __future__ import annotations

import logging
import re
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

log = logging.getLogger(__name__)

SERVER_NODE = 1
_CLIENT_APP_RAISED = 2  # flwr.common.constant.ErrorCode
_POLL_SECONDS = 0.05  # half of what Flower's own grid waits; lower gains nothing, its engine sweeps every 0.1 s
_NODES_SECONDS = 60.0

# A worker that died starts again within seconds, unless its machine is gone. Work that was lost with one is asked for
# again at least so many times, and for so long, until it counts as failed.
_RETRIES = 2
_PATIENCE_SECONDS = 60.0
_RETRY_SECONDS = 1.0
_WORKER_LOST = re.compile(
    r"ray\.exceptions\.(ActorDied|ActorUnavailable|NodeDied|ObjectLost|OutOfMemory|OwnerDied|WorkerCrashed)Error'"
)


class GridError(ValueError):
    """Nodes that are not there, or a round in which none of them could work."""


class RunStopped(Exception):
    """The run was told to stop while the server waited for its nodes."""


class InlineGrid(Grid):
    """A grid of virtual nodes that run the ClientApp at once, in this thread; an error becomes an error reply."""

    def __init__(self, client: ClientApp, num_nodes: int) -> None:
        self._client = client
        self._contexts = {
            node: context_of(node, {"partition-id": k, "num-partitions": num_nodes})
            for k, node in enumerate(range(SERVER_NODE + 1, SERVER_NODE + 1 + num_nodes))
        }
        self._run = Run.create_empty(run_id=TaskIdentity.run_id)
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())  # as Flower's own grids do
            self._replies[message.metadata.message_id] = self._answer(message)
            sent.append(message.metadata.message_id)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(message_id) for message_id in list(message_ids) if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        try:
            return self._client(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:  # a node may fail in any way; the server counts it as zero and says so
            return Message(Error(_CLIENT_APP_RAISED, f"{type(error).__name__}: {error}"), reply_to=message)


class AttendedGrid(Grid):
    """Another grid, attended to: lost work is done again, not all nodes may fail, and waiting can be ended.

    What a node was asked is a function of the round; so if the worker or the machine that did it is lost, the same is
    asked again, once the other nodes have answered and their workers are free, and the answer is the same. A node that
    fails by itself, or whose workers are lost every time, counts as zero and the run goes on. A round in which every
    node failed means that none can work (no access to the corpus, no memory): it ends the run, before noise is spent
    on nothing.

    Args:
        grid: what does the work.
        num_nodes: wait until ``grid`` has that many nodes (Flower starts the server while it registers them).
        stop: once set, whoever waits for replies gets :class:`RunStopped`.

    Raises:
        GridError: if the nodes do not come within a minute.
    """

    def __init__(self, grid: Grid, num_nodes: int = 1, stop: threading.Event | None = None) -> None:
        self._grid = grid
        self._stop = stop or threading.Event()
        self._wait_for_nodes(num_nodes)

    def set_run(self, run: Run) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """The replies to ``messages``, but for those not there ``timeout`` seconds after they were asked for.

        Raises:
            GridError: if messages were sent and every reply is an error, or none came in time.
            RunStopped: if ``stop`` was set meanwhile.
        """
        asked = list(messages)
        replies, lost = self._ask(asked, timeout)
        attempts, since = 0, time.monotonic()
        while lost and (attempts < _RETRIES or time.monotonic() - since < _PATIENCE_SECONDS):
            nodes = {reply.metadata.src_node_id for reply in lost}
            log.info("%d of %d nodes lost their worker and are asked again", len(nodes), len(asked))
            again = [_copy(message) for message in asked if message.metadata.dst_node_id in nodes]
            arrived, lost = self._ask(again, timeout)
            replies += arrived
            attempts += 1
            if arrived:
                attempts, since = 0, time.monotonic()
            elif lost:
                self._pause(_RETRY_SECONDS)
        replies += lost
        if asked and all(reply.has_error() for reply in replies):
            raise GridError(f"all {len(asked)} nodes failed in this round: {_reason(replies, timeout)}")
        return replies

    def _ask(self, messages: list[Message], timeout: float | None) -> tuple[list[Message], list[Message]]:
        """The replies to ``messages``, and apart from them those which say that a worker was lost."""
        replies = self._collect(list(self._grid.push_messages(messages)), timeout)
        return [reply for reply in replies if not _is_lost(reply)], [reply for reply in replies if _is_lost(reply)]

    def _collect(self, sent: list[str], timeout: float | None) -> list[Message]:
        deadline = None if timeout is None else time.monotonic() + timeout
        waiting, replies = sent, list[Message]()
        while waiting:
            arrived = list(self._grid.pull_messages(waiting))
            replies += arrived
            answered = {reply.metadata.reply_to_message_id for reply in arrived}
            waiting = [message_id for message_id in waiting if message_id not in answered]
            if not waiting or (deadline is not None and time.monotonic() > deadline):
                break
            self._pause()
        return replies

    def _wait_for_nodes(self, num_nodes: int) -> None:
        deadline = time.monotonic() + _NODES_SECONDS
        while (present := len(list(self._grid.get_node_ids()))) < num_nodes:
            if time.monotonic() > deadline:
                raise GridError(f"only {present} of {num_nodes} nodes are there after {_NODES_SECONDS:g} seconds")
            self._pause()

    def _pause(self, seconds: float = _POLL_SECONDS) -> None:
        if self._stop.wait(seconds):
            raise RunStopped


def context_of(node: int, node_config: dict[str, Any] | None = None) -> Context:
    """The context of a node of the run under way."""
    return Context(
        run_id=TaskIdentity.run_id, node_id=node, node_config=node_config or {}, state=RecordDict(), run_config={}
    )


def _is_lost(reply: Message) -> bool:
    """Whether there is no answer because a worker or its machine is gone; Flower tells Ray's exception as text."""
    return reply.has_error() and _WORKER_LOST.search((reply.error.reason or "").partition(":")[0]) is not None


def _copy(message: Message) -> Message:
    """The same message, not sent yet."""
    asked = message.metadata
    return Message(message.content, asked.dst_node_id, asked.message_type, ttl=asked.ttl, group_id=asked.group_id)


def _reason(replies: list[Message], timeout: float | None) -> str:
    """Why no node could work, in one line: the first one's word."""
    if not replies:
        return f"no answer within {timeout:g} seconds (engine.timeout)"
    return " ".join((replies[0].error.reason or "no reason given").split())[:500]
