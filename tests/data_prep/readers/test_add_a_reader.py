"""The code of docs/extending.md, run as the page says, and readers that are refused."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fl_sim.cli.main import main
from fl_sim.data_prep.store.corpus import Corpus
from tests.data_prep.plug_ins import imports_restored, install, write_page_code

NAME = "my_reader:LettersReader"
LETTERS = {
    "ann": "Ada Byron left Leeds. She is well.\n\nWrite to me.\n",
    "bob": "Greetings from York.\n",
    "cy": "Nobody is in Leeds.\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the page's module and a folder of letters."""
    write_page_code("Add a reader", tmp_path)
    (tmp_path / "letters").mkdir()
    for writer, text in LETTERS.items():
        (tmp_path / "letters" / f"{writer}.txt").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with imports_restored("my_reader", "bad"):
        yield tmp_path


def prepare(kind: str, *more: str) -> int:
    return main(["prepare", kind, "--source", "letters", "--tagger", "rules", "--out", "corpus", *more])


def test_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(NAME, "--held-out", "cy") == 0
    corpus = Corpus.open("corpus")
    sentences = ["Ada Byron left Leeds.", "She is well.", "Write to me.", "Greetings from York."]
    assert corpus.texts("train").to_pylist() == sentences
    assert list(corpus.users("train")["user"]) == ["ann", "bob"]
    assert list(corpus.users("test")["user"]) == ["cy"]
    manifest = corpus.manifest
    checksum = hashlib.sha256((folder / "my_reader.py").read_bytes()).hexdigest()
    assert set(manifest.sources) == {"ann.txt", "bob.txt", "cy.txt"}
    assert manifest.notes == {"blank_texts": 1}
    assert (manifest.name, manifest.settings["kind"], manifest.settings["held_out"]) == ("letters", "letters", "cy")
    assert manifest.settings["reader"] == {"path": NAME, "module_sha256": checksum}
    assert main(["corpus", "stats", "corpus"]) == 0
    assert "corpus letters" in capsys.readouterr().out


def test_flags_of_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(NAME, "--lower-case", "--identity", "case", "--json") == 0
    assert Corpus.open("corpus").texts("train").to_pylist()[0] == "ada byron left leeds."
    assert main(["prepare", NAME, "--help"]) == 0
    assert "--held-out TEXT" in capsys.readouterr().out
    assert main(["prepare", NAME, "--out", "corpus"]) == 2
    assert capsys.readouterr().err.startswith(f"fl-sim prepare {NAME}: --source is missing")
    assert main(["prepare", NAME, "--source", "nowhere", "--out", "other"]) == 2
    assert capsys.readouterr().err == f"fl-sim prepare {NAME}: nowhere: no .txt file in this folder\n"


def test_an_installed_reader(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(folder)
    install(folder, "letter-reader", "fl_sim.readers", "letters", NAME)
    assert main(["prepare", "--help"]) == 0
    assert "letters a plug-in" in " ".join(capsys.readouterr().out.split())
    assert prepare("letters") == 0
    record = Corpus.open("corpus").manifest.settings["reader"]
    assert (record["path"], record["distribution"], record["version"]) == (NAME, "letter-reader", "1.2")


BAD = """
from dataclasses import dataclass
from fl_sim.data_prep.readers.reader import RawCorpus
from fl_sim.data_prep.records import Sentence
@dataclass
class Good:
    "good"
    source: str = ""
    def read(self): return RawCorpus("good", lambda: iter(["text"]), True)
@dataclass
class Sentences(Good):
    "sentences"
    sentence = ("train", "ann", "Hello.", ())
    def read(self): return RawCorpus("good", lambda: iter([Sentence(*self.sentence)]), True)
class UserOfNumber(Sentences): sentence = ("train", 5, "Hello.", ())
class NoUser(Sentences): sentence = ("train", "", "Hello.", ())
class Surrogate(Sentences): sentence = ("train", "ann", "Hello \\ud800", ())
class ClassOfNumber(Sentences): sentence = ("train", "ann", "Hello.", (), 0)
class NoDataclass:
    "bad"
    def read(self): return None
@dataclass
class Nothing(Good):
    "nothing"
    def read(self): return None
@dataclass
class Settings(Good):
    "settings"
    def read(self): return RawCorpus("good", lambda: iter(()), True, settings={"x": {1}})
@dataclass
class Warnings(Good):
    "warnings"
    def read(self): return RawCorpus("good", lambda: iter(()), True, settings={"warnings": 5})
@dataclass
class TakenFlag(Good):
    "taken"
    out: str = ""
"""


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("bad:NoDataclass", "allowed: a dataclass with a docstring and read()"),
        ("bad:TakenFlag", "has the flag --out, as fl-sim prepare itself"),
        ("bad:Nothing", "reader 'bad:Nothing' returns None; allowed: a RawCorpus"),
        ("bad:Settings", "reader 'bad:Settings' has settings that are not JSON"),
        ("bad:Warnings", "reader 'bad:Warnings' has warnings 5; allowed: a list of sentences"),
        ("bad:Good", "reader 'bad:Good' yields 'text'; allowed: Sentence"),
        ("bad:UserOfNumber", "user=5, text='Hello.', mentions=(), target=None, stored=None); allowed: text, without"),
        ("bad:NoUser", "reader 'bad:NoUser' yields Sentence(split='train', user='',"),
        ("bad:Surrogate", "allowed: text, without lone surrogates ('utf-8' codec can't encode"),
        ("bad:ClassOfNumber", "allowed: text, without lone surrogates (sequence item 3: expected str instance, int"),
    ],
)
def test_bad_readers(
    kind: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.py").write_text(BAD, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    assert prepare(kind) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fl-sim prepare")
    assert message in line
    assert not Path("corpus").exists()


def test_a_broken_plug_in_stops_no_other_kind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    install(folder, "broken-reader", "fl_sim.readers", "broken", "nowhere:Reader")
    assert prepare(NAME) == 0
