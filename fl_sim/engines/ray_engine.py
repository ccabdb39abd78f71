"""Flower's simulation engine on Ray, started or joined while the run is being prepared. Ray is imported when it starts.

Some processes of a Ray outlive its own shutdown by many seconds: the agents of a raylet notice only by polling that it
is gone, and a raylet that ends may just have started them. So this process adopts what its descendants leave behind,
and ends it. Where there is no ``/proc``, Ray is left to end its processes.

Ray reserves GPUs for processes that it starts, and the server is none. So an idle worker on the server's machine holds
the server's share as long as the run lives, and tells which GPU it is.

>>> visible_index("3", visible="2,3"), visible_index("1", visible=None)
(1, 1)
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, redirect_stdout, suppress
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flwr.app import ConfigRecordValues, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore import telemetry

from fl_sim import plugins
from fl_sim.clients.worker.libraries import load_libraries
from fl_sim.config import EngineConfig
from fl_sim.engines.grids import AttendedGrid
from fl_sim.experiments.placement import EngineError, check_request, count_workers, machines_of_ray, settled_machines
from fl_sim.formats import duration
from fl_sim.stop_signals import Stopped

if TYPE_CHECKING:
    from fl_sim.engines.ray_workers import Judgement, WorkerCheck

_PROC = Path("/proc")
_GRACE_SECONDS = 1.5
_PROCESS_LOOK_SECONDS = 0.05
_SET_CHILD_SUBREAPER, _GET_CHILD_SUBREAPER = 36, 37  # of prctl(2)

Process = tuple[int, str]
"""The id of a process, and its start time, by which another process with the same id is told from it."""


class RayProcesses:
    """The processes of Ray below this one, from their start to :meth:`end`, which the ``with`` statement calls."""

    def __init__(self) -> None:
        self._noted: set[Process] = set()
        self._servers: set[Process] = set()
        self._adopted_before = _adopt_orphans(True)

    def __enter__(self) -> RayProcesses:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def note(self) -> None:
        """Remember the processes that Ray has started so far: this process's children from Ray, and all below them.

        The first children are Ray's servers; later ones may be orphans of these.
        """
        parents = _parents()
        found = {pid for pid, (parent, _) in parents.items() if parent == os.getpid() and _is_of_ray(pid)}
        self._servers = self._servers or {(pid, parents[pid][1]) for pid in found}
        below = found
        while below:
            below = {pid for pid, (parent, _) in parents.items() if parent in below} - found
            found |= below
        self._noted |= {(pid, parents[pid][1]) for pid in found}

    @property
    def server_ended(self) -> bool:
        """Return whether a process that Ray started from this one has ended: its raylet, for example."""
        return not self._servers <= self._alive()

    def end(self) -> None:
        """Wait for the noted processes and their orphans to end, and kill those that do not."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._alive() and time.monotonic() < deadline:
            time.sleep(_PROCESS_LOOK_SECONDS)
        if self._noted:
            self.note()
        while left := self._alive():
            for pid, _ in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_PROCESS_LOOK_SECONDS)
            self.note()
        for pid, _ in self._noted:
            with suppress(ChildProcessError):  # those that this process adopted are its to bury
                os.waitpid(pid, os.WNOHANG)
        _adopt_orphans(self._adopted_before)

    def _alive(self) -> set[Process]:
        alive = set()
        for process in self._noted:
            fields = _fields(process[0])
            if fields is not None and fields[0] != "Z" and fields[19] == process[1]:
                alive.add(process)
        return alive


def _adopt_orphans(adopt: bool) -> bool:
    """Become the parent of descendants whose parent ends, or not any more; return what was so before."""
    if sys.platform != "linux":
        return False
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)
    return bool(before.value)


def _parents() -> dict[int, tuple[int, str]]:
    """Return the parent and the start time of every process."""
    parents = {}
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if entry.name.isdigit() and (fields := _fields(int(entry.name))) is not None:
            parents[int(entry.name)] = (int(fields[1]), fields[19])
    return parents


def _fields(pid: int) -> list[str] | None:
    """Return the fields of ``/proc/PID/stat`` from the third on: state, parent, …; None if there is no such process."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _is_of_ray(pid: int) -> bool:
    """Return whether a process runs a program of Ray's package, perhaps under the title that Ray gave it."""
    spec = util.find_spec("ray")
    package = str(Path(spec.origin).parent) if spec and spec.origin else "ray"
    try:
        command = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False
    return package.encode() in command or command.startswith(b"ray::")


_RESERVE_SECONDS = 40.0  # a busy machine takes long to start a process of Ray, which gives it little priority
_REPORT_SECONDS = 2.0  # within which Ray reports a reservation as no longer free
_RESERVED_LOOK_SECONDS = 0.05


