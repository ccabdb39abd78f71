"""The trackers by name, what they need installed, and which of them send figures off this machine.

>>> from fl_sim.config import RunConfig
>>> served = RunConfig.from_mapping({"observers": ["mlflow"], "tracking.mlflow_uri": "https://me:pw@example.org/ml"})
>>> off_machine(served)[0]
'tracker mlflow sends figures to https://example.org/ml: losses and held-out metrics are private, not covered by ε'
>>> off_machine(RunConfig.from_mapping({"observers": ["mlflow", "csv"]}))
[]
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from fl_sim.config import RunConfig
from fl_sim.plugins import PluginError

BUILT_IN: Mapping[str, str] = {
    "tensorboard": "fl_sim.experiments.trackers.tensorboard_tracker:TensorBoardTracker",
    "wandb": "fl_sim.experiments.trackers.wandb_tracker:WandbTracker",
    "mlflow": "fl_sim.experiments.trackers.mlflow_tracker:MLflowTracker",
    "csv": "fl_sim.experiments.trackers.csv_tracker:CSVTracker",
}
"""Import paths of the trackers by name."""

_NEEDED = {"tensorboard": ("tensorboard",), "wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy", "alembic")}
_LOCAL_SCHEMES = ("", "file", "sqlite")
_SERVICES = ("databricks", "databricks-uc", "uc")
"""Tracking URIs of MLflow that look like a folder and are none."""

_WARNING = "tracker {name} sends figures to {where}: losses and held-out metrics are private, not covered by ε"


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
    uri, mode = mlflow_uri(config), wandb_mode(config)
    places = {
        "mlflow": "" if uri is None or _is_local(uri) else _without_password(uri),
        "wandb": os.environ.get("WANDB_BASE_URL", "the server of Weights & Biases")
        if mode not in ("offline", "disabled", "dryrun")
        else "",
    }
    used = {name: where for name, where in places.items() if where and name in config.observers}
    return [_WARNING.format(name=name, where=where) for name, where in used.items()]


def mlflow_uri(config: RunConfig) -> str | None:
    """Return MLflow's tracking URI: configured, or of the environment; None for a database in the run's folder."""
    return config.tracking.mlflow_uri or os.environ.get("MLFLOW_TRACKING_URI") or None


def wandb_mode(config: RunConfig) -> str:
    """Return the mode of Weights & Biases: configured, or of the environment; else ``offline``."""
    return config.tracking.wandb_mode or os.environ.get("WANDB_MODE") or "offline"


def _is_local(uri: str) -> bool:
    return urlsplit(uri).scheme in _LOCAL_SCHEMES and uri not in _SERVICES


def _without_password(uri: str) -> str:
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
