"""Draw other held-out users: a corpus whose training and held-out users are redrawn from splits of a prepared one.

A difference between two methods on one set of held-out users has those users' sampling error. Draws of other users show
how far it holds for users at large. Users are drawn as a whole, by name, so that no user is on both sides.

>>> draw_users(["ann", "bob", "cy", "dan"], 2, seed=1) == draw_users(["dan", "cy", "bob", "ann"], 2, seed=1)
True
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.readers.prepared_corpus import sentences_of
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.strategies.primitives import streams

TRAIN, HELD_OUT = "train", "validation"


def draw_users(users: Iterable[str], held_out: int, seed: int) -> frozenset[str]:
    """Return the names of the users to hold out.

    Args:
        users: names, in any order.
        held_out: how many to draw.
        seed: of the draw.

    Raises:
        CorpusError: fewer than two users would be left for training.
    """
    names = sorted(set(users))
    if held_out > len(names) - 2:
        raise CorpusError(
            f"users is {held_out}; allowed: at most {len(names) - 2}, because two of the users must train"
        )
    chosen = streams.generator(seed, "held-out users").choice(len(names), held_out, replace=False)
    return frozenset(names[number] for number in chosen.tolist())


def redraw(corpus: Corpus, out: Path, splits: Sequence[str], held_out: int, seed: int) -> Corpus:
    """Write a corpus with redrawn users to the folder ``out``, and open it.

    Args:
        corpus: a prepared corpus of one part.
        out: the folder to make.
        splits: whose users train or are held out; sentences of other splits are left out.
        held_out: how many users are held out; all others train.
        seed: of the draw.

    Raises:
        CorpusError: a split is unknown, the corpus has several parts, or too many users would be held out.
    """
    for split in splits:
        if split not in corpus.splits:
            raise CorpusError(f"splits is '{split}'; allowed: {', '.join(corpus.splits)}")
    if len(corpus.parts) > 1:
        raise CorpusError(f"{corpus.path}: has {len(corpus.parts)} parts; allowed for a draw of users: one")
    users = [name for split in splits for name in corpus.users(split)["user"].tolist()]
    chosen = draw_users(users, held_out, seed)
    manifest = corpus.manifest
    drawn = {"splits": list(splits), "users": held_out, "seed": seed, "parent": corpus.fingerprint}
    return write_corpus(
        _moved(corpus, frozenset(splits), chosen),
        out,
        name=manifest.name,
        sources=manifest.sources,
        settings={**manifest.settings, "held_out_draw": drawn},
        tagger=manifest.tagger,
        sought_labels=corpus.parts[0].manifest.sought_labels,
        identity=Identity.of_corpus(corpus.manifest.settings).of_single_names(),
    )


def _moved(corpus: Corpus, splits: frozenset[str], chosen: frozenset[str]) -> Iterator[Sentence]:
    """Yield the sentences of ``splits`` under the split that the draw gives their user."""
    for sentence in sentences_of(corpus):
        if sentence.split in splits:
            yield dataclasses.replace(sentence, split=HELD_OUT if sentence.user in chosen else TRAIN)
