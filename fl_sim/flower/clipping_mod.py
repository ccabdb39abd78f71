"""Bound what a user can change, on the node: the client's side of :class:`UserLevelDifferentialPrivacy`.

    from flwr.clientapp import ClientApp
    from fl_sim.flower import userlevelclipping_mod

    app = ClientApp(mods=[userlevelclipping_mod])

The app's train function stays as it is: it gets the model in the message and returns the model that it trained. The mod
sends the difference of the two, as one vector whose L2 norm over all parameters is at most the clip norm, and none of
the app's metrics. A request of another strategy is refused, so no unprotected update leaves a node by mistake.

What one user's training leaves behind, or how long it takes, must not change what another user of the process sends.

>>> update, was_longer = bounded(np.array([3.0, 4.0]), clip_norm=1.0)
>>> update.round(6), was_longer
(array([0.6, 0.8]), True)
>>> bounded(np.array([np.nan, 1.0]), clip_norm=1.0)
(None, True)
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

from fl_sim.flower import private_messages
from fl_sim.flower.private_messages import ArrayLayout, PrivateRound
from fl_sim.formats import reason_of
from fl_sim.global_generators import own_generators
from fl_sim.stop_signals import alarm
from fl_sim.strategies.messages import TrainReply
from fl_sim.strategies.primitives.limits import require


class _Late(BaseException):
    """End a call; an app that catches every Exception does not catch it."""


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise TimeoutError if what runs under the limit takes longer.

    In a process's main thread it is interrupted, as soon as it is Python's turn: a single call into compiled code, such
    as one large product, runs to its end. In another thread, or on Windows, it is not interrupted, and raises at its
    end.

    Args:
        seconds: None for no limit.
    """
    if seconds is None:
        yield
        return
    began, ended = time.monotonic(), False
    try:
        with alarm(seconds, _Late):
            yield
    except _Late:
        ended = True
    if ended or time.monotonic() - began >= seconds:
        raise TimeoutError(f"the training of a user took longer than {seconds:g} s")


log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]
Train = Callable[[Message, Context], Message]
Users = Callable[[Context], Sequence[str]]

USER_KEYS = ("user-id", "partition-id")
"""Keys of a node's configuration that name its only user, the first one that is set."""

USER_SECONDS = 60.0
"""The time limit of a user where a node holds several, unless it states another one."""

_CLIENT_APP_RAISED = 2  # flwr.common.constant.ErrorCode
_reason = functools.partial(reason_of, quoted=(private_messages.ProtocolError,), named=False)
_WHOLE = {
    "bool",
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
}  # types, as numpy has them
_ROUNDED = 1 - 2**-23  # the share of C to which float64 vectors are clipped, so that their float32 stay within C


def only_user(context: Context) -> list[str]:
    """Return the identity of a node's only user: ``user-id`` of its configuration, or else ``partition-id``.

    Raises:
        ProtocolError: the node's configuration has neither.
    """
    for key in USER_KEYS:
        if key in context.node_config:
            return [f"{context.node_config[key]}"]
    raise private_messages.ProtocolError(
        f"the node has neither {' nor '.join(USER_KEYS)}; allowed: --node-config \"user-id='NAME'\", another one for "
        "every user"
    )


class UserLevelClipping:
    """Clip the update of every sampled user of a node and send their sum.

    Guarantee: adding or removing a user changes what the node sends by a vector of norm at most C. A user whose
    training fails, or is too slow, counts as zero, and no other user does for that. Assumption: the app's train
    function reads the data of the user that it is called for, and no other user's, and keeps nothing of it; with
    several users it finds ``context.state`` empty. The global generators of Python, numpy and torch are seeded for
    every user and set back afterwards; generators that the app keeps itself would couple its users.

    Args:
        users: returns the identities of the users of a node, given its context; None for a node with one user
            (:func:`only_user`). With several users the train function is called once for each one that was sampled, and
            finds the identity as ``user-id`` in the message's configuration record.
        user_seconds: a user whose training takes longer counts as zero (:func:`~fl_sim.flower.clipping_mod.time_limit`
            says what cannot be interrupted). None for :data:`USER_SECONDS` with several users, and no limit with one.

    Raises:
        PrivacyError: ``user_seconds`` is not above 0.
    """

    def __init__(self, users: Users | None = None, user_seconds: float | None = None) -> None:
        limited = user_seconds is None or 0 < user_seconds < math.inf
        require(limited, "user_seconds", user_seconds, "a number above 0, or None")
        self._users = users
        self._seconds = USER_SECONDS if user_seconds is None and users is not None else user_seconds
        if users is not None:
            importlib.import_module("torch")  # before the first user: its generator is seeded only where it is there

    def __call__(self, message: Message, context: Context, call_next: Train) -> Message:
        """Answer a request of :class:`UserLevelDifferentialPrivacy`; any failure becomes one line for the server."""
        try:
            return self._answer(message, context, call_next)
        except Exception as error:  # the server must learn of any failure, to count the node as zero, but not its text
            log.warning("node %d failed", context.node_id, exc_info=True)
            return Message(Error(_CLIENT_APP_RAISED, _reason(error)), reply_to=message)

    def _answer(self, message: Message, context: Context, call_next: Train) -> Message:
        record = message.content.config_records.get(private_messages.RECORD)
        if record is None:
            raise private_messages.ProtocolError(
                "userlevelclipping_mod got a request without a private round; wrap the ServerApp's strategy in "
                "UserLevelDifferentialPrivacy"
            )
        names = only_user(context) if self._users is None else [str(name) for name in self._users(context)]
        identities = {private_messages.user_number(name): name for name in names}
        purpose = private_messages.purpose_of(record)
        if purpose == private_messages.ENROLMENT:
            return Message(private_messages.enrolment_reply(list(identities)), reply_to=message)
        del message.content[private_messages.RECORD]  # the app sees its own records alone
        if purpose == private_messages.EVALUATION:
            return call_next(message, context)
        return self._train(PrivateRound.read(record), identities, message, context, call_next)

    def _train(
        self, asked: PrivateRound, identities: dict[int, str], message: Message, context: Context, call_next: Train
    ) -> Message:
        """Return the sum of the bounded updates of the sampled users.

        Raises:
            ProtocolError: no user's training succeeded; the message has the first one's reason.
        """
        content = message.content
        start = _only(content.array_records, "request")
        total = _UserSum(ArrayLayout.of(start), asked.clip_norm)
        for number, seed in zip(asked.users, asked.seeds, strict=True):
            try:
                if number not in identities:
                    raise private_messages.ProtocolError("the node no longer holds a user whom it enrolled with")
                own = self._for_user(message, content, identities[number])
                with own_generators(seed), time_limit(self._seconds):
                    reply = call_next(own, context if self._users is None else _without_memory(context))
                total.add(reply, start)
            except Exception as error:  # one user's data must not decide whether others are counted
                log.warning("training of a user failed", exc_info=True)
                total.failures.append(_reason(error))
        if len(total.failures) == len(asked.users):
            raise private_messages.ProtocolError(total.failures[0])
        answer = total.reply(len(asked.users)).to_record(asked)
        if asked.forward_metrics:
            answer[private_messages.APP_METRICS] = _summed(total.metrics)
        return Message(answer, reply_to=message)

    def _for_user(self, message: Message, content: RecordDict, identity: str) -> Message:
        """Return the app's message for one user, with records of its own: the app may change them."""
        records = {name: copy.deepcopy(record) for name, record in content.items()}
        if self._users is not None:
            _only({k: r for k, r in records.items() if isinstance(r, ConfigRecord)}, "request")["user-id"] = identity
        message.content = RecordDict(records)
        return message


