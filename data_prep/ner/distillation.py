"""Words' vectors taught to a small hashed table: what ships of a pretrained encoder's knowledge, in weights of our own.

The pipeline is first trained on an encoder's word embeddings (:mod:`fl_sim.data_prep.ner.word_vectors`). A table of
numbers that
start at nothing then learns to give every word the vector that the pipeline had come to use: a word reads the mean of
:data:`HASHES` rows, chosen by hashes of its lower case, and the rows are fitted by least squares. There are fewer rows
than words to tell apart, so the table only resembles its teacher. It holds no words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import lsmr
from spacy.lang.en import English
from spacy.strings import StringStore
from spacy.vectors import Vectors

from fl_sim.data_prep.records import Sentence

HASHES = 4
"""Rows that a word reads. Two words share all of theirs about never."""

_NO_PARTS = 1000
"""spaCy's floret tables can also read the parts of a word of so many letters; longer than any, for whole words only."""

_OTHER_WEIGHT = 0.3
_COMMON = 1000
_DAMPING = 0.16
_STEPS = 40
"""These four chosen on validation parts. A row costs the square of its length times that of the damping; the steps of
the solver, stopped before it has converged, damp as well."""


def distil_table(
    words: Sequence[str], targets: NDArray[np.float32], others: Sequence[str], rows: int
) -> NDArray[np.float32]:
    """A table of ``rows`` rows from which ``words``, commonest first, read about ``targets`` (words, width), and
    ``others``, which the teacher does not know, about nothing.

    Least squares in which the word at place i weighs (1 + i/1000)^-1/2: the commoner, the closer.
    """
    read = np.array(_rows_of([*words, *others], rows))
    weights = np.concatenate([(1 + np.arange(len(words)) / _COMMON) ** -0.5, np.full(len(others), _OTHER_WEIGHT)])
    places = np.repeat(np.arange(len(read)), HASHES)
    means = csr_matrix((np.full(read.size, 1 / HASHES), (places, read.ravel())), shape=(len(read), rows))
    strength = np.sqrt(weights)
    weighted = (diags(strength) @ means).tocsr()
    wanted = np.zeros((len(read), targets.shape[1]))
    wanted[: len(words)] = targets
    columns = [lsmr(weighted, strength * column, damp=_DAMPING, maxiter=_STEPS)[0] for column in wanted.T]
    return np.stack(columns, axis=1).astype(np.float32)


def hashed_vectors(table: NDArray[np.float32], strings: StringStore, hashes: int = HASHES) -> Vectors:
    """``table`` as spaCy's vectors: every token has the mean of the rows that hashes of its lower case choose."""
    return Vectors(
        strings=strings,
        data=table,
        mode="floret",
        minn=_NO_PARTS,
        maxn=_NO_PARTS,
        hash_count=hashes,
        attr="LOWER",
        name="words",
    )


def unknown_words(known: Iterable[str], sentences: Iterable[Sentence]) -> list[str]:
    """The lower-case tokens of ``sentences`` that are not in ``known``, sorted."""
    tokenizer = English().tokenizer
    return sorted({token.lower_ for sentence in sentences for token in tokenizer(sentence.text)} - set(known))


def _rows_of(words: Sequence[str], rows: int) -> NDArray[np.intp]:
    """The rows (words, :data:`HASHES`) that spaCy reads for each word, found by reading a table of row numbers."""
    numbers = np.arange(rows, dtype=np.float32)[:, None]
    sums = [np.zeros(len(words))]
    for hashes in range(1, HASHES + 1):
        sums.append(hashed_vectors(numbers, StringStore(), hashes).get_batch(list(words))[:, 0] * hashes)
    return np.rint(np.diff(sums, axis=0).T).astype(np.intp)
