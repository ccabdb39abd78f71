"""The names and values under which trackers see a run: settings by key, and figures by what ε says of them.

An ε that holds for any user (with any entity) is under ``epsilon/``. Everything else of a round is under ``private/``:
losses, held-out metrics, counts, times, and ε at percentiles that are read off the corpus. No ε covers those.

>>> figures({"round": 3, "epsilon_any": 1.5, "epsilon_user_entity_p95": 1.2, "loss": 4.0, "note": "text"})
{'epsilon/any_user_and_any_entity': 1.5, 'private/epsilon_user_entity_p95': 1.2, 'private/loss': 4.0}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import PurePath
from typing import Any

from fl_sim.config import RunConfig
from fl_sim.strategies.accounting.paper_model import AS_PUBLISHED

_NAMES = {
    "epsilon_any": "epsilon/any_user_and_any_entity",
    "epsilon_any_robust": "epsilon/any_user_and_any_entity_missed_by_the_tagger",
    "epsilon_stated": "epsilon/any_user_and_an_entity_within_the_stated_bound",
    "epsilon_stated_robust": "epsilon/any_user_and_an_entity_within_the_stated_bound_missed_by_the_tagger",
    "epsilon_user": "epsilon/any_user",
    "epsilon_user_unbounded": "epsilon/any_user_without_a_bound",
    AS_PUBLISHED: "claimed/epsilon_as_published_is_no_guarantee",
    "releases": "releases",
}
"""Names of what a run guarantees, of what a paper claims, and of the number of releases; the others are private."""

_NOT_FIGURES = ("round",)
_NOT_SENT = ("out", "anchor", "observers", "tracking", "origin")


def figures(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a round by the names that trackers see; text and what was not measured is left out."""
    numbers = {name: value for name, value in row.items() if isinstance(value, Real) and name not in _NOT_FIGURES}
    return {_NAMES.get(name, f"private/{name}"): float(value) for name, value in numbers.items()}


def settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that trackers see by their full names: folders without their parents, no file of the run.

    >>> settings(RunConfig.from_mapping({"corpus.path": "/home/ada/notes"}))["corpus.path"]
    'notes'
    """
    tree = {name: value for name, value in config.model_dump(mode="json").items() if name not in _NOT_SENT}
    return dict(_leaves(tree, ""))


def _leaves(tree: Mapping[str, Any], section: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{section}{name}.")
        elif value is not None:
            yield f"{section}{name}", _without_parents(value)


def _without_parents(value: Any) -> Any:
    return PurePath(value).name if isinstance(value, str) and PurePath(value).is_absolute() else value
