"""A tagger in several processes: each has its own copy and takes whole batches of texts."""

from __future__ import annotations

import collections
import itertools
import multiprocessing
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from fl_sim.data_prep.records import CorpusError, Mention
from fl_sim.data_prep.taggers.tagger import Tagger

_TEXTS = 256
_AHEAD = 3
"""Batches per process that are read before they are asked for; the corpus is never read as a whole."""

_tagger: Tagger


class ParallelTagger:
    """What ``make`` makes, in ``processes`` processes, which start at the first text and stay until :meth:`close`."""

    def __init__(self, make: Callable[[], Tagger], processes: int) -> None:
        self._described = make()
        self._make = make
        self._processes = processes
        self._pool: ProcessPoolExecutor | None = None

    @property
    def labels(self) -> frozenset[str]:
        return self._described.labels

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        """The same mentions in the same order as from one process."""
        source = iter(texts)
        waiting: collections.deque[Future[list[list[tuple[int, int, str]]]]] = collections.deque()
        try:
            while batch := list(itertools.islice(source, _TEXTS)):
                waiting.append(self._started().submit(_tag, batch))
                if len(waiting) > _AHEAD * self._processes:
                    yield from _mentions(waiting.popleft())
            while waiting:
                yield from _mentions(waiting.popleft())
        finally:
            for future in waiting:
                future.cancel()

    def describe(self) -> dict[str, str]:
        """As from one process: how many there are changes nothing that is found."""
        return self._described.describe()

    def close(self) -> None:
        """End the processes; the next text would start others."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            # Not by fork: a copy of a process that has threads, as torch's and progress bars', may wait for ever.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._processes, context, initializer=_start, initargs=(self._make,))
            weakref.finalize(self, self._pool.shutdown, cancel_futures=True)
        return self._pool


def _start(make: Callable[[], Tagger]) -> None:
    global _tagger
    _tagger = make()


def _tag(texts: list[str]) -> list[list[tuple[int, int, str]]]:
    return [[(found.start, found.end, found.label) for found in mentions] for mentions in _tagger.tag(texts)]


def _mentions(batch: Future[list[list[tuple[int, int, str]]]]) -> Iterator[tuple[Mention, ...]]:
    try:
        found = batch.result()
    except BrokenProcessPool as error:
        raise CorpusError("a tagging process died, perhaps for lack of memory; try fewer --processes") from error
    for mentions in found:
        yield tuple(itertools.starmap(Mention, mentions))
