"""The card of a model: Hugging Face reads it, its ε is the model's, its code loads it, nothing in it is private."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

import fl_sim
from fl_sim.cli.main import main
from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.readers.prepared_corpus import FEWER
from fl_sim.data_prep.readers.reader import BY_PLACE
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.engines import simulation
from fl_sim.experiments.released_model import released_model
from fl_sim.formats import format_epsilon
from fl_sim.reporting.model_card import card_of
from fl_sim.reporting.run_facts import read_facts
from fl_sim.storage import model_files
from fl_sim.storage.run_folder import DIVERGED, Row, RunFolder
from tests import tiny
from tests.fl_sim.conftest import Capture

pytestmark = pytest.mark.usefixtures("no_plots")


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return simulation.run(configured(corpus, tmp_path_factory.mktemp("runs") / "first"))


def configured(corpus: Path, out: Path, **changes: Any) -> RunConfig:
    return tiny.configured(corpus, out, **{"model.name": "small-gpt2"} | changes)


def card(run: RunFolder) -> str:
    return (run.model_dir / "README.md").read_text(encoding="utf-8")


def load_as_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the code of a card in its folder; return its variables."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(folder)
    variables: dict[str, Any] = {}
    exec(code, variables)
    return variables


@pytest.mark.system
def test_hugging_face_reads_the_card(run: RunFolder) -> None:
    read = ModelCard.load(run.model_dir / "README.md").data.to_dict()
    assert read == {
        "library_name": "transformers",
        "license": "unknown",
        "pipeline_tag": "text-generation",
        "tags": ["federated-learning", "fl_sim", "differential-privacy"],
    }


def test_the_card_does_not_tell_that_a_run_diverged_for_held_out_text_may_say_so(run: RunFolder) -> None:
    facts = read_facts(run)
    assert card_of(run, facts.model_copy(update={"stopped": DIVERGED})) == card_of(run, facts)


@pytest.mark.system
def test_the_card_states_the_epsilon_of_the_model(run: RunFolder) -> None:
    last, said = run.metrics().iloc[-1], card(run)
    assert f"| any user together with any entity | {format_epsilon(last['epsilon_any'])} |" in said
    assert f"| any user | {format_epsilon(last['epsilon_user'])} |" in said
    for words in (
        "ε at δ = 1e-5", "It takes as known how many", "≤ 10 sentences with an entity, ≤ 32 sentences of a user",
        "noise multiplier z 4", "come from a seed", "Rounds: 2 of 2.", "The guarantee assumes public inputs",
    ):  # fmt: skip
        assert words in said


def test_a_card_without_an_epsilon_of_an_entity_promises_nothing_of_one(run: RunFolder) -> None:
    facts = read_facts(run)
    only_users = {
        name: math.inf if name.startswith(("epsilon_any", "epsilon_stated")) else value
        for name, value in facts.epsilon.items()
    }
    said = card_of(run, facts.model_copy(update={"epsilon": only_users}))
    assert "ε hides what the protected user wrote, that these sentences exist, and whom they mention." in said
    assert "No entity is protected: what several users say of one is not hidden." in said
    assert "privacy for users." in said
    for wrong in ("said with the protected entity", "Any entity: each one", "users and entities", "one entity at once"):
        assert wrong in card_of(run, facts)
        assert wrong not in said


def test_the_card_says_where_epsilon_is_not_of_the_source(run: RunFolder) -> None:
    facts = read_facts(run)
    said = card_of(run, facts.model_copy(update={"warnings": [BY_PLACE, FEWER.format(most=9), "δ is above 1/N"]}))
    assert f"* {BY_PLACE}\n* {FEWER.format(most=9)}\n" in said
    assert "δ is above 1/N" not in said


def test_nothing_private_is_in_the_card(run: RunFolder, corpus: Path) -> None:
    said, result = card(run), run.result or {}
    fingerprint = run.config["corpus"]["fingerprint"]
    assert [word for word in ("secret-notes", str(corpus.parent), fingerprint, *tiny.NAMES) if word in said] == []
    figures = {f"{v:.{digits}g}" for v in leaves(result | {"plan": 0, "guarantee": 0}) for digits in (3, 4, 5)}
    rows = [row for _, row in run.metrics().drop(columns=["epsilon_any", "epsilon_user"]).iterrows()]
    figures |= {f"{value:.{digits}g}" for row in rows for value in row for digits in (3, 4, 5)}
    fractions = {figure for figure in figures if "." in figure and not figure.startswith("0.0000")}
    assert len(fractions) > 50
    stated = {format_epsilon(run.metrics().iloc[-1][name]) for name in ("epsilon_any", "epsilon_user")}
    stated |= {f"{value:g}" for value in leaves(run.config["plan"])}  # a round of 0.1 s is no more than q_s of 0.1
    assert [figure for figure in fractions - stated if figure in re.findall(r"[\d.]+", said)] == []
    assert "seed0" not in said


def leaves(tree: Any) -> list[float]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, list):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree] if isinstance(tree, float) and math.isfinite(tree) else []


def test_the_code_loads_a_causal_model(run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    loaded = load_as_said(run.model_dir, monkeypatch)
    assert "The meeting" in capsys.readouterr().out
    assert loaded["tokenizer"].model_max_length == 32
    ours = load_model(ModelSpec(name=str(run.model_dir)), seed=0).module.state_dict()
    theirs = loaded["model"].state_dict()
    assert all(ours[name].equal(theirs[name]) for name in ours)
    assert len(loaded["tokenizer"]("word " * 100, truncation=True)["input_ids"]) == 32


@pytest.mark.system
def test_the_code_loads_adapters_on_a_folder(
    run: RunFolder, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "base"
    load_model(ModelSpec(name="small-gpt2", hidden=16, layers=1, heads=2, max_tokens=32), seed=1).save(base)
    (base / "pretraining.json").write_text("{}")
    changes = {"model.name": str(base), "model.lora_rank": 2, "seed": 5, "rounds": 1}
    adapted = simulation.run(configured(corpus, tmp_path / "adapted", **changes))
    said = card(adapted)
    assert "library_name: peft" in said
    assert str(tmp_path) not in said
    assert "base_model" not in said.split("---")[1]
    loaded = load_as_said(adapted.model_dir, monkeypatch)
    assert type(loaded["model"]).__name__ == "PeftModelForCausalLM"


@pytest.mark.system
@pytest.mark.parametrize(
    "model",
    [{"model.name": "small-gpt2-public", "model.lora_rank": 2}, {"model.name": "awd-lstm", "model.embedding": 8}],
)
def test_the_code_loads_what_transformers_cannot(
    model: dict[str, Any], corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    own = simulation.run(configured(corpus, tmp_path / "own", **model, rounds=1))
    assert "library_name: fl_sim" in card(own)
    loaded = load_as_said(own.model_dir, monkeypatch)
    assert capsys.readouterr().out
    assert loaded["model"].tokenizer.convert_ids_to_tokens(loaded["model"].bos_id) == "<|endoftext|>"


@pytest.mark.system
@pytest.mark.parametrize("model", [{}, {"model.name": "small-gpt2-public", "model.lora_rank": 2}])
def test_the_code_loads_a_classifier(
    model: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    sentences = [
        Sentence(split, f"user {user}", f"Ada saw {user} {what}.", (Mention(0, 3, "PER"),), target=what)
        for split in ("train", "validation")
        for user in range(6)
        for what in ("boats", "birds")
    ]
    write_corpus(iter(sentences), tmp_path / "classes", name="classes")
    config = configured(tmp_path / "classes", tmp_path / "run", task="classification", rounds=1, **model)
    classifier = simulation.run(config)
    assert "pipeline_tag: text-classification" in card(classifier)
    assert "The classes, their names and their number are public inputs, too." in card(classifier)
    loaded = load_as_said(classifier.model_dir, monkeypatch)
    assert set(json.loads(capsys.readouterr().out.replace("'", '"'))) == {"birds", "boats"}
    ours, text = released_model(classifier), ["It rained all day."]
    expected = ours.logits(ours.batch(ours.encode(text, [0])))[0, 0].softmax(-1)
    assert loaded["probabilities"].tolist() == pytest.approx(expected.tolist(), abs=1e-5)


# What the guarantee is


@pytest.mark.system
def test_a_model_without_privacy_says_so(corpus: Path, tmp_path: Path) -> None:
    said = card(simulation.run(configured(corpus, tmp_path / "run", **{"privacy.strategy": "noiseless", "rounds": 1})))
    assert "**No guarantee (ε = ∞).** The model may repeat private sentences. Do not release it." in said
    assert "differential-privacy" not in said
    assert "any user" not in said


@pytest.mark.system
def test_a_claim_follows_what_is_proven(corpus: Path, tmp_path: Path) -> None:
    changes = {"privacy.strategy": "published", "privacy.settings_from_corpus": True, "rounds": 1}
    run = simulation.run(configured(corpus, tmp_path / "run", **changes))
    said = card(run)
    claim = f"The UeDP paper claims ε {format_epsilon(run.metrics().iloc[-1]['epsilon_as_published'])}"
    assert said.index("| any user |") < said.index(claim)
    assert "Settings chosen on this corpus: not covered by ε." in said
    assert "Mechanism:" not in said


@pytest.mark.system
def test_secure_noise_and_a_bound_that_is_stated(corpus: Path, tmp_path: Path) -> None:
    changes = {
        "privacy.secure_noise": True, "privacy.known": "nothing", "privacy.population": 6, "anchor": "none",
        "privacy.entity_bound": 4, "privacy.missed_mentions": 2, "rounds": 1,
    }  # fmt: skip
    said = card(simulation.run(configured(corpus, tmp_path / "run", **changes)))
    assert "come from the operating system's generator" in said
    assert "come from a seed" not in said
    assert "It takes nothing as known but N." in said
    assert "| any user together with an entity within the stated bound |" in said
    assert "| the same, with the stated number of mentions missed by the tagger |" in said


@pytest.mark.system
def test_secure_noise_does_not_hide_that_of_an_earlier_seed(run: RunFolder, corpus: Path, tmp_path: Path) -> None:
    changes = {"privacy.secure_noise": True, "anchor": "none", "rounds": 1, "model.name": str(run.model_dir)}
    said = card(simulation.run(configured(corpus, tmp_path / "next", **changes)))
    assert "Noise and samples of the last training come from the operating system's generator" in said
    assert "**whoever finds the seed by it can compute that noise.**" in said
    assert "tagger of each of its runs finds" in said


@pytest.mark.nightly
def test_a_shipped_corpus_is_named(tmp_path: Path) -> None:
    changes = {"corpus.path": "bundled", "privacy.q_s": 0.01, "rounds": 1, "evaluation.max_sentences": 10}
    run = simulation.run(configured(tmp_path, tmp_path / "run", **changes))
    assert f"The corpus `bundled` that fl_sim ships, fingerprint `{run.config['corpus']['fingerprint']}`" in card(run)
    assert "language: en" in card(run)


@pytest.mark.system
def test_a_card_stays_true_after_resume(corpus: Path, tmp_path: Path) -> None:
    def stop(row: Row) -> None:
        if row["round"] == 1:
            experiment.stop_requested = True

    from fl_sim.engines.engine import Engine
    from fl_sim.experiments.experiment import Experiment

    experiment = Experiment.create(configured(corpus, tmp_path / "run", rounds=4))
    with Engine(experiment.config.placed_engine) as engine:
        simulation.execute(experiment, engine, stop)
    before = card(experiment.folder)
    assert "Rounds: 2 of 4; no ε covers the decision to stop." in before
    whole = simulation.resume(tmp_path / "run")
    said = card(whole)
    assert "Rounds: 4 of 4." in said
    assert "4 releases" in said
    assert f"any entity | {format_epsilon(whole.metrics().iloc[-1]['epsilon_any'])} |" in said
    assert f"any entity | {format_epsilon(whole.metrics().iloc[2]['epsilon_any'])} |" in before


# The card in the folder


def test_an_owner_may_edit_the_card(run: RunFolder) -> None:
    kept = card(run)
    try:
        (run.model_dir / "README.md").write_text("license: mine")
        released_model(run)
        assert len(model_files.read_model(run.model_dir).ancestors) == 1
        (run.model_dir / "README.md").unlink()  # or leave it out
        released_model(run)
    finally:
        (run.model_dir / "README.md").write_text(kept)


def test_a_pretrained_model_has_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    (tmp_path / "text.txt").write_text("It rained all day.\nAda left.\n" * 20)
    words = ["--hidden", "16", "--layers", "1", "--heads", "2", "--max-tokens", "32", "--epochs", "1"]
    assert main(["corpus", "pretrain", str(tmp_path / "text.txt"), "--out", str(tmp_path / "model"), *words]) == 0
    assert ModelCard.load(tmp_path / "model" / "README.md").data.library_name == "transformers"
    load_as_said(tmp_path / "model", monkeypatch)
    assert "without privacy: no guarantee (ε = ∞)" in (tmp_path / "model" / "README.md").read_text()


# A run's folder as a model


@pytest.mark.system
def test_the_folder_of_a_run_is_a_model(run: RunFolder, corpus: Path, tmp_path: Path) -> None:
    flags = tiny.command_line({"corpus.path": corpus, "engine.name": "inline", "rounds": 1, "seed": 7})
    assert main(["run", "--quiet", "--model", str(run.path), "--out", str(tmp_path / "next"), *flags]) == 0
    onward = fl_sim.open_run(tmp_path / "next")
    assert onward.config.model.name == str(run.model_dir)
    (head,) = (onward.result or {})["initial_model"]["composed"]
    assert head["run"] == (run.result or {})["ledger"]["run"]
    assert onward.epsilon["epsilon_any"] > run.metrics().iloc[-1]["epsilon_any"]
    assert "ε includes the earlier trainings of the initial model: 1." in card(onward.folder)
    assert "Began with: a model of its owner." in card(onward.folder)


def test_a_run_without_a_model_is_refused(run: RunFolder, corpus: Path, tmp_path: Path) -> None:
    for name in ("config.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes((run.path / name).read_bytes())
    with pytest.raises(ConfigError, match=r"a run without a model; allowed: a run that has ended"):
        simulation.run(configured(corpus, tmp_path / "next", **{"model.name": str(tmp_path)}))


def test_the_card_is_the_same_when_made_again(run: RunFolder) -> None:
    assert card_of(run, read_facts(run)) == card(run)
