"""The Flower ServerApp: a run's experiment on the grid that Flower provides.

``flwr run`` starts :data:`app`, whose configuration is Flower's run config; ``fl-sim run`` starts
:func:`make_server_app` with an experiment it has prepared (and checked) itself. Both go through the same
:class:`~fl_sim.experiment.Experiment`, Strategy and ClientApp.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_sim.config import RunConfig
from fl_sim.experiment import Experiment

log = logging.getLogger("flwr")  # what `flwr run --stream` shows

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configuration of ``[tool.flwr.app.config]`` and ``--run-config``.

    Flower exits with 0 whatever happens, so the last line says ``DONE`` or ``FAILED`` and where the results are.
    """
    try:
        experiment = Experiment.create(RunConfig.from_mapping(context.run_config))
    except ValueError as error:
        log.error("fl-sim FAILED: %s", error)
        raise
    where = experiment.folder.path
    log.info("fl-sim: results go to %s", where)
    experiment.observers.append(lambda row: log.info("fl-sim: %s", describe_row(row, experiment.planned.rounds)))
    try:
        experiment.execute(grid)
    except Exception as error:
        log.error("fl-sim FAILED: %s; what was done is in %s (fl-sim resume %s goes on)", error, where, where)
        raise
    log.info("fl-sim DONE: results are in %s", where)


def make_server_app(experiment: Experiment) -> ServerApp:
    """A ServerApp that runs an experiment prepared in this process."""
    prepared = ServerApp()

    @prepared.main()
    def run_prepared(grid: Grid, context: Context) -> None:
        experiment.execute(grid)

    return prepared


def describe_row(row: Mapping[str, Any], rounds: int) -> str:
    """One round in one line."""
    parts = [f"round {row['round']}/{rounds}"]
    if "perplexity" in row:
        parts.append(f"perplexity {row['perplexity']:.1f}")
    parts.append(f"ε user {row['epsilon_user']:.3g}")
    parts.append(f"ε user+entity (p95) {row['epsilon_user_entity_p95']:.3g}")
    if row.get("failed_nodes"):
        parts.append(f"{row['failed_nodes']} nodes failed and count as zero")
    return ", ".join(parts)
