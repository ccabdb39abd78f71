"""Write the tables of docs/configuration.md from the models that validate a configuration.

    python scripts/update_configuration_docs.py

A test fails if the document is out of date.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from fl_sim.cli.run_commands.run_command import SHORTHANDS
from fl_sim.config import run_keys
from fl_sim.config_keys import Key
from fl_sim.run.run_plan import DEFAULTS

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"


def updated(document: str) -> str:
    """Return ``document`` with the tables between ``<!-- NAME -->`` and ``<!-- end of NAME -->`` regenerated."""
    for name, table in {"keys": key_tables(), "strategies": strategy_table()}.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        document = re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{table}\n{end}", document, flags=re.DOTALL)  # noqa: B023
    return document


def key_tables() -> str:
    """Return one table of keys per section."""
    flags = {key: flag for flag, key, _, _ in SHORTHANDS} | {"privacy.secure_noise": "--secure-noise"}
    parts = []
    for section, keys in groupby(run_keys().values(), key=lambda key: key.name.rpartition(".")[0]):
        parts.append(f"### `[{section}]`" if section else "### At the top")
        parts.append(_table(("key", "allowed", "default", "meaning", "flag"), (_row(key, flags) for key in keys)))
    return "\n\n".join(parts)


def strategy_table() -> str:
    """Return the table of every strategy's defaults for keys that are not set."""
    names = list(DEFAULTS["uedp"])
    rows = ((f"`{name}`", *(_number(DEFAULTS[strategy][name]) for strategy in DEFAULTS)) for name in names)
    return _table(("`privacy.`", *(f"`{strategy}`" for strategy in DEFAULTS)), rows)


def _row(key: Key, flags: dict[str, str]) -> tuple[str, ...]:
    default = f"`{key.default}`" if key.default else ""
    flag = f"`{flags[key.name]}`" if key.name in flags else ""
    return f"`{key.name.rpartition('.')[2]}`", key.allowed, default, key.meaning.rstrip("."), flag


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:g}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells)


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
