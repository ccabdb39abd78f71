"""Observers: objects that a run calls at its start, after every round and at its end; the trackers are built in.

An observer sees what the run records and cannot change it: every row is a copy, and an observer that raises is left out
from then on, with one warning (docs/extending.md).

>>> class Printer(Observer):
...     def on_round(self, row):
...         print(f"round {row['round']}: loss {row['loss']}")
>>> observers = Observers([Printer()])
>>> observers.tell("on_round", {"round": 1, "loss": 5.5})
round 1: loss 5.5
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fl_sim.config import RunConfig
from fl_sim.formats import one_line
from fl_sim.plugins import PluginError, Registry
from fl_sim.storage.run_folder import Row, decode, encode

BUILT_IN: Mapping[str, str] = {
    "tensorboard": "fl_sim.experiments.trackers:TensorBoardTracker",
    "wandb": "fl_sim.experiments.trackers:WandbTracker",
    "mlflow": "fl_sim.experiments.trackers:MLflowTracker",
    "csv": "fl_sim.experiments.trackers:CSVTracker",
}
"""Import paths of the trackers by name."""

_NEEDED = {"tensorboard": ("tensorboard",), "wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}
_LOCAL_SCHEMES = ("", "file", "sqlite")
_SERVICES = ("databricks", "databricks-uc", "uc")
"""Tracking URIs of MLflow that look like a folder and are none."""

_WARNING = (
    "tracker {name} sends figures and settings to {where}: losses, held-out metrics and the seed are private, not "
    "covered by ε"
)


def check_installed(names: Sequence[str]) -> None:
    """Check that the packages of the trackers among ``names`` are installed, without importing them.

    Raises:
        PluginError: one is missing; the message has the command that installs it.
    """
    for name in names:
        missing = [package for package in _NEEDED.get(name, ()) if importlib.util.find_spec(package) is None]
        if missing:
            raise PluginError(
                f"observer is '{name}', whose package {missing[0]} is not installed; allowed: after "
                f'pip install "fl-sim[{name}]"'
            )


def off_machine(config: RunConfig) -> list[str]:
    """Return a warning for each tracker of a run that may send private figures to another machine."""
    places: dict[str, str] = {}
    uri = mlflow_uri(config) or ""
    parts = urlsplit(uri)
    if parts.scheme not in _LOCAL_SCHEMES or uri in _SERVICES:
        places["mlflow"] = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # without a password
    if wandb_mode(config) not in ("offline", "disabled", "dryrun"):
        places["wandb"] = os.environ.get("WANDB_BASE_URL", "the server of Weights & Biases")
    return [_WARNING.format(name=name, where=where) for name, where in places.items() if name in config.observers]


def mlflow_uri(config: RunConfig) -> str | None:
    """Return MLflow's tracking URI: configured, or of the environment; None for a database in the run's folder."""
    return config.tracking.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI") or None


def wandb_mode(config: RunConfig) -> str:
    """Return the mode of Weights & Biases: configured, or of the environment; else ``offline``."""
    return config.tracking.wandb_mode or os.environ.get("WANDB_MODE") or "offline"


log = logging.getLogger(__name__)

_METHODS = ("on_start", "on_round", "on_end")


@dataclass(frozen=True, slots=True)
class RunStart:
    """The information that observers get when a run starts.

    Attributes:
        path: the run's folder.
        config: the configuration, paths made absolute.
        rounds: number of rounds to release; fewer than ``config.rounds`` if a budget ends the run.
        last_round: the round after which the run is resumed; None for a new run.
        warnings: for the owner, each a sentence.
        gradient_path: ``fast`` or ``slow``, how gradients of single sentences are computed; None if none are needed.
    """

    path: Path
    config: RunConfig
    rounds: int
    last_round: int | None
    warnings: tuple[str, ...]
    gradient_path: str | None = None


class Observer:
    """The interface of an observer; inherit from it to write the methods that you need.

    ``on_reading(done, total)``, if an observer has it, is called while a frozen encoder reads the corpus before the
    first round; both are numbers of sentences. ``on_forecast(forecast)``, if an observer has it, is called before the
    first round with a :class:`fl_sim.experiments.cost.Forecast`, for which a small batch is measured.
    ``on_progress(server_round, done, expected)``, if an observer has it, is called from another thread, at most twice a
    second, while a round is under way: the sentences that its nodes have done, and about how many they will do.
    """

    def on_start(self, start: RunStart) -> None:
        """Take note of a run that starts or is resumed; called once, before its first round."""

    def on_round(self, row: Row) -> None:
        """Take note of a round: the row that metrics.jsonl just got. Round 0 is the initial model."""

    def on_end(self, result: Mapping[str, object]) -> None:
        """Take note of the content of result.json, once it is written; not called for a run that fails."""


def _is_observer(part: Any) -> bool:
    return all(callable(getattr(part, name, None)) for name in _METHODS)


OBSERVERS = Registry(
    group="fl_sim.observers",
    kind="observer",
    built_in=BUILT_IN,
    check=_is_observer,
    interface="an object, or a class that takes no arguments, with the methods on_start, on_round and on_end",
)
"""Observers by name, entry point or import path; the trackers are built in."""


def load_observers(names: Sequence[str]) -> list[Observer]:
    """Import the observers of a configuration and make an object of each class.

    Raises:
        PluginError: one does not exist, cannot be imported or made, has the wrong interface, or lacks its package.
    """
    check_installed(names)
    observers: list[Observer] = []
    for name in names:
        part: Any = OBSERVERS.load(name)
        try:
            observers.append(part() if isinstance(part, type) else part)
        except Exception as error:  # a plug-in's own code may raise anything
            raise PluginError(
                f"observer '{name}' cannot be made without arguments ({one_line(error, named=True)})"
            ) from error
    return observers


def checked_observers(observers: Sequence[Observer]) -> list[Observer]:
    """Return the observers that a caller gives as objects.

    Raises:
        PluginError: one of them lacks a method.
    """
    for observer in observers:
        if not _is_observer(observer) or isinstance(observer, type):
            raise PluginError(
                f"observer is {observer!r:.100}; allowed: an object with the methods {', '.join(_METHODS)}"
            )
    return list(observers)


class Observers:
    """The observers of one run. An observer that raises is left out from then on, with one warning."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._observers = list(observers)

    def ask_for(self, method: str) -> bool:
        """Return whether an observer has a method that is optional."""
        return any(callable(getattr(observer, method, None)) for observer in self._observers)

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method of every observer that has it.

        A row or a result is handed out as a copy, as it is read back from its file.
        """
        for observer in list(self._observers):
            call = getattr(observer, method, None)
            if call is None:
                continue
            try:
                call(*(decode(encode(value)) if isinstance(value, dict) else value for value in arguments))
            except (Exception, SystemExit) as error:  # a run must not depend on who watches it
                with suppress(ValueError):  # another thread has removed it
                    self._observers.remove(observer)
                name = type(observer).__qualname__
                log.warning(
                    "observer %s failed in %s and is ignored from now on (%s)",
                    name,
                    method,
                    one_line(error, named=True),
                )
