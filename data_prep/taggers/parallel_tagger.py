"""Run a tagger in several processes; each has its own copy and takes whole batches of texts.

>>> from fl_sim.data_prep.taggers.rule_tagger import RuleTagger
>>> tagger = ParallelTagger(RuleTagger, processes=2)
>>> tagger.describe() == RuleTagger().describe()  # processes start at the first text
True
"""

from __future__ import annotations

import collections
import itertools
import multiprocessing
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from fl_sim.data_prep.records import CorpusError, Mention
from fl_sim.data_prep.taggers.tagger import Tagger
from fl_sim.stop_signals import follow_parent, raising_stops, stops_deferred

_TEXTS = 256
_AHEAD = 3
"""Batches per process that are read ahead."""

_tagger: Tagger
_ready = False


class ParallelTagger:
    """Tags in several processes, which start at the first text and run until :meth:`close`."""

    def __init__(self, make: Callable[[], Tagger], processes: int) -> None:
        """Make one tagger here, to describe it; ``make``, which makes it, is pickled for the processes."""
        self._local = make()
        self._make = make
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None

    @property
    def labels(self) -> frozenset[str]:
        return self._local.labels

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """Yield the same mentions in the same order as one process does."""
        source = iter(texts)
        waiting: collections.deque[Future[list[list[tuple[int, int, str]]]]] = collections.deque()
        try:
            while batch := list(itertools.islice(source, _TEXTS)):
                with stops_deferred():
                    waiting.append(self._started().submit(_tag, batch))
                if len(waiting) > _AHEAD * self._processes:
                    yield from _mentions(waiting.popleft())
            while waiting:
                yield from _mentions(waiting.popleft())
        finally:
            for future in waiting:
                future.cancel()

    def describe(self) -> dict[str, str]:
        """Return the description of one tagger; the number of processes changes no mention."""
        return self._local.describe()

    def close(self) -> None:
        """Stop the processes, whatever they are tagging; the next text starts others."""
        if self._pool is not None:
            _end(self._pool)
            self._pool = None

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Not by fork: the copy of a process with threads (torch, progress bars) may wait for ever.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._processes, context, initializer=_start, initargs=(self._make,))
            weakref.finalize(self, _end, self._pool)
        return self._pool


def _end(pool: ProcessPoolExecutor) -> None:
    for process in list((pool._processes or {}).values()):
        process.terminate()  # ends the batch under way: not the process, with which the pool's locks would be lost
    pool.shutdown(cancel_futures=True)


def _start(make: Callable[[], Tagger]) -> None:
    global _tagger, _ready
    follow_parent(lambda name: None if _ready else os._exit(1))
    _tagger = make()
    _ready = True


def _tag(texts: list[str]) -> list[list[tuple[int, int, str]]]:
    with raising_stops():
        tagged = list(_tagger.tag(texts))
    return [[(mention.start, mention.end, mention.label) for mention in mentions] for mentions in tagged]


def _mentions(batch: Future[list[list[tuple[int, int, str]]]]) -> Iterator[tuple[Mention, ...]]:
    try:
        results = batch.result()
    except BrokenProcessPool as error:
        raise CorpusError("a tagging process died, perhaps for lack of memory; try fewer `processes`") from error
    for mentions in results:
        yield tuple(itertools.starmap(Mention, mentions))
