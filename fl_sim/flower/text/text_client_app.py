"""The ClientApp of a node that holds its own users' text: it enrols, and computes its part of a round.

Folder and key are named by the node itself, in its node config: ``corpus-path``, ``entity-key`` and ``partition-id``.
In a simulation, whose nodes have no node config of their own, the run config names both, and ``{partition-id}`` in
them is replaced by the place of the node.
"""

from __future__ import annotations

import functools
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_sim.clients.client_app import bounded_reply, reply_with_failure
from fl_sim.clients.errors import ModelError
from fl_sim.data_prep.digests import read_key
from fl_sim.data_prep.records import CorpusError
from fl_sim.flower.text.held_text import ENROL_ACTION, HeldSpec, HeldText, Question, open_held_text
from fl_sim.strategies.messages import TRAIN_ACTION, MessageError, TrainRequest

PARTITION, CORPUS, KEY = "partition-id", "corpus-path", "entity-key"

_failure_without_text = functools.partial(reply_with_failure, quoted=(CorpusError, ModelError, MessageError))

app = ClientApp()


@app.query(ENROL_ACTION, mods=[_failure_without_text])
def enrol(message: Message, context: Context) -> Message:
    """Return what the server may know about the text of this node."""
    question = Question.from_record(message.content)
    return Message(content=_text_of(context, question).enrolment.to_record(), reply_to=message)


@app.train(TRAIN_ACTION, mods=[_failure_without_text])
def train(message: Message, context: Context) -> Message:
    """Return the sum of the bounded client updates of this node's sampled users."""
    request = TrainRequest.from_message(message)
    spec = HeldSpec.model_validate_json(request.workspace)
    return bounded_reply(message, context, request, _text_of(context, spec.question).workspace(spec))


def _text_of(context: Context, question: Question) -> HeldText:
    partition = context.node_config.get(PARTITION)
    if not isinstance(partition, int):
        raise CorpusError(f"{PARTITION} of this node is {partition}; allowed: its place among the nodes, from 0")
    folder, key = (_setting(context, name, partition) for name in (CORPUS, KEY))
    return open_held_text(folder, read_key(key), partition, question)


def _setting(context: Context, name: str, partition: int) -> str:
    value = context.node_config.get(name) or context.run_config.get(name)
    if not value:
        raise CorpusError(f"{name} of node {partition} is not given; allowed: a path, in the node's config")
    path = Path(str(value).replace(f"{{{PARTITION}}}", str(partition))).expanduser()
    if not path.is_absolute():
        raise CorpusError(f"{name} of node {partition} is '{path}'; allowed: an absolute path")
    return str(path)
