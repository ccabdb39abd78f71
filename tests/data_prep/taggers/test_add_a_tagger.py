"""The code of docs/extending.md, run as the page says, and taggers that are refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fl_sim.cli.main import main
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.taggers.tagger_registry import parse_names, with_high_recall
from tests.data_prep.plug_ins import imports_restored, write_page_code

NAME = "my_tagger:WordListTagger"
POSTS = [("ann", "Ada lives in Leeds."), ("bob", "York is far."), ("cy", "Nothing here."), ("dee", "Write to b@x.org.")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the page's module and a corpus to tag."""
    write_page_code("Add a tagger", tmp_path)
    rows = [json.dumps({"author": author, "text": text}) for author, text in POSTS]
    (tmp_path / "posts.jsonl").write_text("\n".join(rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with imports_restored("my_tagger", "bad"):
        yield tmp_path


def prepare(*more: str) -> int:
    columns = ["--text-column", "text", "--user-column", "author", "--test-fraction", "0", "--out", "corpus"]
    return main(["prepare", "jsonl", "--source", "posts.jsonl", *columns, *more])


def mentioned() -> dict[str, list[str]]:
    entities = Corpus.open("corpus").entities("train")
    return dict(zip(entities["entity"], (list(labels) for labels in entities["labels"]), strict=True))


def test_the_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare("--tagger", NAME) == 0
    assert mentioned() == {"ada": ["PERSON"], "leeds": ["GPE"], "york": ["GPE"], "b@x.org": ["EMAIL"]}
    checksum = hashlib.sha256((folder / "my_tagger.py").read_bytes()).hexdigest()
    described = {"tagger": NAME, "words": "3", "path": NAME, "module_sha256": checksum}
    assert Corpus.open("corpus").manifest.tagger == described | {"structured": "1", "entities": "all"}
    assert main(["corpus", "stats", "corpus"]) == 0
    assert "with GPE" in capsys.readouterr().out
    assert prepare("--tagger", NAME) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_another_version_of_the_file_is_another_tagger(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare("--tagger", NAME) == 0
    module = folder / "my_tagger.py"
    module.write_text(module.read_text().replace('"York": "GPE", ', ""), encoding="utf-8")
    assert prepare("--tagger", NAME) == 2
    assert "holds another corpus (tagger module_sha256" in capsys.readouterr().err


@pytest.mark.parametrize("names", [["--tagger", f"{NAME}+rules"], ["--tagger", "rules", "--tagger", NAME]])
def test_united_with_others_and_selected(names: list[str]) -> None:
    assert prepare(*names, "--entities", "gpe,date") == 0
    assert {"leeds", "york"} <= set(mentioned())
    assert "b@x.org" not in mentioned()
    tagger = Corpus.open("corpus").manifest.tagger
    number = 1 if names[1].startswith("my") else 2
    assert (tagger[f"{number}.path"], tagger[f"{number}.words"]) == (NAME, "3")


@pytest.mark.system
def test_in_two_processes() -> None:
    assert prepare("--tagger", NAME, "--processes", "2") == 0
    assert mentioned() == {"ada": ["PERSON"], "leeds": ["GPE"], "york": ["GPE"], "b@x.org": ["EMAIL"]}


def test_forms_of_names() -> None:
    assert parse_names("a.b:C+rules+x:Y.Z") == ("a.b:C", "rules", "x:Y.Z")
    assert parse_names("spacy:models/en+de+rules") == ("spacy:models/en+de", "rules")
    names = ("rules", "spacy:/a+b/c", "presidio", "spacy:en_x")
    assert parse_names("rules+spacy:/a+b/c+presidio+spacy:en_x") == names
    assert parse_names(["rules+spacy:/a+b/c", "rules", "presidio+spacy:en_x"]) == names
    assert with_high_recall("presidio") == ("presidio", "rules")


BAD = """
from fl_sim.data_prep.records import Mention
class Good:
    labels = frozenset()
    def describe(self): return {}
    def tag(self, texts): return ((Mention(0, 1, "X"),) for text in texts)
class NeedsMore(Good):
    def __init__(self, path): pass
class NoLabels:
    tag = describe = Good.tag
class BadDescription(Good):
    def describe(self): return {"version": 3}
class Pairs(Good):
    def tag(self, texts): return (((0, 1),) for text in texts)
class TooFew(Good):
    def tag(self, texts): return [()]
class TooMany(Good):
    def tag(self, texts): return [() for text in texts] + [()]
class Remembers(Good):
    known = set()
    def tag(self, texts):
        for text in texts:
            yield (Mention(0, 3, "X"),) if text[:3] in self.known else ()
            self.known.update(text.split())
class Outside(Good):
    def tag(self, texts): return ((Mention(0, 1000, "X"),) for text in texts)
"""


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bad:NeedsMore", "tagger 'bad:NeedsMore' cannot be made ("),
        ("bad:NoLabels", "allowed: a class that is made without arguments and has labels, tag(texts) and describe()"),
        ("bad:BadDescription", "is described by {'version': 3}; allowed: texts by name"),
        ("bad:Pairs", "tagger 'bad:Pairs' yields ((0, 1),); allowed: a tuple of Mention a text"),
        ("bad:TooFew", "yields mentions of 1 texts; allowed: of every text, once"),
        ("bad:TooMany", "yields mentions of more texts; allowed: of every text, once"),
        ("bad:Remembers", "tagger 'bad:Remembers' finds other mentions when the same texts come in reverse; allowed"),
        ("bad:Outside", "entity [0, 1000) of user 'ann' lies outside its text"),
    ],
)
def test_bad_taggers(
    name: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.py").write_text(BAD, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    assert prepare("--tagger", name) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fl-sim prepare jsonl: ")
    assert message in line
    assert not Path("corpus").exists()
