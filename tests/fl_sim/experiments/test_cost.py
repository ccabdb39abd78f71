"""The forecast of a run counts the sentences that its rounds compute; the path of its gradients is told beforehand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_sim
from fl_sim.cli.main import main
from fl_sim.clients.ghost_norms import NotCovered
from fl_sim.clients.gradients import ghost_pass
from fl_sim.clients.selection import select_for, thin
from fl_sim.clients.training import gradient_path_of
from fl_sim.config import EngineConfig, RunConfig
from fl_sim.experiments import cost as forecasts
from fl_sim.experiments.cost import (
    Forecast,
    expected_sentences,
    forecast,
    seconds_per_sentence,
    threads_of,
    workers_at_once,
    workers_of,
)
from fl_sim.experiments.plan.run_plan import Planned, plan_run
from fl_sim.reporting.report import full_report_text
from fl_sim.reporting.run_facts import read_facts
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.client_rules import ClippedGradients, LocalSteps
from tests import tiny
from tests.clients.models import models_to_try
from tests.e2e import small_runs
from tests.tiny import command_line

Capture = pytest.CaptureFixture[str]


def planned(ownership: Any, **settings: Any) -> tuple[RunConfig, Planned]:
    values = {name.replace("__", "."): value for name, value in settings.items()}
    config = RunConfig.from_mapping({"privacy.noise_multiplier": 50.0} | values)
    return config, plan_run(config, ownership)


@pytest.mark.sample(1)
@pytest.mark.system
@pytest.mark.parametrize(
    "settings",
    [
        {"privacy__q_s": 0.03},
        {"privacy__q_s": 0.1, "privacy__q_e": 0.5, "privacy__user_sentences": 6},
        {"privacy__strategy": "user_level", "privacy__q_u": 0.2, "local__epochs": 3},
    ],
    ids=str,
)
def test_expected_sentences_are_the_mean_of_rounds(settings: dict[str, Any]) -> None:
    ownership = fl_sim.open_corpus("bundled").ownership("train")
    _, plan = planned(ownership, **settings)
    mechanism = plan.plan.mechanism
    rule = mechanism.client_rule(mechanism.clip_norm)
    counts = []
    for server_round in range(1, 41):
        users = mechanism.cohort(0, server_round, ownership.num_users)
        runs = np.stack([users, users + 1], axis=1)
        selection = select_for(rule, ownership, runs, server_round)
        if plan.bounds.enforces:
            selection = thin(selection, plan.bounds.weights, server_round)
        counts.append(len(selection.sentences) * getattr(rule, "epochs", 1))
    assert expected_sentences(plan, ownership) == pytest.approx(np.mean(counts), rel=0.1)


def test_a_measured_batch_leaves_the_model_alone() -> None:
    model = models_to_try.small_gpt2(lora_rank=2)
    before = model.get_vector()
    assert 0 < seconds_per_sentence(model, models_to_try.examples(9, 12, 1, 20)) < 5
    assert (model.get_vector() == before).all()
    assert all(parameter.grad is None for parameter in model.module.parameters())
    assert seconds_per_sentence(model, []) == 0


@pytest.mark.nightly
def test_the_disk_includes_the_states_of_frozen_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of float16 a token: the file begins as a hole, and may fill."""
    ownership = fl_sim.open_corpus("bundled").ownership("train")
    monkeypatch.setattr(forecasts, "seconds_per_sentence", lambda model, sample, threads: 0.0)
    config, plan = planned(ownership, engine__name="inline")
    model, sample = models_to_try.small_gpt2(lora_rank=2, lora_layers=1), models_to_try.examples(10, 20)
    width = model.module.get_input_embeddings().weight.shape[1]  # type: ignore[operator,union-attr]
    whole = forecast(config, plan, ownership, model, sample, Path()).disk
    model.lower = None
    without = forecast(config, plan, ownership, model, sample, Path()).disk
    assert whole - without == ownership.num_sentences * 15 * 2 * width


def cost(monkeypatch: pytest.MonkeyPatch, seconds: float, **settings: Any) -> Forecast:
    ownership = fl_sim.open_corpus("bundled").ownership("train")
    monkeypatch.setattr(forecasts, "seconds_per_sentence", lambda model, sample, threads: seconds)
    config, plan = planned(ownership, engine__name="inline", privacy__q_s=0.05, **settings)
    return forecast(config, plan, ownership, models_to_try.small_gpt2(), [], Path())


@pytest.mark.system
def test_a_round_on_another_device_than_the_servers_has_no_forecast_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpus = cost(monkeypatch, 100.0, model__device="cuda")
    assert on_gpus.notes == ()
    assert " a round; about " in on_gpus.in_words()
    assert "in all" not in on_gpus.in_words()


