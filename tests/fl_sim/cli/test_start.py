"""What the process of a run imports: nothing of torch's compiler, nor transformers' list of all models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import MODEL, command_line, tiny_corpus

UNWANTED = [
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.tensor",
    "transformers.models.auto.tokenization_auto",  # half a second
    "accelerate",
    "sklearn",
    "spacy",
    "ray",
]

_PROGRAM = f"""
import json, sys
from fl_sim.cli.main import main
out = sys.argv[-1]
codes = [
    main([*sys.argv[1:-1], f"out={{out}}/{{name}}", "--set", f"model.name={{name}}"])
    for name in ("small-gpt2", "awd-lstm")
]
print(json.dumps([codes, [name for name in {UNWANTED!r} if name in sys.modules]]))
"""


@pytest.mark.system
def test_a_run_loads_neither_the_compiler_nor_its_algebra(tmp_path: Path) -> None:
    settings = {"corpus.path": tiny_corpus(tmp_path / "corpus"), "rounds": 1, "engine.name": "inline", **MODEL}
    arguments = ["run", "--quiet", *command_line(settings), "--set", str(tmp_path / "runs")]
    done = subprocess.run([sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [[0, 0], []]
