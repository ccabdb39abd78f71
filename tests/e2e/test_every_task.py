"""Whole runs of other kinds: a classifier on a custom encoder, a corpus without entities."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
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
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.reporting.plots import write_run_plots
from fl_sim.reporting.report import full_report_text
from fl_sim.reporting.run_facts import read_facts
from fl_sim.storage.run_folder import RunFolder
from tests.e2e import small_runs
from tests.tiny import NAMES, command_line

pytestmark = pytest.mark.usefixtures("no_plots")

TOPICS = {
    "money": ("sold her shares in the bank", "paid the loan and the rent", "asked for a lower price"),
    "sport": ("won the race on Sunday", "scored a late goal", "trained with the team"),
}


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
    words = command_line({"engine.name": "inline", "out": out} | settings)
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
    text = full_report_text(read_facts(folder))
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


def test_an_encoder_predicts_no_next_word(bert: Path, tmp_path: Path, refusal: Callable[..., str]) -> None:
    words = ["--model", str(bert), "--engine", "inline", "--out", str(tmp_path / "out")]
    assert "reads both ways" in refusal("run", "--corpus", str(small_runs.shared_corpus()), *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.system
def test_a_run_on_a_deidentified_corpus_speaks_of_no_entity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "made"
    words = ["--out", str(made), "--mode", "category", "--json"]
    assert main(["corpus", "deidentify", str(small_runs.shared_corpus()), *words]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["replaced"] == said["mentions"] > 0
    assert said["fingerprint"] == Corpus.open(made).fingerprint
    assert len(said["warnings"]) == 1
    folder = run(tmp_path / "run", small_runs.settings(made, tmp_path / "run", privacy__strategy="user_level"))
    text = " ".join(full_report_text(read_facts(folder)).split())
    assert "2 of 2 rounds, finished" in text
    assert "+ an entity" not in text
    assert "Warning De-identified (category): what the tagger missed stands in the text as it was." in text
