"""Read and write the messages between server and nodes.

A request holds the model once, the ids of the node's sampled users, the round's seed and the client rule. A reply holds
the sum of these users' bounded client updates, and counts. No data of a single user leaves a node. Replies are not
noisy: central differential privacy trusts the server (docs/privacy.md, section 1).

>>> runs_of(np.array([0, 1, 2, 7])).tolist()
[[0, 3], [7, 8]]
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from fl_sim.formats import one_line, printable
from fl_sim.plugins import Registry
from fl_sim.strategies.client_rules import ClientRule
from fl_sim.strategies.primitives.adaptive_clip import ClipVote

if TYPE_CHECKING:
    from flwr.app import Array, ArrayRecord, Message, RecordDict

TRAIN_MESSAGE = "train.bounded_sum"
TRAIN_ACTION = "bounded_sum"
_ARRAYS, _CONFIG, _METRICS = "arrays", "config", "metrics"
_VECTOR = "vector"
_NUMPY = "numpy.ndarray"  # of flwr.app.message.array.SType
_ANSWERS = "answers"
_MOST_HEADER_BYTES = 4096
_COUNTS = ("users", "sentences", "clipped", "nonfinite")
_SUMS = ("loss_sum", "votes")

Vector = npt.NDArray[np.float32]


REJECTIONS = {
    "error": "failures of the node",
    "silent": "silence",
    "malformed": "a wrong format",
    "wrong_shape": "a wrong shape or number of users",
    "wrong_counts": "more sentences than the users have",
    "not_finite": "numbers that are not finite",
    "too_large": "a norm above the bound",
    "other_request": "answers to another request, such as replays",
    "duplicate": "second or unrequested answers",
    "impersonation": "the name of another node",
}
"""Why a reply counts as zero, in words, by the names under which metrics and results count them."""

IMPERSONATION = 1001
"""The code of an error that the server's grid puts in the place of a reply in the name of another node."""


class MessageError(ValueError):
    """Report a message that counts as zero: what is wrong with it, and its ``kind``, a key of :data:`REJECTIONS`."""

    def __init__(self, text: str, kind: str = "malformed") -> None:
        super().__init__(text)
        self.kind = kind


def _is_client_rule(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, ClientRule)


_CLIENT_RULES = Registry("fl_sim.client_rules", "client rule", {}, _is_client_rule, "a subclass of ClientRule")


def rule_to_json(rule: ClientRule) -> str:
    """Return a client rule as JSON: the import path of its class, and its fields; TypeError if one has no JSON form."""
    return json.dumps({"class": f"{type(rule).__module__}:{type(rule).__qualname__}", "fields": asdict(rule)})


def rule_from_json(text: str) -> ClientRule:
    """Return the client rule that :func:`rule_to_json` wrote.

    Raises:
        MessageError: the class cannot be imported, or the text is malformed.
    """
    try:
        content = json.loads(text)
        path, rule_fields = content["class"], dict(content["fields"])
        if ":" not in path:
            raise ValueError(f"'{path}' is no import path")
        vote = rule_fields.pop("vote", None)
        rule_class: type[ClientRule] = _CLIENT_RULES.load(path)
        return rule_class(**rule_fields, vote=None if vote is None else ClipVote(**vote))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MessageError(f"client rule is malformed or unknown: {_reason(error)}") from error


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """Ask one node for the bounded sum of its sampled users.

    Attributes:
        server_round: the round, from 1.
        round_seed: the seed by which entities and sentences are sampled and local draws are made.
        users: the node's sampled users as runs of consecutive ids, int64 (R, 2): first, one past the last.
        workspace: JSON that names the corpus and the model that every node keeps open.
        vector: the trainable parameters, float32 (d,).
    """

    server_round: int
    round_seed: int
    users: npt.NDArray[np.int64]
    rule: ClientRule
    workspace: str
    vector: Vector

    @property
    def identity(self) -> str:
        """Return a hash of round, seed and users, by which a reply to another request is recognised."""
        content = f"{self.server_round} {self.round_seed:x} {self.users.ravel().tolist()}"
        return hashlib.sha256(content.encode()).hexdigest()

    def to_record(self, arrays: ArrayRecord | None = None) -> RecordDict:
        """Return the content of a Flower message; several may share the ``arrays`` of one ``vector``."""
        from flwr.app import ConfigRecord, RecordDict

        config = ConfigRecord(
            {
                "server_round": self.server_round,
                "round_seed": hex(self.round_seed),
                "users": [int(u) for u in self.users.ravel()],
                "rule": rule_to_json(self.rule),
                "workspace": self.workspace,
            }
        )
        return RecordDict({_ARRAYS: arrays or vector_to_arrays(self.vector), _CONFIG: config})

    @classmethod
    def from_message(cls, message: Message) -> TrainRequest:
        """Return the request of a Flower message.

        Raises:
            MessageError: the client rule is unknown or malformed.
        """
        config: dict[str, Any] = dict(message.content.config_records[_CONFIG])
        return cls(
            server_round=config["server_round"],
            round_seed=int(config["round_seed"], 16),
            users=np.asarray(config["users"], dtype=np.int64).reshape(-1, 2),
            rule=rule_from_json(str(config["rule"])),
            workspace=config["workspace"],
            vector=arrays_to_vector(message.content.array_records[_ARRAYS]),
        )


class Request(Protocol):
    """A request that a :class:`TrainReply` can answer; the reply repeats its hash."""

    @property
    def identity(self) -> str: ...


