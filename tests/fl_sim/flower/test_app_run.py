"""The record of an app's run: ε of what was released, on disk before it is released, and of this run alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from fl_sim.flower import app_run
from fl_sim.flower.app_run import USER, AppRun, AppTraining, PrivateSettings
from fl_sim.storage.open_run import Computation, OpenRun
from fl_sim.storage.run_claim import RunClaim
from fl_sim.storage.run_folder import ResultsError, rows_of
from fl_sim.strategies.ledger import Ledger, LedgerError, epsilon_of

SETTINGS = PrivateSettings(population=10, sampling_rate=0.5, clip_norm=1.0, noise_multiplier=2.0, seed=0)
SECURE = replace(SETTINGS, seed=None)


def _begun(folder: Path, settings: PrivateSettings = SETTINGS, rounds: int = 10) -> AppRun:
    run = AppRun.begin(folder, AppTraining(settings, settings.plan(rounds), {"settings": {}}))
    run.checkpoint(0, np.zeros(3, np.float32), {})
    return run


def _resumed(folder: Path, settings: PrivateSettings = SETTINGS, rounds: int = 10) -> AppRun:
    return AppRun.resume(folder, AppTraining(settings, settings.plan(rounds), {"settings": {}}))


def _released(run: AppRun, *rounds: int, total: str = "5a17") -> None:
    for number in rounds:
        run.before_release(number, total)


def test_between_two_computed_numbers_of_rounds_the_larger_epsilon_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_run, "_MOST_COUNTS", 3)  # ε after 1, 6 (5.5) and 10 rounds
    run, proven = _begun(tmp_path / "r"), SETTINGS.plan(10).epsilon_curve(USER, list(range(1, 11)))
    for number in range(1, 11):
        _released(run, number)
        assert run.epsilon() >= proven[number - 1] * (1 - 1e-3)
    assert run.epsilon() == pytest.approx(proven[-1], rel=1e-3)


def test_rounds_that_were_lost_count_beyond_the_planned_number(tmp_path: Path) -> None:
    run = _begun(tmp_path / "r", SECURE, rounds=2)
    _released(run, 1, 1, 2, 2, total="")
    assert run.epsilon() == pytest.approx(float(SECURE.plan(4).epsilon_curve(USER, [4])[0]), rel=1e-3)


def test_two_sums_of_a_round_have_other_noise_and_count_as_less_of_it(tmp_path: Path) -> None:
    run = _begun(tmp_path / "r")
    streams = [run.before_release(1, total) for total in ("5a17", "0b0b", "5a17")]
    assert streams == ["5a17", "0b0b", "5a17"]  # also the first has noise of its own: a run of one seed on other data
    assert run.epsilon() == pytest.approx(epsilon_of(Ledger.read(tmp_path / "r").entries, USER, 1e-5), rel=1e-3)
    assert run.epsilon() > float(SETTINGS.plan(1).epsilon_curve(USER, [1])[0]) * 1.1


def test_a_budget_lets_no_round_have_a_second_sum(tmp_path: Path) -> None:
    run = _begun(tmp_path / "r", replace(SETTINGS, epsilon_budget=100.0))
    _released(run, 1)
    with pytest.raises(ResultsError, match="round 1 has another sum than the one released before"):
        run.before_release(1, "0b0b")


def test_a_copy_of_a_secure_run_cannot_go_on_beside_it(tmp_path: Path) -> None:
    run = _begun(tmp_path / "r", SECURE)
    _released(run, 1, total="")
    run.close()
    shutil.copytree(tmp_path / "r", tmp_path / "copy")
    copy = _resumed(tmp_path / "copy", SECURE)
    original = _resumed(tmp_path / "r", SECURE)
    _released(original, 2, total="")
    with pytest.raises(LedgerError):
        copy.before_release(2, "")
    copy.close()
    with pytest.raises(LedgerError):
        _resumed(tmp_path / "copy", SECURE)


def test_the_ledger_is_bound_to_what_the_run_computes(tmp_path: Path) -> None:
    _begun(tmp_path / "r")
    assert Ledger.read(tmp_path / "r").computation == Computation.read(tmp_path / "r").digest


def test_a_rewritten_computation_is_noticed(tmp_path: Path) -> None:
    _begun(tmp_path / "r").close()
    file = tmp_path / "r" / "computation.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"salt": "0" * 32}))
    with pytest.raises(ResultsError, match=r"computation\.json: is not what the run's ledger is bound to"):
        _resumed(tmp_path / "r")


def test_a_run_that_was_killed_before_it_was_bound_does_not_go_on_with_another_initial_model(tmp_path: Path) -> None:
    killed = patch.object(OpenRun, "bind", side_effect=KeyboardInterrupt)
    with killed, patch.object(RunClaim, "discard", RunClaim.release), pytest.raises(KeyboardInterrupt):
        _begun(tmp_path / "r")
    with pytest.raises(ResultsError, match="was killed before it began; allowed: a new folder"):
        _resumed(tmp_path / "r")


def test_releases_without_a_checkpoint_are_refused(tmp_path: Path) -> None:
    run = _begun(tmp_path / "r")
    _released(run, 1)
    run.close()
    shutil.rmtree(tmp_path / "r" / "checkpoint")
    with pytest.raises(ResultsError, match="has no checkpoint, but its ledger has 1 releases"):
        _resumed(tmp_path / "r")


def test_changed_metrics_are_noticed_and_rows_after_the_checkpoint_repeated(tmp_path: Path) -> None:
    run = _begun(tmp_path / "r")
    for number in (0, 1, 2):
        if number:
            _released(run, number)
        run.add_row(number, {"accuracy": 0.1 * number})
        if number < 2:
            run.checkpoint(number, np.zeros(3, np.float32), {})
    run.close()
    resumed = _resumed(tmp_path / "r")
    assert [row["round"] for row in rows_of(tmp_path / "r", 9)] == [0, 1]
    assert resumed.last_row["round"] == 1
    resumed.close()
    file = tmp_path / "r" / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[1]["accuracy"] = 0.9
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ResultsError, match=r"metrics.jsonl: was changed"):
        _resumed(tmp_path / "r")


def test_a_ledger_that_lost_a_release_is_noticed(tmp_path: Path) -> None:
    run = _begun(tmp_path / "r")
    run.add_row(0, {})
    before = {name: (tmp_path / "r" / name).read_bytes() for name in ("ledger.jsonl", "ledger.head.json")}
    _released(run, 1)
    run.add_row(1, {})
    run.checkpoint(1, np.zeros(3, np.float32), {})
    run.close()
    for name, content in before.items():
        (tmp_path / "r" / name).write_bytes(content)
    with pytest.raises(LedgerError, match="is not the ledger whose head hash was kept"):
        _resumed(tmp_path / "r")


def test_the_result_counts_what_failed_and_says_why_it_ended(tmp_path: Path) -> None:
    run = _begun(tmp_path / "r", rounds=2)
    for number in (0, 1, 2):
        if number:
            _released(run, number)
        run.add_row(number, {"accuracy": 0.25 * number, "failed_error": number, "failed_nodes": number})
    run.finish("epsilon_budget", ["accuracy"], ["a warning"])
    result = json.loads((tmp_path / "r" / "result.json").read_text())
    assert (result["stopped"], result["rounds"], result["releases"]) == ("epsilon_budget", 2, 2)
    assert result["measured"] == {"accuracy": [0.0, 0.5]}
    assert (result["failed_nodes"], result["warnings"]) == ({"error": 3}, ["a warning"])
    assert result["epsilon_user"] == run.epsilon()
