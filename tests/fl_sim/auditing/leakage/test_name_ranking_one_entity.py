"""fl-sim leak --entity shows what a model learnt of one name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fl_sim
from fl_sim.auditing.leakage.attacked_run import AttackedRun
from fl_sim.auditing.leakage.proven_rates import EntityContribution
from fl_sim.cli.main import main
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.records import Mention, Sentence
from tests.fl_sim.auditing.leakage.test_leak import LEARNS, sentences

Capture = pytest.CaptureFixture[str]
ENTITY = "Zubin"


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
    """A run that learns by heart, and one with noise."""
    folder = tmp_path_factory.mktemp("one_name")
    write_corpus(named_sentences(), folder / "corpus", name="words")
    learns = {name: value for name, value in LEARNS.items() if name != "privacy.clip_norm"}
    free = learns | {"privacy.strategy": "noiseless", "rounds": 6, "model.max_tokens": 32}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fl_sim.reporting.plots.write_run_plots", lambda run: None)
        fl_sim.run(free | {"corpus.path": str(folder / "corpus")}, out=folder / "plain")
        noisy = LEARNS | {
            "corpus.path": str(folder / "corpus"),
            "privacy.noise_multiplier": 20.0,
            "model.max_tokens": 32,
        }
        fl_sim.run(noisy | {"privacy.known": "graph", "privacy.entity_users": 1}, out=folder / "noisy")
    return folder


def attacked(capsys: Capture, *flags: str) -> dict[str, Any]:
    """Return the attacks of ``fl-sim leak --json`` on the first run."""
    capsys.readouterr()
    assert main(["leak", *flags, "--json", "--quiet", "--max-users", "20"]) == 0
    attacks: dict[str, Any] = json.loads(capsys.readouterr().out)["runs"][0]["attacks"]
    return attacks


@pytest.mark.nightly
def test_what_a_model_learnt_of_a_name_is_told_by_ratio_to_the_start(runs: Path, capsys: Capture) -> None:
    record = attacked(capsys, str(runs / "plain"), "--entity", "zubin")["entities"]
    assert record["one"] == {"kind": "PERSON", "mentions": 12, "private": True}
    assert (record["entities"], len(record["groups"])) == (12, 1)
    assert record["groups"][0]["ratio_ahead"]["low"] > 0.6
    assert not record["bound"]["proven"]


@pytest.mark.nightly
def test_the_bound_is_that_of_the_entity_s_own_contribution(runs: Path, capsys: Capture) -> None:
    attacks = attacked(capsys, str(runs / "noisy"), "--entity", ENTITY)
    run = AttackedRun.open(runs / "noisy")
    entity = run.corpus.known_ids("train").entities["zubin"]  # type: ignore[union-attr]
    proven = run.proof.of_entity(EntityContribution.of(run.bounds, entity))
    assert attacks["entities"]["bound"]["claims"][0]["epsilon"] == proven.claims[0][1]
    assert 0.01 < attacks["entities"]["bound"]["largest_tpr_at_fpr"]["0.01"] < 0.2
