"""Statistics of a prepared corpus: users, sentences, and the contribution bounds of its entities.

At the end: how many entities and which bounds each identity setting would give.

>>> from fl_sim.data_prep.store.corpus import Corpus
>>> stats = split_stats(Corpus.open("bundled"), "train")
>>> stats["users"], stats["sentences"], stats["entities"]
(1179, 17553, 7512)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypedDict

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from rich.table import Table

from fl_sim.data_prep.canaries import read_canaries
from fl_sim.data_prep.identity import STEPS, Identity
from fl_sim.data_prep.readers.prepared_corpus import sentences_of_split
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.taggers.tagger_registry import unsought_kinds
from fl_sim.formats import table_cell

CONTRIBUTIONS_ARE_PRIVATE = (
    "The contribution bounds of entities are private data themselves: they are for the owner of this simulation, "
    "and no ε covers publishing them."
)

_THREE_FIGURES = "Three figures in a row are the median, the 95th percentile and the maximum."


class Quantiles(TypedDict):
    """Median, 95th percentile and maximum: values that occur, never interpolated."""

    median: int
    p95: int
    max: int


class Reach(TypedDict):
    """Quantiles over entities: the users that mention one, the sentences that do, and the most of one user."""

    users: Quantiles
    sentences: Quantiles
    sentences_per_user: Quantiles


class SplitStats(TypedDict):
    """The statistics of a split.

    Attributes:
        sentences_by_type: sentences with at least one mention of each label.
        sensitive_sentences: sentences with any mention.
        extended_set: sentences with none.
        tokens: words by white space.
    """

    users: int
    sentences: int
    sentences_by_type: dict[str, int]
    sensitive_sentences: int
    extended_set: int
    entities: int
    reach: Reach
    sentences_per_user: Quantiles
    tokens: int


class CorpusStats(TypedDict):
    """The statistics of a corpus.

    Attributes:
        bad_text: problems met while reading (:class:`fl_sim.data_prep.readers.cleaning.Note`), over all parts.
        not_looked_for: the kinds of personal data that nobody looked for.
        canaries: counts of made-up secrets (docs/audit.md); None for a corpus without them.
    """

    name: str
    fingerprint: str
    splits: dict[str, SplitStats]
    bad_text: dict[str, int]
    not_looked_for: list[str]
    canaries: dict[str, int] | None
    note: str


def corpus_stats(corpus: Corpus) -> CorpusStats:
    """Return the statistics of a corpus as JSON values."""
    return {
        "name": corpus.manifest.name,
        "fingerprint": corpus.fingerprint,
        "splits": {split: split_stats(corpus, split) for split in corpus.splits},
        "bad_text": dict(sorted(sum((Counter(part.manifest.notes) for part in corpus.parts), Counter()).items())),
        "not_looked_for": list(unsought_kinds(corpus)),
        "canaries": _canaries(corpus),
        "note": CONTRIBUTIONS_ARE_PRIVATE,
    }


def split_stats(corpus: Corpus, split: str) -> SplitStats:
    """Return the statistics of one split."""
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


def stats_table(stats: CorpusStats) -> Table:
    """Return the statistics of :func:`corpus_stats` as a table, one column per split."""
    splits = stats["splits"]
    table = _table(f"corpus {table_cell(stats['name'])}", "", splits)
    types = sorted({label for figures in splits.values() for label in figures["sentences_by_type"]})

    def row(title: str, value: Callable[[SplitStats], int | Quantiles]) -> None:
        table.add_row(title, *(_format(value(figures)) for figures in splits.values()))

    row("users", lambda figures: figures["users"])
    row("sentences", lambda figures: figures["sentences"])
    for label in types:
        counts = (figures["sentences_by_type"].get(label, 0) for figures in splits.values())
        table.add_row(f"  with {table_cell(label)}", *map(_format, counts))
    row("  with any entity (sensitive)", lambda figures: figures["sensitive_sentences"])
    row("  with none (extended set)", lambda figures: figures["extended_set"])
    row("tokens (by white space)", lambda figures: figures["tokens"])
    row("sentences per user", lambda figures: figures["sentences_per_user"])
    row("entities", lambda figures: figures["entities"])
    row("  users per entity", lambda figures: figures["reach"]["users"])
    row("  sentences per entity", lambda figures: figures["reach"]["sentences"])
    row("  most sentences in one user", lambda figures: figures["reach"]["sentences_per_user"])
    return table


def _table(title: str, first: str, others: Iterable[str]) -> Table:
    """Return a table without rows: a column of names, and columns of figures, none of which is cut."""
    caption = f"{_THREE_FIGURES}\n{CONTRIBUTIONS_ARE_PRIVATE}"
    table = Table(title=title, caption=caption, caption_justify="left")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _format(value: int | Quantiles) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value['median']:,} / {value['p95']:,} / {value['max']:,}"


def _sentences_by_type(corpus: Corpus, split: str) -> dict[str, int]:
    counts = corpus.mentions(split).group_by("label").aggregate([("sentence", "count_distinct")])
    return {row["label"]: row["sentence_count_distinct"] for row in counts.sort_by("label").to_pylist()}


def _summary(values: NDArray[np.int64]) -> Quantiles:
    if len(values) == 0:
        return {"median": 0, "p95": 0, "max": 0}
    median, p95, most = np.quantile(values, [0.5, 0.95, 1.0], method="inverted_cdf").tolist()
    return {"median": int(median), "p95": int(p95), "max": int(most)}


class IdentityEffect(TypedDict):
    """The number of entities under an identity setting, and quantiles of their contribution bounds."""

    identity: str
    entities: int
    users: Quantiles
    sentences: Quantiles
    max_per_user: Quantiles


def identity_effect(corpus: Corpus, split: str = "train") -> list[IdentityEffect]:
    """Return the effect of each identity setting: the steps one after another, then family names with all of them.

    Keys are computed anew from the stored mentions.

    Args:
        corpus: The corpus to read.
        split: The split to count.

    Raises:
        CorpusError: the corpus has no such split, or no mention in it.
    """
    import pandas as pd

    if corpus.mentions(split).num_rows == 0:
        raise CorpusError(f"{corpus.path}: split {split!r} has no mention of an entity")
    sentences = list(sentences_of_split(corpus, split))
    names = ["the very characters", *(f"+ {step}" for step in STEPS)]
    settings = {name: Identity(tuple(STEPS)[:count]) for count, name in enumerate(names)}
    effects: list[IdentityEffect] = []
    for name, identity in (settings | {"all steps, family names": Identity(family_names=True)}).items():
        keys = [(key, one.user) for one in sentences for key in {key for key, _ in identity.entities(one)}]
        by_user = pd.DataFrame(keys, columns=["entity", "user"]).value_counts()
        entities = by_user.groupby("entity").agg(["size", "sum", "max"])
        users, mentioning, most = (_summary(entities[column].to_numpy()) for column in entities)
        effects.append(
            {"identity": name, "entities": len(entities), "users": users, "sentences": mentioning, "max_per_user": most}
        )
    return effects


def identity_table(corpus: str, split: str, rows: Sequence[IdentityEffect]) -> Table:
    """Return the rows of :func:`identity_effect` as a table."""
    title = f"corpus {table_cell(corpus)}, split {table_cell(split)}"
    table = _table(title, "identity", ("entities", "users", "sentences", "in one user"))
    for row in rows:
        figures: list[int | Quantiles] = [row["entities"], row["users"], row["sentences"], row["max_per_user"]]
        table.add_row(row["identity"], *map(_format, figures))
    return table
