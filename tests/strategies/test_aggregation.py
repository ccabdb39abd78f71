"""The server's side of a round on a federation of given vectors: sum, noise once, public denominator, nothing else."""

import itertools
import math
import tracemalloc
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fl_sim.engines.engine import InlineGrid, _identity
from fl_sim.strategies.aggregation import BoundedSumStrategy, Federation, OrderedSum, partition_users
from fl_sim.strategies.messages import TrainReply, TrainRequest, runs_of, vector_to_arrays
from fl_sim.strategies.postprocessing import ServerOptimizerConfig
from fl_sim.strategies.primitives import sampling
from tests.strategies.federation import is_gaussian_of, ones, plan, run_rounds, strategy_of, user_ids, zeros


def test_the_sum_is_divided_by_the_public_expected_cohort() -> None:
    # 7 of 10 enrolled users hold data and are sampled at 0.5: the denominator is 5, whoever came.
    models, strategy = run_rounds(plan(q_u=0.5, population=10), users=7, size=1)
    assert 0 < strategy.tally.cohort_users < 7
    assert models[0][0] == pytest.approx(0.5 * strategy.tally.cohort_users / 5)


@pytest.mark.parametrize("nodes", [1, 2, 5, 10, 13])
def test_the_number_of_nodes_does_not_matter(nodes: int) -> None:
    reference, _ = run_rounds(plan(q_u=0.4, noise_multiplier=1.0), nodes=1, rounds=4)
    models, _ = run_rounds(plan(q_u=0.4, noise_multiplier=1.0), nodes=nodes, rounds=4)
    np.testing.assert_allclose(models, reference, rtol=1e-6)


def test_every_sampled_user_is_asked_exactly_once_and_nobody_else() -> None:
    """In every round the users of its own cohort, and for the entities and sentences of its own seed."""
    asked: dict[int, list[np.ndarray]] = {1: [], 2: [], 3: []}

    def answer(request: TrainRequest, users: np.ndarray) -> TrainReply:
        asked[request.server_round].append(users)
        assert request.round_seed == sampling.round_seed(0, request.server_round)
        return ones(request, users)

    run_rounds(plan(q_u=0.5), users=50, nodes=7, answer=answer, rounds=3)
    for server_round, users in asked.items():
        cohort = sampling.sample_users(0, server_round, 50, 0.5)
        np.testing.assert_array_equal(np.sort(np.concatenate(users)), cohort)


def noise_of_zero_rounds(rounds: int, size: int = 2_000, **changes: float) -> np.ndarray:
    """The released sums of rounds in which nobody moves the model, (rounds, size)."""
    privacy = plan(population=10, **changes)
    models, _ = run_rounds(privacy, size=size, rounds=rounds, answer=zeros)
    return np.diff(np.vstack([np.zeros(size), models]), axis=0) * privacy.mechanism.expected_cohort


