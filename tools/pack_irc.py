"""Make the corpus of real users that ships, data_prep/irc, from the messages of the Ubuntu channel.

    python -m tools.pack_irc --source irc.jsonl.xz --out packed     # its files are those of data_prep/irc

``irc.jsonl.xz`` has one message a line: id, user, text, and marks of what was replaced in it (data_prep/irc/README.md).
This is ``fl-sim prepare jsonl`` with two changes. The users that its hash holds out are divided between ``validation``
and ``test``. The Parquet files are compressed harder, because they are packed once and read often.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from fl_sim.data_prep.prepare import prepare
from fl_sim.data_prep.readers.reader import RawCorpus
from fl_sim.data_prep.readers.tables import JsonlReader, is_held_out
from fl_sim.data_prep.records import Sentence
from fl_sim.data_prep.store.atomic import folder_appearing_at
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.manifest import fingerprint_of, record_of

HELD_OUT = 0.1
TEST = 0.05
SEED = 0
LABELS = ["mention_label.list.element", "labels.list.element"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="irc.jsonl.xz")
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    args = parser.parse_args()
    corpus = pack(args.source, args.out)
    size = sum(path.stat().st_size for path in corpus.path.iterdir())
    counts = ", ".join(f"{name} {split.users:,} users" for name, split in corpus.manifest.splits.items())
    print(f"{corpus.path}: {size:,} bytes; {counts}")


def pack(source: Path, out: Path) -> Corpus:
    """Prepare the messages in ``source`` as a corpus in the new folder ``out``."""
    with tempfile.TemporaryDirectory() as scratch:
        corpus = prepare(raw_corpus(source), Path(scratch) / "irc").corpus
        with folder_appearing_at(out) as folder:
            compress(corpus, folder)
    return Corpus.open(out, verify=True)


def raw_corpus(source: Path) -> RawCorpus:
    """Return the messages with their splits: the hash of a user says where all of the user's messages go."""
    raw = JsonlReader(
        source=source,
        text_column="text",
        user_column="user",
        entities_column="marks",
        id_column="id",
        test_fraction=HELD_OUT,
        seed=SEED,
        split_sentences=False,
    ).read()

    def sentences() -> Iterator[Sentence]:
        for sentence in raw.sentences():
            yield replace(sentence, split=split_of(sentence.user))

    settings = {**raw.settings, "test_fraction": TEST, "validation_fraction": HELD_OUT - TEST}
    return replace(raw, sentences=sentences, settings=settings)


def split_of(user: str) -> str:
    """Return the split of a user, who is held out with probability 0.1, for the test with half of that.

    >>> [split_of(user) for user in ("bathjith", "rerngt", "frenjeng")]
    ['train', 'train', 'train']
    """
    if is_held_out(user, TEST, SEED):
        return "test"
    return "validation" if is_held_out(user, HELD_OUT, SEED) else "train"


def compress(corpus: Corpus, folder: Path) -> None:
    """Write the files of ``corpus`` to ``folder``, the Parquet files smaller."""
    for name in corpus.manifest.files:
        source = corpus.path / name
        if source.suffix == ".parquet":
            write_small(source, folder / name)
        else:
            (folder / name).write_bytes(source.read_bytes())
    files = {name: record_of(folder / name) for name in corpus.manifest.files}
    manifest = corpus.manifest.model_copy(update={"files": files, "fingerprint": fingerprint_of(files)})
    manifest.write(folder)


def write_small(source: Path, target: Path) -> None:
    """Write a Parquet file anew: the best compression, one row group, large pages, values as they are but labels."""
    table = pq.read_table(source)
    layout = {"row_group_size": table.num_rows, "data_page_size": 1 << 26, "use_dictionary": LABELS}
    pq.write_table(table, target, compression="zstd", compression_level=22, **layout)


if __name__ == "__main__":
    main()
