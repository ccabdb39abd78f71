"""Whole runs of both tasks: a classifier on a custom encoder, and AWD-LSTM with the paper's dropouts."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from fl_sim.cli.main import main
from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.models.tokenizers import load_tokenizer
from fl_sim.clients.tasks import Classification
from fl_sim.config import RunConfig
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.engines import simulation
from fl_sim.reporting.plots import write_run_plots
from fl_sim.reporting.report import report_text
from fl_sim.reporting.run_facts import read_facts
from fl_sim.storage.run_folder import RunFolder
from tests.e2e import small_runs

pytestmark = pytest.mark.usefixtures("no_plots")

TOPICS = {
    "money": ("sold her shares in the bank", "paid the loan and the rent", "asked for a lower price"),
    "sport": ("won the race on Sunday", "scored a late goal", "trained with the team"),
}
NAMES = ("Ada", "Blaise", "Carl", "Emmy")


def topical(users: int = 8, each: int = 6) -> Iterator[Sentence]:
    """Yield sentences of two topics, and some without a topic."""
    for split in ("train", "validation"):
        for user in range(users) if split == "train" else reversed(range(users)):
            for number in range(each):
                name = NAMES[(user + number) % len(NAMES)]
                topic = list(TOPICS)[(user * number) % 2]
                predicate = TOPICS[topic][number % 3]
                target = None if number == each - 1 else topic
                yield Sentence(split, f"user {user}", f"{name} {predicate}.", (Mention(0, len(name), "PER"),), target)


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "topics"
    write_corpus(topical(), folder, name="topics")
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(2)
        transformers.BertModel(
            transformers.BertConfig(
                vocab_size=4096, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
                max_position_embeddings=48,
            )
        ).save_pretrained(folder)  # fmt: skip
    load_tokenizer("bundled").save_pretrained(folder)
    return folder


def run(out: Path, settings: dict[str, Any]) -> RunFolder:
    words = small_runs.command_line({"engine.name": "inline", "out": out} | settings)
    assert main(["run", "--quiet", *words]) == 0
    return RunFolder.open(out)


def classification(corpus: Path, bert: Path, **changes: Any) -> dict[str, Any]:
    base = {"task": "classification", "corpus.path": corpus, "model.name": bert, "rounds": 2}
    return base | {key.replace("__", "."): value for key, value in changes.items()}


@pytest.mark.system
def test_a_noiseless_classifier_learns_its_corpus(topics: Path, bert: Path, tmp_path: Path) -> None:
    settings = classification(
        topics, bert, privacy__strategy="noiseless", privacy__q_s=1.0, rounds=30, server__optimizer="adam",
        server__learning_rate=0.02, evaluation__every=10,
    )  # fmt: skip
    folder = run(tmp_path / "out", settings)
    result = folder.result or {}
    assert result["task"] == "classification"
    assert result["initial_error"] == result["majority_error"]  # a head of zeros always predicts the first class
    assert result["error"] < 0.1 < result["initial_error"]
    assert "perplexity" not in result
    saved = load_model(ModelSpec(name=str(folder.model_dir)), 0, Classification(("money", "sport")))
    np.testing.assert_array_equal(saved.get_vector(), small_runs.model_of(folder))


@pytest.mark.sample(1)
@pytest.mark.system
@pytest.mark.parametrize(
    "tuning", [{"model__tune": "head"}, {"model__tune": "bias"}, {"model__lora_rank": 2}], ids=["head", "bias", "lora"]
)
def test_a_private_classifier(
    topics: Path, bert: Path, tmp_path: Path, tuning: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(tmp_path / "out", classification(topics, bert, **tuning))
    metrics = folder.metrics()
    assert metrics["error"].between(0, 1).all()
    assert metrics["epsilon_user"].iloc[-1] < math.inf
    facts = read_facts(folder).record()
    assert (facts["task"], facts["utility"]["metric"]) == ("classification", "error")
    assert any("classes" in note for note in facts["not_covered"])
    text = report_text(read_facts(folder))
    assert "Utility: held-out error" in text
    assert "by always the most frequent class" in " ".join(text.split())
    write_run_plots(folder)
    assert sorted(p.name for p in folder.plots_dir.iterdir()) == [
        "epsilon_against_steps.png", "utility_against_epsilon.png"
    ]  # fmt: skip
    assert not (folder.path / "encoded").exists()  # features are as private as the text
    capsys.readouterr()
    assert main(["leak", str(folder.path), "--quiet", "--json", "--max-users", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["holds"]


@pytest.mark.system
def test_the_user_level_baseline_classifies(topics: Path, bert: Path, tmp_path: Path) -> None:
    settings = classification(topics, bert, privacy__strategy="user_level", privacy__q_u=0.5, model__tune="head")
    assert (run(tmp_path / "out", settings).result or {})["error"] <= 1


@pytest.mark.nightly
def test_features_are_cached_on_request_and_change_nothing(topics: Path, bert: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    kept = classification(topics, bert, model__tune="head", corpus__feature_cache=cache)
    first = run(tmp_path / "first", kept)
    written = {path.name: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert len(written) == 2  # of the training and of the held-out sentences
    again = run(tmp_path / "again", kept)
    fresh = run(tmp_path / "fresh", classification(topics, bert, model__tune="head"))
    assert {path.name: path.stat().st_mtime_ns for path in cache.iterdir()} == written
    assert small_runs.measured(first) == small_runs.measured(again) == small_runs.measured(fresh)


@pytest.mark.system
def test_states_of_lower_layers_are_kept_on_request_and_change_nothing(topics: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    upper = {"model.name": "small-gpt2", "model.hidden": 16, "model.lora_rank": 2, "model.lora_layers": 1}
    settings = {"corpus.path": topics, "rounds": 2, "privacy.q_s": 0.3, "seed": 3} | upper
    first = run(tmp_path / "first", settings | {"corpus.feature_cache": cache})
    assert [path.suffix for path in cache.iterdir()] == [".bin", ".bin"]  # of the training and the held-out sentences
    assert {path.stat().st_mode & 0o777 for path in cache.iterdir()} == {0o600}
    again = run(tmp_path / "again", settings | {"corpus.feature_cache": cache})
    fresh = run(tmp_path / "fresh", settings)
    assert small_runs.measured(first) == small_runs.measured(again) == small_runs.measured(fresh)
    assert not (fresh.path / "encoded").exists()
    assert "has no effect" not in " ".join((first.result or {})["warnings"])


@pytest.mark.nightly
def test_a_classifier_that_was_killed_ends_the_same(topics: Path, bert: Path, tmp_path: Path) -> None:
    """Its features were lost and are computed again."""
    settings = classification(topics, bert, rounds=3, model__tune="head", engine__name="inline")
    config = {key: str(value) if isinstance(value, Path) else value for key, value in settings.items()}

    def stop(row: Mapping[str, Any]) -> None:
        if row["round"] == 1:
            shutil.rmtree(tmp_path / "killed" / "encoded")
            raise KeyError("killed")

    with pytest.raises(KeyError, match="killed"):
        simulation.run(RunConfig.from_mapping(config | {"out": str(tmp_path / "killed")}), stop)
    assert main(["resume", "--quiet", str(tmp_path / "killed")]) == 0
    whole = run(tmp_path / "whole", settings)
    assert small_runs.measured(RunFolder.open(tmp_path / "killed")) == small_runs.measured(whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"corpus__path": "plain"}, "task is 'classification' and corpus.path is"),
        ({"task": "next-word"}, "reads both ways"),
        ({"task": "regression"}, "task is 'regression'; allowed: next-word, classification"),
        ({"model__tune": "head", "model__lora_rank": 2}, "model.lora_rank is 2 and model.tune is 'head'"),
        ({"model__dropout": 0.5}, "model.dropout is 0.5; allowed for"),
        ({"model__name": "gpt5-unheard-of"}, "cannot load model 'gpt5-unheard-of'"),
    ],
)
def test_what_cannot_run_is_one_line(
    topics: Path,
    bert: Path,
    tmp_path: Path,
    changes: dict[str, Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    small_runs.small_corpus(tmp_path / "plain")
    settings = classification(topics, bert, **changes) | {"engine.name": "inline", "out": tmp_path / "out"}
    assert main(["run", *small_runs.command_line(settings)]) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
def test_awd_lstm_with_the_papers_dropouts(topics: Path, tmp_path: Path) -> None:
    settings = {
        "corpus.path": topics, "model.name": "awd-lstm", "model.hidden": 24, "model.embedding": 16,
        "model.dropout": 1.0, "rounds": 2,
    }  # fmt: skip
    folder = run(tmp_path / "out", settings)
    result = folder.result or {}
    for name in ("perplexity_per_token", "perplexity_per_word", "initial_perplexity", "unigram_perplexity"):
        assert math.isfinite(result[name])
    assert result["perplexity_per_word"] > result["perplexity_per_token"] == result["perplexity"]
    assert "per word)" in report_text(read_facts(folder))
    assert small_runs.measured(run(tmp_path / "again", settings)) == small_runs.measured(folder)
    plain = run(tmp_path / "plain", settings | {"model.dropout": 0.0})
    assert (plain.result or {})["perplexity"] != result["perplexity"]
    assert (plain.result or {})["initial_perplexity"] == result["initial_perplexity"]


@pytest.mark.system
def test_awd_lstm_classifies(topics: Path, tmp_path: Path) -> None:
    settings = {
        "task": "classification", "corpus.path": topics, "model.name": "awd-lstm", "model.hidden": 24,
        "model.embedding": 16, "model.dropout": 1.0, "rounds": 1,
    }  # fmt: skip
    folder = run(tmp_path / "out", settings)
    assert (folder.result or {})["error"] <= 1
    assert json.loads((folder.model_dir / "spec.json").read_text())["classes"] == ["money", "sport"]


@pytest.mark.system
def test_words_are_separated_by_white_space_and_each_sentence_has_an_end(topics: Path, tmp_path: Path) -> None:
    """Check that both perplexities agree: nats are divided by tokens, or by words with one end per sentence."""
    settings = {"corpus.path": topics, "model.hidden": 16, "model.heads": 2, "model.layers": 1, "rounds": 1}
    result = run(tmp_path / "out", settings).result or {}
    held_out = [s for s in topical() if s.split == "validation"]
    words = sum(len(s.text.split()) + 1 for s in held_out)
    model = load_model(ModelSpec(hidden=16, heads=2, layers=1), 0)
    tokens = sum(len(e) - 1 for e in model.encode([s.text for s in held_out]))
    nats = tokens * math.log(result["perplexity_per_token"])
    assert math.log(result["perplexity_per_word"]) == pytest.approx(nats / words, rel=1e-6)
