"""An encoder that a run trained under uedp: two promises stated apart, and a run without its ledger is refused."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fl_sim.cli import main
from fl_sim.config import ConfigError
from fl_sim.experiments.privacy_spent import account_for, read_ledgers
from fl_sim.reporting.run_facts import LEFT_OUT
from fl_sim.research.representations.config import load_mapping
from fl_sim.research.representations.experiment_record import summary
from fl_sim.research.representations.representation_experiment import run
from fl_sim.research.representations.trained_run import guarantee_of_run
from fl_sim.storage.run_folder import ResultsError
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.ledger import LEDGER_FILE, LedgerError
from tests.e2e.small_runs import finished_run


@pytest.fixture(scope="module")
def trained() -> Path:
    """A finished run of two rounds."""
    return finished_run().path


def values(trained: Path, source: Path, **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "method": "robust",
        "data": {"name": "dpnr-ag", "source": str(source)},
        "encoder": {"kind": "table", "run": str(trained), "max_tokens": 32},
        "training": {"epochs": 1, "batch_size": 64},
        "privacy": {"epsilon": 0.5},
        "attacks": {"leakage": False, "mdl": False},
    }
    return base | changes


@pytest.mark.nightly
def test_both_promises_stand_apart(trained: Path, small_persons: Path) -> None:
    record = run(load_mapping(values(trained, small_persons)))
    assert record["dimensions"] == 16  # of the run's model
    assert record["privacy"]["epsilon_corrected"] == pytest.approx(16 * 0.5)
    told = record["privacy_of_training"]
    entries = read_ledgers([trained])
    result = json.loads((trained / "result.json").read_text())
    user = Adjacency(result["user_sentences"])
    expected = account_for(entries, user, user, result["plan"]["delta"], None)["epsilon_user"]
    assert told["epsilon_user"] == pytest.approx(expected)
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert told["epsilon_user"] == pytest.approx(last["epsilon_user"], rel=1e-3)  # as the run's report had it
    assert told["entities"]["p95"]["epsilon"] == pytest.approx(last["epsilon_user_entity_p95"], rel=1e-3)
    assert told["releases"] == 2
    said = summary(record)
    assert "protects its own training data" in said
    assert "ε proven    8.00 for any two texts" in said


@pytest.mark.nightly
def test_the_guarantee_is_the_ledger_s_and_not_the_configuration_s(
    trained: Path, small_persons: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(trained, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    config["plan"]["noise_multiplier"] = 1000.0
    (copy / "config.json").write_text(json.dumps(config))
    record = run(load_mapping(values(copy, small_persons)))
    assert record["privacy_of_training"]["epsilon_user"] > 0.1, "noise of 1,000 would give next to nothing"


def test_a_run_on_text_without_entities_covers_none(trained: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(trained, tmp_path / "copy")
    result = json.loads((copy / "result.json").read_text())
    nobody = {"users": 0, "sentences_per_user": 0, "sentences": None, "weighted": False}
    (copy / "result.json").write_text(json.dumps({**result, "reach": dict.fromkeys(result["reach"], nobody)}))
    told = guarantee_of_run(copy)
    assert math.isfinite(told["epsilon_user"])
    assert {row[name] for row in told["entities"].values() for name in ("epsilon", "epsilon_robust")} == {math.inf}


def test_a_run_without_a_guarantee_is_not_said_to_protect(small_persons: Path) -> None:
    said = summary(run(load_mapping(values(finished_run("noiseless").path, small_persons))))
    assert "(noiseless, small, 2 releases in its ledger) guarantees nothing for its own training data\n" in said


def test_what_the_epsilon_of_training_does_not_cover_stands_under_it(
    trained: Path, small_persons: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(trained, tmp_path / "copy")
    result = json.loads((copy / "result.json").read_text())
    told = {"warnings": ["settings chosen on this corpus"], "initial_model": {"left_out": True}, "public_entities": 3}
    (copy / "result.json").write_text(json.dumps({**result, **told}))
    record = run(load_mapping(values(copy, small_persons)))
    left_out, listed, chosen = record["privacy_of_training"]["warnings"]
    assert (left_out, chosen) == (LEFT_OUT, "settings chosen on this corpus")
    assert listed.startswith("Not protected: entities on a list of public names (3,")
    assert f"\n            Warning: {listed}\n" in summary(record)


def test_a_run_without_its_own_ledger_is_refused(trained: Path, small_persons: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(trained, tmp_path / "changed")
    ledger = changed / LEDGER_FILE
    ledger.write_text(ledger.read_text().replace('"noise_multiplier":', '"noise_multiplier":1'))
    with pytest.raises(LedgerError, match=r"was changed|is not"):
        run(load_mapping(values(changed, small_persons)))
    missing = shutil.copytree(trained, tmp_path / "missing")
    (missing / LEDGER_FILE).unlink()
    with pytest.raises(LedgerError, match="is missing"):
        run(load_mapping(values(missing, small_persons)))
    unfinished = shutil.copytree(trained, tmp_path / "unfinished")
    (unfinished / "result.json").unlink()
    with pytest.raises(ConfigError, match="allowed: a finished run"):
        run(load_mapping(values(unfinished, small_persons)))
    other = shutil.copytree(trained, tmp_path / "other")
    result = json.loads((other / "result.json").read_text())
    (other / "result.json").write_text(json.dumps({**result, "rounds": 1}))
    with pytest.raises(LedgerError, match="the model is that of round 1, the ledger ends with 2"):
        run(load_mapping(values(other, small_persons)))


def test_weights_that_the_run_did_not_leave_are_refused(trained: Path, small_persons: Path, tmp_path: Path) -> None:
    def refusal(name: str, change: Callable[[Path], object]) -> str:
        copy = shutil.copytree(trained, tmp_path / name)
        change(copy)
        with pytest.raises(ResultsError) as caught:
            run(load_mapping(values(copy, small_persons)))
        return str(caught.value)

    def flip(folder: Path) -> None:
        weights = folder / "model" / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)

    def forget(folder: Path) -> None:
        result = json.loads((folder / "result.json").read_text())
        del result["model_files"]
        (folder / "result.json").write_text(json.dumps(result))

    assert refusal("flipped", flip).endswith("is not the file that the run wrote; no ε of the run covers this model")
    assert "spec.json: is not" in refusal("removed", lambda folder: (folder / "model" / "spec.json").unlink())
    assert "adapter: is not" in refusal("added", lambda folder: (folder / "model" / "adapter").write_text("x"))
    assert "has no model_files" in refusal("older", forget)


def test_a_run_and_a_model_exclude_each_other(
    trained: Path, small_persons: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--set", f"encoder.run={trained}", "--set", "encoder.model=minilm", "--set", "privacy.epsilon=1"]
    assert main.main(["represent", "run", *flags]) == 2
    assert "allowed without encoder.model" in capsys.readouterr().err
