"""Know which node holds which users, by asking every node once, and draw the users of a round.

A node that joins later is asked before the round that it may first take part in, and one that fails to answer decides
about itself alone. A user is one only once: of several
nodes that name the same user, the one that came first has it as long as it is there, and then the next. The others keep
their other users, so that nobody's data decide whether another user is counted.

>>> nodes = EnrolledNodes()
>>> nodes.add(11, (5, 6)), nodes.add(12, (6, 7))
([], [6])
>>> nodes.sampled(seed=0, server_round=1, sampling_rate=1.0)
{11: (5, 6), 12: (7,)}
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fl_sim.engines.grids import GridError
from fl_sim.flower.private_messages import ENROLMENT, RECORD, ProtocolError, enrolled_users, request_part
from fl_sim.formats import printable
from fl_sim.strategies.primitives import sampling

log = logging.getLogger("flwr")  # shown by `flwr run --stream`

_MOST_TOLD = 3
_TRIES = 3  # of a node that fails to answer: one that hangs would cost every round a time limit


class EnrolledNodes:
    """Hold the users of every node that has enrolled, by their numbers."""

    def __init__(self) -> None:
        self._named: dict[int, tuple[int, ...]] = {}  # by the nodes, in the order in which they came
        self._node_of: dict[int, int] = {}
        self._refused: dict[int, str] = {}  # with the reasons
        self._failed: dict[int, int] = {}  # how often in a row
        self._anybody = False  # whether there has been a user

    @property
    def num_users(self) -> int:
        """Return the number of users of all enrolled nodes."""
        return len(self._node_of)

    def enrol(self, grid: Grid, timeout: float) -> None:
        """Ask the nodes that have not been asked yet which users they hold.

        A node that fails to answer takes no part, and is asked again before the next round, three times in all.

        Raises:
            ProtocolError: no node at all has enrolled, with the first one's reason; or none that ever did named a user.
        """
        present = set(grid.get_node_ids())
        self._forget(present)
        new = sorted(present - self._named.keys() - self._refused.keys())
        failed, shared = dict.fromkeys(new, f"gave no answer within {timeout:g} seconds"), list[str]()
        for reply in _answers(grid, new, timeout):
            node = reply.metadata.src_node_id
            if reply.has_error():
                failed[node] = f"did not enrol: {printable(reply.error.reason or 'no reason given')}"
                continue
            failed.pop(node, None)
            try:
                theirs = self.add(node, enrolled_users(reply))
            except ProtocolError as error:
                self._refused[node] = f"node {node}: {error}"
                continue
            if theirs:
                shared.append(f"node {node} names {len(theirs)} of other nodes' users, who count there alone")
        for node, reason in failed.items():
            self._failed[node] = self._failed.get(node, 0) + 1
            if self._failed[node] == _TRIES:
                self._refused[node] = f"node {node} {reason}, {_TRIES} times"
        refused = [
            self._refused.get(node, f"node {node} {failed.get(node)}") for node in new if node not in self._named
        ]
        _tell(shared, "and {} more nodes name users of others")
        _tell([f"{reason}; it takes no part" for reason in refused], "and {} more nodes take no part")
        if not self._named:
            raise ProtocolError(f"no node takes part: {[*refused, *self._refused.values(), 'none is there'][0]}")
        self._anybody = self._anybody or bool(self._node_of)
        if not self._anybody:
            raise ProtocolError(f"nobody is enrolled: the users of {len(self._named)} nodes are none")

    def add(self, node: int, users: Iterable[int]) -> list[int]:
        """Add a node with the users that it names; return those of them that another node has."""
        self._named[node] = tuple(users)
        for user in self._named[node]:
            self._node_of.setdefault(user, node)
        return [user for user in self._named[node] if self._node_of[user] != node]

    def sampled(self, seed: int, server_round: int, sampling_rate: float) -> dict[int, tuple[int, ...]]:
        """Return the sampled users of every node that has any, in the order of the smallest number of its users.

        Each user is included with probability ``sampling_rate``, a function of seed, round and the user's number.
        """
        numbers = np.array(sorted(self._node_of), dtype=np.int64)
        included = numbers[sampling.sampled_numbers(seed, server_round, numbers, sampling_rate)]
        by_node: dict[int, list[int]] = {}
        for number in included.tolist():
            by_node.setdefault(self._node_of[number], []).append(number)
        return {node: tuple(users) for node, users in by_node.items()}

    def _forget(self, present: set[int]) -> None:
        """Forget nodes that are gone: a user of theirs is of the next node that names it, if there is one."""
        gone = self._named.keys() - present
        for known in (self._refused, self._failed):
            for node in known.keys() - present:
                del known[node]
        for node in gone:
            del self._named[node]
        if gone:
            self._node_of = {user: node for node, users in reversed(self._named.items()) for user in users}


def _answers(grid: Grid, nodes: list[int], timeout: float) -> list[Message]:
    """Return the replies of those nodes that answer, in the order of the nodes."""
    replies, content = list[Message](), RecordDict({RECORD: request_part(ENROLMENT)})
    try:
        for reply in grid.send_and_receive([Message(content, n, MessageType.TRAIN) for n in nodes], timeout=timeout):
            replies.append(reply)
    except GridError:
        pass  # all of these nodes failed, each with its own reason
    return sorted(replies, key=lambda reply: reply.metadata.src_node_id)


def _tell(lines: list[str], others: str) -> None:
    """Log a few lines, and how many ``others`` there are."""
    for line in lines[:_MOST_TOLD]:
        log.warning("fl-sim: %s", line)
    if len(lines) > _MOST_TOLD:
        log.warning("fl-sim: %s", others.format(len(lines) - _MOST_TOLD))