def test_the_requests_of_a_round_share_the_model() -> None:
    """Whoever sends them can tell that it is the same, and send it once."""
    shared = list[int]()

    class Grid(InlineGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            requests = list(messages)
            shared.append(len({id(request.content["arrays"]["vector"]) for request in requests}))
            assert len(requests) == 5
            return super().push_messages(requests)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fl_sim.engines.engine.InlineGrid", Grid)
        run_rounds(plan(rounds=2), nodes=5, rounds=2)
    assert shared == [1, 1]


def test_a_round_of_zero_updates_releases_gaussian_noise_of_the_stated_scale() -> None:
    noise = noise_of_zero_rounds(10, noise_multiplier=2.0, clip_norm=0.5, user_cap=3.0)
    std = 2.0 * 3.0 * 0.5  # z · ŵ · c
    assert is_gaussian_of(std, noise, level=1e-4)
    for wrong in (0.95, 1.05, 0.5, 2.0):
        assert not is_gaussian_of(std * wrong, noise, level=1e-4)
    assert not is_gaussian_of(std, np.zeros_like(noise))


def test_noise_is_independent_across_coordinates_and_rounds() -> None:
    noise = noise_of_zero_rounds(20, size=500, noise_multiplier=1.0)
    between_rounds = np.corrcoef(noise)[np.triu_indices(20, 1)]
    assert np.abs(between_rounds).max() < 5 / np.sqrt(500)
    neighbours = np.corrcoef(noise[:, :-1].ravel(), noise[:, 1:].ravel())[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(noise.size)


def test_seeded_noise_is_that_of_the_stream_that_the_ledger_names() -> None:
    """A round that is repeated with another sum must not have the noise of the first."""
    releases = [
        run_rounds(plan(noise_multiplier=1.0), size=500, answer=zeros, before_release=lambda number, total, s=stream: s)
        for stream in ("", "other", "third", "other")
    ]
    first, other, third, again = (models[0] for models, _ in releases)
    np.testing.assert_array_equal(other, again)
    assert np.abs(np.corrcoef([first, other, third])[np.triu_indices(3, 1)]).max() < 5 / np.sqrt(500)


def test_seeded_noise_of_another_computation_is_independent() -> None:
    """Two runs with one seed and other settings must not share the noise that their sums' difference would cancel."""
    rounds = [
        run_rounds(plan(noise_multiplier=1.0), size=500, answer=zeros, noise_key=key)[0][0] for key in ("a", "b", "a")
    ]
    np.testing.assert_array_equal(rounds[0], rounds[2])
    assert abs(np.corrcoef(rounds[:2])[0, 1]) < 5 / np.sqrt(500)


def test_an_empty_cohort_still_releases_noise() -> None:
    models, strategy = run_rounds(plan(q_u=1e-9, noise_multiplier=1.0), size=100)
    assert strategy.tally.cohort_users == 0
    assert np.count_nonzero(models[0]) == 100


def test_noiseless_rounds_release_the_average_itself() -> None:
    privacy = plan(strategy="noiseless", clip_norm=np.inf, noise_multiplier=0.0)
    models, _ = run_rounds(privacy, users=10, size=1)
    assert models[0][0] == pytest.approx(0.5)


def crash(reply: TrainReply) -> TrainReply:
    raise RuntimeError("out of memory")


@pytest.mark.parametrize(
    "misbehave",
    [
        lambda reply: replace(reply, vector=np.full(4, reply.users, np.float32)),  # twice as long as allowed
        lambda reply: replace(reply, vector=np.full_like(reply.vector, np.nan)),
        lambda reply: replace(reply, vector=np.zeros(1, np.float32)),
        lambda reply: replace(reply, users=reply.users + 1),
        crash,
    ],
    ids=["too long", "not finite", "wrong shape", "wrong users", "crash"],
)
def test_a_bad_reply_counts_as_zero_and_the_others_still_count(misbehave: Callable) -> None:
    def answer(request: TrainRequest, users: np.ndarray) -> TrainReply:
        return misbehave(zeros(request, users)) if 0 in users else ones(request, users)

    models, strategy = run_rounds(plan(), users=10, nodes=5, size=4, answer=answer)
    expected = np.zeros(4)
    np.add.at(expected, np.arange(2, 10) % 4, 0.5)  # users 0 and 1 share the failed node
    np.testing.assert_allclose(models[0], expected / 10, atol=1e-9)
    assert strategy.tally.failed_nodes == 1


def test_contributions_that_were_not_finite_are_counted_over_nodes() -> None:
    _, strategy = run_rounds(plan(), nodes=5, answer=lambda request, users: replace(ones(request, users), nonfinite=1))
    assert strategy.tally.metrics()["nonfinite"] == 5


@pytest.mark.parametrize(("length", "failed"), [(1.0, 0), (1.01, 3), (1.3, 3)])
def test_a_sum_is_at_most_as_long_as_the_clips_of_its_users_together(length: float, failed: int) -> None:
    def answer(request: TrainRequest, users: np.ndarray) -> TrainReply:
        reply = zeros(request, users)
        reply.vector[-1] = 1.5 * length * len(users)
        return reply

    _, strategy = run_rounds(plan(clip_norm=0.5, user_cap=3.0), nodes=3, answer=answer)
    assert strategy.tally.failed_nodes == failed


def hostile_round(content: Callable[[TrainRequest, RecordDict], RecordDict]) -> BoundedSumStrategy:
    """The strategy after a round in which one of two nodes sends ``content`` of its request and its honest answer."""
    client, strategy = ClientApp(), strategy_of(plan(q_u=0.5))

    @client.train("bounded_sum")
    def train(message: Message, context: Context) -> Message:
        request = TrainRequest.from_message(message)
        honest = ones(request, user_ids(request)).to_record(request)
        return Message(content(request, honest) if context.node_config["partition-id"] else honest, reply_to=message)

    with _identity():
        strategy.start(InlineGrid(client, 2), vector_to_arrays(np.zeros(4, np.float32)), num_rounds=1)
    return strategy


def of_other_users(request: TrainRequest, honest: RecordDict) -> RecordDict:
    """As many users as were sampled on the node, but others."""
    unsampled = replace(request, users=request.users + 1)
    return ones(unsampled, user_ids(unsampled)).to_record(unsampled)


def of_the_round_before(request: TrainRequest, honest: RecordDict) -> RecordDict:
    return ones(request, user_ids(request)).to_record(replace(request, server_round=0))


def with_record(name: str, record_of: Callable) -> Callable[[TrainRequest, RecordDict], RecordDict]:
    def content(request: TrainRequest, honest: RecordDict) -> RecordDict:
        honest[name] = record_of(honest[name])
        return honest

    return content


def with_metrics(**changes: float | list[int]) -> Callable:
    return with_record("metrics", lambda honest: MetricRecord({**honest, **changes}))


def with_array(array: Array) -> Callable:
    return with_record("arrays", lambda honest: ArrayRecord({"vector": array}))


HEAD = b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999,)}"
LIES = b"\x93NUMPY\x01\x00" + len(HEAD).to_bytes(2, "little") + HEAD


