"""An experiment: made whole or not at all, left tidy, resumed only where it stays the same run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from fl_sim.clients.errors import ModelError
from fl_sim.clients.worker.workspace import open_workspace
from fl_sim.data_prep.corpus_writer import append_corpus, write_corpus
from fl_sim.data_prep.records import ChangedCorpusError, Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.engines import simulation
from fl_sim.engines.engine import Engine
from fl_sim.experiments.experiment import Experiment
from fl_sim.storage.run_claim import RunClaim
from fl_sim.storage.run_folder import ResultsError, RunFolder
from tests import tiny
from tests.tiny import configured

pytestmark = pytest.mark.usefixtures("no_plots")


class Broken(Exception):
    """Stands for anything that may go wrong."""


def breaks(*args: object, **settings: object) -> None:
    raise Broken


# Made whole or not at all


@pytest.mark.parametrize(
    "part",
    ["run_inputs.Corpus.open", "experiment.plan_run", "experiment.build_model", "training_text.encode_once",
     "run_record.environment.describe", "run_record.OpenRun.begin", "experiment.BoundedSumStrategy"],
)  # fmt: skip
def test_whatever_fails_leaves_everything_as_it_was(
    part: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a" / "b" / "out"
    if part.endswith("encode_once"):  # once into a folder that is there
        out.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(f"fl_sim.experiments.{part}", breaks)
    with pytest.raises(Broken):
        Experiment.create(configured(corpus, out))
    assert sorted(tmp_path.rglob("*")) == before
    RunClaim.claim(out).release()  # nobody holds it


def test_nodes_share_the_tokens_that_bounds_leave(corpus: Path, tmp_path: Path) -> None:
    """By numbers of sentences a user of thousands would count for thousands, though m of them take part."""
    bounds = {"privacy.user_sentences": 1, "privacy.entity_bound": "unbounded", "model.max_tokens": 8}
    experiment = Experiment.create(configured(corpus, tmp_path / "run", **bounds))
    federation = experiment._strategy.federation
    experiment.abandon(Broken())
    assert federation.sentences_per_user.max() > 1
    assert federation.load is not None
    assert federation.load.min() >= 3  # a word between its ends
    assert federation.load.max() <= 8 + 1e-9


@pytest.mark.system
def test_the_server_stays_on_the_cpu_while_workers_of_ray_have_the_gpus(corpus: Path, tmp_path: Path) -> None:
    """This machine has no GPU, so a model on one cannot be built."""
    on_gpus = configured(corpus, tmp_path / "run", **{"engine.name": "ray", "model.device": "cuda"})
    experiment = Experiment.create(on_gpus)
    workspace = json.loads(experiment._strategy.federation.workspace)
    assert (experiment._model.device.type, workspace["model"]["device"]) == ("cpu", "cuda")
    experiment.abandon(Broken())
    with pytest.raises(ModelError, match="device is 'cuda', but torch sees 0"):
        Experiment.create(configured(corpus, tmp_path / "inline", **{"model.device": "cuda"}))
    asked = on_gpus.changed({"engine.server_device": "cuda"})
    with pytest.raises(ModelError, match="device is 'cuda:1', but torch sees 0"):
        Experiment.create(asked, lambda engine: f"{engine.server_device}:1")


def test_an_engine_that_does_not_start(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_sim.engines.engine.Engine.run", breaks)
    with pytest.raises(Broken) as caught:
        simulation.run(configured(corpus, tmp_path / "out"))
    assert caught.value.__notes__ == ["no round was run, and no run folder is left"]
    assert not list(tmp_path.iterdir())


def test_a_run_that_breaks_says_what_is_left(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(Broken) as caught:
        simulation.run(configured(corpus, tmp_path / "out"), breaks)
    assert caught.value.__notes__ == [
        f"what was done is in {tmp_path / 'out'}; fl-sim resume {tmp_path / 'out'} goes on"
    ]
    assert len(RunFolder.open(tmp_path / "out").metrics()) == 1


# The corpus's tokens


@pytest.mark.system
def test_the_run_folder_keeps_no_text(corpus: Path, tmp_path: Path) -> None:
    experiment = Experiment.create(configured(corpus, tmp_path / "out"))
    assert (tmp_path / "out" / "encoded" / "train").is_dir()
    simulation.execute(experiment, Engine())
    assert not (tmp_path / "out" / "encoded").exists()
    for file in (path for path in (tmp_path / "out").rglob("*") if path.is_file()):
        if {"model", "checkpoint"} & set(file.parts):  # numbers, in which any three bytes come up
            continue
        for name in tiny.NAMES:
            assert name.encode() not in file.read_bytes(), file


def interrupted(corpus: Path | str, out: Path, **settings: Any) -> None:
    with pytest.raises(Broken):
        simulation.run(configured(corpus, out, **settings), breaks)


# Resuming


@pytest.mark.system
def test_a_run_can_be_resumed_from_anywhere(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    relative = os.path.relpath(corpus, tmp_path)
    interrupted(relative, tmp_path / "out")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert (simulation.resume("../out").result or {})["rounds"] == 2


def test_a_built_in_name_means_what_ships(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("small-gpt2", "bundled"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    settings = {"model.name": "small-gpt2", "model.tokenizer": "bundled"}
    experiment = Experiment.create(configured(corpus, tmp_path / "out", **settings))
    assert (experiment.config.model.name, experiment.config.model.tokenizer) == ("small-gpt2", "bundled")


@pytest.mark.nightly
def test_the_noise_of_a_target_is_found_once(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(corpus, tmp_path / "out", **{"privacy.target_epsilon": 1.0})
    recorded = json.loads((tmp_path / "out" / "config.json").read_text())["plan"]["noise_multiplier"]
    monkeypatch.setattr("fl_sim.strategies.accounting.accountant.solve", breaks)
    folder = simulation.resume(tmp_path / "out")
    assert (folder.result or {})["plan"]["noise_multiplier"] == recorded
    assert 0.995 <= (folder.result or {})["epsilon_any"] <= 1


def edit(file: Path, *keys: str, value: Any) -> None:
    content = json.loads(file.read_text())
    section = content
    for key in keys[:-1]:
        section = section[key]
    section[keys[-1]] = value
    file.write_text(json.dumps(content))


@pytest.mark.system
@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("plan", "noise_multiplier"), 9.0, "plan of the run can no longer"),
        (("plan", "q_s"), 0.01, "plan of the run can no longer"),
        (("run", "privacy", "q_s"), 0.01, "plan of the run can no longer"),
        (("run", "privacy", "sigma"), 1, r"config\.json: 'privacy\.sigma' is not a configuration key"),
        (("run", "rounds"), 0, r"config\.json: rounds is 0"),
        (("run",), [], r"config\.json: is corrupt"),
        (("corpus", "fingerprint"), "0" * 64, "has changed since"),
    ],
)
def test_another_run_is_not_resumed(
    keys: tuple[str, ...], value: Any, words: str, corpus: Path, tmp_path: Path
) -> None:
    interrupted(corpus, tmp_path / "out", **{"privacy.noise_multiplier": 3.0})
    edit(tmp_path / "out" / "config.json", *keys, value=value)
    with pytest.raises(ResultsError, match=words):
        Experiment.resume(tmp_path / "out")
    assert not (tmp_path / "out" / "encoded").exists()


@pytest.mark.system
def test_a_run_goes_on_with_the_corpus_as_it_was_when_it_began(
    corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grows = tiny.tiny_corpus(tmp_path / "grows")
    interrupted(grows, tmp_path / "out")
    newcomers = [Sentence("train", f"new {user}", "Ada came.", (Mention(0, 3, "PER"),)) for user in range(3)]
    append_corpus(Corpus.open(grows), newcomers, joined_at=2, name="newcomers")
    folder = simulation.resume(tmp_path / "out")
    assert "has grown; the run goes on with the corpus as it was" in caplog.text
    assert (folder.result or {})["corpus"]["users"] == tiny.USERS
    unchanged = simulation.run(configured(corpus, tmp_path / "unchanged"))
    assert (folder.result or {})["perplexity"] == (unchanged.result or {})["perplexity"]


def test_a_worker_refuses_a_corpus_that_was_prepared_anew(tmp_path: Path) -> None:
    experiment = Experiment.create(configured(tiny.tiny_corpus(tmp_path / "corpus"), tmp_path / "out"))
    spec = experiment._strategy.federation.workspace
    shutil.rmtree(tmp_path / "corpus")
    write_corpus(list(tiny._sentences(tiny.USERS, tiny.SENTENCES_EACH))[::-1], tmp_path / "corpus", name="tiny")
    with pytest.raises(ChangedCorpusError, match="the corpus has changed"):
        open_workspace(spec)
    experiment.abandon(Broken())


@pytest.mark.system
def test_an_accountant_that_says_something_else_does_not_go_on(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 1:
            raise Broken

    with pytest.raises(Broken):
        simulation.run(configured(corpus, tmp_path / "out", rounds=3), stop)
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    lines[-1] = json.dumps(last | {"epsilon_user_entity_max": last["epsilon_user_entity_max"] / 2})
    (tmp_path / "out" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(ResultsError, match=r"epsilon_user_entity_max of round 1 was recorded as .* and is .* now"):
        Experiment.resume(tmp_path / "out")


# Stopping


@pytest.mark.sample(1)
@pytest.mark.system
@pytest.mark.parametrize("at", [1, 2])
def test_a_requested_stop_is_an_interruption_that_can_be_resumed(at: int, corpus: Path, tmp_path: Path) -> None:
    settings = {"rounds": 4, "evaluation.every": 4, "checkpoint_every": 4}
    experiment = Experiment.create(configured(corpus, tmp_path / "out", **settings))

    def stop(row: Any) -> None:  # comes after the round's own decisions: the next round is the last
        experiment.stop_requested = row["round"] == at - 1

    folder = simulation.execute(experiment, Engine(), stop)
    result = folder.result or {}
    assert (result["stopped"], result["rounds"]) == ("interrupted", at)
    assert result["perplexity"] == folder.metrics()["perplexity"].iloc[-1]
    whole = simulation.run(configured(corpus, tmp_path / "whole", **settings))
    resumed = simulation.resume(tmp_path / "out")
    assert (resumed.result or {})["stopped"] == "rounds"
    assert (resumed.result or {})["perplexity"] == (whole.result or {})["perplexity"]
    assert (resumed.model_dir / "model.safetensors").read_bytes() == (
        whole.model_dir / "model.safetensors"
    ).read_bytes()


@pytest.mark.system
def test_one_process_at_a_time(corpus: Path, tmp_path: Path) -> None:
    interrupted(corpus, tmp_path / "out")
    first = Experiment.resume(tmp_path / "out")
    with pytest.raises(ResultsError, match="another process"):
        Experiment.resume(tmp_path / "out")
    simulation.execute(first, Engine())
    with pytest.raises(ResultsError, match="finished"):
        Experiment.resume(tmp_path / "out")
