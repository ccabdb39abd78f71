"""The memory of a worker, counted without weights, is what a worker with weights takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fl_sim.cli.main import main
from fl_sim.clients.batches import Example
from fl_sim.clients.gradients.clipped_sums import GradientSum
from fl_sim.clients.gradients.ghost_pass import gradient_path
from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.engines.worker_memory import GIB, LiveBytes, WorkerMemory, _needed, budgets, worker_memories


def worker_memory(spec: ModelSpec, tokens: int) -> WorkerMemory:
    return next(worker_memories(spec, [tokens]))


SIZES = {"hidden": 64, "layers": 3, "heads": 2, "max_tokens": 48}
WAYS: dict[str, dict[str, Any]] = {
    "all": {},
    "bfloat16": {"precision": "bfloat16"},
    "checkpointing": {"checkpointing": True},
    "adapters": {"lora_rank": 4},
    "adapters, bfloat16": {"lora_rank": 4, "precision": "bfloat16", "frozen_precision": "bfloat16"},
    "biases": {"tune": "bias"},
    "awd-lstm": {"name": "awd-lstm", "hidden": 32, "layers": 2, "embedding": 16},
}
ROWS = 12


@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS)
def test_counted_bytes_are_those_of_tensors_with_values(way: str) -> None:
    spec = ModelSpec(**(SIZES | WAYS[way]))
    model = load_model(spec, seed=0)
    longest = model.task.longest(model.max_tokens)
    counted = worker_memory(spec, ROWS * longest)
    assert gradient_path(model).name == "fast"
    tokens = np.random.default_rng(0).integers(0, model.vocabulary_size, size=(ROWS, longest))
    sentences = [Example(row, target=0, number=number) for number, row in enumerate(tokens)]
    with LiveBytes([*model.module.parameters(), *model.module.buffers()]) as live:
        total = GradientSum(model)
        assert total.add_clipped(model.batch(sentences, 0), 1.0, dict(total.views))
    assert counted.trainable == model.num_parameters
    assert counted.sum + counted.batch == pytest.approx(live.peak, rel=0.02)


CHILD = """
import resource, sys
from pathlib import Path
from fl_sim.clients.gradients.clipped_sums import clip_one_batch
from fl_sim.clients.batches import Example
from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.model_spec import ModelSpec
import json, numpy as np, torch
torch.set_num_threads(1)
spec = ModelSpec(**json.loads(sys.argv[1]))
clip_one_batch(small := load_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0), small.encode(["Ada left."]))
before = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
model = load_model(spec, seed=0)
rows = np.random.default_rng(0).integers(0, model.vocabulary_size, size=(int(sys.argv[2]), spec.max_tokens + 1))
clip_one_batch(model, [Example(row, number=number) for number, row in enumerate(rows)])
(peak,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
print(int(peak.split()[1]) * 1024 - before)  # ru_maxrss counts the process that this one was forked from
"""


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("changes", [{}, {"checkpointing": True}], ids=str)
def test_the_count_is_within_a_fifth_of_a_process(changes: dict[str, Any]) -> None:
    """Of a process with this model beside one without it, at their peaks, on the CPU."""
    settings = {"hidden": 512, "layers": 4, "heads": 8, "max_tokens": 128, **changes}
    rows = 24
    command = [sys.executable, "-c", CHILD, json.dumps(settings), str(rows)]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed goes back, as on a GPU
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    measured = int(run.stdout)
    counted = worker_memory(ModelSpec(**settings), rows * (settings["max_tokens"] + 1))
    assert 0.8 < counted.total / measured < 1.2


ADAPTERS = {"lora_rank": 16, "precision": "bfloat16", "frozen_precision": "bfloat16"}
ON_AN_H100 = [
    ({}, 129, 1.179),
    ({}, 1024, 2.232),
    ({}, 8192, 10.329),
    ({"precision": "bfloat16"}, 8192, 8.566),
    (ADAPTERS, 8192, 6.004),
]
"""Settings of GPT-2 124 M, padded tokens of a batch, most GiB allocated in a pass on an H100 (docs/performance.md)."""


@pytest.mark.nightly
@pytest.mark.parametrize(("settings", "tokens", "measured"), ON_AN_H100)
def test_the_count_is_within_a_tenth_of_a_gpu(
    tmp_path: Path, settings: dict[str, Any], tokens: int, measured: float
) -> None:
    from transformers import GPT2Config

    GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0).save_pretrained(tmp_path)
    spec = ModelSpec(name=str(tmp_path), device="cuda", **settings)
    counted = worker_memory(spec, tokens)
    assert (counted.model + counted.sum + counted.batch) / GIB == pytest.approx(measured, rel=0.1)


@pytest.mark.nightly
def test_a_way_that_fits_has_the_largest_batch_that_does() -> None:
    spec = ModelSpec(**SIZES, device="cuda")
    whole = worker_memory(spec, 8192)
    found = [next(budgets(spec, memory, {"all": {}})) for memory in (4 * GIB, _needed(whole) - 1, GIB // 2)]
    assert [budget.fits for budget in found] == [True, True, False]
    assert found[0].memory == whole
    assert found[1].memory == worker_memory(spec, 4096)
    assert found[2].memory.batch_tokens == 49  # one sentence
    assert found[0].server == 32 * whole.trainable


@pytest.mark.nightly
def test_the_command_prints_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", "--model", "small-gpt2", "--set", "model.hidden=16", "--quiet"]
    assert main([*words, "--gpu-memory", "4", "--json"]) == 0
    (way,) = json.loads(capsys.readouterr().out)["ways"]
    assert way["fits"] is True
    assert way["memory"]["batch_tokens"] <= 8192
    assert main([*words, "--gpu-memory", "0.1"]) == 1
    assert " no " in capsys.readouterr().out


@pytest.mark.nightly
def test_a_model_that_is_no_transformer_has_one_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", "awd-lstm", "--gpu-memory", "16", "--json", "--quiet"]) == 0
    assert [way["setting"] for way in json.loads(capsys.readouterr().out)["ways"]] == ["all parameters"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpu-memory", "3"], "--gpu-memory is given without --model"),
        (["--set", "model.lora_rank=3"], "--set is given without --model"),
        (["--model", "no-such-model", "--gpu-memory", "3"], "cannot load model 'no-such-model'"),
        (["--model", "small-gpt2", "--gpu-memory", "-1"], "--gpu-memory is -1.0; allowed: a number of GiB above 0"),
        (["--model", "small-gpt2", "--gpu-memory", "nan"], "--gpu-memory is nan"),
        (["--model", "small-gpt2", "--gpu-memory", "4", "--set", "rounds=3"], "--set is rounds; allowed"),
        (["--model", "small-gpt2", "--gpu-memory", "4", "--set", "model.device=cpu"], "--set is model.device"),
        (["--model", "small-gpt2", "--gpu-memory", "4", "--set", "model.tune=head"], "model.tune is 'head'"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert main(["doctor", *words, "--quiet"]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert "\n" not in error


@pytest.mark.nightly
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_its_memory_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", "small-gpt2", "--quiet"]) == 2
    assert "there is no GPU here" in capsys.readouterr().err
