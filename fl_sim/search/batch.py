"""Many runs, in sequence or in parallel; a stopped batch resumes.

>>> list(run_batch({"bad": RunConfig(out="/dev/null/run")}))  # doctest: +ELLIPSIS
[Ending(name='bad', status='failed', reason='/dev/null/run: is a file, or lies below one; a run needs a folder')]
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from fl_sim.config import RunConfig
from fl_sim.storage.run_folder import DIVERGED, INTERRUPTED, RunFolder

DONE, FAILED = "done", "failed"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended.

    Attributes:
        name: of the run.
        status: ``done``, ``interrupted``, ``failed`` or ``diverged``.
        reason: of a failure or divergence, in one line.
    """

    name: str
    status: str
    reason: str = ""


def run_batch(configs: Mapping[str, RunConfig], jobs: int = 1) -> Iterator[Ending]:
    """Run the unfinished runs of ``configs``, each in the folder of its ``out``; yield how each ended, as it ends.

    A stopped run resumes after its last checkpoint, a finished one is skipped, and a failed one does not stop the
    others. Ctrl-C ends each running run after its round and starts no other.

    Args:
        configs: the runs by name.
        jobs: runs at once; above 1, each in its own process.
    """
    if jobs == 1:
        for name, config in configs.items():
            ending = run_one(name, config)
            yield ending
            if ending.status == INTERRUPTED:
                return
        return
    # Spawned, not forked: torch's threads do not survive a fork.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _one_thread) as pool:
        pending = {pool.submit(run_one, name, config): name for name, config in configs.items()}
        yield from _endings(pending)


def run_one(name: str, config: RunConfig) -> Ending:
    """Start, resume or skip one run; return how it ended."""
    from fl_sim.engines import simulation

    path = Path(config.out or "")
    try:
        if (path / "config.json").exists():
            folder = RunFolder.open(path)
            if not folder.finished:
                folder = simulation.resume(path)
        else:
            folder = simulation.run(config)
    except KeyboardInterrupt:
        return Ending(name, INTERRUPTED)
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        return Ending(name, FAILED, " ".join(str(error).split()) or type(error).__name__)
    if folder.diverged:
        return Ending(name, DIVERGED, f"in round {folder.last_round}: its model is not finite")
    return Ending(name, DONE if folder.finished else INTERRUPTED)


def _endings(pending: dict[Future[Ending], str]) -> Iterator[Ending]:
    """Yield the endings in order of time; after an interrupted one start no further run, but let running rounds end."""
    # The workers receive Ctrl-C, too, and stop by themselves.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        for future in as_completed(pending):
            if future.cancelled():
                continue
            try:
                ending = future.result()
            except BrokenProcessPool:
                ending = Ending(pending[future], FAILED, "its process was killed; start the same again")
            if ending.status == INTERRUPTED:
                for other in pending:
                    other.cancel()
            yield ending
    finally:
        signal.signal(signal.SIGINT, before)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
