"""Statistics of a prepared corpus: users, sentences, and the contribution bounds of its entities.

>>> from fl_sim.data_prep.store.corpus import Corpus
>>> stats = split_stats(Corpus.open("bundled"), "train")
>>> stats["users"], stats["sentences"], stats["entities"]
(1179, 17553, 7512)
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from rich.table import Table

from fl_sim.data_prep.canaries.planted_canaries import read_canaries
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import EntityContributions
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
    sensitive = int((ownership.entities_per_sentence > 0).sum())
    return {
        "users": ownership.num_users,
        "sentences": ownership.num_sentences,
        "sentences_by_type": _sentences_by_type(corpus, split),
        "sensitive_sentences": sensitive,
        "extended_set": ownership.num_sentences - sensitive,
        "entities": ownership.num_entities,
        "reach": _contribution_summary(ownership.entity_contributions()),
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


def _contribution_summary(contributions: EntityContributions) -> dict[str, dict[str, int]]:
    return {
        "users": _summary(contributions.users),
        "sentences": _summary(contributions.sentences),
        "sentences_per_user": _summary(contributions.max_per_user),
    }


def _summary(values: NDArray[np.int64]) -> dict[str, int]:
    if len(values) == 0:
        return dict.fromkeys(_SUMMARY, 0)
    return {name: int(np.quantile(values, q, method="inverted_cdf")) for name, q in _SUMMARY.items()}
