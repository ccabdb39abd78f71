"""A run whose model is no longer finite stops and says so."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fl_sim.api.runs import open_run
from fl_sim.cli.main import main
from fl_sim.clients.models.frozen_head import has_finite_scores
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.tasks import Classification, HeldOut
from fl_sim.engines import simulation
from fl_sim.experiments import evaluation
from fl_sim.storage.run_folder import DIVERGED, ResultsError, RunFolder
from fl_sim.strategies.ledger import Ledger
from tests.e2e.small_runs import QUICK_TO_LOAD, Crash, configuration, crash_after, settings
from tests.tiny import command_line

TOO_FAST = {"server__learning_rate": 1e300, **QUICK_TO_LOAD}
Capture = pytest.CaptureFixture[str]


@pytest.mark.sample(1)
@pytest.mark.parametrize("changes", [TOO_FAST, {"server__learning_rate": 1e38}], ids=["parameters", "scores"])
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_run_stops_after_the_round_in_which_it_diverges(
    changes: dict[str, Any], corpus: Path, tmp_path: Path, no_plots: None, capsys: Capture
) -> None:
    out = tmp_path / "run"
    assert main(["run", "--quiet", *command_line(settings(corpus, out, rounds=3, **changes))]) == 3
    printed = capsys.readouterr()
    assert "1 of 3 rounds, diverged" in printed.out
    assert re.search(r"^  held-out perplexity +not finite ", printed.out, re.MULTILINE)
    assert printed.err.startswith("diverged in round 1; ")
    assert printed.err.count("\n") == 1
    run = open_run(out)
    result = run.result or {}
    assert (result["stopped"], result["rounds"], result["releases"]) == ("diverged", 1, 1)
    assert math.isnan(result["perplexity"])
    assert math.isfinite(result["initial_perplexity"])
    assert len(Ledger.read(out).entries) == 1
    assert run.finished
    assert run.diverged
    assert run.report() in printed.out
    assert (out / "summary.txt").read_text() == run.report(full=True)
    assert main(["report", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["stopped"], facts["utility"]["final"]) == ("diverged", "nan")
    assert main(["resume", str(out)]) == 2
    assert capsys.readouterr().err == f"fl-sim resume: {out}: the run diverged in round 1 and cannot go on\n"


@pytest.mark.system
def test_a_run_killed_after_it_diverged_finishes_and_releases_nothing_more(
    corpus: Path, tmp_path: Path, no_plots: None
) -> None:
    out = tmp_path / "run"
    with pytest.raises(Crash):
        simulation.run(configuration(corpus, out, rounds=3, **TOO_FAST), on_row=crash_after(1))
    assert RunFolder.open(out).result is None
    assert simulation.resume(out).diverged
    assert len(Ledger.read(out).entries) == 1
    with pytest.raises(ResultsError, match="diverged in round 1 and cannot go on"):
        simulation.resume(out)


@pytest.mark.system
def test_an_initial_model_that_is_not_finite_is_refused(
    corpus: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    model = load_model(ModelSpec(hidden=8, layers=1, heads=1), seed=0)
    vector = model.get_vector()
    vector[0] = math.nan
    model.set_vector(vector)
    model.save(tmp_path / "model")
    (tmp_path / "model" / "spec.json").unlink()  # a model of somebody else's
    words = ["run", "--quiet", "--model", str(tmp_path / "model")]
    changes = {"out": tmp_path / "run", "corpus.path": corpus, "engine.name": "inline"}
    error = refusal(*words, *command_line(changes))
    assert error.endswith("whose parameters or scores are not finite; allowed: a model that has not diverged\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.system
def test_a_last_held_out_loss_that_is_not_finite_is_no_reason_to_stop_but_said(
    corpus: Path, tmp_path: Path, no_plots: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held-out text is private, so it must not decide how many rounds there are."""
    measure = evaluation.measure
    calls = []

    def not_finite_at_last(*arguments: Any) -> HeldOut:
        calls.append(1)
        figures = measure(*arguments)
        return replace(figures, losses=math.nan * figures.losses) if len(calls) in (2, 4) else figures

    monkeypatch.setattr(evaluation, "measure", not_finite_at_last)
    run = simulation.run(configuration(corpus, tmp_path / "run", rounds=3, **QUICK_TO_LOAD))
    assert [math.isfinite(value) for value in run.measured("loss")] == [True, False, True, False]
    assert (run.result or {})["stopped"] == DIVERGED
    assert (run.result or {})["rounds"] == 3
    assert "held_out" not in (run.result or {})


SPECS: dict[str, ModelSpec] = {
    "transformer": ModelSpec(hidden=8, layers=1, heads=1),
    "adapters": ModelSpec(hidden=8, layers=1, heads=1, lora_rank=2),
    "recurrent": ModelSpec(name="awd-lstm", hidden=8, layers=1, embedding=8),
    "features": ModelSpec(hidden=8, layers=1, heads=1, tune="head"),
}


@pytest.mark.parametrize(("kind", "value"), list(zip(SPECS, (math.nan, math.inf) * 2, strict=True)))
def test_one_parameter_that_is_not_finite_is_noticed(kind: str, value: float) -> None:
    model: LanguageModel = load_model(SPECS[kind], 0, Classification(["a", "b"]) if kind == "features" else None)
    assert has_finite_scores(model)
    vector = model.get_vector()
    vector[-1] = value
    model.set_vector(vector)
    assert not has_finite_scores(model)


def test_pretraining_that_diverges_leaves_no_model(tmp_path: Path, capsys: Capture) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "model"
    text.write_text("boats sail on the sea\n" * 100)
    tiny = ["--hidden", "8", "--layers", "1", "--heads", "1", "--epochs", "1"]
    assert main(["corpus", "pretrain", str(text), "--out", str(out), *tiny, "--learning-rate", "1e35"]) == 2
    assert "fl-sim corpus pretrain: --learning-rate is 1e+35, at which the model diverged" in capsys.readouterr().err
    assert not out.exists()
