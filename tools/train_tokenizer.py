"""Train the bundled tokenizer: byte-level BPE on public text, never on a corpus that a run trains on.

The vocabulary is a public input of every privacy guarantee (docs/privacy.md). Learned from the private sentences, it
could reveal a person before the first round, by a rare merge such as a surname. It is therefore trained on public text
alone, and only the merges and the vocabulary are kept.

    python -m tools.train_tokenizer --text public.txt --bundled-public 20 --out clients/assets/tokenizer
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

END_OF_TEXT = "<|endoftext|>"


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 text file, plain or .xz."""
    raw = path.read_bytes()
    text = lzma.decompress(raw) if path.suffix == ".xz" else raw
    return text.decode("utf-8").splitlines()


def universal_ner_sentences(lines: list[str]) -> Iterator[str]:
    """Return the sentences of a UniversalNER file, whose comment lines contain the plain text."""
    marker = "# text = "
    return (line[len(marker) :] for line in lines if line.startswith(marker))


def column_sentences(lines: list[str]) -> Iterator[str]:
    """Yield the sentences of a column file: one token per line and a blank line after each sentence."""
    words: list[str] = []
    for line in [*lines, ""]:
        token = line.split()[0] if line.strip() else ""
        if token and token != "-DOCSTART-":
            words.append(token)
        elif words:
            yield " ".join(words)
            words = []


def collect(arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return all training sentences, and a description of each source as one line."""
    sources: dict[str, list[str]] = {}
    for path in arguments.text or []:
        sources[path.name] = [line for line in read_lines(path) if line.strip()]
    if arguments.bundled_public:
        from fl_sim.data_prep.store.corpus import Corpus

        public = Corpus.open("bundled").texts("public").to_pylist()  # no run trains on it
        sources[f"bundled corpus, public split, {arguments.bundled_public} times"] = public * arguments.bundled_public
    described = [
        f"{name}: {len(sentences)} sentences, sha256 of the text {digest(sentences)}"
        for name, sentences in sources.items()
    ]
    return [sentence for sentences in sources.values() for sentence in sentences], described


def digest(sentences: list[str]) -> str:
    """Return the SHA-256 of the sentences, one per line."""
    return hashlib.sha256("\n".join(sentences).encode("utf-8")).hexdigest()


def train(sentences: list[str], vocabulary_size: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer trained on the sentences; it encodes every text without unknown tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


def write(tokenizer: Tokenizer, folder: Path) -> str:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``; return the first one's SHA-256."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.json"
    tokenizer.save(str(path), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train the bundled tokenizer on public text.")
    parser.add_argument("--text", type=Path, nargs="+", help="UTF-8 text, a sentence per line, plain or .xz")
    parser.add_argument(
        "--bundled-public", type=int, default=0, metavar="TIMES", help="add the bundled corpus's public split, so often"
    )
    parser.add_argument("--vocabulary", type=int, default=4096, help="number of tokens (default 4096)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    arguments = parser.parse_args(argv)
    if not (arguments.text or arguments.bundled_public):
        parser.error("no text: give --text or --bundled-public")
    sentences, described = collect(arguments)
    checksum = write(train(sentences, arguments.vocabulary), arguments.out)
    print("\n".join(described))
    print(f"tokenizer.json: sha256 {checksum}")


if __name__ == "__main__":
    main()
