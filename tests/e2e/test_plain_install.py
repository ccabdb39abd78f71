"""The plain installation, without the extra ``text``: ε, its accounting, and private Flower apps of any framework."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.extra_environments import python_with

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return python_with("", tmp_path_factory.mktemp("plain") / "environment", "pytest")


def plain(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python where nothing of the extra ``text`` is installed."""
    return subprocess.run([python, *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)


def test_a_flower_app_is_private_and_accounted_for_without_the_text_packages(python: Path, tmp_path: Path) -> None:
    done = plain(
        python,
        "-c",
        """
import sys
from pathlib import Path
from fl_sim.cli.main import main
from tests.fl_sim.flower.apps import nodes_of, train

folder = Path(sys.argv[1])
_, strategy = train(folder / "run", nodes_of(3), rounds=2)
print(f"{strategy.epsilon():.6f}")
sys.exit(main(["account", "ledger", str(folder / "run"), "--json"]))
""",
        str(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    epsilon, figures = done.stdout.split("\n", 1)
    assert f'"epsilon_user": {epsilon[:4]}' in figures


def test_what_needs_the_text_packages_says_so_in_one_line(python: Path) -> None:
    done = plain(python, "-m", "fl_sim", "run", "--corpus", "bundled")
    assert done.returncode == 2
    assert re.fullmatch(r"fl-sim run: \w+ is not installed: pip install 'fl-sim\[text\]'\n", done.stderr), done.stderr
