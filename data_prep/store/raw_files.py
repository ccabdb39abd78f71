"""Name the command that makes a corpus of a file, for whoever gave the file where a corpus is meant.

>>> how_to_prepare(Path("notes.docx"))
'fl-sim prepare KIND --source notes.docx --out DIR (fl-sim prepare --help lists the kinds)'
"""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.textfiles import decoded_lines
from fl_sim.formats import printable, shortened

_KINDS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}
_PACKED = (".gz", ".xz")


def how_to_prepare(path: Path) -> str:
    """Return the command that prepares a file, with the columns of a table where they can be read."""
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
