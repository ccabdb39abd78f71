"""The notebooks run from first cell to last, show what they announce, and keep the outputs of their cells.

One of them runs in a Jupyter kernel. The others run in an IPython shell of this process, because a kernel's imports
take longer than most notebooks; there, the corpus that ships is reduced to some of its users.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbclient import NotebookClient
from traitlets.config import Config

import fl_sim
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.readers.prepared_corpus import sentences_of_split
from fl_sim.data_prep.records import Sentence
from fl_sim.data_prep.store.corpus import BUNDLED, Corpus
from tests.conftest import REPOSITORY
from tests.e2e.small_runs import finished_run
from tests.script_modules import imported_script

sys.path.insert(0, str(REPOSITORY / "scripts" / "documentation_site"))
from api_pages import public_paths

pytestmark = pytest.mark.usefixtures("no_plots")  # of the runs' own: the notebooks draw what they show

Outputs = list[dict[str, Any]]
NOTEBOOKS, TEMPLATE = REPOSITORY / "notebooks", REPOSITORY / "fl_sim" / "cli" / "template"
EPSILON = NOTEBOOKS / "epsilon_against_steps.ipynb"
ROUNDS = 3
USERS = {"train": 120, "validation": 20, "public": 20}


@pytest.fixture(autouse=True)
def private_jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Jupyter keep its files in the test's folder, not in the user's home."""
    monkeypatch.delenv("FL_SIM_RUNS", raising=False)
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))


@pytest.fixture(scope="module")
def scripts() -> ModuleType:
    """Return ``scripts/execute_notebooks.py``, imported."""
    return imported_script("execute_notebooks")


@pytest.fixture(scope="module")
def some_users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a corpus of the first users of every split of the corpus that ships."""
    whole = Corpus.open(BUNDLED)
    sentences = [sentence for split, users in USERS.items() for sentence in _first(whole, split, users)]
    return write_corpus(sentences, tmp_path_factory.mktemp("some") / "users", name=whole.manifest.name).path


def _first(corpus: Corpus, split: str, users: int) -> Iterator[Sentence]:
    return itertools.islice(sentences_of_split(corpus, split), int(corpus.ownership(split).user_offsets[users]))


@pytest.fixture
def execute(tmp_path: Path, some_users: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], Outputs]]:
    """``execute(path)`` runs a notebook's code cells in order, in the test's folder and a fresh shell."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fl_sim.data_prep.store.corpus.shipped_path", lambda _: some_users)
    without_history = Config()
    without_history.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=without_history)
    yield lambda path: [output for cell in code_cells(path) for output in _outputs(shell, cell.source)]
    InteractiveShell.clear_instance()


def _outputs(shell: InteractiveShell, source: str) -> Outputs:
    with capture_output() as captured:
        done = shell.run_cell(source)
    done.raise_error()
    last = [] if done.result is None else [{"data": shell.display_formatter.format(done.result)[0]}]
    return [{"text": captured.stdout}, *({"data": output.data} for output in captured.outputs), *last]


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def pictures(outputs: Outputs) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs)


def texts(outputs: Outputs) -> str:
    """Return what a notebook printed, and its tables."""
    shown = (output.get("data", {}) for output in outputs)
    formatted = [str(data.get("text/markdown") or data.get("text/plain")) for data in shown]
    return "\n".join(str(output.get("text") or data) for output, data in zip(outputs, formatted, strict=True))


