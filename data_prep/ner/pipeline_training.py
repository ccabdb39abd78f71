"""Train the named-entity pipeline that ships, deterministically, from open sets.

The folder appears atomically. It holds weights, labels and the tokenizer, and no text: words of the training data
remain only as hashed rows.

The pipeline is trained twice: on the word embeddings of a pretrained encoder, then on a small table distilled from them
(:mod:`fl_sim.data_prep.ner.distillation`), which ships in their place.

>>> recipe = Recipe(repeats={"wikigold": 1}, swap=0, upper=0, lower=0, choose_on=("wikigold",))
>>> sentence = Sentence("train", "d1", "Ada left.", (Mention(0, 3, "PER"),))
>>> [each.text for each in training_sentences([NamedPart("wikigold", TRAIN, LABELS, (sentence,))], recipe, seed=0)]
['Ada left.']
"""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from spacy.lang.en import English
from spacy.language import Language
from spacy.pipeline import EntityRecognizer
from spacy.tokens import Doc, DocBin, Span
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import dot_to_object, load_config, load_model, load_model_from_config
from thinc.api import Config, NumpyOps, get_current_ops, set_current_ops

from fl_sim.data_prep.ner.augmentation import UNKNOWN, drop_case, mark_unknown, name_pools, swap_names
from fl_sim.data_prep.ner.distillation import distil_table, hashed_vectors, unknown_words
from fl_sim.data_prep.ner.open_sets import LABELS, TRAIN, VALIDATION, NamedPart, read_open_sets, sentences_of_corpus
from fl_sim.data_prep.ner.pipeline_card import describe, model_card
from fl_sim.data_prep.ner.scoring import ANY, ScoredSentence, Tally, figures, kind_of
from fl_sim.data_prep.ner.word_vectors import WordVectors, installed_encoder, reduce_vectors, word_vectors
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.atomic import folder_appearing_at, require_free
from fl_sim.data_prep.store.corpus import BUNDLED, Corpus
from fl_sim.data_prep.store.manifest import FileRecord, fingerprint_of, record_of
from fl_sim.files import sha256_of

SYNTHETIC = "synthetic"
"""The name of the bundled corpus among the sets."""

_RECIPE = "recipe"
_COMPONENT = "ner"
_READS_VECTORS = f"components.{_COMPONENT}.model.tok2vec.embed.include_static_vectors"

Scores = dict[str, dict[str, dict[str, float | None]]]
"""Set → part → figure → value; ``mentions`` is the number of gold mentions."""


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
        rows: of the table distilled from the word embeddings of an encoder (:mod:`fl_sim.data_prep.ner.distillation`).
        columns: of that table; 0 for none.
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
    columns: int = Field(default=0, ge=0)
    again_epochs: int = Field(default=1, ge=1)
    again_rate: float = Field(default=0.0007, gt=0)


@dataclass(frozen=True)
class TrainedPipeline:
    """A trained pipeline.

    Attributes:
        folder: of the pipeline.
        scores: on held-out parts.
        sha256: of the weights.
    """

    folder: Path
    scores: Scores
    sha256: str


