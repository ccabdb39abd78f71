"""The plain installation, without the extra ``text``: ε, its accounting, and private Flower apps of any framework."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.extra_environments import python_with

PROGRAM = """
import sys
from pathlib import Path
from fl_sim.cli.main import main
from tests.fl_sim.flower.apps import nodes_of, train

folder = Path(sys.argv[1])
_, strategy = train(folder / "run", nodes_of(3), rounds=2)
print(f"{strategy.epsilon():.6f}")
assert main(["account", "ledger", str(folder / "run"), "--json"]) == 0
print("what needs the text packages:", file=sys.stderr)
sys.exit(main(["run", "--corpus", "bundled"]))
"""


@pytest.mark.system
def test_a_flower_app_is_private_and_accounted_for_and_what_needs_the_text_packages_says_so(tmp_path: Path) -> None:
    python = python_with("", tmp_path / "environment", "pytest")
    done = subprocess.run(
        [python, "-c", PROGRAM, str(tmp_path)], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2, done.stderr
    epsilon, figures = done.stdout.split("\n", 1)
    assert f'"epsilon_user": {epsilon[:4]}' in figures
    refusal = done.stderr.partition("what needs the text packages:\n")[2]
    assert re.fullmatch(r"fl-sim run: \w+ is not installed: pip install 'fl-sim\[text\]'\n", refusal), done.stderr
