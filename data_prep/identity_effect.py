"""Effect of the identity settings on a corpus: number of entities and their contribution bounds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from fl_sim.data_prep.corpus_stats import CONTRIBUTIONS_ARE_PRIVATE
from fl_sim.data_prep.identity import DEFAULT_IDENTITY, STEPS, Entity, Identity
from fl_sim.data_prep.readers.prepared_corpus import sentences_of
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.formats import table_cell

_QUANTILES = {"median": 0.5, "p95": 0.95, "max": 1.0}


def identity_settings() -> dict[str, Identity]:
    """Return the settings to compare, by name: the steps one after another, then each option with all steps.

    >>> list(identity_settings())[:3]
    ['the very characters', '+ unicode', '+ case']
    """
    steps = list(STEPS)
    names = ["the very characters", *(f"+ {step}" for step in steps)]
    ladder = {name: Identity(steps=tuple(steps[:count])) for count, name in enumerate(names)}
    options: dict[str, dict[str, Any]] = {
        "all steps, outermost only": {"nested": "outermost"},
        "all steps, longest only": {"nested": "longest"},
        "all steps, family names": {"family_names": True},
        "all steps, linked within a user": {"link_within_document": True},
    }
    return ladder | {name: dataclasses.replace(DEFAULT_IDENTITY, **option) for name, option in options.items()}


def identity_effect(corpus: Corpus, split: str) -> list[dict[str, Any]]:
    """Return for each of :func:`identity_settings` the number of entities and quantiles of their contribution bounds.

    The quantiles are median, 95th percentile and maximum, of the users and of the sentences that mention an entity, and
    of the most such sentences of one user. Keys are computed anew from the stored mentions. A prepared corpus has no
    document names, so all sentences of a user count as one document: an upper bound on the effect of links.

    Raises:
        CorpusError: the corpus has no such split, or no mention in it.
    """
    if corpus.mentions(split).num_rows == 0:
        raise CorpusError(f"{corpus.path}: split {split!r} has no mention of an entity")
    sentences = [
        dataclasses.replace(sentence, document="all")
        for part in range(len(corpus.parts))
        for sentence in sentences_of(corpus, part)
        if sentence.split == split
    ]
    sentences.sort(key=lambda sentence: sentence.user)  # together with the appended ones
    return [{"identity": name, **_figures(sentences, rules)} for name, rules in identity_settings().items()]


def identity_table(corpus: str, split: str, rows: Sequence[dict[str, Any]]) -> Table:
    """Return the rows of :func:`identity_effect` as a table."""
    caption = (
        "Users and sentences per entity, and the most sentences in one user: median/95th percentile/maximum.\n"
        f"{CONTRIBUTIONS_ARE_PRIVATE}"
    )
    title = f"corpus {table_cell(corpus)}, split {table_cell(split)}"
    table = Table(title=title, caption=caption, caption_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("identity", no_wrap=True)
    for name in ("entities", "users", "sentences", "in one user"):
        table.add_column(name, justify="right", overflow="fold")  # no figure is cut
    for row in rows:
        contributions = (
            "/".join(f"{row[kind][q]:,}" for q in _QUANTILES) for kind in ("users", "sentences", "max_per_user")
        )
        table.add_row(row["identity"], f"{row['entities']:,}", *contributions)
    return table


def _figures(sentences: Sequence[Sentence], identity: Identity) -> dict[str, Any]:
    contributions = _ownership(
        [(sentence.user, entities) for sentence, entities in identity.resolve(iter(sentences))]
    ).entity_contributions()
    columns = {
        "users": contributions.users,
        "sentences": contributions.sentences,
        "max_per_user": contributions.max_per_user,
    }
    return {"entities": len(contributions.users)} | {
        name: {q: int(np.quantile(values, share, method="inverted_cdf")) for q, share in _QUANTILES.items()}
        for name, values in columns.items()
    }


def _ownership(sentences: Sequence[tuple[str, tuple[Entity, ...]]]) -> Ownership:
    """Return the incidence of sentences sorted by user, each given as its user and its entities."""
    numbers: dict[str, int] = {}
    ids = [sorted({numbers.setdefault(key, len(numbers)) for key, _ in entities}) for _, entities in sentences]
    sizes = [len(list(group)) for _, group in itertools.groupby(sentences, key=lambda item: item[0])]
    return Ownership(
        user_offsets=np.cumsum([0, *sizes], dtype=np.int64),
        entity_offsets=np.cumsum([0, *map(len, ids)], dtype=np.int64),
        entity_ids=np.fromiter(_flat(ids), dtype=np.int32),
        num_entities=len(numbers),
    )


def _flat(ids: Sequence[Sequence[int]]) -> Iterator[int]:
    return itertools.chain.from_iterable(ids)
