"""The text that a node holds: what it tells at its enrolment, and its prepared folder under the numbering of all nodes.

A node enrols with counts by pseudonym: how many sentences each user has, and how many sentences mention each name.
Names are keyed digests in ascending order, because the order of ids tells who mentions whom. The node also sends
digests by which the server notices another key, model or tokenizer, or a folder that has changed.

The server numbers the users and sentences of all nodes in the order of their places, as if they were one corpus. A node
pads its arrays to that numbering, so that every draw is that of a simulation on the joint corpus. From the declared
counts of its own users and names, which the server sends, it computes the weights of its sentences. Of other nodes it
learns besides how many users and sentences come before and after its own.

>>> own = Ownership(np.array([0, 2]), np.array([0, 1, 1]), np.array([0], dtype=np.int32), num_entities=1)
>>> joint = padded(own, Place(first_user=1, users=3, first_sentence=4, sentences=9))
>>> joint.num_users, joint.num_sentences, joint.sentences_of(np.array([1]))[0].tolist()
(3, 9, [4, 5])
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fl_sim.clients.batches import NO_CLASS, Examples
from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.clients.models.model_names import TaskName
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.tasks import make_task
from fl_sim.clients.worker.workspace import Workspace, ready_model, use_reserved
from fl_sim.data_prep.digests import content_digests, key_check, keyed_digest, named_ownership, user_digests
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.contribution_limits import ContributionLimits, DeclaredCounts, IntArray, count_weights
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.encode import EncodedSplit, encode_split
from fl_sim.data_prep.store.manifest import comparable
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.formats import one_line, printable
from fl_sim.storage.open_run import RELEASE_FORMAT, digest_of
from fl_sim.strategies.messages import array_view

ENROL_ACTION = "enrol_text"
ENROL_MESSAGE = f"query.{ENROL_ACTION}"

PSEUDONYM_BYTES = 16
_CONFIG, _COUNTS = "config", "counts"
_ARRAYS = ("users", "content", "sentences", "names", "mentions")
_MOST_SENTENCES = 10**9  # of a user
_LARGEST_DIGEST = 2**63 - 1


class NodesError(ValueError):
    """The nodes of a run do not fit together, or to the run; the message says in one line what to change."""


class _Told(BaseModel):
    """What server and nodes tell each other."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Question(_Told):
    """What the server asks a node.

    Attributes:
        model: the model's specification, JSON.
        classes: their names, in the order of the model's scores; empty if the task has none.
    """

    split: str
    task: TaskName
    model: str
    classes: tuple[str, ...]

    def to_record(self) -> RecordDict:
        """Return the content of a Flower message."""
        return RecordDict({_CONFIG: ConfigRecord({"question": self.model_dump_json()})})

    @classmethod
    def from_record(cls, record: RecordDict) -> Question:
        """Return the question in the content of a Flower message."""
        return cls.model_validate_json(str(record.config_records[_CONFIG]["question"]))


class NodeFacts(_Told):
    """What a node tells about itself.

    Attributes:
        partition: its place among the nodes, which orders their users.
        identity: a keyed digest of the folder, of all that is computed from it, and of the model.
        entity_key: a value that tells keys apart.
        preparation: how its names were marked and normalised.
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
        users: the pseudonym of each user, uint8 (N, 16).
        content: a keyed digest of what each user trains on, uint8 (N, 16).
        sentences: n_u, int64 (N,).
        names: the digest of each name, by which it is sampled, ascending, int64 (E,).
        mentions: the number of the node's sentences that mention each name, int64 (E,).

    Raises:
        CorpusError: an array is no such one.
    """

    facts: NodeFacts
    users: NDArray[np.uint8]
    content: NDArray[np.uint8]
    sentences: IntArray
    names: IntArray
    mentions: IntArray

    def __post_init__(self) -> None:
        self._check_integers("sentences", len(self.users), 1, _MOST_SENTENCES)
        self._check_integers("names", len(self.names), 0, _LARGEST_DIGEST)
        self._check_integers("mentions", len(self.names), 1, int(self.sentences.sum()))
        if (np.diff(self.names) <= 0).any():
            raise CorpusError("names are not in ascending order; allowed: each digest once, ascending")
        for name in ("users", "content"):
            if (rows := getattr(self, name)).dtype != np.uint8 or rows.shape != (len(self.users), PSEUDONYM_BYTES):
                raise CorpusError(f"{name} are {rows.dtype} {rows.shape}; allowed: 16 bytes of each user")

    def _check_integers(self, name: str, size: int, least: int, most: int) -> None:
        values = getattr(self, name)
        if values.dtype != np.int64 or values.shape != (size,) or ((values < least) | (values > most)).any():
            raise CorpusError(f"{name} are out of range; allowed: {size} int64 from {least} to {most}")

    def to_record(self) -> RecordDict:
        """Return the content of a Flower message."""
        counts = ArrayRecord({name: Array(np.ascontiguousarray(getattr(self, name))) for name in _ARRAYS})
        return RecordDict({_CONFIG: ConfigRecord({"facts": self.facts.model_dump_json()}), _COUNTS: counts})

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
            content = message.content
            facts = NodeFacts.model_validate_json(str(content.config_records[_CONFIG]["facts"]))
            return cls(facts, **{name: array_view(array) for name, array in content.array_records[_COUNTS].items()})
        except Exception as error:  # a node may send any bytes, and numpy documents no exceptions for them
            reason = printable(one_line(error, named=True))[:200]
            raise NodesError(f"node {node} cannot take part: its answer is malformed ({reason})") from error


