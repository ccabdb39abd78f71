"""The reproducible tables of private representations, by name.

>>> sorted(REPRODUCTIONS)
['adult', 'ag-study', 'dpnr-ag', 'words']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fl_sim.config import ConfigError
from fl_sim.research.representations.representation_experiment import RECORD_FORMAT, describe_environment
from fl_sim.research.representations.studies import (
    adult_study,
    ag_study,
    dpnr_ag,
    dpnr_pages,
    systems_table,
    words_study,
)
from fl_sim.research.representations.studies.study_pictures import Picture, picture_file, save_pictures
from fl_sim.research.representations.studies.study_runs import Log, Options, Record
from fl_sim.research.study_files import Point, made_from, read_json, write_json
from fl_sim.storage.environment import commit_of
from fl_sim.storage.run_folder import ResultsError, replace_file


@dataclass(frozen=True)
class Reproduction:
    """A reproducible table of the corpus in ``folder``.

    Attributes:
        layers: allowed privacy layers, the default first.
        points: returns what of a record can be computed again by itself.
        draw: returns the table's pictures; they are written beside its record, and README.md shows them.
        one_grid: whether the thin grid is the full one.
    """

    title: str
    folder: str
    make: Callable[[Options, Log], Record]
    show: Callable[[Record], str]
    points: Callable[[Record, Options], list[Point]]
    layers: tuple[str, ...] = ("l1",)
    draw: Callable[[Record], Sequence[Picture]] = lambda table: ()
    one_grid: bool = False


REPRODUCTIONS = {
    "adult": Reproduction(
        "FEDERATE's table 3 (Adult)",
        "adult",
        adult_study.reproduce,
        systems_table.as_markdown,
        adult_study.points,
        ("l1", "l2"),
        draw=systems_table.draw,
    ),
    "ag-study": Reproduction(
        "the study's figures 7 and 8 (AG News, SST-2)",
        ".",
        ag_study.reproduce,
        ag_study.as_markdown,
        ag_study.points,
        draw=ag_study.draw,
        one_grid=True,
    ),
    "dpnr-ag": Reproduction(
        "DPNR's tables 2 to 5 and 7, figures 3 and 4, on its AG set",
        "dpnr",
        dpnr_ag.reproduce,
        dpnr_pages.as_markdown,
        dpnr_ag.points,
        draw=dpnr_pages.draw_pictures,
    ),
    "words": Reproduction(
        "the study's attack on word vectors (AG News, SST-2)",
        ".",
        words_study.reproduce,
        words_study.as_markdown,
        words_study.points,
        draw=words_study.draw,
        one_grid=True,
    ),
}
"""By name; add a row for another."""

FOLDER = "representations"
"""In results/."""
README = "README.md"
_HEADING = ("paper", "grid", "seeds", "commit", "environment")
"""What every record has, besides its name and format."""

_HEAD = """\
# Private text representations

