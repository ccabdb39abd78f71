"""Clients over Flower messages: vectors go up, gradients come down (split learning), encoders stay on the nodes.

The server sends the nodes the encoder's parameters, as DPNR's server provides the feature extractor. It never receives
a text, nor a vector before the privacy layer. The vectors are those of
`fl_sim.research.representations.server.clients.LocalClients` for any number of nodes; the encoder's gradient is the sum
of the nodes' gradients, so only the order of a floating-point sum differs.

>>> from fl_sim.research.representations.config import load_mapping
>>> app = make_server_app(load_mapping({"method": "li"}), lambda clients: print(clients.width))
>>> isinstance(app, ServerApp)  # start it with an engine, beside the nodes' ClientApp
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from fl_sim.clients.models.parameters import TrainableParameters
from fl_sim.engines.grids import GridError
from fl_sim.research.representations.client.client_workspace import Workspace
from fl_sim.research.representations.client.representation_app import (
    PARTITION,
    PERTURB,
    RELEASE,
    STEP,
    VALIDATE,
    Request,
    arrays_of,
)
from fl_sim.research.representations.config import ExperimentConfig
from fl_sim.research.representations.corpora.labelled import SPLITS, TRAIN, VALIDATION
from fl_sim.research.representations.server.clients import build_optimizer, trainable

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]

_NO_ROWS = np.empty(0, dtype=np.int64)
_NO_PARAMETERS = np.empty(0, dtype=np.float32)


def make_server_app(config: ExperimentConfig, work: Callable[[FlowerClients], None]) -> ServerApp:
    """Return a ServerApp that calls ``work`` with the clients of its grid.

    Args:
        config: of the experiment.
        work: a training, for example.
    """
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        work(FlowerClients(grid, config))

    return server


@dataclass(frozen=True)
class _SentBatch:
    """The last training batch; its gradient needs the same rows, seed and scale."""

    rows: Rows
    seed: int
    scale: float | None


class FlowerClients:
    """The nodes of a Flower grid as clients.

    Args:
        grid: with the ClientApp of `fl_sim.research.representations.client.representation_app`.
        config: of the experiment; the encoder's optimizer is on the server.

    Raises:
        GridError: if a node fails, or the nodes' partitions are not 0 … N − 1.
    """

    def __init__(self, grid: Grid, config: ExperimentConfig) -> None:
        self._grid = grid
        self._config = config.model_dump_json()
        self._nodes = self._nodes_by_partition()
        workspace = Workspace(config)
        self._sizes = {split: workspace.rows(split) for split in SPLITS}
        self.width = workspace.encoder.width
        parameters = trainable(workspace.encoder)
        self._optimizer = build_optimizer(config.optimizer, parameters) if parameters else None
        self._parameters = TrainableParameters(workspace.encoder) if parameters else None
        self._sent: _SentBatch | None = None

    def forward(self, rows: Rows, seed: int, scale: float | None) -> torch.Tensor:
        self._sent = _SentBatch(rows, seed, scale)
        vectors = np.empty((len(rows), self.width), dtype=np.float32)
        for positions, reply in self._ask_for_rows(PERTURB, self._sent, None):
            vectors[positions] = reply["vectors"]
        return torch.from_numpy(vectors)

    def backward(self, gradient: torch.Tensor) -> None:
        if self._parameters is None or self._optimizer is None or self._sent is None:
            return
        total = np.zeros(self._parameters.size, dtype=np.float32)
        for _, reply in self._ask_for_rows(STEP, self._sent, gradient.numpy()):
            total += reply["gradient"]
        flat = torch.from_numpy(total)
        for name, view in self._parameters.views(flat).items():
            self._parameters.tensors[name].grad = view
        self._optimizer.step()

    def validate(self, seed: int) -> torch.Tensor:
        return torch.from_numpy(self._ask_for_split(VALIDATE, VALIDATION, seed))

    def release(self, split: str, seed: int | None) -> Floats:
        return self._ask_for_split(RELEASE, split, seed)

    def _nodes_by_partition(self) -> list[int]:
        """Return the node ids by partition: the i-th holds the rows i, i + N, … of every split."""
        empty = Request(self._config, _NO_PARAMETERS, TRAIN, None, _NO_ROWS, _NO_ROWS)
        nodes = sorted(self._grid.get_node_ids())
        replies = self._ask(f"query.{PARTITION}", dict.fromkeys(nodes, empty))
        by_partition = {int(reply["partition"][0]): node for node, reply in replies}
        if sorted(by_partition) != list(range(len(nodes))):
            raise GridError(f"partitions of {len(nodes)} nodes are {sorted(by_partition)}; allowed: each from 0 once")
        return [by_partition[number] for number in range(len(nodes))]

    @property
    def _encoder(self) -> Floats:
        return _NO_PARAMETERS if self._parameters is None else self._parameters.read()

    def _ask_for_rows(
        self, action: str, batch: _SentBatch, gradient: Floats | None
    ) -> Iterable[tuple[Rows, dict[str, Any]]]:
        """Ask every node that holds rows of the batch; yield their positions in the batch and the reply's arrays."""
        holder = batch.rows % len(self._nodes)
        encoder = self._encoder
        positions_of: dict[int, Rows] = {}
        requests = {}
        for number, node in enumerate(self._nodes):
            positions = np.flatnonzero(holder == number)
            if len(positions):
                positions_of[node] = positions
                requests[node] = Request(
                    self._config, encoder, TRAIN, batch.seed, positions, batch.rows[positions], len(batch.rows),
                    batch.scale, None if gradient is None else gradient[positions],
                )  # fmt: skip
        for node, reply in self._ask(f"train.{action}", requests):
            yield positions_of[node], reply

    def _ask_for_split(self, action: str, split: str, seed: int | None) -> Floats:
        """Ask every node for its rows of a split; return the vectors of all rows, float32 (n, k)."""
        vectors = np.empty((self._sizes[split], self.width), dtype=np.float32)
        request = Request(self._config, self._encoder, split, seed, _NO_ROWS, _NO_ROWS)
        for _, reply in self._ask(f"query.{action}", dict.fromkeys(self._nodes, request)):
            vectors[reply["rows"]] = reply["vectors"]
        return vectors

    def _ask(self, kind: str, requests: dict[int, Request]) -> list[tuple[int, dict[str, Any]]]:
        """Send one request per node; return each node's reply in the order of ``requests``."""
        messages = [
            Message(request.to_record(), node, kind, group_id=str(number))
            for number, (node, request) in enumerate(requests.items())
        ]
        replies = list(self._grid.send_and_receive(messages))
        failed = [reply for reply in replies if reply.has_error()]
        if failed or len(replies) < len(messages):
            reason = failed[0].error.reason if failed else "no answer"
            # A batch without some of its rows would be another experiment.
            raise GridError(f"{len(messages) - len(replies) + len(failed)} of {len(messages)} nodes failed: {reason}")
        arrays = {reply.metadata.src_node_id: arrays_of(reply) for reply in replies}
        # In the order of the requests, so that sums of gradients do not depend on who answers first.
        return [(node, arrays[node]) for node in requests]
