"""Open corpora.

>>> import fl_sim
>>> corpus = fl_sim.open_corpus("bundled")
>>> corpus.splits
('train', 'validation', 'public')
>>> corpus.stats()["splits"]["train"]["users"]
1179
>>> corpus.sentences("validation").columns.tolist()
['user', 'text', 'mentions']
>>> corpus.entities("validation").columns.tolist()
['entity', 'labels', 'users', 'sentences', 'max_per_user']
"""

from __future__ import annotations

from pathlib import Path

from fl_sim.data_prep.store.corpus import BUNDLED, Corpus

__all__ = ["Corpus", "open_corpus"]


def open_corpus(path: str | Path = BUNDLED, *, verify: bool = False) -> Corpus:
    """Open a prepared corpus: its sentences, users, entities and figures.

    Args:
        path: a folder that ``prepare`` made, or "bundled" for the corpus that ships.
        verify: check the checksum of every file first.

    Raises:
        CorpusError: the folder is absent, foreign, incomplete or damaged.
    """
    return Corpus.open(path, verify=verify)
