"""Read the lines of plain, .xz and .gz files; every error names the file and the line.

A few bytes on disk can stand for terabytes of text: packed files, the encodings of Parquet, files with holes. A source
is refused, in one line, as soon as it goes beyond a limit. The limits are far above real text, which gz and xz shrink
at most twentyfold (docs/corpora.md).

>>> check_unpacked(Path("bomb.gz"), unpacked=200 << 20, packed=1 << 20)
Traceback (most recent call last):
fl_sim.data_prep.records.CorpusError: bomb.gz: 1 MiB unfold to more than 100 MiB; allowed: 100 times
"""

from __future__ import annotations

import errno
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from fl_sim.data_prep.records import CorpusError
from fl_sim.files import open_regular, shown_bytes

_MIB = 1 << 20
MAX_RECORD = 16 * _MIB
"""Bytes or characters of the longest line, row of a table, cell, or tagged sentence."""

MAX_UNPACKING = 100
"""The most bytes that one byte of a packed file may stand for; the first MiB is free."""

_ALWAYS_ALLOWED = _MIB
_SECTOR = 512  # the unit of st_blocks
_READ_BYTES = 1 << 20
_DAMAGE = (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError)
_OTHER_PACKING = frozenset({".zip", ".zst", ".bz2", ".lz4", ".lzma", ".7z", ".rar", ".tar", ".tgz", ".txz"})
_positions: dict[Path, int] = {}


def check_record(where: str, length: int) -> None:
    """Raise :class:`CorpusError` if a record of ``length`` bytes or characters is too long."""
    if length > MAX_RECORD:
        most = shown_bytes(MAX_RECORD)
        raise CorpusError(f"{where}: more than {most} without an end; allowed: {most} in a line, row or sentence")


def check_unpacked(path: Path, unpacked: int, packed: int) -> None:
    """Raise :class:`CorpusError` if ``packed`` bytes of a file stand for ``unpacked`` bytes."""
    most = max(MAX_UNPACKING * packed, _ALWAYS_ALLOWED)
    if unpacked > most:
        raise CorpusError(
            f"{path}: {shown_bytes(packed)} unfold to more than {shown_bytes(most)}; allowed: {MAX_UNPACKING} times"
        )


def check_stored(path: Path) -> None:
    """Check that ``path`` is a regular file that is about as large on disk as it is long.

    Raises:
        CorpusError: it consists of holes, which read as zeros.
        OSError: it is no regular file, or absent.
    """
    with open_regular(path) as file:
        state = os.fstat(file.fileno())
        stored = getattr(state, "st_blocks", state.st_size) * _SECTOR
        if not stored and (state.st_size <= _ALWAYS_ALLOWED or _has_data(file.fileno())):
            stored = state.st_size
        check_unpacked(path, state.st_size, stored)


def _has_data(descriptor: int) -> bool:
    """Return whether a file is more than a hole; where the system cannot say, it is."""
    if not hasattr(os, "SEEK_DATA"):
        return True
    try:
        return os.lseek(descriptor, 0, os.SEEK_DATA) >= 0
    except OSError as error:
        return error.errno != errno.ENXIO


def decoded_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield ``(line number from 1, line with its line end)`` of a UTF-8 file; a byte-order mark is dropped.

    Args:
        path: the file; .xz and .gz are decompressed.

    Raises:
        CorpusError: the file is empty, a line is not UTF-8 or too long, or the compressed stream is damaged, of another
            kind, or unfolds without end.
        OSError: the file cannot be opened, or is no regular file.
    """
    number = 0
    try:
        with open_regular(path) as raw, unpacked(path, raw) as stream:
            for batch in whole_lines(stream, raw, path):
                for line in _decoded(batch, path, number + 1):
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


def blocks(stream: Any, raw: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield a stream in blocks of at most 1 MiB; raise CorpusError if it unfolds without end.

    The position in ``raw``, the file below, tells how much of it stands for what came so far.
    """
    length = 0
    while block := stream.read(_READ_BYTES):
        length += len(block)
        _positions[path] = raw.tell()
        check_unpacked(path, length, _positions[path])
        yield block


def whole_lines(stream: Any, raw: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield a stream in pieces that end where a line does; raise CorpusError for a line without end; see `blocks`."""
    begun, lines = bytearray(), 0
    for block in blocks(stream, raw, path):
        first, end = block.find(b"\n") + 1, block.rfind(b"\n") + 1
        check_record(f"{path}, line {lines + 1}", len(begun) + (first or len(block)))
        begun += block[:end] if end else block
        if end:
            lines += begun.count(b"\n")
            yield bytes(begun)
            begun = bytearray(block[end:])
    if begun:
        yield bytes(begun)


def _decoded(batch: bytes, path: Path, first: int) -> Iterable[str]:
    """Decode lines together, several times as fast as one by one; raise CorpusError for the first that is not UTF-8."""
    try:
        return io.StringIO(batch.decode("utf-8-sig" if first == 1 else "utf-8"), newline="\n")
    except UnicodeDecodeError:
        for number, line in enumerate(io.BytesIO(batch), start=first):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise CorpusError(
                    f"{path}, line {number}: not UTF-8 (byte 0x{line[error.start]:02x} at position {error.start}); "
                    "convert the file first, as with iconv -f LATIN1 -t UTF-8"
                ) from error
        raise
