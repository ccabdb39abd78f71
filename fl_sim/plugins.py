"""Parts that a configuration names: built in, installed by another package, or given by import path.

A *kind* of part (strategies, models, taggers, readers, observers) has a :class:`Registry`. A name is looked up there in
this order:

* a built-in name;
* ``module:attribute``, an import path, also of a module in the working directory;
* the name of an entry point in the registry's group, such as ``fl_sim.strategies``.

Names are case-sensitive. A name that two packages claim, or that a package shares with a built-in part, is refused,
because a run must not depend on what else is installed.

>>> registry = Registry("fl_sim.examples", "example", {"path": "pathlib:Path"}, check=lambda part: callable(part))
>>> registry.load("path").__name__
'Path'
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

_IMPORT_PATH = ":"
_FOLDERS = "FL_SIM_PLUGIN_FOLDERS"
_used: list[str] = []  # working directories in which modules of parts were found by this process


class PluginError(ValueError):
    """A part that does not exist, cannot be imported, has the wrong interface, or a name that is taken twice."""


@dataclass(frozen=True)
class Registry:
    """The parts of one kind by name.

    Attributes:
        group: the group of entry points in which other packages register parts of this kind.
        kind: what a part is called in messages, such as ``strategy``.
        built_in: import paths of the parts that ship, by name; imported when asked for.
        check: whether an imported object has the interface of the kind.
        interface: what ``check`` asks for, in words, for messages.
    """

    group: str
    kind: str
    built_in: Mapping[str, str]
    check: Callable[[Any], bool] = lambda part: True
    interface: str = "the interface of its kind"

    def names(self) -> list[str]:
        """Return every name that can be loaded without an import path: built-in first, then those of other packages."""
        others = {point.name for point in _entry_points(self.group)}
        return [*self.built_in, *sorted(others - set(self.built_in))]

    def knows(self, name: str) -> bool:
        """Return whether ``name`` is built in, registered, or an import path (which need not be importable)."""
        return _IMPORT_PATH in name or name in self.names()

    def path(self, name: str) -> str:
        """Return the import path behind ``name``.

        Raises:
            PluginError: no part has the name, or more than one has.
        """
        if _IMPORT_PATH in name:
            return name
        claims = {point.value for point in self._named(name)} | (
            {self.built_in[name]} if name in self.built_in else set()
        )
        if len(claims) > 1:
            raise PluginError(
                f"{self.kind} '{name}' is claimed by {' and '.join(sorted(claims))}; allowed: one of them"
            )
        if not claims:
            import_path = f"an import path such as my_module:my_{self.kind}"
            allowed = f"{', '.join(self.names())}, or {import_path}" if self.names() else import_path
            raise PluginError(f"{self.kind} is '{name}'; allowed: {allowed}")
        return claims.pop()

    def load(self, name: str) -> Any:
        """Import the part called ``name``.

        Raises:
            PluginError: there is none, it cannot be imported, or its interface is wrong.
        """
        part = self._import(name, self.path(name))
        if not self.check(part):
            raise PluginError(f"{self.kind} '{name}' is {part!r:.100}; allowed: {self.interface}")
        return part

    def origin(self, name: str) -> dict[str, str | None]:
        """Return what a run records of a part that does not ship: import path, and distribution with version if any."""
        for point in self._named(name):
            if point.dist is not None:
                return {"path": point.value, "distribution": point.dist.name, "version": point.dist.version}
        return {"path": self.path(name), "distribution": None, "version": None}

    def _named(self, name: str) -> list[metadata.EntryPoint]:
        return [point for point in _entry_points(self.group) if point.name == name]

    def _import(self, name: str, path: str) -> Any:
        module, _, attribute = path.partition(_IMPORT_PATH)
        try:
            part = _import_module(module)
            for step in attribute.split("."):
                part = getattr(part, step)
        except Exception as error:  # a plug-in's own code may raise anything while it is imported
            reason = " ".join(str(error).split()) or type(error).__name__
            raise PluginError(f"{self.kind} '{name}' cannot be imported ({reason})") from error
        return part


def worker_environment() -> dict[str, str]:
    """Return the environment variable by which a worker finds modules in the working directories used here."""
    return {_FOLDERS: os.pathsep.join(folders)} if (folders := _known_folders()) else {}


def _known_folders() -> list[str]:
    """Return the working directories that were used here, then those that a parent process used."""
    return list(dict.fromkeys([*_used, *filter(None, os.environ.get(_FOLDERS, "").split(os.pathsep))]))


def _import_module(name: str) -> Any:
    """Import a module; where it is not installed, look in the working directory as ``python -m`` does.

    A worker process also looks in the folders of :func:`worker_environment`.
    """
    top = name.partition(".")[0]
    here = str(Path.cwd())
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        folders = [folder for folder in dict.fromkeys([here, *_known_folders()]) if folder not in sys.path]
        if error.name != top or not folders:
            raise
        sys.path.extend(folders)  # where they stay if the module is found
        importlib.invalidate_caches()
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            for folder in folders:
                sys.path.remove(folder)
            raise
    found = sys.modules[top]
    file = next(iter(getattr(found, "__path__", ())), getattr(found, "__file__", None))
    if here not in _used and file is not None and str(Path(file).absolute().parent) == here:
        _used.append(here)
    return module


def _entry_points(group: str) -> tuple[metadata.EntryPoint, ...]:
    return _entry_points_on(tuple(sys.path), group)


@functools.cache  # reading the metadata of all distributions takes 30 ms, and a run asks ten times
def _entry_points_on(path: tuple[str, ...], group: str) -> tuple[metadata.EntryPoint, ...]:
    """Return what the distributions on ``path``, which is :data:`sys.path`, register in a group."""
    return tuple(metadata.entry_points(group=group))