@pytest.mark.parametrize(
    "content",
    [
        of_other_users,
        of_the_round_before,
        lambda request, honest: RecordDict({name: honest[name] for name in ("arrays", "metrics")}),
        with_metrics(sentences=[1, 2]),
        with_metrics(loss_sum=math.nan),
        with_array(Array(np.zeros(4, np.complex64))),
        with_array(Array("float32", (4,), "numpy.ndarray", LIES)),
    ],
    ids=["other users", "round before", "of nobody", "counts", "loss", "type", "lies"],
)
def test_a_reply_that_is_no_answer_to_the_request_is_rejected_and_counted(content: Callable) -> None:
    honest, hostile = hostile_round(lambda request, honest: honest), hostile_round(content)
    assert (honest.tally.failed_nodes, hostile.tally.failed_nodes) == (0, 1)
    assert 0 < hostile.tally.cohort_sentences < honest.tally.cohort_sentences
    assert 0 < hostile.tally.update_norm < honest.tally.update_norm


def test_a_node_that_answers_twice_or_unasked_is_counted_once() -> None:
    strategy, client = strategy_of(plan()), ClientApp()

    @client.train("bounded_sum")
    def train(message: Message, context: Context) -> Message:
        request = TrainRequest.from_message(message)
        return Message(ones(request, user_ids(request)).to_record(request), reply_to=message)

    with _identity():
        grid, start = InlineGrid(client, 2), vector_to_arrays(np.zeros(4, np.float32))

        def answers() -> list[Message]:
            """Begin the round anew, and answer it: aggregation takes the arrays out of a reply."""
            return list(grid.send_and_receive(strategy.configure_train(1, start, ConfigRecord(), grid)))

        strategy.aggregate_train(1, answers())
        once = strategy.tally
        again = answers()[0]
        strategy.aggregate_train(1, [*answers(), again])
        assert strategy.tally.update_norm == once.update_norm
        assert strategy.tally.failed_nodes == 1
        replies = answers()
        del strategy._open.asked[replies[1].metadata.src_node_id]
        strategy.aggregate_train(1, replies)
        assert strategy.tally.update_norm < once.update_norm
        strategy.aggregate_train(1, answers()[:1])  # the other node is silent
        assert strategy.tally.failed_nodes == 1
    assert strategy.tally.update_norm < once.update_norm


