"""Many runs, in sequence or in parallel; a stopped batch resumes.

>>> list(run_batch({"bad": RunConfig(out="/dev/null/run")}))  # doctest: +ELLIPSIS
[Ending(name='bad', status='failed', reason='/dev/null/run: is a file, or lies below one; a run needs a folder')]
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fl_sim.config import RunConfig
from fl_sim.files import read_bytes, remove_temporaries
from fl_sim.stop_signals import Stopped, follow_parent, raising_stops, stops_deferred, stops_handled_by, stops_seen
from fl_sim.storage.run_claim import tidy
from fl_sim.storage.run_folder import DIVERGED, INTERRUPTED, ResultsError, RunFolder, encode, replace_file

DONE, FAILED = "done", "failed"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended.

    Attributes:
        name: of the run.
        status: ``done``, ``interrupted``, ``failed`` or ``diverged``.
        reason: of a failure or divergence, in one line; the name of the signal that interrupted.
    """

    name: str
    status: str
    reason: str = ""


def claim_folder(out: Path, name: str, described: Mapping[str, Any], noun: str) -> None:
    """Create the folder of many runs, or check that it is the folder of the same.

    Args:
        out: the folder.
        name: of the file in it that describes them.
        described: what they are, JSON-ready.
        noun: what they are called in an error.

    Raises:
        ResultsError: the folder is that of others, or of something else.
    """
    described, file = encode(described), out / name
    remove_temporaries(out)
    if out.exists() and not out.is_dir():
        raise ResultsError(f"{out}: is a file; a {noun} needs a folder")
    if file.exists():
        try:
            other = json.loads(read_bytes(file))
        except (ValueError, RecursionError) as error:
            raise ResultsError(f"{file}: is corrupt (no JSON)") from error
        if other != described:
            raise ResultsError(
                f"{out}: holds another {noun}; choose another folder, or resume the {noun} that it holds"
            )
        return
    if out.exists() and any(out.iterdir()):
        raise ResultsError(f"{out}: exists and is not empty; choose another folder")
    (out / "runs").mkdir(parents=True, exist_ok=True)
    replace_file(file, json.dumps(described, indent=2).encode() + b"\n")


def run_batch(configs: Mapping[str, RunConfig], jobs: int = 1) -> Iterator[Ending]:
    """Run the unfinished runs of ``configs``, each in the folder of its ``out``; yield how each ended, as it ends.

    A stopped run resumes after its last checkpoint, a finished one is skipped, and a failed one does not stop the
    others. Ctrl-C, SIGTERM and SIGHUP end each running run after its round and start no other.

    Args:
        configs: the runs by name.
        jobs: runs at once; above 1, each in its own process.
    """
    if jobs == 1:
        before = stops_seen()
        for name, config in configs.items():
            if (missed := stops_seen()) != before:  # it came in the last round of a run, which finished
                yield Ending(name, INTERRUPTED, missed[-1])
                return
            ending = run_one(name, config)
            yield ending
            if ending.status == INTERRUPTED:
                return
        return
    # Spawned, not forked: torch's threads do not survive a fork.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _prepare_worker) as pool:
        with stops_deferred():
            pending = {pool.submit(_run_in_worker, name, config): name for name, config in configs.items()}
        yield from _endings(pending, pool)


def run_one(name: str, config: RunConfig) -> Ending:
    """Start, resume or skip one run; return how it ended."""
    from fl_sim.engines import simulation

    path = Path(config.out or "")
    try:
        if (path / "config.json").exists():
            folder = RunFolder.open(path)
            if folder.finished:
                tidy(path)
            else:
                folder = simulation.resume(path)
        else:
            folder = simulation.run(config)
    except KeyboardInterrupt as error:
        return Ending(name, INTERRUPTED, error.name if isinstance(error, Stopped) else "SIGINT")
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        return Ending(name, FAILED, " ".join(str(error).split()) or type(error).__name__)
    if folder.diverged:
        return Ending(name, DIVERGED, f"in round {folder.last_round}: its model is not finite")
    if not folder.finished:
        return Ending(name, INTERRUPTED, (folder.result or {}).get("signal") or "SIGINT")
    return Ending(name, DONE)


def _endings(pending: dict[Future[Ending], str], pool: ProcessPoolExecutor) -> Iterator[Ending]:
    """Yield the endings in order of time; after an interrupted one start no further run, but let running rounds end."""

    received: list[str] = []

    def pass_on(name: str) -> None:
        """Stop the workers, which may have received the signal, too: they take the second for an echo."""
        received.append(name)
        for process in list(pool._processes.values()):
            with suppress(ProcessLookupError):
                os.kill(process.pid or 0, signal.Signals[name if name != "SIGINT" else "SIGTERM"])

    with stops_handled_by(pass_on):
        for future in as_completed(pending):
            if future.cancelled():
                continue
            try:
                ending = future.result()
            except BrokenProcessPool:
                ending = Ending(pending[future], FAILED, "its process was killed; start the same again")
            if ending.status == INTERRUPTED:
                ending = replace(ending, reason=(received or [ending.reason])[0])
                for other in pending:
                    other.cancel()
            yield ending


_stopped_by: list[str] = []
"""The signals that stopped this worker: calls that wait in its queue cannot be cancelled from outside."""


def _prepare_worker() -> None:
    follow_parent(_stopped_by.append)
    import torch

    torch.set_num_threads(1)


def _run_in_worker(name: str, config: RunConfig) -> Ending:
    if _stopped_by:
        return Ending(name, INTERRUPTED, _stopped_by[0])
    with raising_stops():
        ending = run_one(name, config)
    if ending.status == INTERRUPTED:
        _stopped_by.append(ending.reason)
    return ending
