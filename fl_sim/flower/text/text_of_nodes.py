"""The training text of a run whose nodes hold it: the record of their counts, and who is there in a round.

A node is recognised by its identity, a digest of what it holds, not by its id in Flower, which changes when a node or a
simulation starts again. So a node that was away takes part again, and one whose folder has changed does not.

The server never learns who mentions whom. It keeps the counts that nodes send, plans bounds, noise and ε from users'
counts and names' totals alone, by the code of every run, and sends each node the declared counts of that node's users
and names (:mod:`fl_sim.data_prep.declared_counts` is its record).

>>> places_of(users=[2, 3], sentences=[5, 4])
[Place(first_user=0, users=5, first_sentence=0, sentences=9),
 Place(first_user=2, users=5, first_sentence=5, sentences=9)]
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fl_sim.clients.frozen_states import Observer
from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.selection import select_for
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.declared_counts import CountsOfNode, CountsOfNodes
from fl_sim.data_prep.digests import digest_of_all
from fl_sim.data_prep.identity import DEFAULT_IDENTITY, Identity
from fl_sim.data_prep.readers.prepared_corpus import sentences_of_split
from fl_sim.data_prep.records import Sentence
from fl_sim.data_prep.store.contribution_limits import ContributionLimits
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.layout import COUNTS_FILE
from fl_sim.engines.grids import GridError
from fl_sim.experiments import evaluation as evaluate
from fl_sim.experiments.training_text import TextOfRun
from fl_sim.flower.text.held_text import (
    ENROL_MESSAGE,
    PUBLIC_SEED,
    Enrolment,
    HeldSpec,
    NodesError,
    Place,
    Question,
    tokenizer_digest,
)
from fl_sim.storage.open_run import RELEASE_FORMAT, ReleaseParts, digest_of
from fl_sim.strategies.aggregation import Federation, Shard
from fl_sim.strategies.client_rules import ClientRule

_WARNINGS = (
    "nodes hold the text, and each knows which entities and sentences a round samples: ε is against others than the "
    "nodes of the run; against them it is that of q_e = q_s = 1 without weights, for a name as often as it is counted.",
    "the server knows counts alone: what entities contribute is at most the figures here, and what the bounds kept is "
    "known to nodes alone.",
)
_ALIKE = {
    "entity_key": "another entity key",
    "model": "another model",
    "tokenizer": "another tokenizer",
    "release": "another version of fl_sim",
    "preparation": "names that were marked or normalised in another way",
}


def write_record(
    enrolments: Sequence[Enrolment], split: str, held_out: Corpus, held_out_split: str, out: Path
) -> Corpus:
    """Write what nodes told as a prepared folder, with the held-out text.

    The places of the enrolments order the users.

    Raises:
        NodesError: the nodes do not fit together.
        CorpusError: the folder is taken, or no private training could use the text.
    """
    nodes = sorted(enrolments, key=lambda node: node.facts.partition)
    _check_together(nodes)
    told = CountsOfNodes(
        content=digest_of_all(node.content.tobytes() for node in nodes), nodes=tuple(map(_counts_of, nodes))
    )
    known = held_out.manifest.settings
    evaluated = sentences_of_split(held_out, held_out_split)
    return write_corpus(
        chain(chain.from_iterable(empty_sentences(split, node) for node in nodes), evaluated),
        out,
        needs_entities=False,
        beside={COUNTS_FILE: told.model_dump_json() + "\n"},
        name=f"text of {len(nodes)} nodes",
        settings={"warnings": [*sorted({warning for node in nodes for warning in node.facts.warnings}), *_WARNINGS]},
        sought_labels=sorted(set.intersection(*(set(node.facts.sought_labels) for node in nodes))),
        identity=Identity.of_corpus(known) if "identity" in known else DEFAULT_IDENTITY,
    )


def empty_sentences(split: str, node: Enrolment) -> Iterator[Sentence]:
    """Yield as many sentences of each user's pseudonym as the user has, without text and names."""
    for user, number in zip(node.users, node.sentences.tolist(), strict=True):
        yield from repeat(Sentence(split, user.tobytes().hex(), "", ()), number)


def _counts_of(node: Enrolment) -> CountsOfNode:
    facts = node.facts
    return CountsOfNode(
        partition=facts.partition,
        identity=facts.identity,
        model=facts.model,
        tokenizer=facts.tokenizer,
        release=facts.release,
        users=len(node.users),
        sentences=int(node.sentences.sum()),
        names=dict(zip(node.names.tolist(), node.mentions.tolist(), strict=True)),
    )