@dataclass(frozen=True, slots=True)
class TrainReply:
    """Return one node's sum of bounded client updates, with counts for the owner of the simulation.

    Attributes:
        vector: Σ_u v_u, float32 (d,).
        users: the number of sampled users of the node.
        clipped: the number of sentences that were clipped, one by one or as part of their user's update.
        nonfinite: the number of contributions that were not finite and count as zero.
        loss_sum: the sum over sentences of their mean token loss, before the update.
        votes: Σ(b − γ) over the items that vote on an adaptive clip, with b = 1 if the item's norm is within the clip;
            bounded together with the vector. 0 for a fixed clip.
        answers: the :attr:`TrainRequest.identity` of the request; a node sets it on sending.
    """

    vector: Vector
    users: int
    sentences: int
    clipped: int
    nonfinite: int
    loss_sum: float
    votes: float = 0.0
    answers: str = ""

    def to_record(self, request: Request) -> RecordDict:
        """Return the content of a Flower message that answers ``request``."""
        from flwr.app import ConfigRecord, MetricRecord, RecordDict

        counts = MetricRecord({name: getattr(self, name) for name in (*_COUNTS, *_SUMS)})
        answers = ConfigRecord({_ANSWERS: request.identity})
        return RecordDict({_ARRAYS: vector_to_arrays(self.vector), _METRICS: counts, _CONFIG: answers})

    @classmethod
    def from_message(cls, message: Message, size: int | None = None) -> TrainReply:
        """Return the reply of a Flower message, whose arrays it takes out.

        Flower's records are in cycles of references: what stays in one is freed only when Python looks for cycles. An
        array longer than ``size`` = d numbers is not decoded.

        Raises:
            MessageError: the content is not that of :meth:`to_record`.
        """
        try:
            metrics: dict[str, Any] = dict(message.content.metric_records[_METRICS])
            _check_numbers(metrics)
            answers = str(message.content.config_records[_CONFIG][_ANSWERS])
            sent = message.content.array_records.pop(_ARRAYS)[_VECTOR]
            if size is not None and len(sent.data) > 4 * size + _MOST_HEADER_BYTES:
                raise ValueError(f"an array of {len(sent.data)} bytes for {size} numbers")
            array = array_view(sent)
            if array.dtype != np.float32:
                raise ValueError(f"the sum is of {array.dtype}, not float32")
            return cls(vector=array, answers=answers, **metrics)
        except Exception as error:  # a node may send any bytes, and numpy documents no exceptions for them
            raise MessageError(
                f"reply of node {message.metadata.src_node_id} is malformed: {_reason(error)}"
            ) from error


def _reason(error: Exception) -> str:
    return printable(one_line(error, named=True))[:200]


def _check_numbers(metrics: Mapping[str, object]) -> None:
    """Check that the metrics are exactly the counts, integers of at least 0, and the sums, finite numbers.

    Raises:
        ValueError: a metric is missing, unknown or out of range.
    """
    if metrics.keys() != {*_COUNTS, *_SUMS}:
        raise ValueError(f"it has {', '.join(sorted(metrics))}")
    for name, value in metrics.items():
        is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
        if not (is_count or (name in _SUMS and isinstance(value, float) and math.isfinite(value))):
            raise ValueError(f"{name} is {value}")


def vector_to_arrays(vector: Vector) -> ArrayRecord:
    """Return the trainable parameters, float32 (d,), as Flower arrays, which hold the one copy that this makes."""
    from flwr.app import Array, ArrayRecord

    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(vector))
    content = b"".join((header.getvalue(), np.ascontiguousarray(vector).data))
    return ArrayRecord({_VECTOR: Array(str(vector.dtype), vector.shape, _NUMPY, content)})


def arrays_to_vector(arrays: ArrayRecord) -> Vector:
    """Return the trainable parameters of Flower arrays, float32 (d,), as a view that cannot be written."""
    return np.asarray(array_view(arrays[_VECTOR]), dtype=np.float32)


def array_view(array: Array) -> npt.NDArray[Any]:
    """Return what ``Array.numpy`` does, without a copy: a view of the array's bytes, in the format of ``np.save``.

    Raises:
        ValueError: the bytes are not an array of plain values in that format.
    """
    if not array.data:  # its numbers are elsewhere, such as in memory that processes share
        return array.numpy()
    if array.stype != _NUMPY:
        raise ValueError(f"the array is serialised as {printable(array.stype)}, not {_NUMPY}")
    content = BytesIO(array.data)  # shares the bytes
    if np.lib.format.read_magic(content) != (1, 0):
        raise ValueError("the array is in another version of numpy's format")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(content)
    if dtype.hasobject:
        raise ValueError(f"the array is of {dtype}")
    values = np.frombuffer(array.data, dtype, count=math.prod(shape), offset=content.tell())
    return values.reshape(shape, order="F" if by_columns else "C")


def runs_of(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return ascending ids, int64 (k,), as runs of consecutive ids: int64 (R, 2), the first and one past the last."""
    if len(ids) == 0:
        return np.empty((0, 2), dtype=np.int64)
    breaks = np.flatnonzero(np.diff(ids) != 1) + 1
    firsts = ids[np.concatenate(([0], breaks))]
    lasts = ids[np.concatenate((breaks - 1, [len(ids) - 1]))]
    return np.stack([firsts, lasts + 1], axis=1)
