"""Chats: lines of ``who: what they said``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from fl_sim.data_prep.readers.cleaning import Cleaning, Reading
from fl_sim.data_prep.readers.raw_corpora import RawCorpus
from fl_sim.data_prep.records import CorpusError, Sentence


class ChatReader:
    """Reads a chat, in which every person is a user; one of them is held out."""

    help = "a chat: a file of lines such as Ada: Hello"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the file and the person who is held out."""
        parser.add_argument("--source", type=Path, required=True, help="the file")
        parser.add_argument("--held-out", required=True, metavar="WHO", help="the person of the validation split")

    def read(self, args: argparse.Namespace, cleaning: Cleaning) -> RawCorpus:
        """Return the chat."""

        def said(reading: Reading) -> Iterator[Sentence]:
            for number, line in reading.lines(args.source):
                who, colon, what = line.partition(": ")
                if not colon:
                    raise CorpusError(f"{args.source}, line {number}: no colon; allowed: lines such as Ada: Hello")
                yield Sentence("validation" if who == args.held_out else "train", who, what, ())

        settings = {"held_out": args.held_out}
        return RawCorpus.from_files("chat", "chat", said, [args.source], cleaning=cleaning, settings=settings)
