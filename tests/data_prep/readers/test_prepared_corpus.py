"""A prepared corpus is read again, whole or with fewer users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fl_sim.cli.main import main
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.readers.prepared_corpus import PreparedReader
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus

SENTENCES = (
    ("train", "a", "Ada Byron left.", (Mention(0, 9, "PER"),)),
    ("train", "a", "She came back.", ()),
    ("train", "b", "We met ada byron there.", ()),  # not marked
    ("train", "b", "Corwin stayed.", (Mention(0, 6, "PER"),)),
    ("train", "d", "Leeds is far.", (Mention(0, 5, "LOC"),)),
    ("validation", "c", "I know Ada Byron's aunt.", (Mention(7, 18, "PER"),)),
    ("validation", "c", "Nothing else.", ()),
)


@pytest.fixture
def names(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    write_corpus((Sentence(*row) for row in SENTENCES), folder, name="names")
    return folder


def texts(corpus: Path, **without: Any) -> list[str]:
    return [sentence.text for sentence in PreparedReader(source=str(corpus), **without).read().sentences()]


def test_everything_is_read_again(names: Path) -> None:
    assert texts(names) == [text for _, _, text, _ in SENTENCES]


def test_fewer_users_are_the_same_whatever_the_order(names: Path) -> None:
    kept = texts(names, max_users=2)
    users = {user for split, user, text, _ in SENTENCES if split == "train" and text in kept}
    assert len(users) == 2
    assert [text for split, user, text, _ in SENTENCES if user in users or split == "validation"] == kept
    assert set(texts(names, max_users=1)) < set(kept)


def test_the_manifest_says_who_is_left_out(names: Path, tmp_path: Path) -> None:
    prepared = ["prepare", "prepared", "--source", str(names), "--out", str(tmp_path / "fewer"), "--json"]
    assert main([*prepared, "--max-users", "2"]) == 0
    assert Corpus.open(tmp_path / "fewer").manifest.settings["max_users"] == 2
    assert main(prepared) == 2  # another corpus lies there
    assert main([*prepared, "--max-users", "0"]) == 2
