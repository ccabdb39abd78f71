"""Many runs, one after the other or side by side, gone on with after whatever stopped them."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from fl_sim.config import RunConfig
from fl_sim.storage.run_folder import RunFolder

DONE, INTERRUPTED, FAILED = "done", "interrupted", "failed"


@dataclass(frozen=True, slots=True)
class Ending:
    """How the run ``name`` ended: ``done``, ``interrupted`` or ``failed``, and in the last case why, in one line."""

    name: str
    status: str
    reason: str = ""


def run_batch(configs: Mapping[str, RunConfig], jobs: int = 1) -> Iterator[Ending]:
    """Run what is not done yet of ``configs``, each in the folder that its ``out`` names; yields the ends as they come.

    A run that was stopped goes on after its last checkpoint; a finished one is left alone; one that fails does not stop
    the others. Ctrl-C ends each run under way after its round, and no other is begun.

    Args:
        configs: by a name for each run.
        jobs: how many runs at once; more than one get a process each.
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
        waiting = {pool.submit(run_one, name, config): name for name, config in configs.items()}
        yield from _as_they_end(waiting)


def run_one(name: str, config: RunConfig) -> Ending:
    """One run, begun, gone on with, or found finished."""
    from fl_sim.engines import simulation

    path = Path(config.out or "")
    try:
        if (path / "config.json").exists():
            folder = RunFolder.open(path)
            if not is_finished(folder):
                folder = simulation.resume(path)
        else:
            folder = simulation.run(config)
    except KeyboardInterrupt:
        return Ending(name, INTERRUPTED)
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        return Ending(name, FAILED, " ".join(str(error).split()) or type(error).__name__)
    return Ending(name, DONE if is_finished(folder) else INTERRUPTED)


def is_finished(folder: RunFolder) -> bool:
    """Whether all rounds of a run are done."""
    result = folder.result
    return result is not None and result.get("stopped") != "interrupted"


def _as_they_end(waiting: dict[Future[Ending], str]) -> Iterator[Ending]:
    """The endings in the order of their times. After one that was interrupted no further run is begun, but those under
    way get the end of their round."""
    before = signal.signal(
        signal.SIGINT, lambda number, frame: None
    )  # the workers, who hear it too, stop by themselves
    try:
        for future in as_completed(waiting):
            if future.cancelled():
                continue
            try:
                ending = future.result()
            except BrokenProcessPool:
                ending = Ending(waiting[future], FAILED, "its process was killed; start the same again")
            if ending.status == INTERRUPTED:
                for other in waiting:
                    other.cancel()
            yield ending
    finally:
        signal.signal(signal.SIGINT, before)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
