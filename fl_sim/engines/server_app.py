"""The Flower ServerApp: a run's experiment on the grid that Flower provides.

``flwr run`` starts :data:`app`, configured by Flower's run config (docs/flower.md); ``fl-sim run`` starts
:func:`make_server_app` with a prepared experiment.

>>> read_run_config({"rounds": 5, "out": ""}, nodes=2).rounds
5
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.utils import get_flwr_home

from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep import SHIPPED_CORPORA
from fl_sim.engines.grids import AttendedGrid
from fl_sim.experiments.experiment import Experiment, OpenWorkers, expect_workers
from fl_sim.formats import epsilon_in_words, one_line, printable
from fl_sim.storage.run_folder import UTILITIES, Row, default_run_path, numbers_of

log = logging.getLogger("flwr")  # shown by `flwr run --stream`

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configuration of ``[tool.flwr.app.config]`` and ``--run-config``."""

    def prepare(attended: AttendedGrid) -> Experiment:
        nodes = len(list(attended.get_node_ids()))
        return Experiment.create(read_run_config(context.run_config, nodes))

    run_experiment(grid, prepare)


def run_experiment(grid: Grid, prepare: Callable[[AttendedGrid], Experiment], nodes: int = 1) -> None:
    """Prepare and run an experiment, and log its rounds for ``flwr run --stream``.

    ``prepare`` returns the experiment, given the grid of so many nodes.

    Flower always exits with 0, so the last line says ``DONE``, ``DIVERGED`` or ``FAILED`` and where the results are.
    """
    try:
        attended = AttendedGrid(grid, nodes)
        experiment = prepare(attended)
    except Exception as error:
        log.error("fl-sim FAILED: %s", with_notes(error))
        raise
    where = experiment.folder.path
    log.info("fl-sim: results go to %s", where)
    for warning in experiment.planned.warnings:
        log.warning("fl-sim: %s", warning)
    experiment.row_callbacks.append(lambda row: log.info("fl-sim: %s", describe_row(row, experiment.planned.rounds)))
    try:
        experiment.execute(attended)
    except Exception as error:
        experiment.abandon(error)
        log.error("fl-sim FAILED: %s", with_notes(error))
        raise
    log.info("fl-sim %s: results are in %s", "DIVERGED" if experiment.folder.diverged else "DONE", where)


def make_server_app(experiment: Experiment, open_workers: OpenWorkers = expect_workers) -> ServerApp:
    """Return a ServerApp that runs an experiment prepared in this process."""
    prepared = ServerApp()

    @prepared.main()
    def run_prepared(grid: Grid, context: Context) -> None:
        experiment.execute(grid, open_workers)

    return prepared


def read_run_config(values: Mapping[str, object], nodes: int) -> RunConfig:
    """Return the configuration of a run from Flower's run config, on ``nodes`` SuperNodes.

    An empty text means the default. The SuperLink that runs the app is detached and has its own working directory, so
    no path may depend on it: a relative ``out`` (and the default one) is in :func:`results_folder`, and a corpus needs
    its absolute path.

    Raises:
        ConfigError: for an impossible configuration, or a corpus given by a relative path.
    """
    config = RunConfig.from_mapping({key: value for key, value in values.items() if value != ""})
    corpus = config.corpus.path
    if corpus not in SHIPPED_CORPORA and not Path(corpus).expanduser().is_absolute():
        raise ConfigError(
            f"corpus.path is '{corpus}'; allowed under flwr run: {', '.join(SHIPPED_CORPORA)} or an absolute path"
        )
    out = config.out or default_run_path(results_folder(), strategy=config.privacy.strategy, seed=config.seed)
    changes = {
        "out": str(results_folder() / Path(out).expanduser()),
        "corpus": config.corpus.model_copy(update={"path": str(Path(corpus).expanduser())}),
        "engine": config.engine.model_copy(update={"nodes": nodes}),
    }
    return config.model_copy(update=changes)


def results_folder() -> Path:
    """Return the folder of runs that ``flwr run`` started: ``fl-sim-runs`` in Flower's home (``~/.flwr``)."""
    return (get_flwr_home() / "fl-sim-runs").absolute()


def describe_row(row: Row, rounds: int) -> str:
    """Return a round's metrics in one line."""
    parts, figures = [f"round {row['round']}/{rounds}"], numbers_of(row)
    parts += [f"{u.column} {u.show(figures[u.column])}" for u in UTILITIES.values() if u.column in figures]
    parts.append(epsilon_in_words(figures))
    if row.get("failed_nodes"):
        parts.append(f"{row['failed_nodes']} nodes failed and count as zero")
    return ", ".join(parts)


def with_notes(error: Exception) -> str:
    """Return an error and its notes in one line."""
    notes = (" ".join(note.split()) for note in getattr(error, "__notes__", ()))
    return printable("; ".join((one_line(error), *notes)))
