"""Read the lines of plain, .xz and .gz files; every error names the file and the line.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "letters.txt.gz"
...     _ = path.write_bytes(gzip.compress(b"Dear Ada"))
...     list(decoded_lines(path))
[(1, 'Dear Ada')]
"""

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

    Args:
        path: the file; .xz and .gz are decompressed.
        on_bad_bytes: called for every line that is not UTF-8, whose bad bytes become U+FFFD; without it such a line is
            an error.

    Raises:
        CorpusError: the file is empty, a line is not UTF-8, or the compressed stream is damaged.
        OSError: the file cannot be opened.
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
    """Return the SHA-256 of the bytes of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def bytes_read(path: Path) -> int:
    """Return how many bytes of ``path`` its latest reading has read from disk; 0 before the first."""
    return _positions.get(path, 0)


def note_position(path: Path, position: int) -> None:
    """Record how many bytes of ``path`` a reading that does not go by lines has read."""
    _positions[path] = position


def _unpacked(path: Path, raw: BinaryIO) -> BinaryIO | lzma.LZMAFile | gzip.GzipFile:
    if path.suffix == ".xz":
        return lzma.open(raw)
    if path.suffix == ".gz":
        return gzip.open(raw)
    return raw


def _decoded(batch: list[bytes], path: Path, first: int, on_bad_bytes: Callable[[], None] | None) -> Iterable[str]:
    """Decode lines together, several times as fast as one by one; one by one if one of them is not UTF-8."""
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
