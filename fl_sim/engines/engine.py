"""Where a run's rounds are computed: on Flower's simulation engine (Ray), or inline in this process.

Both drive the same ServerApp, Strategy and ClientApp through Flower messages; the inline grid merely calls the
ClientApp where the engine would send it the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

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
    """The engine of one run, which may start while the run is still being prepared; use it in a ``with`` statement.

    Args:
        config: what it will be, where that is known before anything is prepared.

    Raises:
        EngineError: if it cannot be started as configured, as far as that is known at once.
    """

    def __init__(self, config: EngineConfig | None = None) -> None:
        self._ray: RayEngine | None = None
        if config is not None:
            check_engine(config)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ray is not None:
            self._ray.close()

    def start(self, config: EngineConfig) -> None:
        """Begin to start what ``config`` names.

        Raises:
            EngineError: if it cannot be started as configured, as far as that is known at once.
        """
        if config.name == "ray" and self._ray is None:
            self._ray = RayEngine(config)

    def run(self, experiment: Experiment) -> None:
        """Run a prepared experiment on the engine that its configuration names.

        Raises:
            EngineError: if the engine cannot be started as configured.
            GridError: if every node failed in one round.
        """
        config = experiment.config.engine
        server = make_server_app(experiment)
        self.start(config)
        if self._ray is None:
            run_inline(server, client_app, config.nodes or 1)
        else:
            self._ray.run(server, client_app)


def run_inline(server: ServerApp, client: ClientApp, num_nodes: int) -> None:
    """Run the ServerApp against ``num_nodes`` nodes that live in this process, one after the other.

    Raises:
        GridError: if every node failed in one round.
    """
    with _identity():
        server(AttendedGrid(InlineGrid(client, num_nodes)), context_of(SERVER_NODE))


@contextmanager
def _identity() -> Iterator[None]:
    """Flower stamps messages with the identity of the process's task; give it one, and put back what was there."""
    before = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SERVER_NODE
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before
