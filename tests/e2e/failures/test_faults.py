"""A few of the faults of ``benchmarks/inject_faults.py``, which lets every write, sync and rename fail."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="needs a C compiler, and Linux")
def test_faults_lose_nothing_and_are_said_in_one_line() -> None:
    words = [sys.executable, "benchmarks/inject_faults.py", "--what", "run", "prepare", "--every", "250"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    seeded, secure, prepared = done.stdout.splitlines()
    for line, least in ((seeded, 2), (secure, 2), (prepared, 2)):
        operations, faults = (int(number) for number in re.findall(r"(\d+) (?:operations|faults)", line))
        assert operations > 100
        assert faults >= least
