"""fl-sim leak finds runs whose noise or ledger is not what is stated, and refuses in one line what it cannot attack."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fl_sim
from fl_sim.auditing.leakage import leak, membership, name_ranking
from fl_sim.auditing.leakage.attacked_run import AttackedRun, Options
from fl_sim.cli.main import main
from fl_sim.config import ConfigError
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies import aggregation
from fl_sim.strategies.ledger import HEAD_FILE, LEDGER_FILE
from tests.conftest import REPOSITORY
from tests.e2e import small_runs
from tests.fl_sim.auditing.faults import FAULTS, fault

pytestmark = pytest.mark.usefixtures("users_alone")

Capture = pytest.CaptureFixture[str]
USERS = 30
LEARNS = {
    "rounds": 4, "engine.name": "inline", "evaluation.max_sentences": 2, "evaluation.every": 4,
    "model.name": "awd-lstm", "model.embedding": 16, "model.hidden": 32, "model.layers": 1, "model.max_tokens": 16,
    "privacy.strategy": "user_level", "privacy.q_u": 1.0, "privacy.clip_norm": 10.0, "server.optimizer": "adam",
    "server.learning_rate": 0.05,
}  # fmt: skip
"""A run that memorises a word in four rounds if there is no noise."""
RUNS: dict[str, dict[str, Any]] = {
    "honest": {"privacy.noise_multiplier": 60.0},
    "noise_off": {"privacy.noise_multiplier": 60.0},
    "user_clip_off": {"privacy.noise_multiplier": 60.0, "privacy.clip_norm": 1e-4},  # the noise is clip_norm times 60
}


def sentences(users: int = USERS, each: int = 2) -> Iterator[Sentence]:
    """Yield the sentences of users, each of whom repeats a word of one token that no one else writes."""
    tokenizer = json.loads((REPOSITORY / "clients/assets/tokenizer/tokenizer.json").read_text())
    marked = (token for token in tokenizer["model"]["vocab"] if token.startswith("Ġ") and len(token) > 6)
    words = np.random.default_rng(0).permutation(sorted(token[1:] for token in marked if token[1:].isalpha()))
    for number, word in enumerate(words[: 2 * users].tolist()):
        split = "train" if number < users else "validation"
        for length in range(each):
            text = f"Ada saw {' '.join([word] * (5 + length))}"
            yield Sentence(split, f"user {number}", text, (Mention(0, 3, "PER"),))


@pytest.fixture(scope="module")
def users_alone() -> Iterator[None]:
    """The attack that this file is about, and no plots."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leak, "ATTACKS", {"users": leak.ATTACKS["users"]})
        patch.setattr("fl_sim.reporting.plots.write_run_plots", lambda run: None)
        yield


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Break the product for the run of this name; the server's own check would discard sums that are not clipped."""
    with fault(name) if name in FAULTS else nullcontext(), pytest.MonkeyPatch.context() as patch:
        if name == "user_clip_off":
            patch.setattr(aggregation, "_NORM_TOLERANCE", math.inf)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, users_alone: None) -> Path:
    """An honest run, one without the noise that its ledger states, and one that clips no user."""
    folder = tmp_path_factory.mktemp("leak")
    write_corpus(sentences(), folder / "corpus", name="words")
    for name, changes in RUNS.items():
        with broken(name):
            fl_sim.run(LEARNS | changes | {"corpus.path": str(folder / "corpus")}, out=folder / name)
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "state"),
    [("honest", "within"), ("noise_off", "beyond"), ("user_clip_off", "beyond")],
)
def test_a_run_that_is_not_what_its_ledger_says_is_found(runs: Path, name: str, state: str, capsys: Capture) -> None:
    code = main(["leak", str(runs / name), "--json", "--quiet"])
    shown = capsys.readouterr()
    facts = json.loads(shown.out)
    (run,) = facts["runs"]
    record = run["attacks"]["users"]
    assert record["verdict"]["state"] == state
    assert record["bound"]["largest_advantage"] < 0.03
    assert record["bound"]["unit"] == "a user with 2 sentences that take part"
    assert record["before_training"]["p_value"] > 0.001
    if state == "beyond":
        assert record["auc"]["low"] > 0.9
    assert (code, facts["holds"]) == ((0, True) if state == "within" else (1, False))
    assert ("BEYOND ITS BOUND" in shown.err) == (state == "beyond")
    assert facts["beyond"] == ([] if state == "within" else [f"{runs / name}: users"])


@pytest.mark.nightly
def test_the_text_shows_names_only_where_asked(runs: Path, capsys: Capture) -> None:
    assert main(["leak", str(runs / "honest"), "--quiet", "--max-users", "20"]) == 0
    text = capsys.readouterr().out
    assert "user_level, 4 rounds; ε any ∞, ε user 0." in text
    assert "20 members, 20 non-members; bound of a user with 2 sentences that take part" in " ".join(text.split())
    assert "for the corpus's owner" in text
    assert "user 1" not in text
    assert main(["leak", str(runs / "honest"), "--quiet", "--max-users", "20", "--show-names"]) == 0
    assert capsys.readouterr().out.count("\n           user ") == 5


