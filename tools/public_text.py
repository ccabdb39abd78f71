"""Gather public, openly licensed English text, one sentence per line, to pre-train the bundled model on.

    python -m tools.public_text --ner-open DIR --polarity DIR --filings DIR --out public.txt

Sources, each optional: the open NER sets (UniversalNER EWT and PUD, WikiGold, WNUT-17, the Broad Twitter Corpus), the
sentence polarity set, and contracts from SEC filings. No corpus that a documented run trains on is among them.
"""

from __future__ import annotations

import argparse
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.train_tokenizer import column_sentences, read_lines, universal_ner_sentences

MIN_WORDS, MAX_WORDS = 3, 50


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


def gather(arguments: argparse.Namespace) -> dict[str, list[str]]:
    """Return the usable sentences of every given source, by its name."""
    sources: dict[str, Iterator[str]] = {}
    for name, reader in (("ner_open", open_ner), ("polarity", polarity), ("filings", filings)):
        if getattr(arguments, name) is not None:
            sources[name] = reader(getattr(arguments, name))
    return {name: [" ".join(s.split()) for s in sentences if usable(s)] for name, sentences in sources.items()}


def usable(sentence: str) -> bool:
    """Return whether a sentence is neither a fragment nor a page."""
    return MIN_WORDS <= len(sentence.split()) <= MAX_WORDS


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Gather public text, one sentence per line.")
    for flag, text in (
        ("--ner-open", "folder of the open NER sets"),
        ("--polarity", "folder of the sentence polarity set"),
        ("--filings", "folder of the SEC filings NER set"),
    ):
        parser.add_argument(flag, type=Path, help=text)
    parser.add_argument("--out", type=Path, required=True, help="text file to write")
    arguments = parser.parse_args(argv)
    sources = gather(arguments)
    for name, sentences in sources.items():
        print(f"{name}: {len(sentences)} sentences", file=sys.stderr)
    lines = [sentence for sentences in sources.values() for sentence in sentences]
    arguments.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
