"""Make what the documented commands do small, without a change of their text: Python imports this before anything else.

The test puts this folder on PYTHONPATH. As soon as a module of fl_sim that :data:`CAPS` lists has been imported, its
function here replaces a part of it by one that takes less: fewer rounds, sentences, trials. What it takes of is what a
command would use whatever its flags are, so that most verbs are small at once, and files keep their formats.

FL_SIM_SMALL_CORPORA names the folder with the small corpora that take the place of those that ship.
"""

from __future__ import annotations

import functools
import importlib.abc
import inspect
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

CORPORA = "FL_SIM_SMALL_CORPORA"
ROUNDS, HELD_OUT, SENTENCES, OF_A_USER = 2, 40, 500, 12


def cap_runs(config: Any) -> None:
    """Every run has at most two rounds and few held-out sentences, and no Ray unless its engine is configured."""
    complete = config.RunConfig.from_mapping.__func__

    def from_mapping(cls: Any, values: Mapping[str, Any]) -> Any:
        tree = {"engine": {"name": "inline"}, **config.nested(values)}
        over = {"rounds": ROUNDS, "evaluation": {"max_sentences": HELD_OUT}}
        return complete(cls, config.merged(tree, _smaller(tree, over)))

    config.RunConfig.from_mapping = classmethod(from_mapping)


def cap_sources(pipeline: Any) -> None:
    """A preparation takes a few sentences of each split."""
    made = pipeline._made
    pipeline._made = lambda raw, *others: made(replace(raw, sentences=lambda: few(raw.sentences())), *others)


def cap_shipped(data_prep: Any) -> None:
    """The corpora that ship are small copies of them."""
    data_prep.whole_path = data_prep.shipped_path
    small = Path(os.environ[CORPORA])
    data_prep.shipped_path = lambda name: small / name if (small / name).is_dir() else data_prep.whole_path(name)


def open_whole(corpora: Any) -> None:
    """What the Python of a page itself opens is whole: it may take other sentences than the first."""
    from fl_sim import data_prep

    opened = corpora.open_corpus
    corpora.open_corpus = lambda path="bundled", **options: opened(
        data_prep.whole_path(path) if path in data_prep.SHIPPED_CORPORA else path, **options
    )


def sample_whole(new_command: Any) -> None:
    """The messages of a new project are by certain users of the whole corpus."""
    from fl_sim import data_prep

    new_command.BUNDLED = str(data_prep.whole_path(new_command.BUNDLED))


def cap_planner(planner: Any) -> None:
    """A search for settings tries those with which it begins."""

    def climb(search: Any, start: Any) -> Any:
        search.value(start)
        return start

    planner._Search.climb = climb


def few(sentences: Iterator[Any]) -> Iterator[Any]:
    """Yield the first sentences of each split, and of each user."""
    of_split: Counter[str] = Counter()
    of_user: Counter[tuple[str, str]] = Counter()
    for sentence in sentences:
        split, user = sentence.split, (sentence.split, sentence.user)
        if of_split[split] < SENTENCES and of_user[user] < OF_A_USER:
            of_split[split] += 1
            of_user[user] += 1
            yield sentence


def capped(name: str, **most: Any) -> Callable[[Any], None]:
    """Return what caps the arguments of a module's function or method, its defaults included."""

    def cap(module: Any) -> None:
        *owners, last = name.split(".")
        owner = functools.reduce(getattr, owners, module)
        whole = getattr(owner, last)
        signature = inspect.signature(whole)
        if unknown := most.keys() - signature.parameters.keys():
            raise TypeError(f"{name} of {module.__name__} has no {', '.join(unknown)} to cap")

        @functools.wraps(whole)
        def small(*given: Any, **named: Any) -> Any:
            call = signature.bind(*given, **named)
            call.apply_defaults()
            call.arguments.update(_smaller(call.arguments, most))
            return whole(*call.args, **call.kwargs)

        setattr(owner, last, small)

    return cap


def constants(**values: Any) -> Callable[[Any], None]:
    """Return what gives other values to a module's constants."""

    def cap(module: Any) -> None:
        for name, value in values.items():
            getattr(module, name)  # an AttributeError where it has another name today
            setattr(module, name, value)

    return cap


def _smaller(values: Mapping[str, Any], most: Mapping[str, Any]) -> dict[str, Any]:
    """Return the caps, or the numbers that are given where they are below them, such as one that is refused."""
    smaller: dict[str, Any] = {}
    for name, cap in most.items():
        value = values.get(name, cap)
        if isinstance(cap, Mapping):
            smaller[name] = _smaller(value, cap) if isinstance(value, Mapping) else value
        elif isinstance(cap, int):
            smaller[name] = min(value, cap) if isinstance(value, int | float) else value
        else:
            smaller[name] = cap
    return smaller


def cap_doctor(short_runs: Any) -> None:
    """The doctor's run under Ray is one without."""
    run = short_runs._run
    short_runs._run = lambda engine, *others: run("inline", *others)


def cap_cases(round_sensitivity: Any) -> None:
    """Few cases are compared."""
    for name in list(round_sensitivity.SENSITIVITY_CASES)[1:-1]:
        del round_sensitivity.SENSITIVITY_CASES[name]


CAPS: dict[str, Callable[[Any], None]] = {
    "fl_sim.config": cap_runs,
    "fl_sim.data_prep": cap_shipped,
    "fl_sim.data_prep.prepare": cap_sources,
    "fl_sim.engines.checkup": cap_doctor,
    "fl_sim.api.corpora": open_whole,
    "fl_sim.cli.commands.new_command": sample_whole,
    "fl_sim.api.audits": capped("audit_real_rounds", rounds=2),
    "fl_sim.auditing.audited_rounds": constants(_LEARNING_COPIES=1000),
    "fl_sim.auditing.cases": capped("examine", trials=1000),
    "fl_sim.auditing.real_rounds.round_sensitivity": cap_cases,
    "fl_sim.auditing.ledger_audit": capped("delta_at_least", trials=20_000),
    "fl_sim.auditing.leakage.attacked_run": capped(
        "Options.__init__", max_users=15, sentences_per_user=4, secrets=20, entities=5, candidates=5
    ),
    "fl_sim.checking.measurements": constants(_USER_DRAWS=200, _NOISE_DRAWS=400, _ATTACKS=16),
    "fl_sim.clients.generation": capped("generate", samples=100),
    "fl_sim.research.representations.evaluation.attacks": constants(_MOST_ITERATIONS=20, FRACTIONS=(0.25, 0.5, 1.0)),
    "fl_sim.search.bounds": constants(ENTITY_BOUNDS=(3, 10)),
    "fl_sim.search.planner": cap_planner,
    "fl_sim.search.settings_search": capped("Search.__init__", trials=2, sentences=50),
}
"""What is done to a module once it is imported."""


class _Capping(importlib.abc.MetaPathFinder):
    """Finds the modules of :data:`CAPS` as the other finders do, and lets their caps follow their own code."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in CAPS:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others))
        execute = spec.loader.exec_module

        def execute_and_cap(module: Any) -> None:
            execute(module)
            CAPS[name](module)

        spec.loader.exec_module = execute_and_cap
        return spec


if __name__ == "sitecustomize":  # and not a module of the tests
    sys.meta_path.insert(0, _Capping())
