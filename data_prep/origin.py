"""The origin of a corpus: everything that decides its content, to recognise a second preparation of the same.

>>> summarize(["seed: 1 then, 2 now", "tagger: rules then, gold now", "a", "b", "c"])
'seed: 1 then, 2 now; tagger: rules then, gold now; a; 2 more'
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.prepare import full_settings
from fl_sim.data_prep.readers.raw_corpora import RawCorpus
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.manifest import FileRecord, Manifest, comparable, tool_versions
from fl_sim.data_prep.store.textfiles import sha256_of
from fl_sim.data_prep.taggers.tagger import Marking

SEEN_FILE = ".sources.json"
"""Lies beside a manifest: the stamps of the source files when their checksums were taken."""

_SETTLED_SECONDS = 2.0
_SHOWN_DIFFERENCES = 3

Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, and the times (ns) of the last change of a file's content and of its inode."""


@dataclass(frozen=True)
class Origin:
    """Everything that decides what a corpus holds.

    Attributes:
        sources: size and checksum of the source files, by name.
        settings: as in the manifest.
        tagger: as in the manifest.
        tools: versions, as in the manifest.
        files: the stamps of the source files when they were read.
    """

    sources: Mapping[str, FileRecord]
    settings: Mapping[str, Any]
    tagger: Mapping[str, str]
    tools: Mapping[str, str]
    files: Mapping[Path, Stamp]

    @classmethod
    def of(cls, raw: RawCorpus, marking: Marking, identity: Identity, seen_in: Iterable[Path] = ()) -> Origin:
        """Return the origin of the corpus that ``raw`` will become.

        A source is read for its checksum, unless a folder remembers the same file by its stamp. (A program can set back
        the time of the content, but not that of the inode. A file that changed less than two seconds before is not
        remembered, because its times could miss a change.)

        Args:
            raw: the corpus before preparation.
            marking: how its sentences are marked.
            identity: which mentions are the same entity.
            seen_in: folders that may remember checksums (:meth:`remember`).

        Raises:
            CorpusError, OSError: a source is no regular file, or goes beyond the limits (docs/corpora.md).
        """
        raw.check_sources()
        remembered = {stamp: sha256 for folder in seen_in for stamp, sha256 in _remembered(folder)}
        sources, files = {}, {}
        for name, path in raw.sources.items():
            files[path] = stamp = _stamp(path)
            sources[name] = FileRecord(bytes=stamp[2], sha256=remembered.get(stamp) or sha256_of(path))
        settings = json.loads(json.dumps(full_settings(raw.settings, identity)))
        return cls(sources, settings, marking.describe(), tool_versions(raw.tools), files)

    @property
    def key(self) -> str:
        """SHA-256 of everything that decides what the corpus holds."""
        return hashlib.sha256(json.dumps(self._groups(), sort_keys=True).encode()).hexdigest()

    def differences(self, manifest: Manifest) -> list[str]:
        """Return the differences between the corpus of ``manifest`` and the one that would be made now, in words."""
        old = manifest.model_dump(mode="json") | {"tagger": comparable(manifest.tagger)}
        return [
            f"{group} {name}: {_show(then)} then, {_show(now)} now"
            for group, values in self._groups().items()
            for name, then, now in _differing(old[group], values)
        ]

    def check_unchanged(self) -> None:
        """Check that no source has changed since its checksum was taken, else raise :class:`CorpusError`."""
        for path, stamp in self.files.items():
            if _stamp(path) != stamp:
                raise CorpusError(f"{path}: changed while it was read; prepare the corpus again")

    def remember(self, folder: Path) -> None:
        """Write the stamps and checksums of the sources to ``folder``, for the next preparation."""
        settled = time.time_ns() - int(_SETTLED_SECONDS * 1e9)
        checksums = [record.sha256 for record in self.sources.values()]
        seen = [
            [*stamp, sha256]
            for stamp, sha256 in zip(self.files.values(), checksums, strict=True)
            if max(stamp[3:]) < settled
        ]
        if seen:
            partial = folder / f"{SEEN_FILE}.partial"
            partial.write_text(json.dumps(seen), encoding="utf-8")
            partial.replace(folder / SEEN_FILE)

    def _groups(self) -> dict[str, dict[str, Any]]:
        sources = {name: record.model_dump(mode="json") for name, record in self.sources.items()}
        return {
            "sources": sources,
            "settings": dict(self.settings),
            "tagger": comparable(self.tagger),
            "tools": dict(self.tools),
        }


def summarize(differences: list[str]) -> str:
    """Return the first few differences in one line."""
    more = len(differences) - _SHOWN_DIFFERENCES
    return "; ".join([*differences[:_SHOWN_DIFFERENCES], *([f"{more} more"] if more > 0 else [])])


def _remembered(folder: Path) -> Iterator[tuple[Stamp, str]]:
    try:
        seen = json.loads((folder / SEEN_FILE).read_text(encoding="utf-8"))
        for device, inode, size, content, node, sha256 in seen:
            yield (device, inode, size, content, node), str(sha256)
    except (OSError, ValueError, TypeError):
        return  # absent or damaged: the checksums are taken again


def _stamp(path: Path) -> Stamp:
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _differing(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in {**then, **now}:
        if then.get(name) != now.get(name):
            yield name, then.get(name), now.get(name)


def _show(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict) and "sha256" in value:
        return f"{value['bytes']:,} bytes with checksum {value['sha256'][:12]}…"
    return json.dumps(value, ensure_ascii=False)[:60]
