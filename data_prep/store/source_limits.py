"""Limits of what a raw corpus may ask for: lines without end, files that unfold without end, names without number.

A few bytes on disk can stand for terabytes of text: packed files, the encodings of Parquet, files with holes. A source
is refused, in one line, as soon as it exceeds a limit. The defaults are far above real text, which gz and xz shrink at
most twentyfold, and every limit has a flag of ``fl-sim prepare`` (docs/corpora.md).

>>> limits = SourceLimits(unpacking=100)
>>> limits.check_unpacked(Path("letters.gz"), unpacked=50 << 20, packed=1 << 20)
>>> limits.check_unpacked(Path("bomb.gz"), unpacked=200 << 20, packed=1 << 20)
Traceback (most recent call last):
fl_sim.data_prep.records.CorpusError: bomb.gz: 1 MiB unfold to more than 100 MiB; allowed: 100 times (--max-unpacking)
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from fl_sim.data_prep.records import CorpusError
from fl_sim.input_files import open_regular, shown_bytes

DEFAULT_RECORD_MB, DEFAULT_UNPACKING, DEFAULT_KINDS = 16, 100, 1000

_MIB = 1 << 20
_ALWAYS_ALLOWED = 4 * _MIB  # a small file may unfold further
_LEAST_PER_VALUE = 4  # bytes in memory of one value of a column, whatever it is
_MOST_SPLITS = 100
_SECTOR = 512  # the unit of st_blocks


@dataclass(frozen=True)
class SourceLimits:
    """What a source may ask for.

    Attributes:
        record_mb: the longest line, row of a table, cell, or tagged sentence, in MiB.
        unpacking: how many bytes one byte of a packed file may stand for; the first 4 MiB are free.
        kinds: the most classes, and the most labels of entities.
    """

    record_mb: int = DEFAULT_RECORD_MB
    unpacking: int = DEFAULT_UNPACKING
    kinds: int = DEFAULT_KINDS

    def __post_init__(self) -> None:
        allowed = {"record_mb": 2048, "unpacking": 10**6, "kinds": 10**6}
        for name, most in allowed.items():
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise CorpusError(f"{_FLAGS[name]} is {value}; allowed: an integer in [1, {most}]")

    @property
    def record_bytes(self) -> int:
        """The longest record, in bytes."""
        return self.record_mb * _MIB

    def check_record(self, where: str, length: int) -> None:
        """Raise :class:`CorpusError` if a record of ``length`` bytes or characters is too long."""
        if length > self.record_bytes:
            raise CorpusError(
                f"{where}: more than {self.record_mb} MiB without an end; allowed: at most {self.record_mb} MiB in a "
                "line, row or sentence (--max-record-mb)"
            )

    def check_unpacked(self, path: Path, unpacked: int, packed: int) -> None:
        """Raise :class:`CorpusError` if ``packed`` bytes of a file stand for ``unpacked`` bytes."""
        if unpacked > max(self.unpacking * packed, _ALWAYS_ALLOWED):
            raise CorpusError(
                f"{path}: {shown_bytes(packed)} unfold to more than "
                f"{shown_bytes(max(self.unpacking * packed, _ALWAYS_ALLOWED))}; allowed: {self.unpacking} times "
                "(--max-unpacking)"
            )

    def check_kinds(self, what: str, names: int) -> None:
        """Raise :class:`CorpusError` if a source has so many classes or labels."""
        if names > self.kinds:
            raise CorpusError(
                f"the source has more than {self.kinds:,} {what}; allowed: at most {self.kinds:,} (--max-kinds)"
            )

    def check_splits(self, splits: int) -> None:
        """Raise :class:`CorpusError` if a source has so many splits, each of which takes files of its own."""
        if splits > _MOST_SPLITS:
            raise CorpusError(f"the source has more than {_MOST_SPLITS} splits; allowed: at most {_MOST_SPLITS}")

    def check_parquet(self, path: Path, file: pq.ParquetFile, columns: list[str]) -> None:
        """Raise :class:`CorpusError` if the columns of a Parquet file take far more memory than disk.

        Its footer states how many values each chunk has, and how many bytes its pages unpack to. Repeated values take
        no bytes at all, so both count.
        """
        wanted, unpacked = set(columns), 0
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            for index in range(group.num_columns):
                chunk = group.column(index)
                if chunk.path_in_schema.split(".")[0] in wanted:
                    unpacked += max(chunk.total_uncompressed_size, _LEAST_PER_VALUE * chunk.num_values)
        self.check_unpacked(path, unpacked, path.stat().st_size)

    def check_stored(self, path: Path) -> None:
        """Check that ``path`` is a regular file that is about as large on disk as it is long.

        Raises:
            CorpusError: it consists of holes, which read as zeros.
            OSError: it is no regular file, or absent.
        """
        with open_regular(path) as file:
            state = os.fstat(file.fileno())
            stored = getattr(state, "st_blocks", state.st_size) * _SECTOR
            if stored or state.st_size <= _ALWAYS_ALLOWED or _has_data(file.fileno()):
                self.check_unpacked(path, state.st_size, stored or state.st_size)
            else:
                self.check_unpacked(path, state.st_size, 0)


_FLAGS = {"record_mb": "--max-record-mb", "unpacking": "--max-unpacking", "kinds": "--max-kinds"}


def _has_data(descriptor: int) -> bool:
    """Return whether a file is more than a hole; where the system cannot say, it is."""
    if not hasattr(os, "SEEK_DATA"):
        return True
    try:
        return os.lseek(descriptor, 0, os.SEEK_DATA) >= 0
    except OSError as error:
        return error.errno != errno.ENXIO
