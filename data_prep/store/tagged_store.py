"""Keep the mentions of a tagger on disk during a preparation, so that an interrupted one continues where it was.

Tagging takes most of the time; everything else is done again. Mentions are kept in batches; each is a file that appears
atomically, with a checksum of its texts.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     store = TaggedStore(Path(folder) / "tagged", key="rules, version 2")
...     sentences = [Sentence("train", "ann", "Ada left.", ())]
...     [marked.text for marked in store.marked(sentences, mark=lambda batch: batch)], store.reused
(['Ada left.'], 0)
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.files import replace_file_by

Mark = Callable[[Iterable[Sentence]], Iterable[Sentence]]
"""Returns every sentence with its mentions, in the order of the sentences."""

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
    """Keeps batches of mentions.

    Attributes:
        folder: of the batches; made when the first is full.
        key: a checksum of everything that decides the mentions; batches with another key are removed.
        reused: how many sentences took their mentions from an earlier preparation.
    """

    folder: Path
    key: str
    reused: int = 0

    def marked(self, sentences: Iterable[Sentence], mark: Mark) -> Iterator[Sentence]:
        """Yield ``mark(sentences)``, but mark only sentences that are in no batch; :attr:`reused` counts the others."""
        remaining = iter(sentences)
        number = 0
        for mentions in self._batches():
            batch = list(itertools.islice(remaining, mentions.num_rows))
            if _digest(batch) != mentions.schema.metadata[_TEXTS]:
                remaining = itertools.chain(batch, remaining)
                break
            self.reused += len(batch)
            number += 1
            yield from _with_mentions(batch, mentions)
        self._discard(number)
        yield from self._keep(mark(remaining), number)

    def remove(self) -> None:
        """Remove all batches, when the corpus is finished."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _batches(self) -> Iterator[pa.Table]:
        """Yield the batches in their order, up to the first that is missing or damaged."""
        try:
            if (self.folder / _KEY_FILE).read_text(encoding="utf-8") != self.key:
                return
            for number in itertools.count():
                with pa.memory_map(str(self._file(number))) as source:
                    yield pa.ipc.open_file(source).read_all()
        except (OSError, pa.ArrowException):
            return

    def _discard(self, first: int) -> None:
        """Remove the batches from number ``first`` on, and the folder if ``first`` is 0."""
        if not first:
            self.remove()
            return
        for path in self.folder.glob("*.arrow*"):
            if path.name >= self._file(first).name or path.suffix != ".arrow":
                path.unlink()

    def _keep(self, marked: Iterable[Sentence], number: int) -> Iterator[Sentence]:
        """Yield the sentences after writing their mentions in batches, numbered from ``number``."""
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
            name: [[getattr(mention, name) for mention in sentence.mentions] for sentence in batch]
            for name in _SCHEMA.names
        }
        table = pa.table(columns, schema=_SCHEMA.with_metadata({_TEXTS: _digest(batch)}))

        def write(path: Path) -> None:
            with path.open("wb") as file, pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)

        replace_file_by(self._file(number), write)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:08d}.arrow"


def _digest(batch: Iterable[Sentence]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for sentence in batch:
        text = sentence.text.encode("utf-8", "surrogatepass")
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest().encode()


def _with_mentions(batch: Sequence[Sentence], mentions: pa.Table) -> Iterator[Sentence]:
    columns = (mentions.column(name).to_pylist() for name in _SCHEMA.names)
    for sentence, starts, ends, labels in zip(batch, *columns, strict=True):
        yield dataclasses.replace(sentence, mentions=tuple(map(Mention, starts, ends, labels)))
