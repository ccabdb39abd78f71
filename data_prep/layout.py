"""File names and column types of a prepared corpus; the one place that knows them."""

from __future__ import annotations

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

USERS = pa.schema([pa.field("user", pa.string(), nullable=False), pa.field("sentences", pa.int64(), nullable=False)])
"""One row per user; a user's id is the row."""

ENTITIES = pa.schema(
    [
        pa.field("entity", pa.string(), nullable=False),
        pa.field("labels", pa.list_(pa.string()), nullable=False),
        pa.field("users", pa.int64(), nullable=False),
        pa.field("sentences", pa.int64(), nullable=False),
        pa.field("max_per_user", pa.int64(), nullable=False),
    ]
)
"""One row per entity; its id is the row. ``entity`` is the key of :func:`data_prep.entities.entity_key`."""

TABLES = {"sentences": SENTENCES, "users": USERS, "entities": ENTITIES}


def table_file(split: str, table: str) -> str:
    """Name of the Parquet file that holds ``table`` of ``split``."""
    return f"{split}.{table}.parquet"
