"""Which node has which users: a user decides about nobody else's part, in whatever order nodes come and go."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import pytest
from flwr.app import Error, Message, RecordDict

from fl_sim.engines.grids import AttendedGrid
from fl_sim.flower.enrolled_nodes import EnrolledNodes
from fl_sim.flower.private_messages import ProtocolError, enrolment_reply
from tests.fl_sim.flower.apps import NodesHere, as_task

TWICE = 3  # the user whom two nodes name


class Named(NodesHere):
    """Nodes that name users by their numbers."""

    def __init__(self, users: dict[int, tuple[int, ...]]) -> None:
        super().__init__({})
        self.users = users
        self.asked: list[int] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(self.users)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        for message in messages:
            node = message.metadata.dst_node_id
            self.asked.append(node)
            message.metadata.__dict__["_message_id"] = f"{node}"
            yield Message(enrolment_reply(list(self.users[node])), reply_to=message)


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    with as_task():
        yield


def _orders() -> Iterator[list[list[int]]]:
    """Yield who is there in each of four rounds: nodes join in any order, one leaves and comes back."""
    for first, second, third in itertools.permutations((1, 2, 5)):
        yield [[first], [first, second], [first, second, third], [second, third]]
        yield [[first, second, third], [second, third], [third], [first, second, third]]


@pytest.mark.parametrize("order", list(_orders()), ids=str)
def test_with_and_without_a_user_whom_two_nodes_name_all_others_are_the_same(order: list[list[int]]) -> None:
    holders = {1: (10, 11, TWICE), 2: (TWICE, 20, 21, 22), 5: (50,)}
    without = {node: tuple(user for user in users if user != TWICE) for node, users in holders.items()}
    both = [(EnrolledNodes(), Named({}), named) for named in (holders, without)]
    for server_round, present in enumerate(order, start=1):
        cohorts, enrolled = [], []
        for nodes, grid, named in both:
            grid.users = {node: named[node] for node in present}
            nodes.enrol(grid, timeout=5)
            for rate in (1.0, 0.5):
                sampled = nodes.sampled(0, server_round, rate)
                cohorts.append({node: [u for u in users if u != TWICE] for node, users in sampled.items()})
            enrolled.append(nodes.num_users)
        assert [{node: users for node, users in cohort.items() if users} for cohort in cohorts[:2]] == [
            {node: users for node, users in cohort.items() if users} for cohort in cohorts[2:]
        ]
        assert enrolled[0] - enrolled[1] == any(TWICE in holders[node] for node in present)


def test_a_user_is_of_the_first_node_that_names_it_and_of_the_next_when_that_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes, grid = EnrolledNodes(), Named({1: (10, TWICE), 2: (TWICE, 20)})
    nodes.enrol(grid, timeout=5)
    assert "node 2 names 1 of other nodes' users, who count there alone" in caplog.text
    assert nodes.sampled(0, 1, 1.0) == {1: (TWICE, 10), 2: (20,)}
    grid.users = {2: (TWICE, 20)}
    nodes.enrol(grid, timeout=5)
    assert nodes.sampled(0, 2, 1.0) == {2: (TWICE, 20)}
    grid.users = {1: (10, TWICE), 2: (TWICE, 20)}
    nodes.enrol(grid, timeout=5)
    assert nodes.sampled(0, 3, 1.0) == {2: (TWICE, 20), 1: (10,)}
    assert grid.asked == [1, 2, 1]  # each node once, and again when it comes back
    grid.users |= {5: (50,)}
    nodes.enrol(grid, timeout=5)
    del grid.users[5]
    nodes.enrol(grid, timeout=5)  # a node of others that leaves moves nobody
    assert nodes.sampled(0, 4, 1.0) == {2: (TWICE, 20), 1: (10,)}


def test_a_node_whose_users_are_all_of_others_still_enrols() -> None:
    nodes, grid = EnrolledNodes(), Named({1: (TWICE,), 2: (TWICE,)})
    nodes.enrol(grid, timeout=5)
    grid.users = {2: (TWICE,)}
    nodes.enrol(grid, timeout=5)
    assert nodes.sampled(0, 1, 1.0) == {2: (TWICE,)}


def test_every_round_draws_another_cohort_by_round_and_number() -> None:
    nodes = EnrolledNodes()
    for number in range(200):
        nodes.add(1000 + number, (number,))
    cohorts = {k: {u for users in nodes.sampled(7, k, 0.3).values() for u in users} for k in range(1, 21)}
    assert len({frozenset(cohort) for cohort in cohorts.values()}) == 20
    grouped = EnrolledNodes()
    grouped.add(1, range(200))
    assert {k: set(grouped.sampled(7, k, 0.3)[1]) for k in cohorts} == cohorts


class Unable(NodesHere):
    """Nodes of which one enrols; ``failing`` ones answer an error, ``silent`` not at all, ``bare`` without the mod."""

    def __init__(self, failing: Iterable[int] = (), silent: Iterable[int] = (), bare: Iterable[int] = ()) -> None:
        self.failing, self.silent, self.bare = set(failing), set(silent), set(bare)
        ids = {1} | self.failing | self.silent | self.bare
        super().__init__(dict.fromkeys(ids, (None, {})))  # type: ignore[arg-type]

    def _reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if node in self.failing:
            return Message(Error(2, "no user-id"), reply_to=message)
        return Message(RecordDict() if node in self.bare else enrolment_reply([10 * node]), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        heard = [one for one in message_ids if self._waiting[one].metadata.dst_node_id not in self.silent]
        return super().pull_messages(heard)

    def asked(self, node: int) -> int:
        return sum(message.metadata.dst_node_id == node for message in self.sent)


def test_a_node_that_fails_to_answer_is_asked_again_and_one_without_the_mod_is_not() -> None:
    nodes, grid = EnrolledNodes(), Unable(failing={2}, bare={3})
    nodes.enrol(grid, timeout=5)
    grid.failing.clear()
    nodes.enrol(grid, timeout=5)
    assert [grid.asked(node) for node in (1, 2, 3)] == [1, 2, 1]
    assert nodes.sampled(0, 1, 1.0) == {1: (10,), 2: (20,)}


@pytest.mark.parametrize(("failing", "silent"), [({2}, set()), (set(), {2})], ids=["failing", "silent"])
def test_a_bad_node_alone_ends_no_round_and_is_asked_three_times(
    failing: set[int], silent: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    nodes, here = EnrolledNodes(), Unable(failing, silent)
    grid = AttendedGrid(here)
    for server_round in range(1, 6):
        nodes.enrol(grid, timeout=0.01)
        assert nodes.sampled(0, server_round, 1.0) == {1: (10,)}
    assert (here.asked(1), here.asked(2)) == (1, 3)
    assert "node 2" in caplog.text
    assert caplog.text.count("it takes no part") == 3
    del here.nodes[2]
    nodes.enrol(grid, timeout=0.01)
    here.nodes[2] = here.nodes[1]
    nodes.enrol(grid, timeout=0.01)
    assert here.asked(2) == 4  # one that comes back is another one


@pytest.mark.parametrize(
    ("failing", "silent", "reason"),
    [({1}, set(), "node 1 did not enrol: no user-id"), (set(), {1}, "node 1 gave no answer within 0.01 seconds")],
)
def test_a_run_whose_nodes_all_fail_to_enrol_ends_with_the_reason_of_one(
    failing: set[int], silent: set[int], reason: str
) -> None:
    nodes, grid = EnrolledNodes(), AttendedGrid(Unable(failing, silent))
    for times in ("", "", ", 3 times", ", 3 times"):
        with pytest.raises(ProtocolError) as ended:
            nodes.enrol(grid, timeout=0.01)
        assert f"{ended.value}" == f"no node takes part: {reason}{times}"


def test_no_node_at_all_ends_the_run() -> None:
    with pytest.raises(ProtocolError, match="no node takes part: none is there"):
        EnrolledNodes().enrol(Named({}), timeout=5)


def test_a_run_in_which_nobody_is_enrolled_is_refused_until_there_was_somebody() -> None:
    nodes, grid = EnrolledNodes(), Named({1: (), 2: ()})
    with pytest.raises(ProtocolError, match="nobody is enrolled: the users of 2 nodes are none"):
        nodes.enrol(grid, timeout=5)
    grid.users[3] = (30,)
    nodes.enrol(grid, timeout=5)
    del grid.users[3]
    nodes.enrol(grid, timeout=5)  # whoever leaves ends no training
    assert nodes.num_users == 0
