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

import argparse
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_sim.data_prep.identity import DEFAULT_IDENTITY, Identity
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.corpus import BUNDLED, Corpus

if TYPE_CHECKING:
    from fl_sim.data_prep.corpus_stats import CorpusStats
    from fl_sim.data_prep.prepare import PreparedCorpus
    from fl_sim.data_prep.readers.cleaning import Cleaning, Preprocessing
    from fl_sim.data_prep.readers.reader_registry import Reader

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
    return Corpus.open(path, verify=verify)


def corpus_stats(corpus: Corpus) -> CorpusStats:
    """Return the statistics of a corpus, as ``fl-sim stats --json`` prints them.

    They count users, sentences and entities, and give the contribution bounds of the entities. The figures are private
    data of the corpus's owner; no ε covers publishing them.

    Returns:
        JSON values: ``name``, ``fingerprint``, ``splits`` (the figures of each split), ``bad_text`` and ``note``.
    """
    from fl_sim.data_prep import corpus_stats as statistics

    return statistics.corpus_stats(corpus)


def prepare(
    kind: str,
    source: str | Path | None,
    out: str | Path,
    *,
    tagger: str | Sequence[str] | None = None,
    entities: str = "all",
    high_recall: bool = False,
    structured: bool = True,
    processes: int = 1,
    identity: Identity = DEFAULT_IDENTITY,
    cleaning: Cleaning | None = None,
    preprocessing: Preprocessing | None = None,
    joined_at: int | None = None,
    canaries: int | None = None,
    canary_seed: int = 0,
    overwrite: bool = False,
    **options: Any,
) -> Corpus:
    """Make a corpus from text, as ``fl-sim prepare`` does, unless the same corpus lies there already.

    Args:
        kind: "jsonl", "csv", "conll2003" or another reader by its name, or by import path (docs/corpora.md).
        source: the file or folder to read, the name of a dataset; None for a reader without one.
        out: the corpus's folder.
        tagger: who marks the entities (docs/taggers.md); by default gold marks if the source has them, else the best
            tagger that is installed.
        entities: which mentions count, such as "person,org".
        high_recall: unite the tagger with rules and patterns.
        structured: look for e-mail addresses, phone numbers and other structured personal data, too.
        processes: how many processes tag side by side.
        identity: which mentions are one entity (docs/corpora.md).
        cleaning: how bad text is treated.
        preprocessing: what is done to the text once its entities are known.
        joined_at: add to the corpus in ``out``; the round from which the new part takes part.
        canaries: how many made-up secrets to plant (docs/audit.md); not with ``joined_at``.
        canary_seed: of their secrets, names and which are included.
        overwrite: replace another corpus in ``out``, once the new one is finished.
        options: the reader's own settings: its flags with underscores for dashes, such as ``text_column="body"``.

    Raises:
        CorpusError: a setting or the source is bad, or ``out`` holds something else.
        PluginError: there is no such reader or tagger, or its interface is wrong.
    """
    from fl_sim.data_prep import prepare
    from fl_sim.data_prep.canaries import CanarySettings
    from fl_sim.data_prep.readers.cleaning import Cleaning, Preprocessing
    from fl_sim.data_prep.readers.reader_registry import load_reader, read_raw_corpus
    from fl_sim.data_prep.taggers.tagger_registry import make_marking

    reader = load_reader(kind)
    arguments = _arguments(kind, reader, options if source is None else {**options, "source": source})
    raw = read_raw_corpus(kind, arguments, cleaning or Cleaning()).with_preprocessing(preprocessing or Preprocessing())
    marking = make_marking(
        tagger,
        has_gold=raw.has_gold,
        entities=entities,
        high_recall=high_recall,
        structured=structured,
        processes=processes,
    )
    if joined_at is not None and canaries is not None:
        raise CorpusError("canaries is given with joined_at; allowed: when the corpus is made, which fixes N")
    if joined_at is not None:
        return _told(prepare.append(raw, Path(out), joined_at=joined_at, marking=marking, identity=identity))
    planted = None if canaries is None else CanarySettings(canaries, canary_seed)
    prepared = prepare.prepare(
        raw, Path(out), marking=marking, identity=identity, canaries=planted, overwrite=overwrite
    )
    return _told(prepared)


def _told(prepared: PreparedCorpus) -> Corpus:
    """Return the corpus, after a warning for whatever looks wrong with its source."""
    for warning in prepared.warnings:
        log.warning("%s", warning)
    return prepared.corpus


def _arguments(kind: str, reader: Reader, options: Mapping[str, Any]) -> argparse.Namespace:
    """The values of a reader's flags, from ``options`` and else the flags' defaults.

    Raises:
        CorpusError: an option is unknown or missing.
    """
    parser = argparse.ArgumentParser(add_help=False)
    reader.add_arguments(parser)
    flags = {action.dest: action for action in parser._actions}
    for name in options:
        if name not in flags:
            raise CorpusError(f"{name} is no option of {kind}; allowed: {', '.join(flags)}")
    for name, flag in flags.items():
        if flag.required and options.get(name) is None:
            raise CorpusError(f"{name} is missing; allowed: a value is needed with {kind}")
    values = {name: options.get(name, flag.default) for name, flag in flags.items()}
    return argparse.Namespace(**{name: _typed(flags[name], value) for name, value in values.items()})


def _typed(flag: argparse.Action, value: Any) -> Any:
    """``value`` as the flag's type makes it of a text: a source becomes a path."""
    if flag.type is Path and isinstance(value, str):
        return Path(value)
    return value
