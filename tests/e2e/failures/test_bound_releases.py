"""A release is bound to what it was computed from: no two sums meet the same noise, and each is another release."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_sim.clients.models.language_model import LanguageModel
from fl_sim.config import read_by, run_keys
from fl_sim.engines import simulation
from fl_sim.experiments import run_record
from fl_sim.experiments.run_record import Record
from fl_sim.storage.open_run import NOT_RELEASED, released_settings
from fl_sim.storage.run_folder import ResultsError, RunFolder
from fl_sim.strategies.aggregation import BoundedSumStrategy
from fl_sim.strategies.ledger import HEAD_FILE, LEDGER_FILE, Ledger
from tests.e2e.small_runs import Crash, configuration, crashed, measured

pytestmark = pytest.mark.usefixtures("no_plots")

Sums = list[tuple[int, np.ndarray, np.ndarray]]
Change = Callable[[dict[str, Any]], None]


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Sums:
    """What is released: round, sum, noisy sum."""
    add, seen = BoundedSumStrategy._add_noise, list[Any]()

    def recording(self: Any, server_round: int, total: np.ndarray, *others: Any) -> float:
        before = total.copy()
        norm = add(self, server_round, total, *others)
        seen.append((server_round, before, total.copy()))
        return norm

    monkeypatch.setattr(BoundedSumStrategy, "_add_noise", recording)
    return seen


def crash(*arguments: object) -> None:
    raise Crash


def other_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move every sum as little as another number of nodes does."""
    summed = BoundedSumStrategy._sum

    def moved(self: Any, replies: Any) -> tuple[np.ndarray, float]:
        total, votes = summed(self, replies)
        total[0] += 1e-9
        return total, votes

    monkeypatch.setattr(BoundedSumStrategy, "_sum", moved)


def edited(folder: Path, name: str, change: Change) -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


def refused(folder: Path, message: str) -> None:
    before = (folder / LEDGER_FILE).read_bytes()
    with pytest.raises(ResultsError, match=message) as caught:
        simulation.resume(folder)
    assert "\n" not in str(caught.value)
    assert (folder / LEDGER_FILE).read_bytes() == before


def faster(config: dict[str, Any]) -> None:
    config["run"]["server"]["learning_rate"] = 3.0


# --- what a run is bound to ------------------------------------------------------------------------------------------


def test_settings_edited_before_the_first_checkpoint_are_refused(corpus: Path, tmp_path: Path) -> None:
    """The rounds 2 and 3 would meet the noise that they met before, with other sums."""
    out = crashed(corpus, tmp_path / "run")
    edited(out, "config.json", faster)
    refused(out, r"config\.json: was changed after the run's last checkpoint")


@pytest.mark.system
def test_a_run_killed_before_it_was_bound_is_bound_when_it_resumes(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = simulation.run(configuration(corpus, tmp_path / "whole"))
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("fl_sim.experiments.experiment.Experiment._announce", crash)
        patched.setattr("fl_sim.storage.run_claim.RunClaim.discard", lambda claim: claim.release())
        with pytest.raises(Crash):
            simulation.run(configuration(corpus, out))
    (out / "computation.json").unlink()
    bound = Ledger.read(out)
    shutil.rmtree(out / "encoded")
    for name in (LEDGER_FILE, HEAD_FILE):
        (out / name).unlink()
    assert bound.computation != Ledger.create(out).computation == ""
    assert measured(simulation.resume(out)) == measured(whole)
    assert Ledger.read(out).computation


@pytest.mark.system
@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("initial model", (LanguageModel, "weights", lambda self: iter([np.ones(3)]))),
        ("code", (run_record, "RELEASE_FORMAT", 0)),
        ("code", (run_record, "noise_digest", lambda: "another sampler")),
    ],
)
def test_another_model_or_code_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, change: tuple[Any, str, Any]
) -> None:
    out = crashed(corpus, tmp_path / "run")
    monkeypatch.setattr(*change)
    refused(out, f"{part} is not that of the run's beginning")


@pytest.mark.system
def test_public_names_that_were_edited_are_refused(corpus: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("Ada\n")
    out = crashed(corpus, tmp_path / "run", privacy__public_names=str(names))
    names.write_text("Blaise\n")
    refused(out, "was recorded as .* and is .* now|selection is not that of the run's beginning")


def test_every_setting_binds_but_presentation_and_placement(corpus: Path) -> None:
    adapters = {"model__lora_rank": 2, "model__lora_layers": 1, "model__begin_token": "a", "model__end_token": "b"}
    adapters |= {"model__batch_tokens": 64, "model__checkpointing": True, "model__tf32": True}
    adapters |= {"model__frozen_precision": "bfloat16"}
    bound = released_settings(configuration(corpus, Path("run"), **adapters))
    read = {key for key in run_keys() if not key.startswith("privacy.") or "uedp" in read_by(key)}
    assert "privacy.clipping" in bound
    assert read - bound.keys() == {key for key in read if {key, key.partition(".")[0]} & NOT_RELEASED}
    assert not {key for key in bound if key.startswith(("engine.", "evaluation."))}


@pytest.mark.system
def test_the_ledger_alone_does_not_tell_the_corpus(corpus: Path, tmp_path: Path) -> None:
    """It may be given away, and who knows two corpora must not learn which one it was."""
    heads = [Ledger.read(simulation.run(configuration(corpus, tmp_path / name)).path) for name in "ab"]
    assert heads[0].computation != heads[1].computation
    fingerprint = Record.read(RunFolder.open(tmp_path / "a")).fingerprint
    assert fingerprint not in (tmp_path / "a" / LEDGER_FILE).read_text() + (tmp_path / "a" / HEAD_FILE).read_text()


@pytest.mark.system
def test_runs_with_one_seed_and_other_settings_have_independent_noise(
    corpus: Path, tmp_path: Path, released: Sums
) -> None:
    """Equal sums of round 1 and other sums of round 2: the difference of the releases must have noise in both."""
    rounds = []
    for name, rate in (("slow", 0.002), ("fast", 3.0)):
        released.clear()
        simulation.run(configuration(corpus, tmp_path / name, rounds=2, server__learning_rate=rate))
        rounds.append(list(released))
    for (number, one, noisy_one), (_, other, noisy_other) in zip(*rounds, strict=True):
        assert (number == 1) == bool((one == other).all())
        assert abs(np.corrcoef(noisy_one - one, noisy_other - other)[0, 1]) < 0.1


# --- a round with another sum ----------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_another_sum_gets_other_noise_and_another_entry(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, released: Sums
) -> None:
    out = crashed(corpus, tmp_path / "run")
    first = list(released)
    released.clear()
    other_sums(monkeypatch)
    run = simulation.resume(out)
    for (number, one, noisy_one), (repeated, other, noisy_other) in zip(first, released, strict=False):
        assert number == repeated
        assert number > 1 or 0 < np.linalg.norm(one - other) < 2e-9  # later ones differ because the model does
        noises = noisy_one - one, noisy_other - other
        assert abs(np.corrcoef(*noises)[0, 1]) < 0.1  # it was 1: the difference of the releases had no noise
    assert [entry.round for entry in Ledger.read(out).entries] == [1, 2, 3, 1, 2, 3, 4]
    assert (run.result or {})["releases"] == 7
