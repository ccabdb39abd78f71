"""A run that starts from a trained model: every ε is that of both trainings, or the run is refused in one line."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fl_sim.cli.main import main
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.deidentify import deidentify
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.engines import simulation
from fl_sim.experiments import experiment
from fl_sim.experiments.plan.lineage import earlier_of
from fl_sim.experiments.privacy_spent import account_for, read_ledgers
from fl_sim.reporting.model_card import note_on_texts
from fl_sim.reporting.run_facts import LEFT_OUT, read_facts
from fl_sim.reporting.run_list import list_runs
from fl_sim.storage import model_files
from fl_sim.storage.run_folder import ResultsError, RunFolder
from fl_sim.strategies.accounting.accountant import composed_epsilon, epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.ledger import HEAD_FILE, LEDGER_FILE, Ledger, LedgerError
from tests import tiny

USER_SENTENCES = tiny.SENTENCES_EACH


@pytest.fixture(scope="module", autouse=True)
def without_plots() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fl_sim.reporting.plots.write_run_plots", lambda run: None)
        yield


@pytest.fixture(scope="module")
def trained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three rounds."""
    return run(corpus, tmp_path_factory.mktemp("runs") / "parent", rounds=3).path


@pytest.fixture
def parent(trained: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be spoilt."""
    return Path(shutil.copytree(trained, tmp_path / "parent"))


def configured(corpus: Path, out: Path, **settings: Any) -> RunConfig:
    base: dict[str, Any] = {"engine.name": "inline", "corpus.path": str(corpus), "rounds": 2, "out": str(out)}
    base |= {"privacy.q_e": 0.5, "privacy.q_s": 0.2, "evaluation.every": 9, "privacy.entity_bound": "unbounded"}
    base |= {"privacy.user_sentences": "corpus", "privacy.settings_from_corpus": True}
    if "model.name" not in settings:
        base |= tiny.MODEL
    return RunConfig.from_mapping(base | settings)


def run(corpus: Path, out: Path, **settings: Any) -> RunFolder:
    return simulation.run(configured(corpus, out, **settings))


def child_of(parent: Path, corpus: Path, out: Path, **settings: Any) -> RunFolder:
    return run(corpus, out, **{"model.name": str(parent / "model"), "seed": 1} | settings)


def events_of(folder: Path) -> dict:
    entries = Ledger.read(folder).entries
    return {entries[0].terms.mechanism.event(): len(entries)}


def composed(events: dict, adjacency: Adjacency) -> float:
    return composed_epsilon([(event, adjacency, count) for event, count in events.items()], 1e-5)


# --- both trainings together -----------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_every_figure_is_that_of_both_trainings(parent: Path, corpus: Path, tmp_path: Path) -> None:
    child = child_of(parent, corpus, tmp_path / "child", **{"privacy.noise_multiplier": 2.0})
    result, rows = child.result or {}, child.metrics()
    parent_run = RunFolder.open(parent)
    before, own = events_of(parent), events_of(child.path)
    user = Adjacency(USER_SENTENCES, weighted=True)
    both = Adjacency(USER_SENTENCES, ContributionBound(**result["reach"]["max"]), weighted=True)
    for name, adjacency in {"epsilon_user": user, "epsilon_user_entity_max": both}.items():
        for count in (1, 2):
            together = before | dict.fromkeys(own, count)
            assert rows[name][count] == pytest.approx(composed(together, adjacency), rel=2e-3)
        assert result[name] == rows[name][2] > rows[name][1]
    (event,) = before
    assert rows["epsilon_user"][0] == pytest.approx(epsilon(event, user, 3, 1e-5), rel=1e-3)
    robust = {event.robust(): count for event, count in (before | own).items()}
    assert result["epsilon_user_entity_robust_max"] == pytest.approx(composed(robust, both), rel=2e-3)
    assert "every ε is that of all of them together" in result["warnings"][0]
    assert "3 releases of one earlier run on this corpus" in result["warnings"][0]
    assumed = [sum("initial weights" in note for note in read_facts(of).not_covered) for of in (parent_run, child)]
    assert assumed == [1, 0]


@pytest.mark.nightly
def test_ledger_names_its_ancestors_and_account_counts_each_once(parent: Path, corpus: Path, tmp_path: Path) -> None:
    child = child_of(parent, corpus, tmp_path / "child")
    ledger, first = Ledger.read(child.path), Ledger.read(parent)
    assert [head["run"] for head in ledger.ancestors] == [first.run]
    grandchild = child_of(child.path, corpus, tmp_path / "grandchild", seed=2)
    assert [head["run"] for head in Ledger.read(grandchild.path).ancestors] == [first.run, ledger.run]
    user = Adjacency(USER_SENTENCES, weighted=True)
    for folders, releases in (
        ([child.path], 5),
        ([parent, child.path], 5),
        ([child.path, parent], 5),
        ([grandchild.path], 7),
        ([parent, grandchild.path, child.path], 7),
    ):
        account = account_for(read_ledgers(folders), user, user, 1e-5, None)
        assert account["releases"] == releases
    shutil.rmtree(parent)  # the child has copies of its own
    account = account_for(read_ledgers([child.path]), user, user, 1e-5, None)
    assert account["epsilon_user"] == pytest.approx((child.result or {})["epsilon_user"], rel=1e-3)


def stop_after(rounds: int) -> Callable[[Any], None]:
    def stop(row: Any) -> None:
        if row["round"] == rounds:
            os.kill(os.getpid(), signal.SIGINT)

    return stop


@pytest.mark.system
def test_a_target_and_a_budget_count_both_trainings(parent: Path, corpus: Path, tmp_path: Path) -> None:
    alone = (RunFolder.open(parent).result or {})["epsilon_user"]
    unit = {"privacy.target_unit": "user"}
    met = child_of(parent, corpus, tmp_path / "met", **unit, **{"privacy.target_epsilon": alone * 1.2}).result or {}
    assert alone * 1.19 < met["epsilon_user"] <= alone * 1.2
    cut = child_of(parent, corpus, tmp_path / "cut", **unit, **{"privacy.epsilon_budget": met["epsilon_user"]})
    assert (cut.result or {})["stopped"] == "epsilon_budget" or (cut.result or {})["rounds"] == 2
    for key in ("privacy.target_epsilon", "privacy.epsilon_budget"):
        with pytest.raises(ConfigError, match=f"{key} is .*initial model"):
            child_of(parent, corpus, tmp_path / "over", **unit, **{key: alone * 0.9})
    assert not (tmp_path / "over").exists()


@pytest.mark.system
@pytest.mark.parametrize("killed", [False, True])
def test_a_model_that_is_exchanged_before_it_is_read_is_refused(
    killed: bool, parent: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the run starts, or after it was killed in that: its releases would be more than ε counts."""
    longer = child_of(parent, corpus, tmp_path / "longer", seed=2).path
    started = {"model.name": str(parent / "model"), "seed": 1}
    build, config = experiment.build_model, configured(corpus, tmp_path / "child", **started)

    def exchanged(*arguments: Any) -> Any:
        if killed:
            os._exit(9)
        shutil.rmtree(parent / "model")
        shutil.copytree(longer / "model", parent / "model")
        return build(*arguments)

    monkeypatch.setattr(experiment, "build_model", exchanged)
    run_again: Callable[[], Any] = partial(simulation.run, config)
    if killed:
        if not (process := os.fork()):
            run_again()
        os.waitpid(process, 0)
        killed, run_again = False, partial(simulation.resume, tmp_path / "child")
    with pytest.raises(ResultsError, match="rests on other releases than when the run began"):
        run_again()


def test_a_noiseless_start_leaves_no_guarantee(corpus: Path, tmp_path: Path) -> None:
    bare = run(corpus, tmp_path / "bare", rounds=1, **{"privacy.strategy": "noiseless"})
    plain = {"privacy.q_e": 0.5}
    result = child_of(bare.path, corpus, tmp_path / "child", **plain).result or {}
    assert {value for name, value in result.items() if name.startswith("epsilon_")} == {math.inf}
    assert "no finite ε of the initial model can be computed at δ = 1e-05" in " ".join(result["warnings"])
    assert "privacy.delta" not in " ".join(result["warnings"])


@pytest.mark.nightly
def test_a_resumed_child_still_counts_its_parent(parent: Path, corpus: Path, tmp_path: Path) -> None:
    whole = child_of(parent, corpus, tmp_path / "whole", rounds=3)
    config = configured(corpus, tmp_path / "stopped", rounds=3, seed=1, **{"model.name": str(parent / "model")})
    simulation.run(config, stop_after(1))
    resumed = simulation.resume(tmp_path / "stopped")
    assert (resumed.result or {})["epsilon_user"] == (whole.result or {})["epsilon_user"]
    shutil.rmtree(tmp_path / "stopped" / "ancestors")
    (tmp_path / "stopped" / "result.json").unlink()
    with pytest.raises((ResultsError, LedgerError)):
        simulation.resume(tmp_path / "stopped")


# --- refused in one line ---------------------------------------------------------------------------------------------


def only(folder: Path, name: str) -> Path:
    (file,) = folder.glob(f"lineage/{name}")
    return file


def change_weights(model: Path) -> None:
    content = bytearray((model / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (model / "model.safetensors").write_bytes(content)


def change_a_line(model: Path) -> None:
    file = only(model, f"*/{LEDGER_FILE}")
    file.write_bytes(file.read_bytes().replace(b'"noise_multiplier":4.0', b'"noise_multiplier":9.0'))


def cut_off(model: Path) -> None:
    """A consistent ledger of one release less, which the index does not name."""
    file, head = only(model, f"*/{LEDGER_FILE}"), only(model, f"*/{HEAD_FILE}")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]))
    values = json.loads(head.read_bytes())
    last = json.loads(lines[-1])["previous"]
    head.write_text(json.dumps(values | {"entries": len(lines) - 2, "last": last}))


