"""The Flower ClientApp of private representations: the node holds texts, encoder and privacy layer, and sends vectors.

A node keeps nothing between messages. For a gradient it computes the vectors again with the same masks and noise,
because all randomness of a step follows from the step's seed. So a node may restart, or be an actor of Ray.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_sim.clients.client_app import reply_with_failure
from fl_sim.clients.errors import ModelError
from fl_sim.clients.models.parameters import TrainableParameters
from fl_sim.research.representations.client.client_workspace import ClientSpec, Workspace
from fl_sim.research.representations.client.draws import Draw
from fl_sim.research.representations.client.representation_messages import (
    PARTITION,
    PERTURB,
    RELEASE,
    STEP,
    VALIDATE,
    Request,
    reply_record,
)
from fl_sim.research.representations.corpora.labelled import TRAIN

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
def _workspace(spec: str) -> Workspace:
    return Workspace(ClientSpec.model_validate_json(spec))


def _parameters_of(workspace: Workspace) -> TrainableParameters:
    return TrainableParameters(workspace.encoder)


def _required_seed(request: Request) -> int:
    if request.seed is None:
        raise ModelError("seed is missing; allowed: a training message with a seed")
    return request.seed
