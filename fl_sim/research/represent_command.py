"""Private text representations: encode, perturb, classify, attack; claimed and proven ε beside each other.

`fl-sim reproduce` makes the published tables of such systems.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fl_sim.cli.flags import assignments
from fl_sim.cli.from_signature import FILE, options_of
from fl_sim.cli.verbs import VerbGroup, as_json
from fl_sim.cli.written_files import check_writable
from fl_sim.data_prep.readers.cleaning import Cleaning
from fl_sim.data_prep.store.textfiles import SourceLimits
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
    from fl_sim.research.representations.evaluation.experiment_summary import summary

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
    _print(out, record, summary(record), as_json)


@represent.command()
@click.argument("user", type=FILE, metavar="USER")
@click.argument("attacker", type=FILE, metavar="[ATTACKER]", required=False)
@click.option("--text", default="text", show_default=True, metavar="COLUMN", help="The column with the text.")
@click.option(
    "--parts", default="halves", show_default=True, metavar="NAME",
    help="The parts of USER without ATTACKER: disjoint halves, or samples, two draws of half of it, which overlap.",
)  # fmt: skip
@click.option("--widths", default="100", show_default=True, metavar="N,N,…", help="The numbers per vector.")
@click.option("--seeds", default="0,1,2,3,4,5,6,7,8,9", show_default=True, metavar="N,N,…", help="The seeds.")
@click.option(
    "--layer", default="none", show_default=True, metavar="NAME",
    help="The layer of the user's vectors: none, dpnr, l1 or l2.",
)  # fmt: skip
@click.option("--epsilons", metavar="ε,ε,…", help="The ε of the layer, for one word's vector.")
@click.option("--least", type=int, default=5, show_default=True, metavar="N", help="The occurrences that a word needs.")
@click.option("--epochs", type=int, default=5, show_default=True, metavar="N", help="The epochs of Word2Vec.")
@options_of(Cleaning, but=("limits",))
@options_of(SourceLimits, record_mb="--max-record-mb", unpacking="--max-unpacking", kinds="--max-kinds")
@click.option("--out", type=FILE, metavar="FILE", help="Write the record there, JSON.")
@as_json
@owner_only()
def words(out: Path | None, as_json: bool, **settings: Any) -> None:
    """Recover words from captured Word2Vec vectors of USER's texts, with those of ATTACKER or a part of USER."""
    from fl_sim.research.representations.studies.words_study import attack_files, summary

    check_writable("--out", out, new_folder=True)
    limits = SourceLimits(*(settings.pop(name) for name in SourceLimits.__dataclass_fields__))
    settings["cleaning"] = Cleaning(settings.pop("max_characters"), settings.pop("bad_bytes"), limits)
    record = attack_files(argparse.Namespace(**settings))
    _print(out, record, summary(record), as_json)


def _print(out: Path | None, record: dict[str, Any], summary: str, as_json: bool) -> None:
    """Write the record to the file that was named, and print it or its summary."""
    if out is not None:
        write_json(record, out)
    print(json.dumps(encode(record), indent=1, ensure_ascii=False) if as_json else summary)


def _draw(config: ExperimentConfig, path: Path) -> None:
    """Draw the test texts' released vectors by t-SNE."""
    from fl_sim.config import ConfigError
    from fl_sim.formats import format_epsilon
    from fl_sim.research.representations.client.client_workspace import open_data
    from fl_sim.research.representations.evaluation.representation_pictures import draw_tsne, group_names
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
    draw_tsne({title: sent}, data.test.private[:, 0], group_names(data.attributes[0]), path, config.seed)