def change_the_index(model: Path) -> None:
    file = model / "lineage" / "lineage.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"runs": []}))


def widen_the_bounds(model: Path) -> None:
    file = model / "lineage" / "owner.json"
    file.write_text(file.read_text().replace('"user_sentences": 4', '"user_sentences": 1'))


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "no lineage": (lambda model: shutil.rmtree(model / "lineage"), "lineage: is missing"),
    "no lineage, no spec": (
        lambda model: (shutil.rmtree(model / "lineage"), (model / "spec.json").unlink()),
        "lineage: is missing",
    ),
    "no index": (lambda model: (model / "lineage" / "lineage.json").unlink(), "lineage.json: is missing"),
    "no ledger": (lambda model: only(model, f"*/{LEDGER_FILE}").unlink(), f"{LEDGER_FILE}: is missing"),
    "no head": (lambda model: only(model, f"*/{HEAD_FILE}").unlink(), f"{HEAD_FILE}: is missing"),
    "no bounds": (lambda model: (model / "lineage" / "owner.json").unlink(), "owner.json: is missing"),
    "line changed": (change_a_line, "line 2: was changed"),
    "a release less": (cut_off, "is not the ledger that"),
    "index changed": (change_the_index, "lineage.json: was changed"),
    "bounds changed": (widen_the_bounds, "owner.json: was changed"),
    "weights changed": (change_weights, "model.safetensors: is not the file that its run wrote"),
    "file added": (lambda model: (model / "more.safetensors").write_text("x"), "more.safetensors: is not the file"),
    "no JSON": (lambda model: (model / "lineage" / "lineage.json").write_bytes(b"\xff{"), "lineage.json: is corrupt"),
}


