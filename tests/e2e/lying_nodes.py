"""A ClientApp of which one node lies from round 2 on, a lie a round, and grids that lose and repeat replies.

Ray's workers import this module, so the lies are in the environment (``FL_SIM_LIES``, separated by semicolons).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fl_sim.clients import client_app as honest
from fl_sim.engines.grids import InlineGrid
from fl_sim.strategies.messages import TRAIN_ACTION, TrainRequest, vector_to_arrays

LIES_TO_TELL = "FL_SIM_LIES"
USER_OF_THE_LIAR = 1  # on the second node of three, in the order of their ids
LIAR = 1
SILENT_SECONDS = 12.0

_earlier: dict[int, RecordDict] = {}
"""The reply of the first round of every node that this process has served in it."""

honest_sums: dict[int, np.ndarray] = {}
"""The sum of the honest replies of each round, where all nodes are in this process; float64 (d,)."""


def _vector(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Message, Message], Message]:
    def lie(request: Message, reply: Message) -> Message:
        vector = reply.content.array_records["arrays"]["vector"].numpy()
        reply.content["arrays"] = vector_to_arrays(change(vector))
        return reply

    return lie


def _count(**changes: int) -> Callable[[Message, Message], Message]:
    def lie(request: Message, reply: Message) -> Message:
        counts = dict(reply.content.metric_records["metrics"])
        reply.content["metrics"] = MetricRecord(counts | changes)
        return reply

    return lie


def _of_the_first_round(request: Message, reply: Message) -> Message:
    """Replay the first reply; where another worker of Ray's gave it, this one under the first round's name."""
    content = _earlier.get(reply.metadata.src_node_id)
    if content is None:
        first = replace(TrainRequest.from_message(request), server_round=1)
        reply.content["config"] = ConfigRecord({"answers": first.identity})
        return reply
    return Message(RecordDict(dict(content)), reply_to=request)


def _for_other_users(request: Message, reply: Message) -> Message:
    asked = TrainRequest.from_message(request)
    reply.content["config"] = ConfigRecord({"answers": replace(asked, users=asked.users + 1).identity})
    return reply


def _for_another_node(request: Message, reply: Message) -> Message:
    reply.metadata.__dict__["_src_node_id"] += 1
    return reply


def _header_of_a_terabyte(request: Message, reply: Message) -> Message:
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (250000000000,)}"
    data = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
    reply.content["arrays"] = ArrayRecord({"vector": Array("float32", (250_000_000_000,), "numpy.ndarray", data)})
    return reply


def _an_empty_record(request: Message, reply: Message) -> Message:
    return Message(RecordDict(), reply_to=request)


def _crash(request: Message, reply: Message) -> Message:
    raise MemoryError("\x1b[2Jout of memory\nand a second line")


def _sleep(request: Message, reply: Message) -> Message:
    time.sleep(SILENT_SECONDS)
    return reply


LIES: dict[str, tuple[str, Callable[[Message, Message], Message]]] = {
    "NaN": ("not_finite", _vector(lambda v: np.full_like(v, np.nan))),
    "one infinity": ("not_finite", _vector(lambda v: np.where(np.arange(len(v)) == 3, np.inf, v).astype(np.float32))),
    "a norm of 10^12": ("too_large", _vector(lambda v: np.float32(1e12) * v / np.linalg.norm(v))),
    "the largest floats": ("too_large", _vector(lambda v: np.full_like(v, np.finfo(np.float32).max))),
    "a number less": ("wrong_shape", _vector(lambda v: v[:-1])),
    "a matrix": ("wrong_shape", _vector(lambda v: v[None])),
    "nothing": ("wrong_shape", _vector(lambda v: v[:0])),
    "a million numbers": ("malformed", _vector(lambda v: np.zeros(1_000_000, np.float32))),
    "doubles": ("malformed", _vector(lambda v: v.astype(np.float64))),
    "a header of a terabyte": ("malformed", _header_of_a_terabyte),
    "an empty record": ("malformed", _an_empty_record),
    "more users": ("wrong_shape", _count(users=999)),
    "the most sentences": ("wrong_counts", _count(sentences=2**63 - 1)),
    "a negative count": ("malformed", _count(clipped=-1)),
    "a replay": ("other_request", _of_the_first_round),
    "an answer for other users": ("other_request", _for_other_users),
    "the name of another node": ("impersonation", _for_another_node),
    "a crash": ("error", _crash),
    "silence": ("silent", _sleep),
}
"""The lies by name: the kind under which the server counts them, and what becomes of the honest reply."""

app = ClientApp()


@app.train(TRAIN_ACTION, mods=[honest.reply_with_failure])
def train(message: Message, context: Context) -> Message:
    """Answer honestly, but for the liar, who tells the lie of the round."""
    request = TrainRequest.from_message(message)
    server_round = request.server_round
    reply = honest.train(message, context)
    vector = reply.content.array_records["arrays"]["vector"].numpy().astype(np.float64)
    honest_sums[server_round] = honest_sums.get(server_round, 0.0) + vector
    if server_round == 1:  # a later one may be a lie by the time that it is replayed
        _earlier[reply.metadata.src_node_id] = RecordDict(dict(reply.content))  # the server empties what it gets
    name = lie_of(server_round)
    is_the_liar = any(first <= USER_OF_THE_LIAR < stop for first, stop in request.users.tolist())
    return LIES[name][1](message, reply) if is_the_liar and name is not None else reply


def lie_of(server_round: int) -> str | None:
    """Return the lie of a round; none in the first, and after the last lie."""
    names = os.environ.get(LIES_TO_TELL, "")
    return dict(enumerate(names.split(";"), start=2)).get(server_round) if names else None


class RepeatingGrid(InlineGrid):
    """A network that delivers every reply twice."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply for reply in super().pull_messages(message_ids) for _ in range(2)]


class LosingGrid(InlineGrid):
    """A network that loses the replies of the liar."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        liar = list(self.get_node_ids())[LIAR]
        return [reply for reply in super().pull_messages(message_ids) if reply.metadata.src_node_id != liar]