def train_pipeline(
    source: Path,
    out: Path,
    config_file: Path,
    *,
    seed: int = 0,
    teacher: Path | None = None,
    progress: IO[str] | None = None,
) -> TrainedPipeline:
    """Train the pipeline, evaluate it on the held-out parts, and write it to a folder.

    The same seed, configuration, files and versions give the same weights, byte for byte, on one machine.

    Args:
        source: the folder with the sets.
        out: the folder to make.
        config_file: a training configuration of spaCy with a section ``recipe``.
        seed: of the training.
        teacher: the folder of the encoder to distil, if the recipe asks for one; by default
            :func:`fl_sim.data_prep.ner.word_vectors.installed_encoder`.
        progress: gets a line per evaluation.

    Raises:
        CorpusError: ``out`` is taken, ``source`` has no set, the teacher is absent, or the configuration is bad.
    """
    require_free(out)
    if not 0 <= seed < 2**32:
        raise CorpusError(f"--seed {seed} must be at least 0 and less than 2**32")
    config, recipe = _read_config(config_file, seed)
    parts, records = read_open_sets(source)
    words = word_vectors(teacher or installed_encoder()) if recipe.columns else None
    if recipe.repeats.get(SYNTHETIC, 0):
        parts.extend(synthetic_parts())
    training = training_sentences(parts, recipe, seed)
    validation = [s for p in parts if p.part == VALIDATION and p.name in recipe.choose_on for s in p.sentences]
    if not validation:
        raise CorpusError(f"{source}: none of the sets {', '.join(recipe.choose_on)} (recipe.choose_on) is there")
    with folder_appearing_at(out) as folder, tempfile.TemporaryDirectory() as scratch:
        if words is not None:
            words.write(Path(scratch) / "vectors")
            config["paths"]["vectors"] = str(Path(scratch) / "vectors")
        for name, sentences in {"train": training, "dev": validation}.items():
            config["paths"][name] = str(Path(scratch) / f"{name}.spacy")
            _write_documents(sentences, Path(scratch) / f"{name}.spacy")
        with _numpy_alone():
            trained = _train_best(init_nlp(config), Path(scratch) / "first", progress or io.StringIO())
            if words is not None:
                used = [part for part in parts if part.part == TRAIN and recipe.repeats.get(part.name, 0)]
                others = unknown_words(words.words, (sentence for part in used for sentence in part.sentences))
                _distil(trained, words, others, recipe)
                trained = _train_best(trained, Path(scratch) / "again", progress or io.StringIO())
        scores = measure(trained, parts)
        pipeline = _strip(trained)  # after the evaluation, which adds words to the vocabulary
        describe(pipeline, parts, _training_record(records, training, words, recipe, config_file, seed), scores)
        pipeline.to_disk(folder)
        checksum = weights_checksum(folder)
        (folder / "README.md").write_text(model_card(pipeline.meta, checksum), encoding="utf-8")
    return TrainedPipeline(out, scores, checksum)


def training_sentences(parts: Iterable[NamedPart], recipe: Recipe, seed: int) -> list[Sentence]:
    """Return the training sentences in the order of training.

    Args:
        parts: of the sets.
        recipe: how to make them.
        seed: of selection, augmentation and order.

    Raises:
        CorpusError: the recipe names none of the sets.
    """
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


def measure(pipeline: Language, parts: Iterable[NamedPart]) -> Scores:
    """Return precision, recall and F1 (exact place and label), F1 per label, and the share of sensitive sentences that
    are flagged, for every part that is not for training."""
    scores: Scores = {}
    for part in parts:
        if part.part == TRAIN:
            continue
        tally = Tally(frozenset(part.labels))
        documents = pipeline.pipe(sentence.text for sentence in part.sentences)
        for sentence, document in zip(part.sentences, documents, strict=True):
            tally.add(ScoredSentence(sentence.user, sentence.text, sentence.mentions, _mentions_of(document)))
        estimates = figures(tally, resamples=1)
        scores.setdefault(part.name, {})[part.part] = {
            **{name: estimates[("exact", ANY, name)].value for name in ("precision", "recall", "f1")},
            **{f"f1_{label}": estimates[("exact", label, "f1")].value for label in part.labels},
            "sensitive_sentences": estimates[("sensitive_sentences",)].value,
            "mentions": float(sum(len(sentence.mentions) for sentence in part.sentences)),
        }
    return scores


def weights_checksum(folder: Path) -> str:
    """Return a SHA-256 over names and checksums of the two files with weights in the pipeline ``folder``."""
    files = (f"{_COMPONENT}/model", "vocab/vectors")
    return fingerprint_of({name: record_of(folder / name) for name in files})


def keep_names(sentences: Iterable[Sentence]) -> tuple[Sentence, ...]:
    """Return the sentences with their names, labelled by :data:`fl_sim.data_prep.ner.open_sets.LABELS`, only."""
    relabelled = []
    for sentence in sentences:
        kinds = [(mention, kind_of(mention.label)) for mention in sentence.mentions]
        names = tuple(replace(mention, label=kind) for mention, kind in kinds if kind in LABELS)
        relabelled.append(replace(sentence, mentions=names))
    return tuple(relabelled)


