"""Read text that a notebook holds: a pandas DataFrame, or a dataset of Hugging Face's ``datasets``, by its columns.

The manifest records a checksum of the columns that are read, so that the same table is recognised.

>>> import pandas as pd
>>> columns = TableColumns(text_column="text", user_column="user")
>>> table = pd.DataFrame({"user": ["ann", None, 7], "text": ["Hello. It rains.", "Who?", "Yes."]})
>>> raw = read_in_memory(table, columns, "posts")
>>> [(sentence.user, sentence.text) for sentence in raw.sentences()], dict(raw.reading.notes)
([('ann', 'Hello.'), ('ann', 'It rains.'), ('7', 'Yes.')], {'rows_without_user': 1})
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fl_sim.data_prep.readers.cleaning import Reading
from fl_sim.data_prep.readers.hugging_face import columns_with_splits, rows_of_splits
from fl_sim.data_prep.readers.reader import RawCorpus
from fl_sim.data_prep.readers.tables import Row, TableColumns, require_columns, sentences_of
from fl_sim.data_prep.records import Sentence

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset, DatasetDict, IterableDataset

    Table: TypeAlias = pd.DataFrame | Dataset | IterableDataset | DatasetDict

FRAME, DATASET = "a DataFrame", "a dataset"


def kind_of(table: object) -> str | None:
    """Return what a table is, :data:`FRAME` or :data:`DATASET`; None if it is neither. No library is imported."""
    if isinstance(table, Mapping):  # of splits
        return DATASET if table and all(kind_of(split) == DATASET for split in table.values()) else None
    if all(hasattr(table, name) for name in ("column_names", "features", "iter")):
        return DATASET
    return FRAME if all(hasattr(table, name) for name in ("columns", "iloc", "index")) else None


def read_in_memory(table: Table, columns: TableColumns, name: str) -> RawCorpus:
    """Return the corpus of a table; all rows are read once for their checksum.

    Raises:
        CorpusError: a column is absent, or cannot be read.
    """
    rows: Callable[[], Iterator[Row]]
    if kind_of(table) == FRAME:
        rows, read_as = partial(_frame_rows, table, columns.columns), columns
    else:
        splits: Mapping[str, object] = table if isinstance(table, Mapping) else {str(table.split or "train"): table}
        rows = partial(rows_of_splits, DATASET, splits, columns)
        read_as = columns_with_splits(columns, list(splits))

    def read(reading: Reading) -> Iterator[Sentence]:
        return sentences_of(rows(), read_as, reading)

    return RawCorpus.from_files(
        "in memory",
        name,
        read,
        {},
        settings={"sha256": _checksum(rows()), **columns.manifest_settings()},
        has_gold=columns.entities_column is not None,
        splits_sentences=columns.split_sentences,
    )


def _checksum(rows: Iterator[Row]) -> str:
    digest = hashlib.sha256()
    for _, values in rows:
        digest.update(json.dumps(values, default=str).encode() + b"\n")
    return digest.hexdigest()


def _frame_rows(frame: Any, columns: list[str]) -> Iterator[Row]:
    present = [str(name) for name in frame.columns]
    require_columns(columns, present, FRAME)
    cells = (_cells(frame.iloc[:, present.index(name)]) for name in columns)
    for label, *values in zip(frame.index, *cells, strict=True):
        yield f"{FRAME}, index {label!r}", dict(zip(columns, values, strict=True))


def _cells(column: Any) -> Iterator[Any]:
    """Yield the cells of a pandas column as plain values: what is missing is None, and 7.0 is 7.

    pandas keeps whole numbers as floats where one of them is missing.
    """
    for value, known in zip(column, column.notna(), strict=True):
        if not known:
            yield None
        elif isinstance(value, float | np.floating) and float(value).is_integer():
            yield int(value)
        else:
            yield value.tolist() if isinstance(value, np.generic | np.ndarray) else value
