"""The ServerApp of a run whose nodes hold their own users' text: it enrols them, plans, and runs the rounds.

The run config has the keys of ``fl-sim run`` and those of :data:`OWN_KEYS`; ``corpus.path`` names the prepared folder
of the held-out text, which is the server's own.

>>> settings, nodes = own_settings({"nodes": 3, "rounds": 5, "corpus-path": "/data"})
>>> settings, nodes
({'rounds': 5}, 3)
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.engines.grids import AttendedGrid
from fl_sim.engines.server_app import read_run_config, results_folder, run_experiment
from fl_sim.experiments.experiment import Experiment
from fl_sim.experiments.plan.run_plan import untuned_plan
from fl_sim.experiments.run_inputs import held_out_split
from fl_sim.flower.text.held_text import Enrolment, NodesError
from fl_sim.flower.text.text_of_nodes import TextOfNodes, answers, check_usable, question_of, write_record

OWN_KEYS = ("nodes", "resume", "corpus-path", "entity-key")
"""Keys of the run config besides those of a run: the nodes to wait for, a run folder to resume, and what nodes without
a node config of their own open (:mod:`fl_sim.flower.text.text_client_app`)."""

RECORD_SUFFIX = "-counts"
"""Ends the name of the folder beside the run's with the counts that the nodes sent."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configuration of ``[tool.flwr.app.config]`` and ``--run-config`` on the nodes' own text."""
    settings, nodes = own_settings(context.run_config)
    resumed = str(context.run_config.get("resume") or "")

    def prepare(attended: AttendedGrid) -> Experiment:
        if resumed:
            return Experiment.resume(results_folder() / Path(resumed).expanduser(), open_text=TextOfNodes)
        return create(attended, read_run_config(settings, len(list(attended.get_node_ids()))))

    run_experiment(grid, prepare, nodes)


def create(grid: Grid, config: RunConfig) -> Experiment:
    """Enrol the nodes of ``grid`` and prepare a run on their text.

    Args:
        config: of the run, with the folder of its results; its corpus is the held-out text.

    Raises:
        NodesError: a node cannot take part, or the nodes do not fit together.
        ValueError: (another one of the project's own subclasses) as :meth:`Experiment.create`.
    """
    held_out = Corpus.open(config.corpus.path, verify=True)
    split = held_out_split(config, held_out)
    if split not in held_out.splits:
        raise ConfigError(f"corpus.held_out_split is '{split}'; allowed: {', '.join(held_out.splits)}")
    mechanism = untuned_plan(config, held_out.ownership(split)).mechanism  # whose rule is of the kind of the run's
    check_usable(config, mechanism.client_rule(mechanism.clip_norm))
    out = Path(str(config.out))
    folder = out.with_name(out.name + RECORD_SUFFIX)
    classes: tuple[str, ...] = ()
    if config.task == "classification":
        targets = {int(number) for number in held_out.targets(split) if number >= 0}
        classes = tuple(sorted(held_out.classes[number] for number in targets))
    question, enrolled = question_of(config, classes), list[Enrolment]()
    for answer, _ in answers(grid, question, sorted(grid.get_node_ids()), config.engine.timeout):
        if isinstance(answer, NodesError):
            raise answer
        enrolled.append(answer)
    record = write_record(enrolled, config.corpus.train_split, held_out, split, folder)
    corpus = config.corpus.model_copy(update={"path": str(record.path), "held_out_split": split})
    engine = config.engine.model_copy(update={"nodes": None})
    try:
        changed = config.model_copy(update={"corpus": corpus, "engine": engine})
        return Experiment.create(changed, open_text=TextOfNodes)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def own_settings(run_config: Mapping[str, object]) -> tuple[dict[str, object], int]:
    """Return the settings of the run in Flower's run config, and the number of nodes to wait for.

    Raises:
        ConfigError: ``nodes`` is no number of at least 1.
    """
    nodes = run_config.get("nodes", 1)
    if not isinstance(nodes, int) or nodes < 1:
        raise ConfigError(f"nodes is {nodes}; allowed: an integer of at least 1, the nodes to wait for")
    return {key: value for key, value in run_config.items() if key not in OWN_KEYS}, nodes
