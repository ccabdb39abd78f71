"""The engine of a run: Flower's simulation engine on Ray, or inline in this process.

Both use the same ServerApp, Strategy, ClientApp and messages.

>>> app = ServerApp()
>>> @app.main()
... def count_nodes(grid, context):
...     print(len(list(grid.get_node_ids())), "nodes")
>>> run_inline(app, client_app, num_nodes=3)
3 nodes
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from flwr.app import UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.supercore.task_identity import TaskIdentity

from fl_sim.clients.client_app import app as client_app
from fl_sim.config import EngineConfig
from fl_sim.engines.grids import SERVER_NODE, AttendedGrid, InlineGrid, context_of
from fl_sim.engines.ray_engine import RayEngine, check_engine
from fl_sim.engines.server_app import make_server_app
from fl_sim.experiments.experiment import Experiment


class Engine:
    """The engine of one run, a context manager; it may start while the run is being prepared.

    Args:
        config: of the engine, if known before the preparation; None if known later.

    Raises:
        EngineError: if it cannot be started as configured, as far as known without Ray.
    """

    def __init__(self, config: EngineConfig | None = None) -> None:
        self._ray: RayEngine | None = None
        if config is not None:
            check_engine(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._ray is not None:
            self._ray.close()

    def start(self, config: EngineConfig) -> str:
        """Start the engine in the background, and return the device of the server's model.

        Raises:
            EngineError: if it cannot be started as configured, as far as known without Ray; if the server reserves a
                share of a GPU, also if Ray has none to give.
        """
        if config.name == "inline":
            return config.server_device or "cpu"
        if self._ray is None:
            self._ray = RayEngine(config)
        return self._ray.server_device

    def run(self, experiment: Experiment) -> None:
        """Run a prepared experiment on the engine of its configuration.

        Raises:
            EngineError: if the engine cannot be started as configured.
            GridError: if every node failed in one round.
        """
        config = experiment.config.placed_engine
        self.start(config)
        if self._ray is None:
            run_inline(make_server_app(experiment), client_app, config.nodes or 1)
        else:
            server = make_server_app(experiment, self._ray.open_workers)
            self._ray.run(server, client_app, lambda: experiment.stop_signal)


def run_inline(server: ServerApp, client: ClientApp, num_nodes: int, run_config: UserConfig | None = None) -> None:
    """Run a ServerApp with ``num_nodes`` nodes of a ClientApp in this process, one after the other.

    Raises:
        GridError: if every node failed in one round.
    """
    with _identity():
        grid = AttendedGrid(InlineGrid(client, num_nodes, run_config))
        server(grid, context_of(SERVER_NODE, run_config=run_config))


@contextmanager
def _identity() -> Iterator[None]:
    """Set the task identity that Flower stamps on messages, and restore the previous one afterwards."""
    before = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SERVER_NODE
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before