class ServerShare(NamedTuple):
    """A reserved share of a GPU, which a worker holds until it is killed or this process ends."""

    device: str
    holder: Any


class _Holder:
    """Hold a share, and tell of which GPU."""

    def gpus(self) -> list[str]:
        import ray

        ids: list[str] = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        return ids


def reserve_server_share(device: str, share: float) -> ServerShare:
    """Reserve a share of a GPU on this machine.

    Args:
        device: ``cuda``, say, of which Ray chooses the index.
        share: of the GPU; of several GPUs the server takes one.

    Raises:
        EngineError: this machine has no such share to give.
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    before = sum(machine.free_gpus for machine in machines_of_ray())
    share = min(share, 1.0)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor: Any = ray.remote(_Holder)
    holder = actor.options(num_cpus=0, num_gpus=share, scheduling_strategy=here).remote()
    try:
        (gpu,) = ray.get(holder.gpus.remote(), timeout=_RESERVE_SECONDS)
    except RayError as error:
        ray.kill(holder)
        there = ", ".join(map(str, machines_of_ray()))
        raise EngineError(
            f"engine.server_device is '{device}', but the server's machine has no {share:g} of a GPU to give; allowed: "
            f"cpu, or at most what is free there: {there}"
        ) from error
    deadline = time.monotonic() + _REPORT_SECONDS
    while sum(machine.free_gpus for machine in machines_of_ray()) > before - share + 1e-6:
        if time.monotonic() > deadline:
            break
        time.sleep(_RESERVED_LOOK_SECONDS)
    kind = device.partition(":")[0]
    return ServerShare(f"{kind}:{visible_index(gpu, os.environ.get('CUDA_VISIBLE_DEVICES'))}", holder)


def visible_index(gpu: str, visible: str | None) -> int:
    """Return the index of a GPU among those ``visible`` to this process, as in CUDA_VISIBLE_DEVICES; None is all."""
    names = [name.strip() for name in visible.split(",")] if visible else []
    return names.index(gpu) if gpu in names else int(gpu)


# A dead Ray worker (out of memory, say) restarts on any machine with room. The AttendedGrid requests its work again;
# Ray itself would hold the work for that worker, forever if its machine is gone and no other has room.
_RESTARTS = {"max_restarts": 100, "max_task_retries": 0}
_KNOCK_SECONDS = 10.0
_LOOK_SECONDS = 0.5

# A start of Ray that is given up: the time its step under way gets to complete, then the attempts to interrupt it. An
# exception that ends the thread between two steps leaves the future undone, so the attempts are counted. It may also
# leave a lock held that this process needs, such as that of logging, which Ray's imports take often. So whatever makes
# progress is waited for, and only a start that hangs, on a machine that does not answer, say, is interrupted.
_LAST_STEP_SECONDS = 15.0
_INTERRUPTIONS = 50

PLAIN_WORKERS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment of Ray's workers: no usage statistics, visible GPUs unchanged, one thread each."""

# No telemetry, no update check, no network beyond this machine.
_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # it replaces our handlers, and prints the stack of a process that ends
    **PLAIN_WORKERS,
}


class _Started(NamedTuple):
    """The workers of a Ray that has started, and the share of a GPU that the server reserved, if any."""

    workers: list[Any]
    share: ServerShare | None