@pytest.mark.parametrize(
    ("settings", "workers"),
    [
        ({"num_cpus": 8, "cpus_per_node": 2}, 4),
        ({"num_cpus": 2, "cpus_per_node": 0.5}, 4),
        ({"num_cpus": 3, "cpus_per_node": 0.3}, 10),
        ({"num_cpus": 8, "num_gpus": 2, "gpus_per_node": 0.6}, 2),
        ({"num_cpus": 8, "num_gpus": 1, "gpus_per_node": 0.3}, 3),
        ({"num_cpus": 8, "num_gpus": 4, "gpus_per_node": 2}, 2),
        ({"num_cpus": 8, "num_gpus": 4, "gpus_per_node": 1, "nodes": 3}, 3),
        ({"name": "inline", "num_cpus": 8}, 1),
    ],
)
def test_as_many_workers_compute_at_once_as_have_cores_and_gpus(settings: dict[str, Any], workers: int) -> None:
    engine = EngineConfig(**settings)
    assert workers_of(engine) == workers
    assert workers_at_once(engine) == min(workers, settings["num_cpus"])
    assert threads_of(engine) == max(1, settings.get("cpus_per_node", 1))


@pytest.mark.system
def test_a_long_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cost(monkeypatch, 1e-4).notes == ()
    long = cost(monkeypatch, 2.0)
    (note,) = long.notes
    assert note.startswith(f"The run may take {long.seconds * long.rounds / 3600:.1f} h. Fewer rounds or a lower rate")


def test_a_machine_too_small_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecasts, "_SERVER_BYTES", 1e12)
    monkeypatch.setattr(shutil, "disk_usage", lambda where: shutil._ntuple_diskusage(10, 10, 0))
    memory, disk = cost(monkeypatch, 1e-4).notes
    assert memory.startswith("The run may need more memory than the ")
    assert disk.startswith("The run may need more disk than the 1 MiB that are free")


@pytest.mark.system
@pytest.mark.usefixtures("no_plots")
def test_a_piped_run_says_its_cost_and_its_rounds_in_lines(tmp_path: Path, capsys: Capture) -> None:
    corpus = small_runs.small_corpus(tmp_path / "corpus")
    settings = small_runs.settings(corpus, tmp_path / "run", rounds=4, **small_runs.QUICK_TO_LOAD)
    assert main(["run", *tiny.command_line(settings)]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note: ")]
    assert " sentences and about " in lines[0]
    assert " on disk" in lines[0]
    assert [line.partition(":")[0] for line in lines[1:]] == ["round 0 of 4", "round 1 of 4", "round 4 of 4"]
    assert "perplexity" in lines[1]
    assert "\x1b" not in "".join(lines)


pytestmark = pytest.mark.usefixtures("no_plots")


def run(corpus: Path, out: Path, **changes: Any) -> RunFolder:
    tiny = {"corpus.path": corpus, "out": out, "engine.name": "inline", "rounds": 1, "model.hidden": 8}
    tiny |= {"model.layers": 1, "model.heads": 1} | {key.replace("__", "."): value for key, value in changes.items()}
    assert main(["run", *command_line(tiny)]) == 0
    return RunFolder.open(out)


@pytest.mark.system
def test_the_fast_path_is_named(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(small, tmp_path / "out")
    assert (folder.result or {})["gradients"] == {"path": "fast"}
    assert "Gradients   fast path, many sentences in one pass" in full_report_text(read_facts(folder))
    assert ", fast path" in " ".join(capsys.readouterr().err.split())


@pytest.mark.system
def test_the_slow_path_says_why_and_how_long(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(model: object) -> None:
        raise NotCovered("its experts are no layer")

    monkeypatch.setattr(ghost_pass, "cover", refuse)
    folder = run(small, tmp_path / "out")
    recorded = (folder.result or {})["gradients"]
    assert (recorded["path"], recorded["reason"]) == ("slow", "its experts are no layer")
    assert read_facts(folder).record()["gradients"] == recorded
    assert "slow path, one sentence at a time: its experts are no layer" in full_report_text(read_facts(folder))
    errors = " ".join(capsys.readouterr().err.split())
    assert errors.index("Gradients are computed one sentence at a time (its experts are no layer).") < errors.index(
        ", slow path"
    )
    assert any("one sentence at a time" in line for line in json.loads(folder.result_file.read_text())["warnings"])


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        (ClippedGradients(q_e=1.0, q_s=1.0, user_clip=2.0, sentence_clip=1.0), True),
        (ClippedGradients(q_e=1.0, q_s=1.0, user_clip=np.inf), False),
        (LocalSteps(q_e=1.0, q_s=1.0, user_clip=1.0, epochs=1, batch_size=8), True),
        (LocalSteps(q_e=1.0, q_s=1.0, user_clip=1.0, epochs=2, batch_size=8), False),
        (LocalSteps(q_e=1.0, q_s=1.0, user_clip=1.0, epochs=1, batch_size=8, optimizer="adam"), False),
    ],
)
def test_which_rules_need_gradients_of_sentences_or_users(rule: Any, named: bool) -> None:
    path = gradient_path_of(models_to_try.small_gpt2(), rule)
    assert (path is not None and path.name == "fast") == named
