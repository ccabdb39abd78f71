"""Distil word vectors into a small hashed table, whose weights are our own.

The pipeline is first trained on an encoder's word embeddings (:mod:`fl_sim.data_prep.ner.word_vectors`). A table is
then fitted by least squares to give every word the vector that the trained pipeline uses for it: a word reads the mean
of :data:`HASHES` rows, chosen by hashes of its lower case. There are fewer rows than words, so the table only
approximates its teacher. It holds no words.

>>> table = distil_table(["paris", "leeds"], np.eye(2, dtype=np.float32), ["nowhere"], rows=50)
>>> table.shape, table.dtype
((50, 2), dtype('float32'))
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
"""Rows that a word reads. Two words almost never share all of them."""

_NO_PARTS = 1000
"""spaCy's floret tables can also read parts of words of so many letters; longer than any word, to read whole words."""

_OTHER_WEIGHT = 0.3
_COMMON = 1000
_DAMPING = 0.16
_STEPS = 40
"""These four were chosen on validation parts. The damping penalises the square of the rows; stopping the solver early
damps them as well."""


def distil_table(
    words: Sequence[str], targets: NDArray[np.float32], others: Sequence[str], rows: int
) -> NDArray[np.float32]:
    """Return a table from which every word reads about its target, and unknown words about zero.

    The fit is by least squares; the word at rank i weighs (1 + i/1000)^-1/2.

    Args:
        words: commonest first.
        targets: float32 (words, width).
        others: words that the teacher does not know.
        rows: of the table.

    Returns:
        float32 (rows, width).
    """
    read = np.array(_rows_of([*words, *others], rows))
    weights = np.concatenate([(1 + np.arange(len(words)) / _COMMON) ** -0.5, np.full(len(others), _OTHER_WEIGHT)])
    word_index = np.repeat(np.arange(len(read)), HASHES)
    means = csr_matrix((np.full(read.size, 1 / HASHES), (word_index, read.ravel())), shape=(len(read), rows))
    strength = np.sqrt(weights)
    weighted = (diags(strength) @ means).tocsr()
    wanted = np.zeros((len(read), targets.shape[1]))
    wanted[: len(words)] = targets
    columns = [lsmr(weighted, strength * column, damp=_DAMPING, maxiter=_STEPS)[0] for column in wanted.T]
    return np.stack(columns, axis=1).astype(np.float32)


def hashed_vectors(table: NDArray[np.float32], strings: StringStore, hashes: int = HASHES) -> Vectors:
    """Return ``table`` as spaCy's vectors: a token has the mean of the rows chosen by hashes of its lower case.

    Args:
        table: float32 (rows, width).
        strings: of the pipeline.
        hashes: rows that a token reads.
    """
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
    """Return the lower-case tokens of ``sentences`` that are not in ``known``, sorted."""
    tokenizer = English().tokenizer
    return sorted({token.lower_ for sentence in sentences for token in tokenizer(sentence.text)} - set(known))


def _rows_of(words: Sequence[str], rows: int) -> NDArray[np.intp]:
    """Return the rows that spaCy reads for each word, intp (words, HASHES), by reading a table of row numbers."""
    numbers = np.arange(rows, dtype=np.float32)[:, None]
    sums = [np.zeros(len(words))]
    for hashes in range(1, HASHES + 1):
        sums.append(hashed_vectors(numbers, StringStore(), hashes).get_batch(list(words))[:, 0] * hashes)
    return np.rint(np.diff(sums, axis=0).T).astype(np.intp)