class RayEngine:
    """Ray and its workers, started in the background and ready for :meth:`run`.

    Starting Ray and importing torch in every worker takes as long as the preparation of a run, so both happen at once.
    Ray's processes end with the thread that started them, so one thread lives as long as the engine.

    Raises:
        EngineError: if it cannot be started as configured, as far as known without Ray (:func:`check_engine`).
    """

    def __init__(self, engine: EngineConfig) -> None:
        check_engine(engine)
        _stay_local()
        self._engine = engine
        self._thread = ThreadPoolExecutor(max_workers=1, initializer=_shield_from_hangups)
        self._thread_id = self._thread.submit(threading.get_ident)
        self._processes = RayProcesses()
        self._given_up = threading.Event()
        self._started = self._thread.submit(_start, engine, self._given_up)
        self._check: WorkerCheck | None = None
        self._stop = threading.Event()

    @property
    def server_device(self) -> str:
        """The device of the server's model: ``cpu``, or a GPU of which Ray has reserved a share; waits for Ray then.

        Raises:
            EngineError: as :meth:`run`.
        """
        share = self._started.result().share if serves_on_gpu(self._engine) else None
        return "cpu" if share is None else share.device

    def open_workers(self, spec: str) -> Callable[[], None]:
        """Let all workers open corpus and model; return a function that waits until they have."""
        from fl_sim.engines.ray_workers import WorkerCheck

        self._check = WorkerCheck(self._started.result().workers, spec, self._engine.timeout)
        return functools.partial(self._check.wait, self._stop)

    def run(self, server: ServerApp, client: ClientApp, stopped_by: Callable[[], str | None] = lambda: None) -> None:
        """Run a ServerApp on Flower's simulation engine, once: Flower shuts its Ray down.

        Args:
            stopped_by: returns the name of the signal that asked the run to stop after its round, if any did.

        Raises:
            EngineError: if Ray cannot be started or joined, lacks the CPUs or GPUs of one node, or is killed, or if a
                worker cannot open corpus and model.
            GridError: if every node failed in one round.
            Stopped: if the same signal ended Ray, too, so that the round cannot be finished.
        """
        workers = self._started.result().workers
        from flwr.simulation import run_simulation

        nodes = self._engine.nodes or len(workers)
        served = threading.Event()

        def at_end() -> None:
            if self._check is not None:
                self._check.remove_files()
            self._note_processes()
            served.set()  # from here on Flower ends Ray itself

        attended = _attended(server, nodes, self._stop, workers, at_end)
        with _quiet_flower(), _workers_in_pool(workers, self._ask, self._judge):
            simulation = self._thread.submit(
                run_simulation, attended, client, nodes, backend_config=backend_config(self._engine)
            )
            self._note_processes()
            try:
                while not wait([simulation], timeout=_LOOK_SECONDS).done:
                    if not served.is_set() and self._processes.server_ended:
                        name = stopped_by()
                        raise EngineError("Ray has ended: its processes were killed") if name is None else Stopped(name)
                simulation.result()
            finally:
                self._stop.set()  # Ctrl-C: the server, in a thread of Flower's, stops waiting for replies
                wait([simulation])

    def close(self) -> None:
        """Shut down a Ray that this engine started, even if it is still starting, or disconnect from a joined one."""
        interrupted = self._give_up_start()
        self._note_processes()
        if not interrupted:  # else Ray may be in any state; its processes are killed below
            import ray

            ray.shutdown()
        self._thread.shutdown()
        self._processes.end()

    def _give_up_start(self) -> bool:
        """End the thread's start of Ray after its step under way; return whether it had to be interrupted there.

        Its processes stay: without them the thread would wait for them.
        """
        self._given_up.set()
        wait([self._started], timeout=_LAST_STEP_SECONDS)
        if self._started.done():
            return False
        for _ in range(_INTERRUPTIONS):
            thread = ctypes.c_ulong(self._thread_id.result())  # code of Ray's may ignore the exception, so once more
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SystemExit))
            if wait([self._started], timeout=_LOOK_SECONDS).done:
                break
        return True

    def _ask(self, worker: Any) -> Any:
        """Return the pending answer of a restarting worker, which comes once it can work again."""
        return worker.__ray_ready__.remote() if self._check is None else self._check.ask(worker)

    def _judge(self, answer: Any) -> Judgement:
        """Return what becomes of a restarted worker with this answer."""
        return "ready" if self._check is None else self._check.judge(answer)

    def _note_processes(self) -> None:
        if self._engine.address is None:
            self._processes.note()


def check_engine(engine: EngineConfig) -> None:
    """Check a configuration as far as possible without Ray; a cluster's resources are known once it is joined.

    Raises:
        EngineError: if Ray or a node needs more than this machine has, or nothing answers at ``engine.address``.
    """
    check_request(engine)
    if engine.name == "ray" and engine.address is not None:
        _knock(engine.address)


def _knock(address: str) -> None:
    """Check that ``host:port`` accepts connections: Ray itself retries for many minutes."""
    host, separator, port = address.rpartition("/")[2].rpartition(":")
    if separator and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()
        except (OSError, OverflowError) as error:
            raise EngineError(f"engine.address is {address}, but nothing answers there ({error})") from error


def ray_arguments(engine: EngineConfig) -> dict[str, object]:
    """Return the arguments of ``ray.init``: join the configured cluster, or start Ray on this machine alone."""
    arguments = dict[str, object](include_dashboard=False, log_to_driver=False, logging_level=logging.CRITICAL)
    if engine.address is None:
        return arguments | {"address": "local", "num_cpus": engine.num_cpus, "num_gpus": engine.num_gpus}
    return arguments | {"address": engine.address, "runtime_env": {"env_vars": _worker_environment(engine)}}


def backend_config(engine: EngineConfig) -> dict[str, dict[str, ConfigRecordValues]]:
    """Return Flower's backend configuration; its ``client_resources`` become the options of every worker's actor."""
    resources = {"num_cpus": engine.cpus_per_node, "num_gpus": engine.gpus_per_node or 0.0}
    return {"client_resources": {**resources, **_RESTARTS}}


