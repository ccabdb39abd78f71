"""Run apps of Flower's older API: ``client_fn``, ``server_fn``, its workflows, and SecAgg+, which exists there alone.

A ServerApp without a main function asks its nodes from threads, whose order no seed fixes. ``DefaultWorkflow`` is
Flower's same loop in one thread, and stands in for it.

>>> import numpy as np
>>> from flwr.common import ndarrays_to_parameters
>>> named_arrays(ndarrays_to_parameters([np.zeros(2), np.ones(1)]))
{'0': array([0., 0.]), '1': array([1.])}
"""

from __future__ import annotations

from flwr.app import Context
from flwr.common import Parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, Server, ServerAppComponents
from flwr.server.client_manager import SimpleClientManager
from flwr.server.workflow import DefaultWorkflow
from flwr.serverapp import Grid, ServerApp

from fl_sim.checking.trials import Arrays

RESULT = "fitres.metrics"
"""The record of a reply that has a node's metrics, beside its number of examples."""


class MissingNodes(BaseException):
    """The app waits for more nodes than there are; its argument is how many."""


class OwnServer(ValueError):
    """The app has a Server class of its own, whose loop is not known."""


def start(app: ServerApp, grid: Grid, context: Context) -> None:
    """Run a ServerApp, of either API.

    Raises:
        OwnServer: it has a Server class of its own.
        MissingNodes: it waits for more nodes than there are.
    """
    SimpleClientManager.wait_for = _wait_for  # type: ignore[method-assign]
    if app._main is not None:
        app(grid, context)
        return
    with app._lifespan(context):
        made = ServerAppComponents(app._server, app._config, app._strategy, app._client_manager)
        parts = made if app._server_fn is None else app._server_fn(context)
        strategy, manager = parts.strategy, parts.client_manager
        if parts.server is not None:
            if type(parts.server) is not Server:
                raise OwnServer(type(parts.server).__name__)
            strategy, manager = parts.server.strategy, parts.server.client_manager()
        DefaultWorkflow()(grid, LegacyContext(context, parts.config, strategy, manager))


def named_arrays(parameters: Parameters) -> Arrays:
    """Return parameters under the names that the older API sends them by: their numbers."""
    return {str(number): array for number, array in enumerate(parameters_to_ndarrays(parameters))}


def _wait_for(self: SimpleClientManager, num_clients: int, timeout: int = 86400) -> bool:
    """Stand in for Flower's, which waits for a day."""
    if len(self) < num_clients:
        raise MissingNodes(num_clients)
    return True