@pytest.mark.parametrize(
    ("load", "nodes"),
    [([1] * 10, 3), ([100, 1, 1, 1], 3), ([1, 1, 1, 100], 3), ([5], 4), ([0, 0, 0], 2), ([3, 1, 2], 3), ([1] * 7, 7)],
)
def test_partition_covers_every_user_once(load: list[int], nodes: int) -> None:
    shards = partition_users(np.array(load), nodes)
    assert len(shards) == min(nodes, len(load))
    assert shards[0][0] == 0
    assert shards[-1][1] == len(load)
    assert all(first < stop for first, stop in shards)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(shards))


def test_nodes_get_equal_loads_if_these_are_known() -> None:
    grid = SimpleNamespace(get_node_ids=lambda: [3, 4])
    sentences, load = np.array([9, 1, 1, 1]), np.array([1.0, 1.0, 1.0, 1.0])
    for given, stop in ((None, 1), (load, 2)):
        shards = Federation("{}", sentences, 0, load=given).shards(grid)
        assert [(shard.first, shard.stop) for shard in shards] == [(0, stop), (stop, 4)]


def test_partition_balances_sentences() -> None:
    load = np.random.default_rng(0).integers(1, 40, 1000)
    sums = [load[first:stop].sum() for first, stop in partition_users(load, 8)]
    assert max(sums) < 1.05 * load.sum() / 8


@pytest.mark.parametrize(
    ("ids", "runs"), [([], []), ([3], [[3, 4]]), ([0, 1, 2], [[0, 3]]), ([0, 2, 3, 7], [[0, 1], [2, 4], [7, 8]])]
)
def test_runs_of_ids(ids: list[int], runs: list[list[int]]) -> None:
    np.testing.assert_array_equal(runs_of(np.array(ids, dtype=np.int64)), np.array(runs).reshape(-1, 2))


def test_the_server_holds_at_most_eight_times_the_model() -> None:
    """The model is float32; numpy reports its memory to tracemalloc."""
    size, peaks = 1 << 20, []
    given = np.full(size, 1e-6, np.float32)

    def answer(request: TrainRequest, users: np.ndarray) -> TrainReply:
        return TrainReply(given, len(users), len(users), 0, 0, 0.0)

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        run_rounds(
            plan(noise_multiplier=1.0, rounds=2),
            size=size,
            answer=answer,
            rounds=2,
            optimizer=ServerOptimizerConfig(),
            observe=lambda strategy: peaks.append(tracemalloc.get_traced_memory()[1] - before),
        )
    finally:
        tracemalloc.stop()
    collected = 3  # the initial model and those of both rounds, which run_rounds keeps
    assert max(peaks) / (4 * size) < 8 + collected


# The order of arrival changes no bit of a sum, and a vector that was added is not kept

VECTORS = {
    node: np.random.default_rng(node).normal(scale=10.0**node, size=50).astype(np.float32) for node in (2, 3, 5, 9)
}


def summed(order: tuple[int, ...], silent: frozenset[int] = frozenset()) -> bytes:
    total = OrderedSum(VECTORS, 50)
    for node in order:
        if node not in silent:
            total.settle(node, VECTORS[node])
    return total.finish().tobytes()


@pytest.mark.parametrize("silent", [(), (2,), (5,), (2, 9)])
def test_every_order_of_arrival_gives_the_same_bits(silent: tuple[int, ...]) -> None:
    expected = np.zeros(50)
    for node in sorted(VECTORS):
        if node not in silent:
            expected += VECTORS[node]
    assert {summed(order, frozenset(silent)) for order in itertools.permutations(VECTORS)} == {expected.tobytes()}


def test_a_node_that_counts_as_zero_keeps_nobody_waiting() -> None:
    total = OrderedSum([1, 2], size=1)
    early = np.ones(1, np.float32)
    kept = weakref.ref(early)
    total.settle(2, early)
    del early
    assert kept() is not None  # it waits for node 1
    total.settle(1, None)
    assert kept() is None  # it was added and forgotten
    np.testing.assert_array_equal(total.finish(), [1.0])
