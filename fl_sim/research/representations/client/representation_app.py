"""Messages between server and clients of private representations, written and read in one module.

| message | down | up |
|---|---|---|
| ``train.perturb`` | the encoder, rows of the training split, a seed, a noise scale | those rows' perturbed vectors |
| ``train.step`` | the same, and the loss's gradient in those vectors | its gradient in the encoder's parameters |
| ``query.partition`` | nothing | the node's partition of 0 … N − 1 |
| ``query.validate`` | the encoder, a seed | the node's validation rows with training noise |
| ``query.release`` | the encoder, a split, a seed or none | the node's released rows of the split |

Only ``query.release`` has a guarantee (docs/representations.md): training is on public examples, as in the papers. The
node of partition i of N holds the rows i, i + N, i + 2N, … of every split, and refuses others.

>>> none, rows = np.empty(0, np.float32), np.arange(3)
>>> request = Request("{}", none, "train", seed=7, positions=rows, rows=rows, total=3, scale=0.5)
>>> record = request.to_record()  # the content of a Flower message
>>> record["config"]["seed"], record["config"]["scale"], record["arrays"]["rows"].numpy().tolist()
('0x7', '0.5', [0, 1, 2])

The Flower ClientApp of private representations: the node holds texts, encoder and privacy layer, and sends vectors.

A node keeps nothing between messages. For a gradient it computes the vectors again with the same masks and noise,
because all randomness of a step follows from the step's seed. So a node may restart, or be an actor of Ray.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from fl_sim.clients.client_app import reply_with_failure
from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.parameters import TrainableParameters
from fl_sim.research.representations.client.client_workspace import Workspace
from fl_sim.research.representations.client.feed_forward import Draw
from fl_sim.research.representations.config import ExperimentConfig
from fl_sim.research.representations.corpora.labelled import TRAIN

PERTURB, STEP = "perturb", "step"
PARTITION, VALIDATE, RELEASE = "partition", "validate", "release"
_ARRAYS, _CONFIG = "arrays", "config"
_DEFAULT = "default"

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Request:
    """A request of the server to a node.

    Attributes:
        workspace: JSON of the :class:`~fl_sim.research.representations.config.ExperimentConfig`.
        encoder: the encoder's trainable parameters, float32 (d,); d may be 0.
        split: of the rows.
        seed: of masks and noise; None: the operating system's (release alone).
        positions: of the rows in the step's batch, int64 (b,); empty for all rows that the node holds.
        rows: of the split, int64 (b,).
        total: rows of the full batch.
        scale: of the noise; None for the layer's own.
        gradient: of the loss in the vectors, float32 (b, k); None but in a step.
    """

    workspace: str
    encoder: Floats
    split: str
    seed: int | None
    positions: NDArray[np.int64]
    rows: NDArray[np.int64]
    total: int = 0
    scale: float | None = None
    gradient: Floats | None = None

    def to_record(self) -> RecordDict:
        """Return the record of a Flower message."""
        config: dict[str, Any] = {"workspace": self.workspace, "split": self.split, "total": self.total}
        # Flower's records have no None.
        config["seed"] = _DEFAULT if self.seed is None else hex(self.seed)
        config["scale"] = _DEFAULT if self.scale is None else repr(self.scale)
        arrays = {"encoder": self.encoder, "positions": self.positions, "rows": self.rows}
        if self.gradient is not None:
            arrays["gradient"] = self.gradient
        return RecordDict({_CONFIG: ConfigRecord(config), _ARRAYS: _array_record(arrays)})

    @classmethod
    def from_message(cls, message: Message) -> Request:
        """Return the request that :meth:`to_record` wrote."""
        config: dict[str, Any] = dict(message.content.config_records[_CONFIG])
        arrays = arrays_of(message)
        return cls(
            workspace=config["workspace"],
            encoder=arrays["encoder"],
            split=config["split"],
            seed=None if config["seed"] == _DEFAULT else int(config["seed"], 16),
            positions=arrays["positions"],
            rows=arrays["rows"],
            total=config["total"],
            scale=None if config["scale"] == _DEFAULT else float(config["scale"]),
            gradient=arrays.get("gradient"),
        )


def reply_record(**arrays: NDArray[Any]) -> RecordDict:
    """Return the record of a reply with these arrays."""
    return RecordDict({_ARRAYS: _array_record(arrays)})


def arrays_of(message: Message) -> dict[str, Any]:
    """Return all arrays of a message by name."""
    record = message.content.array_records[_ARRAYS]
    return {name: array.numpy() for name, array in record.items()}


def _array_record(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()})


app = ClientApp()


@app.query(PARTITION, mods=[reply_with_failure])
def partition(message: Message, context: Context) -> Message:
    """Reply with the node's partition of 0 … N − 1."""
    return Message(reply_record(partition=np.array([_partition_of(context)[0]])), reply_to=message)


