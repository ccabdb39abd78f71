"""Gather public English text, one sentence per line, to train the bundled tokenizer and models on.

    python -m tools.public_text --ner-open DIR --polarity DIR --filings DIR --debian DIR --out public.txt

Sources, each optional: the open NER sets (UniversalNER EWT and PUD, WikiGold, WNUT-17, the Broad Twitter Corpus), the
sentence polarity set, contracts from SEC filings, and prose and dialogue out of Debian's packages
(:mod:`tools.debian_text`). Half of all sentences are rendered as chat messages (:mod:`tools.chat_style`). No corpus
that a documented run trains on is among them.

>>> spaced_as_written("He said , ` it 's ( nearly ) done ' .")
"He said, ` it's (nearly) done '."
"""

from __future__ import annotations

import argparse
import lzma
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools import chat_style, debian_text
from tools.train_tokenizer import column_sentences, read_lines, universal_ner_sentences

MIN_WORDS, MAX_WORDS = 3, 50
_CHAT_SEED = 0
_SPACE_BEFORE = re.compile(r" ([,.!?:;)\]]|n't|'s|'re|'ve|'ll|'m|'d)(?=\W|$)")


def open_ner(folder: Path) -> Iterator[str]:
    """Yield the sentences of the open NER sets; UniversalNER has the text in comments, the others a token per line."""
    for path in sorted(folder.glob("*/*.xz")):
        lines = read_lines(path)
        yield from universal_ner_sentences(lines) if "iob2" in path.name else column_sentences(lines)


def polarity(folder: Path) -> Iterator[str]:
    """Yield film review sentences (Latin-1)."""
    for path in sorted(folder.glob("rt-polarity.*.xz")):
        yield from lzma.decompress(path.read_bytes()).decode("latin-1").splitlines()


def filings(folder: Path) -> Iterator[str]:
    """Yield the sentences of contracts from filings, a token per line."""
    for path in sorted(folder.glob("*.xz")):
        yield from column_sentences(read_lines(path))


_TOKENIZED = {"ner_open": open_ner, "polarity": polarity, "filings": filings}
"""Sources whose sentences come with spaces around every token."""


def gather(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Return the usable sentences of every given source, by its name."""
    sources: dict[str, list[str]] = {}
    for name, reader in _TOKENIZED.items():
        if (folder := getattr(arguments, name)) is not None:
            sources[name] = [spaced_as_written(" ".join(s.split())) for s in reader(folder) if usable(s)]
    if arguments.debian is not None:
        sources["debian"] = [s for s in debian_text.sentences(arguments.debian) if usable(s)]
    return sources


def spaced_as_written(sentence: str) -> str:
    """Return a sentence of tokens without the spaces before punctuation and after brackets."""
    return re.sub(r"([(\[]) ", r"\1", _SPACE_BEFORE.sub(r"\1", sentence))


def usable(sentence: str) -> bool:
    """Return whether a sentence is neither a fragment nor a page."""
    return MIN_WORDS <= len(sentence.split()) <= MAX_WORDS


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Gather public text, one sentence per line.")
    for flag, text in (
        ("--ner-open", "folder of the open NER sets"),
        ("--polarity", "folder of the sentence polarity set"),
        ("--filings", "folder of the SEC filings NER set"),
        ("--debian", "folder with unpacked packages of Debian, and its file Translation-en"),
    ):
        parser.add_argument(flag, type=Path, help=text)
    parser.add_argument("--out", type=Path, required=True, help="text file to write")
    arguments = parser.parse_args(argv)
    sources = gather(arguments)
    for name, sentences in sources.items():
        print(f"{name}: {len(sentences)} sentences", file=sys.stderr)
    lines = chat_style.render([sentence for sentences in sources.values() for sentence in sentences], _CHAT_SEED)
    arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
