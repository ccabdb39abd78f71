"""The messages of a round between server and nodes, written and read in one place.

A request carries the model once, the ids of the node's sampled users, the round's seed and the client rule; a reply
carries the sum of these users' bounded updates and counts. Nothing of a single user leaves a node.

>>> from fl_sim.strategies.client_rules import ClippedGradients
>>> rule = ClippedGradients(q_e=0.5, q_s=0.1, sentence_clip=1.0, user_clip=2.0)
>>> rule_from_json(rule_to_json(rule)) == rule
True
>>> runs_of(np.array([0, 1, 2, 7])).tolist()
[[0, 3], [7, 8]]
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fl_sim.plugins import Registry
from fl_sim.strategies.adaptive_clip import ClipVote
from fl_sim.strategies.client_rules import ClientRule

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message, RecordDict

TRAIN_MESSAGE = "train.bounded_sum"
TRAIN_ACTION = "bounded_sum"
_ARRAYS, _CONFIG, _METRICS = "arrays", "config", "metrics"
_VECTOR = "vector"
_ANSWERS = "answers"
_COUNTS = ("users", "sentences", "clipped", "nonfinite")
_SUMS = ("loss_sum", "votes")

Vector = npt.NDArray[np.float32]


class MessageError(ValueError):
    """A message whose content is not what this module writes."""


def _is_client_rule(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, ClientRule)


_CLIENT_RULES = Registry("fl_sim.client_rules", "client rule", {}, _is_client_rule, "a subclass of ClientRule")


def rule_to_json(rule: ClientRule) -> str:
    """Return a client rule as text: the import path of its class, and its fields."""
    return json.dumps({"class": f"{type(rule).__module__}:{type(rule).__qualname__}", "fields": asdict(rule)})


def rule_from_json(text: str) -> ClientRule:
    """Return the client rule that :func:`rule_to_json` wrote.

    Raises:
        MessageError: its class cannot be imported here, or the text is malformed.
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
        raise MessageError(f"client rule is malformed or unknown: {_one_line(error)}") from error


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """One node's work in a round.

    Attributes:
        server_round: the round, from 1.
        round_seed: the seed of the round's sampling of entities and sentences, and of local draws.
        users: the node's sampled users as runs of consecutive ids, int64 (R, 2): first, one past the last.
        rule: the client rule.
        workspace: JSON that names the corpus and the model every node keeps open.
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
        """A name of round and users, by which an answer for others is refused."""
        asked = f"{self.server_round} {self.round_seed:x} {self.users.ravel().tolist()}"
        return hashlib.sha256(asked.encode()).hexdigest()

    def to_record(self) -> RecordDict:
        """The record of a Flower message."""
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
        return RecordDict({_ARRAYS: vector_to_arrays(self.vector), _CONFIG: config})

    @classmethod
    def from_message(cls, message: Message) -> TrainRequest:
        """Read what :meth:`to_record` wrote; :class:`MessageError` for a client rule that is unknown here."""
        config: dict[str, Any] = dict(message.content.config_records[_CONFIG])
        return cls(
            server_round=config["server_round"],
            round_seed=int(config["round_seed"], 16),
            users=np.asarray(config["users"], dtype=np.int64).reshape(-1, 2),
            rule=rule_from_json(str(config["rule"])),
            workspace=config["workspace"],
            vector=arrays_to_vector(message.content.array_records[_ARRAYS]),
        )


@dataclass(frozen=True, slots=True)
class TrainReply:
    """One node's answer: the sum over its sampled users of their bounded updates, and what the owner may look at.

    Attributes:
        vector: Σ_u v_u, float32 (d,).
        users: how many users contributed. sentences: how many sentences did.
        clipped: how many sentences were clipped, on their own or as a part of their user's update.
        nonfinite: how many contributions were not finite and counted as zero.
        loss_sum: the sum over sentences of their mean token loss, before the update.
        votes: Σ(b − γ) over the items that vote on an adaptive clip, b = 1 if the clip left the item as it was;
            bounded together with the vector. 0 where the clip is fixed.
        answers: the :attr:`TrainRequest.identity` of the request that is answered; a node fills it in when it sends.
    """

    vector: Vector
    users: int
    sentences: int
    clipped: int
    nonfinite: int
    loss_sum: float
    votes: float = 0.0
    answers: str = ""

    def to_record(self, request: TrainRequest) -> RecordDict:
        """The record of a Flower message that answers ``request``."""
        from flwr.app import ConfigRecord, MetricRecord, RecordDict

        counts: dict[str, Any] = {name: getattr(self, name) for name in (*_COUNTS, *_SUMS)}
        answers = ConfigRecord({_ANSWERS: request.identity})
        return RecordDict({_ARRAYS: vector_to_arrays(self.vector), _METRICS: MetricRecord(counts), _CONFIG: answers})

    @classmethod
    def from_message(cls, message: Message) -> TrainReply:
        """Read what :meth:`to_record` wrote; :class:`MessageError` for anything else."""
        try:
            metrics: dict[str, Any] = dict(message.content.metric_records[_METRICS])
            _check_numbers(metrics)
            answers = str(message.content.config_records[_CONFIG][_ANSWERS])
            array = message.content.array_records[_ARRAYS][_VECTOR].numpy()
            if array.dtype != np.float32:
                raise ValueError(f"the sum is of {array.dtype}, not float32")
            return cls(vector=array, answers=answers, **metrics)
        except Exception as error:  # whatever a node sends: numpy, for one, raises what it likes on bytes not its own
            raise MessageError(
                f"reply of node {message.metadata.src_node_id} is malformed: {_one_line(error)}"
            ) from error


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _check_numbers(metrics: Mapping[str, Any]) -> None:
    """Counts are integers from 0, sums are finite, and nothing else is there; :class:`ValueError` otherwise."""
    if metrics.keys() != {*_COUNTS, *_SUMS}:
        raise ValueError(f"it has {', '.join(sorted(metrics))}")
    for name, value in metrics.items():
        is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
        if not (is_count or (name in _SUMS and isinstance(value, float) and math.isfinite(value))):
            raise ValueError(f"{name} is {value}")


def vector_to_arrays(vector: Vector) -> ArrayRecord:
    """The flat trainable parameters as Flower arrays."""
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({_VECTOR: Array(vector)})


def arrays_to_vector(arrays: ArrayRecord) -> Vector:
    """The flat trainable parameters of Flower arrays, float32 (d,)."""
    return np.asarray(arrays[_VECTOR].numpy(), dtype=np.float32)


def runs_of(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Ascending ids as runs of consecutive ids, (R, 2); everybody is one run, however many they are."""
    if len(ids) == 0:
        return np.empty((0, 2), dtype=np.int64)
    breaks = np.flatnonzero(np.diff(ids) != 1) + 1
    firsts = ids[np.concatenate(([0], breaks))]
    lasts = ids[np.concatenate((breaks - 1, [len(ids) - 1]))]
    return np.stack([firsts, lasts + 1], axis=1)
