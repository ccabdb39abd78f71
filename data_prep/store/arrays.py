"""Write arrays to ``.npy`` files, vectors also piece by piece, and open them memory-mapped.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     write_vector(Path(folder) / "v.npy", np.int32, [np.array([1, 2]), np.array([3])])
...     open_vector(Path(folder) / "v.npy", np.int32)
array([1, 2, 3], dtype=int32)
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.records import CorpusError
from fl_sim.output_files import naming


def write_vector(path: Path, dtype: type[np.generic], pieces: Iterable[NDArray[Any]]) -> None:
    """Write ``pieces`` as one vector, with the memory of one piece.

    The file is written, not mapped, so that a full disk is an error and not a killed process.

    Args:
        path: the file.
        dtype: of the vector.
        pieces: arrays (n,) of a dtype that casts to ``dtype``.
    """
    length = 0
    with naming(path), path.open("wb") as file:
        _write_header(file, dtype, 0)
        for piece in pieces:
            file.write(np.ascontiguousarray(piece, dtype=dtype).data)
            length += len(piece)
        file.seek(0)
        _write_header(file, dtype, length)  # of the same size: numpy leaves room for longer lengths


def write_array(path: Path, values: NDArray[Any]) -> None:
    """Write ``values``, of any shape, as numpy's ``save`` does, whose errors name neither file nor cause."""
    whole = np.ascontiguousarray(values)
    with naming(path), path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(whole))
        file.write(whole.data)


def open_vector(path: Path, dtype: type[np.generic]) -> NDArray[Any]:
    """Return the vector in ``path``, memory-mapped.

    Args:
        path: the file.
        dtype: of the vector.

    Returns:
        ``dtype`` (n,).

    Raises:
        CorpusError: the file is absent or holds something else.
    """
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy raises tokenizer errors for a damaged header
        raise CorpusError(f"{path}: not a readable array: {error}") from error
    if values.dtype != dtype or values.ndim != 1:
        raise CorpusError(f"{path}: {values.dtype} of shape {values.shape}, must be a vector of {dtype.__name__}")
    return np.asarray(values)  # a plain view, because indexing a memmap object is slower


def _write_header(file: BinaryIO, dtype: type[np.generic], length: int) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(file, header)
