"""The plain installation, without the extra ``text``: ε, its accounting, and private Flower apps of any framework."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.system

_PROLOGUE = """
import sys
from pathlib import Path

ABSENT = set(sys.argv[1].split(","))

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
folder = Path(sys.argv[2])
"""


def text_packages() -> set[str]:
    """The import names of what the extra ``text`` adds."""
    extra = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]["text"]
    return {re.split(r"[\[<>=]", need)[0].lower() for need in extra} - {"flwr"} | {"ray"}


def plain(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script as if nothing of the extra ``text`` were installed."""
    words = [sys.executable, "-c", _PROLOGUE + script, ",".join(text_packages()), str(folder)]
    return subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)


def test_a_flower_app_is_private_and_accounted_for_without_the_text_packages(tmp_path: Path) -> None:
    done = plain(
        """
from fl_sim.cli.main import main
from tests.fl_sim.flower.apps import nodes_of, train

_, strategy = train(folder / "run", nodes_of(3), rounds=2)
print(f"{strategy.epsilon():.6f}")
sys.exit(main(["account", "ledger", str(folder / "run"), "--json"]))
""",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    epsilon, figures = done.stdout.split("\n", 1)
    assert f'"epsilon_user": {epsilon[:4]}' in figures


def test_what_needs_the_text_packages_says_so_in_one_line(tmp_path: Path) -> None:
    done = plain("from fl_sim.cli.main import main\nsys.exit(main(['run', '--corpus', 'bundled']))", tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(r"fl-sim run: \w+ is not installed: pip install 'fl-sim\[text\]'\n", done.stderr), done.stderr
