"""Divide the users of a prepared corpus over folders, one for each node, and make the key that the nodes share.

    python make_nodes.py FOLDER [--nodes 2] [--corpus bundled]

It stands in for what every node does with its own text: `fl-sim prepare … --out FOLDER`. A node holds consecutive
users, so that all nodes in their order hold the corpus, and `fl-sim run --corpus CORPUS --set
privacy.entity_key=FOLDER/key` trains the same model in one place.
"""

from __future__ import annotations

import argparse
import secrets
from pathlib import Path

import numpy as np

from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.readers.prepared_corpus import sentences_of
from fl_sim.data_prep.store.corpus import Corpus


def make_nodes(corpus: Corpus, folder: Path, nodes: int) -> None:
    """Write ``node-0`` to ``node-N`` and ``key`` into ``folder``.

    Args:
        corpus: whose training split is divided.
        folder: is made.
        nodes: how many folders.
    """
    parts = np.array_split(corpus.users("train")["user"].to_numpy(), nodes)
    for number, users in enumerate(parts):
        kept = set(users)
        write_corpus(
            (said for said in sentences_of(corpus) if said.split == "train" and said.user in kept),
            folder / f"node-{number}",
            name=f"node {number}",
            tagger=corpus.manifest.tagger,
            sought_labels=corpus.manifest.sought_labels,
            identity=Identity.of_corpus(corpus.manifest.settings),
        )
        print(f"{folder / f'node-{number}'}: {len(kept):,} users")
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_text(secrets.token_hex(32) + "\n")
    print(f"{key}: the key of the digests of names, for the nodes alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--corpus", default="bundled")
    args = parser.parse_args()
    args.folder.mkdir(parents=True)
    make_nodes(Corpus.open(args.corpus), args.folder, args.nodes)


if __name__ == "__main__":
    main()
