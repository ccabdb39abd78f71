"""Write folders atomically: they appear complete or not at all.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as parent:
...     with folder_appearing_at(Path(parent) / "new") as scratch:
...         _ = (scratch / "file").write_text("x")
...         before = (Path(parent) / "new").exists()
...     before, (Path(parent) / "new" / "file").exists()
(False, True)
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fl_sim.data_prep import SHIPPED_CORPORA
from fl_sim.data_prep.records import CorpusError
from fl_sim.files import naming


def require_free(out: Path) -> None:
    """Check that ``out`` is absent or an empty folder, else raise :class:`CorpusError`.

    The name of a corpus that ships is refused, because ``--corpus`` with that name would open the other one.
    """
    if str(out) in SHIPPED_CORPORA:
        raise CorpusError(f"{out}: the name of a corpus that ships; choose another output folder")
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise CorpusError(f"{out}: exists and is not a folder; choose another output folder")
    if out.is_dir() and any(out.iterdir()):
        raise CorpusError(f"{out}: the output folder exists and is not empty; remove it or choose another")


def require_new_file(out: Path) -> None:
    """Check that nothing is at ``out``, else raise :class:`CorpusError`."""
    if os.path.lexists(out):
        raise CorpusError(f"{out}: exists already; choose another `out`")


@contextmanager
def folder_appearing_at(out: Path, *, replace: bool = False) -> Iterator[Path]:
    """Give a temporary folder beside ``out``, and rename it to ``out`` when the block ends.

    An error or Ctrl-C in the block removes the temporary folder and the parents that were made for it. A killed process
    leaves it behind as ``.NAME.partial``; the next call clears it.

    Args:
        out: the folder to make.
        replace: whether to replace what is at ``out``, in two renames. After a power cut between them the old folder is
            at ``.NAME.replaced``.

    Raises:
        CorpusError: ``out`` is taken or a link, or another process is writing it.
        OSError: the place cannot be written; a full disk's names ``out``.
    """
    if not replace:
        require_free(out)
    elif out.is_symlink():
        raise CorpusError(f"{out}: a link, which is not replaced; choose the folder that it means, or another one")
    missing = [parent for parent in out.parents if not parent.exists()]  # innermost first
    for parent in reversed(missing):
        parent.mkdir()
    scratch = out.parent / f".{out.name}.partial"
    lock = _claimed(scratch, out)
    try:
        with naming(out):
            yield scratch
        if replace and out.exists():
            _exchange(scratch, out)
        else:
            scratch.rename(out)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        with suppress(OSError):  # another process may have put something there meanwhile
            for parent in missing:
                parent.rmdir()
        raise
    finally:
        os.close(lock)


def _claimed(scratch: Path, out: Path) -> int:
    """Make ``scratch`` an empty folder, locked until the returned descriptor is closed or this process ends."""
    while True:
        scratch.mkdir(exist_ok=True)
        lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if scratch.exists() and os.path.samestat(os.fstat(lock), scratch.stat()):
                for path in scratch.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                return lock
        except BlockingIOError as error:
            os.close(lock)
            raise CorpusError(
                f"{out}: another process is writing this folder; wait for it, or choose another"
            ) from error
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # the process that held it has just renamed or removed it


def _exchange(new: Path, out: Path) -> None:
    old = out.parent / f".{out.name}.replaced"
    shutil.rmtree(old, ignore_errors=True)
    out.rename(old)
    new.rename(out)
    shutil.rmtree(old, ignore_errors=True)
