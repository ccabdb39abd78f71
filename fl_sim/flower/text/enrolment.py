"""Enrol a node: the question of the server, and what a node tells about the text that it holds.

A node sends its mention graph with pseudonyms, and no text: how many sentences each user has, and which keyed digests
of names each sentence mentions. It also sends digests by which the server notices another key, model or tokenizer, or
a folder that has changed.

>>> question = Question(split="train", task="next-word", model="{}", classes=("no", "yes"), graph=True)
>>> Question.from_record(question.to_record()) == question
True
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.formats import printable
from fl_sim.strategies.messages import array_view

ENROL_ACTION = "enrol_text"
ENROL_MESSAGE = f"query.{ENROL_ACTION}"

PSEUDONYM_BYTES = 16
_ARRAYS, _CONFIG = "graph", "config"
_TYPES: Mapping[str, type[np.generic]] = {
    "user_offsets": np.int64,
    "entity_offsets": np.int64,
    "entity_ids": np.int32,
    "entity_draws": np.int64,
}


class NodesError(ValueError):
    """The nodes of a run do not fit together, or to the run; the message says in one line what to change."""


@dataclass(frozen=True, slots=True)
class Question:
    """What the server asks a node.

    Attributes:
        split: the split that trains, of the node's folder.
        task: what the model predicts.
        model: the model's specification, JSON.
        classes: their names, in the order of the model's scores; empty if the task has none.
        graph: whether to send the mention graph, too.
    """

    split: str
    task: str
    model: str
    classes: tuple[str, ...]
    graph: bool

    def to_record(self) -> RecordDict:
        """Return the content of a Flower message."""
        return RecordDict({_CONFIG: ConfigRecord({"question": json.dumps(asdict(self))})})

    @classmethod
    def from_record(cls, record: RecordDict) -> Question:
        """Return the question in the content of a Flower message."""
        fields: dict[str, Any] = json.loads(str(record.config_records[_CONFIG]["question"]))
        return cls(**fields | {"classes": tuple(fields["classes"])})


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node tells about itself.

    Attributes:
        partition: its place among the nodes, which orders their users.
        identity: a keyed digest of the folder, of all that is computed from it, and of the model.
        entity_key: a value that tells keys apart.
        model: SHA-256 of the weights that a public seed gives.
        tokenizer: SHA-256 of the tokens of a public text.
        release: the version of samples and sums.
        preparation: how its names were marked and normalised.
        sought_labels: the labels that were looked for.
        warnings: of the folder, for whoever reads an ε.
    """

    partition: int
    identity: str
    entity_key: str
    model: str
    tokenizer: str
    release: int
    preparation: str
    sought_labels: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Enrolment:
    """What a node answers.

    Attributes:
        facts: about the node.
        ownership: its mention graph, sampled by digests of names; None if it was not asked for.
        users: the pseudonym of each user, bytes.
        content: a keyed digest of what each user trains on, bytes.
    """

    facts: NodeFacts
    ownership: Ownership | None = None
    users: tuple[bytes, ...] = ()
    content: tuple[bytes, ...] = ()

    def to_record(self) -> RecordDict:
        """Return the content of a Flower message."""
        record = RecordDict({_CONFIG: ConfigRecord({"facts": json.dumps(asdict(self.facts))})})
        if self.ownership is not None:
            arrays = {name: np.asarray(getattr(self.ownership, name)) for name in _TYPES}
            arrays |= {name: _rows(getattr(self, name)) for name in ("users", "content")}
            record[_ARRAYS] = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})
        return record

    @classmethod
    def from_message(cls, message: Message) -> Enrolment:
        """Return the answer of a node.

        Raises:
            NodesError: the node failed, or its answer is malformed.
        """
        node = message.metadata.src_node_id
        if message.has_error():
            raise NodesError(f"node {node} cannot take part: {printable(message.error.reason)}")
        try:
            return cls._read(message.content)
        except Exception as error:  # a node may send any bytes, and numpy documents no exceptions for them
            reason = printable(" ".join(f"{type(error).__name__}: {error}".split()))[:200]
            raise NodesError(f"node {node} cannot take part: its answer is malformed ({reason})") from error

    @classmethod
    def _read(cls, content: RecordDict) -> Enrolment:
        fields: dict[str, Any] = json.loads(str(content.config_records[_CONFIG]["facts"]))
        lists: dict[str, Any] = {name: tuple(map(str, v)) for name, v in fields.items() if isinstance(v, list)}
        facts = NodeFacts(**fields | lists)
        if _ARRAYS not in content.array_records:
            return cls(facts)
        arrays: dict[str, Any] = {name: array_view(array) for name, array in content.array_records[_ARRAYS].items()}
        ownership = Ownership(**{name: arrays[name] for name in _TYPES}, num_entities=len(arrays["entity_draws"]))
        users, digests = (_bytes(arrays[name], ownership.num_users) for name in ("users", "content"))
        _check_draws(ownership)
        return cls(facts, ownership, users, digests)


def _check_draws(ownership: Ownership) -> None:
    draws = ownership.draws_of(np.arange(ownership.num_entities, dtype=np.int32))
    if draws.dtype != np.int64 or len(np.unique(draws)) < len(draws) or (len(draws) and draws.min() < 0):
        raise CorpusError("entity_draws must be different integers of at least 0")
    if (ownership.sentences_per_user < 1).any():
        raise CorpusError("a user has no sentence")


def _rows(values: tuple[bytes, ...]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(values), dtype=np.uint8).reshape(-1, PSEUDONYM_BYTES)


def _bytes(rows: NDArray[Any], count: int) -> tuple[bytes, ...]:
    if rows.dtype != np.uint8 or rows.shape != (count, PSEUDONYM_BYTES):
        raise CorpusError(f"digests are {rows.dtype} {rows.shape}, must be of {count} users")
    return tuple(row.tobytes() for row in rows)
