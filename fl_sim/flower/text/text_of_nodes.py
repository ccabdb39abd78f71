"""The training text of a run whose nodes hold it: who holds which users, and who is there in a round.

A node is recognised by its identity, a digest of what it holds, not by its id in Flower, which changes when a node or a
simulation starts again. So a node that was away takes part again, and one whose folder has changed does not.

>>> spans([{"users": 2, "sentences": 5}, {"users": 3, "sentences": 4}])
[Place(first_user=0, users=5, first_sentence=0, sentences=9),
 Place(first_user=2, users=5, first_sentence=5, sentences=9)]
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fl_sim.clients.frozen_states import Observer
from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.selection import select_for
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.store.corpus import HELD_BY_NODES
from fl_sim.engines.grids import GridError
from fl_sim.experiments import evaluation as evaluate
from fl_sim.experiments.run_inputs import held_out_split
from fl_sim.experiments.training_text import TextOfRun
from fl_sim.flower.text.enrolment import ENROL_MESSAGE, Enrolment, NodesError, Question
from fl_sim.flower.text.held_text import PUBLIC_SEED, HeldSpec, Place, packed, tokenizer_digest
from fl_sim.flower.text.joint_graph import CONTENT
from fl_sim.storage.computation import RELEASE_FORMAT, digest_of
from fl_sim.strategies.aggregation import Federation, Shard
from fl_sim.strategies.client_rules import ClientRule

log = logging.getLogger("flwr")  # shown by `flwr run --stream`

_SAMPLED_SENTENCES = 200


@dataclass(frozen=True)
class Holder:
    """A node that holds users of the run.

    Attributes:
        partition: its place among the nodes.
        identity: of its folder and model when the run began.
        first: its first user.
        stop: its last user plus one.
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
        holders: in the order of their places.
        question: by which a node says what it holds.
        timeout: seconds to wait for the answers.
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
            self.known[node] = self._holder_of(enrolment, starting)
        node_of = {holder.partition: node for node, holder in sorted(self.known.items()) if holder and node in present}
        if not node_of:
            raise NodesError("no node of this run is there; allowed: at least one of them")
        return [
            Shard(node_of.get(holder.partition), holder.first, holder.stop, holder.workspace, turn=holder.partition)
            for holder in self.holders
        ]

    def _holder_of(self, enrolment: Enrolment | NodesError, starting: bool) -> Holder | None:
        """Return whom an answer is from; None, with a warning, for a node that the run cannot use."""
        if isinstance(enrolment, NodesError):
            log.warning("fl-sim: %s", enrolment)
            return None
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
        self._holders: list[dict[str, Any]] = run.corpus.manifest.settings[HELD_BY_NODES]
        rule = run.planned.plan.mechanism.client_rule(run.planned.plan.mechanism.clip_norm)
        check_usable(run.config, rule)
        if run.model.reads_features or run.model.lower is not None:
            raise ConfigError(
                f"model.name is '{run.config.model.name}' with a frozen part that is computed once; allowed with text "
                "on nodes: a model that trains from the first layer on"
            )
        self._check_model()

    @property
    def mean_tokens(self) -> float:
        """Return the mean length of a held-out sentence: that of the nodes' sentences is not known."""
        texts = self._run.corpus.texts(held_out_split(self._run.config, self._run.corpus))
        examples = self._run.model.encode(texts.slice(0, _SAMPLED_SENTENCES).to_pylist())
        return float(np.mean([len(example) for example in examples]))

    def release_parts(self) -> dict[str, str]:
        """Return the digest of what all users train on, as a simulation on the joint corpus has it."""
        return {"corpus": str(self._run.corpus.manifest.settings[CONTENT])}

    def prepare(self, observer: Observer) -> None:
        """Do nothing: nodes prepare their own text."""

    def federation(self, seed: int) -> HeldFederation:
        """Return the users with the nodes that hold them."""
        run = self._run
        per_user = run.corpus.ownership(run.split).sentences_per_user
        return HeldFederation(
            workspace="",
            sentences_per_user=per_user,
            seed=seed,
            holders=tuple(self._workspaces()),
            question=question_of(run.config, run.model.task.classes, graph=False),
            timeout=run.config.engine.timeout,
        )

    def reference(self, held_out: evaluate.HeldOutSentences) -> Mapping[str, float]:
        """Return nothing: a unigram model would need the text."""
        return {}

    def resumed_by(self, folder: Path) -> str:
        """Return the command that resumes the run in ``folder``."""
        return f"flwr run with resume='{folder}'"

    def _workspaces(self) -> list[Holder]:
        config, weights = self._run.config, self._run.planned.bounds.weights
        holders = []
        for node, place in zip(self._holders, spans(self._holders), strict=True):
            own = weights[place.first_sentence : place.first_sentence + node["sentences"]]
            spec = HeldSpec(
                split=config.corpus.train_split,
                task=config.task,
                model=config.model,
                classes=self._run.model.task.classes,
                identity=node["identity"],
                place=place,
                weights=packed(own),
            )
            stop = place.first_user + node["users"]
            holders.append(Holder(node["partition"], node["identity"], place.first_user, stop, spec.model_dump_json()))
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
        for node in self._holders:
            for name, value in own.items():
                if node[name] != value:
                    raise NodesError(
                        f"node {node['partition']} has another {words.get(name, name)} than the server; allowed: the "
                        "same"
                    )


def spans(nodes: Sequence[Mapping[str, Any]]) -> list[Place]:
    """Return the place of every node among all users and sentences, given their numbers in order."""
    users, sentences = (np.cumsum([0, *(node[name] for node in nodes)]).tolist() for name in ("users", "sentences"))
    return [
        Place(first_user=user, users=users[-1], first_sentence=sentence, sentences=sentences[-1])
        for user, sentence in zip(users[:-1], sentences[:-1], strict=True)
    ]


def question_of(config: RunConfig, classes: tuple[str, ...], graph: bool) -> Question:
    """Return what a run asks its nodes; ``classes`` are those of its task."""
    return Question(config.corpus.train_split, config.task, config.model.model_dump_json(), classes, graph)


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


def check_usable(config: RunConfig, rule: ClientRule | None = None) -> None:
    """Check that a run can train on text that its nodes hold.

    Raises:
        ConfigError: a setting would need the text, the names or all nodes' counts in one place.
    """
    privacy = config.privacy
    if privacy.mention_graph == "private":
        raise ConfigError(
            "privacy.mention_graph is private; allowed with text on nodes: public, because the server enforces the "
            "bounds on the graph that the nodes send"
        )
    for name in ("entity_key", "public_names", "public_weights"):
        if getattr(privacy, name) is not None:
            raise ConfigError(
                f"privacy.{name} is {getattr(privacy, name)}; allowed with text on nodes: nothing, because the server "
                "knows no names"
            )
    if rule is not None and select_for.dispatch(type(rule)) is not select_for.dispatch(object):
        raise ConfigError(
            f"privacy.strategy is {privacy.strategy}; allowed with text on nodes: a strategy whose nodes need no "
            "counts of the whole corpus, such as uedp or user_level"
        )
