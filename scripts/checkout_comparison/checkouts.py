"""Find two checkouts, and run the command of each as a user would: by the console script that its pyproject names."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkout_comparison.differences import InputError
from checkout_comparison.fork_server import ForkServer

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "fl-sim"
LONGEST = 600.0
"""Seconds after which a command is taken for stuck."""

_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "HF_HUB_OFFLINE": "1",
    "MPLBACKEND": "Agg",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "COLUMNS": "100",
    "NO_COLOR": "1",
}

_START = """
import importlib, sys
module, _, function = sys.argv.pop(1).partition(":")
sys.argv[0] = "fl-sim"
sys.exit(getattr(importlib.import_module(module), function)())
"""

# An editable installation would lend a checkout the modules that it lacks itself: those that moved, above all.
_ISOLATION = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if not getattr(f, "__module__", "").startswith("__editable__")]
"""


class CommandError(RuntimeError):
    """A command of a checkout ended otherwise than it must for its check."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The last line of stderr: the reason, where there is one."""
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else "(nothing on stderr)"


@dataclass(slots=True)
class Side:
    """One of the two checkouts while it is being compared.

    Attributes:
        checkout: its folder.
        target: its console script, ``module:function``.
        work: where its commands run and write.
        older_work: where the older checkout's commands wrote, for what the newer one reads of it.
        said: what each command said, by its step.
        seconds: how long each step took.
    """

    label: str
    checkout: Path
    target: str
    work: Path
    older_work: Path
    said: dict[str, Said] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _server: ForkServer | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment of this checkout's commands: one thread, nothing of other checkouts, no network."""
        return os.environ | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([str(self.checkout), str(self._isolation)])}

    def command(self, words: Sequence[str]) -> list[str]:
        """``fl-sim`` with ``words``, as a list for :mod:`subprocess`."""
        return [sys.executable, "-c", _START, self.target, *words]

    def run(self, words: Sequence[str], *, alone: bool = False) -> Said:
        """Run ``fl-sim`` with ``words``, whatever its exit code; ``alone``, in a process that was started for it."""
        if alone:
            return self._finish(self.command(words))
        if self._server is None:
            self._server = ForkServer(self.target, self.work, self.environment, self._beside("said"))
        return Said(*self._server.run(words, LONGEST))

    def run_python(self, code: str, content: str = "", *words: str) -> Said:
        """Run a program of our own in this checkout's environment, ``content`` on its stdin."""
        return self._finish([sys.executable, "-c", code, *words], content)

    def close(self) -> None:
        """End the process that forks."""
        if self._server is not None:
            self._server.close()

    def prepare(self) -> None:
        """Make the working folder.

        Raises:
            InputError: the checkout's package is imported from elsewhere.
        """
        self._isolation.mkdir(parents=True)
        (self._isolation / "sitecustomize.py").write_text(_ISOLATION, encoding="utf-8")
        package = self.target.partition(".")[0].partition(":")[0]
        done = self.run_python(f"import {package}; print({package}.__file__)")
        if done.code != 0:
            raise InputError(f"{self.checkout}: {done.last_line}")
        if self.checkout not in Path(done.out.strip()).resolve().parents:
            raise InputError(f"{self.checkout}: {package} is imported from {done.out.strip()} instead")

    def _finish(self, command: Sequence[str], content: str = "") -> Said:
        try:
            done = subprocess.run(
                command, cwd=self.work, env=self.environment, input=content, capture_output=True, text=True,
                timeout=LONGEST, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"{self.label}: took longer than {LONGEST:g} s") from error
        return Said(done.returncode, done.stdout, done.stderr)

    @property
    def _isolation(self) -> Path:
        return self._beside("isolation")

    def _beside(self, name: str) -> Path:
        return self.work.parent / f"{self.work.name}-{name}"


def find_checkout(asked: str, folder: Path) -> Path:
    """The checkout that ``asked`` means: a folder, or a git ref, which is cloned into ``folder``.

    Raises:
        InputError: it is neither.
    """
    path = Path(asked).expanduser()
    if path.is_dir():
        return path.resolve()
    found = _git("rev-parse", "--verify", "--quiet", f"{asked}^{{commit}}", "--")
    commit = found.stdout.split()[0] if found.stdout.split() else ""
    if found.returncode != 0 or not commit:
        raise InputError(f"{asked} is neither a folder nor a git ref of {ROOT}")
    for words in (("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(folder)),
                  ("-C", str(folder), "checkout", "--quiet", "--detach", commit)):  # fmt: skip
        done = _git(*words)
        if done.returncode != 0:
            raise InputError(f"{asked}: {done.stderr.strip().splitlines()[-1]}")
    return folder.resolve()


def console_script(checkout: Path) -> str:
    """What ``fl-sim`` runs in ``checkout``, as ``module:function``; its pyproject.toml says it.

    Raises:
        InputError: the folder is no checkout of fl_sim.
    """
    try:
        target = read_pyproject(checkout)["project"]["scripts"][SCRIPT]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{checkout} is no checkout of fl_sim: its pyproject.toml names no script {SCRIPT}") from error
    return str(target)


def read_pyproject(checkout: Path) -> Mapping[str, Any]:
    """The content of the checkout's pyproject.toml."""
    return tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
