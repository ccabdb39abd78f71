"""Test the audit of a run folder: it passes an honest run, and every figure that was made to look better is refuted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_sim
from fl_sim.auditing.real_rounds.round_faults import fault
from fl_sim.auditing.recorded_runs import ledger_audit
from fl_sim.auditing.recorded_runs.ledger_audit import audit_ledger
from fl_sim.experiments.plan import enforced_bounds
from fl_sim.storage.run_folder import ResultsError

SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "model.hidden": 8,
    "model.layers": 1,
    "model.heads": 2,
    "evaluation.every": 1_000_000,
    "engine.name": "inline",
    "privacy.noise_multiplier": 4.0,
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "honest"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fl_sim.reporting.plots.write_run_plots", lambda run: None)
        fl_sim.run(SETTINGS | {"out": str(out)})
    return out


@pytest.fixture
def copy(honest: Path, tmp_path: Path) -> Path:
    shutil.copytree(honest, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def few_trials(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation has tests of its own."""
    if "honest" not in request.node.name:
        monkeypatch.setattr(ledger_audit, "delta_at_least", lambda *args: 0.0)


def edit(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def edit_rows(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        if row["round"]:
            change(row)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def refuted(folder: Path) -> list[str]:
    return list(audit_ledger(folder).record()["refuted"])


def test_an_honest_run_passes(honest: Path) -> None:
    audit = audit_ledger(honest)
    assert audit.holds, audit.record()
    names = [check.name for check in audit.checks]
    figures = ["epsilon", "epsilon_any", "bounds"]
    assert names[:10] == ["chain", "terms", "seed", "rounds", *figures, "noise", "updates", "rate of users"]
    assert "rate of sentences" in names
    assert "simulated epsilon_user" in names


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("terms", lambda config: config["plan"].update(noise_multiplier=5.0)),
        ("bounds", lambda config: config["run"]["privacy"].update(entity_bound=3)),
        ("terms", lambda config: config["plan"].update(q_s=0.05)),
        ("seed", lambda config: config["run"].update(seed=1)),
        ("seed", lambda config: config["run"]["privacy"].update(secure_noise=True)),
        ("rounds", lambda config: config["plan"].update(rounds=2)),
    ],
)
def test_another_record_is_refuted(name: str, change: Callable[[dict[str, Any]], None], copy: Path) -> None:
    edit(copy / "config.json", change)
    assert refuted(copy) == [name]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("noise", lambda row: row.update(noise_norm=0.95 * row["noise_norm"])),
        ("updates", lambda row: row.update(update_norm=10 * row["update_norm"])),
        ("rate of sentences", lambda row: row.update(cohort_sentences=2 * row["cohort_sentences"])),
        ("rounds", lambda row: row.update(releases=row["releases"] - 1)),
    ],
)
def test_other_metrics_are_refuted(name: str, change: Callable[[dict[str, Any]], None], copy: Path) -> None:
    edit_rows(copy / "metrics.jsonl", change)
    assert name in refuted(copy)


@pytest.mark.usefixtures("no_plots")
def test_a_run_that_did_not_enforce_its_bounds_is_refuted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The auditor's own code enforces them, so it is the run's computation.json that tells."""
    with monkeypatch.context() as patched:
        patched.setattr(enforced_bounds, "_weights", lambda guarantee, split, order_seed: np.ones(split.num_sentences))
        fl_sim.run(SETTINGS | {"out": str(tmp_path / "run"), "rounds": 1, "privacy.user_sentences": 3})
    audit = audit_ledger(tmp_path / "run")
    assert audit.record()["refuted"] == ["bounds"]
    (check,) = (check for check in audit.checks if not check.holds)
    assert "not from the sentences that its bounds keep" in check.detail


def test_a_computation_that_the_ledger_is_not_bound_to_is_refuted(copy: Path) -> None:
    edit(copy / "computation.json", lambda content: content["parts"].update(selection="0a1b"))
    assert refuted(copy) == ["bounds"]


def test_an_epsilon_that_is_too_small_is_refuted(copy: Path) -> None:
    edit(copy / "result.json", lambda result: result.update(epsilon_user=0.99 * result["epsilon_user"]))
    assert refuted(copy) == ["epsilon"]


def test_a_changed_line_is_refuted(copy: Path) -> None:
    ledger = copy / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"noise_multiplier":4.0', '"noise_multiplier":9.0', 1))
    (check,) = audit_ledger(copy).checks
    assert not check.holds
    assert "line 1" in check.detail


@pytest.mark.usefixtures("no_plots")
def test_a_run_with_less_noise_is_refuted(tmp_path: Path) -> None:
    with fault("noise_reduced"):
        fl_sim.run(SETTINGS | {"out": str(tmp_path / "run"), "rounds": 1})
    assert refuted(tmp_path / "run") == ["noise"]


@pytest.mark.usefixtures("no_plots")
def test_honest_accounts_with_half_of_the_rate_are_refuted(tmp_path: Path) -> None:
    """The ledger has the real rate, and the same accountant confirms its own ε; the simulation does not."""
    with fault("accounted_rate_halved"):
        fl_sim.run(SETTINGS | {"out": str(tmp_path / "run"), "rounds": 2, "privacy.noise_multiplier": 2.0})
        names = refuted(tmp_path / "run")
    assert "simulated epsilon_user" in names
    assert "epsilon" not in names


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="there is no such folder"):
        audit_ledger(tmp_path / "none")
