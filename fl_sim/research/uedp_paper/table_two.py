"""Table II of the UeDP paper: its published rows, and the same figures of a prepared corpus.

Lai, Phan, Sun, Jain, Dernoncourt, Gu and Barmpalios (2022), "User-Entity Differential Privacy in Learning Natural
Language Models", IEEE BigData: |V|, sentences, users, and sentences with an entity of each kind.

>>> vocabulary(pa.chunked_array([["a b a", "b  c"]]))
3
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.taggers.categories import Selection

GROUPS = {"Org": "org", "Loc": "loc", "GPE": "gpe", "Person": "person", "PII": "pii", "Misc": "misc"}
"""Column of the table → the name of its entities for ``--entities``; ``All`` is the union of a corpus's columns."""

ALL = "All"


@dataclass(frozen=True)
class Row:
    """The figures of a corpus or of one of its splits; sensitive sentences by column (``All``, too)."""

    vocabulary: int
    sentences: int
    users: int
    sensitive: dict[str, int]


@dataclass(frozen=True)
class PublishedRow:
    """A corpus's row as published, and the reason why ours differs."""

    name: str
    row: Row
    difference: str


PUBLISHED: Mapping[str, PublishedRow] = {
    "conll2003": PublishedRow(
        "CONLL-2003",
        Row(8_882, 14_040, 946, {"Org": 5_187, "Loc": 5_433, "Person": 4_406, "Misc": 3_438, ALL: 11_176}),
        "Users agree, and the 14,041 sentences but for one (preprocessing leaves nothing of 51). The published counts "
        "of sensitive sentences are not those of the gold tags, although the paper names these as its ground truth: "
        "3,438 is the number of gold MISC mentions, not of sentences with one, and the others match no count of gold "
        "tags. The published |V| is that of no preprocessing we tried.",
    ),
    "ag-news": PublishedRow(
        "AG",
        Row(30_000, 112_000, 7_536, {"Org": 58_177, "Loc": 39_988, "GPE": 18_506, "PII": 42_683, ALL: 67_157}),
        "AG names no authors, so the paper's users cannot be recovered; they are drawn anew, N(15, 2²) rows each. "
        "Which 112,000 of AG's 120,000 rows it took, and which text of them, it does not say: on titles the shares of "
        "sensitive sentences come near its own. |V| looks like a cap, and its spaCy pipeline has no name.",
    ),
    "sec-standin": PublishedRow(
        "SEC",
        Row(12_651, 5_188, 1_592, {"Org": 1_955, "Loc": 273, "GPE": 60, "PII": 357, ALL: 2_166}),
        "The paper's SEC clauses are private. These are clauses of other public contracts (CUAD, ContractNLI, Kleister "
        "NDA), at most 12 a user; a Kleister user is one agreement, not a company. Its spaCy pipeline has no name.",
    ),
}
"""The three rows, by the kind of the raw corpus that corresponds to them."""


def rows_of(corpus: Corpus) -> tuple[Row, PublishedRow | None]:
    """Return the row of the training split of ``corpus``, and the paper's row of the same corpus if it has one.

    A sentence is sensitive under a column if one of its mentions may be of that kind, by the rule of ``fl-sim prepare
    --entities``: a label that leaves the kind open ("NAME" of the rules) counts under every kind.
    """
    published = PUBLISHED.get(str(corpus.manifest.settings.get("kind", corpus.manifest.name)))
    kinds = tuple(GROUPS) if published is None else tuple(column for column in published.row.sensitive if column != ALL)
    selected = {kind: Selection.parse(GROUPS[kind]) for kind in kinds}
    selected[ALL] = Selection.parse([GROUPS[kind] for kind in kinds])
    ownership, mentions = corpus.ownership("train"), corpus.mentions("train")
    encoded = mentions.column("label").combine_chunks().dictionary_encode()
    sentence, codes = mentions.column("sentence").to_numpy(), encoded.indices.to_numpy()
    labels = encoded.dictionary.to_pylist()
    sensitive = {}
    for column, selection in selected.items():
        kept = np.array([selection.keeps(label, labels) for label in labels], dtype=bool)
        sensitive[column] = len(np.unique(sentence[kept[codes]]))
    ours = Row(vocabulary(corpus.texts("train")), ownership.num_sentences, ownership.num_users, sensitive)
    return ours, published


def vocabulary(texts: pa.ChunkedArray) -> int:
    """Return the number of different words, split at white space, of all texts."""
    words: set[str] = set()
    for chunk in texts.chunks:
        words.update(pc.list_flatten(pc.utf8_split_whitespace(chunk)).unique().to_pylist())
    words.discard("")
    return len(words)