@pytest.mark.nightly
def test_a_split_that_is_not_by_chance_is_not_tested(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model with which the run began already tells the splits apart."""
    run, likelihoods = AttackedRun.open(runs / "noise_off"), membership.log_likelihoods

    def told_apart(model: Any, side: membership.Sample, observer: Any) -> Any:
        return likelihoods(model, side) + 100 * (model is run.before.model and side.side is run.members)

    monkeypatch.setattr(membership, "log_likelihoods", told_apart)
    attack = membership.attack_users(run, Options())
    assert attack.verdict.state == "not tested"
    assert "differ before training" in attack.verdict.reason
    assert attack.before_training.value == 1.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, users_alone: None) -> Path:
    """A folder with a run on a corpus whose sentences, not users, were divided into splits."""
    folder = tmp_path_factory.mktemp("shared")
    corpus = small_runs.small_corpus(folder / "corpus")
    fl_sim.run(small_runs.configuration(corpus, folder / "run", rounds=1, **small_runs.QUICK_TO_LOAD))
    return folder


@pytest.mark.nightly
def test_users_of_both_splits_are_not_attacked(shared: Path, capsys: Capture) -> None:
    (run,) = fl_sim.leak([shared / "run"]).runs
    assert "also train" in run.left_out["users"]
    assert main(["leak", str(shared / "run"), "--quiet", "--attack", "users"]) == 2
    assert "most users of split validation also train" in capsys.readouterr().err


@pytest.mark.system
def test_the_users_of_canaries_alone_are_not_attacked(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = frozenset(AttackedRun.open(runs / "honest").members.users)
    monkeypatch.setattr(membership, "canary_users", lambda corpus: users)
    (run,) = fl_sim.leak([runs / "honest"]).runs
    assert "split train has no user to attack" in run.left_out["users"]


@pytest.mark.system
def test_bad_input_is_one_line(runs: Path, shared: Path, tmp_path: Path, capsys: Capture) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(runs / "honest", copy)
    shutil.rmtree(copy / "model")
    other = tmp_path / "other"
    shutil.copytree(runs / "honest", other)
    for file in (LEDGER_FILE, HEAD_FILE):
        shutil.copy(runs / "noise_off" / file, other)
    for words, said in (
        ([str(copy)], "has no model yet"),
        ([str(other)], "is not the ledger whose head hash was kept"),
        ([str(runs / "honest"), "--raw", str(shared / "corpus")], "has other users"),
    ):
        assert main(["leak", *words, "--quiet"]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


@pytest.mark.system
def test_a_de_identified_run_is_attacked_with_its_raw_text(shared: Path, tmp_path: Path) -> None:
    assert main(["corpus", "deidentify", str(shared / "corpus"), "--out", str(tmp_path / "made")]) == 0
    settings = small_runs.configuration(
        tmp_path / "made", tmp_path / "run", rounds=1, privacy__strategy="user_level", **small_runs.QUICK_TO_LOAD
    )
    fl_sim.run(settings)
    with_names = AttackedRun.open(tmp_path / "run", shared / "corpus")
    without = AttackedRun.open(tmp_path / "run")
    ids = np.arange(3)
    assert with_names.members.read(ids) == Corpus.open(shared / "corpus").texts("train").to_pylist()[:3]
    assert without.members.read(ids) != with_names.members.read(ids)
    assert fl_sim.leak([tmp_path / "run"], raw=shared / "corpus").runs[0].raw_text


def test_all_attacks_on_all_runs_share_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def attacked(run: Any, options: Options, names: Any, progress: Any, *, strict: bool) -> Any:
        return options.failure

    monkeypatch.setattr(leak.AttackedRun, "open", lambda *arguments: None)
    monkeypatch.setattr(leak, "_attacked", attacked)
    monkeypatch.setattr(leak, "_forecast", lambda run, options, names: "an hour")
    found = leak.attack_runs(["one", "two", "three"], Options(failure=0.01), ["users"])
    assert found.runs == pytest.approx((0.01 / 3,) * 3)
    with pytest.raises(ConfigError, match="failure is 2; allowed"):
        Options(failure=2)
    with pytest.raises(ConfigError, match="runs is empty"):
        leak.attack_runs([])


@pytest.mark.parametrize(
    ("flags", "sizes"),
    [
        ([], (200, 100, 25)),
        (["--thorough"], (1000, 200, 50)),
        (["--thorough", "--secrets", "9"], (9, 200, 50)),
        (["--candidates", "50"], (200, 100, 50)),
    ],
)
def test_attacks_are_quick_unless_more_is_asked_for(
    flags: list[str], sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Options] = []

    def attack_runs(runs: Any, options: Options, *others: Any, **named: Any) -> leak.Leakage:
        asked.append(options)
        return leak.Leakage((), options)

    monkeypatch.setattr(leak, "attack_runs", attack_runs)
    run = RunFolder.create(tmp_path / "run", config={}, environment={})
    assert main(["leak", str(run.path), "--quiet", *flags]) == 0
    (options,) = asked
    assert (options.secrets, options.entities, options.candidates) == sizes


@pytest.mark.system
def test_what_attacks_will_take_is_said_first(shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(leak, "ATTACKS", {"entities": name_ranking.attack_names})
    assert main(["leak", str(shared / "run"), "--entities", "3", "--candidates", "4"]) == 0
    first, *_ = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf"{shared / 'run'}: about .+ s \(24 texts to score\)", first)


def test_texts_of_attacks_are_counted() -> None:
    def side(*sentences: int) -> Any:
        return SimpleNamespace(ownership=SimpleNamespace(sentences_per_user=np.array(sentences), num_entities=7))

    corpus, model = SimpleNamespace(has_canaries=False), SimpleNamespace(task=SimpleNamespace(classes=()))
    run: Any = SimpleNamespace(members=side(2, 50, 8), non_members=side(3, 3), corpus=corpus, model=model)
    options = Options(max_users=2, sentences_per_user=20, entities=10, candidates=5)
    assert leak.texts_of(run, options, ["users"]) == 2 * (2 * 10 + 2 * 3)
    assert leak.texts_of(run, options, ["canaries"]) == 0
    assert leak.texts_of(run, options, ["entities"]) == 2 * 7 * 5
