"""Read and write files with results of attacks, so that a stopped command goes on where it was; for their owner alone.

>>> kept_record(None) is None
True
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_sim.files import owner_only, read_bytes
from fl_sim.storage.run_folder import decode, encode, replace_file


def kept_record(file: Path | None) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is none, or the file was cut off."""
    try:
        record = None if file is None else decode(json.loads(read_bytes(file)))
    except (FileNotFoundError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def keep_record(file: Path | None, record: Mapping[str, Any]) -> None:
    """Write a JSON object; nothing without a file."""
    _write(file, json.dumps(encode(record)).encode())


def kept_array(file: Path | None) -> NDArray[np.float64] | None:
    """Return the array in a file, float64; None if there is none, or the file was cut off."""
    try:
        return None if file is None else np.asarray(np.load(file, allow_pickle=False), dtype=np.float64)
    except (FileNotFoundError, ValueError, EOFError):
        return None


def keep_array(file: Path | None, values: NDArray[np.float64]) -> None:
    """Write an array; nothing without a file."""
    content = io.BytesIO()
    np.save(content, values)
    _write(file, content.getvalue())


def _write(file: Path | None, content: bytes) -> None:
    if file is not None:
        with owner_only():
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, content)
