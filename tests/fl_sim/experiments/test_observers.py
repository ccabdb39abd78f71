"""Observers: what they see, that they change nothing, and which are refused."""

from __future__ import annotations

import json
import logging
import random
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fl_sim
from fl_sim.cli.main import main
from fl_sim.engines import simulation
from fl_sim.experiments.observers import Observer, RunStart
from fl_sim.plugins import PluginError
from fl_sim.storage.run_folder import decode
from tests import tiny
from tests.data_prep.plug_ins import page_section
from tests.tiny import configured

pytestmark = pytest.mark.usefixtures("no_plots")

Capture = pytest.CaptureFixture[str]


class Recorder(Observer):
    """Keeps everything that it is called with, and reads the file as it was then."""

    def __init__(self) -> None:
        self.starts: list[RunStart] = []
        self.rows: list[Mapping[str, Any]] = []
        self.last_lines: list[Mapping[str, Any]] = []
        self.results: list[Mapping[str, Any]] = []

    def on_start(self, start: RunStart) -> None:
        self.starts.append(start)

    def on_round(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)
        lines = (self.starts[-1].path / "metrics.jsonl").read_text().splitlines()
        self.last_lines.append(decode(json.loads(lines[-1])))

    def on_end(self, result: Mapping[str, Any]) -> None:
        self.results.append(result)


class Meddler(Observer):
    """Changes what it is given, and every random generator that libraries share."""

    def on_start(self, start: RunStart) -> None:
        self._meddle()

    def on_progress(self, server_round: int, done: int, expected: float) -> None:
        self._meddle()

    def on_round(self, row: Mapping[str, Any]) -> None:
        row.clear()  # type: ignore[attr-defined]
        self._meddle()

    def on_end(self, result: Mapping[str, Any]) -> None:
        result.clear()  # type: ignore[attr-defined]

    def _meddle(self) -> None:
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002 - the shared generator is meant
        torch.manual_seed(1)


class Breaking(Observer):
    """Fails in one method."""

    def __init__(self, method: str, error: BaseException) -> None:
        self.calls: list[str] = []
        for name in ("on_start", "on_round", "on_end"):
            setattr(self, name, lambda argument, name=name: self._called(name, method, error))

    def _called(self, name: str, method: str, error: BaseException) -> None:
        self.calls.append(name)
        if name == method:
            raise error


def figures(folder: Any) -> Any:
    return folder.metrics().drop(columns="seconds")


@pytest.mark.system
def test_observers_see_the_start_every_row_and_the_result(corpus: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    run = fl_sim.run(configured(corpus, tmp_path / "run"), observers=[recorder])
    (start,) = recorder.starts
    assert (start.path, start.rounds, start.last_round) == (tmp_path / "run", 2, None)
    assert start.config.corpus.path == str(corpus)
    assert any("privacy.population" in warning for warning in start.warnings)
    assert [row["round"] for row in recorder.rows] == [0, 1, 2]
    assert recorder.rows == recorder.last_lines
    assert recorder.results == [run.result]


@pytest.mark.system
def test_an_observer_changes_nothing(corpus: Path, tmp_path: Path) -> None:
    settings = {"model.name": "awd-lstm", "model.embedding": 8, "model.dropout": 0.5, "privacy.q_u": 0.5}
    recorder = Recorder()
    alone = simulation.run(configured(corpus, tmp_path / "alone", **settings))
    watched = simulation.run(
        configured(corpus, tmp_path / "watched", **settings), observers=[Meddler(), recorder, Meddler()]
    )
    assert figures(alone).equals(figures(watched))
    assert (alone.result or {})["perplexity"] == (watched.result or {})["perplexity"]
    assert recorder.rows == recorder.last_lines


@pytest.mark.system
@pytest.mark.parametrize("method", ["on_start", "on_round", "on_end"])
def test_a_failing_observer_is_warned_of_once_and_ignored(
    method: str, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    error = SystemExit(3) if method == "on_end" else ValueError("two\nlines")
    broken, recorder = Breaking(method, error), Recorder()
    with caplog.at_level(logging.WARNING, "fl_sim.experiments.observers"):
        run = fl_sim.run(configured(corpus, tmp_path / "run"), observers=[broken, recorder])
    assert run.finished
    assert len(recorder.rows) == 3
    assert broken.calls.count(method) == 1
    assert broken.calls[-1] == method
    (record,) = [record for record in caplog.records if record.name == "fl_sim.experiments.observers"]
    assert f"observer Breaking failed in {method} and is ignored from now on (" in record.getMessage()
    assert "\n" not in record.getMessage()


# Observers of a configuration


def page() -> dict[str, str]:
    """The code of the page by its language; of two blocks the first."""
    blocks: dict[str, str] = {}
    for language, code in re.findall(r"```(\w+)\n(.*?)```", page_section("Add an observer"), flags=re.DOTALL):
        blocks.setdefault(language, code)
    return blocks


@pytest.mark.system
def test_the_page_works(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    code = page()["python"]
    assert code.startswith("# my_observer.py\n")
    (tmp_path / "my_observer.py").write_text(code, encoding="utf-8")
    (tmp_path / "run.toml").write_text(page()["toml"], encoding="utf-8")
    settings = tiny.command_line({"corpus.path": corpus, "engine.name": "inline", "rounds": 2, **tiny.MODEL})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["run", "run.toml", "--quiet", "--out", "here", *settings]) == 0
    written = (tmp_path / "here" / "curve.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in written] == ["round", "0", "1", "2", "# rounds after 2 rounds"]
    assert json.loads((tmp_path / "here" / "config.json").read_text())["run"]["observers"] == ["my_observer:Curve"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "nobody",
            "observer is 'nobody'; allowed: tensorboard, wandb, mlflow, csv, or an import path such as "
            "my_module:my_observer",
        ),
        ("no_such_module:X", "observer 'no_such_module:X' cannot be imported (No module named 'no_such_module')"),
        (
            "pathlib:Path",
            "observer 'pathlib:Path' is <class 'pathlib.Path'>; allowed: an object, or a class that takes",
        ),
        ("needy:Needy", "observer 'needy:Needy' cannot be made without arguments (TypeError: "),
    ],
)
def test_a_bad_observer_is_refused_before_the_run(
    name: str, line: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    source = """\
        from fl_sim import Observer

        class Needy(Observer):
            def __init__(self, argument):
                pass
        """
    (tmp_path / "needy.py").write_text(textwrap.dedent(source))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["run", "--corpus", str(corpus), "--out", "here", "--set", f"observers={name}"]) == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith(f"fl-sim run: {line}")
    assert "Traceback" not in said
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("observer", [object(), Recorder, print])
def test_an_object_without_the_methods_is_refused(observer: Any, corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="allowed: an object with the methods on_start, on_round, on_end"):
        fl_sim.run(configured(corpus, tmp_path / "run"), observers=[observer])
    assert not (tmp_path / "run").exists()
