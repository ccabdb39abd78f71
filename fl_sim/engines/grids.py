"""Flower grids: one with its nodes in this process, and one that retries lost work of another grid.

>>> from unittest.mock import patch
>>> with patch.multiple(TaskIdentity, _task_id=1, _run_id=1, _node_id=SERVER_NODE):
...     grid = AttendedGrid(InlineGrid(ClientApp(), num_nodes=2), num_nodes=2)
>>> list(grid.get_node_ids())
[2, 3]
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
import uuid
from collections.abc import Iterable, Iterator

from flwr.app import Context, Error, Message, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fl_sim.strategies.messages import IMPERSONATION

log = logging.getLogger(__name__)

SERVER_NODE = 1
_CLIENT_APP_RAISED = 2  # flwr.common.constant.ErrorCode
_POLL_SECONDS = 0.05  # half of the period of Flower's own grid; less gains nothing, its engine sweeps every 0.1 s
_NODES_SECONDS = 60.0

# A dead worker restarts within seconds, unless its machine is gone. Lost work is requested again at least this often
# and this long before it counts as failed.
_RETRIES = 2
_PATIENCE_SECONDS = 60.0
_RETRY_SECONDS = 1.0
_WORKER_LOST = re.compile(
    r"ray\.exceptions\.(ActorDied|ActorUnavailable|NodeDied|ObjectLost|OutOfMemory|OwnerDied|WorkerCrashed)Error'"
)


class GridError(ValueError):
    """Missing nodes, or a round in which every node failed."""


class RunStopped(Exception):
    """The run was stopped while the server waited for its nodes."""


class InlineGrid(Grid):
    """A grid of nodes that run the ClientApp in this thread, one per pull; an exception becomes an error reply.

    So one reply exists at a time, if the caller uses each before it asks for the next.
    """

    def __init__(self, client: ClientApp, num_nodes: int, run_config: UserConfig | None = None) -> None:
        self._client = client
        self._contexts = {
            node: context_of(node, {"partition-id": k, "num-partitions": num_nodes}, run_config)
            for k, node in enumerate(range(SERVER_NODE + 1, SERVER_NODE + 1 + num_nodes))
        }
        self._run = Run.create_empty(run_id=TaskIdentity.run_id)
        self._waiting: dict[str, Message] = {}

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
            self._waiting[message.metadata.message_id] = message
            sent.append(message.metadata.message_id)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        waiting = next((message_id for message_id in message_ids if message_id in self._waiting), None)
        return [] if waiting is None else [self._answer(self._waiting.pop(waiting))]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        for message_id in self.push_messages(messages):
            yield from self.pull_messages([message_id])

    def _answer(self, message: Message) -> Message:
        try:
            return self._client(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:  # a node may fail in any way; the server counts it as zero and reports it
            return Message(Error(_CLIENT_APP_RAISED, f"{type(error).__name__}: {error}"), reply_to=message)


class AttendedGrid(Grid):
    """A wrapper of another grid that retries lost work, fails if every node fails, and can stop waiting.

    A node's work is a function of the round. If its worker or machine is lost, the same work is requested again, after
    the other nodes have replied and their workers are idle, and the reply is the same. A node that fails by itself, or
    whose workers are lost every time, counts as zero and the run continues. A round in which every node failed means
    that none can work (no access to the corpus, no memory): it ends the run before any noise is released.

    Args:
        num_nodes: wait until ``grid`` has this many nodes (Flower starts the server while it registers them).
        stop: once set, waiting for replies raises :class:`RunStopped`.

    Raises:
        GridError: if the nodes are not registered within a minute.
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
        """Yield the replies to ``messages`` as they arrive, within ``timeout`` seconds of their request.

        Raises:
            GridError: at the end, if messages were sent and every reply is an error, or none arrived in time.
            RunStopped: if ``stop`` was set meanwhile.
        """
        requests, failures, answered = list(messages), list[Message](), False
        for reply in self._with_retries(requests, timeout):
            if reply.has_error():
                failures.append(reply)
            else:
                answered = True
            yield reply
        if requests and not answered:
            if failures:
                reason = " ".join((failures[0].error.reason or "no reason given").split())[:500]
            else:
                reason = f"no answer within {timeout:g} seconds (engine.timeout)"
            raise GridError(f"all {len(requests)} nodes failed in this round: {reason}")

    def _with_retries(self, requests: list[Message], timeout: float | None) -> Iterator[Message]:
        """Yield the replies to ``requests``; lost work is requested again, and fails at last."""
        lost = list[Message]()
        yield from self._ask(requests, timeout, lost)
        attempts, since = 0, time.monotonic()
        while lost and (attempts < _RETRIES or time.monotonic() - since < _PATIENCE_SECONDS):
            nodes = {reply.metadata.src_node_id for reply in lost}
            log.info("%d of %d nodes lost their worker; their work is requested again", len(nodes), len(requests))
            retries = [_copy(message) for message in requests if message.metadata.dst_node_id in nodes]
            lost, recovered = list[Message](), False
            for reply in self._ask(retries, timeout, lost):
                recovered = True
                yield reply
            attempts += 1
            if recovered:
                attempts, since = 0, time.monotonic()
            elif lost:
                self._pause(_RETRY_SECONDS)
        yield from lost

    def _ask(self, messages: list[Message], timeout: float | None, lost: list[Message]) -> Iterator[Message]:
        """Yield the replies to ``messages``, except those that report a lost worker, which are added to ``lost``."""
        sent = list(self._grid.push_messages(messages))
        for reply in _from_the_asked(self._arriving(sent, timeout), messages):
            if _is_lost(reply):
                lost.append(reply)
            else:
                yield reply

    def _arriving(self, sent: list[str], timeout: float | None) -> Iterator[Message]:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        pending = sent
        while pending:
            batch = list(self._grid.pull_messages(pending))
            answered = {reply.metadata.reply_to_message_id for reply in batch}
            pending = [message_id for message_id in pending if message_id not in answered]
            while batch:
                yield batch.pop(0)  # nothing here keeps a reply that was used
            if not answered and time.monotonic() > deadline:
                return
            if not answered:
                self._pause()

    def _wait_for_nodes(self, num_nodes: int) -> None:
        deadline = time.monotonic() + _NODES_SECONDS
        while (present := len(list(self._grid.get_node_ids()))) < num_nodes:
            if time.monotonic() > deadline:
                raise GridError(f"only {present} of {num_nodes} nodes are there after {_NODES_SECONDS:g} seconds")
            self._pause()

    def _pause(self, seconds: float = _POLL_SECONDS) -> None:
        if self._stop.wait(seconds):
            raise RunStopped