@app.train(PERTURB, mods=[reply_with_failure])
def perturb(message: Message, context: Context) -> Message:
    """Reply with the perturbed vectors of the requested rows."""
    request = Request.from_message(message)
    with torch.no_grad():
        vectors = _perturb(_open_workspace(request), request, context)
    return Message(reply_record(vectors=vectors.numpy()), reply_to=message)


@app.train(STEP, mods=[reply_with_failure])
def step(message: Message, context: Context) -> Message:
    """Reply with the gradient in the encoder's parameters, given the gradient in the vectors."""
    request = Request.from_message(message)
    workspace = _open_workspace(request)
    workspace.encoder.zero_grad()
    _perturb(workspace, request, context).backward(torch.from_numpy(np.array(request.gradient)))
    tensors = _parameters_of(workspace).tensors.values()
    gradients = [tensor.grad.reshape(-1).numpy() for tensor in tensors if tensor.grad is not None]
    return Message(reply_record(gradient=np.concatenate(gradients)), reply_to=message)


@app.query(VALIDATE, mods=[reply_with_failure])
def validate(message: Message, context: Context) -> Message:
    """Reply with the vectors of the node's validation rows, with training noise."""
    request = Request.from_message(message)
    workspace = _open_workspace(request)
    total = workspace.rows(request.split)
    rows = held_rows(total, context)
    with torch.no_grad():
        draw = Draw(_required_seed(request), torch.from_numpy(rows), total)
        vectors = workspace.layer(workspace.encode(request.split, rows), draw)
    return Message(reply_record(vectors=vectors.numpy(), rows=rows), reply_to=message)


@app.query(RELEASE, mods=[reply_with_failure])
def release(message: Message, context: Context) -> Message:
    """Reply with the released vectors of the node's rows of a split; the privacy layer's guarantee covers them."""
    request = Request.from_message(message)
    workspace = _open_workspace(request)
    rows = held_rows(workspace.rows(request.split), context)
    vectors = workspace.release(request.split, request.seed, rows)
    return Message(reply_record(vectors=vectors, rows=rows), reply_to=message)


def held_rows(total: int, context: Context) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the rows that this node holds of a split of ``total`` rows, int64 (n,)."""
    partition_id, partitions = _partition_of(context)
    return np.arange(partition_id, total, partitions)


def _partition_of(context: Context) -> tuple[int, int]:
    """Return the node's partition and the number of partitions."""
    return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])


def _perturb(workspace: Workspace, request: Request, context: Context) -> torch.Tensor:
    partition_id, partitions = _partition_of(context)
    if (request.rows % partitions != partition_id).any():
        raise ModelError(f"a requested row is not in partition {partition_id} of {partitions}; allowed: rows of it")
    draw = Draw(_required_seed(request), torch.from_numpy(np.array(request.positions)), request.total)
    return workspace.perturb(TRAIN, np.array(request.rows), draw, request.scale)


def _open_workspace(request: Request) -> Workspace:
    """Return the workspace of the request's spec, with the request's encoder parameters."""
    workspace = _workspace(request.workspace)
    if request.encoder.size:
        _parameters_of(workspace).write(request.encoder)
    return workspace


@functools.lru_cache(maxsize=2)
def _workspace(config: str) -> Workspace:
    return Workspace(ExperimentConfig.model_validate_json(config))


def _parameters_of(workspace: Workspace) -> TrainableParameters:
    return TrainableParameters(workspace.encoder)


def _required_seed(request: Request) -> int:
    if request.seed is None:
        raise ModelError("seed is missing; allowed: a training message with a seed")
    return request.seed
