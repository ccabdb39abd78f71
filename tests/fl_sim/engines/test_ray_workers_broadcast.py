"""A round's model goes into Ray's object store once, however many nodes are asked."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict

from fl_sim.engines.engine import _identity
from fl_sim.engines.ray_workers import Broadcast
from fl_sim.strategies.messages import arrays_to_vector, vector_to_arrays

SIZE = 50_000


@pytest.fixture(autouse=True)
def identity() -> Iterator[None]:
    with _identity():
        yield


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Ray's object store; a handle is a position in it."""
    stored = list[np.ndarray]()
    monkeypatch.setattr("ray.get", lambda handle: stored[handle])
    return stored


def into(store: list[np.ndarray]) -> Broadcast:
    def put(vector: np.ndarray) -> int:
        store.append(vector)
        return len(store) - 1

    return Broadcast(put)


def request(arrays: ArrayRecord, node: int) -> Message:
    return Message(RecordDict({"arrays": arrays, "config": ConfigRecord({"node": node})}), node, "train")


def vector(seed: int, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def test_the_requests_of_a_round_share_one_copy_and_the_next_round_has_its_own(store: list[np.ndarray]) -> None:
    shared = into(store)
    for server_round in (1, 2):
        arrays = vector_to_arrays(vector(server_round))
        for node in range(2, 66):
            light = shared.lightened(request(arrays, node))
            assert len(pickle.dumps(light)) < 5_000
            there: Any = pickle.loads(pickle.dumps(light)).content
            assert np.array_equal(arrays_to_vector(there["arrays"]), vector(server_round))
            assert there["config"]["node"] == node
        assert len(store) == server_round
        assert len(shared._shared) == 1


def test_the_message_itself_small_arrays_and_errors_stay_as_they_are(store: list[np.ndarray]) -> None:
    shared = into(store)
    large, small = (request(vector_to_arrays(vector(0, size)), 2) for size in (SIZE, 10))
    data = large.content["arrays"]["vector"].data
    light = shared.lightened(large)
    assert large.content["arrays"]["vector"].data is data
    assert light.metadata.__dict__ == large.metadata.__dict__
    assert shared.lightened(small).content["arrays"]["vector"].data
    assert len(store) == 1
    failed = Message(Error(1, "lost"), reply_to=large)
    assert shared.lightened(failed) is failed
