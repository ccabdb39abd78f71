"""Vectors in ``.npy`` files: written piece by piece, opened by memory map."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.records import CorpusError


def write_vector(path: Path, dtype: type[np.generic], pieces: Iterable[NDArray[Any]]) -> None:
    """Write ``pieces`` as one vector, in the memory of one piece.

    It is written and not mapped: a full disk is then an error, not a killed process.
    """
    length = 0
    with path.open("wb") as file:
        _write_header(file, dtype, 0)
        for piece in pieces:
            file.write(np.ascontiguousarray(piece, dtype=dtype).data)
            length += len(piece)
        file.seek(0)
        _write_header(file, dtype, length)  # as long as the first: numpy leaves room for a length that grows


def open_vector(path: Path, dtype: type[np.generic]) -> NDArray[Any]:
    """The vector in ``path``, memory-mapped; :class:`CorpusError` where it is absent or something else."""
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header makes numpy raise what its tokenizer does
        raise CorpusError(f"{path}: not a readable array: {error}") from error
    if values.dtype != dtype or values.ndim != 1:
        raise CorpusError(f"{path}: {values.dtype} of shape {values.shape}, must be a vector of {dtype.__name__}")
    return np.asarray(values)  # a plain view of the map; indexing a memmap object costs more


def _write_header(file: BinaryIO, dtype: type[np.generic], length: int) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)
