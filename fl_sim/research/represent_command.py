"""`fl-sim represent`; the published tables of such systems are made by `fl-sim reproduce`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fl_sim.cli.flags import assignments, check_writable
from fl_sim.cli.from_signature import FILE, FOLDER
from fl_sim.cli.verbs import VerbGroup, as_json, quiet
from fl_sim.files import owner_only
from fl_sim.research.study_files import write_json
from fl_sim.storage.run_folder import encode

if TYPE_CHECKING:
    from fl_sim.research.representations.config import ExperimentConfig
    from fl_sim.research.representations.corpora.labelled import LabelledData
    from fl_sim.research.representations.representation_experiment import TrainedSystem

_WORK = Path("runs") / "represent"


@click.group(cls=VerbGroup)
def represent() -> None:
    """Private text representations: encode, perturb, classify, attack; claimed and proven ε beside each other."""


@represent.command()
@click.argument("config", type=FILE, metavar="[CONFIG]", required=False)
@assignments
@click.option("--out", type=FILE, metavar="FILE", help="Write the record there, JSON.")
@click.option("--picture", type=FILE, metavar="FILE", help="Draw the test texts by t-SNE as a PNG or SVG.")
@click.option("--grid", is_flag=True, help="Train all of FEDERATE's systems from their grids, and show the selected.")
@click.option("--full", is_flag=True, help="With --grid: the paper's grid, 333 points per seed instead of 17.")
@click.option("--seeds", type=int, metavar="N", help="With --grid: the number of seeds, from 0 on; 10 by default.")
@click.option("--jobs", type=int, metavar="N", help="With --grid: experiments at once, a process each.")
@click.option("--work", type=FOLDER, metavar="DIR", help=f"With --grid: what is finished stays there ({_WORK}).")
@as_json
@quiet
@owner_only()
def run(config: Path | None, assignments: tuple[str, ...], *, grid: bool, picture: Path | None, **asked: Any) -> None:
    """Train and attack one system on one corpus, or all from their grids.

    CONFIG is a TOML file (docs/representations.md).
    """
    from fl_sim.config import ConfigError, merged, nested, parse_assignments, read_toml

    check_writable("--out", asked["out"], new_folder=True)
    check_writable("--picture", picture, new_folder=True)
    settings = nested(parse_assignments(assignments))
    settings = settings if config is None else merged(nested(read_toml(config)), settings)
    if grid:
        if picture is not None:
            raise ConfigError(f"--picture is {picture}; allowed without --grid, whose pictures stand beside --out")
        return _run_grid(settings, **asked)
    for name in ("full", "seeds", "jobs", "work"):
        given = asked.pop(name)
        if given is not None and given is not False:
            raise ConfigError(f"--{name} is given; allowed with --grid")
    return _run_one(settings, picture, **asked)


def _run_grid(
    settings: dict[str, Any], out: Path | None, full: bool, seeds: int | None, jobs: int | None, work: Path | None,
    as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Make the table of all systems and print it; write it with its pictures to ``out``."""
    from fl_sim.cli.progress_bar import said_in_lines
    from fl_sim.config import ConfigError
    from fl_sim.research.representations.representation_experiment import describe_environment
    from fl_sim.research.representations.studies import systems_table
    from fl_sim.research.representations.studies.study_pictures import save_pictures
    from fl_sim.research.representations.studies.study_runs import Options

    for name, number in (("seeds", seeds), ("jobs", jobs)):
        if number is not None and not 1 <= number <= 1024:
            raise ConfigError(f"--{name} is {number}; allowed: an integer from 1 to 1024")
    options = Options(Path(), tuple(range(seeds or 10)), full, jobs=jobs or 1, work=(work or _WORK).absolute())
    environment = describe_environment()
    with said_in_lines("represent run", quiet) as log:
        table = {**systems_table.of_own_data(settings, options, log), "environment": environment}
    if out is not None:
        write_json(table, out)
        save_pictures(systems_table.draw(table), out)
    print(json.dumps(encode(table), ensure_ascii=False) if as_json else systems_table.as_markdown(table), end="")


def _run_one(settings: dict[str, Any], picture: Path | None, out: Path | None, as_json: bool, quiet: bool) -> None:
    from fl_sim.cli.progress_bar import say
    from fl_sim.formats import format_epsilon
    from fl_sim.research.representations import representation_experiment
    from fl_sim.research.representations.config import load_mapping
    from fl_sim.research.representations.evaluation import representation_pictures
    from fl_sim.research.representations.experiment_record import summary

    chosen = load_mapping(settings)  # a file need not be complete by itself
    drawn = None if picture is None else _drawable(chosen, picture)
    kept: list[TrainedSystem] = []
    record = representation_experiment.run(
        chosen,
        lambda row: say(f"epoch {row.epoch}: loss {row.loss:.4f}, validation accuracy {row.accuracy:.4f}", quiet),
        environment=representation_experiment.describe_environment(),
        keep=kept.append,
    )
    if picture is not None and drawn is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        title = f"{chosen.method}, ε = {format_epsilon(record['privacy']['epsilon_any_text'])} proven"
        vectors, groups = kept[0].released["test"], drawn.test.private[:, 0]
        representation_pictures.draw_tsne(title, vectors, groups, drawn.attributes[0], picture, chosen.seed)
    if out is not None:
        write_json(record, out)
    print(json.dumps(encode(record), indent=1, ensure_ascii=False) if as_json else summary(record))


def _drawable(config: ExperimentConfig, path: Path) -> LabelledData:
    """Return the data of a picture of the test texts; ConfigError if it cannot be drawn, before anything is trained."""
    from fl_sim.config import ConfigError
    from fl_sim.research.representations.client.client_workspace import open_data
    from fl_sim.research.representations.evaluation.representation_pictures import LEAST_POINTS, PICTURES

    if path.suffix not in PICTURES:
        raise ConfigError(f"--picture is {path}; allowed: a file that ends in {', '.join(PICTURES)}")
    if not config.system.trains:
        raise ConfigError(f"--picture: method {config.method!r} sends nothing; allowed: a method with an encoder")
    data = open_data(config.data, config.seed)
    if not data.attributes:
        raise ConfigError(f"--picture: {data.name} has no private attribute; allowed: data with one")
    if len(data.test) < LEAST_POINTS:
        raise ConfigError(f"--picture: {data.name} has {len(data.test)} test rows; allowed: at least {LEAST_POINTS}")
    return data
