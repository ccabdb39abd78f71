"""Any bad input gives one clear line and exit code 2, and leaves nothing behind.

A row of a table is an argument list (or a broken folder) and the words that the line must contain. What the
configuration and the plan refuse is in tests/fl_sim/test_config.py and tests/fl_sim/experiments/plan, and what is seen
without importing torch in tests/fl_sim/cli/test_mistakes.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fl_sim.storage.checkpoint import Checkpoint
from tests import tiny
from tests.e2e.small_runs import finished_run

Refusal = Callable[..., str]


def says(line: str, words: str) -> None:
    """Check that ``line`` contains all of ``words``, separated by ``|``."""
    for word in words.split("|"):
        assert word in line, line


# fmt: off
ARGUMENTS = [
    # flags and keys
    ("--z 2 --set privacy.noise_multiplier=3", "privacy.noise_multiplier is 3 and 2"),
    # bounds, and what may not be read off the corpus
    ("--set privacy.known=graph --set privacy.entity_users=3 --set privacy.entity_bound=unbounded",
     "privacy.entity_users is 3|entity_bound"),
    ("--set privacy.counts={tmp}/nothing", "{tmp}/nothing|cannot be read|No such file|a file"),
    ("--strategy noiseless --epsilon-budget 2", "privacy.epsilon_budget is 2|noiseless"),
    # engine
    ("--set engine.address=auto --set engine.num_cpus=2", "engine.num_cpus is 2|engine.address is 'auto'"),
    # model
    ("--set task=classification --set model.tune=head --set model.lora_rank=2",
     "model.lora_rank is 2 and model.tune is 'head'"),
    # corpus
    ("--set task=classification", "task is 'classification' and corpus.path is"),
    ("--corpus=", "corpus.path is ''|not empty"),
    ("--set corpus.held_out_split=train", "corpus.held_out_split is 'train'|another split"),
    # output
    ("--out /proc/fl-sim-run", "/proc/fl-sim-run|cannot be written"),
    ("--out {tmp}/" + "n" * 300, "cannot be written|too long"),
    ("--anchor {file}", "exists; allowed: a new file"),
    ("--anchor {tmp}/no/folder.json", "a folder that exists"),
    # configuration files
    ("{tmp}", "{tmp}|cannot be read|directory"),
]
# fmt: on


@pytest.mark.parametrize(("arguments", "words"), ARGUMENTS, ids=[arguments for arguments, _ in ARGUMENTS])
def test_arguments(arguments: str, words: str, corpus: Path, tmp_path: Path, refusal: Refusal) -> None:
    (tmp_path / "full").mkdir()
    places = {"tmp": str(tmp_path), "file": str(tmp_path / "full" / "file")}
    Path(places["file"]).write_text("text")
    before = sorted(tmp_path.rglob("*"))
    given = [word.format(**places) for word in arguments.split()]
    defaults = ["--engine", "inline", "--corpus", str(corpus), "--rounds", "2", "--out", str(tmp_path / "a" / "out")]
    says(refusal("run", *defaults, *tiny.command_line(tiny.MODEL), *given), words.format(**places))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("reproduce make --out {tmp}/out", "NAME is missing"),
        ("reproduce make fig4 --panel a --out {tmp}/out", "--panel is 'a'"),
        ("reproduce make fig2 --panel z --out {tmp}/out", "--panel is 'z'; allowed: conll2003"),
        ("reproduce make fig4 --jobs 0 --out {tmp}/out", "--jobs is 0"),
        ("generate {run} --seed=-1", "seed is -1; allowed: "),
        ("generate {run} --prompts {tmp}/nothing", "{tmp}/nothing"),
        ("generate {run} --prompts {blank}", "has no prompt"),
        ("generate {run} --out {tmp}/no/texts.jsonl", "--out is {tmp}/no/texts.jsonl; allowed: "),
    ],
)
def test_arguments_of_other_verbs(arguments: str, words: str, tmp_path: Path, refusal: Refusal) -> None:
    (tmp_path / "blank").write_text("\n")
    places = {"tmp": tmp_path, "blank": tmp_path / "blank", "run": finished_run().path}
    says(refusal(*(word.format(**places) for word in arguments.split()), "--quiet"), words.format(**places))
    assert list(tmp_path.iterdir()) == [tmp_path / "blank"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[privacy]\nq_u = 0.5\nq_u = 0.6\n", "not TOML|line 3"),
        (b"out = '\xff'", "not UTF-8|byte 8"),
        (b'out = "a\\u0000b"', "out is|without NUL"),
        (b"[model]\nlora_targets = 'q'", "model.lora_targets is 'q'|a list"),
    ],
)
def test_configuration_files(content: bytes, words: str, tmp_path: Path, refusal: Refusal) -> None:
    file = tmp_path / "run.toml"
    file.write_bytes(content)
    says(refusal("run", str(file)), f"{file}: |{words}")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("manifest.json", Path.unlink, "manifest.json|fl-sim prepare"),
        ("train.sentences.parquet", flip, "checksum"),
        ("train.users.parquet", flip, "checksum"),
    ],
)
def test_damaged_corpora(
    name: str, damage: Callable[[Path], None], words: str, corpus: Path, tmp_path: Path, refusal: Refusal
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(corpus, copy)
    damage(copy / name)
    says(refusal("run", "--corpus", str(copy), "--out", str(tmp_path / "out")), f"{copy}|{words}")
    assert not (tmp_path / "out").exists()


def of_another_model(path: Path) -> None:
    """Write the checkpoint with another vector; its heads are those of the run."""
    checkpoint = Checkpoint.read(path.parent)
    assert checkpoint is not None
    replace(checkpoint, vector=np.zeros(3, np.float32)).write(path.parent)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("environment.json", Path.unlink, "environment.json|missing"),
        ("metrics.jsonl", lambda path: path.write_text('{"round": 0}\n'), "was recorded as"),
        ("checkpoint/latest.safetensors", truncate, "checkpoint|corrupt"),
        ("checkpoint/latest.safetensors", of_another_model, "does not fit"),
    ],
)
def test_damaged_run_folders_cannot_be_resumed(
    name: str, damage: Callable[[Path], None], words: str, tmp_path: Path, refusal: Refusal
) -> None:
    run = finished_run(folder=tmp_path / "run")
    run.result_file.unlink()  # as a killed run leaves it
    damage(run.path / name)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    says(refusal("resume", str(run.path)), f"{run.path}|{words}")
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
