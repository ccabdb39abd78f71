"""The place of a run on disk: claimed before anything is computed, held by one process, given up without a trace."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from fl_sim.storage.run_folder import ResultsError

try:
    import fcntl
except ImportError:  # Windows has no such locks; there nobody is kept from starting a second writer
    fcntl = None  # type: ignore[assignment]


class RunClaim:
    """A run's folder in this process's hands, by :meth:`claim` (``new``) or :meth:`hold` (a run that goes on)."""

    def __init__(self, path: Path, *, new: bool) -> None:
        self.path = path
        self.new = new
        self._made = _missing(path)
        self._lock: int | None = None

    @classmethod
    def claim(cls, path: Path) -> RunClaim:
        """Make the empty folder ``path`` and see that it can be written.

        Raises:
            ResultsError: something is there already, or it cannot be written.
        """
        place = cls(path, new=True)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise ResultsError(f"{path}: exists and is not empty; choose another folder, or remove it")
            tempfile.TemporaryFile(dir=path).close()
            place._take_lock()
        except (FileExistsError, NotADirectoryError) as error:
            place._remove_made()
            raise ResultsError(f"{path}: is a file, or lies below one; a run needs a folder") from error
        except OSError as error:
            place._remove_made()
            raise ResultsError(f"{path}: cannot be written ({error.strerror or error})") from error
        return place

    @classmethod
    def hold(cls, path: Path) -> RunClaim:
        """Keep other processes from writing the existing folder ``path`` too; :class:`ResultsError` if one does."""
        place = cls(path, new=False)
        place._take_lock()
        place._sweep()
        return place

    def release(self) -> None:
        """Let another process write the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def discard(self) -> None:
        """Remove all that is in the folder, and the folders that :meth:`claim` made."""
        self.release()
        for child in self.path.iterdir() if self.path.is_dir() else ():
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child, ignore_errors=True)
            else:
                child.unlink(missing_ok=True)
        self._remove_made()

    def _take_lock(self) -> None:
        if fcntl is None:
            return
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise ResultsError(f"{self.path}: another process is at work on this run; wait until it ends") from error
        except OSError:  # a file system without locks
            os.close(descriptor)
            return
        self._lock = descriptor

    def _sweep(self) -> None:
        """Remove what a process that was killed within a write (:func:`fl_sim.storage.run_folder.replace_file`) left
        beside it."""
        for left in self.path.rglob(".*.tmp"):
            left.unlink(missing_ok=True)

    def _remove_made(self) -> None:
        with suppress(OSError):  # somebody else may have put something there meanwhile
            for folder in self._made:
                if folder.exists():
                    folder.rmdir()


def _missing(path: Path) -> list[Path]:
    """The folders that have to be made for ``path`` to be one, innermost first."""
    missing = []
    with suppress(OSError):  # what cannot even be asked about will not be made either
        while not path.exists():
            missing.append(path)
            path = path.parent
    return missing
