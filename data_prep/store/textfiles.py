"""Read the lines of plain, .xz and .gz files; every error names the file and the line.

First the limits of what a raw corpus may ask for: lines without end, files that unfold without end, names without
number.

A few bytes on disk can stand for terabytes of text: packed files, the encodings of Parquet, files with holes. A source
is refused, in one line, as soon as it exceeds a limit. The defaults are far above real text, which gz and xz shrink at
most twentyfold, and every limit has a flag of ``fl-sim prepare`` (docs/corpora.md).

>>> limits = SourceLimits(unpacking=100)
>>> limits.check_unpacked(Path("letters.gz"), unpacked=50 << 20, packed=1 << 20)
>>> limits.check_unpacked(Path("bomb.gz"), unpacked=200 << 20, packed=1 << 20)
Traceback (most recent call last):
fl_sim.data_prep.records.CorpusError: bomb.gz: 1 MiB unfold to more than 100 MiB; allowed: 100 times (--max-unpacking)

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "letters.txt.gz"
...     _ = path.write_bytes(gzip.compress(b"Dear Ada"))
...     list(decoded_lines(path))
[(1, 'Dear Ada')]
"""

from __future__ import annotations

import errno
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow.parquet as pq

from fl_sim.data_prep.records import CorpusError
from fl_sim.files import open_regular, shown_bytes

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
        record_mb: The longest line, row of a table, cell, or tagged sentence, in MiB.
        unpacking: The most bytes that one byte of a packed file may stand for; the first 4 MiB are free.
        kinds: The most classes, and the most labels of entities.
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


_READ_BYTES = 1 << 20
_BEGINNING = 1 << 26
_DAMAGE = (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError)
_OTHER_PACKING = frozenset({".zip", ".zst", ".bz2", ".lz4", ".lzma", ".7z", ".rar", ".tar", ".tgz", ".txz"})
_positions: dict[Path, int] = {}


def decoded_lines(
    path: Path, on_bad_bytes: Callable[[], None] | None = None, limits: SourceLimits | None = None
) -> Iterator[tuple[int, str]]:
    """Yield ``(line number from 1, line with its line end)`` of a UTF-8 file; a byte-order mark is dropped.

    Args:
        path: the file; .xz and .gz are decompressed.
        on_bad_bytes: called for every line that is not UTF-8, whose bad bytes become U+FFFD; without it such a line is
            an error.
        limits: of a line, and of what the file may unfold to; by default those of a source.

    Raises:
        CorpusError: the file is empty, a line is not UTF-8 or too long, or the compressed stream is damaged, of another
            kind, or unfolds without end.
        OSError: the file cannot be opened, or is no regular file.
    """
    limits, number = limits or SourceLimits(), 0
    try:
        with open_regular(path) as raw, unpacked(path, raw) as stream:
            for batch in whole_lines(stream, raw, path, limits):
                for line in _decoded(batch, path, number + 1, on_bad_bytes):
                    number += 1
                    yield number, line
    except _DAMAGE as error:
        raise CorpusError(f"{path}: the compressed file is damaged after line {number}: {error}") from error
    if number == 0:
        raise CorpusError(f"{path}: the file is empty")


def bytes_read(path: Path) -> int:
    """Return how many bytes of ``path`` its latest reading has read from disk; 0 before the first."""
    return _positions.get(path, 0)


def note_position(path: Path, position: int) -> None:
    """Record how many bytes of ``path`` a reading that does not go by lines has read."""
    _positions[path] = position


def check_beginning(path: Path, limits: SourceLimits) -> None:
    """Read the first line of a text file, or the first 64 MiB of a packed one, and decode none of it.

    What has no end, or unfolds without end, is mostly refused here, before anything else is done with it.

    Raises:
        CorpusError, OSError: as :func:`decoded_lines`; a damaged file is left to it.
    """
    length = 0
    try:
        with open_regular(path) as raw, unpacked(path, raw) as stream:
            for lines in whole_lines(stream, raw, path, limits):
                length += len(lines)
                if stream is raw or length > _BEGINNING:
                    break
    except _DAMAGE:
        return  # the reader says after which line


def stored_file(folder: Path, name: str) -> Path | None:
    """Return the file ``name`` in ``folder``: plain, else .xz, else .gz; None if there is none."""
    return next((path for ending in ("", ".xz", ".gz") if (path := folder / f"{name}{ending}").is_file()), None)


def unpacked(path: Path, raw: BinaryIO) -> BinaryIO | lzma.LZMAFile | gzip.GzipFile:
    """Return the stream of a file's content: decompressed if its name ends with .xz or .gz, else ``raw`` itself.

    Raises:
        CorpusError: its name says that it is packed in another way.
    """
    if path.suffix == ".xz":
        return lzma.open(raw)
    if path.suffix == ".gz":
        return gzip.open(raw)
    if path.suffix in _OTHER_PACKING:
        raise CorpusError(f"{path}: packed as {path.suffix}; allowed: plain text, .xz or .gz")
    return raw


def blocks(stream: Any, raw: BinaryIO, path: Path, limits: SourceLimits) -> Iterator[bytes]:
    """Yield a stream in blocks of at most 1 MiB; raise CorpusError if it unfolds without end.

    Args:
        stream: the content.
        raw: the file below, whose position tells how much of it stands for what came so far.
        path: of the file.
        limits: of what it may unfold to.
    """
    length = 0
    while block := stream.read(_READ_BYTES):
        length += len(block)
        _positions[path] = raw.tell()
        limits.check_unpacked(path, length, _positions[path])
        yield block


def whole_lines(stream: Any, raw: BinaryIO, path: Path, limits: SourceLimits) -> Iterator[bytes]:
    """Yield a stream in pieces that end where a line does; raise CorpusError for a line without end; see `blocks`."""
    begun, lines = bytearray(), 0
    for block in blocks(stream, raw, path, limits):
        first, end = block.find(b"\n") + 1, block.rfind(b"\n") + 1
        limits.check_record(f"{path}, line {lines + 1}", len(begun) + (first or len(block)))
        begun += block[:end] if end else block
        if end:
            lines += begun.count(b"\n")
            yield bytes(begun)
            begun = bytearray(block[end:])
    if begun:
        yield bytes(begun)


def _decoded(batch: bytes, path: Path, first: int, on_bad_bytes: Callable[[], None] | None) -> Iterable[str]:
    """Decode lines together, several times as fast as one by one; one by one if one of them is not UTF-8."""
    try:
        text = batch.decode("utf-8-sig" if first == 1 else "utf-8")
    except UnicodeDecodeError:
        lines = enumerate(io.BytesIO(batch), start=first)
        return (_decode(raw, path, number, on_bad_bytes) for number, raw in lines)
    return io.StringIO(text, newline="\n")


def _decode(raw: bytes, path: Path, number: int, on_bad_bytes: Callable[[], None] | None) -> str:
    encoding = "utf-8-sig" if number == 1 else "utf-8"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        if on_bad_bytes is not None:
            on_bad_bytes()
            return raw.decode(encoding, errors="replace")
        raise CorpusError(
            f"{path}, line {number}: not UTF-8 (byte 0x{raw[error.start]:02x} at position {error.start}); "
            f"convert the file first, or prepare it with --bad-bytes replace"
        ) from error
