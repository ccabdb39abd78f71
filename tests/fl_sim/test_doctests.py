"""The examples in the docstrings of every module do what they show."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import fl_sim

WITHOUT_EXAMPLE = {
    "fl_sim.clients.client_app": "a Flower app",
    "fl_sim.clients.errors": "one exception",
    "fl_sim.clients.worker.libraries": "imports torch and transformers, nothing else",
    "fl_sim.clients.worker.workspace": "opens what a run has prepared",
    "fl_sim.flower.user_level_strategy": "needs nodes; fl_sim.flower shows it",
    "fl_sim.flower.text.text_client_app": "a Flower app",
    "fl_sim.auditing.leakage.membership": "needs a finished run",
    "fl_sim.reporting.run_page": "needs a finished run; docs/report.md shows the page",
    "fl_sim.research.representations.representation_experiment": "trains for seconds",
    "fl_sim.research.representations.trained_run": "needs a finished run",
}
"""Modules that have no example, and why. Commands (``*_command``) show theirs with ``--help``."""


def modules() -> Iterator[str]:
    """The names of all modules, but those that are programs."""
    yield fl_sim.__name__
    for found in pkgutil.walk_packages(fl_sim.__path__, "fl_sim.", onerror=lambda name: None):
        if not found.name.endswith("__main__"):
            yield found.name


def has_example(name: str) -> bool:
    """Whether the source of a module has an example; to import every module takes much longer."""
    spec = importlib.util.find_spec(name)
    loader = spec.loader if spec else None
    source = loader.get_source(name) if hasattr(loader, "get_source") else None
    return ">>> " in (source or "")


WITH_EXAMPLES = [name for name in modules() if has_example(name)]


SLOW = {
    "fl_sim.api.accounts", "fl_sim.api.corpora", "fl_sim.api.runs",
    "fl_sim.auditing.lower_bounds",
    "fl_sim.auditing.real_rounds.canary_audit", "fl_sim.clients.gradients.ghost_pass",
    "fl_sim.data_prep.taggers.spacy_tagger",
    "fl_sim.engines.worker_memory",
    "fl_sim.research.uedp_paper.make_figure",
    "fl_sim.strategies.accounting.random_allocation", "fl_sim.strategies.mechanism",
}  # fmt: skip
"""Modules whose examples train, or start processes."""


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.system) if name in SLOW else name for name in WITH_EXAMPLES]
)
def test_the_examples_of_a_module(name: str) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for found in doctest.DocTestFinder().find(importlib.import_module(name)):
        if found.examples:  # `doctest.testmod` spends most of its time on the thousands of docstrings without one
            runner.run(found)
    results = runner.summarize(verbose=False)
    assert results.attempted > 0
    assert results.failed == 0


def test_every_module_has_an_example() -> None:
    packages = {found.name for found in pkgutil.walk_packages(fl_sim.__path__, "fl_sim.") if found.ispkg}
    commands = {name for name in modules() if name.endswith("_command")}
    assert set(modules()) - packages - commands - set(WITH_EXAMPLES) == set(WITHOUT_EXAMPLE)