@pytest.mark.system
@pytest.mark.parametrize("fault", SPOILT)
def test_a_lineage_that_is_missing_or_changed_is_refused(
    fault: str, parent: Path, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, message = SPOILT[fault]
    spoil(parent / "model")
    flags = {"engine.name": "inline", "corpus.path": corpus, "model.name": parent / "model", "seed": 1, "rounds": 1}
    assert main(["run", "--out", str(tmp_path / "child"), *tiny.command_line(flags)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert "privacy.initial_model = 'disjoint'" in line
    assert not (tmp_path / "child").exists()


@pytest.mark.system
@pytest.mark.parametrize(
    ("statement", "lost"),
    [("composed", None), ("disjoint", None), ("disjoint", "owner.json"), ("disjoint", "lineage.json")],
)
def test_the_seed_of_an_earlier_run_is_refused(
    statement: str, lost: str | None, parent: Path, corpus: Path, tmp_path: Path
) -> None:
    """Two sums with the same noise differ by a sum without any, whatever is said of the corpora."""
    if lost is not None:
        (parent / "model" / "lineage" / lost).unlink()
    said = {"privacy.initial_model": statement}
    with pytest.raises(ConfigError, match="seed is 0, which a run that trained the initial model"):
        child_of(parent, corpus, tmp_path / "child", seed=0, **said)
    assert not (tmp_path / "child").exists()
    elsewhere = tiny.tiny_corpus(tmp_path / "elsewhere", users=8)  # this very corpus is not disjoint
    assert child_of(parent, elsewhere, tmp_path / "child", seed=0, **said, **{"privacy.secure_noise": True}).result


# --- disjoint, as the owner states -----------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.system
@pytest.mark.parametrize("fault", [None, "no lineage", "weights changed", "a release less"])
def test_a_stated_disjoint_start_does_not_compose(
    fault: str | None, parent: Path, corpus: Path, tmp_path: Path
) -> None:
    if fault is not None:
        SPOILT[fault][0](parent / "model")
    disjoint, elsewhere = {"privacy.initial_model": "disjoint"}, tiny.tiny_corpus(tmp_path / "elsewhere", users=8)
    if fault is None:
        with pytest.raises(ConfigError, match="was trained on this very corpus, on its source, or on what was made"):
            child_of(parent, corpus, tmp_path / "same", **disjoint)
        config = RunConfig.from_mapping({"model.name": f"{parent}/model", "seed": 1, **disjoint})
        with pytest.raises(ConfigError, match="was trained on this very corpus"):  # it has grown since
            earlier_of(config, "grown", frozenset({Corpus.open(corpus).fingerprint}))
        copy, _ = deidentify(Corpus.open(corpus), tmp_path / "copy")
        of_copy = run(copy.path, tmp_path / "of-copy", seed=3, **{"privacy.strategy": "noiseless"})
        config = RunConfig.from_mapping({"model.name": f"{of_copy.path}/model", "seed": 2, **disjoint})
        with pytest.raises(ConfigError, match="or on what was made of either"):
            earlier_of(config, "another", frozenset({Corpus.open(corpus).fingerprint}))
    child = child_of(parent, elsewhere, tmp_path / "child", **disjoint)
    result = child.result or {}
    ((event, count),) = events_of(child.path).items()
    assert result["epsilon_user"] == pytest.approx(
        epsilon(event, Adjacency(USER_SENTENCES, weighted=True), count, 1e-5), rel=1e-3
    )
    assert result["initial_model"]["disjoint"]
    assert "as its owner stated" in result["warnings"][0]
    assert "as its owner stated" in " ".join(child.summary_file.read_text().split())
    note = note_on_texts(read_facts(child))
    assert (note["guarantee"], LEFT_OUT in note["note"]) == (False, True)
    assert LEFT_OUT in (child.model_dir / "README.md").read_text()
    assert LEFT_OUT in list_runs([child.path]).text()
    assert Ledger.read(child.path).ancestors == ()
    # The statement is about this corpus; on another one the first run counts again, or is unknown.
    again = child_of(child.path, elsewhere, tmp_path / "again", seed=2)
    assert [head["run"] for head in Ledger.read(again.path).ancestors] == [Ledger.read(child.path).run]
    if fault is None:
        other = child_of(child.path, corpus, tmp_path / "other", seed=2)
        assert len(Ledger.read(other.path).ancestors) == 2
        assert "on other corpora" in (other.result or {})["warnings"][0]
    else:
        with pytest.raises(ResultsError, match="releases are not known"):
            child_of(child.path, corpus, tmp_path / "other", seed=2)


@pytest.mark.system
def test_a_public_model_is_as_before(corpus: Path, tmp_path: Path) -> None:
    first = run(corpus, tmp_path / "first")
    assert "initial_model" not in (first.result or {})
    assert not (first.path / "ancestors").exists()
    model = tmp_path / "public"
    shutil.copytree(first.path / "model", model)
    for name in ("spec.json", "lineage"):
        shutil.rmtree(model / name) if (model / name).is_dir() else (model / name).unlink()
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({k: v for k, v in config.items() if not k.startswith("fl_sim")}))
    assert model_files.read_model(model) == model_files.Lineage()  # nothing tells it from a foreign model
    second = run(corpus, tmp_path / "second", **{"model.name": str(model)})
    assert "initial_model" not in (second.result or {})


AWD_LSTM = {"model.name": "awd-lstm", "model.hidden": 8, "model.layers": 1, "model.embedding": 8}


@pytest.mark.system
def test_a_model_of_another_family_composes_and_is_recognised(corpus: Path, tmp_path: Path) -> None:
    """Its config.json is read strictly, so that it cannot carry a mark; nothing but fl_sim writes such a file."""
    first = run(corpus, tmp_path / "first", **AWD_LSTM)
    child = child_of(first.path, corpus, tmp_path / "child")
    assert len(Ledger.read(child.path).ancestors) == 1
    shutil.rmtree(first.path / "model" / "lineage")
    (first.path / "model" / "spec.json").unlink()
    with pytest.raises(ResultsError, match="lineage: is missing"):
        child_of(first.path, corpus, tmp_path / "again")


def test_an_adapter_rests_on_what_trained_its_frozen_base(parent: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(parent / "model")}))
    (ancestor,) = model_files.read_model(adapter).ancestors
    assert ancestor.ledger.run == Ledger.read(parent).run
    shutil.rmtree(parent / "model" / "lineage")
    with pytest.raises(ResultsError, match="lineage: is missing"):
        model_files.read_model(adapter)


