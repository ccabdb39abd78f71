"""Simulate federated learning with user-entity differential privacy.

What a notebook or a script needs, each imported when it is first used:

* ``run``, ``resume``, ``open_run``, ``plot_runs``, ``Run``, ``RunConfig``: runs (:mod:`fl_sim.api.runs`);
* ``compare``, ``Comparison``, ``list_runs``, ``RunList``: several runs (:mod:`fl_sim.reporting`);
* ``prepare``, ``open_corpus``, ``corpus_stats``, ``Corpus``: corpora (:mod:`fl_sim.api.corpora`);
* ``account``, ``account_published``, ``account_runs``, ``calibrate``: ε (:mod:`fl_sim.api.accounts`);
* ``audit``, ``audit_published``, ``leak``: attacks on mechanisms and on runs (:mod:`fl_sim.api.audits`);
* ``check``: what the ε of somebody's Flower app is worth (:mod:`fl_sim.api.checks`);
* ``Observer``, ``RunStart``: what a run calls with every round's row (:mod:`fl_sim.experiments.observers`).

>>> import fl_sim
>>> config = fl_sim.RunConfig.from_mapping({"rounds": 3, "privacy.q_s": 0.05})
>>> config.privacy.strategy, config.rounds
('uedp', 3)
"""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_sim.api.accounts import account, account_published, account_runs, calibrate
    from fl_sim.api.audits import audit, audit_published, leak
    from fl_sim.api.checks import check
    from fl_sim.api.corpora import Corpus, corpus_stats, open_corpus, prepare
    from fl_sim.api.runs import Plot, Run, compare, open_run, plot_runs, resume, run
    from fl_sim.config import ConfigError, RunConfig
    from fl_sim.experiments.observers import Observer, RunStart
    from fl_sim.reporting.comparison import Comparison
    from fl_sim.reporting.run_list import RunList, list_runs
    from fl_sim.strategies.accounting.paper_model import PublishedSettings

    __version__: str

_NAMES = {
    "api.accounts": "account account_published account_runs calibrate",
    "api.audits": "audit audit_published leak",
    "api.checks": "check",
    "api.corpora": "Corpus corpus_stats open_corpus prepare",
    "api.runs": "Plot Run compare open_run plot_runs resume run",
    "config": "ConfigError RunConfig",
    "experiments.observers": "Observer RunStart",
    "reporting.comparison": "Comparison",
    "reporting.run_list": "RunList list_runs",
    "strategies.accounting.paper_model": "PublishedSettings",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
"""The module of each public name: torch, Flower and matplotlib take seconds to import."""

__all__ = [
    "Comparison", "ConfigError", "Corpus", "Observer", "Plot", "PublishedSettings", "Run", "RunConfig", "RunList",
    "RunStart", "__version__", "account", "account_published", "account_runs", "audit", "audit_published",
    "calibrate", "check", "compare", "corpus_stats", "leak", "list_runs", "open_corpus", "open_run", "plot_runs",
    "prepare", "resume", "run",
]  # fmt: skip


if "ipykernel" in sys.modules:
    # of tqdm, when a library imports it in a notebook without ipywidgets; fl_sim shows no bar of tqdm's
    warnings.filterwarnings("ignore", "IProgress not found")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name == "__version__":
        value = _version_of(Path(__file__).resolve().parents[1] / "pyproject.toml")
    elif name in _MODULES:
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _version_of(project: Path) -> str:
    """Return the version in the checkout whose ``pyproject.toml`` is ``project``, else that of the installed package.

    What an editable installation recorded when it was made may be older than its checkout.
    """
    import tomllib
    from importlib import metadata

    if project.is_file():
        stated = tomllib.loads(project.read_text(encoding="utf-8")).get("project", {})
        if stated.get("name") == "fl-sim":
            return str(stated["version"])
    return metadata.version("fl-sim")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
