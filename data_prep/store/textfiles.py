"""Lines of plain, .xz and .gz files, with the file and the line in every error."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from fl_sim.data_prep.records import CorpusError

_READ_BYTES = 1 << 20
_positions: dict[Path, int] = {}


def decoded_lines(path: Path, on_bad_bytes: Callable[[], None] | None = None) -> Iterator[tuple[int, str]]:
    """Yield ``(line number from 1, line with its line end)`` of a UTF-8 file; a byte-order mark is dropped.

    ``on_bad_bytes`` is called for every line that is not UTF-8, and its bad bytes become U+FFFD; without it such a
    line is an error.
    Raises :class:`CorpusError` for an empty file, a line that is not UTF-8 and a broken compressed stream,
    and :class:`OSError` where the system refuses the file.
    """
    number = 0
    try:
        with path.open("rb") as raw, _unpacked(path, raw) as stream:
            while batch := stream.readlines(_READ_BYTES):
                _positions[path] = raw.tell()
                for line in _decoded(batch, path, number + 1, on_bad_bytes):
                    number += 1
                    yield number, line
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise CorpusError(f"{path}: the compressed file is damaged after line {number}: {error}") from error
    if number == 0:
        raise CorpusError(f"{path}: the file is empty")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes as they lie on disk, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def bytes_read(path: Path) -> int:
    """How far the latest reading of ``path`` has come, in bytes as they lie on disk; 0 before the first."""
    return _positions.get(path, 0)


def note_position(path: Path, position: int) -> None:
    """Say how far a reading of ``path`` has come that does not go by lines."""
    _positions[path] = position


def _unpacked(path: Path, raw: BinaryIO) -> BinaryIO | lzma.LZMAFile | gzip.GzipFile:
    if path.suffix == ".xz":
        return lzma.open(raw)
    if path.suffix == ".gz":
        return gzip.open(raw)
    return raw


def _decoded(batch: list[bytes], path: Path, first: int, on_bad_bytes: Callable[[], None] | None) -> Iterable[str]:
    """Lines decoded together, which is several times as fast as one by one, or one by one if any is no UTF-8."""
    try:
        text = b"".join(batch).decode("utf-8-sig" if first == 1 else "utf-8")
    except UnicodeDecodeError:
        return (_decode(raw, path, number, on_bad_bytes) for number, raw in enumerate(batch, start=first))
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
