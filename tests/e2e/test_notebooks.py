"""The notebooks run from first cell to last, show what they promise, and are committed without outputs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from fl_sim import plots
from fl_sim.results import RunFolder

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
EPSILON = NOTEBOOKS / "epsilon_against_steps.ipynb"
ROUNDS = 3


@pytest.fixture(autouse=True)
def private_jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels keep their files in the test's folder, not in the home of who runs the tests."""
    monkeypatch.delenv("FL_SIM_RUNS", raising=False)
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))


def make_run(path: Path, strategy: str) -> None:
    """A run folder with made-up figures."""
    plan = {"strategy": strategy, "noise_multiplier": 1.0, "delta": 1e-5, "rounds": ROUNDS}
    run = RunFolder.create(path, config={"seed": 0, "plan": plan}, environment={})
    for number in range(ROUNDS + 1):
        epsilon = math.inf if number and strategy == "noiseless" else 2.0 * math.sqrt(number)
        run.append_metrics(
            {
                "round": number,
                "perplexity": 900.0 - 100 * number,
                **{f"epsilon_{unit}": epsilon for unit in plots.UNITS},
            }
        )
    run.finish({"stopped": "rounds", "plan": plan, "unigram_perplexity": 800.0})


def execute(path: Path, folder: Path) -> list[dict[str, Any]]:
    """The outputs of all code cells, executed in ``folder``."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}})
    client.execute()
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def pictures(outputs: list[dict[str, Any]]) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs)


def texts(outputs: list[dict[str, Any]]) -> str:
    return "\n".join(str(output.get("text") or output.get("data", {}).get("text/plain")) for output in outputs)


def test_epsilon_against_steps_reads_run_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = tmp_path / "runs"
    for strategy in ("noiseless", "uedp", "user_level"):
        make_run(runs / strategy, strategy)
    (runs / "notes.txt").touch()
    monkeypatch.setenv("FL_SIM_RUNS", str(runs))
    outputs = execute(EPSILON, tmp_path)
    assert pictures(outputs) == 4
    assert "3 runs: uedp, user_level, noiseless" in texts(outputs)
    assert "Not covered by ε" in texts(outputs)
    assert "inf" in texts(outputs)


def test_a_folder_without_runs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FL_SIM_RUNS", str(tmp_path))
    with pytest.raises(CellExecutionError, match="no run with a finished round in"):
        execute(EPSILON, tmp_path)


@pytest.mark.slow
def test_epsilon_against_steps_makes_its_own_runs(tmp_path: Path) -> None:
    outputs = execute(EPSILON, tmp_path)
    assert pictures(outputs) == 4
    assert "3 runs: uedp, user_level, noiseless" in texts(outputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shown", "said"),
    [
        ("utility_against_epsilon", 1, ""),
        ("effect_of_q_s", 1, "0.05"),
        ("entity_categories", 1, "Person"),
        ("audit", 0, "holds is False"),
        ("why_dpnr_needs_k", 1, "claimed ε 0.5, proven ε 4"),
        ("representation_tradeoff", 1, "System      federate on adult"),
    ],
)
def test_the_other_notebooks_run(tmp_path: Path, name: str, shown: int, said: str) -> None:
    outputs = execute(NOTEBOOKS / f"{name}.ipynb", tmp_path)
    assert pictures(outputs) >= shown, "and more of them where results has the figure's record"
    assert said in texts(outputs)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_committed_without_outputs(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
