"""Whatever holds private text, entities, ledgers or models can be read by its owner alone, even with umask 0."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fl_sim.cli.main import main
from fl_sim.data_prep.prepare import Origin
from fl_sim.data_prep.store.tagged_store import TaggedStore
from fl_sim.engines import simulation
from fl_sim.files import close_to_others, owner_only
from tests.e2e.small_runs import QUICK_TO_LOAD, configuration, settings, small_corpus
from tests.tiny import command_line

SPLITS = ("train", "train", "validation")


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    """Start with umask 0, which creates files that anybody may write, and check that it is left as it was."""
    before = os.umask(0)
    try:
        yield
    finally:
        left = os.umask(before)
    assert left == 0


def open_to_others(*folders: Path) -> list[str]:
    """Return the files and folders in ``folders``, and these themselves, that others than their owner may use."""
    paths = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    assert len(paths) > len(folders)
    return [f"{path} {stat.filemode(path.lstat().st_mode)}" for path in paths if path.lstat().st_mode & 0o077]


@pytest.mark.system
def test_a_prepared_corpus_with_what_is_there_meanwhile_and_cached_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_plots: None
) -> None:
    place = tmp_path / "data" / "corpora"  # made by the command
    seen: list[str] = []

    def look(self: Any) -> None:
        seen.extend(path.name for path in place.rglob("*"))
        assert open_to_others(place) == []

    monkeypatch.setattr(Origin, "check_unchanged", look)
    monkeypatch.setattr("fl_sim.data_prep.store.tagged_store._SENTENCES_PER_BATCH", 2)
    monkeypatch.setattr(TaggedStore, "remove", lambda self: None)
    source = tmp_path / "rows.jsonl"
    text = "Ada Smith left London {} times."
    labels = [{"class": "ab"[n % 2], "split": SPLITS[n % 3]} for n in range(18)]
    rows = [{"user": f"user {n % 3}", "text": text.format(n), **label} for n, label in enumerate(labels)]
    source.write_text("\n".join(map(json.dumps, rows)))
    words = ["--source", str(source), "--text-column", "text", "--user-column", "user", "--tagger", "rules"]
    words += ["--target-column", "class", "--split-column", "split"]
    place.parent.mkdir(mode=0o700)
    place.mkdir(mode=0o700)
    assert main(["prepare", "jsonl", *words, "--out", str(place / "small")]) == 0
    assert {".small.partial", "train.sentences.spill", "00000000.arrow", "key"} & set(seen) >= {"00000000.arrow", "key"}
    assert (
        main(["corpus", "deidentify", str(place / "small"), "--out", str(place / "masked"), "--mode", "category"]) == 0
    )
    assert open_to_others(place / "small", place / "masked", place / ".small.tagged") == []
    cache = tmp_path / "cache"
    changes = {"task": "classification", "model__tune": "head", "corpus__feature_cache": str(cache)}
    simulation.run(configuration(place / "small", tmp_path / "run", **changes))
    assert [path.suffix for path in cache.iterdir()] == [".npy", ".npy"]
    assert open_to_others(cache) == []


@pytest.mark.system
def test_a_run_and_what_it_writes_meanwhile(tmp_path: Path) -> None:
    corpus, out = small_corpus(tmp_path / "corpus"), tmp_path / "runs" / "first"
    seen: list[str] = []

    def look(row: simulation.Row) -> None:
        seen.extend(path.name for path in out.rglob("*"))
        assert open_to_others(out.parent) == []
        if row["round"] == 2:
            raise KeyboardInterrupt

    changes = {"averaging__kind": "tail", "rounds": 3, **QUICK_TO_LOAD}
    with pytest.raises(KeyboardInterrupt):
        simulation.run(configuration(corpus, out, **changes), on_row=look)
    assert {"encoded", "tokens.npy", "ledger.jsonl", "latest.safetensors"} <= set(seen)
    for path in (out, *out.rglob("*")):  # as somebody made it
        path.chmod(0o777 if path.is_dir() else 0o666)
    simulation.resume(out)
    assert {"plots", "model", "result.json"} <= {path.name for path in out.iterdir()}
    assert open_to_others(corpus, out.parent) == []
    child = settings(corpus, tmp_path / "runs" / "second", seed=7, **{"model__name": str(out / "model")}, rounds=1)
    assert main(["run", "--quiet", *command_line(child)]) == 0
    assert (tmp_path / "runs" / "second" / "ancestors").is_dir()
    assert open_to_others(out.parent) == []


def test_blocks_of_several_threads_restore_the_first_umask(tmp_path: Path) -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with owner_only():
            inside.set()
            leave.wait()
            (tmp_path / "other").touch()

    with owner_only():
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait()
    leave.set()
    thread.join()
    assert stat.S_IMODE((tmp_path / "other").stat().st_mode) == 0o600


def test_a_stricter_umask_stays(tmp_path: Path) -> None:
    os.umask(0o177)
    with owner_only():
        (tmp_path / "file").touch()
        (tmp_path / "folder").mkdir()
    assert os.umask(0) == 0o177
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o600


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "outside").touch()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "outside")
    close_to_others(tmp_path / "folder")
    assert stat.S_IMODE((tmp_path / "outside").stat().st_mode) == 0o666
