"""`fl-sim new` makes a project that runs, or nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fl_sim
from fl_sim.cli.commands import new_command
from fl_sim.cli.main import main
from fl_sim.config import RunConfig
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.run_plan import plan_run
from tests.conftest import REPOSITORY
from tests.fl_sim.conftest import Refusal

FILES = {
    ".gitignore", "README.md", "first_look.ipynb", "length_weighted.py", "letters.mbox", "mailbox_reader.py",
    "messages.jsonl", "pyproject.toml", "run.toml", "test_project.py",
}  # fmt: skip
_SECONDS = 600


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "My_chats"
    new_command.make_project(folder)
    return folder


def run_in(folder: Path, command: str) -> str:
    """What a command of a shell prints, with the programs of this environment."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PATH": programs}
    done = subprocess.run(
        ["bash", "-euc", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def commands_of(readme: Path) -> list[str]:
    """The indented lines of a page, each a command."""
    return [line[4:] for line in readme.read_text(encoding="utf-8").splitlines() if line.startswith("    ")]


# --- what is made -----------------------------------------------------------------------------------------------------


def test_the_files_of_a_project(project: Path) -> None:
    assert {path.name for path in project.iterdir()} == FILES
    named = set(re.findall(r"`([\w.]+\.(?:\w+))`", (project / "README.md").read_text(encoding="utf-8")))
    assert named - {"privacy.full_length"} <= FILES
    assert len(named) > len(FILES) - 3
    texts = [(project / name).read_text(encoding="utf-8") for name in FILES]
    assert not any("new-project" in text for text in texts), "the template's name"
    assert tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"] == "my-chats"


def test_the_messages_are_many_and_by_people_who_do_not_exist(project: Path) -> None:
    rows = [json.loads(line) for line in (project / "messages.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [*rows[0]] == ["id", "author", "text"]
    assert len({row["id"] for row in rows}) == len(rows) == 1868, "which README.md of the project says"
    assert len({row["author"] for row in rows}) == len(new_command.AUTHORS) == 200
    letters = (project / "letters.mbox").read_text(encoding="utf-8")
    assert len(re.findall(r"^From ", letters, re.MULTILINE)) == len(re.findall(r"^From: ", letters, re.MULTILINE)) > 50


def test_the_notebook_tells_epsilon_of_the_runs_that_follow(project: Path) -> None:
    """It said 4.27 at z 4, of 5 sentences, where run.toml bounds weights and a run at z 4 has 4.73."""
    notebook = json.loads((project / "first_look.ipynb").read_text(encoding="utf-8"))
    (cell,) = (source for cell in notebook["cells"] if "noises = " in (source := "".join(cell["source"])))
    table: dict[str, Any] = {"fl_sim": fl_sim, "pd": pd}
    exec(cell, table)
    config = RunConfig.load(str(project / "run.toml"), {"rounds": 5}).changed({"privacy.target_epsilon": None})
    ownership = Ownership(np.arange(201), np.arange(201), np.zeros(200, dtype=np.int32), num_entities=1)
    for z, told in table["table"]["epsilon_any"].items():
        planned = plan_run(config.changed({"privacy.noise_multiplier": z}), ownership)
        assert told == pytest.approx(planned.guarantees.after(5)["epsilon_any"], rel=1e-9)


def test_flower_takes_the_same_settings_as_from_the_checkout(project: Path) -> None:
    def app(folder: Path) -> dict:
        return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]

    own, ours = app(project), app(REPOSITORY)
    assert own["config"] == ours["config"], "run: python scripts/update_configuration_docs.py"
    assert own["components"] == ours["components"]


@pytest.mark.system
def test_making_one_loads_no_framework(tmp_path: Path) -> None:
    code = "import sys; from fl_sim.cli.main import main; main(['new', 'made'])"
    heavy = "{'torch', 'transformers', 'flwr', 'ray', 'spacy'}"
    out = run_in(tmp_path, f'python -c "{code}; print(sorted({heavy} & set(sys.modules)))"')
    assert out.splitlines()[-1] == "[]"
    assert (tmp_path / "made" / "run.toml").is_file()


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["taken", "file", ".", "bad name", "-", "ä", "x" * 65])
def test_a_bad_place_is_refused_and_nothing_touched(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert refusal("new", "--", name).startswith("fl-sim new: ")
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "taken" / "mine.txt").read_text() == (tmp_path / "file").read_text() == "mine"


def test_an_interrupted_project_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(path: Path) -> None:
        assert len(list(path.parent.iterdir())) > 5, "most of it is written, elsewhere"
        raise KeyboardInterrupt

    monkeypatch.setattr(new_command, "write_letters", stop)
    assert main(["new", str(tmp_path / "made")]) == 130
    assert list(tmp_path.iterdir()) == []


# --- it runs ----------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_the_commands_of_its_readme_run_as_pasted(tmp_path: Path) -> None:
    assert main(["new", str(tmp_path / "chats")]) == 0
    folder = tmp_path / "chats"
    commands = commands_of(folder / "README.md")
    flower = next(n for n, command in enumerate(commands) if command.startswith("export FLWR_"))
    assert len(commands[:flower]) == 12, "tests/e2e/engines/test_flwr_run.py runs the others"
    printed = {command: run_in(folder, command) for command in commands[:flower] if not command.startswith("pip ")}
    assert "6 passed" in printed["pytest"]
    epsilons = [text for command, text in printed.items() if "report" in command or "account" in command]
    assert all("7.9" in text or "8.0" in text for text in epsilons), "the target of run.toml, from the ledger too"
    notebook = json.loads((folder / "first_look.ipynb").read_text(encoding="utf-8"))
    outputs = [output for cell in notebook["cells"] if cell["cell_type"] == "code" for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert (folder / "runs" / "length-weighted" / "result.json").is_file()
