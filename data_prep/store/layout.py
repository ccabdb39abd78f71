"""File names and column types of a prepared corpus.

>>> table_file("train", "users"), array_file("train", "entity_ids"), part_folder(1)
('train.users.parquet', 'train.entity_ids.npy', 'append-0001')
"""

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
