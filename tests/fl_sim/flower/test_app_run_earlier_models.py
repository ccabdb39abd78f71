"""A training from the model of an earlier run counts that run's releases, too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

import fl_sim
from fl_sim.auditing.ledger_audit import audit_ledger
from fl_sim.experiments.plan.lineage import Earlier
from fl_sim.flower.app_run import USER_UNIT, PrivateSettings
from fl_sim.flower.private_messages import ArrayLayout
from fl_sim.flower.user_level_strategy import _model_digest
from fl_sim.reporting.report import report_text
from fl_sim.reporting.run_facts import read_facts
from fl_sim.storage.run_folder import RunFolder, rows_of
from fl_sim.strategies.accounting.guarantee import ProtectedUnit
from fl_sim.strategies.ledger import HEAD_FILE, LEDGER_FILE, Ledger
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.primitives.limits import PrivacyError
from tests.fl_sim.flower.apps import interrupted, nodes_of, train


def test_a_second_training_from_the_first_ones_model_states_epsilon_of_both(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", logger="flwr")
    first, alone = train(tmp_path / "first", nodes_of(4), rounds=2)
    _, second = train(tmp_path / "second", nodes_of(4), rounds=2, seed=1, initial=first.arrays)
    assert "The initial model is that of an earlier run in this folder of runs: ε counts its 2 releases" in caplog.text
    stated = fl_sim.account_runs([tmp_path / "second"])
    assert stated["releases"] == 4
    assert second.epsilon() == pytest.approx(stated["epsilon_user"], rel=1e-3)
    assert second.epsilon() > 1.2 * alone.epsilon()
    assert [head["run"] for head in Ledger.read(tmp_path / "second").ancestors] == [Ledger.read(tmp_path / "first").run]
    rows = rows_of(tmp_path / "second", 2)
    assert alone.epsilon() * 0.99 < rows[0]["epsilon_user"] < rows[1]["epsilon_user"] < rows[2]["epsilon_user"]
    facts = read_facts(RunFolder.open(tmp_path / "second")).record()
    assert (facts["ledger"]["problem"], facts["epsilon"]["epsilon_user"]) == (None, second.epsilon())
    assert "that of an earlier run" in " ".join(report_text(read_facts(RunFolder.open(tmp_path / "second"))).split())
    audit = audit_ledger(tmp_path / "second")
    assert audit.holds, audit.record()


def test_a_third_training_counts_both_before_it_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    one, _ = train(tmp_path / "1", nodes_of(3), rounds=1)
    two, _ = train(tmp_path / "2", nodes_of(3), rounds=1, seed=1, initial=one.arrays)
    changes = {"rounds": 2, "seed": 2, "initial": two.arrays}
    interrupted(tmp_path / "3", nodes_of(3), 2, **changes)
    _, third = train(tmp_path / "3", nodes_of(3), resume=True, **changes)
    stated = fl_sim.account_runs([tmp_path / "3"])
    assert stated["releases"] == 4
    assert third.epsilon() == pytest.approx(stated["epsilon_user"], rel=1e-3)


def test_what_epsilon_does_not_hold_for_is_said_of_a_run_that_was_killed_too(tmp_path: Path) -> None:
    changes = {"rounds": 2, "delta": 0.5, "forward_metrics": True}
    one, _ = train(tmp_path / "1", nodes_of(3), **changes)
    interrupted(tmp_path / "2", nodes_of(3), 2, seed=1, initial=one.arrays, **changes)
    killed = read_facts(RunFolder.open(tmp_path / "2"))
    train(tmp_path / "2", nodes_of(3), seed=1, resume=True, **changes)
    ended, first = (read_facts(RunFolder.open(tmp_path / name)) for name in "21")
    for words in ("not below 1/N", "follow from the seed", "leave the nodes unprotected", "that of an earlier run"):
        assert words in " ".join(killed.warnings), words
        assert words in " ".join(ended.warnings), words
    stated = "The guarantee assumes that N and all rates are"  # the model is that of private releases, which ε counts
    assert [any(text.startswith(stated) for text in run.not_covered) for run in (killed, ended, first)] == [1, 1, 0]


def test_a_target_includes_the_releases_before() -> None:
    class Known(Earlier):
        def noise_for(self, plan: PrivacyPlan, target: float, metric: str, unit: ProtectedUnit) -> float:
            assert (plan.rounds, target, metric, unit) == (7, 3.0, "user", USER_UNIT)
            return 3.25

    settings = PrivateSettings(population=10, sampling_rate=0.5, clip_norm=1.0, target_epsilon=3.0)
    assert settings.plan(7, Known()).mechanism.noise_multiplier == 3.25


def test_a_model_of_any_round_and_any_type_of_floats_is_known(tmp_path: Path) -> None:
    models: list[ArrayRecord] = []
    train(tmp_path / "1", nodes_of(3), rounds=2, evaluate_fn=lambda server_round, arrays: models.append(arrays))
    singles = {name: Array(array.numpy().astype("float32")) for name, array in models[1].items()}
    _, second = train(tmp_path / "2", nodes_of(3), rounds=1, seed=1, initial=ArrayRecord(singles))
    assert len(Ledger.read(tmp_path / "2").ancestors) == 1
    assert second.epsilon() > rows_of(tmp_path / "1", 2)[2]["epsilon_user"]


def test_a_model_is_known_in_any_order_of_its_arrays() -> None:
    arrays = {"weight": np.array([[1.0, -0.0], [0.0, 2.0]]), "bias": np.array([0.0, 3.0])}
    records = [ArrayRecord({name: Array(arrays[name]) for name in names}) for names in (arrays, reversed(arrays))]
    first, second = (_model_digest(ArrayLayout.of(record), record) for record in records)
    assert first == second
    other = ArrayRecord({"weight": Array(arrays["weight"] + 1)})
    assert _model_digest(ArrayLayout.of(other), other) != first


@pytest.mark.parametrize("seed", [0, None])
def test_a_model_that_the_app_kept_before_a_stop_is_known_whether_the_run_went_on_or_not(
    tmp_path: Path, seed: int | None
) -> None:
    kept: list[ArrayRecord] = []

    def keeping(server_round: int, arrays: ArrayRecord) -> None:
        kept.append(arrays)
        if server_round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "1", nodes_of(3), rounds=2, evaluate_fn=keeping, seed=seed)
    _, second = train(tmp_path / "2", nodes_of(3), rounds=1, seed=1, initial=kept[-1])
    train(tmp_path / "1", nodes_of(3), rounds=2, seed=seed, resume=True)  # without a seed, round 2 has another model
    _, third = train(tmp_path / "3", nodes_of(3), rounds=1, seed=2, initial=kept[-1])
    assert len(Ledger.read(tmp_path / "2").ancestors) == len(Ledger.read(tmp_path / "3").ancestors) == 1
    assert third.epsilon() >= second.epsilon() > rows_of(tmp_path / "1", 1)[1]["epsilon_user"]


@pytest.mark.parametrize("name", ["0", "9"])
def test_of_copies_of_an_earlier_run_the_longer_counts(tmp_path: Path, name: str) -> None:
    """Whichever of the folders is read last."""
    first, _ = train(tmp_path / "1", nodes_of(3), rounds=2)
    older = shutil.copytree(tmp_path / "1", tmp_path / name)
    lines = (older / LEDGER_FILE).read_bytes().splitlines(keepends=True)[:2]
    (older / LEDGER_FILE).write_bytes(b"".join(lines))
    head = {"run": Ledger.read(tmp_path / "1").run, "entries": 1, "last": json.loads(lines[1])["hash"]}
    (older / HEAD_FILE).write_text(json.dumps(head))
    train(tmp_path / "2", nodes_of(3), rounds=1, seed=1, initial=first.arrays)
    assert [before["entries"] for before in Ledger.read(tmp_path / "2").ancestors] == [2]


def test_the_seed_of_a_run_before_is_refused(tmp_path: Path) -> None:
    first, _ = train(tmp_path / "1", nodes_of(3), rounds=1)
    with pytest.raises(PrivacyError, match=r"seed is 0, which the run .*1 that trained the initial model also has"):
        train(tmp_path / "2", nodes_of(3), rounds=1, initial=first.arrays)
    assert not (tmp_path / "2").exists()
