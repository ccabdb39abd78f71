"""Find two checkouts and run the command of each as a user would: by the console script named in its pyproject."""

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
"""Seconds after which a command is treated as hanging."""

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

# An editable installation would supply modules that a checkout itself lacks, such as moved ones.
_ISOLATION = """
import os, sys
is_file = os.path.isfile
sys.path[2:] = [p for p in sys.path[2:] if not (is_file(f"{p}/pyproject.toml") and is_file(f"{p}/fl_sim/__init__.py"))]
sys.meta_path[:] = [f for f in sys.meta_path if not getattr(f, "__module__", "").startswith("__editable__")]
"""


class CommandError(RuntimeError):
    """A command of a checkout did not end as its check requires."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The last line of stderr: the reason of a failure."""
        lines = self.err.strip().splitlines()
        return lines[-1] if lines else "(nothing on stderr)"


@dataclass(slots=True)
class Side:
    """One of the two checkouts during the comparison.

    Attributes:
        label: ``old`` or ``new``.
        checkout: its folder.
        target: its console script, ``module:function``.
        work: working folder of its commands.
        older_work: working folder of the older checkout, whose files the newer one reads.
        results: the result of each command, by step.
        seconds: duration of each step.
    """

    label: str
    checkout: Path
    target: str
    work: Path
    older_work: Path
    results: dict[str, CommandResult] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _server: ForkServer | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment of this checkout's commands: one thread, no network, nothing from other checkouts."""
        return os.environ | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([str(self.checkout), str(self._isolation)])}

    def command(self, words: Sequence[str]) -> list[str]:
        """Return the command ``fl-sim`` with ``words``, as a list for :mod:`subprocess`."""
        return [sys.executable, "-c", _START, self.target, *words]

    def run(self, words: Sequence[str], *, alone: bool = False) -> CommandResult:
        """Run ``fl-sim`` with ``words``, in a fork or (``alone``) in a new process; any exit code is accepted."""
        if alone:
            return self._finish(self.command(words))
        if self._server is None:
            self._server = ForkServer(self.target, self.work, self.environment, self._sibling("output"))
        return CommandResult(*self._server.run(words, LONGEST))

    def run_python(self, code: str, content: str = "", *words: str) -> CommandResult:
        """Run a Python program in this checkout's environment.

        Args:
            code: source of the program.
            content: its standard input.
            words: its arguments.
        """
        return self._finish([sys.executable, "-c", code, *words], content)

    def close(self) -> None:
        """End the fork server."""
        if self._server is not None:
            self._server.close()

    def prepare(self) -> None:
        """Make the working folder.

        Raises:
            InputError: the checkout's package is imported from somewhere else.
        """
        self._isolation.mkdir(parents=True)
        (self._isolation / "sitecustomize.py").write_text(_ISOLATION, encoding="utf-8")
        package = self.target.partition(".")[0].partition(":")[0]
        result = self.run_python(f"import {package}; print({package}.__file__)")
        if result.code != 0:
            raise InputError(f"{self.checkout}: {result.last_line}")
        if self.checkout not in Path(result.out.strip()).resolve().parents:
            raise InputError(f"{self.checkout}: {package} is imported from {result.out.strip()} instead")

    def _finish(self, command: Sequence[str], content: str = "") -> CommandResult:
        try:
            done = subprocess.run(
                command, cwd=self.work, env=self.environment, input=content, capture_output=True, text=True,
                timeout=LONGEST, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"{self.label}: took longer than {LONGEST:g} s") from error
        return CommandResult(done.returncode, done.stdout, done.stderr)

    @property
    def _isolation(self) -> Path:
        return self._sibling("isolation")

    def _sibling(self, name: str) -> Path:
        return self.work.parent / f"{self.work.name}-{name}"


def find_checkout(folder_or_ref: str, clone: Path) -> Path:
    """Return the folder of a checkout.

    Args:
        folder_or_ref: a folder, or a git ref of this repository.
        clone: new folder into which a git ref is cloned.

    Raises:
        InputError: it is neither a folder nor a git ref.
    """
    path = Path(folder_or_ref).expanduser()
    if path.is_dir():
        return path.resolve()
    parsed = _git("rev-parse", "--verify", "--quiet", f"{folder_or_ref}^{{commit}}", "--")
    commit = parsed.stdout.split()[0] if parsed.stdout.split() else ""
    if parsed.returncode != 0 or not commit:
        raise InputError(f"{folder_or_ref} is neither a folder nor a git ref of {ROOT}")
    for words in (("clone", "--quiet", "--shared", "--no-checkout", str(ROOT), str(clone)),
                  ("-C", str(clone), "checkout", "--quiet", "--detach", commit)):  # fmt: skip
        done = _git(*words)
        if done.returncode != 0:
            raise InputError(f"{folder_or_ref}: {done.stderr.strip().splitlines()[-1]}")
    return clone.resolve()


def console_script(checkout: Path) -> str:
    """Return what ``fl-sim`` runs in ``checkout``, as ``module:function``, from its pyproject.toml.

    Raises:
        InputError: the folder is not a checkout of fl_sim.
    """
    try:
        target = read_pyproject(checkout)["project"]["scripts"][SCRIPT]
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{checkout} is no checkout of fl_sim: its pyproject.toml names no script {SCRIPT}") from error
    return str(target)


def read_pyproject(checkout: Path) -> Mapping[str, Any]:
    """Return the content of the checkout's pyproject.toml."""
    return tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
