"""Preparing and opening a corpus: what goes in comes out, whole or not at all, and damage is named."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fl_sim.data_prep import corpus_writer
from fl_sim.data_prep.corpus_writer import Corpus, write_corpus
from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.layout import SENTENCES
from fl_sim.data_prep.store.manifest import record_of

BASE = (
    Sentence("train", "ann", "Ann saw Bo.", (Mention(8, 10, "PERSON"),)),
    Sentence("train", "cy", "It rained.", ()),
    Sentence("train", "ann", "Bo's dog barked at BO!", (Mention(0, 2, "ORG"), Mention(19, 21, "PERSON"))),
    Sentence("test", "dee", "Oslo is far.", (Mention(0, 4, "GPE"),)),
)


def test_sentences_are_sorted_by_user_and_entities_merged_by_key(tmp_path: Path) -> None:
    corpus = write_corpus(BASE, tmp_path / "out", name="base")
    assert corpus.splits == ("train", "test")
    assert corpus.texts("train").to_pylist() == ["Ann saw Bo.", "Bo's dog barked at BO!", "It rained."]
    assert corpus.users("train").to_dict("list") == {"user": ["ann", "cy"], "sentences": [2, 1]}
    ownership = corpus.ownership("train")
    assert ownership.user_offsets.tolist() == [0, 2, 3]
    assert ownership.entity_offsets.tolist() == [0, 1, 2, 2]
    assert ownership.entity_ids.tolist() == [0, 0]
    entity = corpus.entities("train").iloc[0]
    assert (entity["entity"], list(entity["labels"]), entity["users"], entity["sentences"]) == (
        "bo",
        ["ORG", "PERSON"],
        1,
        2,
    )
    assert corpus.mentions("train").to_pydict() == {
        "sentence": [0, 1, 1],
        "start": [8, 0, 19],
        "end": [10, 2, 21],
        "label": ["PERSON", "ORG", "PERSON"],
    }
    assert corpus.held_out_split == "test"


def test_the_manifest_says_what_was_read_and_never_where(tmp_path: Path) -> None:
    source = tmp_path / "deep" / "raw.jsonl"
    source.parent.mkdir()
    source.write_text("{}", encoding="utf-8")
    sources = {source.name: record_of(source)}
    corpus = write_corpus(BASE, tmp_path / "out", name="base", sources=sources, settings={"k": 1})
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert list(manifest["sources"]) == ["raw.jsonl"]
    assert manifest["settings"] == {"k": 1, "identity": Identity().manifest_settings()}
    assert manifest["splits"]["train"] == {"users": 2, "sentences": 3, "entities": 1, "mentions": 3}
    assert {"fl-sim", "numpy", "pyarrow"} <= set(manifest["tools"])
    assert str(tmp_path) not in json.dumps(manifest)
    assert corpus.fingerprint == write_corpus(BASE, tmp_path / "again", name="other").fingerprint
    changed = (*BASE[:3], dataclasses.replace(BASE[3], text="Oslo is fan."))
    assert corpus.fingerprint != write_corpus(changed, tmp_path / "changed", name="base").fingerprint


def breaking_off(error: BaseException) -> Iterator[Sentence]:
    yield from BASE
    raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), CorpusError("line 7"), MemoryError()], ids=repr)
def test_an_interrupted_preparation_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        write_corpus(breaking_off(error), tmp_path / "new" / "out", name="base")
    assert list(tmp_path.iterdir()) == []


def test_a_taken_folder_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write_corpus(BASE, out, name="base")  # an empty folder may be filled
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(CorpusError, match="exists and is not empty"):
        write_corpus(breaking_off(AssertionError("read")), out, name="base")
    assert before == {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(CorpusError, match="exists and is not a folder"):
        write_corpus(BASE, out / "manifest.json", name="base")


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ((), "no sentence, so no user"),
        ((BASE[3],), "no 'train' split, only test"),
        ((BASE[0], BASE[2]), "one user; federated training needs at least two"),
        ((BASE[1], dataclasses.replace(BASE[1], user="eve")), "no entity at all"),
        ((*BASE, dataclasses.replace(BASE[0], split="../up")), "split name '../up' must be"),
    ],
)
def test_a_corpus_that_cannot_be_trained_on_is_refused(
    tmp_path: Path, kept: tuple[Sentence, ...], message: str
) -> None:
    with pytest.raises(CorpusError, match=message):
        write_corpus(kept, tmp_path / "out", name="base")
    assert list(tmp_path.iterdir()) == []


def test_sentences_of_users_that_come_and_go_are_sorted_in_small_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With batches of 7 rows and buckets of about 5, what is written is what is written in one piece."""
    rng = np.random.default_rng(0)
    drawn = [
        Sentence(
            "train",
            f"u{rng.integers(9)}",
            f"{n} Bo{rng.integers(20)}",
            (Mention(0, len(str(n)), "N"), Mention(len(str(n)), len(str(n)) + 4, "P")),
        )
        for n in range(100)
    ]
    whole = write_corpus(drawn, tmp_path / "whole", name="drawn")
    monkeypatch.setattr(corpus_writer, "_ROWS_PER_BATCH", 7)
    monkeypatch.setattr(corpus_writer, "_CHARACTERS_PER_BUCKET", 500)
    pieces = write_corpus(drawn, tmp_path / "pieces", name="drawn")
    assert pieces._read("train", "sentences", SENTENCES.names) == whole._read("train", "sentences", SENTENCES.names)
    for name in ("user_offsets", "entity_offsets", "entity_ids", "profile_offsets", "profile_sentences"):
        assert (whole.path / f"train.{name}.npy").read_bytes() == (pieces.path / f"train.{name}.npy").read_bytes()
    monkeypatch.setattr(corpus_writer, "_CHARACTERS_PER_BATCH", 3)
    assert write_corpus(sorted(drawn, key=lambda s: s.user), tmp_path / "sorted", name="drawn").texts(
        "train"
    ).to_pylist() == [s.text for s in sorted(drawn, key=lambda s: s.user)]


