"""File names and column types of a prepared corpus, and its arrays in ``.npy`` files.

Vectors are also written piece by piece; all arrays are opened memory-mapped.

>>> table_file("train", "users"), array_file("train", "entity_ids"), part_folder(1)
('train.users.parquet', 'train.entity_ids.npy', 'append-0001')
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fl_sim.data_prep.records import CorpusError
from fl_sim.files import naming

SENTENCES = pa.schema(
    [
        pa.field("user_id", pa.int32(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("entity_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("mention_start", pa.list_(pa.int32()), nullable=False),
        pa.field("mention_end", pa.list_(pa.int32()), nullable=False),
        pa.field("mention_label", pa.list_(pa.string()), nullable=False),
        pa.field("target", pa.int32(), nullable=False),
    ]
)
"""One row per sentence, sorted by user; a sentence's id is its row. Mention offsets count characters; ``target`` is a
position in the manifest's ``classes``, or -1 for a sentence without a class."""

USERS = pa.schema(
    [
        pa.field("user_id", pa.int32(), nullable=False),
        pa.field("user", pa.string(), nullable=False),
        pa.field("sentences", pa.int64(), nullable=False),
    ]
)
"""One row per user of the part, with the number of sentences in the part. Without appended parts the id is the row."""

ENTITIES = pa.schema(
    [
        pa.field("entity_id", pa.int32(), nullable=False),
        pa.field("entity", pa.string(), nullable=False),
        pa.field("labels", pa.list_(pa.string()), nullable=False),
        pa.field("users", pa.int64(), nullable=False),
        pa.field("sentences", pa.int64(), nullable=False),
        pa.field("max_per_user", pa.int64(), nullable=False),
    ]
)
"""One row per entity that the part mentions, with its contribution bounds in the part. Without appended parts the id is
the row. ``entity`` is the key of :mod:`fl_sim.data_prep.identity`."""

TABLES = {"sentences": SENTENCES, "users": USERS, "entities": ENTITIES}

INDEX: dict[str, type[np.generic]] = {"user_offsets": np.int64, "entity_offsets": np.int64, "entity_ids": np.int32}
"""The incidence, as :class:`fl_sim.data_prep.store.ownership.Ownership` describes it, one ``.npy`` file per array."""

PROFILES: dict[str, type[np.generic]] = {"profile_offsets": np.int64, "profile_sentences": np.int32}
"""The entities' profiles (:class:`fl_sim.data_prep.store.ownership.EntityProfiles`), with the first part only."""


CANARIES_FILE = "canaries.json"
"""Lies in the folder of a corpus with canaries (:mod:`fl_sim.data_prep.canaries`); only there."""

COUNTS_FILE = "counts.json"
"""Lies in the folder of a record of text that nodes hold (:mod:`fl_sim.data_prep.declared_counts`); only there."""


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise :class:`CorpusError` where the block cannot read the Parquet file ``path``."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}: a text is not UTF-8; write the file again") from error
    except (pa.ArrowException, OSError) as error:
        raise CorpusError(f"{path}: not a readable Parquet file: {str(error).splitlines()[0]}") from error


def table_file(split: str, table: str) -> str:
    """Return the name of the Parquet file of ``table`` of ``split``."""
    return f"{split}.{table}.parquet"


def array_file(split: str, array: str) -> str:
    """Return the name of the file of one array of the index of ``split``."""
    return f"{split}.{array}.npy"


def part_files(split: str, first: bool) -> list[str]:
    """Return the names of all files of ``split`` in one part of a corpus."""
    arrays = [*INDEX, *PROFILES] if first else [*INDEX]
    return [*(table_file(split, table) for table in TABLES), *(array_file(split, array) for array in arrays)]


def part_folder(number: int) -> str:
    """Return the name of the folder of part ``number`` inside the corpus's folder; part 0 is in that folder itself."""
    return f"append-{number:04d}" if number else "."


def write_vector(path: Path, dtype: type[np.generic], pieces: Iterable[NDArray[Any]]) -> None:
    """Write ``pieces`` as one vector, with the memory of one piece.

    The file is written, not mapped, so that a full disk is an error and not a killed process. Pieces are arrays (n,) of
    a dtype that casts to ``dtype``.
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
    """Return the vector in ``path``, ``dtype`` (n,), memory-mapped.

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
