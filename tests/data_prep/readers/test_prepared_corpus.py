"""A prepared corpus is read again, whole or with fewer users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fl_sim.cli.main import main
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.readers.prepared_corpus import PreparedReader
from fl_sim.data_prep.records import Sentence
from fl_sim.data_prep.store.corpus import Corpus
from tests.data_prep.marked import said

SENTENCES = (
    said("Ada Byron left.", "Ada Byron", user="a"),
    said("She came back.", user="a"),
    said("We met ada byron there.", user="b"),  # not marked
    said("Corwin stayed.", "Corwin", user="b"),
    said("Leeds is far.", ("Leeds", "LOC"), user="d"),
    said("I know Ada Byron's aunt.", "Ada Byron's", user="c", split="validation"),
    said("Nothing else.", user="c", split="validation"),
)


@pytest.fixture
def names(tmp_path: Path) -> Path:
    return write_corpus(SENTENCES, tmp_path / "corpus", name="names").path


def read(corpus: Path, **fewer: Any) -> list[Sentence]:
    return list(PreparedReader(source=str(corpus), **fewer).read().sentences())


def test_everything_or_certain_users_are_read_again(names: Path) -> None:
    assert read(names) == [*SENTENCES]
    kept = read(names, max_users=2)
    users = {sentence.user for sentence in kept if sentence.split == "train"}
    assert len(users) == 2
    assert kept == [sentence for sentence in SENTENCES if sentence.user in users or sentence.split == "validation"]
    assert set(read(names, max_users=1)) < set(kept)


def test_the_manifest_says_who_is_left_out(names: Path, tmp_path: Path) -> None:
    prepared = ["prepare", "prepared", "--source", str(names), "--out", str(tmp_path / "fewer"), "--json"]
    assert main([*prepared, "--max-users", "2"]) == 0
    assert Corpus.open(tmp_path / "fewer").manifest.settings["max_users"] == 2
    assert main(prepared) == 2  # another corpus lies there
    assert main([*prepared, "--max-users", "0"]) == 2
