"""The server that runs command lines in forks."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.command_server import CommandServer
from tests.e2e.processes import needs_proc, processes_in, wait_until_none_in, wait_while_running

pytestmark = [pytest.mark.system, needs_proc]


def _run(server: CommandServer, words: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = server.environment(os.environ | variables)
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("start", [["fl-sim"], ["python", "-m", "fl_sim"]], ids=" ".join)
def test_a_command_ends_as_in_a_process_of_its_own(
    command_server: CommandServer, tmp_path: Path, start: list[str]
) -> None:
    done = _run(command_server, [*start, "corpus", "stats", "bundled", "--json"], tmp_path)
    assert (done.returncode, done.stdout[0], done.stderr) == (0, "{", "")
    done = _run(command_server, [*start, "run", "--rounds", "0"], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "fl-sim run: rounds is 0; allowed: an integer in [1, 100000]\n"


def test_a_command_has_the_callers_folder_variables_and_mask(command_server: CommandServer, tmp_path: Path) -> None:
    (tmp_path / "shown.py").write_text(
        "import os, sys\nprint(os.getcwd(), os.environ['SHOWN'], f'{os.umask(0o77):o}', sys.argv[1:])\n",
        encoding="utf-8",
    )
    words = "umask 027; exec fl-sim prepare shown:Reader --out é"
    done = _run(command_server, ["bash", "-c", words], tmp_path, SHOWN="as set")
    assert f"{tmp_path} as set 27 ['prepare', 'shown:Reader', '--out', 'é']" in done.stdout


def test_other_programs_of_python_are_pythons(command_server: CommandServer, tmp_path: Path) -> None:
    assert _run(command_server, ["python", "-c", "import sys; print(sys.flags.isolated)"], tmp_path).stdout == "0\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_signal_ends_program_and_command(
    command_server: CommandServer, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    words = ["fl-sim", "run", "--engine", "inline", "--rounds", "1000", "--out", "run"]
    with subprocess.Popen(words, cwd=tmp_path, env=command_server.environment(), stderr=subprocess.DEVNULL) as program:
        assert wait_while_running(program, (tmp_path / "run" / "config.json").exists, 120) is None
        assert len(processes_in(tmp_path)) >= 2  # program and command
        program.send_signal(number)
        try:
            assert program.wait(120) == code
        finally:
            program.kill()  # the end of the block would wait for it
    assert wait_until_none_in(tmp_path) == {}
