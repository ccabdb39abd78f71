"""Know which node holds which users, by asking every node once, and draw the users of a round.

A node that joins later is asked before the round that it may first take part in. A user is one only once: of two nodes
that name the same user, the one that came first counts as long as it is there.

>>> nodes = EnrolledNodes()
>>> nodes.add(11, (5, 6)), nodes.add(12, (6, 7))
(None, 'node 12 names a user of node 11')
>>> nodes.sampled(seed=0, server_round=1, sampling_rate=1.0)
{11: (5, 6)}
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fl_sim.flower.private_messages import ProtocolError, enrolled_users, enrolment_request
from fl_sim.formats import printable
from fl_sim.strategies.primitives import sampling

log = logging.getLogger("flwr")  # shown by `flwr run --stream`

_MOST_TOLD = 3


class EnrolledNodes:
    """Hold the users of every node that has enrolled, by their numbers."""

    def __init__(self) -> None:
        self._users: dict[int, tuple[int, ...]] = {}
        self._owner: dict[int, int] = {}
        self._refused: dict[int, str] = {}

    @property
    def num_users(self) -> int:
        """Return the number of users of all enrolled nodes."""
        return len(self._owner)

    def enrol(self, grid: Grid, timeout: float) -> None:
        """Ask the nodes that have not been asked yet which users they hold.

        A node that fails to answer takes no part, and is asked again before the next round.

        Args:
            grid: the nodes.
            timeout: seconds to wait for the answers.

        Raises:
            ProtocolError: no node at all has enrolled; the message has the first one's reason.
        """
        present = set(grid.get_node_ids())
        self._forget(present)
        new = sorted(present - self._users.keys() - self._refused.keys())
        content = enrolment_request()
        reasons = list[str]()
        asked = [Message(content, node, MessageType.TRAIN) for node in new]
        for reply in sorted(self._answers(grid, asked, timeout), key=lambda reply: reply.metadata.src_node_id):
            if reason := self._settle(reply):
                reasons.append(reason)
        self._tell(reasons, len(new))
        if not self._users:
            raise ProtocolError(f"no node takes part: {(reasons or ['none is there'])[0]}")

    def add(self, node: int, users: Iterable[int]) -> str | None:
        """Add a node with its users; return why not, if another node has named one of them."""
        users = tuple(users)
        other = next((self._owner[user] for user in users if user in self._owner), None)
        if other is not None:
            return f"node {node} names a user of node {other}"
        self._users[node] = users
        self._owner |= dict.fromkeys(users, node)
        return None

    def sampled(self, seed: int, server_round: int, sampling_rate: float) -> dict[int, tuple[int, ...]]:
        """Return the sampled users of every node that has any, in the order of the smallest number of its users.

        Each user is included with probability ``sampling_rate``, a function of seed, round and the user's number.
        """
        numbers = np.array(sorted(self._owner), dtype=np.int64)
        included = numbers[sampling.sampled_numbers(seed, server_round, numbers, sampling_rate)]
        by_node: dict[int, list[int]] = {}
        for number in included.tolist():
            by_node.setdefault(self._owner[number], []).append(number)
        return {node: tuple(users) for node, users in by_node.items()}

    def _answers(self, grid: Grid, asked: list[Message], timeout: float) -> list[Message]:
        return list(grid.send_and_receive(asked, timeout=timeout)) if asked else []

    def _settle(self, reply: Message) -> str | None:
        """Take in a node's answer; return why it does not enrol, or None."""
        node = reply.metadata.src_node_id
        if reply.has_error():
            return f"node {node} did not enrol: {printable(reply.error.reason or 'no reason given')}"
        try:
            reason = self.add(node, enrolled_users(reply))
        except ProtocolError as error:
            reason = f"node {node}: {error}"
        if reason is not None:
            self._refused[node] = reason
        return reason

    def _forget(self, present: set[int]) -> None:
        """Forget nodes that are gone, so that one that comes back under another id can take their place."""
        gone = self._users.keys() - present
        for node in gone:
            for user in self._users.pop(node):
                del self._owner[user]
        if gone or self._refused.keys() - present:
            self._refused.clear()  # whom a node named that is gone, another one may name

    @staticmethod
    def _tell(reasons: list[str], new: int) -> None:
        for reason in reasons[:_MOST_TOLD]:
            log.warning("fl-sim: %s; it takes no part", reason)
        if len(reasons) > _MOST_TOLD:
            log.warning("fl-sim: and %d more of %d nodes take no part", len(reasons) - _MOST_TOLD, new)
