"""The anchor of a run: a copy of its ledger's head outside the run's folder, by which older copies are noticed.

Secure noise cannot be repeated. If a copy of a run's folder is resumed twice, or an older copy is put back, releases
are lost from the ledger that goes on, and its ε is too small. A folder cannot tell this about itself. So the head hash
is also kept elsewhere and compared when the run resumes and before each release: in the file of the setting ``anchor``,
and otherwise, with secure noise, in the user's state folder (``$XDG_STATE_HOME`` or ``~/.local/state``). The latter is
kept where that folder can be written, and lost with the machine; the former is required.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     ledger = Ledger.create(Path(folder))
...     anchor = Anchor(Path(folder) / "kept.json", required=True)
...     anchor.write(ledger)
...     anchor.check(ledger)
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_sim.config import RunConfig
from fl_sim.storage.run_folder import ResultsError, replace_file
from fl_sim.strategies.ledger import Ledger, LedgerError

NONE = "none"
"""The value of the setting ``anchor`` for no anchor at all."""

_FOLDER = Path("fl-sim") / "anchors"


@dataclass(frozen=True)
class Anchor:
    """A file that holds the head of a run's ledger.

    Attributes:
        file: its path; None for a run without an anchor.
        required: whether the run may not go on without it.
    """

    file: Path | None
    required: bool = False

    @classmethod
    def of(cls, config: RunConfig, run: str) -> Anchor:
        """Return the anchor of a run.

        Args:
            config: of the run.
            run: the identity in its ledger.
        """
        if config.anchor == NONE:
            return cls(None)
        if config.anchor is not None:
            return cls(Path(config.anchor), required=True)
        return cls.by_default(run, secure_noise=config.privacy.secure_noise)

    @classmethod
    def by_default(cls, run: str, *, secure_noise: bool) -> Anchor:
        """Return the anchor of a run that names none: in the user's state folder, for secure noise alone."""
        folder = state_folder() if secure_noise else None
        return cls(None if folder is None else folder / _FOLDER / f"{run}.json")

    def check_new(self) -> None:
        """Check that a new run can have this anchor.

        Raises:
            ResultsError: the file exists, or its folder does not.
        """
        if self.file is None or not self.required:
            return
        if self.file.exists() or self.file.is_symlink():
            raise ResultsError(f"anchor is {self.file}, which exists; allowed: a new file")
        if not self.file.parent.is_dir():
            raise ResultsError(f"anchor is {self.file}; allowed: a file in a folder that exists")

    def check(self, ledger: Ledger) -> None:
        """Check that the ledger has all releases of which the anchor knows.

        Raises:
            LedgerError: the folder is an older copy, or another copy of it went on; or a required anchor is missing,
                corrupt or of another run.
        """
        head = self._read(ledger)
        if head is None:
            return
        if head["run"] != ledger.run:
            raise LedgerError(f"{self.file}: is the anchor of another run; allowed: the file of this run, or a new one")
        try:
            ledger.check_head(head)
        except LedgerError as error:
            raise LedgerError(
                f"{ledger.folder}: is an older copy of the run, or another copy went on: {self.file} knows of "
                f"{head['entries']} releases; allowed: the copy that went on, or resume --anchor with a new file, if "
                "fl-sim account is given all copies"
            ) from error

    def write(self, ledger: Ledger) -> None:
        """Replace the content by the head of ``ledger``; OSError only if the anchor is required."""
        if self.file is None:
            return
        content = {name: ledger.head[name] for name in ("run", "entries", "last")}
        if self.required:
            replace_file(self.file, json.dumps(content).encode() + b"\n")
            return
        with suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.file, json.dumps(content).encode() + b"\n")

    def _read(self, ledger: Ledger) -> dict[str, Any] | None:
        """Return the head that was kept; None without an anchor, or before the first release."""
        if self.file is None:
            return None
        try:
            head = json.loads(self.file.read_bytes())
            kinds = {name: type(value) for name, value in head.items()}
            if kinds == {"run": str, "entries": int, "last": str}:
                return dict(head)
        except FileNotFoundError as error:
            if not self.required or len(ledger.entries) <= 1:  # killed between the first release record and the anchor
                return None
            raise LedgerError(f"{self.file}: is missing; allowed: the anchor of the run, or --anchor anew") from error
        except (OSError, ValueError, AttributeError) as error:
            if not self.required:
                return None
            raise LedgerError(f"{self.file}: cannot be read as an anchor") from error
        raise LedgerError(f"{self.file}: is corrupt ('run', 'entries' and 'last' are expected)")


NO_FILE = Anchor(None)
"""No anchor at all."""


def state_folder() -> Path | None:
    """Return the user's folder for state; None if there is no home."""
    given = os.environ.get("XDG_STATE_HOME")
    try:
        folder = Path(given) if given else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None
