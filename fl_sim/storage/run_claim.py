"""Exclusive use of a run's folder: claimed before any computation, locked for one process, removable.

>>> with tempfile.TemporaryDirectory() as parent:
...     claim = RunClaim.claim(Path(parent, "runs", "first"))
...     claim.path.is_dir()
...     claim.discard()
...     Path(parent, "runs").exists()
True
False
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from fl_sim.storage.run_folder import ResultsError, check_free

ENCODED = "encoded"
"""Folder of the tokens of a run's text, and the like, as long as it is at work."""

_TEMPORARIES = ".*.tmp"
_PAUSES = (0.01, 0.05, 0.1)  # seconds; a look at the lock (:func:`is_held`) holds it for an instant


class RunClaim:
    """The lock on a run's folder, by :meth:`claim` (a new run) or :meth:`hold` (a resumed run)."""

    def __init__(self, path: Path, *, new: bool) -> None:
        self.path = path
        self.new = new
        self._created = _missing(path)
        self._lock: int | None = None

    @classmethod
    def claim(cls, path: Path) -> RunClaim:
        """Create the folder ``path``, check that it is empty and writable, and lock it.

        Raises:
            ResultsError: the folder is not empty or not writable, or is a file.
        """
        lock = cls(path, new=True)
        try:
            path.mkdir(parents=True, exist_ok=True)
            check_free(path)
            tempfile.TemporaryFile(dir=path).close()
            lock._take_lock()
        except (FileExistsError, NotADirectoryError) as error:
            lock._remove_created()
            raise ResultsError(f"{path}: is a file, or lies below one; a run needs a folder") from error
        except OSError as error:
            lock._remove_created()
            raise ResultsError(f"{path}: cannot be written ({error.strerror or error})") from error
        return lock

    @classmethod
    def hold(cls, path: Path) -> RunClaim:
        """Lock the existing folder ``path``; :class:`ResultsError` if another process holds it."""
        lock = cls(path, new=False)
        lock._take_lock()
        lock._remove_temporaries()
        return lock

    def release(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def discard(self) -> None:
        """Remove the folder's content, and the folders that :meth:`claim` created."""
        self.release()
        for child in self.path.iterdir() if self.path.is_dir() else ():
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child, ignore_errors=True)
            else:
                child.unlink(missing_ok=True)
        self._remove_created()

    def _take_lock(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        for pause in (*_PAUSES, None):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if pause is None:
                    os.close(descriptor)
                    raise ResultsError(
                        f"{self.path}: another process is at work on this run; wait until it ends"
                    ) from error
                time.sleep(pause)
            except OSError:  # a file system without locks
                os.close(descriptor)
                return
            else:
                self._lock = descriptor
                return

    def _remove_temporaries(self) -> None:
        """Remove temporary files of processes killed within :func:`fl_sim.files.replace_file`."""
        for file in self.path.rglob(_TEMPORARIES):
            file.unlink(missing_ok=True)

    def _remove_created(self) -> None:
        with suppress(OSError):  # another process may have written there meanwhile
            for folder in self._created:
                if folder.exists():
                    folder.rmdir()


def is_held(path: Path) -> bool | None:
    """Return whether a process is at work on the run in ``path``; None on a file system without locks.

    A process that is killed holds nothing. Two looks at a time do not disturb each other.

    Raises:
        OSError: the folder is missing, or may not be read.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False


def is_starting(path: Path) -> bool:
    """Return whether a process holds a folder for a run that has recorded nothing yet."""
    return path.is_dir() and not (path / "config.json").exists() and bool(is_held(path))


def tidy(path: Path) -> None:
    """Remove what a killed process left in a run's folder: private tokens, temporary files; nothing of one at work."""
    if not (path / ENCODED).exists() and not any(path.rglob(_TEMPORARIES)):
        return
    claim = RunClaim(path, new=False)
    with suppress(ResultsError, OSError):
        claim._take_lock()
        if claim._lock is not None:  # on a file system without locks a process may be at work
            claim._remove_temporaries()
            shutil.rmtree(path / ENCODED, ignore_errors=True)
    claim.release()


def _missing(path: Path) -> list[Path]:
    """Return the missing folders on the way to ``path``, innermost first."""
    missing = []
    with suppress(OSError):  # a path that cannot be examined cannot be created
        while not path.exists():
            missing.append(path)
            path = path.parent
    return missing
