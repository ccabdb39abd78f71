"""Train on de-identified corpora: the baseline end to end, and what its report states and omits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fl_sim.cli.main import main
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.reporting.report import report_text
from fl_sim.reporting.run_facts import read_facts
from fl_sim.storage.run_folder import RunFolder
from tests.e2e.small_runs import command_line, settings, small_corpus

pytestmark = pytest.mark.usefixtures("no_plots")


def deidentified(parent: str, out: Path, mode: str = "category") -> Path:
    assert main(["corpus", "deidentify", parent, "--out", str(out), "--mode", mode]) == 0
    return out


def run(corpus: Path, out: Path, **changes: object) -> str:
    """Return the report of a short run."""
    assert main(["run", *command_line(settings(corpus, out, **changes))]) == 0
    return " ".join(report_text(read_facts(RunFolder.open(out))).split())


@pytest.mark.system
@pytest.mark.parametrize("strategy", ["noiseless", "user_level"])
def test_a_run_without_entities_speaks_of_none(tmp_path: Path, strategy: str) -> None:
    corpus = deidentified(str(small_corpus(tmp_path / "small")), tmp_path / "made")
    text = run(corpus, tmp_path / "run", privacy__strategy=strategy)
    assert "2 of 2 rounds, finished" in text
    assert "+ an entity" not in text
    assert "Warning De-identified (category): what the tagger missed stands in the text as it was." in text


def test_a_strategy_that_needs_entities_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = deidentified(str(small_corpus(tmp_path / "small")), tmp_path / "made", "remove")
    assert main(["run", *command_line(settings(corpus, tmp_path / "run", privacy__strategy="uedp"))]) == 2
    assert "the split 'train' has no entity; allowed: user_level, noiseless" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_command_prints_one_json_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = small_corpus(tmp_path / "small")
    capsys.readouterr()
    assert main(["corpus", "deidentify", str(small), "--out", str(tmp_path / "made"), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["replaced"] == made["mentions"] > 0
    assert made["fingerprint"] == Corpus.open(tmp_path / "made").fingerprint
    assert len(made["warnings"]) == 1