def context_of(node: int, node_config: UserConfig | None = None, run_config: UserConfig | None = None) -> Context:
    """Return the context of a node in the current run."""
    return Context(
        run_id=TaskIdentity.run_id,
        node_id=node,
        node_config=node_config or {},
        state=RecordDict(),
        run_config=run_config or {},
    )


def _is_lost(reply: Message) -> bool:
    """Return whether a reply reports a lost worker or machine; Flower passes Ray's exception on as text."""
    return reply.has_error() and _WORKER_LOST.search((reply.error.reason or "").partition(":")[0]) is not None


def _from_the_asked(replies: Iterable[Message], requests: list[Message]) -> Iterator[Message]:
    """Yield the replies, each in the name of the node that was asked; another name becomes an error.

    A node can write any sender into its reply. It would then answer in another node's place, with the other's bound.
    """
    asked = {request.metadata.message_id: request for request in requests}
    for reply in replies:
        request = asked.get(reply.metadata.reply_to_message_id)
        if request is None:
            log.warning("a reply to no request of this round is dropped")
        elif reply.metadata.src_node_id != request.metadata.dst_node_id:
            reason = f"its reply names node {reply.metadata.src_node_id} as its sender"
            yield Message(Error(IMPERSONATION, reason), reply_to=request)
        else:
            yield reply


def _copy(message: Message) -> Message:
    """Return an unsent copy of a message."""
    sent = message.metadata
    return Message(message.content, sent.dst_node_id, sent.message_type, ttl=sent.ttl, group_id=sent.group_id)
