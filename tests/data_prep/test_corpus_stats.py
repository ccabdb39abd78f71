"""The figures of a corpus, and fl-sim corpus stats; with the shared task's own counts where its files are at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fl_sim.cli.main import main
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.records import Mention, Sentence

SMALL = (
    Sentence(
        "train", "a", "Ann saw Bo in Oslo.", (Mention(0, 3, "PER"), Mention(8, 10, "PER"), Mention(14, 18, "LOC"))
    ),
    Sentence("train", "a", "Bo  left.", (Mention(0, 2, "PER"),)),
    Sentence("train", "b", "Bo came back.", (Mention(0, 2, "PER"),)),
    Sentence("train", "b", "It rained.", ()),
    Sentence("validation", "c", "Nothing here.", ()),
)


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    return write_corpus(SMALL, tmp_path / "out", name="small").path


def test_the_figures(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus", "stats", str(prepared), "--json", "--verify"]) == 0
    output = capsys.readouterr()
    stats = json.loads(output.out)
    assert output.err == ""
    assert stats["splits"]["train"] == {
        "users": 2,
        "sentences": 4,
        "sentences_by_type": {"LOC": 1, "PER": 3},
        "sensitive_sentences": 3,
        "extended_set": 1,
        "entities": 3,
        "reach": {
            "users": {"median": 1, "p95": 2, "max": 2},
            "sentences": {"median": 1, "p95": 3, "max": 3},
            "sentences_per_user": {"median": 1, "p95": 2, "max": 2},
        },
        "sentences_per_user": {"median": 2, "p95": 2, "max": 2},
        "tokens": 12,
    }
    empty = stats["splits"]["validation"]
    assert (empty["sentences_by_type"], empty["entities"], empty["reach"]["users"]["max"]) == ({}, 0, 0)


def test_the_table_for_people_warns_about_the_reach(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus", "stats", str(prepared)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "with PER │ 3 │ 0" in shown
    assert "users per entity │ 1 / 2 / 2" in shown
    assert "contribution bounds of entities are private data" in shown


def counted(source: Path, out: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict:
    assert main(["prepare", "conll2003", "--source", str(source), "--out", str(out), *options]) == 0
    capsys.readouterr()
    assert main(["corpus", "stats", str(out), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.nightly
def test_conll2003_end_to_end(shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stats = counted(shared_data / "conll2003", tmp_path / "out", capsys, "--no-structured")
    train = stats["splits"]["train"]
    assert (train["users"], train["sentences"], train["tokens"]) == (946, 14_041, 203_621)
    assert train["sentences_by_type"] == {"ORG": 4_587, "LOC": 5_127, "PER": 4_373, "MISC": 2_698}
    assert (train["sensitive_sentences"], train["extended_set"]) == (11_132, 14_041 - 11_132)
    assert train["reach"]["users"] == {"median": 1, "p95": 6, "max": 117}
