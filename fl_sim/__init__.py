"""Simulate federated learning with user-entity differential privacy.

What a notebook or a script needs, each imported when it is first used:

* ``run``, ``resume``, ``open_run``, ``plot_runs``, ``Run``, ``RunConfig``: runs (:mod:`fl_sim.api.runs`);
* ``prepare``, ``open_corpus``, ``corpus_stats``, ``Corpus``: corpora (:mod:`fl_sim.api.corpora`);
* ``account``, ``account_published``, ``account_runs``, ``calibrate``: ε (:mod:`fl_sim.api.accounts`);
* ``audit``, ``audit_published``, ``leak``: attacks on mechanisms and on runs (:mod:`fl_sim.api.audits`);
* ``Observer``, ``RunStart``: what a run calls with every round's row (:mod:`fl_sim.experiments.observers`).

>>> import fl_sim
>>> config = fl_sim.RunConfig.from_mapping({"rounds": 3, "privacy.q_s": 0.05})
>>> config.privacy.strategy, config.rounds
('uedp', 3)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_sim.api.accounts import account, account_published, account_runs, calibrate
    from fl_sim.api.audits import audit, audit_published, leak
    from fl_sim.api.compared_runs import compare
    from fl_sim.api.corpora import Corpus, corpus_stats, open_corpus, prepare
    from fl_sim.api.runs import Plot, Run, open_run, plot_runs, resume, run
    from fl_sim.config import ConfigError, RunConfig
    from fl_sim.experiments.observers import Observer, RunStart
    from fl_sim.package_version import __version__
    from fl_sim.reporting.comparison import Comparison
    from fl_sim.strategies.accounting.paper_model import PublishedSettings

_MODULES = {
    "account": "api.accounts",
    "account_published": "api.accounts",
    "account_runs": "api.accounts",
    "calibrate": "api.accounts",
    "audit": "api.audits",
    "audit_published": "api.audits",
    "Comparison": "reporting.comparison",
    "compare": "api.compared_runs",
    "Corpus": "api.corpora",
    "corpus_stats": "api.corpora",
    "open_corpus": "api.corpora",
    "prepare": "api.corpora",
    "leak": "api.audits",
    "Plot": "api.runs",
    "Run": "api.runs",
    "open_run": "api.runs",
    "plot_runs": "api.runs",
    "resume": "api.runs",
    "run": "api.runs",
    "ConfigError": "config",
    "RunConfig": "config",
    "Observer": "experiments.observers",
    "RunStart": "experiments.observers",
    "PublishedSettings": "strategies.accounting.paper_model",
    "__version__": "package_version",
}
"""The module of each public name: torch, Flower and matplotlib take seconds to import."""

__all__ = [
    "Comparison",
    "ConfigError",
    "Corpus",
    "Observer",
    "Plot",
    "PublishedSettings",
    "Run",
    "RunConfig",
    "RunStart",
    "__version__",
    "account",
    "account_published",
    "account_runs",
    "audit",
    "audit_published",
    "calibrate",
    "compare",
    "corpus_stats",
    "leak",
    "open_corpus",
    "open_run",
    "plot_runs",
    "prepare",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
