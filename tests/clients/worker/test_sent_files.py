"""Files that are sent to a machine are private, whole, shared by its workers, and removed when nobody uses them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from fl_sim.clients.worker import sent_files
from fl_sim.clients.worker.sent_files import SentFile, remove_unpacked, unpacked
from fl_sim.data_prep.records import CorpusError
from tests.e2e.processes import forked

CONTENT = {"corpus/manifest.json": b"{}", "run/train/tokens.npy": b"123456"}


def sent(content: dict[str, bytes] = CONTENT) -> list[SentFile]:
    return [SentFile(name, hashlib.sha256(text).hexdigest(), (text[:2], text[2:])) for name, text in content.items()]


def as_it_is(chunk: bytes) -> bytes:
    return chunk


def test_files_are_their_owners_alone_and_written_once(tmp_path: Path) -> None:
    fetched = list[bytes]()

    def fetch(chunk: bytes) -> bytes:
        fetched.append(chunk)
        return chunk

    folder = unpacked("a", sent(), fetch, tmp_path)
    assert {name: (folder / name).read_bytes() for name in CONTENT} == CONTENT
    assert not any(path.stat().st_mode & 0o077 for path in (folder, *folder.rglob("*")))

    def another_worker() -> int:
        sent_files._held.clear()
        return 0 if unpacked("a", sent(), fetch, tmp_path) == folder and len(fetched) == 4 else 1

    code, errors = forked(another_worker, tmp_path / "errors")
    assert code == 0, errors
    remove_unpacked("a", tmp_path)
    assert not folder.exists()


def test_a_file_that_is_not_the_servers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"tokens\.npy: is not the file that the server sent"):
        unpacked("a", sent(), lambda chunk: chunk.replace(b"3", b"4"), tmp_path)
    folder = unpacked("a", sent(), as_it_is, tmp_path)  # what was written is written again
    assert (folder / "run/train/tokens.npy").read_bytes() == b"123456"
    remove_unpacked("a", tmp_path)


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "fl-sim-sent-a").mkdir(mode=0o755)
    with pytest.raises(CorpusError, match="is not a private folder of this user"):
        unpacked("a", sent(), as_it_is, tmp_path)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "fl-sim-sent-b").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorpusError, match="is not a private folder of this user"):
        unpacked("b", sent(), as_it_is, tmp_path)


def test_what_a_killed_run_left_behind_is_removed_and_what_is_used_stays(tmp_path: Path) -> None:
    used = unpacked("used", sent(), as_it_is, tmp_path)

    def killed() -> int:
        unpacked("killed", sent(), as_it_is, tmp_path)
        os._exit(7)

    code, errors = forked(killed, tmp_path / "errors")
    assert code == 7, errors
    assert (tmp_path / "fl-sim-sent-killed").exists()
    unpacked("next", sent(), as_it_is, tmp_path)
    assert not (tmp_path / "fl-sim-sent-killed").exists()
    assert (used / "run/train/tokens.npy").exists()
    for token in ("used", "next"):
        remove_unpacked(token, tmp_path)
