"""The state of a run after a round, replaced whole: model and optimizer, so that a resumed run ends the same.

The rounds' randomness needs no state: every stream is a function of the root seed and the round.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fl_sim.results import ResultsError, replace_file

_FILE = "latest.safetensors"
_MODEL, _OPTIMIZER = "model", "optimizer."


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The model (d,) after ``server_round`` rounds and the optimizer state that its next step needs."""

    server_round: int
    vector: npt.NDArray[np.float32]
    optimizer: dict[str, npt.NDArray[np.float64]]

    def write(self, folder: Path) -> None:
        """Replace the checkpoint in ``folder`` atomically."""
        folder.mkdir(exist_ok=True)
        tensors: dict[str, np.ndarray] = {_MODEL: self.vector}
        tensors |= {_OPTIMIZER + name: value for name, value in self.optimizer.items()}
        replace_file(folder / _FILE, save(tensors, metadata={"round": str(self.server_round)}))

    def fits(self, size: int, optimizer: Mapping[str, npt.NDArray[np.float64]]) -> bool:
        """Whether this is a state of a model of ``size`` parameters and of an optimizer with such a state."""
        shapes = {name: value.shape for name, value in self.optimizer.items()}
        return self.vector.shape == (size,) and shapes == {name: value.shape for name, value in optimizer.items()}

    @classmethod
    def read(cls, folder: Path) -> Checkpoint | None:
        """The last checkpoint, or None before the first; :class:`ResultsError` if it is corrupt."""
        path = folder / _FILE
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="numpy") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
                server_round = int(file.metadata()["round"])
            optimizer = {k.removeprefix(_OPTIMIZER): v for k, v in tensors.items() if k != _MODEL}
            return cls(server_round, tensors[_MODEL], optimizer)
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ResultsError(f"checkpoint {path} is corrupt: {error}") from error
