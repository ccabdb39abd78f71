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
