"""Published tables of private representations that can be made again, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fl_sim.config import ConfigError
from fl_sim.representations import adult

Say = Callable[[str], None]
Reproduction = Callable[[Path, tuple[int, ...], bool, str, int, Path | None, Say], dict[str, Any]]


def _adult(
    source: Path, seeds: tuple[int, ...], full: bool, layer: str, jobs: int, work: Path | None, say: Say
) -> dict[str, Any]:
    return adult.reproduce(adult.Options(source, seeds, full, layer, jobs, work), say)


REPRODUCTIONS: dict[str, tuple[Reproduction, Callable[[dict[str, Any]], str]]] = {"adult": (_adult, adult.as_markdown)}
"""Name to what makes the table and what shows it; add a row for another."""

NAMES = tuple(REPRODUCTIONS)


def run(
    name: str,
    source: Path,
    *,
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    full: bool = False,
    layer: str = "l1",
    jobs: int = 1,
    work: Path | None = None,
    say: Say = lambda line: None,
) -> dict[str, Any]:
    """The table of that name as a JSON-ready mapping.

    Args:
        name: one of ``NAMES``. source: the corpus's folder. seeds: an experiment each.
        full: the published grid instead of the thin one. layer: normalisation of the privacy layer.
        jobs: experiments at once. work: a folder for what is done, to go on with later.
        say: called with a line as things get done.
    """
    if name not in REPRODUCTIONS:
        raise ConfigError(f"reproduction is {name!r}; allowed: {', '.join(NAMES)}")
    return REPRODUCTIONS[name][0](source, seeds, full, layer, jobs, work, say)


def show(table: dict[str, Any]) -> str:
    """The table for people, in Markdown."""
    return REPRODUCTIONS[table["name"]][1](table)
