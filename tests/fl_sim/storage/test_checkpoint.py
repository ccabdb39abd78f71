"""Checkpoints: what is written is read again, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.storage.run_folder import ResultsError
from fl_sim.strategies.postprocessing import ServerOptimizerConfig, build_optimizer

SIZE = 5
SEAL = {"run": "r", "entries": 3, "last": "h"}
FOLDER = {"config": "c", "metrics": "m", "metrics_bytes": 9}


def checkpoint(server_round: int = 3, optimizer: str = "adam") -> Checkpoint:
    stepped = build_optimizer(ServerOptimizerConfig(optimizer=optimizer), SIZE)
    stepped.stepped(np.zeros(SIZE, np.float32), np.linspace(-1, 1, SIZE))
    return Checkpoint(server_round, np.arange(SIZE, dtype=np.float32), stepped.state(), SEAL, FOLDER)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_what_is_written_is_read_again(optimizer: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    assert Checkpoint.read(folder) is None
    checkpoint(6).write(folder)
    written = checkpoint(7, optimizer)
    written.write(folder)
    read = Checkpoint.read(folder)
    assert len(list(folder.iterdir())) == 1
    assert (read.server_round, read.ledger, read.folder) == (7, SEAL, FOLDER)
    assert read.vector.dtype == np.float32
    assert (read.vector == written.vector).all()
    assert read.optimizer.keys() == written.optimizer.keys()
    for name, value in written.optimizer.items():
        assert read.optimizer[name].dtype == value.dtype
        assert (read.optimizer[name] == value).all()


def test_a_write_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint(1).write(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space"):
            checkpoint(2).write(tmp_path)
    read = Checkpoint.read(tmp_path)
    assert read.server_round == 1
    assert len(list(tmp_path.iterdir())) == 1


def corrupted(tmp_path: Path) -> Path:
    checkpoint().write(tmp_path)
    return next(tmp_path.iterdir())


@pytest.mark.parametrize("kept", [0, 7, 40, -1])
def test_a_file_that_was_cut_off(kept: int, tmp_path: Path) -> None:
    file = corrupted(tmp_path)
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ResultsError, match=f"checkpoint {file} is corrupt"):
        Checkpoint.read(tmp_path)


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({}, {"round": "1"}),
        ({"model": np.zeros(SIZE, np.float32)}, None),
        ({"model": np.zeros(SIZE, np.float32)}, {"round": "two"}),
        ({"model": np.zeros(SIZE, np.float32)}, {"other": "1"}),
    ],
)
def test_a_file_of_something_else(
    tensors: dict[str, np.ndarray], metadata: dict[str, str] | None, tmp_path: Path
) -> None:
    file = corrupted(tmp_path)
    save_file(tensors, file, metadata=metadata)
    with pytest.raises(ResultsError, match="is corrupt"):
        Checkpoint.read(tmp_path)


@pytest.mark.parametrize("change", ["a weight", "an optimizer's state", "the round", "the ledger's head"])
def test_a_file_that_was_changed(change: str, tmp_path: Path) -> None:
    file = corrupted(tmp_path)
    with safe_open(file, framework="numpy") as content:
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 (not a dict)
        metadata = content.metadata()
    if change == "a weight":
        tensors["model"][2] += 1
    elif change == "an optimizer's state":
        tensors["optimizer.first"][0] += 1
    elif change == "the round":
        metadata["round"] = "4"
    else:
        metadata["ledger"] = metadata["ledger"].replace('"entries": 3', '"entries": 2')
    save_file(tensors, file, metadata=metadata)
    with pytest.raises(ResultsError, match="its checksum does not match its content"):
        Checkpoint.read(tmp_path)


def test_whether_it_fits() -> None:
    adam, sgd = checkpoint(), checkpoint(optimizer="sgd")
    assert adam.fits(SIZE, adam.optimizer)
    assert not adam.fits(SIZE + 1, adam.optimizer)
    assert not adam.fits(SIZE, sgd.optimizer)
    assert not adam.fits(SIZE, adam.optimizer | {"first": np.zeros(SIZE + 1)})