Made by `fl-sim reproduce readme results` from the JSON files here; do not edit. Measured means ± standard deviations
over the seeds [± half width of the 95 % interval of the mean], published figures in brackets, ✓ where they are
reproduced. *Proven* ε is what holds, *claimed* what the method's authors state. No source differed from a *clean*
commit. docs/representations.md says what each system is, when a figure counts as reproduced, and why one is not the
published one.
"""


def run(name: str, options: Options, log: Log = lambda *line: None) -> Record:
    """Make a table and return it with its commits and environment; ConfigError if it does not have the layer."""
    reproduction = REPRODUCTIONS[name]
    if options.layer not in reproduction.layers:
        raise ConfigError(f"layer is {options.layer!r}; allowed for {name}: {', '.join(reproduction.layers)}")
    environment = describe_environment()  # at the start: later edits of the sources do not change the running code
    options = replace(options, commit=commit_of(environment))
    table = reproduction.make(options, log)
    return {
        **table,
        "experiments": options.used.experiments,
        "cpu_seconds": options.used.cpu_seconds,
        "commit": ", ".join(sorted({options.commit, *options.used.commits})),
        "environment": {name: value for name, value in environment.items() if name != "git"},
    }


def points_of(table: Record, data: Path, work: Path) -> list[Point]:
    """Return the points of a record; ``data`` has the raw corpora, and experiments go to the folder ``work``."""
    reproduction = REPRODUCTIONS[table["name"]]
    options = Options(
        source=(data / reproduction.folder).expanduser().absolute(),
        seeds=tuple(table["seeds"]),
        full=table["grid"] == "full",
        layer=table.get("layer", "l1"),
        work=work,
    )
    return reproduction.points(table, options)


def show(table: Record) -> str:
    """Return a table in Markdown."""
    return REPRODUCTIONS[table["name"]].show(table)


def file_name(table: Record) -> str:
    """Return the name of a table's record: one for each layer and grid.

    >>> [file_name({"name": "adult", "layer": layer, "grid": "thin"}) for layer in ("l1", "l2")]
    ['adult.json', 'adult_l2.json']
    """
    reproduction = REPRODUCTIONS[table["name"]]
    parts = [table["name"]]
    if table.get("layer", reproduction.layers[0]) != reproduction.layers[0]:
        parts.append(table["layer"])
    if table["grid"] == "full" and not reproduction.one_grid:
        parts.append("full")
    return f"{'_'.join(parts)}.json"


def read(path: Path) -> Record:
    """Return the table at ``path``; ResultsError if the file is no record of one."""
    table = read_json(path)
    heading = table if isinstance(table, dict) else {}
    if heading.get("name") not in [*REPRODUCTIONS]:
        raise ResultsError(
            f"{path}: name is {heading.get('name')!r}; allowed: {', '.join(REPRODUCTIONS)}, as in a record of fl-sim "
            "reproduce"
        )
    if heading.get("format") != RECORD_FORMAT:
        raise ResultsError(f"{path}: format is {heading.get('format')!r}; allowed: {RECORD_FORMAT}")
    absent = next((key for key in _HEADING if key not in heading), None)
    if absent is not None:
        raise ResultsError(f"{path}: has no {absent}; allowed: a record of fl-sim reproduce")
    return heading


def write(table: Record, path: Path) -> list[Path]:
    """Write a table as JSON, and its pictures beside it; return the files."""
    write_json(table, path)
    return [path, *save_pictures(REPRODUCTIONS[table["name"]].draw(table), path)]


def write_document(folder: Path) -> list[Path]:
    """Write README.md and the pictures of the tables in ``folder``; return the files, none if there is no table."""
    records = sorted(folder.glob("*.json"))
    if not records:
        return []
    tables = {path: read(path) for path in records}
    pictures = [
        picture for path, of in tables.items() for picture in save_pictures(REPRODUCTIONS[of["name"]].draw(of), path)
    ]
    sections = (_section(path, table) for path, table in tables.items())
    replace_file(folder / README, "\n".join([_HEAD, *sections]).encode())
    return [folder / README, *pictures]


def _section(path: Path, table: Record) -> str:
    reproduction = REPRODUCTIONS[table["name"]]
    seeds = ", ".join(map(str, table["seeds"]))
    origin = f"*[{path.name}]({path.name}); {table['grid']} grid; seeds {seeds}; {made_from(table['commit'])}.*"
    layer = f", layer {table['layer']}" if "layer" in table else ""
    grid = ", full grid" if table["grid"] == "full" and not reproduction.one_grid else ""
    title = f"{reproduction.title[0].upper()}{reproduction.title[1:]}{layer}{grid}"
    shown = "".join(f"![{one.words}]({picture_file(path, one).name})\n\n" for one in reproduction.draw(table))
    return f"## {title}\n\n{table['paper']}.\n\n{reproduction.show(table).strip()}\n\n{shown}{origin}\n"
