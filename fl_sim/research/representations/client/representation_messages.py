"""Messages between server and clients of private representations, written and read in one module.

| message | down | up |
|---|---|---|
| ``train.perturb`` | the encoder, rows of the training split, a seed, a noise scale | those rows' perturbed vectors |
| ``train.step`` | the same, and the loss's gradient in those vectors | its gradient in the encoder's parameters |
| ``query.partition`` | nothing | the node's partition of 0 … N − 1 |
| ``query.validate`` | the encoder, a seed | the node's validation rows with training noise |
| ``query.release`` | the encoder, a split, a seed or none | the node's released rows of the split |

Only ``query.release`` has a guarantee (docs/representations.md): training is on public examples, as in the papers. The
node of partition i of N holds the rows i, i + N, i + 2N, … of every split, and refuses others.

>>> none, rows = np.empty(0, np.float32), np.arange(3)
>>> request = Request("{}", none, "train", seed=7, positions=rows, rows=rows, total=3, scale=0.5)
>>> record = request.to_record()  # the content of a Flower message
>>> record["config"]["seed"], record["config"]["scale"], record["arrays"]["rows"].numpy().tolist()
('0x7', '0.5', [0, 1, 2])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

PERTURB, STEP = "perturb", "step"
PARTITION, VALIDATE, RELEASE = "partition", "validate", "release"
_ARRAYS, _CONFIG = "arrays", "config"
_DEFAULT = "default"

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Request:
    """A request of the server to a node.

    Attributes:
        workspace: JSON of a :class:`~fl_sim.research.representations.client.client_workspace.ClientSpec`.
        encoder: the encoder's trainable parameters, float32 (d,); d may be 0.
        split: of the rows.
        seed: of masks and noise; None: the operating system's (release alone).
        positions: of the rows in the step's batch, int64 (b,); empty for all rows that the node holds.
        rows: of the split, int64 (b,).
        total: rows of the full batch.
        scale: of the noise; None for the layer's own.
        gradient: of the loss in the vectors, float32 (b, k); None but in a step.
    """

    workspace: str
    encoder: Floats
    split: str
    seed: int | None
    positions: NDArray[np.int64]
    rows: NDArray[np.int64]
    total: int = 0
    scale: float | None = None
    gradient: Floats | None = None

    def to_record(self) -> RecordDict:
        """Return the record of a Flower message."""
        config: dict[str, Any] = {"workspace": self.workspace, "split": self.split, "total": self.total}
        # Flower's records have no None.
        config["seed"] = _DEFAULT if self.seed is None else hex(self.seed)
        config["scale"] = _DEFAULT if self.scale is None else repr(self.scale)
        arrays = {"encoder": self.encoder, "positions": self.positions, "rows": self.rows}
        if self.gradient is not None:
            arrays["gradient"] = self.gradient
        return RecordDict({_CONFIG: ConfigRecord(config), _ARRAYS: _array_record(arrays)})

    @classmethod
    def from_message(cls, message: Message) -> Request:
        """Return the request that :meth:`to_record` wrote."""
        config: dict[str, Any] = dict(message.content.config_records[_CONFIG])
        arrays = arrays_of(message)
        return cls(
            workspace=config["workspace"],
            encoder=arrays["encoder"],
            split=config["split"],
            seed=None if config["seed"] == _DEFAULT else int(config["seed"], 16),
            positions=arrays["positions"],
            rows=arrays["rows"],
            total=config["total"],
            scale=None if config["scale"] == _DEFAULT else float(config["scale"]),
            gradient=arrays.get("gradient"),
        )


def reply_record(**arrays: NDArray[Any]) -> RecordDict:
    """Return the record of a reply with these arrays."""
    return RecordDict({_ARRAYS: _array_record(arrays)})


def arrays_of(message: Message) -> dict[str, Any]:
    """Return all arrays of a message by name."""
    record = message.content.array_records[_ARRAYS]
    return {name: array.numpy() for name, array in record.items()}


def _array_record(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.ascontiguousarray(value)) for name, value in arrays.items()})
