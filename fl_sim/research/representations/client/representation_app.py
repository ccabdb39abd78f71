"""The Flower ClientApp of private representations: the node has texts, encoder and privacy layer, and answers with
perturbed vectors.

A node keeps nothing between messages: for a gradient it computes the vectors again, with the same masks and noise,
since all of a step's randomness follows from the step's seed. So nodes may be restarted, or be Ray's actors.
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
    PERTURB,
    PLACE,
    RELEASE,
    STEP,
    VALIDATE,
    Request,
    reply_record,
)
from fl_sim.research.representations.corpora.labelled import TRAIN

app = ClientApp()


@app.query(PLACE, mods=[reply_with_failure])
def place(message: Message, context: Context) -> Message:
    """Which of the places 0 … N − 1 the node has."""
    return Message(reply_record(place=np.array([_place(context)[0]])), reply_to=message)


@app.train(PERTURB, mods=[reply_with_failure])
def perturb(message: Message, context: Context) -> Message:
    """Perturbed vectors of the rows asked for."""
    request = Request.from_message(message)
    with torch.no_grad():
        vectors = _perturbed(_opened(request), request, context)
    return Message(reply_record(vectors=vectors.numpy()), reply_to=message)


@app.train(STEP, mods=[reply_with_failure])
def step(message: Message, context: Context) -> Message:
    """The gradient in the encoder's parameters that follows from one in the vectors."""
    request = Request.from_message(message)
    workspace = _opened(request)
    workspace.encoder.zero_grad()
    _perturbed(workspace, request, context).backward(torch.from_numpy(np.array(request.gradient)))
    gradients = [p.grad.reshape(-1).numpy() for p in _trainable(workspace).tensors.values() if p.grad is not None]
    return Message(reply_record(gradient=np.concatenate(gradients)), reply_to=message)


@app.query(VALIDATE, mods=[reply_with_failure])
def validate(message: Message, context: Context) -> Message:
    """The node's validation rows, with the noise of training."""
    request = Request.from_message(message)
    workspace = _opened(request)
    total = workspace.rows(request.split)
    rows = held_rows(total, context)
    with torch.no_grad():
        draw = Draw(_seed_of(request), torch.from_numpy(rows), total)
        vectors = workspace.layer(workspace.encoded(request.split, rows), draw)
    return Message(reply_record(vectors=vectors.numpy(), rows=rows), reply_to=message)


@app.query(RELEASE, mods=[reply_with_failure])
def release(message: Message, context: Context) -> Message:
    """The node's rows of a split, with the promise of the privacy layer."""
    request = Request.from_message(message)
    workspace = _opened(request)
    rows = held_rows(workspace.rows(request.split), context)
    vectors = workspace.released(request.split, request.seed, rows)
    return Message(reply_record(vectors=vectors, rows=rows), reply_to=message)


def held_rows(total: int, context: Context) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The rows of a split that this node holds."""
    own, places = _place(context)
    return np.arange(own, total, places)


def _place(context: Context) -> tuple[int, int]:
    return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])


def _perturbed(workspace: Workspace, request: Request, context: Context) -> torch.Tensor:
    own, places = _place(context)
    if (request.rows % places != own).any():
        raise ModelError(f"a row was asked for that the node at place {own} of {places} does not hold")
    draw = Draw(_seed_of(request), torch.from_numpy(np.array(request.places)), request.total)
    return workspace.perturbed(TRAIN, np.array(request.rows), draw, request.scale)


def _opened(request: Request) -> Workspace:
    workspace = _workspace(request.workspace)
    if request.encoder.size:
        _trainable(workspace).write(request.encoder)
    return workspace


@functools.lru_cache(maxsize=2)
def _workspace(spec: str) -> Workspace:
    return Workspace(ClientSpec.model_validate_json(spec))


def _trainable(workspace: Workspace) -> TrainableParameters:
    return TrainableParameters(workspace.encoder)


def _seed_of(request: Request) -> int:
    if request.seed is None:
        raise ModelError("a training message has no seed")
    return request.seed
