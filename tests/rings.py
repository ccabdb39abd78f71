"""The rings of the suite: every test is in one of them, and the default ring keeps to itself.

* default, no mark: works in its own process, without Ray, without another process of Python's and without network.
* research, which every other test in ``tests/research`` is in without a mark: keeps to itself as the default ring does.
* ``@pytest.mark.system``: starts Ray, flwr and command lines, sends signals, installs, runs notebooks.
* ``@pytest.mark.documented``: runs the commands that README.md and docs/ show, at small size.
* ``@pytest.mark.nightly``: takes minutes (full sizes, fuzzing, many kills, real corpora), or tries once more, in
  another way, what a quicker ring tries.

``@pytest.mark.sample(3)`` leaves three cases of a parametrised test, evenly spread, in its ring and puts the
others into the nightly ring.
"""

from __future__ import annotations

import re
import sys
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest

RINGS = ("research", "system", "documented", "nightly")
DEFAULT = " and ".join(f"not {ring}" for ring in RINGS)
RESEARCH_TESTS = Path(__file__).parent / "research"

_WHOLE_FILE = re.compile(rf"^pytestmark = .*pytest\.mark\.({'|'.join(RINGS)})\b", re.MULTILINE)
_MARKED = re.compile(rf"^@pytest\.mark\.({'|'.join(RINGS)})$", re.MULTILINE)
_TEST = re.compile(r"^def test_", re.MULTILINE)
_PROGRAMS = ("python", "fl-sim", "flwr", "flower-", "ray", "pytest", "pip", "mkdocs", "jupyter")


class OutsideOfItsRing(RuntimeError):
    """Report what a test of the default or the research ring must not do."""


def rings_of(item: pytest.Item) -> list[str]:
    """Return the rings that a test is marked with; none is the default ring."""
    return [ring for ring in RINGS if item.get_closest_marker(ring)]


def keeps_to_itself(item: pytest.Item) -> bool:
    """Return whether a test is in a ring whose tests start no process of Python's and use no network."""
    return set(rings_of(item)) <= {"research"}


def put_research_into_its_ring(items: list[pytest.Item]) -> None:
    """Mark what stands in ``tests/research`` and has no other ring."""
    for item in items:
        if item.path.is_relative_to(RESEARCH_TESTS) and not rings_of(item):
            item.add_marker(pytest.mark.research)


def put_most_cases_into_nightly(items: list[pytest.Item]) -> None:
    """Mark the cases that ``sample`` leaves out of their test's ring; those that are nightly anyway do not count.

    Raises:
        pytest.UsageError: if a sampled test is nightly as a whole, so that a quicker ring would keep nothing of it.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        marks = {mark.name for mark in getattr(getattr(item, "function", None), "pytestmark", ())}
        if marks >= {"sample", "nightly"}:
            raise pytest.UsageError(f"{item.nodeid} is nightly whatever its sample is; allowed: one of both marks")
        if "sample" in marks and item.get_closest_marker("nightly") is None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for own in cases.values():
        (kept,) = own[0].get_closest_marker("sample").args
        chosen = {round((position + 0.5) * len(own) / kept - 0.5) for position in range(kept)}
        for number, item in enumerate(own):
            if number not in chosen:
                item.own_markers[:] = [mark for mark in item.own_markers if mark.name not in RINGS]
                item.add_marker(pytest.mark.nightly)


def holds_none_of(file: Path, selection: str) -> bool:
    """Return whether no test of ``file`` can be in the ring that ``-m`` selects, so that it need not be imported."""
    if selection not in (DEFAULT, *RINGS):
        return False
    if (of_research := file.is_relative_to(RESEARCH_TESTS)) and selection == DEFAULT:
        return True
    if selection == "research":
        return not of_research
    text = file.read_text(encoding="utf-8")
    if selection == DEFAULT:
        all_are_marked = len(_MARKED.findall(text)) == len(_TEST.findall(text))
        return all_are_marked or _WHOLE_FILE.search(text) is not None
    return not any(f"mark.{mark}" in text for mark in (selection, *(["sample"] if selection == "nightly" else [])))


class Guard:
    """Refuse a test of the default or the research ring, while it runs, Ray, processes of Python's and the network.

    Attributes:
        test: the test that runs and must keep to itself; None between tests and in other rings.
    """

    def __init__(self) -> None:
        self.test: str | None = None
        sys.addaudithook(self._look)
        self._spawn = util.spawnv_passfds
        util.spawnv_passfds = self._spawn_or_refuse  # multiprocessing's own way, which raises no audit event

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.test is None:
            return
        if event == "subprocess.Popen" and _is_of_python(arguments[0], arguments[1]):
            self._refuse(f"starts {arguments[1]}")
        elif event == "socket.connect" and not isinstance(arguments[1], str | bytes):
            self._refuse(f"connects to {arguments[1]}")

    def _spawn_or_refuse(self, path: Any, arguments: Any, fds: Any) -> int:
        if self.test is not None and "resource_tracker" not in str(arguments):
            self._refuse(f"starts {arguments}")
        return self._spawn(path, arguments, fds)

    def _refuse(self, deed: str) -> None:
        raise OutsideOfItsRing(f"{self.test} {deed}; allowed in another ring: see tests/rings.py")


def _is_of_python(executable: Any, arguments: Any) -> bool:
    words = [arguments] if isinstance(arguments, str | bytes) else list(arguments)
    names = [Path(str(word)).name for word in (executable, *words[:1]) if word is not None]
    return any(name.startswith(_PROGRAMS) for name in names)