def test_a_trained_model_that_comes_from_the_hub_is_not_taken_for_public(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    config = RunConfig.from_mapping({"model.name": "me/mine"})
    before = earlier_of(config, "0a1b")
    assert before.lineage == model_files.Lineage()  # nothing is here yet: the run reads it, and asks again
    name = "0" * 40
    (cached := tmp_path / "models--me--mine" / "snapshots" / name).mkdir(parents=True)
    (refs := tmp_path / "models--me--mine" / "refs").mkdir()
    (refs / "main").write_text(name)
    (cached / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    before.check_model(config)
    (cached / "config.json").write_text(json.dumps({"model_type": "gpt2", "fl_sim_trained": True}))
    with pytest.raises(ResultsError, match="lineage: is missing"):
        before.check_model(config)
    stated = config.changed({"privacy.initial_model": "disjoint"})
    with pytest.raises(ResultsError, match="rests on other releases"):
        before.check_model(stated)
    assert "no ε covers what it released before" in earlier_of(stated, "0a1b").warnings()[0]


# --- what a child's folder keeps -------------------------------------------------------------------------------------


def test_nothing_private_is_left_without_the_owners_file(trained: Path, corpus: Path) -> None:
    """The other files hold no fingerprint of the corpus and no measured bound, also not as a hash."""
    fingerprint = Corpus.open(corpus).fingerprint
    owner = (trained / "model" / "lineage" / "owner.json").read_bytes()
    assert fingerprint.encode() in owner
    assert len(json.loads(owner)["salt"]) == 32
    for file in (path for path in (trained / "model").rglob("*") if path.is_file() and path.name != "owner.json"):
        content = file.read_bytes()
        assert fingerprint.encode() not in content
        assert b"sentences_per_user" not in content
