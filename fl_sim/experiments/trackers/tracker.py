"""A tracker: an observer that works through a queue in a thread of its own, so that a run never waits for it.

A tracker gets the row of a round once the round has a checkpoint. So no round that a resumed run does again was sent
before, and a resumed run first sends what its tracker lacks of the rounds before the checkpoint.

>>> import tempfile
>>> from pathlib import Path
>>> from fl_sim.config import RunConfig
>>> class Printed(Tracker):
...     def begin(self, start, place, rows): print("begins after", [row["round"] for row in rows])
...     def send(self, row): print("round", row["round"])
...     def finish(self, result): print(result["stopped"])
>>> with tempfile.TemporaryDirectory() as folder:
...     tracker = Printed()
...     tracker.on_start(RunStart(Path(folder), RunConfig(), 2, None, (), checkpoint_every=2))
...     for number in range(3):
...         tracker.on_round({"round": number})
...     tracker.on_end({"stopped": "rounds"})
begins after []
round 0
round 1
round 2
rounds
"""

from __future__ import annotations

import importlib
import queue
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any

from fl_sim.experiments.observers import Observer, RunStart
from fl_sim.experiments.trackers.places import Place
from fl_sim.storage.run_folder import rows_of

Row = Mapping[str, Any]

_at_work: dict[tuple[Path, str], Tracker] = {}
"""The trackers of this process whose runs have not ended, by the run's folder and the tracker's name."""


class Tracker(Observer):
    """An observer whose calls are made in order by a thread of its own.

    An exception in the thread is raised by the next call from the run, which then leaves the tracker out.
    """

    name = ""
    """By which a configuration names the tracker."""

    package = ""
    """What the tracker imports, before its thread starts: of two threads that import parts of a package at once, one
    may see a module that is not yet complete."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = queue.SimpleQueue()
        self._pending: list[Future[None]] = []
        self._held: list[Row] = []
        self._every, self._last = 1, 0
        self._timeout = 0.0

    @abstractmethod
    def begin(self, start: RunStart, place: Place, rows: Sequence[Row]) -> None:
        """Begin to track a run, or go on with it.

        Args:
            start: what observers learn of the run.
            place: where the tracker writes, and what it noted when the run began.
            rows: of the rounds before the first that will be sent; the tracker may have some or all of them.
        """

    @abstractmethod
    def send(self, row: Row) -> None:
        """Send the row of a round, which the tracker does not have; round 0 may be sent again by a resumed run."""

    @abstractmethod
    def finish(self, result: Mapping[str, Any]) -> None:
        """End with the content of result.json; a run that was interrupted may go on later."""

    def on_start(self, start: RunStart) -> None:
        """Begin, in the thread."""
        if self.package:
            importlib.import_module(self.package)
        self._every, self._last = start.checkpoint_every, start.rounds
        self._timeout = start.config.tracking.timeout
        self._key = start.path, self.name
        if self._key in _at_work:  # the run has failed in this process, and goes on
            _at_work[self._key]._leave()
        _at_work[self._key] = self
        place = Place.of(start, self.name)
        place.folder.mkdir(parents=True, exist_ok=True)  # here, where files and folders are the owner's alone
        rows = [] if start.last_round is None else rows_of(start.path, start.last_round)
        threading.Thread(target=self._work, name=f"tracker-{self.name}", daemon=True).start()
        self._call(lambda: self.begin(start, place, rows))

    def on_round(self, row: Row) -> None:
        """Send what has a checkpoint, in the thread."""
        self._held.append(row)
        if row["round"] % self._every == 0 or row["round"] >= self._last:
            self._send_held()
        self._raise_errors()

    def on_end(self, result: Mapping[str, Any]) -> None:
        """Send the rest and end; wait for it no longer than ``tracking.timeout``.

        Raises:
            TimeoutError: it takes longer.
        """
        self._send_held()
        self._call(lambda: self.finish(result))
        if not self._leave():
            raise TimeoutError(f"no answer within {self._timeout:g} s")
        self._raise_errors()

    def _leave(self) -> bool:
        """End the thread after its calls; return whether they are done in time."""
        _at_work.pop(self._key, None)
        self._calls.put(None)
        _, waiting = wait(self._pending[-1:], self._timeout)
        return not waiting

    def _send_held(self) -> None:
        """Send the rows that wait for a checkpoint."""
        for row in self._held:
            self._call(partial(self.send, row))
        self._held = []

    def _call(self, function: Callable[[], None]) -> None:
        done: Future[None] = Future()
        self._pending.append(done)
        self._calls.put((function, done))

    def _raise_errors(self) -> None:
        """Raise the first error of calls that are done, and forget those."""
        while self._pending and self._pending[0].done():
            self._pending.pop(0).result()

    def _work(self) -> None:
        """Make the calls until one of them fails."""
        while (call := self._calls.get()) is not None:
            function, done = call
            try:
                function()
            except BaseException as error:  # a tracker's own code may raise anything, SystemExit included
                self._fail(done, error)
                return
            done.set_result(None)

    def _fail(self, done: Future[None], error: BaseException) -> None:
        """Give the error to the call that raised it, and to those that come after."""
        done.set_exception(error)
        while (call := self._calls.get()) is not None:
            call[1].set_exception(error)