def test_a_damaged_index_is_named(prepared: Path) -> None:
    path = prepared / "train.entity_ids.npy"
    good = path.read_bytes()
    path.write_bytes(good[:-4] + b"\xff\xff\xff\x00")
    with pytest.raises(CorpusError, match="entity_ids go from 0 to 16777215, must lie in"):
        Corpus.open(prepared).ownership("train")
    path.write_bytes(b"x" * len(good))
    with pytest.raises(CorpusError, match=r"train\.entity_ids\.npy: not a readable array"):
        Corpus.open(prepared).ownership("train")
    np.save(path, np.zeros(1, dtype=np.int64))
    path.write_bytes(path.read_bytes()[: len(good)])
    with pytest.raises(CorpusError, match=r"must be a vector of int32|not a readable array"):
        Corpus.open(prepared).ownership("train")


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    return write_corpus(BASE, tmp_path / "out", name="base").path


def test_damaged_and_foreign_folders_are_named(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="no such folder"):
        Corpus.open(tmp_path / "absent")
    with pytest.raises(CorpusError, match=r"not a prepared corpus \(it has no manifest.json\)"):
        Corpus.open(tmp_path)
    data = prepared / "train.sentences.parquet"
    original = data.read_bytes()
    data.write_bytes(original[:-1])
    with pytest.raises(CorpusError, match="bytes, the manifest says"):
        Corpus.open(prepared)
    data.write_bytes(original[:200] + bytes(len(original) - 200))
    corpus = Corpus.open(prepared)
    with pytest.raises(CorpusError, match="checksum differs"):
        Corpus.open(prepared, verify=True)
    with pytest.raises(CorpusError, match="not a readable Parquet file"):
        corpus.texts("train")
    data.unlink()
    with pytest.raises(CorpusError, match="missing; the manifest lists it"):
        Corpus.open(prepared)
    (prepared / "manifest.json").write_bytes(b"\xff{")
    with pytest.raises(CorpusError, match="not a manifest of this version"):
        Corpus.open(prepared)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format_version=3), "not a manifest of this version: format_version"),
        (lambda m: m.update(surprise=1), "surprise"),
        (lambda m: m.pop("fingerprint"), "fingerprint"),
        (lambda m: m.update(fingerprint="0" * 64), "contradicts itself"),
        (lambda m: m["files"].pop("test.users.parquet"), "contradicts itself"),
        (lambda m: m["files"].update({"../x": {"bytes": 0, "sha256": "0" * 64}}), "contradicts itself"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(prepared: Path, change: object, message: str) -> None:
    path = prepared / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)  # type: ignore[operator]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(CorpusError, match=message):
        Corpus.open(prepared)


def test_an_unknown_split_and_a_corpus_without_held_out_users(tmp_path: Path) -> None:
    corpus = write_corpus(BASE[:3], tmp_path / "out", name="base")
    with pytest.raises(CorpusError, match="no split 'test', only train"):
        corpus.texts("test")
    with pytest.raises(CorpusError, match=r"no held-out split \(validation or test\), only train"):
        _ = corpus.held_out_split
