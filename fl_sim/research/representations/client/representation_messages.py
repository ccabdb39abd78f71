"""What server and clients of private representations say to each other, read and written in one place.

| message | down | up |
|---|---|---|
| ``train.perturb`` | the encoder, rows of the training split, a seed, a noise scale | those rows' perturbed vectors |
| ``train.step`` | the same, and the loss's gradient in those vectors | its gradient in the encoder's parameters |
| ``query.place`` | nothing | which of the N places the node has |
| ``query.validate`` | the encoder, a seed | the node's validation rows with training noise |
| ``query.release`` | the encoder, a split, a seed or none | the node's rows of it, with the layer's promise |

Only ``release`` carries a promise (docs/representations.md): training is on public examples, as in the papers. The node
at place i of N holds the rows i, i + N, i + 2N, … of every split, and refuses others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

PERTURB, STEP = "perturb", "step"
PLACE, VALIDATE, RELEASE = "place", "validate", "release"
_ARRAYS, _CONFIG = "arrays", "config"
_LAYERS_OWN = "own"

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Request:
    """What the server asks of a node.

    Attributes:
        workspace: JSON of a :class:`~fl_sim.research.representations.client.client_workspace.ClientSpec`.
        encoder: the encoder's trainable parameters, float32 (d,); d may be 0.
        split: of the rows.
        seed: of masks and noise; None is the operating system's (release alone).
        places: of the rows in the step's batch, int64 (b,); empty where the node takes all rows that it holds.
        rows: of the split, int64 (b,). total: rows of the whole batch.
        scale: of the noise; None for the layer's own.
        gradient: of the loss in the vectors, float32 (b, k); empty but in a step.
    """

    workspace: str
    encoder: Floats
    split: str
    seed: int | None
    places: NDArray[np.int64]
    rows: NDArray[np.int64]
    total: int = 0
    scale: float | None = None
    gradient: Floats | None = None

    def to_record(self) -> RecordDict:
        """The record of a Flower message."""
        config: dict[str, Any] = {"workspace": self.workspace, "split": self.split, "total": self.total}
        # Flower's records have no None.
        config["seed"] = _LAYERS_OWN if self.seed is None else hex(self.seed)
        config["scale"] = _LAYERS_OWN if self.scale is None else repr(self.scale)
        arrays = {"encoder": self.encoder, "places": self.places, "rows": self.rows}
        if self.gradient is not None:
            arrays["gradient"] = self.gradient
        return RecordDict({_CONFIG: ConfigRecord(config), _ARRAYS: _record_of(arrays)})

    @classmethod
    def from_message(cls, message: Message) -> Request:
        """Read what :meth:`to_record` wrote."""
        config: dict[str, Any] = dict(message.content.config_records[_CONFIG])
        arrays = arrays_of(message)
        return cls(
            workspace=config["workspace"],
            encoder=arrays["encoder"],
            split=config["split"],
            seed=None if config["seed"] == _LAYERS_OWN else int(config["seed"], 16),
            places=arrays["places"],
            rows=arrays["rows"],
            total=config["total"],
            scale=None if config["scale"] == _LAYERS_OWN else float(config["scale"]),
            gradient=arrays.get("gradient"),
        )


def reply_record(**arrays: NDArray[Any]) -> RecordDict:
    """The record of an answer."""
    return RecordDict({_ARRAYS: _record_of(arrays)})


def arrays_of(message: Message) -> dict[str, Any]:
    """All arrays of a message by name."""
    record = message.content.array_records[_ARRAYS]
    return {name: array.numpy() for name, array in record.items()}


def _record_of(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()})
