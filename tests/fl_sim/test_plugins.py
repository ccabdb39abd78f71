"""Parts by name: what is loaded, in which order names are looked up, what is refused, and what workers find."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fl_sim import plugins
from fl_sim.clients.models.architectures.model_source import MODELS
from fl_sim.data_prep.readers.reader import READERS
from fl_sim.data_prep.taggers.tagger_registry import TAGGERS
from fl_sim.experiments.observers import OBSERVERS
from fl_sim.plugins import PluginError, Registry
from fl_sim.strategies.registry import STRATEGIES
from tests.conftest import REPOSITORY

Install = Callable[..., None]
GROUP = "fl_sim.things"


def registry(**built_in: str) -> Registry:
    return Registry(GROUP, "thing", built_in, check=callable, interface="something that can be called")


@pytest.fixture(autouse=True)
def unchanged_imports() -> Iterator[None]:
    """Modules and folders that a test adds are gone after it; no working directory was used before it."""
    modules, path, used = set(sys.modules), list(sys.path), list(plugins._used)
    sys.path[:] = [entry for entry in path if entry]
    plugins._used.clear()
    yield
    sys.path[:], plugins._used[:] = path, used
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """``install("package", thing="module:attribute")``: a distribution with entry points, and a module of its name."""

    def installed(name: str, source: str = "def thing(): pass\n", **points: str) -> None:
        site = tmp_path / name
        info = site / f"{name}-1.2.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        lines = [f"{point} = {path}\n" for point, path in points.items()]
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{''.join(lines)}")
        monkeypatch.syspath_prepend(str(site))

    return installed


def test_an_import_path_may_lead_into_an_attribute() -> None:
    assert registry().load("pathlib:Path.cwd") == Path.cwd


def test_an_entry_point_of_another_package(install: Install) -> None:
    install("others", theirs="others:thing")
    things = registry(path="pathlib:Path")
    assert things.names() == ["path", "theirs"]
    assert things.load("theirs").__module__ == "others"
    assert things.path("theirs") == "others:thing"
    assert things.knows("theirs")
    assert not things.knows("nobodys")


def test_the_documentation_has_the_entry_points_of_all_parts() -> None:
    page = (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| \[(\w+)\]\(#.*\| `(fl_sim\.\w+)` \|$", page, re.MULTILINE))
    parts = {"Strategy": STRATEGIES, "Model": MODELS, "Tagger": TAGGERS, "Reader": READERS, "Observer": OBSERVERS}
    assert documented == {name: registry.group for name, registry in parts.items()}


def test_the_origin_of_a_part_names_its_distribution(install: Install) -> None:
    install("others", theirs="others:thing")
    things = registry(path="pathlib:Path")
    assert things.origin("theirs") == {"path": "others:thing", "distribution": "others", "version": "1.2"}
    assert things.origin("path") == {"path": "pathlib:Path", "distribution": None, "version": None}


def test_a_name_that_two_packages_claim_or_that_is_built_in_is_refused(install: Install) -> None:
    install("others", same="others:thing", path="others:thing")
    install("more", same="more:thing")
    with pytest.raises(PluginError, match=r"^thing 'same' is claimed by more:thing and others:thing; allowed: one of"):
        registry().load("same")
    with pytest.raises(PluginError, match=r"^thing 'path' is claimed by others:thing and pathlib:Path"):
        registry(path="pathlib:Path").load("path")


def test_an_unknown_name_says_what_there_is(install: Install) -> None:
    with pytest.raises(PluginError, match=r"^thing is 'x'; allowed: an import path such as my_module:my_thing$"):
        registry().load("x")
    install("others", theirs="others:thing")
    with pytest.raises(PluginError, match=r"^thing is 'x'; allowed: path, theirs, or an import path such as"):
        registry(path="pathlib:Path").load("x")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module\n", "No module named 'no_such_module'"),
        ("raise RuntimeError('two\\nlines')\n", "two lines"),
        ("raise RuntimeError\n", "RuntimeError"),
        ("x = 1\n", "has no attribute 'thing'"),
    ],
)
def test_a_part_that_cannot_be_imported_is_one_line(install: Install, source: str, reason: str) -> None:
    install("others", source, theirs="others:thing")
    with pytest.raises(PluginError) as caught:
        registry().load("theirs")
    assert str(caught.value).startswith("thing 'theirs' cannot be imported (")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_part_with_the_wrong_interface_is_refused() -> None:
    with pytest.raises(PluginError, match=r"^thing 'sys:path' is \[.*; allowed: something that can be called$"):
        registry().load("sys:path")


def test_a_module_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_alone.py").write_text("def thing(): pass\n")
    monkeypatch.chdir(tmp_path)
    assert registry().load("mine_alone:thing").__module__ == "mine_alone"
    before = list(sys.path)
    with pytest.raises(PluginError, match="No module named 'mine_not'"):
        registry().load("mine_not:thing")
    assert sys.path == before
    assert registry(path="pathlib:Path").load("path") is Path
    assert plugins.worker_environment() == {"FL_SIM_PLUGIN_FOLDERS": str(tmp_path)}


def test_the_working_directory_hides_nothing_that_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fractions.py").write_text("raise RuntimeError\n")
    monkeypatch.chdir(tmp_path)
    assert registry().load("fractions:Fraction").__name__ == "Fraction"


@pytest.mark.system
@pytest.mark.parametrize("file", ["part_of_mine.py", "part_of_mine/__init__.py"])
def test_workers_find_what_was_found_in_the_working_directory(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fl_sim.config import EngineConfig
    from fl_sim.engines import ray_engine  # takes a second to import

    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("def thing(): return 7\n")
    monkeypatch.chdir(tmp_path)
    assert plugins.worker_environment() == {}
    assert registry().load("part_of_mine:thing")() == 7
    assert ray_engine._worker_environment(EngineConfig())["FL_SIM_PLUGIN_FOLDERS"] == str(tmp_path)
    code = "from fl_sim.plugins import Registry; print(Registry('g', 'thing', {}).load('part_of_mine:thing')())"
    root = Path(plugins.__file__).parents[1]
    environment = os.environ | plugins.worker_environment() | {"PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/", env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "7", done.stderr
