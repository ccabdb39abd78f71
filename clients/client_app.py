"""The Flower ClientApp: read the request, let :mod:`clients.training` work, send the reply. No maths here."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.selection import select
from clients.training import bounded_sum
from clients.workspace import open_workspace
from strategies.messages import TRAIN_ACTION, TrainRequest

app = ClientApp()


@app.train(TRAIN_ACTION)
def train(message: Message, context: Context) -> Message:
    """The sum of the bounded updates of this node's sampled users."""
    request = TrainRequest.from_message(message)
    workspace = open_workspace(request.workspace)
    rule = request.rule
    selection = select(workspace.ownership, request.users, request.round_seed, rule.q_e, rule.q_s)
    workspace.model.set_vector(request.vector)
    reply = bounded_sum(workspace.model, workspace.encoded, selection, rule, request.round_seed)
    return Message(content=reply.to_record(), reply_to=message)
