"""The Ray workers of a run: the model they read, the work they get, where they are, and whether they can work.

Flower pickles every message with its arrays. Here a message to a worker carries a handle instead: the model of a round
is put into Ray's object store once, fetched once by every machine, and read in place. A lost worker gets work again
once it has restarted. A worker without a process half a minute after the last one got its own is left out: Ray would
hold it forever. Workers open corpus and model before the first round, and keep them open; a machine where that fails is
named. One that does not see the server's files gets them once, through Ray's object store
(:mod:`fl_sim.clients.worker.sent_files`).

>>> Refused("10.0.0.7", "ModelError: device is 'cuda', but torch sees 0 CUDA devices here").in_words()
"the worker on 10.0.0.7 cannot work: ModelError: device is 'cuda', but torch sees 0 CUDA devices here"
"""

from __future__ import annotations

import copy
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt
import ray
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.simulation.ray_transport.ray_actor import BasicActorPool, ClientAppActor
from ray._private.state import actors as known_actors  # Ray's public API needs the dashboard's process for it
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError, RayTaskError

from fl_sim.clients.worker import sent_files
from fl_sim.clients.worker.sent_files import SentFile
from fl_sim.clients.worker.workspace import WorkspaceSpec, open_workspace, use_local_files
from fl_sim.engines.grids import RunStopped
from fl_sim.experiments.placement import EngineError, machines_of_ray
from fl_sim.formats import one_line
from fl_sim.strategies.messages import array_view

Put = Callable[[npt.NDArray[Any]], Any]

_SMALL_BYTES = 100_000  # Ray sends smaller arguments within the request


class SharedArray(Array):
    """An array of a message, of which the message carries a handle in Ray's object store alone."""

    def __init__(self, array: Array, handle: Any) -> None:
        super().__init__(array.dtype, array.shape, array.stype, b"")
        self._handle = handle

    def numpy(self) -> npt.NDArray[Any]:
        """Return the numbers, read-only, in the memory that all workers of the machine share."""
        numbers: npt.NDArray[Any] = ray.get(self._handle)
        return numbers


class Broadcast:
    """Replace the arrays of messages by handles; an array that several messages share is put into the store once.

    The store keeps the arrays of the last message, which are those of its whole round.
    """

    def __init__(self, put: Put = ray.put) -> None:
        self._put = put
        self._shared: dict[int, tuple[Array, SharedArray]] = {}

    def lightened(self, message: Message) -> Message:
        """Return the message with handles in place of large arrays; the message itself is not changed."""
        if not message.has_content():
            return message
        records = message.content.array_records
        arrays = {id(array): array for record in records.values() for array in record.values()}
        self._shared = {  # each with its array, so that the id stays its own
            key: self._shared.get(key) or (array, SharedArray(array, self._put(array_view(array))))
            for key, array in arrays.items()
            if len(array.data) > _SMALL_BYTES
        }
        content = RecordDict(dict(message.content))
        for name, record in records.items():
            of_record = content[name] = ArrayRecord()
            for key, array in record.items():
                of_record[key] = self._shared[id(array)][1] if id(array) in self._shared else array
        light = copy.copy(message)
        light.content = content
        return light


_LOOK_SECONDS = 0.1  # between two checks for an idle worker

Judgement = Literal["ready", "again", "out"]
"""What becomes of a restarted worker: it works again, is asked again, or gets no more work."""


