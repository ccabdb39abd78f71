"""The frame of the command line: what is bad input and what a bug, no name that a terminal obeys, and completion."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from pydantic import BaseModel, ValidationError

from fl_sim.cli import main as cli
from fl_sim.cli.commands import run_command
from fl_sim.cli.flags import KEYS
from fl_sim.cli.main import SafeStream, main, safe_streams
from fl_sim.cli.verbs import VERBS, fl_sim
from fl_sim.config import ConfigError
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.formats import printable, printable_lines, table_cell
from fl_sim.search.sweep import Row, Table
from fl_sim.storage.run_folder import ResultsError
from tests import tiny
from tests.fl_sim.conftest import Capture, Refusal


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``failing(error)`` makes ``fl-sim run`` raise it."""

    def arrange(error: BaseException) -> None:
        def run(**settings: Any) -> int:
            raise error

        monkeypatch.setattr(run_command.run, "callback", run)

    return arrange


def noted(error: BaseException, *notes: str) -> BaseException:
    for note in notes:
        error.add_note(note)
    return error


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError("rounds is 0; allowed: more"), "rounds is 0; allowed: more"),
        (CorpusError("two\n lines"), "two lines"),
        (noted(ResultsError("r"), "what was done is in x"), "r; what was done is in x"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "a/b"), "a/b: No such file or directory"),
        (noted(no_space(), "one", "two\nlines"), "No space left on device; one; two lines"),
        (MemoryError("Unable to allocate 6.91 TiB"), "out of memory: Unable to allocate 6.91 TiB"),
    ],
)
def test_bad_input_is_one_line(error: Exception, line: str, failing: Any, capsys: Capture) -> None:
    failing(error)
    assert main(["run"]) == 2
    assert capsys.readouterr() == ("", f"fl-sim run: {line}\n")


