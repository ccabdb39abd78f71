"""Prepare a raw corpus: atomically, resumably, and only if it is not there already.

The origin of a corpus is everything that decides its content; by it a second preparation of the same is recognised. A
warning about a source changes nothing in the corpus. It is about a mistake that no error tells: the run works, and N,
the number of users that ε is about, counts something else.

>>> summarize(["seed: 1 then, 2 now", "tagger: rules then, gold now", "a", "b", "c"])
'seed: 1 then, 2 now; tagger: rules then, gold now; a; 2 more'
"""

from __future__ import annotations

import hashlib
import json
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fl_sim.data_prep.canaries import WARNING, CanarySettings, apart, draw_canaries, planted, read_canaries
from fl_sim.data_prep.corpus_writer import PartOptions, append_corpus, write_corpus
from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.readers.cleaning import Note
from fl_sim.data_prep.readers.reader import RawCorpus
from fl_sim.data_prep.records import CorpusError, Sentence, Settings
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.index import row_batches
from fl_sim.data_prep.store.layout import CANARIES_FILE, part_folder, table_file
from fl_sim.data_prep.store.manifest import MANIFEST_FILE, FileRecord, Manifest, comparable, record_of, tool_versions
from fl_sim.data_prep.store.tagged_store import TaggedStore
from fl_sim.data_prep.store.textfiles import check_stored
from fl_sim.data_prep.taggers.tagger import Marking
from fl_sim.data_prep.taggers.tagger_registry import make_marking
from fl_sim.files import owner_only

_SHOWN_DIFFERENCES = 3
_LEAST = 10  # fewer rows or repeated sentences say nothing
_REPEATED = 0.2
_USERS_PER_ROW = 0.99

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, and the times (ns) of the last change of a file's content and of its inode."""


@dataclass(frozen=True)
class Origin:
    """Everything that decides what a corpus holds.

    Attributes:
        sources, settings, tagger, tools: as in the manifest.
        files: the stamps of the source files when they were read.
    """

    sources: Mapping[str, FileRecord]
    settings: Settings
    tagger: Mapping[str, str]
    tools: Mapping[str, str]
    files: Mapping[Path, Stamp]

    @classmethod
    def of(cls, raw: RawCorpus, marking: Marking, identity: Identity) -> Origin:
        """Return the origin of the corpus that ``raw`` will become.

        Raises:
            CorpusError, OSError: a source is no regular file, or goes beyond the limits (docs/corpora.md); or only some
                of stored entities are to count, whose kinds are known from all sentences together.
        """
        if raw.stores_entities and marking.gold and not marking.selection.everything:
            raise CorpusError(
                f"corpus {raw.name}: `entities` is {','.join(marking.selection.names)}, but the source's text is "
                "preprocessed already; allowed: all, or the original text"
            )
        for path in raw.sources.values():
            check_stored(path)
        files = {path: _stamp(path) for path in raw.sources.values()}
        sources = {name: record_of(path) for name, path in raw.sources.items()}
        settings = json.loads(json.dumps({**raw.settings, "identity": identity.manifest_settings()}))
        return cls(sources, settings, marking.describe(), tool_versions(raw.tools), files)

    @property
    def tells_content(self) -> bool:
        """Whether it has the text's checksum: that of files, of a table in memory, or the commit of a dataset."""
        return bool(self.sources or self.settings.get("sha256") or self.settings.get("revision"))

    @property
    def key(self) -> str:
        """SHA-256 of everything that decides what the corpus holds."""
        return hashlib.sha256(json.dumps(self._groups(), sort_keys=True).encode()).hexdigest()

    def differences(self, manifest: Manifest) -> list[str]:
        """Return the differences between the corpus of ``manifest`` and the one that would be made now, in words."""
        old = manifest.model_dump(mode="json") | {"tagger": comparable(manifest.tagger)}
        return [
            f"{group} {name}: {_show(old[group].get(name))} then, {_show(now.get(name))} now"
            for group, now in self._groups().items()
            for name in {**old[group], **now}
            if old[group].get(name) != now.get(name)
        ]

    def check_unchanged(self) -> None:
        """Check that no source has changed since its checksum was taken, else raise :class:`CorpusError`."""
        for path, stamp in self.files.items():
            if _stamp(path) != stamp:
                raise CorpusError(f"{path}: changed while it was read; prepare the corpus again")

    def _groups(self) -> dict[str, Settings]:
        return {
            "sources": {name: record.model_dump(mode="json") for name, record in self.sources.items()},
            "settings": dict(self.settings),
            "tagger": comparable(self.tagger),
            "tools": dict(self.tools),
        }


def summarize(differences: list[str]) -> str:
    """Return the first few differences in one line."""
    more = len(differences) - _SHOWN_DIFFERENCES
    return "; ".join([*differences[:_SHOWN_DIFFERENCES], *([f"{more} more"] if more > 0 else [])])


def _stamp(path: Path) -> Stamp:
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _show(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict) and "sha256" in value:
        return f"{value['bytes']:,} bytes with checksum {value['sha256'][:12]}…"
    return json.dumps(value, ensure_ascii=False)[:60]


