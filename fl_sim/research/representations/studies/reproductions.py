"""Published tables of private representations that can be made again, by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_sim.config import ConfigError
from fl_sim.research.project_roots import project_roots
from fl_sim.research.representations.representation_experiment import describe_environment
from fl_sim.research.representations.studies import adult_study, ag_study, dpnr_ag
from fl_sim.research.representations.studies.study_tables import Options, Say
from fl_sim.storage.run_folder import decode, encode, replace_file


@dataclass(frozen=True)
class Reproduction:
    """A table.

    Attributes:
        title: what it is. folder: where its corpus lies in a folder of corpora.
        make: makes it. show: the table in Markdown.
        layers: that it can be made with, the first by default.
    """

    title: str
    folder: str
    make: Callable[[Options, Say], dict[str, Any]]
    show: Callable[[dict[str, Any]], str]
    layers: tuple[str, ...] = ("l1",)


REPRODUCTIONS = {
    "adult": Reproduction(
        "FEDERATE's table 3 (Adult)", "adult", adult_study.reproduce, adult_study.as_markdown, ("l1", "l2")
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


def run(name: str, options: Options, say: Say = lambda line: None) -> dict[str, Any]:
    """The table of that name as a JSON-ready mapping, with what it was made on.

    Args:
        name: one of ``NAMES``. options: what and how. say: called with a line as things get done.
    """
    if name not in REPRODUCTIONS:
        raise ConfigError(f"reproduction is {name!r}; allowed: {', '.join(NAMES)}")
    found = REPRODUCTIONS[name]
    if options.layer not in found.layers:
        raise ConfigError(f"layer is {options.layer!r}; allowed for {name}: {', '.join(found.layers)}")
    environment = describe_environment()  # of now: who edits the code meanwhile does not change what runs
    return {**found.make(options, say), "environment": environment}


def show(table: dict[str, Any]) -> str:
    """The table for people, in Markdown."""
    return REPRODUCTIONS[table["name"]].show(table)


def write(table: dict[str, Any], path: Path) -> None:
    """The table as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(encode(table), indent=1).encode() + b"\n")


def write_document(folder: Path) -> list[Path]:
    """Write README.md of the tables that ``folder`` has; nothing where it has none."""
    records = sorted(folder.glob("*.json"))
    if records:
        replace_file(folder / README, "\n".join([_HEAD, *map(_section, records)]).encode())
    return [folder / README] if records else []


def find_table(name: str) -> dict[str, Any] | None:
    """The table that is kept in results/representations, of the working folder or else of the sources; None if there
    is none."""
    for root in project_roots():
        path = root / "results" / FOLDER / f"{name}.json"
        if path.is_file():
            return _read(path)
    return None


def _read(path: Path) -> dict[str, Any]:
    return dict(decode(json.loads(path.read_bytes())))


def _section(path: Path) -> str:
    table = _read(path)
    found = REPRODUCTIONS[table["name"]]
    seeds = ", ".join(map(str, table["seeds"]))
    commit = (table["environment"].get("git") or {}).get("commit", "an unknown commit")[:12]
    origin = f"*[{path.name}]({path.name}); {table['grid']} grid; seeds {seeds}; made from {commit}.*"
    layer = f", layer {table['layer']}" if "layer" in table else ""
    title = f"{found.title[0].upper()}{found.title[1:]}{layer}"
    return f"## {title}\n\n{table['paper']}.\n\n{found.show(table).strip()}\n\n{origin}\n"
