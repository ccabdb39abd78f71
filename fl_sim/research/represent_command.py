"""`fl-sim represent`; the published tables of such systems are made by `fl-sim reproduce`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fl_sim.cli.flags import assignments
from fl_sim.cli.from_signature import FILE
from fl_sim.cli.verbs import VerbGroup, as_json
from fl_sim.cli.written_files import check_writable
from fl_sim.files import owner_only
from fl_sim.research.study_files import write_json
from fl_sim.storage.run_folder import encode

if TYPE_CHECKING:
    from fl_sim.research.representations.config import ExperimentConfig


@click.group(cls=VerbGroup)
def represent() -> None:
    """Private text representations: encode, perturb, classify, attack; claimed and proven ε beside each other."""


@represent.command()
@click.argument("config", type=FILE, metavar="[CONFIG]", required=False)
@assignments
@click.option("--out", type=FILE, metavar="FILE", help="Write the record there, JSON.")
@click.option("--picture", type=FILE, metavar="FILE", help="Draw the test texts by t-SNE as a PNG or SVG.")
@as_json
@owner_only()
def run(
    config: Path | None, assignments: tuple[str, ...], out: Path | None, picture: Path | None, as_json: bool
) -> None:
    """Train and attack one system on one corpus; CONFIG is a TOML file (docs/representations.md)."""
    from fl_sim.config import merged, nested, parse_assignments, read_toml
    from fl_sim.research.representations import representation_experiment
    from fl_sim.research.representations.config import load_mapping
    from fl_sim.research.representations.experiment_record import summary

    check_writable("--out", out, new_folder=True)
    check_writable("--picture", picture, new_folder=True)
    settings = parse_assignments(assignments)
    of_file = {} if config is None else nested(read_toml(config))
    chosen = load_mapping(merged(of_file, nested(settings)))  # a file need not be complete by itself
    record = representation_experiment.run(
        chosen,
        lambda row: print(
            f"epoch {row.epoch}: loss {row.loss:.4f}, validation accuracy {row.accuracy:.4f}", file=sys.stderr
        ),
        environment=representation_experiment.describe_environment(),
    )
    if picture is not None:
        _draw(chosen, picture)
    if out is not None:
        write_json(record, out)
    print(json.dumps(encode(record), indent=1, ensure_ascii=False) if as_json else summary(record))


def _draw(config: ExperimentConfig, path: Path) -> None:
    """Draw the test texts' released vectors by t-SNE."""
    from fl_sim.config import ConfigError
    from fl_sim.formats import format_epsilon
    from fl_sim.research.representations.client.client_workspace import open_data
    from fl_sim.research.representations.evaluation.representation_pictures import draw_tsne
    from fl_sim.research.representations.representation_experiment import train_and_release

    data = open_data(config.data, config.seed)
    if not data.attributes:
        raise ConfigError(f"--picture: {data.name} has no private attribute; allowed: data with one")
    if not config.system.trains:
        raise ConfigError(f"--picture: method {config.method!r} sends nothing; allowed: a method with an encoder")
    path.parent.mkdir(parents=True, exist_ok=True)
    sent = train_and_release(config).released["test"]
    mechanism = config.mechanism(sent.shape[1])
    title = f"{config.method}, ε = {'∞' if mechanism is None else format_epsilon(mechanism.proven_epsilon)} proven"
    draw_tsne(title, sent, data.test.private[:, 0], data.attributes[0], path, config.seed)
