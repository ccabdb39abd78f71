"""Nodes that lie in a live Flower run: the model moves by what the clip allows, and every lie is counted by kind."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fl_sim.clients import client_app as honest
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.engines import engine, simulation
from fl_sim.reporting.report import report_text
from fl_sim.reporting.run_facts import read_facts
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.aggregation import BoundedSumStrategy, partition_users
from fl_sim.strategies.messages import REJECTIONS, TRAIN_ACTION, TrainRequest, vector_to_arrays
from tests.e2e.small_runs import QUICK_TO_LOAD, USERS, configuration, model_of

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("no_plots")]

NODES, LIAR = 3, 1
USER_OF_THE_LIAR = 1  # on the second node of three, in the order of their ids
LEARNING_RATE, CAP, CLIP = 0.5, 2.0, 1.0
SLACK = 1 + 1e-3  # what the server allows a float32 norm beyond the bound
SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "engine__nodes": NODES,
    "privacy__q_u": 1.0,
    "privacy__q_s": 0.8,
    "privacy__clip_norm": CLIP,
    "privacy__user_cap": CAP,
    "server__optimizer": "sgd",
    "server__learning_rate": LEARNING_RATE,
    "evaluation__every": 100,
    "evaluation__max_sentences": 2,
    **QUICK_TO_LOAD,
}
Lie = Callable[..., RunFolder]


_earlier: dict[int, RecordDict] = {}
"""The reply of every node in the first round."""

honest_sums: dict[int, np.ndarray] = {}
"""The sum of the honest replies of each round, float64 (d,)."""

told: list[str] = []
"""The lies of the run under way, one a round from the second on."""


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
    return Message(RecordDict(dict(_earlier[reply.metadata.src_node_id])), reply_to=request)


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


LIES: dict[str, tuple[str, Callable[[Message, Message], Message]]] = {
    "NaN": ("not_finite", _vector(lambda v: np.full_like(v, np.nan))),
    "one infinity": ("not_finite", _vector(lambda v: np.where(np.arange(len(v)) == 3, np.inf, v).astype(np.float32))),
    "a norm of 10^12": ("too_large", _vector(lambda v: np.float32(1e12) * v / np.linalg.norm(v))),
    "a number less": ("wrong_shape", _vector(lambda v: v[:-1])),
    "doubles": ("malformed", _vector(lambda v: v.astype(np.float64))),
    "a header of a terabyte": ("malformed", _header_of_a_terabyte),
    "an empty record": ("malformed", _an_empty_record),
    "more users": ("wrong_shape", _count(users=999)),
    "a negative count": ("malformed", _count(clipped=-1)),
    "a replay": ("other_request", _of_the_first_round),
    "an answer for other users": ("other_request", _for_other_users),
    "the name of another node": ("impersonation", _for_another_node),
    "a crash": ("error", _crash),
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
    name = dict(enumerate(told, start=2)).get(server_round)
    is_the_liar = any(first <= USER_OF_THE_LIAR < stop for first, stop in request.users.tolist())
    return LIES[name][1](message, reply) if is_the_liar and name is not None else reply


@pytest.fixture(scope="module")
def allowed(corpus: Path) -> float:
    """Return the bound of the liar's users: the most that its reply may add to a sum."""
    first, stop = partition_users(Corpus.open(corpus).ownership("train").sentences_per_user, NODES)[LIAR]
    assert first <= USER_OF_THE_LIAR < stop
    return (stop - first) * CAP * CLIP


@pytest.fixture
def lie(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lie:
    """Return a function that runs three nodes, of which one tells these lies, one a round from the second on."""

    def run(*names: str) -> RunFolder:
        _earlier.clear()
        honest_sums.clear()
        monkeypatch.setattr(engine, "client_app", app)
        told[:] = names
        out = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        return simulation.run(configuration(corpus, out, **(SETTINGS | {"rounds": 1 + max(len(names), 1)})))

    return run


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Return the sums of accepted replies of all rounds, float64 (d,) each."""
    seen: list[np.ndarray] = []
    before = BoundedSumStrategy._sum

    def spied(self: BoundedSumStrategy, replies: Any) -> Any:
        total, votes = before(self, replies)
        seen.append(total.copy())  # noise is added in place
        return total, votes

    monkeypatch.setattr(BoundedSumStrategy, "_sum", spied)
    return seen


def test_every_lie_moves_its_round_within_the_clip_and_is_counted_by_its_kind(
    lie: Lie, allowed: float, sums: list[np.ndarray], caplog: pytest.LogCaptureFixture
) -> None:
    names = list(LIES)
    with caplog.at_level(logging.WARNING):
        run = lie(*names)
    rows = run.metrics()
    for number, name in enumerate(names, start=2):
        moved = float(np.linalg.norm(sums[number - 1] - honest_sums[number]))
        assert 0 < moved <= allowed * SLACK, name  # the liar's honest reply is missing, and nothing else
        row, kind = rows.iloc[number], LIES[name][0]
        assert (row["failed_nodes"], row[f"failed_{kind}"]) == (1, 1), name
        assert row["noise_norm"] > 0
    assert np.array_equal(sums[0], honest_sums[1])
    kinds = Counter(kind for kind, _ in LIES.values())
    assert (run.result or {})["failed_nodes"] == kinds
    text = " ".join(report_text(read_facts(run)).split())
    assert all(f"{count} for {REJECTIONS[kind]}" in text for kind, count in kinds.items())
    assert all(record.getMessage().isprintable() for record in caplog.records)


def test_a_lie_within_the_bound_is_believed_and_moves_no_more(
    lie: Lie, allowed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What no server can see: the liar sends its whole bound, against its users' own direction."""

    def against(vector: np.ndarray) -> np.ndarray:
        return (-allowed / np.linalg.norm(vector) * vector).astype(np.float32)

    monkeypatch.setitem(LIES, "the whole bound", ("", _vector(against)))
    honest, lied = lie(), lie("the whole bound")
    # Models are compared as the sums of updates that moved them: a step is η·sum / (q_u·N).
    distance = float(np.linalg.norm(model_of(honest).astype(np.float64) - model_of(lied)))
    assert allowed < distance / LEARNING_RATE * USERS <= 2 * allowed * SLACK
    for run in (honest, lied):
        assert (run.result or {})["failed_nodes"] == {}