@pytest.mark.system
def test_epsilon_against_steps_reads_run_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    for strategy in ("noiseless", "uedp", "user_level"):
        finished_run(strategy, runs / strategy)
    (runs / "notes.txt").touch()
    monkeypatch.setenv("FL_SIM_RUNS", str(runs))
    notebook = nbformat.read(EPSILON, as_version=4)
    imports = nbformat.v4.new_code_cell("import fl_sim\nimport tqdm.auto  # as transformers does")
    notebook.cells.insert(0, imports)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    assert imports.outputs == [], "a library warns"
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert pictures(outputs) == 4
    assert "3 runs: uedp, user_level, noiseless" in texts(outputs)
    assert "Utility, for the owner (outside ε)" in texts(outputs)
    assert "inf" in texts(outputs)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "num_pictures", "text"),
    [
        ("first_run", 1, "any user and any entity: ε ="),
        ("utility_against_epsilon", 1, "published, as coded"),
        ("effect_of_q_s", 1, "0.05"),
        ("entity_categories", 1, "PERSON"),
        ("audit", 0, "holds is False"),
        ("what_a_model_gives_away", 1, "no attack reached more than its bound: True"),
        ("why_dpnr_needs_k", 1, "claimed ε 0.5, proven ε 4"),
        ("representation_tradeoff", 1, "System      federate on adult"),
    ],
)
def test_the_other_notebooks_run(
    execute: Callable[[Path], Outputs], name: str, num_pictures: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FL_SIM_ROUNDS", str(ROUNDS))
    outputs = execute(NOTEBOOKS / f"{name}.ipynb")
    assert pictures(outputs) == num_pictures
    assert text in texts(outputs)


EACH = pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
ALLOWED = {*public_paths(), *(f"fl_sim.{name}" for name in fl_sim.__all__)}


def imported_names(source: str) -> Iterator[str]:
    """The names that a cell imports from the package, in full."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("fl_sim."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fl_sim":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    "path", [*sorted(NOTEBOOKS.glob("*.ipynb")), *TEMPLATE.glob("*.ipynb")], ids=lambda path: path.stem
)
def test_a_notebook_imports_public_names_alone(path: Path) -> None:
    assert {name for cell in code_cells(path) for name in imported_names(cell.source)} - ALLOWED == set()


def test_an_internal_name_is_noticed() -> None:
    cell = "import fl_sim\nimport fl_sim.reporting.plots\nfrom fl_sim.api.runs import run, folder_of\nimport os"
    assert set(imported_names(cell)) - ALLOWED == {"fl_sim.reporting.plots", "fl_sim.api.runs.folder_of"}


@EACH
def test_kept_outputs_are_of_these_cells_and_records(path: Path, scripts: ModuleType) -> None:
    why = scripts.out_of_date(path)
    assert why is None, f"{path.name}: {why}; run: {scripts.COMMAND} {path.stem}"


@EACH
def test_kept_outputs_are_small_and_say_nothing_of_a_machine(path: Path) -> None:
    assert path.stat().st_size < 900_000
    assert [cell.execution_count for cell in code_cells(path)] == list(range(1, 1 + len(code_cells(path))))
    assert {key for cell in code_cells(path) for key in cell.metadata} == set()
    outputs = [output for cell in code_cells(path) for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "display_data", "execute_result"}
    shown = json.dumps([[output.get("text"), dict(output.get("data", {}), **{"image/png": ""})] for output in outputs])
    assert not re.search(r"/home/|/root/|/tmp/|/work/|/Users/|object at 0x|widget", shown)


def test_a_changed_cell_or_record_makes_outputs_stale(
    tmp_path: Path, scripts: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "ROOT", tmp_path)
    record = tmp_path / "record.json"
    record.write_text("1")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
    path = tmp_path / "made_up.ipynb"
    nbformat.write(notebook, path)
    assert scripts.out_of_date(path) == "was never executed"
    digest = hashlib.sha256(b"1").hexdigest()
    notebook.metadata["fl_sim"] = {"cells": scripts.source_hash(notebook), "files": {"record.json": digest}}
    nbformat.write(notebook, path)
    assert scripts.out_of_date(path) is None
    record.write_text("2")
    assert scripts.out_of_date(path) == "it reads record.json, which changed"
    notebook.cells[0].source = "1 + 2"
    nbformat.write(notebook, path)
    assert scripts.out_of_date(path) == "its cells changed"


@pytest.mark.system
def test_executing_keeps_outputs_and_nothing_of_the_machine(
    tmp_path: Path, scripts: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "repository"
    (folder / "results").mkdir(parents=True)
    (folder / "results" / "record.json").write_text("{}")
    monkeypatch.setattr(scripts, "ROOT", folder)
    source = f"""import pathlib, sys, tempfile
print(tempfile.mkdtemp(prefix="run-"), pathlib.Path.cwd(), open({str(folder / "results" / "record.json")!r}).read())
print("a bar of progress", file=sys.stderr)
print("Time        0.2 s")"""
    path = folder / "made_up.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), path)
    scripts.execute(path)
    (cell,) = code_cells(path)
    assert [output.text for output in cell.outputs] == ["…/run … {}\n"]
    assert scripts.out_of_date(path) is None
    assert list(nbformat.read(path, as_version=4).metadata["fl_sim"]["files"]) == ["results/record.json"]
