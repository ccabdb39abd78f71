"""Files are written whole, in place of nothing or of a regular file; what a full disk ends names the path."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest

from fl_sim.data_prep.store.atomic import folder_appearing_at
from fl_sim.data_prep.store.layout import write_array
from fl_sim.files import remove_temporaries, replace_file
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.ledger import LEDGER_FILE, Ledger, ReleaseRecord
from fl_sim.strategies.user_level import UserLevelDP

RELEASE = ReleaseRecord.of(
    UserLevelDP(population=2, q_u=1.0, q_e=1.0, q_s=1.0, clip_norm=1.0, user_cap=1.0, noise_multiplier=1.0), seed=0
)


def test_a_link_a_device_and_a_folder_stay(tmp_path: Path) -> None:
    target, folder = tmp_path / "target", tmp_path / "folder"
    target.write_bytes(b"kept")
    folder.mkdir()
    places = {tmp_path / "link": "a link", tmp_path / "dangling": "a link", tmp_path / "fifo": "a FIFO"}
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "fifo")
    before = sorted(tmp_path.iterdir())
    for path, words in (*places.items(), (Path("/dev/null"), "a device"), (folder, "Is a directory")):
        with pytest.raises(OSError, match=f"{words}.*{re.escape(str(path))}"):
            replace_file(path, b"new")
    assert Path("/dev/null").is_char_device()
    assert sorted(tmp_path.iterdir()) == before
    assert target.read_bytes() == b"kept"


def full(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, ledger = RunFolder.create(tmp_path / "run", config={}, environment={}), Ledger.create(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    for path, write in {
        tmp_path / "page.html": lambda: replace_file(tmp_path / "page.html", b"<p>"),
        run.metrics_file: lambda: run.append_metrics({"round": 0}),
        tmp_path / LEDGER_FILE: lambda: ledger.record_release(RELEASE, 1),
    }.items():
        with pytest.raises(OSError, match="No space") as caught:
            write()
        assert caught.value.filename == str(path)
    with pytest.raises(OSError, match="No space") as caught:
        write_array(Path("/dev/full"), np.zeros(1 << 16))
    assert caught.value.filename == "/dev/full"
    with pytest.raises(OSError, match="No space") as caught, folder_appearing_at(tmp_path / "corpus"):
        full(0)
    assert caught.value.filename == str(tmp_path / "corpus")


def test_what_a_killed_write_left_goes(tmp_path: Path) -> None:
    for name in (".page.html.0123abcd.tmp", ".a.page.html.0123abcd.tmp", ".page.html.tmp", "page.html"):
        (tmp_path / name).touch()
    remove_temporaries(tmp_path, "page.html")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".a.page.html.0123abcd.tmp",
        ".page.html.tmp",
        "page.html",
    ]
    remove_temporaries(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".page.html.tmp", "page.html"]
    remove_temporaries(tmp_path / "nowhere")
