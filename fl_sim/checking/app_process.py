"""Keep an app in a process of its own, which runs every trial in a fork of itself.

The process imports the app once. A fork starts from there, so no trial sees what another one left in a module, and what
the app writes goes to a folder that is removed.

>>> class Loaded:
...     own, measured = {}, {}
...     def run(self, trial, folder):
...         self.own = {"changed": True}
...         return Seen(waits_for=trial.seed)
>>> seen, _, _ = _forked(loaded := Loaded(), Trial(seed=3), Path("anywhere"))
>>> seen.waits_for, loaded.own
(3, {})
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from fl_sim.checking.app_folder import AppFolder, CheckError
from fl_sim.checking.trials import Seen, Trial

METHOD = "spawn"
"""How the process starts: with nothing of this one's memory."""

_SET_PDEATHSIG = 1  # of prctl(2)
_GOODBYE = 2.0  # seconds until a process that does not end is killed


class AppProcess:
    """Hold the process of an app, a context manager.

    Args:
        prepare: called in the process before the app is imported.
        deadline: of all trials, as ``time.monotonic`` tells it.

    Raises:
        CheckError: the app cannot be imported.
    """

    def __init__(self, app: AppFolder, nodes: int, deadline: float, prepare: Callable[[], None] | None = None) -> None:
        self.app, self.nodes, self.deadline = app, nodes, deadline
        self._scratch = tempfile.TemporaryDirectory(prefix="fl-sim-check-", ignore_cleanup_errors=True)
        context: Any = multiprocessing.get_context(METHOD)
        self._ours, theirs = context.Pipe()
        arguments = (theirs, app, nodes, Path(self._scratch.name), prepare)
        self._process = context.Process(target=_serve, args=arguments)  # no daemon, whose data loaders may not fork
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        try:
            self._received()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def run(self, trial: Trial) -> Seen:
        """Run a trial.

        Raises:
            CheckError: the time is over, or the process ended.
        """
        self._ours.send(trial)
        seen: Seen = self._received()
        return seen

    def _received(self) -> Any:
        left = self.deadline - time.monotonic()
        try:
            if left <= 0 or not self._ours.poll(left):
                raise CheckError(
                    f"{self.app.path}: the time limit is over; allowed: a longer `time_limit`, fewer `nodes`"
                )
            kind, value = self._ours.recv()
        except (EOFError, OSError) as error:
            raise CheckError(f"{self.app.path}: its process ended, out of memory or by an exit of its own") from error
        if kind == "error":
            raise CheckError(f"{self.app.path}: {value}")
        return value

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            self._ours.send(None)  # one that waits ends by itself, and cleans up
            self._process.join(_GOODBYE)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # of one that has no group yet
        self._process.join()
        self._ours.close()
        self._scratch.cleanup()


def _serve(
    connection: Connection, app: AppFolder, nodes: int, scratch: Path, prepare: Callable[[], None] | None
) -> None:
    """Import the app, and run the trials that are asked for, each in a fork."""
    os.setsid()
    _end_with_parent()
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(quiet, number)
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None  # one of its own, so that what an app leaves is not told on our terminal
    multiprocessing.set_start_method(None, force=True)  # the app's own processes start as they do without METHOD
    from fl_sim.checking.observed_app import LoadedApp, cause_of

    try:
        if prepare is not None:
            prepare()
        loaded = LoadedApp(app, nodes, scratch)
    except BaseException as error:
        connection.send(("error", f"it does not start: {cause_of(error, app.path, 'start')[1]}"))
        return
    connection.send(("ready", None))
    with contextlib.suppress(EOFError):
        while True:
            trial = connection.recv()
            if trial is None:
                return
            folder = scratch / "trial"
            folder.mkdir()
            seen, measured, modules = (
                (loaded.run(trial, folder), {}, []) if trial.warm else _forked(loaded, trial, folder)
            )
            shutil.rmtree(folder, ignore_errors=True)
            if seen is None:
                connection.send(("error", "a trial ended its process"))
                continue
            loaded.own |= seen.own
            loaded.measured |= measured
            gc.freeze()  # what the collector does not look at stays shared with forks
            for name in modules:  # so that no later trial takes the time to import them
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
            connection.send(("seen", replace(seen, own={unit: ({}, beside) for unit, (_, beside) in seen.own.items()})))


def _forked(loaded: Any, trial: Trial, folder: Path) -> tuple[Seen | None, dict[int, Any], list[str]]:
    """Run a trial in a fork, with a folder of its own; return what it saw, None if the fork ended without a word."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _end_with_parent()
            os.close(read)
            before, modules = dict(loaded.measured), set(sys.modules)
            seen = loaded.run(trial, folder)
            new = {node: metrics for node, metrics in loaded.measured.items() if node not in before}
            with os.fdopen(write, "wb") as pipe:
                pickle.dump((seen, new, [*sys.modules.keys() - modules]), pipe, protocol=pickle.HIGHEST_PROTOCOL)
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        try:
            answer: tuple[Seen | None, dict[int, Any], list[str]] = pickle.load(pipe)  # not to its end: what the app
        except EOFError:  # started may hold it, and live on
            answer = None, {}, []
    os.waitpid(child, 0)
    return answer


def _end_with_parent() -> None:
    """Have Linux end this process with the one that started it, which a trial without an end would outlive."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL)
