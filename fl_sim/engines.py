"""Where a run's rounds are computed: on Flower's simulation engine (Ray), or inline in this process.

Both drive the same ServerApp, Strategy and ClientApp through Flower messages; the inline grid merely calls the
ClientApp where the engine would send it the message.
"""

from __future__ import annotations

import logging
import os
import uuid
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from clients.client_app import app as client_app
from fl_sim.config import EngineConfig
from fl_sim.experiment import Experiment
from fl_sim.server_app import make_server_app

_SERVER_NODE = 1
_FAILED = 2  # flwr.common's ErrorCode.CLIENT_APP_RAISED_EXCEPTION


class EngineError(ValueError):
    """An engine that cannot be started as configured."""


def run_experiment(experiment: Experiment) -> None:
    """Run a prepared experiment on the engine that its configuration names."""
    engine = experiment.config.engine
    server = make_server_app(experiment)
    if engine.name == "inline":
        run_inline(server, client_app, engine.nodes or 1)
    else:
        run_on_ray(server, client_app, engine)


def run_inline(server: ServerApp, client: ClientApp, num_nodes: int) -> None:
    """Run the ServerApp against ``num_nodes`` nodes that live in this process, one after the other."""
    with _identity():
        server(InlineGrid(client, num_nodes), _context(_SERVER_NODE))


def run_on_ray(server: ServerApp, client: ClientApp, engine: EngineConfig) -> None:
    """Run the ServerApp on Flower's simulation engine.

    Raises:
        EngineError: if the machine or cluster has not the CPUs or GPUs that one node is to get.
    """
    _stay_local()
    import ray
    from flwr.simulation import run_simulation

    with _quiet_flower(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            ray.init(**_ray_arguments(engine))
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise EngineError(f"engine.address is {engine.address}: Ray cannot be started ({error})") from error
        try:
            resources = {"num_cpus": engine.cpus_per_node, "num_gpus": engine.gpus_per_node}
            workers = _workers(ray.cluster_resources(), engine)
            run_simulation(server, client, engine.nodes or workers, backend_config={"client_resources": resources})
        finally:
            ray.shutdown()


class InlineGrid(Grid):
    """A grid of virtual nodes that run the ClientApp at once, in this thread; an error becomes an error reply."""

    def __init__(self, client: ClientApp, num_nodes: int) -> None:
        self._client = client
        self._contexts = {
            node: _context(node, {"partition-id": k, "num-partitions": num_nodes})
            for k, node in enumerate(range(_SERVER_NODE + 1, _SERVER_NODE + 1 + num_nodes))
        }
        self._run = Run.create_empty(run_id=TaskIdentity.run_id)
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())  # as Flower's own grids do
            self._replies[message.metadata.message_id] = self._answer(message)
            sent.append(message.metadata.message_id)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(message_id) for message_id in list(message_ids) if message_id in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        try:
            return self._client(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:  # a node may fail in any way; the server counts it as zero and says so
            return Message(Error(code=_FAILED, reason=f"{type(error).__name__}: {error}"), reply_to=message)


def _context(node: int, node_config: dict[str, Any] | None = None) -> Context:
    return Context(
        run_id=TaskIdentity.run_id, node_id=node, node_config=node_config or {}, state=RecordDict(), run_config={}
    )


@contextmanager
def _identity() -> Iterator[None]:
    """Flower stamps messages with the identity of the process's task; give it one, and put back what was there."""
    before = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, _SERVER_NODE
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before


def _stay_local() -> None:
    """No telemetry, no update check, no network beyond this machine, one thread per worker; the caller may overrule."""
    defaults = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


@contextmanager
def _quiet_flower() -> Iterator[None]:
    """Flower logs every message; errors are enough beside our own progress."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _ray_arguments(engine: EngineConfig) -> dict[str, Any]:
    arguments: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    if engine.address is not None:
        return arguments | {"address": engine.address}
    return arguments | {"num_cpus": engine.num_cpus, "num_gpus": engine.num_gpus}


def _workers(resources: dict[str, float], engine: EngineConfig) -> int:
    """How many nodes can work at once on what Ray has."""
    workers = int(resources.get("CPU", 0) // engine.cpus_per_node)
    if engine.gpus_per_node > 0:
        workers = min(workers, int(resources.get("GPU", 0) / engine.gpus_per_node))
    if workers < 1:
        raise EngineError(
            f"engine.cpus_per_node is {engine.cpus_per_node} and engine.gpus_per_node is {engine.gpus_per_node:g}; "
            f"allowed: at most what Ray has, {resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs"
        )
    return workers
