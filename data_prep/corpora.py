"""Raw corpora by kind: what to read, what to record of it, and whether its entities are already marked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_prep.entities import DEFAULT_TAGGER, make_tagger, tagged
from data_prep.identity import DEFAULT_IDENTITY, Identity
from data_prep.manifest import record_of
from data_prep.prepare import Corpus, write_corpus
from data_prep.readers_conll import conll2003_files, read_conll2003
from data_prep.readers_tables import TableOptions, read_table
from data_prep.records import CorpusError, Sentence

GOLD = "gold"
SPLIT_SENTENCES_TOOL = "spacy"


@dataclass(frozen=True)
class RawCorpus:
    """A corpus before preparation. ``sentences`` starts the reading; ``has_gold`` says that it marks its
    entities;
    the other fields go to the manifest."""

    name: str
    sentences: Callable[[], Iterator[Sentence]]
    has_gold: bool
    sources: tuple[Path, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[str, ...] = ()


def conll2003(source: Path) -> RawCorpus:
    """The shared task's files in the folder ``source``."""
    files = tuple(conll2003_files(source).values())
    return RawCorpus("conll2003", lambda: read_conll2003(source), has_gold=True, sources=files)


def table(kind: str, source: Path, options: TableOptions) -> RawCorpus:
    """Anybody's ``jsonl``, ``csv`` or ``parquet`` file with a text and a user column."""
    return RawCorpus(
        name=source.name.split(".")[0],
        sentences=lambda: read_table(kind, source, options),
        has_gold=options.entities_column is not None,
        sources=(source,),
        settings={"kind": kind, **options.described()},
        tools=(SPLIT_SENTENCES_TOOL,) if options.split_sentences else (),
    )


def synthetic(users: int | None = None, seed: int | None = None) -> RawCorpus:
    """Our own generator's corpus, by default the bundled one; needs the ``generate`` extra (Faker)."""
    try:
        from data_prep.synthetic import DEFAULT_SEED, DEFAULT_USERS, synthetic_sentences
    except ImportError as error:
        raise CorpusError(f"the synthetic corpus needs {error.name}: pip install 'fl-sim[generate]'") from error
    users = DEFAULT_USERS if users is None else users
    seed = DEFAULT_SEED if seed is None else seed
    return RawCorpus(
        "synthetic",
        lambda: synthetic_sentences(users, seed),
        has_gold=True,
        settings={"users": users, "seed": seed},
        tools=("faker",),
    )


def prepare(
    raw: RawCorpus,
    out: Path,
    *,
    tagger: str | None = None,
    identity: Identity = DEFAULT_IDENTITY,
    watch: Callable[[Iterable[Sentence]], Iterable[Sentence]] = lambda sentences: sentences,
) -> Corpus:
    """Read, tag and write ``raw`` to the folder ``out``.

    ``tagger`` is ``gold``, or a name that :func:`data_prep.entities.make_tagger` knows; by default the
    corpus's own marks where it has them, else the rules. ``identity`` decides which mentions are one entity.
    ``watch`` may look at the sentences as they pass, for progress. Raises :class:`CorpusError` for bad input, and then
    leaves nothing behind.
    """
    chosen = tagger or (GOLD if raw.has_gold else DEFAULT_TAGGER)
    if chosen == GOLD and not raw.has_gold:
        raise CorpusError("--tagger gold needs marked entities: name their column with --entities-column")
    engine = None if chosen == GOLD else make_tagger(chosen)
    sentences = raw.sentences()
    return write_corpus(
        watch(sentences if engine is None else tagged(sentences, engine)),
        out,
        name=raw.name,
        sources={path.name: record_of(path) for path in raw.sources},
        settings=raw.settings,
        tagger={"tagger": GOLD} if engine is None else engine.describe(),
        tools=raw.tools,
        identity=identity,
    )
