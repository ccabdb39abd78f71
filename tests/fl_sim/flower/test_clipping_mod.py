"""What a node sends: bounded sums of its own users, and of their failures, metrics and data nothing else."""

from __future__ import annotations

import contextlib
import math
import random
import runpy
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict

from fl_sim import stop_signals
from fl_sim.engines.grids import context_of
from fl_sim.flower import UserLevelClipping
from fl_sim.flower.clipping_mod import bounded, only_user, time_limit
from fl_sim.flower.private_messages import (
    APP_METRICS,
    ENROLMENT,
    EVALUATION,
    RECORD,
    PrivateRound,
    request_part,
    user_number,
    user_seed,
)
from fl_sim.strategies.messages import TrainReply
from fl_sim.strategies.primitives.limits import PrivacyError
from tests.fl_sim.flower.apps import Train, as_task, client, model, moved

SIZE = 5
SECRET = "could not convert 'John Smith, HIV+'"


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    with as_task():
        yield


def _users(*names: str) -> Callable[[Context], list[str]]:
    return lambda context: list(names)


def _answer(
    train: Train, mod: UserLevelClipping, sampled: list[str], *, metrics: bool = False, clip_norm: float = 1.0
) -> Message:
    """The node's reply to a round with these users."""
    numbers = tuple(map(user_number, sampled))
    seeds = tuple(user_seed(b"key", 1, number) for number in numbers)
    record = PrivateRound(1, numbers, seeds, clip_norm, metrics).record()
    content = RecordDict({"arrays": model(SIZE), "config": ConfigRecord({"lr": 0.5}), RECORD: record})
    return _asked(train, mod, content)


def _asked(train: Train, mod: UserLevelClipping, content: RecordDict, kind: str = "train", **config: Any) -> Message:
    message = Message(content, 7, kind)
    message.metadata.__dict__["_message_id"] = "7"
    return client(train, mod)(message, context_of(7, {"user-id": "a"} | config))


def _read(reply: Message) -> TrainReply:
    assert not reply.has_error(), reply.error
    return TrainReply.from_message(reply)


def _sum(reply: Message) -> np.ndarray:
    return _read(reply).vector[:SIZE].astype(np.float64)


def _own(message: Message, context: Context) -> Message:
    """Move the coordinate that the user's name tells."""
    return moved(message, np.eye(SIZE)[int(message.content["config"]["user-id"])] * 0.5)


def test_a_clipped_update_is_within_the_bound_as_float32_too() -> None:
    draw = np.random.default_rng(0)
    for size in (3, 40, 700):
        for share in (1 - 1e-9, 1 + 1e-9, 1 + 2e-4, 1.5, 1e5):
            for _ in range(20):
                update = draw.normal(size=size)
                update *= share / np.linalg.norm(update)
                kept, longer = bounded(update, 1.0)
                assert np.linalg.norm(kept.astype(np.float32).astype(np.float64)) <= 1.0
                assert np.linalg.norm(kept) == pytest.approx(min(share, 1.0), rel=1e-6)
                assert longer or share < 1


def test_a_node_sends_the_sum_of_its_sampled_users_and_of_nobody_else() -> None:
    mod = UserLevelClipping(users=_users("0", "1", "2", "3"))
    sent = _read(_answer(_own, mod, ["3", "1"]))
    assert sent.vector.tolist() == [0, 0.5, 0, 0.5, 0, 0]
    assert (sent.users, sent.sentences, sent.clipped, sent.nonfinite) == (2, 2, 0, 0)
    far = _read(_answer(lambda m, c: moved(m, np.full(SIZE, 9.0)), mod, ["3", "1"], clip_norm=0.25))
    assert np.linalg.norm(far.vector) == pytest.approx(0.5, rel=1e-6)
    assert far.clipped == 2


def test_the_app_sees_its_own_records_alone_and_every_user_a_copy() -> None:
    seen: list[dict[str, Any]] = []

    def spoiling(message: Message, context: Context) -> Message:
        assert set(message.content) == {"arrays", "config"}
        seen.append(dict(message.content["config"]))
        message.content["config"]["lr"] = 9.0
        message.content["config"]["mark"] = 1
        return _own(message, context)

    _answer(spoiling, UserLevelClipping(users=_users("0", "1", "2")), ["0", "2"])
    assert seen == [{"lr": 0.5, "user-id": "0"}, {"lr": 0.5, "user-id": "2"}]