def _start(engine: EngineConfig, given_up: threading.Event) -> _Started:
    """Start or join Ray, reserve the server's share, and start as many workers as there is room for.

    Raises:
        EngineError: if Ray cannot be started or joined, or has no room for a worker or for the server's share.
        SystemExit: the start was given up.
    """
    import ray

    if given_up.is_set():
        raise SystemExit
    began = time.monotonic()
    try:
        # A Ray started here passes the environment on to its workers; a cluster gets it as an argument.
        with _exported(_worker_environment(engine)):
            ray.init(**ray_arguments(engine))
    except Exception as error:  # Ray passes on errors of its own processes, often as a plain Exception
        failure = (
            f"Ray cannot be joined at engine.address {engine.address}" if engine.address else "Ray cannot be started"
        )
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        tried = f"tried for {duration(time.monotonic() - began)}"
        raise EngineError(
            f"{failure} ({tried}): {reason.rstrip('. ')}; allowed: the same command again when the machine has less to "
            "do, or engine.name = inline (--engine inline)"
        ) from error
    if given_up.is_set():
        raise SystemExit
    return _start_workers(engine)


def _start_workers(engine: EngineConfig) -> _Started:
    """Reserve the server's share, and start as many workers as there is room and work for."""
    from fl_sim.engines.ray_workers import start_workers

    share = engine.gpus_per_node or 0.0
    settled_machines(engine.cpus_per_node, share)
    reserved = reserve_server_share(engine.server_device or "", share) if serves_on_gpu(engine) else None
    number = count_workers(machines_of_ray(), engine.cpus_per_node, share)
    number = min(number, engine.nodes or number)
    return _Started(start_workers(number, backend_config(engine)["client_resources"], load_libraries), reserved)


def serves_on_gpu(engine: EngineConfig) -> bool:
    """Return whether the server evaluates the model on a GPU."""
    return engine.server_device not in (None, "cpu")


@contextmanager
def _workers_in_pool(
    workers: Sequence[Any], ask: Callable[[Any], Any], judge: Callable[[Any], Judgement]
) -> Iterator[None]:
    """Replace Flower's pool by a :class:`~fl_sim.engines.ray_workers.WorkerPool` of ``workers`` in the block."""
    from flwr.server.superlink.fleet.vce.backend import raybackend

    from fl_sim.engines.ray_workers import WorkerPool

    before = raybackend.BasicActorPool
    raybackend.BasicActorPool = functools.partial(WorkerPool, workers, ask, judge)  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        raybackend.BasicActorPool = before  # type: ignore[misc]


def _stay_local() -> None:
    """Set the environment of plain workers without telemetry; variables of the user take precedence."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    telemetry.FLWR_TELEMETRY_ENABLED = os.environ["FLWR_TELEMETRY_ENABLED"]  # Flower read it when it was imported


def _worker_environment(engine: EngineConfig) -> dict[str, str]:
    """Return what workers need of this process: its settings, the path of our packages and of plug-ins.

    A worker has as many threads as cores; those of this process do not matter to it.
    """
    packages = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (packages, os.environ.get("PYTHONPATH"))))
    settings = {name: os.environ.get(name, value) for name, value in _ENVIRONMENT.items()}
    settings["OMP_NUM_THREADS"] = str(engine.threads_per_node)
    return settings | plugins.worker_environment() | {"PYTHONPATH": path}


@contextmanager
def _exported(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in the block, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _shield_from_hangups() -> None:
    """Keep SIGHUP from this thread, and so from the processes of Ray that it starts: a round under way needs them."""
    if hasattr(signal, "SIGHUP"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})


def _attended(
    server: ServerApp, num_nodes: int, stop: threading.Event, workers: Sequence[Any], at_end: Callable[[], None]
) -> ServerApp:
    """Return ``server`` on an :class:`AttendedGrid` around Flower's grid; the workers end with it, after ``at_end``."""
    attended = ServerApp()

    @attended.main()
    def main(grid: Grid, context: Context) -> None:
        import ray

        try:
            server(AttendedGrid(grid, num_nodes, stop), context)
        finally:
            at_end()
            for worker in workers:  # even busy ones: Flower would wait for them
                ray.kill(worker)

    return attended


@contextmanager
def _quiet_flower() -> Iterator[None]:
    """Silence Flower's log in the block: progress, exceptions and the strategy's log report the run.

    Ray's messages (a dead worker, for example) go to stderr instead of stdout, which is for results.
    """
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            yield
        finally:
            logger.setLevel(before)
