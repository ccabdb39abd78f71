"""Private rounds on a machine that has torch and transformers, and nothing else of what fl_sim needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS_ALONE = "flwr ray spacy pyarrow pydantic dp_accounting gensim presidio_analyzer opacus"
ALSO_OF_TRANSFORMERS = "pandas rich scipy sklearn matplotlib datasets peft"
"""What transformers imports where it is installed, so that it can be taken away from our own imports alone."""

STEP = """
import sys

class Absent:
    def __init__(self, names):
        self.names = names.split()

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            raise ModuleNotFoundError(name)

ours, optional = map(Absent, sys.argv[1:])
sys.meta_path[:0] = [ours, optional]
sys.path.insert(0, "benchmarks")
import argparse, json, threading
import private_step
sys.meta_path.remove(optional)

private_step._hold(threading.Barrier(1))
sizes = {"layers": 1, "hidden": 16, "heads": 2, "vocabulary": 50, "sentences": 6, "tokens": 5}
args = argparse.Namespace(device="cpu", precision="bfloat16", turns=1, checkpointing=False, tf32=False, **sizes)
found = private_step.measure(args)
print(json.dumps({name: len(turns) for name, turns in found.items()}))
"""


@pytest.mark.system
def test_private_steps_and_rounds_need_torch_and_transformers_alone() -> None:
    command = [sys.executable, "-c", STEP, OURS_ALONE, ALSO_OF_TRANSFORMERS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "fused batch": 1, "uedp": 1, "uedp, ŵ 1": 1, "round": 1, "parameters": 1
    }  # fmt: skip
