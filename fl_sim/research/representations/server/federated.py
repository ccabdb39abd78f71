"""The clients over Flower messages: vectors come up, gradients go down (split learning), encoders stay with the nodes.

The server tells nodes the encoder's parameters, as in DPNR, where it provides the feature extractor; it never sees a
text, nor a vector before the privacy layer. Whatever the number of nodes, the vectors are those of
`fl_sim.research.representations.server.parties.LocalClients`; the encoder's gradient is the sum of the nodes'
gradients, so that only the order of a floating-point sum differs.
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
from fl_sim.research.representations.client.client_workspace import ClientSpec, Workspace
from fl_sim.research.representations.client.representation_messages import (
    PERTURB,
    PLACE,
    RELEASE,
    STEP,
    VALIDATE,
    Request,
    arrays_of,
)
from fl_sim.research.representations.corpora.labelled import TEST, TRAIN, VALIDATION
from fl_sim.research.representations.server.optimizers import OptimizerSpec

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]

_NONE = np.empty(0, dtype=np.int64)


def make_server_app(spec: ClientSpec, optimizer: OptimizerSpec, work: Callable[[FlowerClients], None]) -> ServerApp:
    """The ServerApp that lets ``work`` (a training, say) deal with the nodes of its grid."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        work(FlowerClients(grid, spec, optimizer))

    return server


@dataclass(frozen=True)
class _Sent:
    """The last training batch, for its gradient."""

    rows: Rows
    seed: int
    scale: float | None


class FlowerClients:
    """Clients that are the nodes of a Flower grid.

    Args:
        grid: with the ClientApp of `fl_sim.research.representations.client.representation_app`.
        spec: of the nodes' workspaces. optimizer: of the encoder, on the server.
    """

    def __init__(self, grid: Grid, spec: ClientSpec, optimizer: OptimizerSpec) -> None:
        self._grid = grid
        self._spec = spec.model_dump_json()
        self._nodes = self._in_places()
        workspace = Workspace(spec)
        self._sizes = {split: workspace.rows(split) for split in (TRAIN, VALIDATION, TEST)}
        self.width = workspace.encoder.width
        trainable = [p for p in workspace.encoder.parameters() if p.requires_grad]
        self._parameters = TrainableParameters(workspace.encoder) if trainable else None
        self._optimizer = optimizer.build(trainable) if trainable else None
        self._sent: _Sent | None = None

    def forward(self, rows: Rows, seed: int, scale: float | None) -> torch.Tensor:
        self._sent = _Sent(rows, seed, scale)
        vectors = np.empty((len(rows), self.width), dtype=np.float32)
        for places, reply in self._of_rows(PERTURB, self._sent, None):
            vectors[places] = reply["vectors"]
        return torch.from_numpy(vectors)

    def backward(self, gradient: torch.Tensor) -> None:
        if self._parameters is None or self._optimizer is None or self._sent is None:
            return
        total = np.zeros(self._parameters.size, dtype=np.float32)
        for _, reply in self._of_rows(STEP, self._sent, gradient.numpy()):
            total += reply["gradient"]
        flat = torch.from_numpy(total)
        for name, view in self._parameters.views(flat).items():
            self._parameters.tensors[name].grad = view
        self._optimizer.step()

    def validation(self, seed: int) -> torch.Tensor:
        return torch.from_numpy(self._of_split(VALIDATE, VALIDATION, seed))

    def released(self, split: str, seed: int | None) -> Floats:
        return self._of_split(RELEASE, split, seed)

    def _in_places(self) -> list[int]:
        """The nodes by the places that they have: the i-th holds the rows i, i + N, … of every split."""
        nothing = Request(self._spec, np.empty(0, dtype=np.float32), TRAIN, None, _NONE, _NONE)
        nodes = sorted(self._grid.get_node_ids())
        answers = self._ask(f"query.{PLACE}", dict.fromkeys(nodes, nothing))
        found = {int(reply["place"][0]): node for node, reply in answers}
        if sorted(found) != list(range(len(nodes))):
            raise GridError(f"{len(nodes)} nodes have the places {sorted(found)}; allowed: each from 0 once")
        return [found[place] for place in range(len(nodes))]

    @property
    def _encoder(self) -> Floats:
        return np.empty(0, dtype=np.float32) if self._parameters is None else self._parameters.read()

    def _of_rows(self, action: str, sent: _Sent, gradient: Floats | None) -> Iterable[tuple[Rows, dict[str, Any]]]:
        """Ask every node that holds one of the batch's rows; (places in the batch, its answer) each."""
        holder = sent.rows % len(self._nodes)
        encoder = self._encoder
        asked: dict[int, Rows] = {}
        requests = {}
        for number, node in enumerate(self._nodes):
            places = np.flatnonzero(holder == number)
            if len(places):
                asked[node] = places
                requests[node] = Request(
                    self._spec, encoder, TRAIN, sent.seed, places, sent.rows[places], len(sent.rows), sent.scale,
                    None if gradient is None else gradient[places],
                )  # fmt: skip
        for node, reply in self._ask(f"train.{action}", requests):
            yield asked[node], reply

    def _of_split(self, action: str, split: str, seed: int | None) -> Floats:
        vectors = np.empty((self._sizes[split], self.width), dtype=np.float32)
        request = Request(self._spec, self._encoder, split, seed, _NONE, _NONE)
        for _, reply in self._ask(f"query.{action}", dict.fromkeys(self._nodes, request)):
            vectors[reply["rows"]] = reply["vectors"]
        return vectors

    def _ask(self, kind: str, requests: dict[int, Request]) -> list[tuple[int, dict[str, Any]]]:
        messages = [
            Message(request.to_record(), node, kind, group_id=str(number))
            for number, (node, request) in enumerate(requests.items())
        ]
        replies = list(self._grid.send_and_receive(messages))
        failed = [reply for reply in replies if reply.has_error()]
        if failed or len(replies) < len(messages):
            reason = failed[0].error.reason if failed else "no answer"
            # A missing part of a batch would be another experiment: nothing is left out silently.
            raise GridError(f"{len(messages) - len(replies) + len(failed)} of {len(messages)} nodes failed: {reason}")
        found = {reply.metadata.src_node_id: arrays_of(reply) for reply in replies}
        # In the order of asking, so that sums of gradients do not depend on who was quick.
        return [(node, found[node]) for node in requests]