def _check_together(nodes: Sequence[Enrolment]) -> None:
    """Check that places differ, that what must be alike is, and that every user is on one node."""
    first, places = nodes[0].facts, [node.facts.partition for node in nodes]
    holder: dict[bytes, int] = {}
    for node in nodes:
        place = node.facts.partition
        if places.count(place) > 1:
            raise NodesError(f"partition-id is {place} on two nodes; allowed: another place for each node")
        for name, words in _ALIKE.items():
            if getattr(node.facts, name) != getattr(first, name):
                raise NodesError(
                    f"node {place} has {words} than node {first.partition}; allowed: the same on all nodes"
                )
        users = [user.tobytes() for user in node.users]
        if len(set(users)) < len(users):
            raise NodesError(f"node {place} names a user twice; allowed: each user once")
        for user in users:
            if (other := holder.setdefault(user, place)) != place:
                raise NodesError(
                    f"a user is in the folders of nodes {other} and {place}; allowed: all text of a user on one node, "
                    "because ε is of a user's whole text"
                )


log = logging.getLogger("flwr")  # shown by `flwr run --stream`


@dataclass(frozen=True)
class Holder:
    """A node that holds the users ``first`` to ``stop`` of the run, without the last.

    Attributes:
        identity: of its folder and model when the run began.
        workspace: what it opens in a round, JSON.
    """

    partition: int
    identity: str
    first: int
    stop: int
    workspace: str


@dataclass(frozen=True)
class HeldFederation(Federation):
    """The users of a run, each with the node that holds it.

    Attributes:
        known: what each node of the grid holds, by the node's id; None for nothing of this run.
    """

    holders: tuple[Holder, ...]
    question: Question
    timeout: float
    known: dict[int, Holder | None] = field(default_factory=dict)

    def shards(self, grid: Grid) -> list[Shard]:
        """Return the node of every holder; absent ones count as zero in the round.

        Raises:
            NodesError: no holder is there; or, before the first round, a node's folder, key or model has changed.
        """
        present = set(grid.get_node_ids())
        starting = not self.known
        for enrolment, node in answers(grid, self.question, sorted(present - self.known.keys()), self.timeout):
            if isinstance(enrolment, NodesError):  # it is asked again in the next round
                log.warning("fl-sim: %s", enrolment)
            else:
                self.known[node] = self._holder_of(enrolment, starting)
        node_of = {holder.partition: node for node, holder in sorted(self.known.items()) if holder and node in present}
        if not node_of:
            raise NodesError("no node of this run is there; allowed: at least one of them")
        return [
            Shard(node_of.get(holder.partition), holder.first, holder.stop, holder.workspace, turn=holder.partition)
            for holder in self.holders
        ]

    def _holder_of(self, enrolment: Enrolment, starting: bool) -> Holder | None:
        """Return whom an answer is from; None, with a warning, for a node that the run cannot use."""
        facts = enrolment.facts
        for holder in self.holders:
            if holder.identity == facts.identity:
                return holder
        if starting and facts.partition in {holder.partition for holder in self.holders}:
            raise NodesError(
                f"node {facts.partition}: folder, entity key or model has changed since the run began; allowed: as it "
                "was, or a new run"
            )
        log.warning("fl-sim: node %d holds nothing of this run; it is left out", facts.partition)
        return None


