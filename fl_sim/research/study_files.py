"""What both studies share: checked models, JSON files of records, their commits and points, tables in Markdown.

>>> class Point(StrictModel):
...     x: float
>>> Point(x=1).x
1.0
>>> markdown_table(["curve", "ε"], [["ours", "2.0"]])
['| curve | ε |', '|---|---|', '| ours | 2.0 |']
>>> made_from("a9a4aed579f294bc27b317cc3f47e8fa351b6e00, 2d667b6476ce81700eae923d1f1d511648dff3fc")
'made from a9a4aed579f2, 2d667b6476ce, clean'
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from fl_sim.formats import one_line
from fl_sim.storage.environment import DIRTY, UNKNOWN, Environment, commit_of, history
from fl_sim.storage.run_folder import ResultsError, decode, encode, replace_file


class StrictModel(BaseModel):
    """A frozen pydantic model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


@dataclass(frozen=True)
class Point:
    """A part of a record that can be computed again by itself.

    Attributes:
        words: which one.
        seconds: what it took; None if the record does not say.
        compared: returns its figures in the record, and those that the present code computes, as JSON has them.
    """

    words: str
    seconds: float | None
    compared: Callable[[], tuple[Any, Any]]


def first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    """Return the first problem of a configuration of ``model`` in one line: key, value and what is allowed."""
    problem = error.errors()[0]
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        for part in problem["loc"][:-1]:  # positions and the keys of a mapping are no fields
            if part in model.model_fields:
                annotation = model.model_fields[str(part)].annotation
                model = next((of for of in (annotation, *get_args(annotation)) if hasattr(of, "model_fields")), model)
        return f"{name}: unknown key; allowed: {', '.join(model.model_fields)}"
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"]) if not name else f"{name}: {problem['ctx']['error']}"
    return f"{name} is {problem['input']!r}; {problem['msg'][0].lower()}{problem['msg'][1:]}"


def commits_of(environments: Iterable[Environment]) -> str:
    """Return the different commits of environments, as a record states them."""
    return ", ".join(dict.fromkeys(map(commit_of, environments)))


def check_commits(name: str, commits: str) -> None:
    """Raise ResultsError unless all commits of a record are clean and in the history of this checkout."""
    known = history()
    for commit in commits.split(", "):
        reasons = {
            "its sources had changes that are not committed": commit.endswith(DIRTY),
            "the code was no git checkout": commit == UNKNOWN,
            "the history of this checkout does not have it": commit not in known,
        }
        reason = next((reason for reason, holds in reasons.items() if holds), None)
        if reason is not None:
            raise ResultsError(
                f"{name}: commit is '{commit}': {reason}; allowed for a record: clean commits of a checkout's history"
            )


def made_from(commits: str, day: str = "") -> str:
    """Return in words from which commits a record was made, and whether all were clean."""
    shown = ", ".join(" ".join([words[0][:12], *words[1:]]) for words in map(str.split, commits.split(", ")))
    state = "" if DIRTY in commits or UNKNOWN in commits else ", clean"
    return " ".join(filter(None, ["made", day, f"from {shown}{state}"]))


def write_json(value: Any, path: Path, indent: int | None = 1) -> None:
    """Write a JSON-ready value, infinities included, atomically; make the folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(encode(value), ensure_ascii=False, indent=indent).encode() + b"\n")


def read_json(path: Path) -> Any:
    """Return what :func:`write_json` wrote; ResultsError if the file is no JSON."""
    try:
        return decode(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError) as error:
        raise ResultsError(f"{path}: cannot be read as JSON ({one_line(error)})") from error


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, with the columns' names in its head."""
    return [_markdown_row(names), "|" + "---|" * len(names), *map(_markdown_row, rows)]


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