def a_validation_error() -> ValidationError:
    class Model(BaseModel):
        x: int

    with pytest.raises(ValidationError) as caught:
        Model.model_validate({})
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        ValueError("numpy said so"),
        TypeError("x"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "x"),
        json.JSONDecodeError("x", "x", 0),
        OSError("no number and no file"),
        a_validation_error(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_bug_shows_its_traceback(error: Exception, failing: Any) -> None:
    failing(error)
    with pytest.raises(type(error)):
        main(["run"])


def test_an_error_of_a_package_with_a_similar_name_is_not_ours() -> None:
    foreign = type("Error", (ValueError,), {"__module__": "cloud.clients.errors"})
    assert not cli._is_foreseen(foreign("x"))
    ours = type("Error", (ValueError,), {"__module__": "fl_sim.clients.errors"})
    assert cli._is_foreseen(ours("x"))


def test_an_interruption(failing: Any, capsys: Capture) -> None:
    failing(noted(KeyboardInterrupt(), "what was done is in x"))
    assert main(["run"]) == 130
    assert capsys.readouterr().err == "fl-sim run: interrupted; what was done is in x\n"


def test_an_error_that_a_library_made_of_an_interruption(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def run(**settings: Any) -> int:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ConfigError("x cannot be loaded")

    monkeypatch.setattr(run_command.run, "callback", run)
    assert main(["run"]) == 130
    assert capsys.readouterr().err == "fl-sim run: interrupted; x cannot be loaded\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["rnu"], "fl-sim: No such command 'rnu'. Did you mean 'run'? (see fl-sim --help)"),
        (["run", "--epsilon", "2"], "fl-sim run: No such option '--epsilon'. (Did you mean one of: '--epsilon-b"),
        (["run", "--rounds"], "fl-sim run: Option '--rounds' requires an argument (see fl-sim run --help)"),
        (["run", "a.toml", "b.toml"], "fl-sim run: Got unexpected extra argument (b.toml) (see fl-sim run --help)"),
        (["audit", "mechanism"], "fl-sim audit mechanism: --z is missing (see fl-sim audit mechanism --help)"),
        (["sweep", "--out", "x"], "fl-sim sweep: CONFIG is missing (see fl-sim sweep --help)"),
        (["account", "mechanism", "--z", "x"], "fl-sim account mechanism: --z: 'x' is not a valid float (see fl-sim"),
        (
            ["account", "mechanism", "--clipping", "x"],
            "fl-sim account mechanism: --clipping is 'x'; allowed: sentence, automatic, user (see fl-sim ",
        ),
        (["audit"], "fl-sim audit: Missing command (see fl-sim audit --help)"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], line: str, refusal: Refusal) -> None:
    assert refusal(*arguments).startswith(line)


def test_no_verb_prints_the_help_screen(capsys: Capture) -> None:
    assert main([]) == 0
    screen = capsys.readouterr().out
    verbs = [verb for group in VERBS.values() for verb in group]
    assert all(f"\n  {verb} " in screen for verb in verbs)
    assert max(map(len, screen.splitlines())) <= 80
    assert len(verbs) == 18


@pytest.mark.parametrize("verb", [verb for group in VERBS.values() for verb in group])
def test_every_verb_has_help(verb: str, capsys: Capture) -> None:
    assert main([verb, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: fl-sim {verb} ")


def test_the_flags_of_run_are_a_contract() -> None:
    flags = [
        "corpus", "strategy", "rounds", "q-u", "q-e", "q-s", "z", "clip-norm", "user-cap", "delta", "clipping",
        "estimator", "noise", "target-epsilon", "epsilon-budget", "model", "engine", "nodes", "seed", "out", "anchor",
        "target-unit", "known", "entity-bound", "user-sentences",
    ]  # fmt: skip
    words = [word for flag in flags for word in (f"--{flag}", "1")]
    asked = ["file.toml", *words, "--secure-noise", "--set", "a=1", "--set", "b=2", "--json", "--quiet"]
    values = run_command.run.make_context("run", asked).params
    assert all(values[key.replace(".", "__")] == "1" for key, (_, metavar) in KEYS.items() if metavar)
    assert len(KEYS) == len(flags) + 1
    assert (str(values["config"]), values["assignments"]) == ("file.toml", ("a=1", "b=2"))
    assert values["as_json"] is values["quiet"] is True
    assert values["privacy__secure_noise"] == "true"


def test_a_letter_that_the_terminal_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    cli._tolerate_narrow_terminals()
    print("ε = 2", flush=True)
    assert raw.getvalue() == b"\\u03b5 = 2\n"


@pytest.mark.system
def test_nobody_reads_the_output() -> None:
    program = (
        "import sys\nfrom fl_sim.cli import main as cli\nfrom fl_sim.cli.commands import run_command\n"
        "run_command.run.callback = lambda **settings: print('x' * 200_000)\nsys.exit(cli.main(['run']))"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(timeout=60) == cli.EXIT_NO_READER
        assert process.stderr.read() == b""


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


CASES = [
    ("", "re", {"report", "resume", "represent", "reproduce"}),
    ("run", "--eng", {"--engine"}),
    ("run --engine", "", {"ray", "inline"}),
    ("run --set", "engine.num_", {"engine.num_cpus=", "engine.num_gpus="}),
    ("run --strategy", "u", {"uedp", "user_level"}),
    ("run --corpus", "b", {"bundled", "b/"}),
    ("corpus", "sta", {"stats"}),
    ("corpus stats", "b", {"bundled", "b/"}),
    ("prepare", "js", {"jsonl"}),
    ("prepare jsonl", "--so", {"--source"}),
    ("report", "b", {"b/"}),
    ("run", "ma", {"ma*"}),
    ("audit mechanism --clipping", "", {"sentence", "automatic", "user"}),
]


@pytest.mark.parametrize(("words", "incomplete", "expected"), CASES, ids=[" ".join(case[:2]) for case in CASES])
def test_what_is_completed(words: str, incomplete: str, expected: set[str]) -> None:
    """A file or folder is left to the shell; ``b/`` stands for a folder and ``ma*`` for a file here."""
    items = ShellComplete(fl_sim, {}, "fl-sim", "_FL_SIM_COMPLETE").get_completions(words.split(), incomplete)
    kinds = {"plain": "", "dir": "/", "file": "*"}
    assert {f"{item.value}{kinds[item.type]}" for item in items} == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_shell_gets_its_script(shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("_FL_SIM_COMPLETE", f"{shell}_source")
    assert main([]) == 0
    assert f"_FL_SIM_COMPLETE={shell}_complete" in capsys.readouterr().out
