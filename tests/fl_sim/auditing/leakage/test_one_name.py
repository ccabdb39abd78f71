"""fl-sim leak --entity and --user show what a model learnt from one unit, beside models that did not see it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fl_sim
from fl_sim.auditing.leakage.attacked_run import AttackedRun
from fl_sim.auditing.leakage.rates import EntityContribution
from fl_sim.cli.main import main
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.records import Mention, Sentence
from tests.fl_sim.auditing.leakage.test_leak import LEARNS, sentences

Capture = pytest.CaptureFixture[str]
ENTITY, USER = "Zubin", "user 3"


def named_sentences(users: int = 20) -> Iterator[Sentence]:
    """Yield sentences of words of one user each; users 3 and 4 also have a name, and users 5 and 6 others."""
    for sentence in sentences(users, each=3):
        number = int(sentence.user.removeprefix("user "))
        name = {3: ENTITY, 4: ENTITY, 5: "Corwin", 6: "Maddoc", 7: "Tabitha"}.get(number, "Ada")
        word = sentence.text.split()[-1]
        text = f"{sentence.text.replace('Ada', name)} said {name} of {word}"
        start = text.index(name, len(name))
        marks = (Mention(0, len(name), "PER"), Mention(start, start + len(name), "PER"))
        yield Sentence(sentence.split, sentence.user, text, marks)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learns by heart, one with noise, and one without each unit."""
    folder = tmp_path_factory.mktemp("one_name")
    write_corpus(named_sentences(), folder / "corpus", name="words")
    for flag, value in (("entity", ENTITY), ("user", USER)):
        words = ["prepare", "prepared", "--source", str(folder / "corpus"), f"--without-{flag}", value]
        assert main([*words, "--out", str(folder / f"corpus_without_{flag}"), "--json"]) == 0
    learns = {name: value for name, value in LEARNS.items() if name != "privacy.clip_norm"}
    free = learns | {"privacy.strategy": "noiseless", "rounds": 6, "model.max_tokens": 32}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fl_sim.reporting.plots.write_run_plots", lambda run: None)
        for name, corpus in {
            "plain": "corpus",
            "entity": "corpus_without_entity",
            "user": "corpus_without_user",
        }.items():
            fl_sim.run(free | {"corpus.path": str(folder / corpus)}, out=folder / name)
        noisy = LEARNS | {"corpus.path": str(folder / "corpus"), "privacy.noise_multiplier": 20.0}
        fl_sim.run(noisy | {"privacy.entity_users": 1}, out=folder / "noisy")
    return folder


def attacked(runs: Path, capsys: Capture, *flags: str) -> dict[str, Any]:
    """Return the attacks of ``fl-sim leak --json`` on the first run."""
    capsys.readouterr()
    assert main(["leak", *flags, "--json", "--quiet", "--max-users", "20"]) == 0
    attacks: dict[str, Any] = json.loads(capsys.readouterr().out)["runs"][0]["attacks"]
    return attacks


@pytest.mark.nightly
def test_what_a_model_learnt_of_a_name_is_beside_one_that_never_saw_it(runs: Path, capsys: Capture) -> None:
    words = (str(runs / "plain"), "--entity", "zubin", "--without", str(runs / "entity"))
    record = attacked(runs, capsys, *words)["entity"]
    run, start, without = record["models"]
    assert (record["mentions"], record["attacked_mentions"], record["private"]) == (12, 12, True)
    assert [one["model"] for one in record["models"]] == ["run", "start", str(runs / "entity")]
    assert run["ahead_by_ratio_to"]["start"]["low"] > 0.6
    assert run["ahead_by_ratio_to"][str(runs / "entity")]["low"] > 0.6
    assert without["ahead_by_ratio_to"]["start"]["value"] < run["ahead_by_ratio_to"]["start"]["value"]
    assert start["ahead_by_ratio_to"] == {}
    assert not record["bound"]["proven"]


@pytest.mark.nightly
def test_what_a_model_learnt_of_a_user(runs: Path, capsys: Capture) -> None:
    record = attacked(runs, capsys, str(runs / "plain"), "--user", USER, "--without", str(runs / "user"))["user"]
    run, _, without = record["models"]
    assert (record["sentences"], record["non_members"]) == (3, 20)
    assert run["share_below_by_ratio_to"]["start"]["value"] > 0.9
    assert run["share_below_by_ratio_to"][str(runs / "user")]["value"] > 0.9
    assert without["share_below_by_ratio_to"]["start"]["value"] < 0.9
    assert run["ahead_by_ratio_to"]["start"]["low"] > 0.6


@pytest.mark.nightly
def test_the_bound_is_that_of_the_units_own_contribution(runs: Path, capsys: Capture) -> None:
    attacks = attacked(runs, capsys, str(runs / "noisy"), "--user", USER, "--entity", ENTITY)
    run = AttackedRun.open(runs / "noisy")
    user = run.members.users.index(USER)
    entity = run.corpus.known_ids("train").entities["zubin"]  # type: ignore[union-attr]
    contribution = EntityContribution.of(run.bounds, entity)
    own = run.contribution_of(user)
    assert attacks["user"]["bound"]["claims"][0]["epsilon"] == run.proof.of_user(float(own)).claims[0][1]
    assert attacks["entity"]["bound"]["claims"][0]["epsilon"] == run.proof.of_entity(contribution).claims[0][1]
    both = run.proof.of_both(own, contribution)
    assert attacks["entity"]["bound_with_user"]["claims"][0]["epsilon"] == both.claims[0][1]
    assert 0.01 < attacks["user"]["bound"]["largest_tpr_at_fpr"]["0.01"] < 0.2


@pytest.mark.nightly
def test_names_are_shown_only_where_asked(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    words = ["leak", str(runs / "plain"), "--entity", ENTITY, "--user", USER, "--quiet", "--max-users", "20"]
    for flags, shown in (([], False), (["--show-names"], True)):
        page = tmp_path / "page.html"
        assert main([*words, *flags, "--html", str(page)]) == 0
        text = capsys.readouterr().out
        assert main([*words, *flags, "--json"]) == 0
        for output in (text, capsys.readouterr().out, page.read_text(encoding="utf-8")):
            assert (ENTITY in output) == shown
            assert (USER in output) == (shown and output is not text and "<html" not in output)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--entity", "Nemo"], "entity is 'Nemo'; allowed: one that split train"),
        (["--user", "Nemo"], "user is 'Nemo'; allowed: a user of split train"),
        (["--without", "x"], "without is given without entity or user"),
        (["--attacks", "entity"], "attack is 'entity', and no entity is named; allowed: with --entity"),
        (["--entity", ENTITY, "--without", "{runs}/user"], "was trained on 3 sentences with the entity's name"),
        (["--user", USER, "--without", "{runs}/plain"], "which was trained on the user's text"),
    ],
)
def test_bad_input_is_one_line(runs: Path, flags: list[str], message: str, capsys: Capture) -> None:
    given = [flag.replace("{runs}", str(runs)) for flag in flags]
    code = main(["leak", str(runs / "plain"), *given, "--quiet", "--max-users", "20"])
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1)
    assert message in error
