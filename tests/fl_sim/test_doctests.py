"""The examples in the docstrings of every module do what they show."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import fl_sim

PUBLIC = ("fl_sim", "fl_sim.plugins", "fl_sim.config", "fl_sim.experiments.observers")
"""Modules that must have an example, besides those of ``fl_sim.api``."""


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


@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_of_a_module(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.attempted > 0
    assert results.failed == 0


def test_public_modules_have_examples() -> None:
    api = [f"fl_sim.api.{found.name}" for found in pkgutil.iter_modules(importlib.import_module("fl_sim.api").__path__)]
    assert set(WITH_EXAMPLES) >= {*PUBLIC, *api}