def test_what_a_user_changes_in_message_and_context_is_forgotten() -> None:
    def spoiling(message: Message, context: Context) -> Message:
        history, start = message.content["config"]["history"], message.content["arrays"]["weight"]
        seen = (len(history), len(context.node_config), len(context.run_config), len(context.state), start.numpy()[0])
        reply = moved(message, np.eye(SIZE)[0] * (seen == (1, 1, 0, 0, 0)))
        history.append(1.0)
        start.data = ArrayRecord([np.full(SIZE, 9, np.float32)])["0"].data
        context.node_config["mark"] = context.run_config["mark"] = 1
        context.state["mark"] = ConfigRecord()
        return reply

    record = PrivateRound(1, (user_number("0"), user_number("2")), (b"a", b"b"), 1.0, False).record()
    config = ConfigRecord({"lr": 0.5, "history": [0.0]})
    content = RecordDict({"arrays": model(SIZE), "config": config, RECORD: record})
    sent = _asked(spoiling, UserLevelClipping(users=_users("0", "2")), content)
    assert _sum(sent) == pytest.approx([2, 0, 0, 0, 0], abs=1e-5)


def test_a_node_of_one_user_is_named_by_user_id_before_partition_id() -> None:
    assert only_user(context_of(1, {"partition-id": 4, "user-id": "ann"})) == ["ann"]
    assert only_user(context_of(1, {"partition-id": 4})) == ["4"]


def _raising(message: Message, context: Context) -> Message:
    raise ValueError(SECRET)


def _answering_an_error(message: Message, context: Context) -> Message:
    return Message(Error(2, SECRET), reply_to=message)


def _naming_an_array(message: Message, context: Context) -> Message:
    arrays = ArrayRecord({SECRET: next(iter(message.content["arrays"].values()))})
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


def _refusing(message: Message, context: Context) -> Message:
    raise PrivacyError(SECRET)


@pytest.mark.parametrize(
    "train", [_raising, _answering_an_error, _naming_an_array, _refusing], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("names", [None, ("a", "b")], ids=["one user", "several"])
def test_no_text_of_an_error_leaves_the_node(
    train: Train, names: tuple[str, ...] | None, caplog: pytest.LogCaptureFixture
) -> None:
    mod = UserLevelClipping(users=None if names is None else _users(*names))
    reply = _answer(train, mod, ["a"])
    assert reply.has_error()
    assert "John" not in reply.error.reason
    assert "John" in caplog.text


def test_no_text_of_an_enrolment_or_of_an_evaluation_leaves_the_node() -> None:
    def unreadable(context: Context) -> list[str]:
        raise ValueError(SECRET)

    reply = _asked(_own, UserLevelClipping(users=unreadable), RecordDict({RECORD: request_part(ENROLMENT)}))
    assert reply.error.reason == "ValueError (the node's log has its text)"
    mod = UserLevelClipping()
    message = Message(RecordDict({RECORD: request_part(EVALUATION)}), 7, "evaluate")
    message.metadata.__dict__["_message_id"] = "7"
    reply = mod(message, context_of(7, {"user-id": "a"}), _raising)
    assert "John" not in reply.error.reason


def _measuring(message: Message, context: Context) -> Message:
    return moved(message, np.zeros(SIZE), loss=0.25)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros(SIZE, np.int64), "an array of type int64, not of floats"),
        (np.zeros(SIZE + 1, np.float32), "a model of another shape"),
    ],
)
def test_a_model_of_another_type_is_told_from_one_of_another_shape(array: np.ndarray, said: str) -> None:
    def training(message: Message, context: Context) -> Message:
        arrays = {**message.content["arrays"], "weight": Array(array)}
        return Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=message)

    assert _answer(training, UserLevelClipping(), ["a"]).error.reason == f"the train function returned {said}"


