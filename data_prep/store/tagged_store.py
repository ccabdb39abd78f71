"""What a tagger found, kept on disk while a corpus is prepared, so that a killed preparation goes on where it was.

Tagging is what takes the time; everything else is done again. Mentions are kept in batches, each a file that appears
whole or not at all, with a checksum of the texts they were found in.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from fl_sim.data_prep.records import Mention, Sentence

Mark = Callable[[Iterable[Sentence]], Iterable[Sentence]]
"""Gives every sentence its mentions, in the order of the sentences."""

_SCHEMA = pa.schema(
    [
        pa.field("start", pa.list_(pa.int32())),
        pa.field("end", pa.list_(pa.int32())),
        pa.field("label", pa.list_(pa.string())),
    ]
)
_KEY_FILE = "key"
_TEXTS = b"texts"
_SENTENCES_PER_BATCH = 1 << 14
_SECONDS_PER_BATCH = 10.0


@dataclasses.dataclass
class TaggedStore:
    """The batches in ``folder``, which is made when the first is full.

    ``key`` stands for everything that decides what is found; batches that were kept under another one are removed.
    """

    folder: Path
    key: str
    reused: int = 0

    def marked(self, sentences: Iterable[Sentence], mark: Mark) -> Iterator[Sentence]:
        """``mark(sentences)``, of which only those are marked that no batch has; :attr:`reused` counts the others."""
        remaining = iter(sentences)
        number = 0
        for found in self._batches():
            batch = list(itertools.islice(remaining, found.num_rows))
            if _digest(batch) != found.schema.metadata[_TEXTS]:
                remaining = itertools.chain(batch, remaining)
                break
            self.reused += len(batch)
            number += 1
            yield from _with_mentions(batch, found)
        self._discard(number)
        yield from self._kept(mark(remaining), number)

    def remove(self) -> None:
        """Forget everything: the corpus is finished."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _batches(self) -> Iterator[pa.Table]:
        """The batches in their order, up to the first that is missing or not whole."""
        try:
            if (self.folder / _KEY_FILE).read_text(encoding="utf-8") != self.key:
                return
            for number in itertools.count():
                with pa.memory_map(str(self._file(number))) as source:
                    yield pa.ipc.open_file(source).read_all()
        except (OSError, pa.ArrowException):
            return

    def _discard(self, first: int) -> None:
        """Remove the batches from number ``first`` on, and whatever else is there if none is good."""
        if not first:
            self.remove()
            return
        for path in self.folder.glob("*.arrow*"):
            if path.name >= self._file(first).name or path.suffix != ".arrow":
                path.unlink()

    def _kept(self, marked: Iterable[Sentence], number: int) -> Iterator[Sentence]:
        batch: list[Sentence] = []
        began = time.monotonic()
        for sentence in marked:
            batch.append(sentence)
            if len(batch) == _SENTENCES_PER_BATCH or time.monotonic() - began > _SECONDS_PER_BATCH:
                self._write(batch, number)
                batch, began, number = [], time.monotonic(), number + 1
            yield sentence

    def _write(self, batch: Sequence[Sentence], number: int) -> None:
        if not self.folder.exists():
            self.folder.mkdir()
            (self.folder / _KEY_FILE).write_text(self.key, encoding="utf-8")
        columns = {
            "start": [[mention.start for mention in sentence.mentions] for sentence in batch],
            "end": [[mention.end for mention in sentence.mentions] for sentence in batch],
            "label": [[mention.label for mention in sentence.mentions] for sentence in batch],
        }
        table = pa.table(columns, schema=_SCHEMA.with_metadata({_TEXTS: _digest(batch)}))
        whole = self._file(number)
        partial = whole.with_suffix(".arrow-partial")
        with partial.open("wb") as file:
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(whole)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:08d}.arrow"


def _digest(batch: Iterable[Sentence]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for sentence in batch:
        text = sentence.text.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest().encode()


def _with_mentions(batch: Sequence[Sentence], found: pa.Table) -> Iterator[Sentence]:
    columns = (found.column(name).to_pylist() for name in _SCHEMA.names)
    for sentence, starts, ends, labels in zip(batch, *columns, strict=True):
        yield dataclasses.replace(sentence, mentions=tuple(map(Mention, starts, ends, labels)))
