"""Finding the corpora that ship: beside the code, else in the installed distribution, else one clear error."""

from __future__ import annotations

import json
from importlib import metadata
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


class Installed:
    """A distribution whose files lie in ``root``, installed in place from ``origin`` if that is given."""

    def __init__(self, root: Path, origin: Path | None = None) -> None:
        self.root = root
        self.origin = origin

    def locate_file(self, path: Path) -> Path:
        return self.root / path

    def read_text(self, name: str) -> str | None:
        if self.origin is None:
            return None
        return json.dumps({"url": self.origin.as_uri(), "dir_info": {"editable": True}})


def data_in(root: Path, name: str) -> Path:
    folder = root / "fl_sim" / "data_prep" / name
    folder.mkdir(parents=True)
    (folder / "train.sentences.parquet").touch()
    return folder


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The code as Flower copies it: Python files, the manifest, no Parquet."""
    code = tmp_path / "copied app" / "data_prep"
    for name in SHIPPED_CORPORA:
        (code / name).mkdir(parents=True)
        (code / name / "manifest.json").touch()
    monkeypatch.setattr(bundle, "__file__", str(code / "bundle.py"))
    return tmp_path


@pytest.mark.parametrize("name", SHIPPED_CORPORA)
def test_beside_the_code(name: str) -> None:
    assert shipped_path(name) == Path(data_prep.__file__).parent / name


@pytest.mark.parametrize("name", SHIPPED_CORPORA)
def test_in_the_installed_package(name: str, copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = data_in(copied / "site-packages", name)
    monkeypatch.setattr(metadata, "distribution", lambda _: Installed(copied / "site-packages"))
    assert shipped_path(name) == folder


@pytest.mark.parametrize("name", SHIPPED_CORPORA)
def test_in_the_checkout_of_an_editable_install(name: str, copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = data_in(copied / "my checkout", name)
    distribution = Installed(copied / "site-packages", origin=copied / "my checkout")
    monkeypatch.setattr(metadata, "distribution", lambda _: distribution)
    assert shipped_path(name) == folder


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


def test_nowhere(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda _: Installed(copied / "site-packages"))
    with pytest.raises(CorpusError, match=r"not installed \(looked in .*site-packages"):
        shipped_path("irc")

    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(CorpusError, match="the corpus irc is not installed"):
        shipped_path("irc")
