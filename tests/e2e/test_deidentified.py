"""De-identified corpora train: the baseline end to end, and what its report says and does not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.corpus import Corpus
from fl_sim import report
from fl_sim.cli import main
from fl_sim.results import RunFolder
from tests.e2e.small_runs import command_line, settings, small_corpus


def deidentified(parent: str, out: Path, mode: str = "category") -> Path:
    assert main(["deidentify", parent, "--out", str(out), "--mode", mode]) == 0
    return out


def run(corpus: Path, out: Path, **changes: object) -> str:
    """The report of a short run."""
    assert main(["run", *command_line(settings(corpus, out, **changes))]) == 0
    return " ".join(report.summary(RunFolder.open(out)).split())


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


def test_surrogates_are_entities_like_others_but_for_a_warning(tmp_path: Path) -> None:
    corpus = deidentified(str(small_corpus(tmp_path / "small")), tmp_path / "made", "surrogate")
    text = run(corpus, tmp_path / "run", privacy__strategy="uedp")
    assert "+ an entity in ≤ " in text
    assert "which no ε of a training on it covers" in text


@pytest.mark.slow
def test_the_bundled_corpus_deidentified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = deidentified("bundled", tmp_path / "made")
    assert "22,716 mentions at 22,716 places, in 14,735 of 22,034 sentences" in capsys.readouterr().out
    assert any("[PERSON]" in text for text in Corpus.open(corpus).texts("train").to_pylist())
    text = run(corpus, tmp_path / "run", privacy__strategy="noiseless")
    assert "2 of 2 rounds, finished" in text
