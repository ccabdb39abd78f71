"""Chats: lines of ``who: what they said``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fl_sim.data_prep.readers.cleaning import Reading
from fl_sim.data_prep.readers.reader import RawCorpus
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.textfiles import decoded_lines


@dataclass(frozen=True)
class ChatReader:
    """A chat: a file of lines such as Ada: Hello.

    Attributes:
        source: The file.
        held_out: The person of the validation split; all others train.
    """

    source: Path
    held_out: str

    def read(self) -> RawCorpus:
        """Return the chat."""

        def said(reading: Reading) -> Iterator[Sentence]:
            for number, line in decoded_lines(self.source):
                who, colon, what = line.partition(": ")
                if not colon:
                    raise CorpusError(f"{self.source}, line {number}: no colon; allowed: lines such as Ada: Hello")
                yield Sentence("validation" if who == self.held_out else "train", who, what, ())

        return RawCorpus.from_files("chat", "chat", said, [self.source], settings={"held_out": self.held_out})