PUBLIC_SEED = 0
"""The seed of a node's model before a round sets its parameters. Nodes are not told the seed of the run, from which
users are sampled."""

_PUBLIC_SENTENCES = 500  # of the bundled corpus, whose tokens tell tokenizers apart


class Place(_Told):
    """Where a node's users and sentences lie among those of all nodes: the first of its own, and the numbers of all."""

    first_user: int
    users: int
    first_sentence: int
    sentences: int


class HeldSpec(_Told):
    """Name what a node opens for a round; sent with every request, because its processes may keep nothing.

    Attributes:
        identity: of the folder and the model when the run began (:attr:`NodeFacts.identity`).
        users: the declared counts of the node's users.
        names: the declared counts of the node's names, in ascending order of their digests.
    """

    question: Question
    identity: str
    place: Place
    limits: ContributionLimits
    users: tuple[int, ...]
    names: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class HeldText:
    """A node's folder, read and encoded.

    Attributes:
        ownership: the incidence, sampled by the digests of names.
        encoded: the tokens, in memory.
        targets: the classes, int32 (S,); None if the task has none.
        model: shared by the nodes of a process.
    """

    enrolment: Enrolment
    ownership: Ownership
    encoded: EncodedSplit
    targets: NDArray[np.int32] | None
    model: LanguageModel

    def workspace(self, spec: HeldSpec) -> Workspace:
        """Return what a round needs, numbered as all nodes together.

        Raises:
            CorpusError: folder, key or model is not that of the run's beginning, or a declared count is below the
                node's own.
        """
        if self.enrolment.facts.identity != spec.identity:
            raise CorpusError(
                "folder, entity key or model of this node has changed since the run began; allowed: as it was"
            )
        place, targets = spec.place, self.targets
        around = (place.first_sentence, place.sentences - place.first_sentence - self.ownership.num_sentences)
        offsets = _rising(self.encoded.offsets, *around)
        names = np.searchsorted(self.enrolment.names, _draws(self.ownership))
        totals = np.array(spec.names, dtype=np.int64)[names]
        counts = DeclaredCounts.exactly(np.array(spec.users), totals)
        return Workspace(
            ownership=padded(self.ownership, place),
            weights=np.pad(count_weights(self.ownership, spec.limits, counts), around),
            model=self.model,
            examples=Examples(
                EncodedSplit(self.encoded.tokens, offsets),
                None if targets is None else np.pad(targets, around, constant_values=NO_CLASS),
            ),
            progress=None,
        )


def open_held_text(folder: str, key: bytes, partition: int, question: Question) -> HeldText:
    """Return the text in a prepared folder, its names by ``key``; what was read stays in memory until it changes.

    Raises:
        CorpusError: the folder is no prepared corpus of one part with this split, or damaged.
        ModelError: the model cannot be loaded.
    """
    fingerprint = Corpus.open(Path(folder)).fingerprint
    return _opened(folder, fingerprint, key, partition, question)


