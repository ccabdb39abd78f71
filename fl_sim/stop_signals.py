"""Stop on Ctrl-C, SIGTERM and SIGHUP alike: the first may end what is under way, the next ends the program at once.

A signal that is ignored when a block begins (``nohup``) stays ignored. A closing terminal hangs up twice, and a service
manager signals a whole group whose parent passes the signal on, so an echo within a second counts as the same stop.

>>> exit_status("SIGTERM"), exit_status("SIGHUP"), exit_status("SIGINT")
(143, 129, 130)
"""

from __future__ import annotations

import errno
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import connection, resource_tracker
from types import FrameType

STOP_SIGNALS = tuple(number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP"))
"""The signals that stop a command; Windows, where nodes import this, has no SIGHUP."""

_ECHO_SECONDS = 1.0
_STREAMS = (1, 2)
_seen: list[str] = []
"""The stop signals that were handled."""

_before_block: int | None = None
"""How many of them had been handled when the present block of :func:`raising_stops` began; None outside of one."""


class Stopped(KeyboardInterrupt):
    """A stop signal that ends the program at once, as Ctrl-C does."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def exit_status(name: str) -> int:
    """Return the exit status of a program that the signal ``name`` stopped: 128 and its number, as shells do."""
    return 128 + signal.Signals[name].value


@contextmanager
def stops_handled_by(handle: Callable[[str], None]) -> Iterator[None]:
    """Call ``handle``, which may raise, with the name of each stop signal in the block, but not with its echo.

    Only the main thread may handle signals; in other threads the block has no effect.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled_at = -_ECHO_SECONDS

    def received(number: int, frame: FrameType | None) -> None:
        nonlocal handled_at
        name, now = signal.Signals(number).name, time.monotonic()
        if name == "SIGHUP":
            _leave_terminal()
        if name == "SIGINT" or now - handled_at >= _ECHO_SECONDS:
            handled_at = now
            _seen.append(name)
            handle(name)

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    handled = [n for n in STOP_SIGNALS if n == signal.SIGINT or before[n] is not signal.SIG_IGN]
    try:
        for number in handled:
            signal.signal(number, received)
        yield
    finally:
        for number in handled:
            signal.signal(number, before[number] or signal.SIG_DFL)


@contextmanager
def raising_stops() -> Iterator[None]:
    """Raise :class:`Stopped` in the block at each stop signal.

    Not every stop ends the block: Python discards an exception that is raised in a finalizer, other libraries take
    Ctrl-C for the end of a training, and a run in its last round just finishes. :func:`raise_missed_stop` raises it
    again.
    """
    global _before_block

    def stop(name: str) -> None:
        raise Stopped(name)

    outer, _before_block = _before_block, len(_seen)
    hook = sys.unraisablehook
    sys.unraisablehook = lambda error: None if error.exc_type is Stopped else hook(error)
    try:
        with stops_handled_by(stop):
            yield
    finally:
        sys.unraisablehook = hook
        _before_block = outer


@contextmanager
def alarm(seconds: float, error: type[BaseException]) -> Iterator[None]:
    """Raise ``error`` in the block after so many seconds, where a signal can: in a main thread, not on Windows."""
    possible = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if math.isinf(seconds) or not possible:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise error

    handler = signal.signal(signal.SIGALRM, end)
    timer = signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def stops_seen() -> tuple[str, ...]:
    """Return the names of all stop signals that this process has handled, in their order.

    A run in its last round just finishes; who runs another after it compares what was seen before and after.
    """
    return tuple(_seen)


def raise_missed_stop() -> None:
    """Raise :class:`Stopped` if a stop signal was handled in a block of :func:`raising_stops` that goes on.

    Called before what takes long, and after the code of a library that takes such an exception for its own.
    """
    if _before_block is not None and len(_seen) > _before_block:
        raise Stopped(_seen[-1])


@contextmanager
def stops_deferred() -> Iterator[None]:
    """Start processes of a pool in the block: no stop signal reaches them before they call :func:`follow_parent`."""
    resource_tracker.ensure_running()  # starting it would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def follow_parent(stopped: Callable[[str], None] = lambda name: None) -> None:
    """Prepare this process of a pool: stop signals end no idle process, the end of the parent ends it.

    ``stopped`` is called with the name of each stop signal outside of other blocks.
    """
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: stopped(signal.Signals(number).name))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _leave_terminal() -> None:
    """Discard what is printed from now on if the terminal is gone, so that printing cannot fail."""
    for stream in _STREAMS:
        try:
            os.tcgetpgrp(stream)
        except OSError as error:
            if error.errno == errno.EIO:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
