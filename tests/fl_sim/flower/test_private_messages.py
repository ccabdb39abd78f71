"""Requests, replies and numbers that server and nodes exchange."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fl_sim.flower.private_messages import (
    RECORD,
    VERSION,
    ArrayLayout,
    PrivateRound,
    ProtocolError,
    enrolled_users,
    user_number,
    user_seed,
)
from tests.fl_sim.flower.apps import as_task

ASKED = PrivateRound(server_round=2, users=(7, 9), seeds=(b"a", b"b"), clip_norm=1.5, forward_metrics=True)


@pytest.mark.parametrize("change", [{"server_round": 3}, {"users": (7,)}, {"users": (7, 8)}, {"clip_norm": 1.0}])
def test_another_request_has_another_identity(change: dict) -> None:
    assert replace(ASKED, **change).identity != ASKED.identity


def test_numbers_of_users_are_of_63_bits_and_none_is_that_of_another() -> None:
    numbers = np.array([user_number(f"user {k}") for k in range(20_000)])
    assert len(set(numbers.tolist())) == 20_000  # of 32 bits, a pair in 20
    assert numbers.min() >= 0
    assert all(0.4 < (numbers >> np.int64(bit) & 1).mean() < 0.6 for bit in range(63))


def test_a_name_that_is_not_utf8_has_a_number_too() -> None:
    names = [b"users/Andr\xe9".decode(errors="surrogateescape"), "users/Andr\xe9", "users/Andr?"]
    assert len({user_number(name) for name in names}) == 3


def test_the_seed_of_a_users_generators_is_of_run_round_and_user() -> None:
    seeds = [user_seed(key, number, user) for key in (b"k", b"l") for number in (1, 2) for user in (3, 4)]
    assert len(set(seeds)) == 8
    assert user_seed(b"k", 1, 11) != user_seed(b"k", 11, 1)
    assert {len(seed) for seed in seeds} == {16}


def _enrolment(content: bytes, version: int = VERSION) -> Message:
    with as_task():
        request = Message(RecordDict(), 7, "train")
        request.metadata.__dict__["_message_id"] = "7"
        record = ConfigRecord({"version": version, "users": content})
        return Message(RecordDict({RECORD: record}), reply_to=request)


@pytest.mark.parametrize(
    ("content", "version"),
    [
        (np.array([3, 3], "<u8").tobytes(), VERSION),
        (np.array([1 << 63], "<u8").tobytes(), VERSION),
        (b"abc", VERSION),
        (b"", VERSION + 1),
    ],
    ids=["twice", "too large", "cut", "version"],
)
def test_an_impossible_enrolment_is_refused(content: bytes, version: int) -> None:
    with pytest.raises(ProtocolError):
        enrolled_users(_enrolment(content, version))


# Arrays, in the order of their numbers


def model(scale: float) -> ArrayRecord:
    by_columns = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3) * scale)
    return ArrayRecord({"weight": Array(by_columns), "bias": Array(np.array(scale))})


def test_an_array_that_is_stored_by_columns_is_read_by_rows() -> None:
    layout = ArrayLayout.of(model(1.0))
    assert layout.vector(model(1.0)).tolist() == [0, 1, 2, 3, 4, 5, 1]
    back = layout.arrays(layout.vector(model(1.0)))
    assert np.array_equal(back["weight"].numpy(), model(1.0)["weight"].numpy())


def test_a_difference_is_taken_in_doubles() -> None:
    layout = ArrayLayout.of(model(1.0))
    apart = layout.difference(model(1.0), model(np.float32(0.1)))
    assert apart.dtype == np.float64
    assert apart[1] == 1.0 - np.float64(np.float32(0.1))  # in float32 it would be another number
    assert apart[1] != np.float32(1.0) - np.float32(0.1)


def test_a_model_of_another_layout_is_refused() -> None:
    layout = ArrayLayout.of(model(1.0))
    other = ArrayRecord({"weight": Array(np.zeros((3, 2), np.float32)), "bias": Array(np.array(1.0))})
    for refused in (lambda: layout.vector(other), lambda: layout.difference(other, model(1.0))):
        with pytest.raises(ValueError, match=r"array 'weight' of float32 \(3, 2\) in place of \(2, 3\)"):
            refused()
