"""fl-sim generate: texts of a run's model, what is said of their guarantee, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fl_sim
from fl_sim.cli.main import main
from fl_sim.clients import generation
from fl_sim.clients.generation import Continuation
from fl_sim.clients.models.losses import held_out
from fl_sim.experiments.released_model import released_model
from fl_sim.formats import format_epsilon
from fl_sim.storage.run_folder import RunFolder
from tests.e2e.small_runs import QUICK_TO_LOAD, configuration, finished_run, shared_corpus

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("no_plots")]

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of uedp on AWD-LSTM with an average of iterates, and one with adapters."""
    folder = tmp_path_factory.mktemp("runs")
    changes: dict[str, dict[str, Any]] = {
        "uedp": QUICK_TO_LOAD | {"averaging__kind": "exponential"},
        "lora": {"model__lora_rank": 2, "rounds": 1, "server__learning_rate": 0.1},
    }
    for name, change in changes.items():
        fl_sim.run(configuration(shared_corpus(), folder / name, **change))
    return {name: folder / name for name in changes}


def report(run: Path, *words: str, capsys: Capture) -> dict[str, Any]:
    assert main(["generate", str(run), "--json", "--quiet", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_texts_have_the_epsilon_of_the_run(runs: dict[str, Path], capsys: Capture) -> None:
    facts = report(runs["uedp"], "--prompt", "Ada saw", "--prompt", "Rain", "--samples", "3", capsys=capsys)
    assert [(text["prompt"], text["sample"]) for text in facts["texts"]] == [
        (prompt, sample) for prompt in ("Ada saw", "Rain") for sample in range(3)
    ]
    epsilon = fl_sim.open_run(runs["uedp"]).epsilon
    privacy = facts["privacy"]
    assert privacy["guarantee"] is True
    assert privacy["epsilon"] == {name: epsilon[name] for name in ("epsilon_any", "epsilon_user")}
    assert f"ε {format_epsilon(epsilon['epsilon_any'])} for any user together with any entity" in privacy["note"]
    assert "post-processing" in privacy["note"]


def test_texts_of_a_noiseless_run_are_not_protected(capsys: Capture) -> None:
    run = finished_run("noiseless").path
    assert main(["generate", str(run), "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "no guarantee" in said
    assert "Do not release these texts" in said
    assert "post-processing" not in said
    assert report(run, capsys=capsys)["privacy"]["epsilon"] == {}


@pytest.mark.parametrize("name", ["uedp", "lora"])
def test_the_model_is_the_one_that_the_run_evaluated_last(name: str, runs: dict[str, Path]) -> None:
    run = RunFolder.open(runs[name])
    corpus = fl_sim.open_corpus(shared_corpus())
    model = released_model(run)
    measured = held_out(model, model.encode(corpus.texts("validation").to_pylist()))
    loss = measured.nats.sum() / measured.predictions.sum()
    assert loss == pytest.approx(run.metrics()["loss"].iloc[-1], rel=1e-6)
    assert loss != pytest.approx(run.metrics()["loss"].iloc[0], rel=1e-6)


def test_texts_can_be_prepared_as_a_corpus(runs: dict[str, Path], tmp_path: Path, capsys: Capture) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Ada saw\n\nMail to ada@example.org\n", encoding="utf-8")  # an entity for any tagger
    file = tmp_path / "texts.jsonl"
    words = ["--prompts", str(prompts), "--samples", "12", "--max-tokens", "8", "--out", str(file)]
    facts = report(runs["uedp"], *words, capsys=capsys)
    assert (facts["written"], facts["texts"]) == (24, [])
    assert file.stat().st_mode & 0o077 == 0
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    out = tmp_path / "corpus"
    columns = ["--text-column", "text", "--user-column", "user", "--test-fraction", "0.3", "--no-split-sentences"]
    assert main(["prepare", "jsonl", "--source", str(file), "--out", str(out), *columns]) == 0
    corpus = fl_sim.open_corpus(out)
    texts = [text for split in corpus.splits for text in corpus.texts(split).to_pylist()]
    users = {user for split in corpus.splits for user in corpus.users(split)["user"]}
    assert users == {f"sample {n}" for n in range(12)}
    written = [re.sub(r"[\x00-\x1f\x7f]", " ", row["text"]) for row in rows]  # as the reader cleans any text
    assert sorted(" ".join(text.split()) for text in texts) == sorted(" ".join(text.split()) for text in written)


def test_control_characters_are_escaped(
    runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    text = Continuation(0, 0, "Ada", "\x1b[2J\nleft\u202e", 3, "length")
    monkeypatch.setattr(generation, "generate", lambda *words, **options: [text])
    assert main(["generate", str(runs["uedp"]), "--quiet"]) == 0
    assert capsys.readouterr().out.startswith("1: Ada\\u001b[2J\\nleft\\u202e\n")
    assert report(runs["uedp"], capsys=capsys)["texts"][0]["text"] == text.text


def test_a_ledger_that_was_cut_off_is_told_before_any_text_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str]
) -> None:
    run = finished_run(folder=tmp_path / "run")
    ledger = run.path / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    monkeypatch.setattr(generation, "generate", None)
    assert "is cut off" in refusal("generate", str(run.path))


def test_runs_without_a_model_of_theirs(tmp_path: Path, refusal: Callable[..., str]) -> None:
    run = finished_run(folder=tmp_path / "run")
    weights = run.model_dir / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert "is not the file that the run wrote" in refusal("generate", str(run.path))
    run.result_file.unlink()
    assert "has no model yet; allowed: " in refusal("generate", str(run.path))
