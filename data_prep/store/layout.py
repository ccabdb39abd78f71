"""File names and column types of a prepared corpus; the one place that knows them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

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
"""One row per user whom sentences beside it belong to, and how many do. Without appended parts the id is the row."""

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
"""One row per entity that the sentences beside it mention, with its reach in them. Without appended parts the id is the
row. ``entity`` is the key of :mod:`fl_sim.data_prep.identity`."""

TABLES = {"sentences": SENTENCES, "users": USERS, "entities": ENTITIES}

INDEX: dict[str, type[np.generic]] = {"user_offsets": np.int64, "entity_offsets": np.int64, "entity_ids": np.int32}
"""The incidence, as :class:`fl_sim.data_prep.store.ownership.Ownership` describes it, one ``.npy`` file per array."""

PROFILES: dict[str, type[np.generic]] = {"profile_offsets": np.int64, "profile_sentences": np.int32}
"""The entities' profiles (:class:`fl_sim.data_prep.store.ownership.EntityProfiles`), beside the index of a part that
nothing was before."""


def table_file(split: str, table: str) -> str:
    """Name of the Parquet file that holds ``table`` of ``split``."""
    return f"{split}.{table}.parquet"


def array_file(split: str, array: str) -> str:
    """Name of the file that holds one array of ``split``'s index."""
    return f"{split}.{array}.npy"


def part_files(split: str, first: bool) -> list[str]:
    """Names of all files of ``split`` in one part of a corpus."""
    arrays = [*INDEX, *PROFILES] if first else [*INDEX]
    return [*(table_file(split, table) for table in TABLES), *(array_file(split, array) for array in arrays)]


def part_folder(number: int) -> str:
    """Name of the folder of part ``number`` inside that of the corpus; part 0 is the corpus's folder itself."""
    return f"append-{number:04d}" if number else "."