class TextOfNodes:
    """The training text of a run, held by nodes that enrolled before it began."""

    def __init__(self, run: TextOfRun) -> None:
        self._run = run
        self._told = CountsOfNodes.read(run.corpus)
        if run.model.reads_features or run.model.lower is not None:
            raise ConfigError(
                f"model.name is '{run.config.model.name}' with a frozen part that is computed once; allowed with text "
                "on nodes: a model that trains from the first layer on"
            )
        self._check_model()

    def digests(self) -> ReleaseParts:
        """Return the digest of what all users train on, as a simulation on the joint corpus has it."""
        return {"corpus": self._told.content}

    def prepare(self, observer: Observer) -> None:
        """Do nothing: nodes prepare their own text."""

    def federation(self, seed: int) -> HeldFederation:
        """Return the users with the nodes that hold them."""
        run = self._run
        per_user = run.ownership.sentences_per_user
        return HeldFederation(
            workspace="",
            sentences_per_user=per_user,
            seed=seed,
            holders=tuple(self._workspaces()),
            question=question_of(run.config, run.model.task.classes),
            timeout=run.config.engine.timeout,
        )

    def reference(self, held_out: evaluate.HeldOutSentences) -> Mapping[str, float]:
        """Return nothing: a unigram model would need the text."""
        return {}

    def resumed_by(self, folder: Path) -> str:
        """Return the command that resumes the run in ``folder``."""
        return f"flwr run with resume='{folder}'"

    def _workspaces(self) -> list[Holder]:
        bounds, told, holders = self._run.planned.bounds, self._told, []
        question = question_of(self._run.config, self._run.model.task.classes)
        limits = ContributionLimits(bounds.guarantee.entity_bound, None, bounds.guarantee.user_sentences)
        total = dict(zip(told.totals, bounds.counts.entities.tolist(), strict=True))
        users, sentences = ([getattr(node, name) for node in told.nodes] for name in ("users", "sentences"))
        for node, place in zip(told.nodes, places_of(users, sentences), strict=True):
            stop = place.first_user + node.users
            spec = HeldSpec(
                question=question,
                identity=node.identity,
                place=place,
                limits=limits,
                users=tuple(bounds.counts.users[place.first_user : stop].tolist()),
                names=tuple(total[name] for name in node.names),
            )
            holders.append(Holder(node.partition, node.identity, place.first_user, stop, spec.model_dump_json()))
        return holders

    def _check_model(self) -> None:
        """Check that nodes have the server's model and tokenizer, and that rounds send all that depends on the seed."""
        model, spec = self._run.model, self._run.config.model
        public = load_model(spec, PUBLIC_SEED, model.task)
        own = {"model": digest_of(public.weights()), "tokenizer": tokenizer_digest(public), "release": RELEASE_FORMAT}
        public.set_vector(model.get_vector())
        if digest_of(public.weights()) != digest_of(model.weights()):
            raise ConfigError(
                f"model.name is '{spec.name}' with random weights that do not train; allowed with text on nodes: a "
                "model whose frozen weights do not depend on the seed"
            )
        words = {"release": "version of fl_sim"}
        for node in self._told.nodes:
            for name, value in own.items():
                if getattr(node, name) != value:
                    raise NodesError(
                        f"node {node.partition} has another {words.get(name, name)} than the server; allowed: the same"
                    )


def places_of(users: Sequence[int], sentences: Sequence[int]) -> list[Place]:
    """Return the place of every node among all users and sentences, given their numbers in order."""
    first_users, first_sentences = (np.cumsum([0, *numbers]).tolist() for numbers in (users, sentences))
    return [
        Place(first_user=user, users=first_users[-1], first_sentence=sentence, sentences=first_sentences[-1])
        for user, sentence in zip(first_users[:-1], first_sentences[:-1], strict=True)
    ]


def question_of(config: RunConfig, classes: tuple[str, ...]) -> Question:
    """Return what a run asks its nodes; ``classes`` are those of its task."""
    return Question(
        split=config.corpus.train_split, task=config.task, model=config.model.model_dump_json(), classes=classes
    )


def answers(
    grid: Grid, question: Question, nodes: Sequence[int], timeout: float
) -> list[tuple[Enrolment | NodesError, int]]:
    """Return the answer of each of ``nodes``, or why there is none, with the node's id."""
    if not nodes:
        return []
    found: dict[int, Enrolment | NodesError] = {}
    try:
        messages = [Message(question.to_record(), node, ENROL_MESSAGE) for node in nodes]
        for reply in grid.send_and_receive(messages, timeout=timeout):
            try:
                found[reply.metadata.src_node_id] = Enrolment.from_message(reply)
            except NodesError as error:
                found[reply.metadata.src_node_id] = error
    except GridError:
        pass  # every node failed, each with its own reason
    silent = NodesError(f"a node gave no answer within {timeout:g} seconds (engine.timeout)")
    return [(found.get(node, silent), node) for node in nodes]


def check_usable(config: RunConfig, rule: ClientRule) -> None:
    """Check that a run with such a client rule can train on text that its nodes hold.

    Raises:
        ConfigError: a setting would need the text, the names or all nodes' mentions in one place.
    """
    privacy = config.privacy
    if privacy.known != "counts":
        raise ConfigError(
            f"privacy.known is {privacy.known}; allowed with text on nodes: counts, which is all that nodes send"
        )
    for name in ("entity_key", "public_names", "public_weights", "counts"):
        if getattr(privacy, name) is not None:
            raise ConfigError(
                f"privacy.{name} is {getattr(privacy, name)}; allowed with text on nodes: nothing, because the server "
                "knows no names"
            )
    if select_for.dispatch(type(rule)) is not select_for.dispatch(object):
        raise ConfigError(
            f"privacy.strategy is {privacy.strategy}; allowed with text on nodes: a strategy whose nodes need no "
            "counts of the whole corpus, such as uedp or user_level"
        )