@pytest.mark.parametrize("names", [None, ("a", "b", "c")], ids=["one user", "several"])
def test_metrics_leave_a_node_only_if_they_are_asked_for(names: tuple[str, ...] | None) -> None:
    mod = UserLevelClipping(users=None if names is None else _users(*names))
    sampled = list(names or ("a",))
    closed = _answer(_measuring, mod, sampled)
    assert APP_METRICS not in closed.content
    assert "loss" not in {name for record in closed.content.metric_records.values() for name in record}
    forwarded = _answer(_measuring, mod, sampled, metrics=True)
    assert dict(forwarded.content[APP_METRICS]) == {"num-examples": len(sampled), "loss": 0.25 * len(sampled)}


def test_an_app_that_draws_from_global_generators_couples_no_users() -> None:
    def drawing(message: Message, context: Context) -> Message:
        draws = [random.gauss(0, 1), np.random.normal(), float(torch.randn(()))]  # noqa: NPY002
        by[message.content["config"]["user-id"]] = draws
        return moved(message, np.zeros(SIZE))

    names = [f"{k}" for k in range(51)]
    everyone: dict[str, list[float]] = {}
    others: dict[str, list[float]] = {}
    by = everyone
    _answer(drawing, UserLevelClipping(users=_users(*names)), names)
    by = others
    _answer(drawing, UserLevelClipping(users=_users(*names[1:])), names[1:])
    assert everyone.pop("0") not in list(everyone.values())
    assert everyone == others
    assert len({tuple(draws) for draws in others.values()}) == 50


def test_a_user_who_is_too_slow_counts_as_zero_alone() -> None:
    def slow(message: Message, context: Context) -> Message:
        if message.content["config"]["user-id"] == "1":
            time.sleep(20)
        return _own(message, context)

    began = time.monotonic()
    sent = _read(_answer(slow, UserLevelClipping(users=_users("0", "1", "2"), user_seconds=2), ["0", "1", "2"]))
    assert (sent.vector.tolist(), sent.nonfinite) == ([0.5, 0, 0.5, 0, 0, 0], 1)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("seconds", [0, -1.0, math.inf, math.nan])
def test_an_impossible_time_limit_is_refused(seconds: float) -> None:
    with pytest.raises(PrivacyError, match=f"user_seconds is {seconds}; allowed: a number above 0"):
        UserLevelClipping(users=_users("a"), user_seconds=seconds)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 1}, "the server speaks version 1 of the private round, not 2"),
        ({"users": ["x"]}, "the request of the private round is malformed"),
        ({"seeds": [b"a", b"b"]}, "the request of the private round is malformed"),
    ],
)
def test_a_request_of_another_version_or_shape_is_refused(change: dict[str, Any], reason: str) -> None:
    record = ConfigRecord(dict(PrivateRound(1, (user_number("a"),), (b"a",), 1.0, False).record()) | change)
    content = RecordDict({"arrays": model(SIZE), "config": ConfigRecord(), RECORD: record})
    assert _asked(_own, UserLevelClipping(), content).error.reason == reason


# One user in a process


def _stubborn(caught: type[BaseException]) -> None:
    with contextlib.suppress(caught):
        time.sleep(10)
    if caught is Exception:
        time.sleep(10)


def test_what_takes_too_long_is_interrupted_whatever_it_catches() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"took longer than 0.05 s"), time_limit(0.05):
        _stubborn(Exception)
    assert time.monotonic() - began < 10
    assert signal.getsignal(signal.SIGALRM) is handler


def test_a_thread_is_judged_at_its_end() -> None:
    found: list[BaseException] = []

    def run() -> None:
        try:
            with time_limit(0.01):
                time.sleep(0.05)
        except TimeoutError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(found) == 1


def test_no_signal_of_unix_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(signal, "setitimer")
    unix = {"SIGHUP", "SIGALRM"}
    monkeypatch.setattr(signal, "Signals", [number for number in signal.Signals if number.name not in unix])
    for name in unix:
        monkeypatch.delattr(signal, name)
    alarm = runpy.run_path(stop_signals.__file__)["alarm"]
    with alarm(0.001, KeyboardInterrupt):
        time.sleep(0.01)
