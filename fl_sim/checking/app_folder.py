"""Read a Flower app's folder: its components and configuration; and tell whether the folder changed.

>>> read_words("rounds=5 name='a b' model.hidden=4")
{'rounds': 5, 'name': 'a b', 'model.hidden': 4}
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fl_sim.files import naming
from fl_sim.settings_origin import leaves

if TYPE_CHECKING:
    from flwr.app import UserConfig

_PAIR = re.compile(r"""\s*([\w.-]+)\s*=\s*('[^']*'|"[^"]*"|\S+)""")
_OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_LARGEST = 1 << 22  # bytes: the content of larger files is not read for the digest, their size and time are


class CheckError(ValueError):
    """An app cannot be checked; the message says why, in one line."""


@dataclass(frozen=True, slots=True)
class AppFolder:
    """Hold what the pyproject.toml of a Flower app says.

    Attributes:
        server, client: the components, ``module:object``.
        config: the run configuration, flat.
        nodes: the number of nodes that the app asks for in a simulation; None if it does not say.
    """

    path: Path
    server: str
    client: str
    config: UserConfig
    nodes: int | None = None

    @classmethod
    def read(cls, folder: str | Path, run_config: str = "") -> AppFolder:
        """Read a folder, with some keys of its run configuration set to other values.

        Raises:
            CheckError: there is no Flower app, or ``run_config`` has a key that the app does not have.
        """
        path = Path(folder).absolute()
        file = path / "pyproject.toml"
        if not file.is_file():
            raise CheckError(f"{folder}: has no pyproject.toml; allowed: the folder of a Flower app")
        try:
            with naming(file):
                flower = tomllib.loads(file.read_text(encoding="utf-8")).get("tool", {}).get("flwr", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise CheckError(f"{file}: is no TOML: {error}") from error
        components = flower.get("app", {}).get("components", {})
        for part in ("serverapp", "clientapp"):
            if not _OBJECT.fullmatch(str(components.get(part, ""))):
                raise CheckError(f'{file}: [tool.flwr.app.components] names no {part}; allowed: "module:object"')
        config = cast("UserConfig", dict(leaves(flower["app"].get("config", {}))))
        wanted = read_words(run_config)
        if unknown := sorted(set(wanted) - set(config)):
            known = ", ".join(sorted(config)) or "none"
            raise CheckError(f"`run_config` has {unknown[0]!r}, which the app does not; allowed: {known}")
        nodes = _nodes(flower.get("federations", {}))
        return cls(path, components["serverapp"], components["clientapp"], config | wanted, nodes)

    def digest(self) -> str:
        """Return a digest of all files in the folder."""
        total = hashlib.sha256()
        for file in sorted(self.path.rglob("*")):
            if file.is_file() and not file.is_symlink():
                state = file.stat()
                total.update(f"{file.relative_to(self.path)} {state.st_size} {state.st_mtime_ns}".encode())
                if state.st_size <= _LARGEST:
                    total.update(file.read_bytes())
        return total.hexdigest()


def read_words(words: str) -> UserConfig:
    """Return the values of ``key=value`` pairs, as ``flwr run --run-config`` takes them.

    Raises:
        CheckError: for anything else.
    """
    pairs = _PAIR.findall(words)
    if _PAIR.sub("", words).strip():
        raise CheckError(f"`run_config` is {words!r}; allowed: pairs such as \"rounds=5 name='a'\"")
    try:
        return {name: tomllib.loads(f"value = {value}")["value"] for name, value in pairs}
    except tomllib.TOMLDecodeError as error:
        raise CheckError(
            f"`run_config` is {words!r}: {error}; allowed: numbers, true, false, texts in quotes"
        ) from error


def _nodes(federations: object) -> int | None:
    federation = federations.get(federations.get("default"), {}) if isinstance(federations, Mapping) else {}
    nodes = federation.get("options", {}).get("num-supernodes") if isinstance(federation, Mapping) else None
    return nodes if isinstance(nodes, int) else None
