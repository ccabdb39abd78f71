"""The corpora that ship: found beside the code, by names that no other corpus takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl_sim import data_prep
from fl_sim.config import RunConfig
from fl_sim.data_prep import SHIPPED_CORPORA, shipped_path
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store import bundle
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.experiments.run_inputs import with_absolute_paths
from tests.tiny import tiny_corpus


def test_a_name_is_a_text_and_a_path_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Corpus.open("irc").path == shipped_path("irc")
    for folder in ("./irc", Path("irc")):
        with pytest.raises(CorpusError, match="irc: no such folder"):
            Corpus.open(folder)
    config = RunConfig.from_mapping({"corpus.path": "irc"})
    assert with_absolute_paths(config).corpus.path == "irc"
    assert with_absolute_paths(config.changed({"corpus.path": "./irc"})).corpus.path == str(tmp_path / "irc")


def test_no_corpus_is_made_under_the_name_of_one_that_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CorpusError, match="irc: the name of a corpus that ships; choose another output folder"):
        write_corpus([], Path("irc"), name="mine")
    assert list(tmp_path.iterdir()) == []
    assert tiny_corpus(tmp_path / "irc").is_dir()


@pytest.mark.parametrize("name", SHIPPED_CORPORA)
def test_they_lie_beside_the_code_or_nowhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shipped_path(name) == Path(data_prep.__file__).parent / name
    monkeypatch.setattr(bundle, "__file__", str(tmp_path / "data_prep" / "store" / "bundle.py"))
    with pytest.raises(CorpusError, match=rf"the corpus {name} is not installed \(looked in "):
        shipped_path(name)
