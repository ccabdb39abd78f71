"""The manifest of a prepared corpus: where it came from, how it was made, and what its files must be."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.textfiles import sha256_of
from fl_sim.plugins import Registry

MANIFEST_FILE = "manifest.json"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(_Strict):
    """Size in bytes and SHA-256 of one file."""

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class SplitCounts(_Strict):
    """How much one split holds; of an appended part, how much it adds (a sentence may be of a user known before)."""

    users: int = Field(ge=0)
    sentences: int = Field(ge=1)
    entities: int = Field(ge=0)
    mentions: int = Field(ge=0)


class Manifest(_Strict):
    """What ``manifest.json`` says.

    sources: name (never the path) of each file read → its record. settings: how it was read. tagger: what found
    the entities. tools: versions. classes: what the sentences' targets count, sorted; empty in a corpus without
    classes. notes: how often bad text was met, by :class:`fl_sim.data_prep.readers.cleaning.Note`. files: the corpus's
    own data files.
    fingerprint: checksum over all of them.

    A corpus that grew has one such file per part. follows: the fingerprint of the corpus that this part was appended
    to; fingerprint is then that of the corpus with this part. joined_at: the round from which what it adds takes part.
    """

    format: Literal["fl-sim corpus"] = "fl-sim corpus"
    format_version: Literal[2] = 2
    name: str
    sources: dict[str, FileRecord]
    settings: dict[str, Any]
    tagger: dict[str, str]
    tools: dict[str, str]
    classes: tuple[str, ...] = ()
    notes: dict[str, int] = {}
    splits: dict[str, SplitCounts]
    files: dict[str, FileRecord]
    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")
    follows: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    joined_at: int = Field(1, ge=1)

    def write(self, folder: Path) -> None:
        (folder / MANIFEST_FILE).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Read and check ``folder``'s manifest.

    Raises :class:`CorpusError` where the folder is absent, is no prepared corpus, or is of another format
    version.
    """
    path = folder / MANIFEST_FILE
    if not folder.is_dir():
        raise CorpusError(f"{folder}: no such folder; make a corpus with fl-sim prepare")
    if not path.is_file():
        raise CorpusError(f"{folder}: not a prepared corpus (it has no {MANIFEST_FILE}); make one with fl-sim prepare")
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise CorpusError(
            f"{path}: not a manifest of this version: {place}: {first['msg']}".replace(": : ", ": ")
        ) from error


def tool_versions(tools: Iterable[str]) -> dict[str, str]:
    """The versions of the distributions ``tools``, and of those that shape every corpus."""
    return {tool: metadata.version(tool) for tool in ("fl-sim", "numpy", "pyarrow", *tools)}


def plugin_record(registry: Registry, name: str) -> dict[str, str]:
    """Return what a manifest records of a loaded plug-in.

    That is its import path, the SHA-256 of its module's file, and its distribution with version if it has one.
    """
    origin = registry.origin(name)
    record = {key: value for key, value in origin.items() if value is not None}
    module = sys.modules.get(record["path"].partition(":")[0])
    file = getattr(module, "__file__", None)
    return record | ({"module_sha256": sha256_of(Path(file))} if file else {})


def record_of(path: Path) -> FileRecord:
    """Size and checksum of ``path`` as it lies on disk."""
    return FileRecord(bytes=path.stat().st_size, sha256=sha256_of(path))


def fingerprint_of(files: Mapping[str, FileRecord], follows: str | None = None) -> str:
    """One SHA-256 over names and checksums of all files in the order of their names, and over what they follow."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name} {files[name].sha256}\n".encode())
    if follows is not None:
        digest.update(f"follows {follows}\n".encode())
    return digest.hexdigest()


def sum_counts(counts: Iterable[SplitCounts]) -> SplitCounts:
    """Several counts as one."""
    columns = zip(*(tuple(count.model_dump().values()) for count in counts), strict=True)
    return SplitCounts(**dict(zip(SplitCounts.model_fields, map(sum, columns), strict=True)))
