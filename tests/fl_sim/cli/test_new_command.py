"""`fl-sim new` makes a project that runs, or nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fl_sim.cli import sample_text
from fl_sim.cli.commands import new_command
from fl_sim.cli.main import main
from fl_sim.cli.template.length_weighted import WeightedByLength
from fl_sim.clients.batches import Examples
from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.selection import Selection
from fl_sim.clients.training import bounded_sum
from fl_sim.config import RunConfig
from fl_sim.data_prep.store.encode import EncodedSplit
from tests.conftest import REPOSITORY

Capture = pytest.CaptureFixture[str]
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
    assert len({row["author"] for row in rows}) == len(sample_text.AUTHORS) == 200
    letters = (project / "letters.mbox").read_text(encoding="utf-8")
    assert len(re.findall(r"^From ", letters, re.MULTILINE)) == len(re.findall(r"^From: ", letters, re.MULTILINE)) > 50


def test_the_configuration_names_known_keys_alone(project: Path) -> None:
    config = RunConfig.load(project / "run.toml")
    assert (config.privacy.strategy, config.privacy.target_epsilon) == ("uedp", 8.0)


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
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(["new", "--", name]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("fl-sim new: ")
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "taken" / "mine.txt").read_text() == (tmp_path / "file").read_text() == "mine"


def test_an_interrupted_project_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(path: Path) -> None:
        assert len(list(path.parent.iterdir())) > 5, "most of it is written, elsewhere"
        raise KeyboardInterrupt

    monkeypatch.setattr(sample_text, "write_letters", stop)
    assert main(["new", str(tmp_path / "deep" / "made")]) == 130
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_will_do(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty").mkdir()
    assert main(["new", str(tmp_path / "empty")]) == 0
    assert {path.name for path in (tmp_path / "empty").iterdir()} == FILES
    assert f"cd {tmp_path}/empty" in capsys.readouterr().out


# --- the strategy -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return load_model(ModelSpec(hidden=16, layers=1, heads=2, max_tokens=24), 0)


@pytest.fixture(scope="module")
def examples() -> Examples:
    """Return four sentences of 3, 6, 12 and 20 tokens."""
    lengths = [3, 6, 12, 20]
    tokens = np.random.default_rng(0).integers(0, 400, sum(lengths)).astype(np.int32)
    return Examples(EncodedSplit(tokens=tokens, offsets=np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)))


def sum_of(model: LanguageModel, examples: Examples, sentences: list[int], user_clip: float) -> np.ndarray:
    """The sum of one user with these sentences, under the project's strategy with c = 0.3."""
    rule = WeightedByLength(q_e=1.0, q_s=1.0, user_clip=user_clip, sentence_clip=0.3, full_length=12)
    chosen = Selection(np.arange(1), np.array(sentences), np.array([len(sentences)]))
    return bounded_sum(model, examples, chosen, rule, 0).vector


def test_a_sentence_counts_by_its_length_after_it_is_clipped(model: LanguageModel, examples: Examples) -> None:
    clipped = [clipped_gradient_sum(model, examples.read([s]), 0.3).vector for s in range(4)]
    expected = clipped[0] / 4 + clipped[1] / 2 + clipped[2] + clipped[3]
    assert np.allclose(sum_of(model, examples, [0, 1, 2, 3], user_clip=100.0), expected, atol=1e-6)


def test_the_bounds_of_which_the_event_speaks(model: LanguageModel, examples: Examples) -> None:
    everything = sum_of(model, examples, [0, 1, 2, 3], user_clip=0.6)
    assert np.linalg.norm(everything) <= 0.6 * (1 + 1e-4)
    for left_out in range(4):
        rest = sum_of(model, examples, [s for s in range(4) if s != left_out], user_clip=0.6)
        assert np.linalg.norm(everything - rest) <= 0.3 * (1 + 1e-4)


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


@pytest.mark.nightly
def test_its_code_has_types(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project, tmp_path / "typed")
    options = ["--strict-equality", "--check-untyped-defs", "--disallow-untyped-defs", "--follow-imports=silent"]
    command = ["python", "-m", "mypy", *options, "mailbox_reader.py", "length_weighted.py", "test_project.py"]
    assert "Success" in run_in(tmp_path / "typed", " ".join(command))