class WorkerPool(BasicActorPool):
    """Flower's pool, of already started workers, without lost ones.

    A restarting worker fails any work immediately, so it would fail all pending work and be idle for the next. Here it
    stays out of the pool until it answers, and is then last in line: any other idle worker does the work lost with it.
    Work waits for an idle worker. If no worker is busy or restarted either, the work is lost, too, and the caller
    decides how long to retry.

    Args:
        ask: returns a restarting worker's pending answer, which comes once the worker has restarted.
        judge: says of that answer whether the worker can work, is to be asked again, or stays out for good.
    """

    def __init__(
        self,
        workers: Sequence[Any],
        ask: Callable[[Any], Any],
        judge: Callable[[Any], Judgement],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._workers, self._ask, self._judge = workers, ask, judge
        self._broadcast = Broadcast()
        self._change = threading.Condition()  # Flower has a thread for every worker
        self._starting: dict[Any, Any] = {}  # a pending answer of each lost worker, ready once it has restarted

    def add_actors_to_pool(self, num_actors: int) -> None:
        """Add the already started workers, whatever Flower's count."""
        self.pool.extend(self._workers)
        self.num_actors += len(self._workers)

    def submit(self, actor_fn: Callable[..., Any], job: tuple[Any, ...]) -> Any:
        """Give ``job`` to the next idle worker, without its arrays; raise ActorUnavailableError if none is left."""
        app_fn, message, number, context = job
        with self._change:
            light = self._broadcast.lightened(message)
            while True:
                self._readmit_restarted()
                if self.pool:
                    return super().submit(actor_fn, (app_fn, light, number, context))
                if not self._future_to_actor:
                    raise ActorUnavailableError("no worker is there", None)
                self._change.wait(_LOOK_SECONDS)

    def fetch_result_and_return_actor_to_pool(self, future: Any) -> tuple[Message, Context]:
        """Return a worker's reply; raise Ray's exception if the worker is lost."""
        try:
            _, reply, context = ray.get(future)
        except RayTaskError:  # the work failed, not the worker
            raise
        except RayError:
            with self._change:
                self._await_restart(self._future_to_actor.pop(future))
            raise
        with self._change:
            super().add_actor_back_to_pool(future)
            self._change.notify()
        return reply, context

    def add_actor_back_to_pool(self, future: Any) -> None:
        """Return the worker of a ``future`` without a result to the pool, unless it is lost."""
        with self._change:
            if future in self._future_to_actor:
                self.pool.insert(0, self._future_to_actor.pop(future))
                self._change.notify()

    def _await_restart(self, worker: Any) -> None:
        self._starting[self._ask(worker)] = worker

    def _readmit_restarted(self) -> None:
        """Readmit restarted workers, keep waiting for restarting ones, and drop those that are dead or cannot work."""
        if not self._starting:
            return
        answered, _ = ray.wait(list(self._starting), num_returns=len(self._starting), timeout=0)
        for answer in answered:
            worker = self._starting.pop(answer)
            try:
                judgement = self._judge(ray.get(answer))
            except ActorDiedError:
                judgement = "out"
            except RayError:
                judgement = "again"
            if judgement == "ready":
                self.pool.insert(0, worker)
            elif judgement == "again":
                self._await_restart(worker)


log = logging.getLogger(__name__)

_PLACE_SECONDS = 30.0
_START_LOOK_SECONDS = 0.05


def start_workers(number: int, resources: Mapping[str, object], on_start: Callable[[], None]) -> list[Any]:
    """Return handles of workers that have their cores and GPUs; they load their libraries meanwhile.

    ``on_start`` is called in every worker's process.

    Raises:
        EngineError: Ray has room for none of them.
    """
    actor: Any = ClientAppActor  # ray.remote made of it what its type does not say
    workers = [actor.options(**resources).remote(on_actor_init_fn=on_start) for _ in range(number)]
    waiting, since = list(workers), time.monotonic()
    while waiting and time.monotonic() - since < _PLACE_SECONDS:
        time.sleep(_START_LOOK_SECONDS)
        still = [worker for worker in waiting if not is_placed(worker)]
        if len(still) < len(waiting):
            since = time.monotonic()
        waiting = still
    return _without(waiting, workers)


def is_placed(worker: Any) -> bool:
    """Return whether Ray has reserved a worker's cores and GPUs and started its process."""
    return int(_known_of(worker).get("Pid", 0)) > 0


def is_loaded(worker: Any) -> bool:
    """Return whether a worker has loaded its libraries."""
    return _known_of(worker).get("State") == "ALIVE"


def machine_of(worker: Any) -> str:
    """Return the address of the machine that Ray chose for a worker."""
    return str(_known_of(worker).get("Address", {}).get("IPAddress") or "a machine that Ray has not named")


def _without(waiting: Sequence[Any], workers: Sequence[Any]) -> list[Any]:
    """Return the workers but those that wait for room, which are given up."""
    for worker in waiting:
        ray.kill(worker)
    there = ", ".join(map(str, machines_of_ray())) if waiting else ""
    if waiting and len(waiting) == len(workers):
        raise EngineError(f"Ray has started none of {len(workers)} workers within {_PLACE_SECONDS:g} seconds: {there}")
    if waiting:
        log.warning(
            "Ray has no room for %d of %d workers; the run goes on without them: %s", len(waiting), len(workers), there
        )
    return [worker for worker in workers if worker not in waiting]


def _known_of(worker: Any) -> dict[str, Any]:
    return dict(known_actors(worker._actor_id.hex()) or {})


_CHUNK_BYTES = 64 << 20
_LOAD_SECONDS = 120.0
_REMOVE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Refused:
    """A worker that cannot open corpus and model, and whether that is because it does not see the server's files."""

    machine: str
    reason: str
    lacks_files: bool = False

    def in_words(self) -> str:
        """Return machine and reason in one line."""
        return f"the worker on {self.machine} cannot work: {self.reason}"


def open_in_worker(actor: object, spec: str, files: Sequence[SentFile] | None) -> Refused | None:
    """Open the workspace in this worker, or say why it cannot; Ray calls it in the worker's process.

    The server's ``files`` are None if machines are expected to have them.
    """
    machine = ray.util.get_node_ip_address()
    try:
        here = WorkspaceSpec.model_validate_json(spec)
        if not sent_files.are_here(here):
            if files is None:
                return Refused(machine, "it does not see the files of the run", lacks_files=True)
            folder = sent_files.unpacked(here.token, files, ray.get)
            use_local_files(spec, sent_files.local_spec(here, folder).model_dump_json())
        open_workspace(spec)
    except Exception as error:  # whatever it is, a round would fail with it
        return Refused(machine, one_line(error, named=True)[:500])
    return None


def remove_in_worker(actor: object, token: str) -> None:
    """Remove the files that were sent to this worker's machine; Ray calls it in the worker's process."""
    sent_files.remove_unpacked(token)


class WorkerCheck:
    """Open one workspace in all workers of a run, and in those that restart."""

    def __init__(self, workers: Sequence[Any], spec: str, timeout: float) -> None:
        self._workers, self._spec, self._timeout = workers, spec, timeout
        self._files: list[SentFile] | None = None
        self._asked = {self.ask(worker): worker for worker in workers}

    def ask(self, worker: Any) -> Any:
        """Return the pending answer of a worker that opens the workspace."""
        return worker.__ray_call__.remote(open_in_worker, self._spec, self._files)

    def judge(self, answer: Refused | None) -> Judgement:
        """Return what becomes of a worker that restarted: it is asked again once the files that it lacks are sent."""
        if answer is None:
            return "ready"
        if answer.lacks_files:
            self._send_files()
            return "again"
        log.warning("%s; the others do its work", answer.in_words())
        return "out"

    def wait(self, stop: threading.Event) -> None:
        """Wait until all workers have opened the workspace.

        Raises:
            EngineError: a worker cannot open corpus and model, was lost, or has not loaded its libraries after two
                minutes in which no worker got further; the message names its machine and the reason in one line.
            RunStopped: ``stop`` was set meanwhile.
        """
        left, began = -1, time.monotonic()
        since = began
        while True:
            self._take_answers()
            if not self._asked:
                return
            loading = [worker for worker in self._asked.values() if not is_loaded(worker)]
            if left != (left := len(self._asked) + len(loading)):
                since = time.monotonic()
            self._check_time(loading, since, began)
            if stop.wait(_LOOK_SECONDS):
                raise RunStopped

    def remove_files(self) -> None:
        """Remove the files that were sent to machines, as far as a worker there is idle."""
        if self._files is not None:
            token = WorkspaceSpec.model_validate_json(self._spec).token
            removed = [worker.__ray_call__.remote(remove_in_worker, token) for worker in self._workers]
            ray.wait(removed, num_returns=len(removed), timeout=_REMOVE_SECONDS)

    def _take_answers(self) -> None:
        """Take the answers that are there; send the files to machines that lack them, and ask their workers again."""
        ready, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        for pending in ready:
            worker = self._asked.pop(pending)
            try:
                answer = ray.get(pending)
            except RayError as error:
                reason = str(error).strip().splitlines()[0]
                raise EngineError(f"the worker on {machine_of(worker)} was lost before round 1: {reason}") from error
            if answer is None:
                continue
            if not answer.lacks_files:
                raise EngineError(answer.in_words())
            self._send_files()
            self._asked[self.ask(worker)] = worker

    def _check_time(self, loading: Sequence[Any], since: float, began: float) -> None:
        """Raise EngineError if a worker takes too long."""
        now = time.monotonic()
        late = next(iter(loading or self._asked.values()))
        if loading and now - since > _LOAD_SECONDS:
            raise EngineError(
                f"the worker on {machine_of(late)} has not started: for {_LOAD_SECONDS:g} seconds no worker got further"
            )
        if now - began > self._timeout:
            raise EngineError(
                f"the worker on {machine_of(late)} has not opened corpus and model within {self._timeout:g} seconds "
                "(engine.timeout)"
            )

    def _send_files(self) -> None:
        """Put the files into Ray's object store, once, from where every machine fetches them once."""
        if self._files is None:
            named = sent_files.files_of(WorkspaceSpec.model_validate_json(self._spec))
            self._files = [_put(name, path) for name, path in named]


def _put(name: str, path: Path) -> SentFile:
    chunks, digest = [], hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            chunks.append(ray.put(chunk))
    return SentFile(name, digest.hexdigest(), tuple(chunks))
