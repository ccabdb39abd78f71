"""Requests, replies and numbers that server and nodes exchange."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fl_sim.flower.private_messages import (
    RECORD,
    VERSION,
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
