"""Open corpus and model in every Ray worker before the first round, and name the machine where that fails.

What a worker opens here stays open, so the first round does not wait for it. A machine that does not see the server's
files gets them once, through Ray's object store (:mod:`fl_sim.clients.worker.sent_files`).

>>> Refused("10.0.0.7", "ModelError: device is 'cuda', but torch sees 0 CUDA devices here").in_words()
"the worker on 10.0.0.7 cannot work: ModelError: device is 'cuda', but torch sees 0 CUDA devices here"
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from fl_sim.clients.worker import sent_files
from fl_sim.clients.worker.sent_files import SentFile
from fl_sim.clients.worker.workspace import WorkspaceSpec, open_workspace, use_local_files
from fl_sim.clients.worker_resources import reserved_cores
from fl_sim.engines.grids import RunStopped
from fl_sim.engines.placement import EngineError
from fl_sim.engines.ray_workers import is_loaded, machine_of
from fl_sim.engines.worker_pool import Judgement

log = logging.getLogger(__name__)

_CHUNK_BYTES = 64 << 20
_LOOK_SECONDS = 0.1
_LOAD_SECONDS = 120.0
_REMOVE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Opened:
    """A worker that has opened corpus and model.

    Attributes:
        machine: its address.
        device: of its model, in its own view: the GPU that is reserved for it is the first.
        gpus: the GPUs of the machine that are reserved for it.
        threads: with which it computes.
    """

    machine: str
    device: str
    gpus: tuple[str, ...]
    threads: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A worker that cannot open corpus and model.

    Attributes:
        machine: its address.
        reason: why, in one line.
        lacks_files: whether the machine does not see the server's files.
    """

    machine: str
    reason: str
    lacks_files: bool = False

    def in_words(self) -> str:
        """Return machine and reason in one line."""
        return f"the worker on {self.machine} cannot work: {self.reason}"


def open_in_worker(actor: object, spec: str, files: Sequence[SentFile] | None) -> Opened | Refused:
    """Open the workspace in this worker; Ray calls it in the worker's process.

    Args:
        actor: of Flower; not used.
        spec: the workspace, in JSON.
        files: the server's files; None if machines are expected to have them.
    """
    context = ray.get_runtime_context()
    machine = ray.util.get_node_ip_address()
    try:
        here = WorkspaceSpec.model_validate_json(spec)
        if not sent_files.are_here(here):
            if files is None:
                return Refused(machine, "it does not see the files of the run", lacks_files=True)
            folder = sent_files.unpacked(here.token, files, ray.get)
            use_local_files(spec, sent_files.local_spec(here, folder).model_dump_json())
        device = str(open_workspace(spec).model.device)
    except Exception as error:  # whatever it is, a round would fail with it
        return Refused(machine, " ".join(f"{type(error).__name__}: {error}".split())[:500])
    return Opened(machine, device, tuple(context.get_accelerator_ids().get("GPU", ())), reserved_cores())


def remove_in_worker(actor: object, token: str) -> None:
    """Remove the files that were sent to this worker's machine; Ray calls it in the worker's process."""
    sent_files.remove_unpacked(token)


class WorkerCheck:
    """Open one workspace in all workers of a run, and in those that restart.

    Args:
        workers: handles of Flower's actors.
        spec: the workspace, in JSON.
        timeout: seconds that opening may take.
    """

    def __init__(self, workers: Sequence[Any], spec: str, timeout: float) -> None:
        self._workers, self._spec, self._timeout = workers, spec, timeout
        self._files: list[SentFile] | None = None
        self._asked = {self.ask(worker): worker for worker in workers}

    def ask(self, worker: Any) -> Any:
        """Return the pending answer of a worker that opens the workspace."""
        return worker.__ray_call__.remote(open_in_worker, self._spec, self._files)

    def judge(self, answer: Opened | Refused) -> Judgement:
        """Return what becomes of a worker that restarted: it is asked again once the files that it lacks are sent."""
        if isinstance(answer, Opened):
            return "ready"
        if answer.lacks_files:
            self._send_files()
            return "again"
        log.warning("%s; the others do its work", answer.in_words())
        return "out"

    def wait(self, stop: threading.Event) -> list[Opened]:
        """Return what all workers have opened.

        Raises:
            EngineError: a worker cannot open corpus and model, was lost, or has not loaded its libraries after two
                minutes in which no worker got further; the message names its machine and the reason in one line.
            RunStopped: ``stop`` was set meanwhile.
        """
        opened: list[Opened] = []
        progress, began = -1, time.monotonic()
        since = began
        while True:
            opened += self._answers()
            if not self._asked:
                return opened
            loading = [worker for worker in self._asked.values() if not is_loaded(worker)]
            if progress != (progress := len(opened) - len(loading)):
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

    def _answers(self) -> Iterator[Opened]:
        """Yield the answers that are there; send the files to machines that lack them, and ask their workers again."""
        ready, _ = ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        for pending in ready:
            worker = self._asked.pop(pending)
            try:
                answer = ray.get(pending)
            except RayError as error:
                reason = str(error).strip().splitlines()[0]
                raise EngineError(f"the worker on {machine_of(worker)} was lost before round 1: {reason}") from error
            if isinstance(answer, Opened):
                yield answer
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
