"""The files of a run's model, by the checksums that the run's result keeps beside the seal of its ledger.

A ledger says what was released; only checksums say that the weights in the folder are those. Like the ledger's, they
show a change, not an adversary: whoever may write the result can write other checksums.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl_sim.data_prep.store.textfiles import sha256_of
from fl_sim.storage.run_folder import ResultsError

KEY = "model_files"
"""In result.json."""


def checksums(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in ``folder`` and below, by its path there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}


def check(folder: Path, result: Mapping[str, Any]) -> None:
    """See that ``folder`` holds the model of the run that ended with ``result``.

    Raises:
        ResultsError: a file was changed, removed or added, or the result has no checksums.
    """
    expected = result.get(KEY)
    if not isinstance(expected, dict) or not expected:
        raise ResultsError(f"{folder}: result.json has no {KEY}, the checksums of the model; allowed: a run that has")
    found = checksums(folder)
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        raise ResultsError(f"{folder / wrong[0]}: is not the file that the run left; no ε of the run covers this model")
