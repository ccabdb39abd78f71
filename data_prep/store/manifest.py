"""The manifest of a prepared corpus: its sources, how it was made, and the checksums of its files."""

from __future__ import annotations

import csv
import hashlib
import json
import shlex
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, StrictBool, TypeAdapter, ValidationError, field_validator

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.textfiles import decoded_lines
from fl_sim.files import read_bytes, sha256_of
from fl_sim.formats import first_mistake, printable, shortened
from fl_sim.plugins import Registry

MANIFEST_FILE = "manifest.json"

STRUCTURED = "structured"
"""The key of a tagger's description that says which version of the expressions looked for structured personal data."""

OFF = "off"
"""What that key says if nobody looked for it."""

_KINDS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
_PACKED = (".gz", ".xz")


class Record(BaseModel):
    """The content of a JSON file, or a part of it: never changed, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(Record):
    """Size in bytes and SHA-256 of one file."""

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class SplitCounts(Record):
    """The counts of one split; of an appended part, what it adds (a sentence may be of a user that is not new)."""

    users: int = Field(ge=0)
    sentences: int = Field(ge=1)
    entities: int = Field(ge=0)
    mentions: int = Field(ge=0)


class _IdentitySettings(Record):
    """What :meth:`fl_sim.data_prep.identity.Identity.manifest_settings` says."""

    steps: list[str]
    family_names: StrictBool


_READ_AGAIN: Mapping[str, TypeAdapter[Any]] = {
    "identity": TypeAdapter(_IdentitySettings),
    "warnings": TypeAdapter(list[str]),
}


class Manifest(Record):
    """The content of ``manifest.json``, one per part of a corpus.

    Attributes:
        sources: size and checksum of each source file, by its name, never its path.
        settings: how the sources were read.
        tagger: what marked the entities.
        sought_labels: every label that the tagger can give and that counts, and those of the mentions, sorted.
        classes: the names that targets index, sorted; empty in a corpus without classes.
        notes: counts of bad text, by :class:`fl_sim.data_prep.readers.cleaning.Note`.
        files: size and checksum of the data files.
        fingerprint: SHA-256 over the data files, of the corpus with this part.
        follows: the fingerprint of the corpus that this part was appended to.
        joined_at: the round from which this part takes part in training.
    """

    format: Literal["fl-sim corpus"] = "fl-sim corpus"
    format_version: Literal[2] = 2
    name: str
    sources: dict[str, FileRecord]
    settings: dict[str, Any]
    tagger: dict[str, str]
    sought_labels: tuple[str, ...]
    tools: dict[str, str]
    classes: tuple[str, ...] = ()
    notes: dict[str, int] = Field(default_factory=dict)
    splits: dict[str, SplitCounts]
    files: dict[str, FileRecord]
    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")
    follows: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    joined_at: int = Field(1, ge=1)

    @field_validator("settings")
    @classmethod
    def _as_written(cls, settings: dict[str, object]) -> dict[str, object]:
        """Check those settings that are read again; the others only tell how the corpus was made."""
        for name, kind in _READ_AGAIN.items():
            try:
                kind.validate_python(settings[name]) if name in settings else None
            except ValidationError as error:
                raise ValueError(f"{name} is {settings[name]!r:.60}; allowed: as fl-sim prepare writes it") from error
        return settings

    def write(self, folder: Path) -> None:
        (folder / MANIFEST_FILE).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest in ``folder``.

    Raises:
        CorpusError: the folder is absent, is no prepared corpus, or has another format version.
    """
    path = folder / MANIFEST_FILE
    if folder.is_file():
        raise CorpusError(f"{folder}: is a file and no prepared corpus; make one: {how_to_prepare(folder)}")
    if not folder.is_dir():
        raise CorpusError(f"{folder}: no such folder; make a corpus with fl-sim prepare")
    if not path.is_file():
        raise CorpusError(f"{folder}: not a prepared corpus (it has no {MANIFEST_FILE}); make one with fl-sim prepare")
    try:
        return Manifest.model_validate_json(read_bytes(path))
    except ValidationError as error:
        raise CorpusError(f"{path}: not a manifest of this version: {first_mistake(error)}") from error


def how_to_prepare(path: Path) -> str:
    """Return the command that makes a corpus of a file, with the columns of a table where they can be read.

    >>> how_to_prepare(Path("notes.docx"))
    'fl-sim prepare KIND --source notes.docx --out DIR (fl-sim prepare --help lists the kinds)'
    """
    name = path.with_suffix("") if path.suffix in _PACKED else path
    kind, source = _KINDS.get(name.suffix.lower()), shlex.quote(printable(path))
    if kind is None:
        return f"fl-sim prepare KIND --source {source} --out DIR (fl-sim prepare --help lists the kinds)"
    columns = _columns(kind, path)
    found = f" (its columns: {shortened(', '.join(map(printable, columns)))})" if columns else ""
    return f"fl-sim prepare {kind} --source {source} --text-column TEXT --user-column USER --out DIR{found}"


def _columns(kind: str, path: Path) -> list[str]:
    """Return the columns of a table; none if they cannot be read."""
    try:
        if kind == "parquet":
            return list(pq.read_schema(path).names)
        line = next((line for _, line in decoded_lines(path) if line.strip()), "")
        if kind == "jsonl":
            row = json.loads(line)
            return list(row) if isinstance(row, dict) else []
        return next(csv.reader([line], delimiter="\t" if kind == "tsv" else ","), [])
    except (OSError, ValueError, RecursionError, CorpusError, csv.Error, pa.ArrowException):
        return []


def tool_versions(tools: Iterable[str]) -> dict[str, str]:
    """Return the versions of the distributions ``tools``, and of those that shape every corpus."""
    return {tool: metadata.version(tool) for tool in ("fl-sim", "numpy", "pyarrow", *tools)}


def comparable(tagger: Mapping[str, str]) -> dict[str, str]:
    """Return a tagger's description for comparisons: where it does not say so, nobody looked for structured data.

    >>> comparable({"tagger": "gold"})
    {'structured': 'off', 'tagger': 'gold'}
    """
    return {STRUCTURED: OFF, **tagger}


def plugin_record(registry: Registry, name: str) -> dict[str, str]:
    """Return what a manifest records of a loaded plug-in.

    That is its import path, the SHA-256 of its module's file, and its distribution with version if it has one.
    """
    record = {key: value for key, value in registry.origin(name).items() if value is not None}
    module = sys.modules.get(record["path"].partition(":")[0])
    file = getattr(module, "__file__", None)
    return record | ({"module_sha256": sha256_of(Path(file))} if file else {})


def record_of(path: Path) -> FileRecord:
    """Return size and checksum of the file ``path``."""
    return FileRecord(bytes=path.stat().st_size, sha256=sha256_of(path))


def fingerprint_of(files: Mapping[str, FileRecord], follows: str | None = None) -> str:
    """Return a SHA-256 over the names and checksums of all files, sorted by name, and over ``follows``."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name} {files[name].sha256}\n".encode())
    if follows is not None:
        digest.update(f"follows {follows}\n".encode())
    return digest.hexdigest()


def sum_counts(counts: Iterable[SplitCounts]) -> SplitCounts:
    """Return the sum of counts, field by field.

    >>> one = SplitCounts(users=1, sentences=2, entities=3, mentions=4)
    >>> sum_counts([one, one]).mentions
    8
    """
    columns = zip(*(tuple(count.model_dump().values()) for count in counts), strict=True)
    return SplitCounts(**dict(zip(SplitCounts.model_fields, map(sum, columns), strict=True)))
