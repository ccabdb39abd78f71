"""Models of one user are trained on the first half of the user's sentences and measured on the second."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fl_sim
from fl_sim.cli.main import main
from fl_sim.clients.models.losses import held_out
from fl_sim.clients.models.model_names import SMALL_GPT2
from fl_sim.experiments import personal_models
from fl_sim.experiments.personal_models import PersonalSettings, personal_changes
from fl_sim.experiments.released_model import released_model
from tests.e2e import small_runs

pytestmark = pytest.mark.usefixtures("no_plots")

Capture = pytest.CaptureFixture[str]
QUICK = {"steps": 3, "users": 3, "learning_rate": 1e-2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fl_sim.Run:
    folder = tmp_path_factory.mktemp("personal")
    corpus = small_runs.small_corpus(folder / "corpus")
    return fl_sim.run(small_runs.configuration(corpus, folder / "run", rounds=1, **small_runs.QUICK_TO_LOAD))


@pytest.mark.system
def test_the_run_and_its_start_on_the_second_halves(run: fl_sim.Run) -> None:
    facts = run.compare_personal(**QUICK).record()
    assert facts["trained"] == {"continued": "all parameters", "alone": "all parameters", "personal": "the biases"}
    corpus = fl_sim.open_corpus(run.config.corpus.path)
    ownership = corpus.ownership("validation")
    texts = corpus.texts("validation").to_pylist()
    model = released_model(run.folder)
    figures = []
    for user in range(ownership.num_users):
        ids, _ = ownership.sentences_of(np.array([user]))
        second = [texts[i] for i in ids[len(ids) // 2 :]]
        measured = held_out(model, model.encode(second))
        if len(ids) >= 2:
            figures.append(measured.nats.sum() / math.log(2) / sum(len(text.encode()) + 1 for text in second))
    assert set(np.round(facts["by_user"]["run"], 5)) <= set(np.round(figures, 5))
    assert len(facts["by_user"]["run"]) == facts["users"] == 3
    assert facts["figures"]["start"] != facts["figures"]["run"]
    for name in ("alone", "continued", "personal"):  # texts of small runs are much alike
        assert facts["differences"][name]["value"] < 0
        difference = facts["figures"][name]["value"] - facts["figures"]["run"]["value"]
        assert facts["differences"][name]["value"] == pytest.approx(difference)
    assert run.folder.personal is not None
    assert run.folder.personal_file.stat().st_mode & 0o077 == 0


def test_the_second_half_is_never_trained_on(run: fl_sim.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user starts from the same model, and no sentence is both trained and measured on."""
    trained: list[set[str]] = []
    starts: list[np.ndarray] = []

    def note(model: Any, sentences: Any, rule: Any, rng: Any) -> float:
        trained.append({example.tokens.tobytes() for example in sentences})
        starts.append(model.get_vector())
        model.set_vector(model.get_vector() + 1)
        return 0.0

    measured: list[set[str]] = []
    measure = personal_models.measure
    monkeypatch.setattr(personal_models, "local_steps", note)
    monkeypatch.setattr(
        personal_models,
        "measure",
        lambda model, text: measured.append({e.tokens.tobytes() for e in text.examples}) or measure(model, text),
    )
    done: list[tuple[int, int]] = []
    personal_models.compare_personal(run.folder, PersonalSettings(users=3), lambda *counts: done.append(counts))
    assert done == [(n, 9) for n in range(1, 10)]
    for number in range(0, 9, 3):
        assert all((starts[number] == start).all() for start in starts[number : number + 3])
    for own, before, after in zip(trained, measured[::2], measured[1::2], strict=True):
        assert before == after
        assert not own & before


def test_what_trains_on_top_of_a_run(run: fl_sim.Run) -> None:
    def changes(**model: Any) -> dict[str, Any]:
        task = model.pop("task", "next-word")
        settings = {"task": task, **{f"model.{name}": value for name, value in model.items()}}
        return personal_changes(fl_sim.RunConfig.from_mapping(settings), rank=3)

    assert changes(name=SMALL_GPT2) == {"tune": "full", "lora_rank": 3}
    assert changes(name=SMALL_GPT2, lora_rank=2) == {}
    assert changes(name="awd-lstm") == {"tune": "bias"}
    assert changes(name="minilm", tune="head", task="classification") == {}


