"""Statistics of a prepared corpus: users, sentences, and the contribution bounds of its entities.

At the end: how many entities and which bounds each identity setting would give.

>>> from fl_sim.data_prep.store.corpus import Corpus
>>> stats = split_stats(Corpus.open("bundled"), "train")
>>> stats["users"], stats["sentences"], stats["entities"]
(1179, 17553, 7512)
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from fl_sim.data_prep.canaries import read_canaries
from fl_sim.data_prep.identity import DEFAULT_IDENTITY, STEPS, Entity, Identity
from fl_sim.data_prep.readers.prepared_corpus import sentences_of
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.data_prep.taggers.unsought_kinds import unsought_kinds
from fl_sim.formats import table_cell

CONTRIBUTIONS_ARE_PRIVATE = (
    "The contribution bounds of entities are private data themselves: they are for the owner of this simulation, "
    "and no ε covers publishing them."
)

_THREE_FIGURES = "Three figures in a row are the median, the 95th percentile and the maximum."
_SUMMARY = {"median": 0.5, "p95": 0.95, "max": 1.0}


def corpus_stats(corpus: Corpus) -> dict[str, Any]:
    """Return the statistics of a corpus as JSON values; those of each split under ``splits``.

    ``bad_text`` counts the problems met while reading (:class:`fl_sim.data_prep.readers.cleaning.Note`), over
    all parts. ``not_looked_for`` names the kinds of personal data that nobody looked for. ``canaries`` counts made-up
    secrets (docs/canaries.md); None for a corpus without them.
    """
    return {
        "name": corpus.manifest.name,
        "fingerprint": corpus.fingerprint,
        "splits": {split: split_stats(corpus, split) for split in corpus.splits},
        "bad_text": _bad_text(corpus),
        "not_looked_for": list(unsought_kinds(corpus)),
        "canaries": _canaries(corpus),
        "note": CONTRIBUTIONS_ARE_PRIVATE,
    }


def split_stats(corpus: Corpus, split: str) -> dict[str, Any]:
    """Return the statistics of one split as JSON values.

    * ``sentences_by_type``: sentences with at least one mention of each label.
    * ``sensitive_sentences``: sentences with any mention; ``extended_set``: sentences with none.
    * ``reach``: quantiles over entities of the users that mention the entity, of the sentences that do, and of the most
      such sentences of one user. Quantiles are values that occur, never interpolated
      (:meth:`fl_sim.data_prep.store.ownership.EntityContributions.quantile`).
    """
    ownership = corpus.ownership(split)
    contributions = ownership.entity_contributions()
    sensitive = int((ownership.entities_per_sentence > 0).sum())
    return {
        "users": ownership.num_users,
        "sentences": ownership.num_sentences,
        "sentences_by_type": _sentences_by_type(corpus, split),
        "sensitive_sentences": sensitive,
        "extended_set": ownership.num_sentences - sensitive,
        "entities": ownership.num_entities,
        "reach": {
            "users": _summary(contributions.users),
            "sentences": _summary(contributions.sentences),
            "sentences_per_user": _summary(contributions.max_per_user),
        },
        "sentences_per_user": _summary(ownership.sentences_per_user),
        "tokens": int(pc.sum(pc.count_substring_regex(corpus.texts(split), r"\S+")).as_py() or 0),
    }


def _canaries(corpus: Corpus) -> dict[str, int] | None:
    """Return how many canaries there are, how many are included, their users, |R|, and the N that fits them."""
    if not corpus.has_canaries:
        return None
    planted = read_canaries(corpus)
    return {
        "number": len(planted.canaries),
        "included": sum(canary.included for canary in planted.canaries),
        "users": len(planted.users),
        "users_left_out": planted.left_out_users,
        "possible_secrets": planted.law.size,
        "population": planted.population(corpus),
    }


def _bad_text(corpus: Corpus) -> dict[str, int]:
    notes: Counter[str] = Counter()
    for part in corpus.parts:
        notes.update(part.manifest.notes)
    return dict(sorted(notes.items()))


def stats_table(stats: dict[str, Any]) -> Table:
    """Return the statistics of :func:`corpus_stats` as a table, one column per split."""
    splits = stats["splits"]
    caption = f"{_THREE_FIGURES}\n{stats['note']}"
    table = Table(title=f"corpus {table_cell(stats['name'])}", caption=caption, caption_justify="left")
    table.add_column("", no_wrap=True)
    for split in splits:
        table.add_column(split, justify="right", overflow="fold")  # no figure is cut
    types = sorted({label for figures in splits.values() for label in figures["sentences_by_type"]})

    def row(title: str, *keys: str) -> None:
        table.add_row(title, *(_format(figures, keys) for figures in splits.values()))

    row("users", "users")
    row("sentences", "sentences")
    for label in types:
        row(f"  with {table_cell(label)}", "sentences_by_type", label)
    row("  with any entity (sensitive)", "sensitive_sentences")
    row("  with none (extended set)", "extended_set")
    row("tokens (by white space)", "tokens")
    row("sentences per user", "sentences_per_user")
    row("entities", "entities")
    row("  users per entity", "reach", "users")
    row("  sentences per entity", "reach", "sentences")
    row("  most sentences in one user", "reach", "sentences_per_user")
    return table


def _format(figures: dict[str, Any], keys: tuple[str, ...]) -> str:
    value: Any = figures
    for key in keys:
        value = value.get(key, 0)
    if isinstance(value, dict):
        return " / ".join(f"{value[part]:,}" for part in _SUMMARY)
    return f"{value:,}"


def _sentences_by_type(corpus: Corpus, split: str) -> dict[str, int]:
    mentions = corpus.mentions(split)
    encoded = mentions.column("label").combine_chunks().dictionary_encode()
    labels = encoded.dictionary.to_pylist()
    if not labels:
        return {}
    pairs = np.unique(mentions.column("sentence").to_numpy() * len(labels) + encoded.indices.to_numpy())
    counts = np.bincount(pairs % len(labels), minlength=len(labels))
    return {label: int(count) for label, count in sorted(zip(labels, counts, strict=True))}


def _summary(values: NDArray[np.int64]) -> dict[str, int]:
    if len(values) == 0:
        return dict.fromkeys(_SUMMARY, 0)
    return {name: int(np.quantile(values, q, method="inverted_cdf")) for name, q in _SUMMARY.items()}


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
            "/".join(f"{row[kind][q]:,}" for q in _SUMMARY) for kind in ("users", "sentences", "max_per_user")
        )
        table.add_row(row["identity"], f"{row['entities']:,}", *contributions)
    return table


def _figures(sentences: Sequence[Sentence], identity: Identity) -> dict[str, Any]:
    contributions = _ownership(
        [(sentence.user, entities) for sentence, entities in identity.resolve(iter(sentences))]
    ).entity_contributions()
    return {
        "entities": len(contributions.users),
        "users": _summary(contributions.users),
        "sentences": _summary(contributions.sentences),
        "max_per_user": _summary(contributions.max_per_user),
    }


def _ownership(sentences: Sequence[tuple[str, tuple[Entity, ...]]]) -> Ownership:
    """Return the incidence of sentences sorted by user, each given as its user and its entities."""
    numbers: dict[str, int] = {}
    ids = [sorted({numbers.setdefault(key, len(numbers)) for key, _ in entities}) for _, entities in sentences]
    sizes = [len(list(group)) for _, group in itertools.groupby(sentences, key=lambda item: item[0])]
    return Ownership(
        user_offsets=np.cumsum([0, *sizes], dtype=np.int64),
        entity_offsets=np.cumsum([0, *map(len, ids)], dtype=np.int64),
        entity_ids=np.fromiter(itertools.chain.from_iterable(ids), dtype=np.int32),
        num_entities=len(numbers),
    )
