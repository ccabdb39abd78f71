"""The run folder: what is written comes back, a killed run stays readable, nothing is overwritten."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from fl_sim.storage import environment
from fl_sim.storage.run_folder import ResultsError, RunFolder, default_run_path


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", config={"seed": 0}, environment={"python": "3.11"})


def test_config_and_environment_come_back(run: RunFolder) -> None:
    again = RunFolder.open(run.path)
    assert again.config == {"seed": 0}
    assert again.environment == {"python": "3.11"}
    assert again.last_round is None
    assert again.result is None


def test_metrics_come_back_with_infinities_and_numpy_scalars(run: RunFolder) -> None:
    run.append_metrics({"round": 0, "epsilon_user": 0.0, "train_loss": math.nan, "note": "initial"})
    run.append_metrics({"round": np.int64(1), "epsilon_user": math.inf, "train_loss": np.float32(0.5)})
    assert json.loads(run.metrics_file.read_text().splitlines()[1])["epsilon_user"] == "inf"  # strict JSON
    frame = RunFolder.open(run.path).metrics()
    assert frame["round"].tolist() == [0, 1]
    assert frame["epsilon_user"].tolist() == [0.0, math.inf]
    assert math.isnan(frame["train_loss"][0])
    assert frame["train_loss"][1] == 0.5
    assert frame["epsilon_user"].dtype == np.float64


@pytest.mark.parametrize("value", [[1.0], {"a": 1}, "x", True])
def test_an_epsilon_that_is_no_number_is_refused(value: object, run: RunFolder) -> None:
    run.append_metrics({"round": 0, "epsilon_user": 0.0})
    run.finish({"stopped": "rounds", "epsilon_user": 1.0, "epsilon_any": math.inf, "epsilon_stated": None})
    assert (RunFolder.open(run.path).result or {})["epsilon_any"] == math.inf
    words = rf"is corrupt \(epsilon_user is a {type(value).__name__}; allowed: a number\)"
    run.result_file.write_text(json.dumps({"epsilon_user": value}))
    with pytest.raises(ResultsError, match=f"result.json: {words}"):
        _ = RunFolder.open(run.path).result
    run.metrics_file.write_text(json.dumps({"round": 0, "epsilon_user": value}) + "\n")
    with pytest.raises(ResultsError, match=f"metrics.jsonl, line 1: {words}"):
        RunFolder.open(run.path)


@pytest.mark.parametrize("name", ["plan", "guarantee", "reach", "ledger", "warnings", "stopped", "user_sentences"])
@pytest.mark.parametrize("value", [True, -3, "x", [1], {"a": 1}])
def test_a_value_of_the_result_of_another_kind_is_refused(name: str, value: object, run: RunFolder) -> None:
    kinds = {"warnings": list, "stopped": str, "user_sentences": int}
    run.result_file.write_text(json.dumps({name: value}))
    if type(value) is kinds.get(name, dict):
        assert RunFolder.open(run.path).result == {name: value}
    else:
        words = rf"result.json: is corrupt \({name} is a {type(value).__name__}; allowed: a"
        with pytest.raises(ResultsError, match=words):
            _ = RunFolder.open(run.path).result
    run.result_file.write_text(json.dumps({name: None, "rounds": 3}))
    assert RunFolder.open(run.path).result == {"rounds": 3}


@pytest.mark.parametrize("name", ["run", "plan", "guarantee"])
def test_settings_of_another_kind_are_refused(name: str, run: RunFolder) -> None:
    run.config_file.write_text(json.dumps({name: [3]}))
    with pytest.raises(ResultsError, match=rf"config.json: is corrupt \({name} is a list; allowed: an object\)"):
        RunFolder.open(run.path)


@pytest.mark.parametrize(
    "content", ["", "{}", '{"nats": "x"}', '{"nats": [1.0], "wrong": [1.0, 2.0]}', '{"nats": [[1]]}']
)
def test_sums_of_held_out_users_that_are_none_are_refused(content: str, run: RunFolder) -> None:
    run.write_held_out_users({"nats": [1.0, math.inf], "wrong": [0, 1]})
    sums = run.held_out_users
    assert sums == {"nats": [1.0, math.inf], "wrong": [0, 1]}
    with pytest.raises(ResultsError, match=r"held_out_users.json: is corrupt \(it has no predictions\)"):
        _ = (sums or {})["predictions"]
    (run.path / "held_out_users.json").write_text(content)
    with pytest.raises(ResultsError, match=r"held_out_users\.json.* is corrupt"):
        _ = run.held_out_users


def test_a_kept_head_is_that_of_settings_and_of_the_rows_until_then(run: RunFolder) -> None:
    run.append_metrics({"round": 0, "loss": 5.0})
    head = run.head()
    run.append_metrics({"round": 1, "loss": 4.0})
    run.check_head(head)  # later rows do not matter
    for file, old, new in ((run.config_file, '"seed": 0', '"seed": 1'), (run.metrics_file, "5.0", "3.0")):
        content = file.read_text()
        file.write_text(content.replace(old, new))
        with pytest.raises(ResultsError, match=rf"{file.name}: was changed after the run's last checkpoint"):
            run.check_head(head)
        file.write_text(content)
    run.check_head(head)


def test_a_head_reads_the_new_rows_alone_and_is_that_of_the_whole_file(run: RunFolder) -> None:
    """A head that read all rows made a run of many rounds quadratic."""
    for number in range(5):
        run.append_metrics({"round": number, "loss": 1.0 / (number + 1)})
        whole = run.metrics_file.read_bytes()
        expected = {"metrics": hashlib.sha256(whole).hexdigest(), "metrics_bytes": len(whole)}
        assert run.head().items() >= expected.items()
    assert RunFolder.open(run.path).head() == run.head()
    run.truncate_metrics(after_round=2)
    assert run.head() == RunFolder.open(run.path).head()
    run.head()
    run.metrics_file.write_bytes(b"x" * run.metrics_file.stat().st_size)
    assert run.head() != RunFolder.open(run.path).head()


@pytest.mark.parametrize("number", [None, -1, 1, 0, 1.0, True, "2"])
def test_a_round_must_be_an_integer_above_the_last(run: RunFolder, number: object) -> None:
    run.append_metrics({"round": 1})
    with pytest.raises(ResultsError, match=r"round is .*; allowed: an integer of at least 2"):
        run.append_metrics({"round": number})  # type: ignore[dict-item]


def test_a_value_that_json_cannot_hold_is_refused_and_leaves_no_line(run: RunFolder) -> None:
    with pytest.raises(ResultsError, match="cannot store a set"):
        run.append_metrics({"round": 0, "x": {1}})  # type: ignore[dict-item]
    assert run.metrics().empty


def test_a_line_cut_off_by_a_kill_is_tolerated_and_reported(run: RunFolder) -> None:
    run.append_metrics({"round": 0, "loss": 3.0})
    run.append_metrics({"round": 1, "loss": 2.0})
    os.truncate(run.metrics_file, run.metrics_file.stat().st_size - 5)
    again = RunFolder.open(run.path)
    assert again.metrics()["round"].tolist() == [0]
    assert "metrics.jsonl, line 2" in again.truncated_tail
    again.append_metrics({"round": 1, "loss": 2.0})  # the resumed run does not glue its row to the half line
    assert RunFolder.open(run.path).metrics()["round"].tolist() == [0, 1]
    assert again.truncated_tail is None


def test_a_row_that_lost_only_its_newline_is_kept(run: RunFolder) -> None:
    run.append_metrics({"round": 0})
    os.truncate(run.metrics_file, run.metrics_file.stat().st_size - 1)
    again = RunFolder.open(run.path)
    again.append_metrics({"round": 1})
    assert RunFolder.open(run.path).metrics()["round"].tolist() == [0, 1]


@pytest.mark.parametrize(
    "line",
    [b"{broken", b"[1]", b'{"loss": 1}', b'{"round": 0}', b'{"round": "1"}', b"", b'{"round": 1e0}', b'{"x": "\xff"}'],
)
def test_an_earlier_corrupt_line_is_an_error_that_names_it(run: RunFolder, line: bytes) -> None:
    run.metrics_file.write_bytes(b'{"round": 0}\n' + line + b'\n{"round": 2}\n')
    with pytest.raises(ResultsError, match=r"metrics\.jsonl, line 2: is corrupt"):
        RunFolder.open(run.path)


def test_truncate_metrics_drops_what_a_resumed_run_repeats(run: RunFolder) -> None:
    for number in range(5):
        run.append_metrics({"round": number})
    run.truncate_metrics(after_round=2)
    run.append_metrics({"round": 3})
    assert run.metrics()["round"].tolist() == [0, 1, 2, 3]
    run.truncate_metrics(after_round=-1)
    assert run.metrics().empty
    assert run.last_round is None


def test_open_refuses_what_is_no_run_folder(tmp_path: Path, run: RunFolder) -> None:
    for path, message in [(tmp_path / "none", "no such folder"), (tmp_path, "not a run folder"),
                          (run.config_file, "not a folder")]:  # fmt: skip
        with pytest.raises(ResultsError, match=message):
            RunFolder.open(path)


def test_open_names_the_corrupt_or_missing_file(run: RunFolder) -> None:
    run.config_file.write_text('{\n"seed": 0,\n!}')
    with pytest.raises(ResultsError, match=r"config\.json, line 3: is corrupt"):
        RunFolder.open(run.path)
    run.config_file.write_text("[]")
    with pytest.raises(ResultsError, match=r"config\.json: is corrupt \(a JSON object"):
        RunFolder.open(run.path)
    run.config_file.write_text("{}")
    run.metrics_file.unlink()
    with pytest.raises(ResultsError, match=r"metrics\.jsonl: is missing"):
        RunFolder.open(run.path)


def test_default_run_path_is_stamped_and_free(tmp_path: Path) -> None:
    now = datetime(2026, 11, 20, 18, 33, 55)
    first = default_run_path(tmp_path, strategy="uedp", seed=0, now=now)
    assert first.name == "20261120-183355-uedp-seed0"
    RunFolder.create(first, config={}, environment={})
    second = default_run_path(tmp_path, strategy="uedp", seed=0, now=now)
    assert second.name == "20261120-183355-uedp-seed0-2"


def test_environment_names_versions_but_no_person_host_or_folder() -> None:
    described = environment.describe()
    assert described["libraries"]["numpy"] == np.__version__
    text = json.dumps(described)
    for secret in (os.uname().nodename, str(Path.home()), str(Path(environment.__file__).parents[2])):
        assert secret not in text


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_git_state_knows_clean_from_dirty_and_ignores_other_peoples_repositories(tmp_path: Path) -> None:
    assert environment.git_state(tmp_path) is None
    assert environment.history(tmp_path) == frozenset()
    _git(tmp_path, "init", "-q")
    (tmp_path / "fl_sim").mkdir()
    (tmp_path / "fl_sim" / "__init__.py").touch()
    assert environment.git_state(tmp_path) is None  # not tracked: fl_sim merely lies there
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "one")
    clean = environment.git_state(tmp_path)
    assert clean["dirty"] is False
    assert len(clean["commit"]) == 40
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "new.py").touch()
    assert environment.git_state(tmp_path) == clean
    assert environment.git_state(tmp_path, ("fl_sim", "benchmarks")) == {**clean, "dirty": True}
    (tmp_path / "fl_sim" / "new.py").touch()
    assert environment.git_state(tmp_path) == {**clean, "dirty": True}
    installed = tmp_path / "venv"
    (installed / "fl_sim").mkdir(parents=True)
    assert environment.git_state(installed) is None
    (installed / "fl_sim" / "__init__.py").touch()
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-q", "-m", "a copy inside another repository")
    assert environment.history(tmp_path) > {clean["commit"]}
    assert environment.git_state(installed) is None
