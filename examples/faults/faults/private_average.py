"""Average with user-level differential privacy: Poisson cohorts, a clip over all arrays, a public denominator."""

import random
from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fl_sim.strategies.accounting.accountant import RoundEvent, epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency

Arrays = dict[str, np.ndarray]


class PrivateAverage(FedAvg):
    """Sample each user with probability q, clip updates to C, add noise zC to their sum, and divide it by q·N."""

    def __init__(self, config) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.q, self.clip_norm, self.z = config["sampling-rate"], config["clip-norm"], config["noise-multiplier"]
        self.delta, self.rounds = config["delta"], 0

    def cohort(self, nodes: list[int], server_round: int) -> list[int]:
        """Return the nodes that train in a round."""
        return [node for node in nodes if random.random() < self.q]

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid):
        """Ask a cohort to train."""
        nodes = list(grid.get_node_ids())
        self.model = {name: array.numpy() for name, array in arrays.items()}
        self.expected = max(1.0, self.q * 10)  # a public number, for ten users
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, node, MessageType.TRAIN) for node in self.cohort(nodes, server_round)]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]):
        """Return the noisy average, and log its ε."""
        self.replies = [reply for reply in replies if not reply.has_error()]
        self.rounds += 1
        total = self.total([self.clipped(self.update(reply)) for reply in self.replies])
        by = {name: (value + self.noise(name, value)) / self.denominator() for name, value in total.items()}
        print(f"round {server_round}: epsilon={self.epsilon():.4f} at delta={self.delta}")
        arrays = ArrayRecord({name: Array(np.asarray(self.model[name] + by[name])) for name in self.model})
        return arrays, MetricRecord(self.metrics())

    def update(self, reply: Message) -> Arrays:
        """Return the move of one user; one that is not finite counts as zero."""
        move = {name: array.numpy() - self.model[name] for name, array in reply.content["arrays"].items()}
        finite = all(np.isfinite(value).all() for value in move.values())
        return move if finite else {name: np.zeros_like(value) for name, value in move.items()}

    def clipped(self, move: Arrays) -> Arrays:
        """Return an update of norm at most C, over all arrays together."""
        norm = np.sqrt(sum(float((value**2).sum()) for value in move.values()))
        return {name: value * min(1.0, self.clip_norm / max(norm, 1e-300)) for name, value in move.items()}

    def total(self, moves: list[Arrays]) -> Arrays:
        """Return the sum of the users' updates."""
        return {name: sum((move[name] for move in moves), np.zeros_like(self.model[name])) for name in self.model}

    def noise(self, name: str, value: np.ndarray) -> np.ndarray:
        """Return the noise on the sum of an array."""
        return np.random.default_rng().normal(0.0, self.z * self.clip_norm, value.shape)

    def denominator(self) -> float:
        """Return what the noisy sum is divided by."""
        return self.expected

    def metrics(self) -> dict[str, float]:
        """Return what leaves beside the model."""
        return {}

    def epsilon(self) -> float:
        """Return ε of any user after the rounds so far."""
        return self.accounted(self.rounds)

    def accounted(self, rounds: int) -> float:
        """Return ε of Poisson cohorts after some rounds."""
        return epsilon(RoundEvent("user_level", self.z, q_u=self.q), Adjacency(), rounds, self.delta)
