"""Sentences in, a prepared corpus out: Parquet files and a manifest in a folder, written whole or not at all."""

from __future__ import annotations

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

__all__ = ["Corpus", "append_corpus", "write_corpus"]

Rewrite = Callable[[Sentence], Sentence | None]
"""What changes the text of a sentence that is kept, and its mentions' places with it; None drops the sentence."""

_SPLIT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_TRAIN = "train"
_SCRATCH = "scratch"


def write_corpus(
    sentences: Iterable[Sentence],
    out: Path,
    *,
    name: str,
    sources: Mapping[str, FileRecord] | None = None,
    settings: Mapping[str, Any] | None = None,
    tagger: Mapping[str, str] | None = None,
    tools: Sequence[str] = (),
    notes: Mapping[str, int] | None = None,
    identity: Identity = DEFAULT_IDENTITY,
    rewrite: Rewrite | None = None,
    needs_entities: bool = True,
    replace: bool = False,
) -> Corpus:
    """Write ``sentences`` to the folder ``out`` and open it.

    Sentences are sorted by user (users in the order of their first sentence); entities are numbered in the
    order of their first mention. ``name``, ``sources``, ``settings``, ``tagger`` and the versions of the
    distributions ``tools`` go to the manifest, and so do ``notes``, once all sentences have come. ``identity`` decides
    which mentions are one entity; after it, ``rewrite`` may change what is kept of a sentence's text, or drop it.
    Nothing of one user changes what is kept of another, and nothing of one sentence unless ``identity`` links those of
    a document. With ``replace``, what is at ``out`` gives way once all is written.

    Raises :class:`CorpusError` where ``out`` is taken, and for a corpus that no private training could use:
    no train split, fewer than two users in it, or no entity in it unless it ``needs_entities`` no more.
    """
    with folder_appearing_at(out, replace=replace) as folder:
        writers = _written(_rewritten(identity.resolve(sentences), rewrite), folder, lambda split: None)
        _check_trainable(writers, needs_entities)
        classes = sorted({target for writer in writers.values() for target in writer.targets})
        _finish(
            folder,
            writers,
            classes,
            name=name,
            sources=sources or {},
            settings=full_settings(settings or {}, identity),
            tagger=tagger,
            tools=tools,
            notes=_counted(notes),
        )
    return Corpus.open(out)


def append_corpus(
    corpus: Corpus,
    sentences: Iterable[Sentence],
    *,
    joined_at: int,
    name: str,
    sources: Mapping[str, FileRecord] | None = None,
    settings: Mapping[str, Any] | None = None,
    tagger: Mapping[str, str] | None = None,
    tools: Sequence[str] = (),
    notes: Mapping[str, int] | None = None,
    identity: Identity = DEFAULT_IDENTITY,
    rewrite: Rewrite | None = None,
) -> Corpus:
    """Add ``sentences`` to ``corpus`` as a part of its own, and open what it is then; no file of it changes.

    Users, entities and classes that it knows keep their ids, others are numbered on; so are the sentences. A key names
    the same user as before. ``joined_at`` is the round from which the part takes part in training.

    Raises :class:`CorpusError` for ``sentences`` that are none, another ``identity`` than the corpus's, a
    ``joined_at`` before that of the last part, and a user who would move to another split.
    """
    last = corpus.parts[-1].manifest
    if joined_at < last.joined_at:
        raise CorpusError(f"--joined-at {joined_at} must be at least {last.joined_at}, the round of the part before")
    if corpus.manifest.settings.get("identity") != identity.manifest_settings():
        raise CorpusError(f"{corpus.path}: entities would get another identity than those of the corpus")
    with folder_appearing_at(corpus.path / part_folder(len(corpus.parts))) as folder:
        writers = _written(_rewritten(identity.resolve(sentences), rewrite), folder, corpus.known_ids)
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
            tools=tools,
            notes=_counted(notes),
            follows=corpus.fingerprint,
            joined_at=joined_at,
        )
    return Corpus.open(corpus.path)


def _rewritten(
    sentences: Iterable[tuple[Sentence, tuple[Entity, ...]]], rewrite: Rewrite | None
) -> Iterable[tuple[Sentence, tuple[Entity, ...]]]:
    """With texts as they are to be kept; a sentence's entities are those of its text as it was."""
    if rewrite is None:
        return sentences
    kept = ((rewrite(sentence), entities) for sentence, entities in sentences)
    return ((sentence, entities) for sentence, entities in kept if sentence is not None)


def _counted(notes: Mapping[str, int] | None) -> dict[str, int]:
    return {name: count for name, count in sorted((notes or {}).items()) if count}


def _written(
    sentences: Iterable[tuple[Sentence, Iterable[Entity]]], folder: Path, known: Callable[[str], KnownIds | None]
) -> dict[str, SplitWriter]:
    """The writers of all splits, each with its sentences; they wait in a folder inside ``folder``."""
    scratch = folder / _SCRATCH
    scratch.mkdir()
    writers: dict[str, SplitWriter] = {}
    for sentence, entities in sentences:
        writer = writers.get(sentence.split)
        if writer is None:
            split = _checked_split(sentence.split)
            writer = writers[split] = SplitWriter(split, scratch, known(split))
        writer.add(sentence, entities)
    return writers


def _finish(
    folder: Path,
    writers: Mapping[str, SplitWriter],
    classes: Sequence[str],
    *,
    tagger: Mapping[str, str] | None,
    tools: Sequence[str],
    follows: str | None = None,
    **described: Any,
) -> None:
    """Write tables, indexes and the manifest of a part."""
    counts = {split: writer.write(folder, classes) for split, writer in writers.items()}
    shutil.rmtree(folder / _SCRATCH)
    files = {path.name: record_of(path) for path in sorted(folder.iterdir())}
    Manifest(
        tagger=dict(tagger or {"tagger": "gold"}),
        tools=tool_versions(tools),
        classes=tuple(classes),
        splits=counts,
        files=files,
        fingerprint=fingerprint_of(files, follows),
        follows=follows,
        **described,
    ).write(folder)


def full_settings(settings: Mapping[str, Any], identity: Identity) -> dict[str, Any]:
    """As a manifest has them: with the identity, and what a reader of ε must know of both under ``warnings``."""
    warnings = [*settings.get("warnings", ()), *identity.warnings()]
    return {**settings, "identity": identity.manifest_settings()} | ({"warnings": warnings} if warnings else {})


def _checked_split(split: str) -> str:
    """``split`` becomes part of a file name, and may come from somebody's data."""
    if not _SPLIT_NAME.fullmatch(split):
        raise CorpusError(f"split name {split!r} must be 1 to 64 letters, digits, hyphens or underscores")
    return split


def _check_users_stay(corpus: Corpus, writers: Mapping[str, SplitWriter]) -> None:
    """Who was held out must not come to train, nor the other way round."""
    at_home = {split: set(corpus.users(split)["user"]) for split in corpus.splits}
    for split, writer in writers.items():
        for user in writer.new_users:
            home = next((name for name, users in at_home.items() if user in users), None)
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
