"""The figures of a corpus: fl-sim corpus stats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fl_sim.cli.main import main
from fl_sim.data_prep.corpus_writer import write_corpus
from tests.data_prep.marked import said

SMALL = (
    said("Ann saw Bo in Oslo.", "Ann", "Bo", ("Oslo", "LOC"), user="a"),
    said("Bo  left.", "Bo", user="a"),
    said("Bo came back.", "Bo", user="b"),
    said("It rained.", user="b"),
    said("Nothing here.", user="c", split="validation"),
)


def test_the_figures_and_the_table_that_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepared = write_corpus(SMALL, tmp_path / "out", name="small").path
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
    assert main(["corpus", "stats", str(prepared)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "with PER │ 3 │ 0" in shown
    assert "users per entity │ 1 / 2 / 2" in shown
    assert "contribution bounds of entities are private data" in shown