@dataclass(eq=False)
class SourceDoubts:
    """Watch the sentences of one reading, and say afterwards what looks wrong.

    Attributes:
        raw: the corpus that is read.
        earlier: the one that it is appended to, as it was; None for a new one.
    """

    raw: RawCorpus
    earlier: Corpus | None = None
    _users: set[str] = field(default_factory=set)
    _hashes: array[int] = field(default_factory=lambda: array("q"))

    def watch(self, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        """Pass the sentences on, and count users and sentences; a new reading counts anew."""
        self._users, self._hashes = set(), array("q")
        for sentence in sentences:
            self._users.add(sentence.user)
            text = sentence.text if self.earlier is None else self.raw.preprocessing.text(sentence.text)  # as is stored
            self._hashes.append(hash((sentence.user, text)))
            yield sentence

    @property
    def sentences(self) -> int:
        """The number of sentences so far."""
        return len(self._hashes)

    def warnings(self) -> tuple[str, ...]:
        """Return what looks wrong, each a sentence."""
        warnings = []
        number = self.sentences
        before, known = _users_and_hashes(self.earlier)
        repeated = number - len(np.setdiff1d(np.frombuffer(self._hashes, dtype=np.int64), known)) if number else 0
        if repeated >= max(_LEAST, _REPEATED * number):
            warnings.append(
                f"{repeated:,} of {number:,} sentences repeat an earlier one of the same user: is a part of the source "
                "there twice? (`id_column` drops rows that came before in the same source)"
            )
        users, rows = len(self._users), self.raw.reading.rows
        alike = _alike(self._users | before) - _alike(before)
        if alike and "user_column" in self.raw.settings:
            warnings.append(
                f"the names of {alike:,} users are those of others but for case: if they are the same people, N counts "
                "them twice, and ε protects each spelling by itself"
            )
        if rows >= _LEAST and users >= _USERS_PER_ROW * rows:
            warnings.append(
                f"user column {self.raw.settings.get('user_column')} has {users:,} users in {rows:,} rows: if it "
                "numbers rows and not people, N counts rows, and ε protects single rows"
            )
        return tuple(warnings)


def _users_and_hashes(corpus: Corpus | None) -> tuple[set[str], NDArray[np.int64]]:
    """Return the users of a corpus, and the hashes of its sentences; the texts pass by, some at a time."""
    users: set[str] = set()
    hashes: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    if corpus is None:
        return users, hashes[0]
    for split in corpus.splits:
        names = corpus.users(split)["user"].tolist()
        users.update(names)
        for part in (part for part in corpus.parts if split in part.manifest.splits):
            for batch in row_batches(part.folder / table_file(split, "sentences"), ["user_id", "text"]):
                rows = zip(*(batch.column(name).to_pylist() for name in ("user_id", "text")), strict=True)
                hashes.append(np.fromiter((hash((names[user], text)) for user, text in rows), dtype=np.int64))
    return users, np.concatenate(hashes)


def _alike(users: set[str]) -> int:
    """Return how many users have the name of another one but for case."""
    return len(users) - len({user.casefold() for user in users})


Watch = Callable[[Iterable[Sentence]], Iterable[Sentence]]
"""Passes the sentences on, and shows progress."""


@dataclass(frozen=True)
class PreparedCorpus:
    """The result of a preparation.

    Attributes:
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
    identity: Identity | None = None,
    watch: Watch = lambda sentences: sentences,
    canaries: CanarySettings | None = None,
    overwrite: bool = False,
) -> PreparedCorpus:
    """Read, tag and write ``raw`` to the folder ``out``, unless the same corpus (of the same origin) is there already.

    The corpus's preprocessing comes last, so taggers and identity see the original text. The mentions of a tagger are
    kept beside ``out`` (in ``.NAME.tagged``) until the corpus is finished: after an interruption the same call
    continues from there, and the corpus is the same as without one.

    Args:
        raw: the corpus before preparation.
        out: the folder to make.
        marking: what marks the entities; by default gold where the corpus has it, else the best tagger installed.
        identity: which mentions are the same entity; by default as the corpus says.
        watch: sees the sentences as they pass, for progress.
        canaries: made-up secrets to plant in the training split (docs/audit.md); None for none.
        overwrite: whether to replace another corpus in ``out`` once the new one is finished.

    Raises:
        CorpusError: the input is bad, or ``out`` holds something else.
    """
    identity = raw.identified_by(identity)
    marking = marking or make_marking(has_gold=raw.has_gold)
    secrets = None if canaries is None else draw_canaries(canaries)
    if canaries is not None:
        raw = _recorded(raw, canaries)
    _recover(out)
    origin = Origin.of(raw, marking, identity)
    taken = _is_corpus(out)  # by the same corpus, by one that may be overwritten, or else _same refuses
    same = _same(out, origin, overwrite) if taken else None
    if same is not None:
        return PreparedCorpus(same, cached=True)

    def write(sentences: Iterable[Sentence], options: PartOptions) -> Corpus:
        if secrets is None:
            return write_corpus(watch(sentences), out, replace=taken, **options)
        beside = {CANARIES_FILE: secrets.to_json()}
        return write_corpus(watch(planted(sentences, secrets, identity)), out, replace=taken, beside=beside, **options)

    return _made(raw, marking, identity, origin, out, write)


@owner_only()
def append(
    raw: RawCorpus,
    out: Path,
    *,
    joined_at: int | None = None,
    marking: Marking | None = None,
    identity: Identity | None = None,
    watch: Watch = lambda sentences: sentences,
) -> PreparedCorpus:
    """Append ``raw`` to the corpus in ``out`` unless it was appended already; further arguments as of :func:`prepare`.

    Args:
        raw: the sentences to append, before preparation.
        joined_at: the round from which they take part (:func:`fl_sim.data_prep.corpus_writer.append_corpus`); None for
            that of the part before, so that every round counts for them that counts for it.
        marking: what marks the entities.
        identity: that of the corpus in ``out``; by default as ``raw`` says.
        watch: sees the sentences as they pass.

    Raises:
        CorpusError: the input is bad, or does not fit the corpus.
    """
    identity = raw.identified_by(identity)
    marking = marking or make_marking(has_gold=raw.has_gold)
    corpus = Corpus.open(out)
    origin = Origin.of(raw, marking, identity)
    if origin.tells_content and any(not origin.differences(part.manifest) for part in corpus.parts):
        return PreparedCorpus(corpus, cached=True)
    first = corpus.parts[-1].manifest.joined_at if joined_at is None else joined_at

    def write(sentences: Iterable[Sentence], options: PartOptions) -> Corpus:
        if corpus.has_canaries:
            sentences = apart(sentences, read_canaries(corpus), identity)
        return append_corpus(corpus, watch(sentences), joined_at=first, **options)

    return _made(raw, marking, identity, origin, corpus.path / part_folder(len(corpus.parts)), write, corpus)


def _made(
    raw: RawCorpus,
    marking: Marking,
    identity: Identity,
    origin: Origin,
    out: Path,
    write: Callable[[Iterable[Sentence], PartOptions], Corpus],
    earlier: Corpus | None = None,
) -> PreparedCorpus:
    """Read and mark ``raw`` while ``write`` writes it to ``out``, and keep the tagger's mentions until it is there."""
    store = TaggedStore(out.parent / f".{out.name}.tagged", origin.key)
    doubts = SourceDoubts(raw, earlier)

    def sentences() -> Iterator[Sentence]:
        read = map(marking.with_stored, doubts.watch(raw.sentences()))
        if marking.tagger is not None:
            yield from store.marked(read, marking.mark)
        else:
            yield from read if marking.selection.everything else marking.mark(read)
        origin.check_unchanged()

    options: PartOptions = {
        "name": raw.name,
        "sources": origin.sources,
        "settings": raw.settings,
        "tagger": origin.tagger,
        "sought_labels": marking.labels,
        "tools": raw.tools,
        "notes": raw.reading.notes,
        "identity": identity,
        "rewrite": raw.preprocessing.rewriter(raw.reading) if raw.preprocessing else None,
    }
    try:
        corpus = write(sentences(), options)
    except BaseException as error:
        if isinstance(error, CorpusError) and not doubts.sentences:
            for name, times in raw.reading.notes.items():
                error.add_note(f"{times:,} {Note(name).meaning}")
        if store.folder.exists():
            error.add_note("what was tagged so far is kept, and the same command goes on from there")
        raise
    store.remove()
    return PreparedCorpus(corpus, reused=store.reused, warnings=doubts.warnings())


def _recorded(raw: RawCorpus, canaries: CanarySettings) -> RawCorpus:
    """Return the corpus with the canaries among its settings, and a warning for readers of ε."""
    warnings = [*cast(Sequence[str], raw.settings.get("warnings", ())), WARNING]
    return replace(raw, settings={**raw.settings, "canaries": asdict(canaries), "warnings": warnings})


def _same(out: Path, origin: Origin, overwrite: bool) -> Corpus | None:
    """Return the corpus in ``out`` if it is what ``origin`` would make; None if another one may be overwritten."""
    try:
        corpus = Corpus.open(out)
    except CorpusError as error:
        if overwrite:
            return None
        error.add_note("`overwrite` replaces it")
        raise
    differences = origin.differences(corpus.parts[0].manifest)
    if not differences:
        return corpus
    if overwrite:
        return None
    raise CorpusError(
        f"{out}: holds another corpus ({summarize(differences)}); choose another `out`, or `overwrite` it"
    )


def _is_corpus(out: Path) -> bool:
    """Return whether ``out`` holds a prepared corpus, of any version and in any state."""
    try:
        manifest = json.loads((out / MANIFEST_FILE).read_text(encoding="utf-8"))
        return bool(manifest["format"] == "fl-sim corpus")
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _recover(out: Path) -> None:
    """Restore the old corpus if a replacement was interrupted between its two renames; remove it if after them."""
    replaced = out.parent / f".{out.name}.replaced"
    if _is_corpus(out):
        shutil.rmtree(replaced, ignore_errors=True)  # its manifest may be gone already
    elif not out.exists() and _is_corpus(replaced):
        replaced.rename(out)
