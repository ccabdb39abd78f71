"""Write sentences as a prepared corpus: Parquet files, an index and a manifest in a folder that appears atomically.

>>> import tempfile
>>> from fl_sim.data_prep.records import Mention
>>> sentences = [Sentence("train", user, "Ada left.", (Mention(0, 3, "PER"),)) for user in ("ann", "bob")]
>>> with tempfile.TemporaryDirectory() as folder:
...     corpus = write_corpus(sentences, Path(folder) / "corpus", name="example")
...     list(corpus.entities("train")["entity"])
['ada']
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_sim.data_prep.identity import DEFAULT_IDENTITY, Entity, Identity
from fl_sim.data_prep.records import CorpusError, KnownIds, Sentence
from fl_sim.data_prep.split_writer import SplitWriter
from fl_sim.data_prep.store.atomic import folder_appearing_at
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.layout import part_folder
from fl_sim.data_prep.store.manifest import FileRecord, Manifest, fingerprint_of, record_of, tool_versions
from fl_sim.data_prep.store.source_limits import SourceLimits
from fl_sim.private_files import owner_only

__all__ = ["Corpus", "append_corpus", "write_corpus"]

Rewrite = Callable[[Sentence], Sentence | None]
"""Changes the text of a sentence and moves its mentions with it, or drops the sentence (None)."""

_SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_TRAIN = "train"
_SCRATCH = "scratch"


@owner_only()
def write_corpus(
    sentences: Iterable[Sentence],
    out: Path,
    *,
    name: str,
    sources: Mapping[str, FileRecord] | None = None,
    settings: Mapping[str, Any] | None = None,
    tagger: Mapping[str, str] | None = None,
    sought_labels: Iterable[str] = (),
    tools: Sequence[str] = (),
    notes: Mapping[str, int] | None = None,
    identity: Identity = DEFAULT_IDENTITY,
    rewrite: Rewrite | None = None,
    limits: SourceLimits | None = None,
    needs_entities: bool = True,
    beside: Mapping[str, str] | None = None,
    replace: bool = False,
) -> Corpus:
    """Write ``sentences`` to the folder ``out`` and open it.

    Sentences are sorted by user, users by their first sentence; entities are numbered by their first mention. What is
    stored of a user depends on that user alone, and of a sentence on that sentence alone, unless ``identity`` links the
    sentences of a document.

    Args:
        sentences: in any order.
        out: the folder to make.
        name: of the corpus, for the manifest.
        sources: size and checksum of the source files, for the manifest.
        settings: how the sources were read, for the manifest.
        tagger: what marked the entities, for the manifest; gold by default.
        sought_labels: every label that it can give; those of the mentions need not be among them.
        tools: distributions whose versions go to the manifest.
        notes: counts of bad text, for the manifest; read after the last sentence.
        identity: which mentions are the same entity.
        rewrite: changes the text after the entities are identified.
        limits: of the number of splits, classes and labels; by default those of a source.
        needs_entities: whether a train split without entities is an error.
        beside: further files of the corpus by name, such as that of its canaries, and their texts.
        replace: whether to replace what is at ``out`` once everything is written.

    Raises:
        CorpusError: ``out`` is taken, or no private training could use the corpus: it has no train split, fewer than
            two users in it, or no entity in it.
    """
    with folder_appearing_at(out, replace=replace) as folder:
        writers = _collect(_rewrite_all(identity.resolve(sentences), rewrite), folder, lambda split: None, limits)
        _check_trainable(writers, needs_entities)
        classes = sorted({target for writer in writers.values() for target in writer.targets})
        for file, text in (beside or {}).items():
            (folder / file).write_text(text, encoding="utf-8")
        _finish(
            folder,
            writers,
            classes,
            name=name,
            sources=sources or {},
            settings=full_settings(settings or {}, identity),
            tagger=tagger,
            sought_labels=sought_labels,
            tools=tools,
            notes=_nonzero(notes),
        )
    return Corpus.open(out)


@owner_only()
def append_corpus(
    corpus: Corpus,
    sentences: Iterable[Sentence],
    *,
    joined_at: int,
    name: str,
    sources: Mapping[str, FileRecord] | None = None,
    settings: Mapping[str, Any] | None = None,
    tagger: Mapping[str, str] | None = None,
    sought_labels: Iterable[str] = (),
    tools: Sequence[str] = (),
    notes: Mapping[str, int] | None = None,
    identity: Identity = DEFAULT_IDENTITY,
    rewrite: Rewrite | None = None,
    limits: SourceLimits | None = None,
) -> Corpus:
    """Append ``sentences`` to ``corpus`` as a part of its own, and open the result; no existing file changes.

    Known users, entities and classes keep their ids; new ones, and the sentences, are numbered on. A key names the same
    user as before.

    Args:
        corpus: as it is.
        sentences: to append; at least one.
        joined_at: the round from which the part takes part in training.
        name: of the part; this and the other arguments are as of :func:`write_corpus`.
        sources: see there.
        settings: see there.
        tagger: see there.
        sought_labels: see there.
        tools: see there.
        notes: see there.
        identity: that of the corpus.
        rewrite: see there.
        limits: see there.

    Raises:
        CorpusError: there is no sentence, ``identity`` is not the corpus's, ``joined_at`` is before the last part's, or
            a user would move to another split.
    """
    last = corpus.parts[-1].manifest
    if joined_at < last.joined_at:
        raise CorpusError(f"--joined-at {joined_at} must be at least {last.joined_at}, the round of the part before")
    if corpus.manifest.settings.get("identity") != identity.manifest_settings():
        raise CorpusError(f"{corpus.path}: entities would get another identity than those of the corpus")
    with folder_appearing_at(corpus.path / part_folder(len(corpus.parts))) as folder:
        writers = _collect(_rewrite_all(identity.resolve(sentences), rewrite), folder, corpus.known_ids, limits)
        if not writers:
            raise CorpusError("there is no sentence to append")
        _check_users_stay(corpus, writers)
        new = {target for writer in writers.values() for target in writer.targets} - set(corpus.classes)
        _finish(
            folder,
            writers,
            [*corpus.classes, *sorted(new)],
            name=name,
            sources=sources or {},
            settings=full_settings(settings or {}, identity),
            tagger=tagger,
            sought_labels=sought_labels,
            tools=tools,
            notes=_nonzero(notes),
            follows=corpus.fingerprint,
            joined_at=joined_at,
        )
    return Corpus.open(corpus.path)


def _rewrite_all(
    sentences: Iterable[tuple[Sentence, tuple[Entity, ...]]], rewrite: Rewrite | None
) -> Iterable[tuple[Sentence, tuple[Entity, ...]]]:
    """Return the sentences with their final texts; their entities stay those of the original texts."""
    if rewrite is None:
        return sentences
    kept = ((rewrite(sentence), entities) for sentence, entities in sentences)
    return ((sentence, entities) for sentence, entities in kept if sentence is not None)


def _nonzero(notes: Mapping[str, int] | None) -> dict[str, int]:
    return {name: count for name, count in sorted((notes or {}).items()) if count}


def _collect(
    sentences: Iterable[tuple[Sentence, Iterable[Entity]]],
    folder: Path,
    known: Callable[[str], KnownIds | None],
    limits: SourceLimits | None,
) -> dict[str, SplitWriter]:
    """Return a writer per split with its sentences, which are buffered in a folder inside ``folder``."""
    limits = limits or SourceLimits()
    scratch = folder / _SCRATCH
    scratch.mkdir()
    writers: dict[str, SplitWriter] = {}
    for sentence, entities in sentences:
        writer = writers.get(sentence.split)
        if writer is None:
            split = _checked_split(sentence.split)
            writer = writers[split] = SplitWriter(split, scratch, known(split), limits)
            limits.check_splits(len(writers))
        writer.add(sentence, entities)
    return writers


def _finish(
    folder: Path,
    writers: Mapping[str, SplitWriter],
    classes: Sequence[str],
    *,
    tagger: Mapping[str, str] | None,
    sought_labels: Iterable[str],
    tools: Sequence[str],
    follows: str | None = None,
    **described: Any,
) -> None:
    """Write the tables, indexes and manifest of a part."""
    counts = {split: writer.write(folder, classes) for split, writer in writers.items()}
    shutil.rmtree(folder / _SCRATCH)
    files = {path.name: record_of(path) for path in sorted(folder.iterdir())}
    occurring = itertools.chain.from_iterable(writer.labels for writer in writers.values())
    Manifest(
        tagger=dict(tagger or {"tagger": "gold"}),
        sought_labels=tuple(sorted({*sought_labels, *occurring})),
        tools=tool_versions(tools),
        classes=tuple(classes),
        splits=counts,
        files=files,
        fingerprint=fingerprint_of(files, follows),
        follows=follows,
        **described,
    ).write(folder)


def full_settings(settings: Mapping[str, Any], identity: Identity) -> dict[str, Any]:
    """Return the settings for a manifest: with the identity, and with warnings for readers of ε."""
    warnings = [*settings.get("warnings", ()), *identity.warnings()]
    return {**settings, "identity": identity.manifest_settings()} | ({"warnings": warnings} if warnings else {})


def _checked_split(split: str) -> str:
    """Return ``split`` if it can be part of a file name; it may come from data."""
    if not _SPLIT_NAME.fullmatch(split):
        raise CorpusError(f"split name {split!r} must be 1 to 64 letters, digits, hyphens or underscores")
    return split


def _check_users_stay(corpus: Corpus, writers: Mapping[str, SplitWriter]) -> None:
    """Check that no user moves to another split: a held-out user must not come to train, nor the other way round."""
    users_of = {split: set(corpus.users(split)["user"]) for split in corpus.splits}
    for split, writer in writers.items():
        for user in writer.new_users:
            home = next((name for name, users in users_of.items() if user in users), None)
            if home is not None:
                raise CorpusError(
                    f"user {user!r} is in split {home} of {corpus.path} and would be in split {split} of what is added"
                )


def _check_trainable(splits: Mapping[str, SplitWriter], needs_entities: bool) -> None:
    if not splits:
        raise CorpusError("the corpus has no sentence, so no user")
    if _TRAIN not in splits:
        raise CorpusError(f"the corpus has no {_TRAIN!r} split, only {', '.join(splits)}")
    train = splits[_TRAIN]
    if train.users < 2:
        raise CorpusError("the train split has one user; federated training needs at least two")
    if needs_entities and not train.entities:
        raise CorpusError(
            "the train split has no entity at all, so there is no entity to protect; "
            "check the entities column or choose another --tagger"
        )
