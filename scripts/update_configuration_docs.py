"""Write the tables of docs/configuration.md from the models that validate a configuration, and the keys of Flower from
pyproject.toml into the template of ``fl-sim new``.

    python scripts/update_configuration_docs.py

A test fails if one of them is out of date.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from fl_sim.cli.flags import KEYS
from fl_sim.config import run_keys
from fl_sim.config_keys import Key
from fl_sim.strategies.registry import built_in_strategies

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "configuration.md"
PROJECT = ROOT / "pyproject.toml"
TEMPLATE = ROOT / "fl_sim" / "cli" / "template" / "pyproject.toml"
_FLOWER_KEYS = re.compile(
    r"^\[tool\.flwr\.app\.config\]\n.*?(?=^\[(?!tool\.flwr\.app\.config)|\Z)", re.MULTILINE | re.DOTALL
)


def updated(document: str) -> str:
    """Return ``document`` with the tables between ``<!-- NAME -->`` and ``<!-- end of NAME -->`` regenerated."""
    for name, table in {"keys": key_tables(), "strategies": strategy_table()}.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        document = re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{table}\n{end}", document, flags=re.DOTALL)  # noqa: B023
    return document


def updated_template(template: str, project: str) -> str:
    """Return the template with the keys that ``project``, the pyproject.toml of fl_sim, gives to ``flwr run``."""
    (keys,) = _FLOWER_KEYS.findall(project)
    return _FLOWER_KEYS.sub(lambda _: f"{keys.rstrip()}\n", template)


def key_tables() -> str:
    """Return one table of keys per section."""
    flags = {key: flag for key, (flag, _) in KEYS.items()}
    parts = []
    for section, keys in groupby(run_keys().values(), key=lambda key: key.name.rpartition(".")[0]):
        parts.append(f"### `[{section}]`" if section else "### At the top")
        parts.append(_table(("key", "allowed", "default", "meaning", "flag"), (_row(key, flags) for key in keys)))
    return "\n\n".join(parts)


def strategy_table() -> str:
    """Return the table of every strategy's defaults for keys that are not set."""
    defaults = {name: strategy.defaults for name, strategy in built_in_strategies().items()}
    rows = ((f"`{key}`", *(_number(of[key]) for of in defaults.values())) for key in defaults["uedp"])
    return _table(("`privacy.`", *(f"`{name}`" for name in defaults)), rows)


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
    keys = updated_template(TEMPLATE.read_text(encoding="utf-8"), PROJECT.read_text(encoding="utf-8"))
    TEMPLATE.write_text(keys, encoding="utf-8")
