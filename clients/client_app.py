"""Define the Flower ClientApp: read a request, call :mod:`fl_sim.clients.training`, send the reply. No maths here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fl_sim.clients.selection import select_for, thin
from fl_sim.clients.training import bounded_sum
from fl_sim.clients.worker.round_progress import RoundProgress
from fl_sim.clients.worker.workspace import Workspace, open_workspace
from fl_sim.clients.worker_resources import return_freed_memory
from fl_sim.formats import reason_of
from fl_sim.strategies.messages import TRAIN_ACTION, TrainRequest

log = logging.getLogger(__name__)

_CLIENT_APP_RAISED = 2  # flwr.common.constant.ErrorCode
_LARGE_MODEL = 1 << 24  # trainable parameters

app = ClientApp()


def reply_with_failure(
    message: Message,
    context: Context,
    call_next: Callable[[Message, Context], Message],
    quoted: tuple[type[Exception], ...] = (Exception,),
) -> Message:
    """Reply with one line if a node fails (:func:`~fl_sim.formats.reason_of`); the traceback stays in its log."""
    try:
        return call_next(message, context)
    except Exception as error:  # the server must learn of any failure, to count the node as zero
        log.warning("node %d failed", context.node_id, exc_info=True)
        return Message(Error(_CLIENT_APP_RAISED, reason_of(error, quoted)), reply_to=message)


@app.train(TRAIN_ACTION, mods=[reply_with_failure])
def train(message: Message, context: Context) -> Message:
    """Return the sum of the bounded client updates of this node's sampled users."""
    request = TrainRequest.from_message(message)
    return bounded_reply(message, context, request, open_workspace(request.workspace))


def bounded_reply(message: Message, context: Context, request: TrainRequest, workspace: Workspace) -> Message:
    """Return the reply to a request: the bounded sum of its users."""
    selection = select_for(request.rule, workspace.ownership, request.users, request.round_seed)
    if workspace.weights is not None:
        selection = thin(selection, workspace.weights, request.round_seed)
    workspace.model.set_vector(request.vector)
    progress = RoundProgress(workspace.progress, context.node_id, request.server_round, len(selection.sentences))
    model, examples = workspace.model, workspace.examples
    with closing(progress):
        reply = bounded_sum(model, examples, selection, request.rule, request.round_seed, progress.add)
    if model.num_parameters >= _LARGE_MODEL:
        return_freed_memory()
    return Message(content=reply.to_record(request), reply_to=message)