@functools.lru_cache(maxsize=256)
def _opened(folder: str, fingerprint: str, key: bytes, partition: int, question: Question) -> HeldText:
    corpus = Corpus.open(Path(folder), verify=True, fingerprint=fingerprint)
    if len(corpus.parts) > 1:
        raise CorpusError(f"{folder}: has appended parts; allowed for a node: a corpus of one part")
    model, initial = _model(question.model, question.task, question.classes)
    ownership = named_ownership(corpus, question.split, key)
    targets = None
    if model.task.needs_targets:
        if unknown := sorted({*corpus.classes} - {*question.classes}):
            allowed = ", ".join(question.classes)
            raise CorpusError(f"class '{unknown[0]}' of this node is none of the held-out text's; allowed: {allowed}")
        numbers = [question.classes.index(name) for name in corpus.classes]  # the server's; -1 is the last
        targets = np.array([*numbers, NO_CLASS], dtype=np.int32)[corpus.targets(question.split)]
    encoded = _encoded(corpus, question.split, model)
    names = corpus.users(question.split)["user"].tolist()
    content = tuple(content_digests(ownership, encoded, targets, names, key))
    manifest = corpus.manifest
    prepared = {"identity": manifest.settings.get("identity"), "tagger": comparable(manifest.tagger)}
    facts = NodeFacts(
        partition=partition,
        identity="",
        entity_key=key_check(key),
        model=initial,
        tokenizer=tokenizer_digest(model),
        release=RELEASE_FORMAT,
        preparation=json.dumps(prepared, sort_keys=True),
        sought_labels=corpus.parts[0].manifest.sought_labels,
        warnings=corpus.warnings,
    )
    about = json.dumps([fingerprint, question.split, facts.model_dump()]).encode()
    identity = keyed_digest(key, "fl_sim folder", about, *content).hex()
    counts, draws = DeclaredCounts.of(ownership), _draws(ownership)
    ascending = np.argsort(draws)
    enrolment = Enrolment(
        facts=facts.model_copy(update={"identity": identity}),
        users=_rows(map(bytes.fromhex, user_digests(names, key))),
        content=_rows(content),
        sentences=counts.users,
        names=draws[ascending],
        mentions=counts.entities[ascending],
    )
    return HeldText(enrolment, ownership, encoded, targets, model)


def _rows(digests: Iterable[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, PSEUDONYM_BYTES)


def _draws(ownership: Ownership) -> IntArray:
    """Return the digest of every entity's name, int64 (E,)."""
    return ownership.draws_of(np.arange(ownership.num_entities, dtype=np.int32)).astype(np.int64)


def tokenizer_digest(model: LanguageModel) -> str:
    """Return a digest of the tokens of a public text."""
    texts = Corpus.open("bundled").texts("public").slice(0, _PUBLIC_SENTENCES).to_pylist()
    return digest_of([np.asarray(example.tokens, dtype=np.int64) for example in model.encode(texts)])


@functools.lru_cache(maxsize=1)
def _model(spec: str, task: TaskName, classes: tuple[str, ...]) -> tuple[LanguageModel, str]:
    """Return a model, which rounds will change, and the SHA-256 of its first weights."""
    opened = ModelSpec.model_validate_json(spec)
    use_reserved(opened.device)
    model = ready_model(opened, PUBLIC_SEED, make_task(task, classes))
    return model, digest_of(model.weights())


def _encoded(corpus: Corpus, split: str, model: LanguageModel) -> EncodedSplit:
    """Return the tokens of a split in memory."""
    with tempfile.TemporaryDirectory() as folder:
        encoded = encode_split(
            corpus.texts(split),
            model.tokenizer,
            model.max_tokens,
            Path(folder) / "tokens",
            bos_id=model.bos_id,
            eos_id=model.eos_id,
        )
        return EncodedSplit(np.array(encoded.tokens), np.array(encoded.offsets))


def padded(own: Ownership, place: Place) -> Ownership:
    """Return the incidence of a node, placed among all nodes; other nodes' sentences have no owner and no names."""
    sentences_after = place.sentences - place.first_sentence - own.num_sentences
    users_after = place.users - place.first_user - own.num_users
    user_offsets = np.pad(own.user_offsets + place.first_sentence, (place.first_user, users_after), mode="edge")
    entity_offsets = _rising(own.entity_offsets, place.first_sentence, sentences_after)
    return replace(own, user_offsets=user_offsets, entity_offsets=entity_offsets, stored_profiles=None, check=False)


def _rising(offsets: NDArray[np.int64], before: int, after: int) -> NDArray[np.int64]:
    """Return offsets with so many empty rows before and after."""
    return np.pad(np.asarray(offsets), (before, after), mode="edge")
