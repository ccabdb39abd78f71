"""Prepare corpora, open them, and count what they hold.

>>> import json, tempfile
>>> from pathlib import Path
>>> import fl_sim
>>> rows = [{"author": f"user {n % 4}", "text": f"Ada wrote letter {n}. It rained."} for n in range(40)]
>>> columns = {"text_column": "text", "user_column": "author"}
>>> with tempfile.TemporaryDirectory() as folder:
...     source = Path(folder) / "letters.jsonl"
...     _ = source.write_text("\\n".join(json.dumps(row) for row in rows))
...     corpus = fl_sim.prepare("jsonl", source, f"{folder}/corpus", tagger="rules", **columns)
...     fl_sim.corpus_stats(corpus)["splits"]["train"]["sentences"], corpus.sentences("train").columns.tolist()
(80, ['user', 'text', 'mentions'])
>>> fl_sim.open_corpus("bundled").splits
('train', 'validation', 'public')
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.corpus import BUNDLED, Corpus

if TYPE_CHECKING:
    from fl_sim.data_prep.corpus_stats import CorpusStats
    from fl_sim.data_prep.prepare import PreparedCorpus
    from fl_sim.data_prep.readers.cleaning import Preprocessing
    from fl_sim.data_prep.readers.in_memory import Table
    from fl_sim.data_prep.readers.reader import RawCorpus
    from fl_sim.data_prep.records import Sentence
    from fl_sim.data_prep.tagger_evaluation import Evaluation

log = logging.getLogger(__name__)

__all__ = ["Corpus", "corpus_stats", "open_corpus", "prepare"]


def open_corpus(path: str | Path = BUNDLED, *, verify: bool = False) -> Corpus:
    """Open a prepared corpus: its sentences, users, entities and figures.

    Args:
        path: a folder that :func:`prepare` made, or "bundled" or "irc" for a corpus that ships (docs/corpora.md).
        verify: check the checksum of every file first.

    Raises:
        CorpusError: the folder is absent, foreign, incomplete or damaged.
    """
    if not isinstance(path, str | Path):
        raise CorpusError(f"`path` is {path!r:.100}; allowed: a folder, or the name of a corpus that ships")
    return Corpus.open(path, verify=verify)


def corpus_stats(corpus: Corpus | str | Path) -> CorpusStats:
    """Return the statistics of a corpus, as ``fl-sim corpus stats --json`` prints them.

    They count users, sentences and entities, and give the contribution bounds of the entities. The figures are private
    data of the corpus's owner; no ε covers publishing them.

    Returns:
        JSON values: ``name``, ``fingerprint``, ``splits`` (the figures of each split), ``bad_text`` and ``note``.
    """
    from fl_sim.data_prep import corpus_stats as statistics

    return statistics.corpus_stats(corpus if isinstance(corpus, Corpus) else open_corpus(corpus))


Watch = Callable[[Iterable["Sentence"]], Iterable["Sentence"]]
Progress = Callable[["RawCorpus"], AbstractContextManager[Watch]]


def _log_warnings(prepared: PreparedCorpus) -> None:
    """Log a warning for whatever looks wrong with the source."""
    for warning in prepared.warnings:
        log.warning("%s", warning)


def evaluate_tagger(
    tagger: str,
    *,
    gold: str | Path,
    split: str | None = None,
    entities: str = "all",
    high_recall: bool = False,
    structured: bool = True,
    resamples: int = 1000,
    seed: int = 0,
    out: str | Path | None = None,
    attach: str | Path | None = None,
    watch: Watch = lambda sentences: sentences,
) -> Evaluation:
    """Measure a tagger against a gold corpus, as ``fl-sim corpus ner`` does: precision, recall, hidden entities.

    Args:
        tagger: The tagger, as for :func:`prepare`: rules, spacy:PATH, a+b, or default.
        gold: A prepared corpus, "bundled", "irc", or tagged files.
        split: The split to read; by default test, else validation, or all of tagged files that name no split.
        entities: Which mentions count, as for :func:`prepare`.
        high_recall: Unite the tagger with rules.
        structured: Look for structured personal data, too, as for :func:`prepare`.
        resamples: The number of resamples of the bootstrap.
        seed: The seed of the bootstrap.
        out: Write the figures there as JSON.
        attach: Add the figures to the corpus in this folder, which the tagger marked.
        watch: Sees the sentences as they pass.

    Raises:
        CorpusError: there is no such tagger, corpus or split, or no mention that counts.
        PluginError: a tagger cannot be imported, or its interface is wrong.
    """
    from fl_sim.data_prep.tagger_evaluation import attach as attach_figures
    from fl_sim.data_prep.tagger_evaluation import check_same_tagger, check_writable, evaluate, gold_corpus
    from fl_sim.data_prep.taggers.categories import Selection
    from fl_sim.data_prep.taggers.tagger_registry import default_tagger, make_tagger, with_high_recall

    if out is not None:
        check_writable(Path(out))
    names: str | tuple[str, ...] = default_tagger() if tagger == "default" else tagger
    selection = Selection.parse(entities)
    made = make_tagger(with_high_recall(names) if high_recall else names, selection=selection, structured=structured)
    marked = gold_corpus(gold, split)
    if attach is not None:
        check_same_tagger(made.describe(), Corpus.open(Path(attach).absolute()), Path(attach))
    evaluation = evaluate(made, marked, selection=selection, resamples=resamples, seed=seed, watch=watch)
    if out is not None:
        evaluation.write(Path(out))
    if attach is not None:
        attach_figures(evaluation, Path(attach))
    return evaluation


def prepare(
    kind: str | Table,
    source: str | Path | None = None,
    out: str | Path | None = None,
    *,
    overwrite: bool = False,
    append: bool = False,
    joined_at: int | None = None,
    canaries: int | None = None,
    canary_seed: int | None = None,
    tagger: str | Sequence[str] | None = None,
    entities: str = "all",
    high_recall: bool = False,
    structured: bool = True,
    processes: int = 1,
    batch_size: int | None = None,
    identity: Identity | None = None,
    preprocessing: Preprocessing | None = None,
    progress: Progress = lambda raw: nullcontext(lambda sentences: sentences),
    observer: Callable[[PreparedCorpus], None] = _log_warnings,
    **options: Any,
) -> Corpus:
    """Make a corpus from text, as ``fl-sim prepare`` does, unless the same corpus is there already.

    Args:
        kind: "jsonl", "csv", "conll2003" or another reader by its name, or by import path (docs/corpora.md).
            Or the text itself, a pandas DataFrame or a dataset of Hugging Face's: ``prepare(table, "my_corpus", …)``.
        source: The file or folder to read, the name of a dataset; None for a reader without one.
        out: The corpus's folder.
        overwrite: Replace another corpus in the folder, once the new one is finished.
        append: Add to the corpus in the folder; its ids and files stay.
        joined_at: With append: the first round that may sample the new part (by default that of the part before, 1 for
            the first). An entity joins then only if no earlier part mentions it, detected or not.
        canaries: Plant so many made-up secrets, each in the training split with probability ½ (docs/audit.md).
        canary_seed: The seed of their secrets, of their names and of which are included (0 by default).
        tagger: Who marks the entities: gold, rules, presidio, structured or spacy:NAME_OR_PATH, several joined
            with + (docs/taggers.md); by default gold marks if any, else the best installed one.
        entities: Which mentions count: org, loc, gpe, pii, person, misc or all, separated by commas.
        high_recall: Unite the tagger with rules: fewer misses, more false alarms.
        structured: Look for e-mail and IP addresses, URLs, phone, card, account and social security numbers, too.
        processes: The number of processes that tag in parallel.
        batch_size: The number of texts per batch of a spaCy pipeline.
        identity: Which mentions are one entity (docs/corpora.md); by default that of a prepared source.
        preprocessing: What is done to the text once its entities are known.
        progress: Gives, for the raw corpus, a context with a function that sees the sentences as they pass.
        observer: Called with what was done; by default warnings about the source are logged.
        options: The reader's own settings: its flags with underscores for dashes, such as ``text_column="body"``.
            A table has those of ``fl-sim prepare csv``; ``text_column`` and ``user_column`` are needed.

    Raises:
        CorpusError: a setting or the source is bad, or ``out`` holds something else.
        PluginError: there is no such reader or tagger, or its interface is wrong.
    """
    from fl_sim.data_prep import prepare
    from fl_sim.data_prep.canaries import CanarySettings
    from fl_sim.data_prep.readers.cleaning import Preprocessing
    from fl_sim.data_prep.taggers.tagger_registry import make_marking

    if joined_at is not None and not append:
        raise CorpusError(f"`joined_at` is {joined_at} without `append`; allowed: with it")
    if append and canaries is not None:
        raise CorpusError("`canaries` is given with `append`; allowed: when the corpus is made, which fixes N")
    if append and overwrite:
        raise CorpusError("`append` is given with `overwrite`; allowed: one of them")
    if canary_seed is not None and canaries is None:
        raise CorpusError("`canary_seed` is given without `canaries`; allowed: with `canaries`")
    planted = None if canaries is None else CanarySettings(canaries, canary_seed or 0)
    raw, folder = _raw_corpus(kind, source, out, options)
    raw = raw.with_preprocessing(preprocessing or Preprocessing())
    marking = make_marking(
        tagger,
        has_gold=raw.has_gold,
        entities=entities,
        high_recall=high_recall,
        structured=structured,
        processes=processes,
        batch_size=batch_size,
    )
    with progress(raw) as watch:
        if append:
            made = prepare.append(raw, folder, joined_at=joined_at, marking=marking, identity=identity, watch=watch)
        else:
            made = prepare.prepare(
                raw, folder, marking=marking, identity=identity, watch=watch, canaries=planted, overwrite=overwrite
            )
    observer(made)
    return made.corpus


def _raw_corpus(
    kind: str | Table, source: str | Path | None, out: str | Path | None, options: Mapping[str, object]
) -> tuple[RawCorpus, Path]:
    """Return the corpus before preparation, and the folder to make; after a table the folder is next."""
    from fl_sim.data_prep.readers.in_memory import kind_of, read_in_memory
    from fl_sim.data_prep.readers.reader import read_raw_corpus, with_settings
    from fl_sim.data_prep.readers.tables import TableColumns

    table = None if isinstance(kind, str) else kind_of(kind)
    if not isinstance(kind, str) and table is None:
        raise CorpusError(
            f"`kind` is of type {type(kind).__name__}; allowed: the name of a reader, a pandas DataFrame, or a dataset "
            "of Hugging Face's"
        )
    if table is not None and out is None:
        source, out = None, source
    for name, path in {"source": source, "out": out}.items():
        if not isinstance(path, str | Path | None):
            raise CorpusError(
                f"`{name}` is of type {type(path).__name__}; allowed: a path; a table stands in place of kind"
            )
    if out is None:
        raise CorpusError("`out` is missing; allowed: the corpus's folder")
    if isinstance(kind, str):
        return read_raw_corpus(kind, options if source is None else {**options, "source": source}), Path(out)
    if source is not None:
        raise CorpusError(f"`source` is {str(source)!r} beside {table}; allowed: one of them")
    return read_in_memory(kind, with_settings(TableColumns, str(table), options), Path(out).name), Path(out)