userlevelclipping_mod = UserLevelClipping()
"""The mod for nodes of one user each, named by ``user-id`` or ``partition-id`` of the node's configuration."""


def bounded(update: Floats, clip_norm: float) -> tuple[Floats | None, bool]:
    """Return an update, float64 (d,), scaled to a norm of at most ``clip_norm``, and whether it was longer.

    One whose norm is not finite is None: no factor could bound it.
    """
    with np.errstate(over="ignore"):
        length = math.sqrt(float(np.dot(update, update)))
    if not math.isfinite(length):
        return None, True
    if length <= clip_norm * _ROUNDED:
        return update, False
    return update * (clip_norm * _ROUNDED / length), True


class _UserSum:
    """Add up the bounded updates of a node's users, without a copy of a single one."""

    def __init__(self, layout: ArrayLayout, clip_norm: float) -> None:
        self._layout = layout
        self._clip_norm = clip_norm
        self._sum: Floats | None = None
        self._clipped = self._nonfinite = 0
        self.failures: list[str] = []
        self.metrics: list[MetricRecord] = []

    def add(self, reply: Message, start: ArrayRecord) -> None:
        """Add the update of a user, from the reply of the app and the model that was sent.

        Raises:
            ProtocolError: the app failed, or returned a model of another shape or type.
        """
        if reply.has_error():
            log.warning("the train function failed: %s", reply.error.reason)
            raise private_messages.ProtocolError("the train function failed")
        update, longer = bounded(_update(self._layout, reply, start), self._clip_norm)
        self.metrics += reply.content.metric_records.values()
        self._clipped += longer
        if update is None:
            self._nonfinite += 1
        elif self._sum is None:
            self._sum = update
        else:
            self._sum += update

    def reply(self, users: int) -> TrainReply:
        """Return the sum over ``users`` users, of whom those who failed count as zero."""
        empty = np.zeros(self._layout.size, np.float32)
        vector = empty if self._sum is None else self._sum.astype(np.float32)
        return TrainReply(vector, users, users, self._clipped, self._nonfinite + len(self.failures), 0.0)


def _update(layout: ArrayLayout, reply: Message, start: ArrayRecord) -> Floats:
    """Return the difference of the trained model and the one that was sent, float64 (d,)."""
    trained = _only(reply.content.array_records, "reply")
    try:
        return layout.difference(trained, start)
    except ValueError as error:
        types = {array.dtype for array in trained.values() if array.dtype in _WHOLE}
        what = f"an array of type {min(types)}, not of floats" if types else "a model of another shape"
        raise private_messages.ProtocolError(f"the train function returned {what}") from error


def _without_memory(context: Context) -> Context:
    """Return a context in which one user's training leaves nothing for the next one's."""
    node_config, run_config = dict(context.node_config), dict(context.run_config)
    return replace(context, node_config=node_config, run_config=run_config, state=RecordDict())


def _only(records: Any, where: str) -> Any:
    """Return the only record of a message; ProtocolError if it has another number of them."""
    values = list(records.values())
    if len(values) != 1:
        kind = type(values[0]).__name__ if values else ArrayRecord.__name__
        raise private_messages.ProtocolError(f"the {where} has {len(values)} records of type {kind}; allowed: one")
    return values[0]


def _summed(metrics: Sequence[MetricRecord]) -> MetricRecord:
    """Return the sums over users of the app's metrics; lists are left out."""
    sums: dict[str, float] = {}
    for record in metrics:
        for name, value in record.items():
            if isinstance(value, int | float):
                sums[name] = sums.get(name, 0.0) + float(value)
    return MetricRecord(dict(sums))
