"""The frame of the command line: which errors are bad input and which are bugs, and what is said of them."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from fl_sim.cli import main as cli
from fl_sim.cli.commands import run_command
from fl_sim.cli.flags import KEYS
from fl_sim.cli.main import main
from fl_sim.cli.verbs import VERBS
from fl_sim.config import ConfigError
from fl_sim.data_prep.records import CorpusError
from fl_sim.storage.run_folder import ResultsError
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
