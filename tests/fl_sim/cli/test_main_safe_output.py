"""No name that is printed reaches a terminal as anything but text."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fl_sim.cli.main import SafeStream, main, safe_streams
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.formats import printable, printable_lines, table_cell
from fl_sim.search.sweep import Row, Table
from tests import tiny
from tests.fl_sim.conftest import Capture

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eadA[bold]|<b>\r\n\x7f"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_what_a_terminal_obeys_is_escaped() -> None:
    assert printable_lines("Zoë שלום 👩\u200d🔬\tand\nmore") == "Zoë שלום 👩\u200d🔬\tand\nmore"
    assert printable("two\nlines") == "two\\nlines"
    for shown in (printable(HOSTILE), table_cell(HOSTILE)):
        assert shown.isprintable()
    assert "\\[bold]" in table_cell(HOSTILE)


def test_a_terminal_gets_colours_and_moving_bars_and_nothing_else() -> None:
    below = Terminal()
    stream = SafeStream(below)
    stream.write("\r\x1b[2K\x1b[1A\x1b[?25l\x1b[31mred\x1b[0m" + HOSTILE)
    assert below.getvalue().startswith("\r\x1b[2K\x1b[1A\x1b[?25l\x1b[31mred\x1b[0m\\u001b]0;owned\\u0007\\u001b[2J")
    assert not any(code in below.getvalue() for code in ("\x07", "\x9b", "\u202e", "\x7f", "\x1b]", "\x1b[2J"))


def test_streams_are_as_they_were_afterwards() -> None:
    before = sys.stdout, sys.stderr
    with pytest.raises(RuntimeError), safe_streams():
        raise RuntimeError
    assert (sys.stdout, sys.stderr) == before


def strings_of(value: Any) -> Iterator[str]:
    """Yield all names and texts in a JSON value."""
    if isinstance(value, str):
        yield value
    items = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    for item in items:
        yield from strings_of(item)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a corpus whose name, users, labels, classes and entities are hostile."""
    sentences = [
        Sentence(split, f"{HOSTILE}{n}", f"Ada{HOSTILE} left {n}.", (Mention(0, 20, HOSTILE),), HOSTILE)
        for n in range(4)
        for split in ("train", "test")
    ]
    return write_corpus(sentences, tmp_path_factory.mktemp("data") / "corpus", name=HOSTILE).path


@pytest.mark.parametrize(
    "words",
    [
        *("corpus stats {}", "corpus stats {} --json", "corpus identity {}"),
        "entities corpus {} --z 4 --rounds 2 --show-names --json",
    ],
)
def test_names_of_a_corpus(words: str, hostile: Path, capsys: Capture) -> None:
    assert main(words.format(hostile).split()) == 0
    out = capsys.readouterr().out
    assert all(line.replace("\t", " ").isprintable() for line in out.split("\n"))
    assert "owned" in out
    assert "[bold]" in out
    if "--json" in words:
        assert "\x1b]0;owned\x07" in "".join(strings_of(json.loads(out)))  # it reads back as what it was


@pytest.mark.system
def test_names_of_runs(hostile: Path, tmp_path: Path, capsys: Capture) -> None:
    named = tmp_path / "run\n\x1b[2JPrivacy ε 0.01 $\\frac$"
    sizes = tiny.command_line(dict(tiny.MODEL))
    words = ["run", "--engine", "inline", "--corpus", str(hostile), "--rounds", "1", "--out", str(named), *sizes]
    assert main([*words, "--quiet"]) == 0
    shutil.copytree(named, tmp_path / "again")  # equal labels are told apart by the folder's name
    assert main(["report", str(named), str(tmp_path / "again"), "--picture", str(tmp_path / "both.png")]) == 0
    assert main(["report", str(named)]) == 0
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.split("\n"))
    assert not any(line.startswith("Privacy ε 0.01") for line in out.split("\n"))


def test_cells_of_a_sweeps_table() -> None:
    row = Row(settings={"model.name": HOSTILE}, values=[], failed={HOSTILE: HOSTILE}, diverged={})
    text = Table("perplexity", [row], {"note": ""}).text()
    assert all(line.isprintable() for line in text.split("\n"))
