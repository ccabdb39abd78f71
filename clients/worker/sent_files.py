"""The files of a run on a machine that does not see the server's: corpus, tokens, weights, features.

They are sent there once. All workers of a machine share one folder of their owner's alone, below the machine's
temporary folder, with the run's random token in its name. The first worker writes it while the others wait, and every
file is checked against the SHA-256 of the server's. A lock tells folders in use from those that a killed run left
behind, which the next run removes.

>>> import hashlib, tempfile
>>> text = b"Ada left."
>>> sent = SentFile("corpus/text", hashlib.sha256(text).hexdigest(), (text[:3], text[3:]))
>>> with tempfile.TemporaryDirectory() as parent:
...     folder = unpacked("0a1b", [sent], fetch=lambda chunk: chunk, parent=Path(parent))
...     folder.name, (folder / "corpus" / "text").read_bytes()
...     remove_unpacked("0a1b", Path(parent))
('fl-sim-sent-0a1b', b'Ada left.')
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_sim.clients.worker.workspace import TOKEN_FILE, WorkspaceSpec
from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.manifest import MANIFEST_FILE
from fl_sim.files import owner_only

_PREFIX = "fl-sim-sent-"
_LOCK, _COMPLETE = "lock", "complete"
_CORPUS, _RUN = "corpus", "run"

_held: dict[str, int] = {}  # the locks of the folders that this process uses, by token


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file on its way to other machines.

    Attributes:
        name: its path below the folder of the run's files.
        digest: SHA-256 of its content.
        chunks: what the receiver's ``fetch`` turns into the parts of its content, in order.
    """

    name: str
    digest: str
    chunks: tuple[Any, ...]


def are_here(spec: WorkspaceSpec) -> bool:
    """Return whether this machine has the corpus, and sees the files that the server wrote for this run."""
    try:
        if spec.token and (Path(spec.encoded).parent / TOKEN_FILE).read_text(encoding="utf-8") != spec.token:
            return False
        Corpus.open(spec.corpus, fingerprint=spec.fingerprint)
    except (OSError, ValueError):
        return False
    return spec.features is None or Path(spec.features).is_file()


def files_of(spec: WorkspaceSpec) -> Iterator[tuple[str, Path]]:
    """Yield name and path of every file that a machine needs; frozen layers' states are computed where they are used.

    Raises:
        CorpusError: the corpus has changed since the run began.
    """
    corpus = Corpus.open(spec.corpus, fingerprint=spec.fingerprint)
    for part in corpus.parts:
        for name in (MANIFEST_FILE, *part.manifest.files):
            path = part.folder / name
            yield f"{_CORPUS}/{path.relative_to(corpus.path)}", path
    encoded = Path(spec.encoded)
    for path in sorted(encoded.iterdir()):
        yield f"{_RUN}/{encoded.name}/{path.name}", path
    for file in (spec.weights, spec.entity_draws, spec.features):
        if file is not None:
            yield f"{_RUN}/{Path(file).name}", Path(file)


def local_spec(spec: WorkspaceSpec, folder: Path) -> WorkspaceSpec:
    """Return the specification of the files that :func:`unpacked` wrote into ``folder``."""
    named = {name: getattr(spec, name) for name in ("encoded", "weights", "entity_draws", "features", "states")}
    paths = {name: str(folder / _RUN / Path(path).name) for name, path in named.items() if path is not None}
    return spec.model_copy(update={"corpus": str(folder / _CORPUS), "token": "", **paths})


def unpacked(token: str, files: Sequence[SentFile], fetch: Callable[[Any], bytes], parent: Path | None = None) -> Path:
    """Return the folder of the run's files on this machine, and keep it in use while this process lives.

    The files are written, with ``fetch`` for the content of their chunks, if no other worker has written them.

    Raises:
        CorpusError: a file is not that of the server, or the folder is another user's.
        OSError: there is no room for the files.
    """
    parent = parent or Path(tempfile.gettempdir())
    folder = parent / f"{_PREFIX}{token}"
    if token not in _held:
        _remove_abandoned(parent)
    while token not in _held:
        with owner_only(), suppress(FileNotFoundError):  # another process may remove a folder before it is locked
            folder.mkdir(exist_ok=True)
            _check_ours(folder)
            _hold(token, folder, files, fetch)
    return folder


def remove_unpacked(token: str, parent: Path | None = None) -> None:
    """Remove the folder of a run's files; files that are open stay readable."""
    with suppress(KeyError):
        os.close(_held.pop(token))
    shutil.rmtree((parent or Path(tempfile.gettempdir())) / f"{_PREFIX}{token}", ignore_errors=True)


def _hold(token: str, folder: Path, files: Sequence[SentFile], fetch: Callable[[Any], bytes]) -> None:
    """Hold the folder's lock together with the machine's other workers; if the files are absent, write them first."""
    lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not (folder / _COMPLETE).exists():
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_at(lock, folder) and not (folder / _COMPLETE).exists():
                _write(folder, files, fetch)
            fcntl.flock(lock, fcntl.LOCK_SH)
        if _is_at(lock, folder) and (folder / _COMPLETE).exists():
            _held[token] = lock
    finally:
        if _held.get(token) != lock:
            os.close(lock)


def _write(folder: Path, files: Iterable[SentFile], fetch: Callable[[Any], bytes]) -> None:
    for file in files:
        path = folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with path.open("wb") as out:
            for chunk in file.chunks:
                content = fetch(chunk)
                digest.update(content)
                out.write(content)
        if digest.hexdigest() != file.digest:
            raise CorpusError(f"{path}: is not the file that the server sent")
    (folder / _COMPLETE).touch()


def _check_ours(folder: Path) -> None:
    """Raise CorpusError for a folder that another user made, or that others may write."""
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise CorpusError(f"{folder}: is not a private folder of this user; allowed: none with this name")


def _remove_abandoned(parent: Path) -> None:
    """Remove folders of runs whose workers have all ended."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _is_at(lock: int, folder: Path) -> bool:
    """Return whether ``lock`` is the open lock of the folder as it is now."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(lock), (folder / _LOCK).stat())
    return False
