"""Prepare a raw corpus: atomically, resumably, and only if it is not there already.

>>> import tempfile
>>> from fl_sim.data_prep.readers.raw_corpora import conll2003
>>> lines = "-DOCSTART- -X- -X- O\\n\\n{} NNP I-NP I-PER\\nleft VBD I-VP O\\n\\n"
>>> with tempfile.TemporaryDirectory() as folder:
...     _ = (Path(folder) / "eng.train").write_text(lines.format("Ada") + lines.format("Bob"))
...     raw, out = conll2003(Path(folder)), Path(folder) / "corpus"
...     prepare(raw, out).corpus.ownership("train").num_entities, prepare(raw, out).cached
(2, True)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fl_sim.data_prep.canaries.planted_canaries import read_canaries
from fl_sim.data_prep.canaries.planting import WARNING, CanarySettings, apart, draw_canaries, planted
from fl_sim.data_prep.identity import DEFAULT_IDENTITY, Identity
from fl_sim.data_prep.origin import Origin, summarize
from fl_sim.data_prep.prepare import append_corpus, write_corpus
from fl_sim.data_prep.readers.cleaning import Note
from fl_sim.data_prep.readers.raw_corpora import RawCorpus
from fl_sim.data_prep.readers.source_doubts import SourceDoubts
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.layout import CANARIES_FILE, part_folder
from fl_sim.data_prep.store.manifest import MANIFEST_FILE
from fl_sim.data_prep.store.tagged_store import TaggedStore
from fl_sim.data_prep.taggers.tagger import Marking
from fl_sim.data_prep.taggers.tagger_registry import make_marking
from fl_sim.private_files import owner_only

Watch = Callable[[Iterable[Sentence]], Iterable[Sentence]]
"""Passes the sentences on, and shows progress."""


@dataclass(frozen=True)
class PreparedCorpus:
    """The result of a preparation.

    Attributes:
        corpus: as it is now.
        cached: whether it was there already, and nothing was done.
        reused: sentences that an earlier, interrupted preparation had tagged.
        warnings: what looks wrong with the source, each a sentence; none if it was not read.
    """

    corpus: Corpus
    cached: bool = False
    reused: int = 0
    warnings: tuple[str, ...] = ()


@owner_only()
def prepare(
    raw: RawCorpus,
    out: Path,
    *,
    marking: Marking | None = None,
    identity: Identity = DEFAULT_IDENTITY,
    watch: Watch = lambda sentences: sentences,
    canaries: CanarySettings | None = None,
    overwrite: bool = False,
) -> PreparedCorpus:
    """Read, tag and write ``raw`` to the folder ``out``, unless the same corpus is there already.

    Corpora are the same if the checksums of their sources, their settings, tagger, identity and versions are. The
    corpus's preprocessing comes last, so taggers and identity see the original text.

    The mentions of a tagger are kept beside ``out`` (in ``.NAME.tagged``) until the corpus is finished: after an
    interruption the same call continues from there, and the corpus is the same as without one.

    Args:
        raw: the corpus before preparation.
        out: the folder to make.
        marking: what marks the entities; by default gold where the corpus has it, else the best tagger installed.
        identity: which mentions are the same entity.
        watch: sees the sentences as they pass, for progress.
        canaries: made-up secrets to plant in the training split (docs/canaries.md); None for none.
        overwrite: whether to replace another corpus in ``out`` once the new one is finished.

    Raises:
        CorpusError: the input is bad, or ``out`` holds something else.
    """
    marking = marking or make_marking(has_gold=raw.has_gold)
    secrets = None if canaries is None else draw_canaries(canaries)
    if canaries is not None:
        raw = _recorded(raw, canaries)
    _recover(out)
    origin = Origin.of(raw, marking, identity, seen_in=[out])
    if _is_corpus(out):
        same = _same(out, origin, overwrite)
        if same is not None:
            return PreparedCorpus(same, cached=True)
    doubts = _doubts(raw, origin)
    with _marked(raw, marking, origin, out, doubts) as (sentences, store):
        corpus = write_corpus(
            watch(sentences if secrets is None else planted(sentences, secrets, identity)),
            out,
            replace=overwrite and _is_corpus(out),
            identity=identity,
            beside=None if secrets is None else {CANARIES_FILE: secrets.to_json()},
            **_described(raw, marking, origin),
        )
    origin.remember(corpus.path)
    return PreparedCorpus(corpus, reused=store.reused, warnings=_warnings(doubts, raw))


@owner_only()
def append(
    raw: RawCorpus,
    out: Path,
    *,
    joined_at: int | None = None,
    marking: Marking | None = None,
    identity: Identity = DEFAULT_IDENTITY,
    watch: Watch = lambda sentences: sentences,
) -> PreparedCorpus:
    """Append ``raw`` to the corpus in ``out`` unless it was appended already.

    Args:
        raw: the sentences to append, before preparation.
        out: the corpus.
        joined_at: the round from which they take part (:func:`fl_sim.data_prep.prepare.append_corpus`); None for that
            of the part before, so that every round counts for them that counts for it.
        marking: as of :func:`prepare`.
        identity: as of :func:`prepare`; that of the corpus.
        watch: as of :func:`prepare`.

    Raises:
        CorpusError: the input is bad, or does not fit the corpus.
    """
    marking = marking or make_marking(has_gold=raw.has_gold)
    corpus = Corpus.open(out)
    origin = Origin.of(raw, marking, identity, seen_in=[part.folder for part in corpus.parts])
    if any(part.manifest.sources and not origin.differences(part.manifest) for part in corpus.parts):
        return PreparedCorpus(corpus, cached=True)
    folder = corpus.path / part_folder(len(corpus.parts))
    first = corpus.parts[-1].manifest.joined_at if joined_at is None else joined_at
    doubts = _doubts(raw, origin)
    with _marked(raw, marking, origin, folder, doubts) as (sentences, store):
        if corpus.has_canaries:
            sentences = apart(sentences, read_canaries(corpus), identity)
        corpus = append_corpus(
            corpus, watch(sentences), joined_at=first, identity=identity, **_described(raw, marking, origin)
        )
    origin.remember(corpus.parts[-1].folder)
    return PreparedCorpus(corpus, reused=store.reused, warnings=_warnings(doubts, raw))


def _doubts(raw: RawCorpus, origin: Origin) -> SourceDoubts:
    return SourceDoubts(raw.settings, {name: record.sha256 for name, record in origin.sources.items()})


def _warnings(doubts: SourceDoubts, raw: RawCorpus) -> tuple[str, ...]:
    return doubts.warnings(replaced=raw.reading.notes[Note.BAD_BYTES.value])


@contextmanager
def _marked(
    raw: RawCorpus, marking: Marking, origin: Origin, out: Path, doubts: SourceDoubts
) -> Iterator[tuple[Iterator[Sentence], TaggedStore]]:
    """Give the sentences with their mentions, and the store that keeps the mentions until the block ends."""
    store = TaggedStore(out.parent / f".{out.name}.tagged", origin.key)

    def sentences() -> Iterator[Sentence]:
        read = doubts.watch(raw.sentences())
        if marking.tagger is not None:
            yield from store.marked(read, marking.mark)
        else:
            yield from read if marking.selection.everything else marking.mark(read)
        origin.check_unchanged()

    try:
        yield sentences(), store
    except BaseException as error:
        if store.folder.exists():
            error.add_note("what was tagged so far is kept, and the same command goes on from there")
        raise
    store.remove()


def _recorded(raw: RawCorpus, canaries: CanarySettings) -> RawCorpus:
    """Return the corpus with the canaries among its settings, and a warning for readers of ε."""
    warnings = [*raw.settings.get("warnings", ()), WARNING]
    return replace(raw, settings={**raw.settings, **canaries.manifest_settings(), "warnings": warnings})


def _described(raw: RawCorpus, marking: Marking, origin: Origin) -> dict[str, Any]:
    return {
        "name": raw.name,
        "sources": origin.sources,
        "settings": raw.settings,
        "tagger": origin.tagger,
        "sought_labels": marking.labels,
        "tools": raw.tools,
        "notes": raw.reading.notes,
        "limits": raw.reading.limits,
        "rewrite": raw.preprocessing.rewriter(raw.reading) if raw.preprocessing else None,
    }


def _same(out: Path, origin: Origin, overwrite: bool) -> Corpus | None:
    """Return the corpus in ``out`` if it is what ``origin`` would make; None if another one may be overwritten."""
    try:
        corpus = Corpus.open(out)
    except CorpusError as error:
        if overwrite:
            return None
        error.add_note("--overwrite replaces it")
        raise
    differences = origin.differences(corpus.parts[0].manifest)
    if not differences:
        return corpus
    if overwrite:
        return None
    raise CorpusError(
        f"{out}: holds another corpus ({summarize(differences)}); choose another --out, or --overwrite it"
    )


def _is_corpus(out: Path) -> bool:
    """Return whether ``out`` holds a prepared corpus, of any version and in any state."""
    try:
        manifest = json.loads((out / MANIFEST_FILE).read_text(encoding="utf-8"))
        return bool(manifest["format"] == "fl-sim corpus")
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _recover(out: Path) -> None:
    """Restore the old corpus if a replacement was interrupted between its two renames."""
    replaced = out.parent / f".{out.name}.replaced"
    if not out.exists() and _is_corpus(replaced):
        replaced.rename(out)
