"""The reproducible tables of private representations, by name.

>>> sorted(REPRODUCTIONS)
['adult', 'ag-study', 'dpnr-ag']
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_sim.config import ConfigError
from fl_sim.research.project_roots import project_roots
from fl_sim.research.representations.representation_experiment import describe_environment
from fl_sim.research.representations.studies import ag_study, dpnr_ag
from fl_sim.research.representations.studies.adult import adult_document, adult_study
from fl_sim.research.representations.studies.study_tables import Log, Options
from fl_sim.storage.run_folder import decode, encode, replace_file


@dataclass(frozen=True)
class Reproduction:
    """A reproducible table.

    Attributes:
        title: for people.
        folder: of its corpus, in a folder of corpora.
        make: returns the table's mapping.
        show: returns the table in Markdown.
        layers: allowed privacy layers, the default first.
    """

    title: str
    folder: str
    make: Callable[[Options, Log], dict[str, Any]]
    show: Callable[[dict[str, Any]], str]
    layers: tuple[str, ...] = ("l1",)


REPRODUCTIONS = {
    "adult": Reproduction(
        "FEDERATE's table 3 (Adult)", "adult", adult_study.reproduce, adult_document.as_markdown, ("l1", "l2")
    ),
    "ag-study": Reproduction(
        "the study's figures 7 and 8 (AG News, SST-2)", ".", ag_study.reproduce, ag_study.as_markdown
    ),
    "dpnr-ag": Reproduction("DPNR's tables 2 to 5 and 7 on its AG set", "dpnr", dpnr_ag.reproduce, dpnr_ag.as_markdown),
}
"""By name; add a row for another."""

NAMES = tuple(REPRODUCTIONS)
FOLDER = "representations"
"""In results/."""
README = "README.md"

_HEAD = """\
# Private text representations

Made by `fl-sim reproduce --readme results` from the JSON files here; do not edit. Measured means ± standard deviations
over the seeds, published figures in brackets. *Claimed* ε is what the method's authors state, *proven* what holds.
docs/representations.md says what each system is, and why a figure is not the published one.
"""


def run(name: str, options: Options, log: Log = lambda line: None) -> dict[str, Any]:
    """Make a table and return it as a JSON-ready mapping, with its environment.

    Args:
        name: one of ``NAMES``.
        options: of the reproduction.
        log: called with a line of progress.

    Raises:
        ConfigError: if the name or the layer is unknown.
    """
    if name not in REPRODUCTIONS:
        raise ConfigError(f"reproduction is {name!r}; allowed: {', '.join(NAMES)}")
    reproduction = REPRODUCTIONS[name]
    if options.layer not in reproduction.layers:
        raise ConfigError(f"layer is {options.layer!r}; allowed for {name}: {', '.join(reproduction.layers)}")
    environment = describe_environment()  # at the start: later edits of the sources do not change the running code
    return {**reproduction.make(options, log), "environment": environment}


def show(table: dict[str, Any]) -> str:
    """Return a table in Markdown."""
    return REPRODUCTIONS[table["name"]].show(table)


def write(table: dict[str, Any], path: Path) -> None:
    """Write a table as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(encode(table), indent=1).encode() + b"\n")


def write_document(folder: Path) -> list[Path]:
    """Write README.md of the tables in ``folder`` and return its path; write nothing if there is no table."""
    records = sorted(folder.glob("*.json"))
    if records:
        replace_file(folder / README, "\n".join([_HEAD, *map(_section, records)]).encode())
    return [folder / README] if records else []


def find_table(name: str) -> dict[str, Any] | None:
    """Return the table in results/representations, of the working directory or else of the sources; None if absent."""
    for root in project_roots():
        path = root / "results" / FOLDER / f"{name}.json"
        if path.is_file():
            return _read(path)
    return None


def _read(path: Path) -> dict[str, Any]:
    return dict(decode(json.loads(path.read_bytes())))


def _section(path: Path) -> str:
    table = _read(path)
    reproduction = REPRODUCTIONS[table["name"]]
    seeds = ", ".join(map(str, table["seeds"]))
    commit = (table["environment"].get("git") or {}).get("commit", "an unknown commit")[:12]
    origin = f"*[{path.name}]({path.name}); {table['grid']} grid; seeds {seeds}; made from {commit}.*"
    layer = f", layer {table['layer']}" if "layer" in table else ""
    title = f"{reproduction.title[0].upper()}{reproduction.title[1:]}{layer}"
    return f"## {title}\n\n{table['paper']}.\n\n{reproduction.show(table).strip()}\n\n{origin}\n"
