"""A process per checkout that has the libraries loaded and forks a child for every command.

A new process takes seconds to import torch, Flower and transformers; a fork already has them. No code of the checkout
is loaded before the fork, so that every command imports it afresh and is independent of the others.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_PRELOADED = [
    "torch", "torch.func", "torch.nn.utils.parametrize", "numpy", "scipy.stats", "scipy.optimize", "scipy.special",
    "pandas", "pyarrow.parquet", "matplotlib.pyplot", "matplotlib.backends.backend_agg", "safetensors.torch",
    "tokenizers", "transformers.models.gpt2.modeling_gpt2", "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto", "peft", "flwr.server", "flwr.serverapp", "flwr.clientapp",
    "flwr.simulation", "dp_accounting.rdp", "pydantic", "rich.progress", "spacy", "sklearn.linear_model", "faker",
]  # fmt: skip
"""Third-party packages that commands load; one that is not installed is skipped."""

# Reads one command per line, {"words", "out", "err", "seconds"}, and answers each with a line: its exit code.
_PROGRAM = """
import contextlib, importlib, json, os, signal, sys, traceback

target, preloaded = sys.argv[1], json.loads(sys.argv[2])
for name in preloaded:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)

def work(request):
    signal.alarm(request["seconds"])
    for number, path in ((1, request["out"]), (2, request["err"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["fl-sim", *request["words"]]
    module, _, function = target.partition(":")
    try:
        code = getattr(importlib.import_module(module), function)()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code or 0))

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        work(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class ForkServer:
    """The fork server of one checkout. Use it from one thread at a time, and close it.

    Args:
        target: the checkout's console script, ``module:function``.
        work: working folder of the commands.
        environment: their environment variables.
        output: folder for their output.
    """

    def __init__(self, target: str, work: Path, environment: Mapping[str, str], output: Path) -> None:
        self._output = output
        output.mkdir(parents=True, exist_ok=True)
        with (output / "server.err").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, target, json.dumps(_PRELOADED)], cwd=work, env=dict(environment),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip

    def run(self, words: Sequence[str], seconds: float) -> tuple[int, str, str]:
        """Run a command; return its exit code (negative if a signal ended it), stdout and stderr."""
        if self._process.stdin is None or self._process.stdout is None:
            raise OSError("the fork server has no pipes")
        out, err = self._output / "out", self._output / "err"
        request = {"words": list(words), "out": str(out), "err": str(err), "seconds": int(seconds)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise OSError(f"the fork server ended: {(self._output / 'server.err').read_text()[-300:]}")
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in (out, err)]
        return int(answer), texts[0], texts[1]

    def close(self) -> None:
        """End the fork server."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
