"""The benchmarks of docs/performance.md start, and print their tables, at the smallest size."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.system

CONTENDERS = "--users=40 --cohort=4 --sentences=2 --only 'ours user_level' 'torch loop'"
COMMANDS = {
    f"engine_comparison.py --turns=1 --rounds=1 {CONTENDERS}": "ours user_level / torch loop: ",
    "main_job.py --config=conf/bundled.toml --set=privacy.q_s=0.01 --turns=1 --only plain inline": "speed per core-",
    "population_growth.py --users=100 --rounds=3 --folder=FOLDER": "| 100 | ",
}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split(".")[0])
def test_it_prints_its_table(command: str, tmp_path: Path) -> None:
    script, *arguments = shlex.split(command.replace("FOLDER", str(tmp_path)))
    run = [sys.executable, str(REPOSITORY / "benchmarks" / script), *arguments]
    done = subprocess.run(run, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert COMMANDS[command] in done.stdout