def synthetic_parts() -> list[NamedPart]:
    """Return the bundled corpus's train and validation splits; its public split is for tokenizers."""
    corpus = Corpus.open(BUNDLED)
    return [
        NamedPart(SYNTHETIC, split, LABELS, keep_names(sentences_of_corpus(corpus, split)))
        for split in (TRAIN, VALIDATION)
    ]


def _read_config(path: Path, seed: int) -> tuple[Config, Recipe]:
    if not path.is_file():
        raise CorpusError(f"{path}: no such file; --config must be a training configuration of spaCy (conf/ner.cfg)")
    try:
        config = load_config(path, overrides={"system.seed": seed})
        recipe = Recipe.model_validate(dict(config.pop(_RECIPE, {})))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in (_RECIPE, *first["loc"]))
        raise CorpusError(f"{path}: {field}: {first['msg']}") from error
    except (ValueError, OSError) as error:
        reason = next(line for line in [*str(error).splitlines(), type(error).__name__] if line.strip())
        raise CorpusError(f"{path}: not a training configuration of spaCy: {reason}") from error
    if bool(recipe.columns) != _reads_vectors(config):
        raise CorpusError(
            f"{path}: {_RECIPE}.columns is {recipe.columns}, but {_READS_VECTORS} is {not recipe.columns}"
        )
    return config, recipe


def _reads_vectors(config: Config) -> bool:
    try:
        return bool(dot_to_object(config, _READS_VECTORS))
    except KeyError:
        return False


def _train_best(pipeline: Language, folder: Path, progress: IO[str]) -> Language:
    """Train ``pipeline`` by spaCy's own loop; return that of the evaluation with the best F1."""
    folder.mkdir()
    train(pipeline, folder, stdout=progress, stderr=progress)
    return load_model(folder / "model-best")


def _distil(trained: Language, words: WordVectors, others: Sequence[str], recipe: Recipe) -> None:
    """Replace the word vectors by the table distilled from them, and prepare ``trained`` for the second training."""
    targets = reduce_vectors(trained, _COMPONENT, recipe.columns)
    table = distil_table(words.words, targets, others, recipe.rows)
    trained.vocab.vectors = hashed_vectors(table, trained.vocab.strings)
    training = trained.config["training"]
    steps = training["optimizer"]["learn_rate"]["total_steps"] * recipe.again_epochs // training["max_epochs"]
    training["max_epochs"] = recipe.again_epochs
    training["optimizer"]["learn_rate"].update(total_steps=steps, initial_rate=recipe.again_rate)


@contextmanager
def _numpy_alone() -> Iterator[None]:
    """Use numpy's matrix products, which take a third of BLIS's time at these sizes."""
    before = get_current_ops()
    set_current_ops(NumpyOps(use_blis=False))
    try:
        yield
    finally:
        set_current_ops(before)


def _write_documents(sentences: Iterable[Sentence], path: Path) -> None:
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


def _mentions_of(document: Doc) -> tuple[Mention, ...]:
    return tuple(Mention(ent.start_char, ent.end_char, ent.label_) for ent in document.ents)


def _strip(trained: Language) -> Language:
    """Return the pipeline without the words in its vocabulary and the paths in its configuration."""
    config = trained.config.copy()
    config["paths"] = dict.fromkeys(config["paths"])
    slim = load_model_from_config(config)
    if trained.vocab.vectors.size:
        slim.vocab.vectors = hashed_vectors(trained.vocab.vectors.data, slim.vocab.strings)
    empty, learnt = (cast(EntityRecognizer, each.get_pipe(_COMPONENT)) for each in (slim, trained))
    empty.from_bytes(learnt.to_bytes(exclude=["vocab"]), exclude=["vocab"])
    return slim


def _training_record(
    records: Mapping[str, FileRecord],
    training: Sequence[Sentence],
    words: WordVectors | None,
    recipe: Recipe,
    config_file: Path,
    seed: int,
) -> dict[str, Any]:
    """Return how the weights were made, for the pipeline's meta data."""
    return {
        "command": "fl-sim ner train",
        "seed": seed,
        "config_sha256": sha256_of(config_file),
        "sentences": len(training),
        "teacher": words
        and {
            "words": len(words.words),
            "rows": recipe.rows,
            "columns": recipe.columns,
            "sha256": words.sha256,
        },
        "files": {name: record.sha256 for name, record in sorted(records.items())},
    }
