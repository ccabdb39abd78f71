"""Run the server's part of a round for every strategy: sample users, collect bounded sums, add noise once, step.

This is the mechanism of docs/privacy.md, section 2, as a Flower strategy. Strategies differ only in their
:class:`~fl_sim.strategies.mechanism.Mechanism`, which defines clips, noise and denominator.

>>> total = OrderedSum([3, 1, 2], size=2)
>>> total.settle(2, np.array([1.0, 0.0], dtype=np.float32))  # waits for node 1
>>> total.settle(1, None)  # node 1 sent nothing: node 2 is added
>>> total.finish()  # node 3 was silent
array([1., 0.])
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fl_sim.formats import printable
from fl_sim.strategies.client_rules import ClientRule
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.messages import (
    IMPERSONATION,
    TRAIN_MESSAGE,
    MessageError,
    TrainReply,
    TrainRequest,
    arrays_to_vector,
    runs_of,
    vector_to_arrays,
)
from fl_sim.strategies.postprocessing import IterateAverage, ServerOptimizer, ServerOptimizerConfig, build_optimizer
from fl_sim.strategies.primitives import clipping, sampling
from fl_sim.strategies.primitives.adaptive_clip import AdaptiveClip
from fl_sim.strategies.primitives.noise import Floats, add_gaussian_noise, add_secure_noise, sum_hash

Vector = npt.NDArray[np.float32]


class OrderedSum:
    """Hold the running sum of the vectors of nodes, added in ascending order of node ids.

    A vector that comes in its turn is added at once and forgotten; one that comes early waits. ``nodes`` are the ids of
    those that may send a vector of ``size`` = d coordinates.
    """

    def __init__(self, nodes: Iterable[int], size: int) -> None:
        self._turns = deque(sorted(nodes))
        self._early: dict[int, Vector | None] = {}
        self._total = np.zeros(size)

    def settle(self, node: int, vector: Vector | None) -> None:
        """Add the vector of a node, float32 (d,), when its turn comes; None counts as zero."""
        self._early[node] = vector
        while self._turns and self._turns[0] in self._early:
            self._add(self._early.pop(self._turns.popleft()))

    def finish(self) -> npt.NDArray[np.float64]:
        """Return the sum, float64 (d,); nodes that were not settled count as zero."""
        for node in sorted(self._early):
            self._add(self._early.pop(node))
        return self._total

    def _add(self, vector: Vector | None) -> None:
        if vector is not None:
            self._total += vector


log = logging.getLogger(__name__)

# Rounding may lift the norm of a float32 sum above the sum of its bounds, but by less than this share.
_NORM_TOLERANCE = 1e-3
# flwr.common.constant.ErrorCode 3 to 5: message, reply or node unavailable
_KIND_OF_CODE = {3: "silent", 4: "silent", 5: "silent", IMPERSONATION: "impersonation"}


class Shard(NamedTuple):
    """Describe the users ``first`` to ``stop`` − 1 of one node.

    Attributes:
        node: its id; None if the node that holds these users is absent, so that they count as zero.
        workspace: JSON that names the corpus and the model (``fl_sim.clients.worker.workspace``).
        turn: the place of the node in the sum, different for every node; the same in every run of one seed.
    """

    node: int | None
    first: int
    stop: int
    workspace: str
    turn: int


@dataclass(frozen=True)
class Federation:
    """Describe the population of a simulation: the workspace of the nodes and the load of each user.

    Attributes:
        workspace: JSON that names the corpus and the model (``fl_sim.clients.worker.workspace``).
        sentences_per_user: the number of sentences of each user, int64 (U,).
        seed: the run's root seed.
        load: the expected work of each user in a round, in any unit, (U,), by which the users are divided over the
            nodes; None for the number of sentences.
    """

    workspace: str
    sentences_per_user: npt.NDArray[np.int64]
    seed: int
    load: npt.NDArray[np.number] | None = field(default=None, kw_only=True)

    @property
    def num_users(self) -> int:
        """Return U, the number of users with data."""
        return len(self.sentences_per_user)

    def shards(self, grid: Grid) -> list[Shard]:
        """Return who computes for whom in the next round: the users divided over all nodes of ``grid``."""
        nodes = sorted(grid.get_node_ids())
        runs = partition_users(self.sentences_per_user if self.load is None else self.load, len(nodes))
        return [Shard(node, *run, self.workspace, turn=node) for node, run in zip(nodes, runs, strict=False)]


@dataclass(slots=True)
class RoundTally:
    """Count what a round did, for the owner of the simulation.

    ε does not cover these numbers (docs/privacy.md, section 8).
    """

    cohort_users: int
    cohort_sentences: int = 0
    clipped: int = 0
    nonfinite: int = 0
    loss_sum: float = 0.0
    rejected: Counter[str] = field(default_factory=Counter)
    update_norm: float = 0.0
    noise_norm: float = 0.0
    clip_norm: float | None = None

    @property
    def failed_nodes(self) -> int:
        """Return the number of replies that count as zero, of all kinds."""
        return self.rejected.total()

    def add(self, reply: TrainReply) -> None:
        """Add the counts of one accepted reply."""
        self.cohort_sentences += reply.sentences
        self.clipped += reply.clipped
        self.nonfinite += reply.nonfinite
        self.loss_sum += reply.loss_sum

    def metrics(self) -> dict[str, float]:
        """Return the tally as one flat row; a mean over no sentences is NaN.

        ``failed_nodes`` counts all replies that count as zero, and ``failed_KIND`` those of each kind that occurred
        (:data:`fl_sim.strategies.messages.REJECTIONS`).
        """
        sentences = self.cohort_sentences
        return {
            "cohort_users": self.cohort_users,
            "cohort_sentences": sentences,
            "clipped_fraction": self.clipped / sentences if sentences else math.nan,
            "train_loss": self.loss_sum / sentences if sentences else math.nan,
            "update_norm": self.update_norm,
            "noise_norm": self.noise_norm,
            "failed_nodes": self.failed_nodes,
            "nonfinite": self.nonfinite,
            **{f"failed_{kind}": count for kind, count in sorted(self.rejected.items())},
            **({} if self.clip_norm is None else {"clip_norm": self.clip_norm}),
        }


class Asked(NamedTuple):
    """Describe the request to one node.

    Attributes:
        sentences: the most sentences that they can have.
        identity: a hash of the request, which its reply repeats (:attr:`TrainRequest.identity`).
        turn: the place of the node in the sum, different for every node; the same in every run of one seed.
    """

    users: int
    sentences: int
    identity: str
    turn: int


@dataclass
class _OpenRound:
    """Hold the model, the tally and the requests (by node) of the current round."""

    vector: npt.NDArray[np.float32]
    tally: RoundTally
    asked: Mapping[int, Asked] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundParts:
    """Hold the parts of a `BoundedSumStrategy`.

    Attributes:
        plan: the mechanism (rates, clips, noise, denominator) and the number of rounds.
        federation: the users and their nodes.
        optimizer: the server's step, post-processing of the noisy average; not used by
            :meth:`BoundedSumStrategy.noisy_average`.
        average: the average of the models so far, which is evaluated and saved.
        should_stop: called after every round; true ends the run.
        before_release: called before the noise of a round is drawn, to record the release in the ledger, with the
            round and a keyed hash of the sum (empty for secure noise). Returns the name of the stream of seeded noise,
            empty for the round's own. If it raises, the round releases nothing.
        secure_noise: whether to draw the noise from the operating system instead of the federation's seed. A repeated
            round is then another release (docs/privacy-accounting.md, sections 9 and 10).
        noise_key: a digest of what the releases are computed from. Seeded noise is a function of seed, key and round,
            so two runs with one seed that differ in anything else have independent noise.
    """

    plan: PrivacyPlan
    federation: Federation
    optimizer: ServerOptimizer = field(default_factory=lambda: build_optimizer(ServerOptimizerConfig(), size=0))
    average: IterateAverage = field(default_factory=IterateAverage)
    should_stop: Callable[[], bool] = lambda: False
    before_release: Callable[[int, str], str] = lambda server_round, total: ""
    secure_noise: bool = False
    noise_key: str = ""


class BoundedSumStrategy(Strategy):
    """Train by federated averaging in which each round releases one noisy sum of bounded client updates.

    Guarantee: against an adversary who observes all T models, the sequence of models is (ε, δ)-UeDP with the ε of
    :meth:`PrivacyPlan.epsilon_curve` (docs/privacy-proofs.md, sections 4 and 5). An adaptive clip releases its noisy
    count as one more coordinate of the sum, under the same ε (section 12).

    Assumptions (section 2): nodes follow the client rule (a reply of too large a norm is discarded), a failed node
    counts as zero, and vocabulary, initial model, N and all rates are public.
    """

    def __init__(self, parts: RoundParts) -> None:
        self.plan = parts.plan
        self.mechanism = parts.plan.mechanism
        self.federation = parts.federation
        self.tally = RoundTally(cohort_users=0)
        self._parts = parts
        self._clip_norm = np.array([self.mechanism.clip_norm])
        self._open = _OpenRound(np.empty(0, np.float32), self.tally)

    @property
    def clip_norm(self) -> float:
        """Return c of the current round."""
        return float(self._clip_norm[0])

    @property
    def client_rule(self) -> ClientRule:
        """Return the client rule of the current round."""
        return self.mechanism.client_rule(self.clip_norm)

    def averaged(self, model: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the model to evaluate and save, float32 (d,), given the current ``model``, float32 (d,)."""
        return self._parts.average.value(model)

    def state(self) -> dict[str, npt.NDArray[np.floating]]:
        """Return the arrays that a checkpoint needs beside the model to continue with the same next round, by name.

        The next round changes them in place.
        """
        adaptive = {"clip_norm": self._clip_norm} if self.mechanism.adaptive is not None else {}
        return self._parts.optimizer.state() | self._parts.average.state() | adaptive

    def restore(self, state: Mapping[str, npt.NDArray[np.floating]]) -> None:
        """Set the state to that of a checkpoint, as :meth:`state` returned it."""
        self._parts.optimizer.restore(state)
        self._parts.average.restore(state)
        if self.mechanism.adaptive is not None:
            self._clip_norm = state["clip_norm"]

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        first_round: int = 1,
    ) -> Result:
        """Run the rounds ``first_round`` to ``num_rounds``.

        Args:
            initial_arrays: the model before ``first_round``.
            num_rounds: T, the last round.
            timeout: seconds to wait for the replies of a round.
            train_config, evaluate_config: accepted for Flower's interface; not read.
            evaluate_fn: called with the round and the model after each round, and with 0 before the first.
            first_round: 1, or the next round of a checkpoint.
        """
        result = Result()
        arrays = initial_arrays
        del initial_arrays  # the model of a round is let go of with its round
        if evaluate_fn is not None and first_round == 1:
            evaluate_fn(0, arrays)
        for server_round in range(first_round, num_rounds + 1):
            requests = list(self.configure_train(server_round, arrays, train_config or ConfigRecord(), grid))
            replies = grid.send_and_receive(requests, timeout=timeout)
            arrays, metrics = self.aggregate_train(server_round, replies)
            for request in requests:
                request.content.array_records.clear()  # frees the round's model: a record is in a cycle of references
            result.arrays, result.train_metrics_clientapp[server_round] = arrays, metrics
            if evaluate_fn is not None:
                evaluate_fn(server_round, arrays)
            if self._parts.should_stop():
                break
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sample the round's users and return one request per node that hosts a sampled user."""
        federation = self.federation
        cohort = self.mechanism.cohort(federation.seed, server_round, federation.num_users)
        vector = arrays_to_vector(arrays)
        requests, asked, absent = [], {}, 0
        for shard in federation.shards(grid):
            users = cohort[np.searchsorted(cohort, shard.first) : np.searchsorted(cohort, shard.stop)]
            if len(users) and shard.node is None:
                absent += 1
            elif len(users) and shard.node is not None:
                request = TrainRequest(
                    server_round=server_round,
                    round_seed=sampling.round_seed(federation.seed, server_round),
                    users=runs_of(users),
                    rule=self.client_rule,
                    workspace=shard.workspace,
                    vector=vector,
                )
                sentences = int(federation.sentences_per_user[users].sum())
                asked[shard.node] = Asked(len(users), sentences, request.identity, shard.turn)
                requests.append(Message(request.to_record(arrays), shard.node, TRAIN_MESSAGE))
        self.open_round(vector, asked)
        self._open.tally.rejected.update(["silent"] * absent)
        return requests

    def open_round(self, vector: npt.NDArray[np.float32], asked: Mapping[int, Asked]) -> None:
        """Begin a round at θ, float32 (d,): :meth:`aggregate_train` accepts replies to these requests alone."""
        self._open = _OpenRound(vector, RoundTally(cohort_users=sum(each.users for each in asked.values())), asked)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord, MetricRecord]:
        """Return the next model θ + step((Σ_u v_u + N(0, σ²I)) / (q_u·N)), and the round's metrics."""
        average = self.noisy_average(server_round, replies)
        stepped = self._parts.optimizer.stepped(self._open.vector, average)
        self._parts.average.add(server_round, stepped)
        return vector_to_arrays(stepped), MetricRecord(dict(self.tally.metrics()))

    def noisy_average(self, server_round: int, replies: Iterable[Message]) -> Floats:
        """Return (Σ_u v_u + N(0, σ²I)) / (q_u·N), float64 (d,), the release of a round that :meth:`open_round` began.

        A failed node counts as zero. Noise is added in every round, also when no user was sampled. ``before_release``
        runs before noise is drawn, so the ledger has recorded every release.
        """
        mechanism, self.tally = self.mechanism, self._open.tally
        total, votes = self._sum(replies)
        self.tally.update_norm = float(np.linalg.norm(total)) / mechanism.denominator
        std = mechanism.noise_std(self.clip_norm)
        stream = self._parts.before_release(server_round, self._hash(server_round, total, votes, std))
        self.tally.noise_norm = self._add_noise(server_round, total, std, stream) / mechanism.denominator
        if mechanism.adaptive is not None:
            self.tally.clip_norm = self.clip_norm
            self._adapt(mechanism.adaptive, server_round, votes, stream)
        total /= mechanism.denominator
        return total

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no requests: held-out text is evaluated on the server."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return None: held-out text is evaluated on the server."""
        return None

    def summary(self) -> None:
        """Log the plan."""
        log.info("%s: %s", type(self).__name__, self.plan)

    def _sum(self, replies: Iterable[Message]) -> tuple[Floats, float]:
        """Return the sums of vectors, float64 (d,), and of votes over all accepted replies.

        Replies are added in the order of their nodes' turns, so the order of arrival does not matter.
        """
        waiting, counts = dict(self._open.asked), dict[int, TrainReply]()
        total = OrderedSum((each.turn for each in waiting.values()), len(self._open.vector))
        for message in replies:
            node = message.metadata.src_node_id
            asked = waiting.pop(node, None)
            try:
                turn, reply = self._checked(message, asked)
            except MessageError as error:
                log.warning("round's reply discarded: %s", error)
                self.tally.rejected[error.kind] += 1
                if asked is not None:
                    total.settle(asked.turn, None)
                continue
            total.settle(turn, reply.vector)
            counts[turn] = replace(reply, vector=reply.vector[:0].copy())  # the vector itself is not kept
        self.tally.rejected.update(["silent"] * len(waiting))
        accepted = [counts[turn] for turn in sorted(counts)]
        for reply in accepted:
            self.tally.add(reply)
        return total.finish(), sum((reply.votes for reply in accepted), 0.0)

    def _add_noise(self, server_round: int, total: Floats, std: float, stream: str, purpose: str = "noise") -> float:
        """Add noise of deviation ``std`` to a sum, float64 (d,), in place, and return the norm of the noise.

        Round, seed, ``noise_key`` and ``stream`` key seeded noise (docs/privacy-threats.md, section 10).
        """
        if self._parts.secure_noise and std > 0:
            return add_secure_noise(total, std)
        name = " ".join(part for part in (purpose, self._parts.noise_key, stream) if part)
        return add_gaussian_noise(total, self.federation.seed, server_round, std, name)

    def _hash(self, server_round: int, total: Floats, votes: float, std: float) -> str:
        """Return a keyed hash of all that seeded noise is added to or scaled with; nothing for secure noise."""
        if self._parts.secure_noise:
            return ""
        return sum_hash(self.federation.seed, server_round, total, (votes, std, self.clip_norm))

    def _adapt(self, adaptive: AdaptiveClip, server_round: int, votes: float, stream: str) -> None:
        """Set c ← c·exp(−η·(Σ(b − γ) + noise) / (ŵ·q_u·N)), post-processing of the released noisy count."""
        mechanism = self.mechanism
        std = adaptive.count_noise_std(mechanism.noise_multiplier, mechanism.items_per_user)
        count = np.array([votes])
        self._add_noise(server_round, count, std, stream, "count noise")
        share = float(count[0]) / (mechanism.items_per_user * mechanism.expected_cohort)
        self._clip_norm = np.array([adaptive.next_clip(mechanism.clip_norm, self.clip_norm, share)])

    def _checked(self, message: Message, asked: Asked | None) -> tuple[int, TrainReply]:
        """Return the turn of a node and its reply, which answers its request with a norm within its users' bound.

        Raises:
            MessageError: the node failed, was not asked, answers another request, or exceeds the bound.
        """
        node = message.metadata.src_node_id
        if message.has_error():
            kind = _KIND_OF_CODE.get(message.error.code, "error")
            raise MessageError(f"node {node} failed: {printable(message.error.reason)}", kind)
        if asked is None:
            raise MessageError(f"node {node} was not asked, or answered twice", "duplicate")
        reply, users = TrainReply.from_message(message, len(self._open.vector)), asked.users
        if reply.answers != asked.identity:
            reason = "answered for other users, or for another round, than it was asked"
            raise MessageError(f"node {node} {reason}", "other_request")
        if reply.users != users or reply.vector.shape != self._open.vector.shape:
            raise MessageError(
                f"node {node} sent {reply.users} users, shape {reply.vector.shape}; "
                f"asked for {users} users, shape {self._open.vector.shape}",
                "wrong_shape",
            )
        # a contribution that is not finite is a sentence's or its user's
        if max(reply.sentences, reply.clipped, reply.nonfinite - users) > asked.sentences:
            counts = f"{reply.sentences} sentences, {reply.clipped} clipped, {reply.nonfinite} not finite"
            raise MessageError(f"node {node} sent {counts}; its users have {asked.sentences}", "wrong_counts")
        rule = self.client_rule
        bound = users * rule.user_clip
        length = rule.joint_norm(clipping.norm(reply.vector), reply.votes)
        if not math.isfinite(length) or length > bound * (1 + _NORM_TOLERANCE):
            kind = "too_large" if math.isfinite(length) else "not_finite"
            raise MessageError(f"node {node} sent a sum of norm {length:g}; {users} users allow {bound:g}", kind)
        return asked.turn, reply


def partition_users(load: npt.NDArray[np.number], num_nodes: int) -> list[tuple[int, int]]:
    """Split the users into one run of consecutive ids per node, with about equal sums of ``load``, (U,).

    Returns min(U, num_nodes) runs (first, one past the last), each with at least one user.
    """
    users = len(load)
    shards = min(num_nodes, users)
    done = np.cumsum(load)
    targets = done[-1] * np.arange(1, shards) / shards if shards else np.empty(0)
    cuts = [0, *(np.searchsorted(done, targets) + 1).tolist(), users]
    for k in range(1, shards):  # at least one user on each side of every cut
        cuts[k] = min(max(cuts[k], cuts[k - 1] + 1), users - (shards - k))
    return list(itertools.pairwise(cuts)) if shards else []
