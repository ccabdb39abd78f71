"""What both studies share: checked models, JSON files of records, and tables in Markdown.

>>> class Point(StrictModel):
...     x: float
>>> Point(x=1).x
1.0
>>> markdown_table(["curve", "ε"], [["ours", "2.0"]])
['| curve | ε |', '|---|---|', '| ours | 2.0 |']
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from fl_sim.storage.run_folder import decode, encode, replace_file


class StrictModel(BaseModel):
    """A frozen pydantic model that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


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


def write_json(value: Any, path: Path, indent: int | None = 1) -> None:
    """Write a JSON-ready value, infinities included, atomically; make the folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(encode(value), ensure_ascii=False, indent=indent).encode() + b"\n")


def read_json(path: Path) -> Any:
    """Return what :func:`write_json` wrote."""
    return decode(json.loads(path.read_bytes()))


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table, with the columns' names in its head."""
    return [_markdown_row(names), "|" + "---|" * len(names), *map(_markdown_row, rows)]


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
