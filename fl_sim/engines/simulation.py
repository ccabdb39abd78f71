"""Run an experiment on its engine, from the start or from a checkpoint, and stop it gently on Ctrl-C or SIGTERM.

>>> run(RunConfig.from_mapping({"out": "/dev/null/run", "engine.name": "inline"}))
Traceback (most recent call last):
fl_sim.storage.run_folder.ResultsError: /dev/null/run: is a file, or lies below one; a run needs a folder
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fl_sim.config import RunConfig
from fl_sim.engines.engine import Engine
from fl_sim.experiments.experiment import Experiment
from fl_sim.experiments.observers import Observer
from fl_sim.files import owner_only
from fl_sim.stop_signals import Stopped, raise_missed_stop, stops_handled_by
from fl_sim.storage.run_folder import Row, RunFolder

RowCallback = Callable[[Row], None]

_STDERR = 2
_STOPPING = "stopping after the round under way; {} again stops at once\n"


@owner_only()  # also of Ray's own files, which hold messages of nodes
def run(config: RunConfig, on_row: RowCallback | None = None, observers: Sequence[Observer] = ()) -> RunFolder:
    """Run a configuration from its first round to its end.

    Args:
        on_row: called with the metrics of every round (round 0 is the initial model); an exception in it ends the run.
        observers: called besides those of the configuration; their exceptions are ignored.

    Returns:
        The finished run folder.

    Raises:
        ValueError: (one of the project's own subclasses) for a configuration that cannot be run; it leaves nothing
            behind.
    """
    with Engine(config.placed_engine) as engine:
        return execute(Experiment.create(config, engine.start, observers), engine, on_row)


@owner_only()
def resume(
    folder: str | Path,
    on_row: RowCallback | None = None,
    observers: Sequence[Observer] = (),
    anchor: str | None = None,
) -> RunFolder:
    """Resume a run that was interrupted or killed; the result is the same as without the interruption.

    Args:
        anchor: the file that keeps the ledger's head from now on; None for that of the run's configuration.

    Raises:
        ValueError: (one of the project's own subclasses) if the run cannot go on.
    """
    with Engine() as engine:
        return execute(Experiment.resume(folder, engine.start, observers, anchor), engine, on_row)


def execute(experiment: Experiment, engine: Engine, on_row: RowCallback | None = None) -> RunFolder:
    """Run a prepared experiment. Ctrl-C, SIGTERM or SIGHUP stops it after the round under way, a second one at once.

    While the engine starts, or a frozen encoder reads the corpus, the first one stops it at once.

    An error that ends the run early gets a note on what is left of it (:meth:`Experiment.abandon`).
    """
    if on_row is not None:
        experiment.row_callbacks.append(on_row)
    try:
        with _stop_after_round(experiment):
            engine.run(experiment)
    except BaseException as error:
        experiment.abandon(error)
        raise
    return experiment.folder


@contextmanager
def _stop_after_round(experiment: Experiment) -> Iterator[None]:
    def request_stop(name: str) -> None:
        at_once = experiment.stop_signal is not None or not experiment.in_rounds
        experiment.stop_signal = name
        experiment.stop_requested = True  # also if the exception is discarded
        if at_once:
            raise Stopped(name)
        with suppress(OSError):
            words = _STOPPING.format("Ctrl-C" if name == "SIGINT" else name)
            os.write(_STDERR, words.encode())  # print may not be called where a signal interrupted a print

    with stops_handled_by(request_stop):
        raise_missed_stop()
        yield