@pytest.mark.system
def test_the_figures_stand_in_report_json_and_picture(run: fl_sim.Run, tmp_path: Path, capsys: Capture) -> None:
    picture = tmp_path / "users.png"
    flags = ["--personal", "--personal-users", "2", "--personal-steps", "2", "--picture", str(picture), "--x", "users"]
    assert main(["report", str(run.path), *flags, "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "held-out sentences of 6 users; in brackets 95 % intervals" in text
    assert "on the second half of the sentences of 2 held-out users" in text
    assert "no ε covers" in text
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert main(["report", str(run.path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["personal"]["users"] == 2
    assert facts["held_out"]["users"] == 6
    whole = run.facts()
    assert whole["held_out"]["metric"] == "bits_per_byte"
    report = " ".join(run.report().split())
    assert "deciles over users, bits per byte: " in report
    assert "on the second half of the sentences of 2 held-out users" in report
    assert "held-out metrics" in report.partition("Not covered by ε: ")[2]


def test_figures_of_another_model_are_not_shown(run: fl_sim.Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    folder = fl_sim.open_run(copy).folder
    folder.write_personal({"model_files": {"model.safetensors": "of an earlier round"}})
    assert folder.personal is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--personal-users", "2"], "--personal-users is given without --personal"),
        (["--personal", "--personal-users", "0"], "users is 0; allowed: "),
        (["--personal", "--personal-most-sentences", "1"], "most_sentences is 1; allowed: "),
        (["--personal", "--personal-learning-rate", "nan"], "learning_rate is nan; allowed: "),
        (
            ["--personal", "--personal-learning-rate", "1e38"],
            "learning_rate is 1e+38; allowed: a number above 0, at most 1e+06",
        ),
        (["--personal", "--personal-rank", "100000"], "rank is 100000; allowed: an integer from 1 to 4096"),
        (["--picture", "users.txt"], "--picture is users.txt; allowed: "),
    ],
)
def test_bad_input_is_one_line(flags: list[str], words: str, run: fl_sim.Run, capsys: Capture) -> None:
    assert main(["report", str(run.path), *flags]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_user_s_model_that_diverges_is_one_line(
    run: fl_sim.Run, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge = lambda model, *others: model.set_vector(model.get_vector() * math.nan)  # noqa: E731
    monkeypatch.setattr("fl_sim.experiments.personal_models.local_steps", diverge)
    flags = [
        "--personal",
        "--quiet",
        "--personal-users",
        "1",
        "--personal-steps",
        "9",
        "--personal-learning-rate",
        "1e6",
    ]
    assert main(["report", str(run.path), *flags]) == 2
    words = "learning_rate is 1e+06, with which a user's model is not finite after 9 steps; allowed: a lower one\n"
    assert capsys.readouterr().err == f"fl-sim report: {words}"


@pytest.mark.system
def test_a_run_without_figures_and_a_changed_start(run: fl_sim.Run, tmp_path: Path, capsys: Capture) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    computation = json.loads((copy / "computation.json").read_text(encoding="utf-8"))
    computation["parts"]["initial_model"] = "0" * 64
    (copy / "computation.json").write_text(json.dumps(computation), encoding="utf-8")
    assert main(["report", str(copy), "--personal", "--quiet"]) == 2
    assert "whose weights are not those with which the run began" in capsys.readouterr().err
    for name in ("result.json", "personal.json"):
        (copy / name).unlink(missing_ok=True)
    assert main(["report", str(copy), "--users"]) == 2
    assert "has recorded nothing by user; allowed: " in capsys.readouterr().err


def test_missing_adapters_are_said_before_training(
    run: fl_sim.Run, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setattr(personal_models, "personal_changes", lambda config, rank: {"lora_rank": rank})
    monkeypatch.setattr(personal_models, "released_model", lambda run: pytest.fail("a model was loaded to be trained"))
    assert main(["report", str(run.path), "--personal", "--personal-rank", "3"]) == 2
    assert "lora_rank is 3, which needs peft: pip install 'fl-sim[lora]'" in capsys.readouterr().err
