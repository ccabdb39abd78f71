"""Checkpoints: model, optimizer state and head hashes after a round, replaced atomically.

Randomness needs no state: every stream is a function of the root seed and the round. A checksum over the content
detects changed bits, which safetensors alone does not.

>>> import tempfile
>>> folder = Path(tempfile.mkdtemp())
>>> Checkpoint(3, np.zeros(2, np.float32), {}, ledger={}, folder={}).write(folder)
>>> Checkpoint.read(folder).server_round
3
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from fl_sim.files import check_regular, json_object, replace_file_by
from fl_sim.storage.run_folder import ResultsError

_FILE = "latest.safetensors"
_MODEL, _OPTIMIZER = "model", "optimizer."
_TYPES = {"float32": "F32", "float64": "F64"}  # of safetensors
_ROUND, _LEDGER, _FOLDER, _CHECKSUM = "round", "ledger", "folder", "sha256"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a run after a round: the model, float32 (d,), optimizer's arrays, and heads of ledger and folder."""

    server_round: int
    vector: npt.NDArray[np.float32]
    optimizer: Mapping[str, npt.NDArray[np.floating]]
    ledger: Mapping[str, object]
    folder: Mapping[str, object]

    def write(self, folder: Path) -> None:
        """Replace the checkpoint in ``folder`` atomically, without a copy of its arrays in memory."""
        folder.mkdir(exist_ok=True)
        tensors: dict[str, np.ndarray] = {_MODEL: self.vector}
        tensors |= {_OPTIMIZER + name: value for name, value in self.optimizer.items()}
        heads = {_LEDGER: json.dumps(dict(self.ledger)), _FOLDER: json.dumps(dict(self.folder))}
        metadata = {_ROUND: str(self.server_round), **heads}
        metadata |= {_CHECKSUM: _checksum(tensors, metadata)}
        replace_file_by(folder / _FILE, lambda path: _save(path, tensors, metadata))

    def fits(self, size: int, optimizer: Mapping[str, npt.NDArray[np.floating]]) -> bool:
        """Return whether the model has ``size`` parameters, and its optimizer arrays of the shapes of ``optimizer``."""
        shapes = {name: value.shape for name, value in self.optimizer.items()}
        return self.vector.shape == (size,) and shapes == {name: value.shape for name, value in optimizer.items()}

    @classmethod
    def read(cls, folder: Path) -> Checkpoint | None:
        """Return the last checkpoint, or None before the first; :class:`ResultsError` if it is corrupt."""
        path = folder / _FILE
        if not path.exists():
            return None
        with _opened(path) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            metadata = dict(file.metadata())
            if metadata.pop(_CHECKSUM) != _checksum(tensors, metadata):
                raise ValueError("its checksum does not match its content")
            optimizer = {k.removeprefix(_OPTIMIZER): v for k, v in tensors.items() if k != _MODEL}
            heads = _heads(metadata)
            return cls(heads.server_round, tensors[_MODEL], optimizer, heads.ledger, heads.folder)


class Heads(NamedTuple):
    """The round of a checkpoint, and the heads of the ledger, and of settings and metrics, at its end."""

    server_round: int
    ledger: Mapping[str, object]
    folder: Mapping[str, object]


def heads_of(folder: Path) -> Heads | None:
    """Return the heads of the checkpoint in ``folder``, without reading its arrays; None before the first.

    Raises:
        ResultsError: the checkpoint is corrupt.
    """
    path = folder / _FILE
    if not path.exists():
        return None
    with _opened(path) as file:
        return _heads(file.metadata())


def _heads(metadata: Mapping[str, str]) -> Heads:
    ledger, folder = (json_object(metadata[name].encode()) for name in (_LEDGER, _FOLDER))
    return Heads(int(metadata[_ROUND]), ledger, folder)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Give the open file of a checkpoint; what does not fit in the block makes it corrupt."""
    check_regular(path)
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ResultsError(f"checkpoint {path} is corrupt: {reason}") from error


def _save(path: Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file array by array: the library's own writer hides an error of the system behind its own."""
    header, end = dict[str, object]({"__metadata__": dict(metadata)}), 0
    for name, value in tensors.items():
        first, end = end, end + value.nbytes
        header[name] = {"dtype": _TYPES[value.dtype.name], "shape": value.shape, "data_offsets": [first, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # arrays begin at a multiple of 8
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            file.write(np.ascontiguousarray(value).data)


def _checksum(tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> str:
    """Return the SHA-256 of the metadata and of names, types, shapes and bytes of all tensors."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        value = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {value.dtype.str} {value.shape}\n".encode())
        digest.update(value.data if value.ndim else value.tobytes())
    return digest.hexdigest()
