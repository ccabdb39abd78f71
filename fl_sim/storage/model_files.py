"""Checksums of a run's model files, stored in the run's result beside the head of its ledger.

A ledger says what was released; the checksums say that the weights in the folder are those. Like the ledger's hashes
they detect a change, not an adversary who can also rewrite the result.

>>> import tempfile
>>> folder = Path(tempfile.mkdtemp())
>>> _ = (folder / "weights.bin").write_bytes(b"1")
>>> check(folder, {KEY: checksums(folder)})
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl_sim.data_prep.store.textfiles import sha256_of
from fl_sim.storage.run_folder import ResultsError

KEY = "model_files"
"""Key of the checksums in result.json."""


CARD = "README.md"
"""The model card, which its owner may edit: no checksum has it, and no ε is read from it."""

LINEAGE = "lineage"
"""Folder of the lineage in a model's folder (fl_sim.storage.model_lineage), which has hashes of its own."""


def checksums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file in ``folder`` and below but its card and its lineage, by relative path."""
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {file.as_posix(): sha256_of(folder / file) for file in files if file.parts[0] not in (CARD, LINEAGE)}


def changed(expected: Mapping[str, str], actual: Mapping[str, str]) -> list[str]:
    """Return the files whose checksums differ, sorted; earlier versions had one of the card, which does not count."""
    names = sorted((expected.keys() | actual.keys()) - {CARD})
    return [name for name in names if expected.get(name) != actual.get(name)]


def check(folder: Path, result: Mapping[str, Any]) -> None:
    """Check that ``folder`` holds the model of the run with this result.

    Args:
        folder: of the model.
        result: content of the run's result.json.

    Raises:
        ResultsError: a file was changed, removed or added, or the result has no checksums.
    """
    expected = result.get(KEY)
    if not isinstance(expected, dict) or not expected:
        raise ResultsError(f"{folder}: result.json has no {KEY}, the checksums of the model; allowed: a run with them")
    wrong = changed(expected, checksums(folder))
    if wrong:
        raise ResultsError(
            f"{folder / wrong[0]}: is not the file that the run wrote; no ε of the run covers this model"
        )
