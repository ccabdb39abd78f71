"""Any bad input gives one clear line and exit code 2, and leaves nothing behind.

A row of a table is an argument list (or a broken folder) and the words that the line must contain.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from fl_sim.cli.main import main
from fl_sim.storage.checkpoint import Checkpoint
from tests import tiny

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True, scope="module")
def without_plots() -> Iterator[None]:
    """Skip the plots, which take longer than a tiny run."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fl_sim.reporting.plots.write_run_plots", lambda run: None)
        yield


@pytest.fixture(scope="module")
def corpus() -> Path:
    """Return a valid prepared corpus."""
    return tiny.shared_corpus()


@pytest.fixture(scope="module")
def finished(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    sizes = tiny.command_line(dict(tiny.MODEL))
    arguments = ["--engine", "inline", "--corpus", str(corpus), "--rounds", "2", "--out", str(out), *sizes]
    assert main(["run", *arguments, "--json", "--quiet"]) == 0
    return out


@pytest.fixture
def unfinished(finished: Path, tmp_path: Path) -> Path:
    """Return a run folder as a killed run leaves it."""
    folder = tmp_path / "unfinished"
    shutil.copytree(finished, folder)
    (folder / "result.json").unlink()
    return folder


def refused(arguments: list[str], capsys: Capture) -> str:
    """Return the one line with which ``fl-sim`` refuses ``arguments`` (exit code 2)."""
    capsys.readouterr()
    code = main(arguments)
    output = capsys.readouterr()
    assert code == 2, output
    assert output.out == ""
    assert output.err.endswith("\n")
    assert output.err.count("\n") == 1, output.err
    assert "Traceback" not in output.err
    return output.err


def says(line: str, words: str) -> None:
    """Check that ``line`` contains all of ``words``, separated by ``|``."""
    for word in words.split("|"):
        assert word in line, line


# fmt: off
ARGUMENTS = [
    # flags
    ("--set rounds", "'rounds'|section.key=value"),
    ("--set rounds=1 --set rounds=2", "rounds is 1 and 2"),
    ("--z 2 --set privacy.noise_multiplier=3", "privacy.noise_multiplier is 3 and 2"),
    # keys
    ("--set privacy.qu=0.5", "'privacy.qu'|did you mean 'privacy.q_u'?|known in privacy"),
    ("--set privacy=2", "privacy is 2|a section"),
    # rates, noise, clips
    ("--q-u 0", "privacy.q_u is 0|in [1e-15, 1]"),
    ("--q-s nan", "privacy.q_s is nan|in [1e-15, 1]"),
    ("--clip-norm 0", "privacy.clip_norm is 0|a number in [1e-12,"),
    ("--target-epsilon 0", "privacy.target_epsilon is 0|above 0"),
    ("--z 3 --target-epsilon 2", "noise_multiplier is 3|target_epsilon is 2|not both"),
    # bounds, and what may not be read off the corpus
    ("--set privacy.known=all", "privacy.known is 'all'|counts, graph, nothing"),
    ("--set privacy.entity_users=3", "privacy.entity_users is 3 and privacy.known is counts|privacy.known = graph"),
    ("--set privacy.known=graph --set privacy.entity_users=3 --set privacy.entity_bound=unbounded",
     "privacy.entity_users is 3|entity_bound"),
    ("--strategy user_level --set privacy.entity_bound=3",
     "privacy.entity_bound is 3 under user_level|a clip on every sentence"),
    ("--set privacy.clipping=user", "privacy.entity_bound is 10 under uedp|a clip on every sentence|known = graph"),
    ("--set privacy.counts={tmp}/nothing", "{tmp}/nothing|cannot be read|No such file|a file"),
    ("--set privacy.counts={file}", "{file}|its content: Invalid JSON|what fl-sim corpus counts writes"),
    ("--strategy dp", "privacy.strategy is 'dp'|uedp, user_level, published, noiseless"),
    ("--strategy noiseless --epsilon-budget 2", "privacy.epsilon_budget is 2|noiseless"),
    # types
    ("--rounds many", "rounds is 'many'|an integer"),
    ("--set seed=true", "seed is true|an integer"),
    # engine
    ("--engine cloud", "engine.name is 'cloud'|ray, inline"),
    ("--set engine.address=auto --set engine.num_cpus=2", "engine.num_cpus is 2|engine.address is 'auto'"),
    # model
    ("--set model.hidden=15 --set model.heads=2", "hidden is 15|a multiple"),
    ("--model {tmp}/nothing", "{tmp}/nothing|no such local folder"),
    ("--model {tmp}", "cannot load model|{tmp}"),
    ("--model nobody/no-such-model", "nobody/no-such-model|HF_HUB_OFFLINE"),
    ("--set model.tokenizer={tmp}", "cannot load tokenizer|{tmp}"),
    # corpus
    ("--corpus {tmp}/nothing", "{tmp}/nothing|fl-sim prepare"),
    ("--corpus {tmp}", "{tmp}|manifest.json|fl-sim prepare"),
    ("--corpus {file}", "{file}"),
    ("--corpus=", "corpus.path is ''|not empty"),
    ("--set corpus.train_split=nope", "corpus.train_split is 'nope'|train, validation"),
    ("--set corpus.held_out_split=train", "corpus.held_out_split is 'train'|another split"),
    ("--set corpus.train_split=lonely", "corpus.train_split is 'lonely'|one user|at least 2"),
    ("--set corpus.train_split=plain", "'plain'|no entity|user_level"),
    # output
    ("--out {tmp}/full", "{tmp}/full|not empty"),
    ("--out {file}", "{file}|is a file"),
    ("--out {file}/below", "{file}/below|is a file, or lies below one"),
    ("--out /proc/fl-sim-run", "/proc/fl-sim-run|cannot be written"),
    ("--out {tmp}/" + "n" * 300, "cannot be written|too long"),
    # configuration files
    ("{tmp}/nothing.toml", "{tmp}/nothing.toml|cannot be read|No such file"),
    ("{tmp}", "{tmp}|cannot be read|directory"),
]
# fmt: on


@pytest.mark.parametrize(("arguments", "words"), ARGUMENTS, ids=[arguments for arguments, _ in ARGUMENTS])
def test_arguments(arguments: str, words: str, corpus: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "full").mkdir()
    places = {"tmp": str(tmp_path), "file": str(tmp_path / "full" / "file")}
    Path(places["file"]).write_text("text")
    before = sorted(tmp_path.rglob("*"))
    sizes = {key: value for key, value in tiny.MODEL.items() if f"{key}=" not in arguments}
    given = [word.format(**places) for word in arguments.split()]
    defaults = ["--engine", "inline", "--corpus", str(corpus), "--rounds", "2", "--out", str(tmp_path / "a" / "out")]
    line = refused(["run", *defaults, *tiny.command_line(dict(sizes)), *given], capsys)
    says(line, words.format(**places))
    assert sorted(tmp_path.rglob("*")) == before


CONFIGURATIONS = [
    (b"rounds = ", "not TOML|Invalid value"),
    (b"[privacy]\nq_u = 0.5\nq_u = 0.6\n", "not TOML|line 3"),
    (b"out = '\xff'", "not UTF-8|byte 8"),
    (b"[privacy]\nnoise-multiplier = '2'", "privacy.noise_multiplier is '2'|a number"),
    (b"privacy = 3", "privacy is 3|a section"),
    (b'out = "a\\u0000b"', "out is|without NUL"),
    (b"[model]\nlora_targets = 'q'", "model.lora_targets is 'q'|a list"),
    (b"[privacy]\nnoise_multiplier = 1.0\ntarget_epsilon = 2.0", "not both"),
]


@pytest.mark.parametrize(("content", "words"), CONFIGURATIONS)
def test_configuration_files(
    content: bytes, words: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "run.toml"
    file.write_bytes(content)
    says(refused(["run", str(file)], capsys), f"{file}: |{words}")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


CORPORA: list[tuple[str, Callable[[Path], None], str]] = [
    ("manifest.json", Path.unlink, "manifest.json|fl-sim prepare"),
    ("manifest.json", lambda path: path.write_bytes(b"{"), "manifest"),
    ("train-sentences.parquet", Path.unlink, "missing"),
    ("train-sentences.parquet", truncate, "bytes"),
    ("train-sentences.parquet", flip, "checksum"),
    ("train-users.parquet", flip, "checksum"),
]


@pytest.mark.parametrize(("name", "damage", "words"), CORPORA)
def test_damaged_corpora(
    name: str, damage: Callable[[Path], None], words: str, corpus: Path, tmp_path: Path, capsys: Capture
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(corpus, copy)
    damage(next(path for path in copy.iterdir() if path.name == name or path.name == name.replace("-", ".")))
    says(refused(["run", "--corpus", str(copy), "--out", str(tmp_path / "out")], capsys), f"{copy}|{words}")
    assert not (tmp_path / "out").exists()


RUN_FOLDERS: list[tuple[str, Callable[[Path], None], str]] = [
    ("config.json", Path.unlink, "not a run folder"),
    ("config.json", lambda path: path.write_text("{"), "config.json|corrupt"),
    ("config.json", lambda path: path.write_text("{}"), "config.json|corrupt"),
    ("config.json", lambda path: path.write_text(json.dumps({"run": {}, "plan": {}, "corpus": {}})), "has changed"),
    ("environment.json", Path.unlink, "environment.json|missing"),
    ("metrics.jsonl", Path.unlink, "metrics.jsonl|missing"),
    ("metrics.jsonl", lambda path: path.write_text("x\n"), "metrics.jsonl|line 1"),
    ("metrics.jsonl", lambda path: path.write_text('{"round": 0}\n'), "was recorded as"),
    ("checkpoint/latest.safetensors", truncate, "checkpoint|corrupt"),
    ("checkpoint/latest.safetensors", lambda path: path.write_bytes(b""), "checkpoint|corrupt"),
    ("checkpoint/latest.safetensors", lambda path: save_file({}, path), "checkpoint|corrupt"),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "damage", "words"), RUN_FOLDERS)
def test_damaged_run_folders_cannot_be_resumed(
    name: str, damage: Callable[[Path], None], words: str, unfinished: Path, capsys: Capture
) -> None:
    damage(unfinished / name)
    before = {path: path.read_bytes() for path in unfinished.rglob("*") if path.is_file()}
    says(refused(["resume", str(unfinished)], capsys), f"{unfinished}|{words}")
    assert {path: path.read_bytes() for path in unfinished.rglob("*") if path.is_file()} == before


def test_resuming_something_other_than_an_unfinished_run(finished: Path, tmp_path: Path, capsys: Capture) -> None:
    says(refused(["resume", str(finished)], capsys), f"{finished}|is finished")
    says(refused(["resume", str(tmp_path)], capsys), f"{tmp_path}|not a run folder")
    says(refused(["resume", str(tmp_path / "nothing")], capsys), "there is no such folder")


def forged(run: Path, **changes: Any) -> None:
    """Write the checkpoint with other parts."""
    checkpoint = Checkpoint.read(run / "checkpoint")
    assert checkpoint is not None
    replace(checkpoint, **changes).write(run / "checkpoint")


def test_a_checkpoint_of_another_model(unfinished: Path, capsys: Capture) -> None:
    """Its heads are those of the run."""
    forged(unfinished, vector=np.zeros(3, np.float32))
    says(refused(["resume", str(unfinished)], capsys), "does not fit")


@pytest.mark.system
def test_settings_and_rows_changed_after_the_checkpoint(unfinished: Path, capsys: Capture) -> None:
    config = (unfinished / "config.json").read_text()
    faster = json.loads(config)
    faster["run"]["server"]["learning_rate"] *= 10
    (unfinished / "config.json").write_text(json.dumps(faster))
    says(refused(["resume", str(unfinished)], capsys), "config.json|was changed after the run's last checkpoint")
    (unfinished / "config.json").write_text(config)
    rows = [json.loads(line) for line in (unfinished / "metrics.jsonl").read_text().splitlines()]
    rows[1]["loss"] = 0.5
    (unfinished / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    says(refused(["resume", str(unfinished)], capsys), "metrics.jsonl|was changed after the run's last checkpoint")


@pytest.mark.system
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_that_is_not_there(corpus: Path, tmp_path: Path, capsys: Capture) -> None:
    arguments = ["--corpus", str(corpus), "--out", str(tmp_path / "out"), "--set", "model.device=cuda"]
    says(refused(["run", "--engine", "inline", *arguments], capsys), "device is 'cuda'|0 CUDA devices|'cpu'")
    assert not (tmp_path / "out").exists()


def test_a_model_folder_without_weights(corpus: Path, finished: Path, tmp_path: Path, capsys: Capture) -> None:
    model = tmp_path / "model"
    shutil.copytree(finished / "model", model)
    (model / "model.safetensors").unlink()
    arguments = ["--corpus", str(corpus), "--out", str(tmp_path / "out"), "--engine", "inline", "--model", str(model)]
    says(refused(["run", *arguments], capsys), f"is not the file that its run wrote|{model}")
    assert not (tmp_path / "out").exists()


def fill_disk(monkeypatch: pytest.MonkeyPatch, out: Path, rows: int) -> None:
    """Make every write fail once the run in ``out`` has recorded ``rows`` rows."""

    def fsync(descriptor: int) -> None:
        metrics = out / "metrics.jsonl"
        if metrics.exists() and metrics.read_bytes().count(b"\n") >= rows:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", fsync)


def test_disk_full_before_the_first_round(
    corpus: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "a" / "out"
    fill_disk(monkeypatch, out, rows=0)
    arguments = ["--corpus", str(corpus), "--out", str(out), "--engine", "inline", *tiny.command_line(dict(tiny.MODEL))]
    says(refused(["run", *arguments, "--quiet"], capsys), f"{out}|No space left")
    assert not list(tmp_path.iterdir())


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``fl-sim`` in a separate process."""
    words = [sys.executable, "-m", "fl_sim.cli.main", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, env=os.environ | environment, check=False)


@pytest.mark.nightly
def test_a_hub_that_does_not_answer_is_given_up_soon(corpus: Path, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
        arguments = ["--corpus", str(corpus), "--out", str(tmp_path / "out"), "--engine", "inline", "--quiet"]
        environment = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": nobody, "http_proxy": "", "HTTP_PROXY": ""}
        done = command("run", "--model", "nobody/no-such-model", *arguments, **environment)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "nobody/no-such-model" in done.stderr
    assert not (tmp_path / "out").exists()
