"""Writing, appending, opening: what goes in comes out, whole or not at all; what was there stays; damage is named."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fl_sim.data_prep import corpus_writer
from fl_sim.data_prep.corpus_writer import append_corpus, write_corpus
from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.layout import SENTENCES
from fl_sim.data_prep.store.manifest import record_of
from tests.data_prep.marked import said

BASE = (
    said("Ann saw Bo.", ("Bo", "PERSON"), user="ann"),
    said("It rained.", user="cy"),
    said("Bo's dog barked at BO!", ("Bo", "ORG"), ("BO", "PERSON"), user="ann"),
    said("Oslo is far.", ("Oslo", "GPE"), user="dee", split="test"),
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
    assert (entity["entity"], list(entity["labels"])) == ("bo", ["ORG", "PERSON"])
    assert (entity["users"], entity["sentences"]) == (1, 2)
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
    names = [f"Bo{number}" for number in rng.integers(20, size=100)]
    drawn = [said(f"{n} {name}", str(n), name, user=f"u{rng.integers(9)}") for n, name in enumerate(names)]
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
        (lambda m: m["settings"].update(identity=3), r"manifest\.json: .*settings: .*identity is 3; allowed"),
        (lambda m: m["settings"].update(identity={"steps": []}), "identity is"),
        (lambda m: m["settings"].update(warnings=5), "warnings is 5"),
        (lambda m: m["settings"].update(warnings=[{}]), "warnings is"),
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


# Appended parts

BEFORE = (
    said("Bo is here.", "Bo", user="ann", target="news"),
    said("Rain.", user="cy"),
    said("Oslo and Bo.", "Oslo", "Bo", user="ann"),
    said("Far Oslo.", "Oslo", user="dee", split="test"),
)
LATER = (
    said("Bo met Zoe.", "Bo", "Zoe", user="eve", label="NAME", target="art"),
    said("Zoe again.", "Zoe", user="ann"),
    said("More rain.", user="cy"),
    said("Nothing.", user="ann"),
    said("Held out Una.", "Una", user="fay", split="public"),
)
LAST = (said("Una in Oslo.", "Una", "Oslo", user="cy", target="news"),)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def grown(tmp_path: Path) -> Corpus:
    corpus = write_corpus(BEFORE, tmp_path / "out", name="base")
    corpus = append_corpus(corpus, LATER, joined_at=31, name="later", tagger={"tagger": "rules"})
    return append_corpus(corpus, LAST, joined_at=61, name="last")


def test_ids_go_on_and_sentences_keep_their_users(grown: Corpus) -> None:
    assert grown.splits == ("train", "test", "public")
    assert grown.texts("train").to_pylist() == [
        "Bo is here.", "Oslo and Bo.", "Rain.",  # as they were
        "Zoe again.", "Nothing.", "More rain.", "Bo met Zoe.",
        "Una in Oslo.",
    ]  # fmt: skip
    assert grown.users("train").to_dict("list") == {"user": ["ann", "cy", "eve"], "sentences": [4, 3, 1]}
    ownership = grown.ownership("train")
    assert ownership.user_of_sentence.tolist() == [0, 0, 1, 0, 0, 1, 2, 1]
    sentences, counts = ownership.sentences_of(np.array([1, 0]))
    assert (sentences.tolist(), counts.tolist()) == ([2, 5, 7, 0, 1, 3, 4], [3, 4])
    entities = grown.entities("train")
    assert entities["entity"].tolist() == ["bo", "oslo", "zoe", "una"]
    assert entities["labels"].map(list).tolist() == [["NAME", "PER"], ["PER"], ["NAME", "PER"], ["PER"]]
    assert entities["users"].tolist() == [2, 2, 2, 1]
    assert entities["sentences"].tolist() == [3, 2, 2, 1]
    assert entities["max_per_user"].tolist() == [2, 1, 1, 1]
    assert grown.classes == ("news", "art")
    assert grown.targets("train").tolist() == [0, -1, -1, -1, -1, -1, 1, 0]
    assert [m["sentence"] for m in grown.mentions("train").to_pylist()] == [0, 1, 1, 3, 6, 6, 7, 7]
    assert grown.manifest.splits["train"].model_dump() == {"users": 3, "sentences": 8, "entities": 4, "mentions": 8}
    assert grown.users("public").to_dict("list") == {"user": ["fay"], "sentences": [1]}


def test_what_was_there_stays_to_the_byte_and_can_be_opened(tmp_path: Path) -> None:
    corpus = write_corpus(BEFORE, tmp_path / "out", name="base")
    states = [corpus]
    for number, sentences in enumerate((LATER, LAST), start=1):
        before = contents(corpus.path)
        states.append(append_corpus(states[-1], sentences, joined_at=30 * number, name="more"))
        after = contents(corpus.path)
        assert {name: after[name] for name in before} == before
        assert {name.split("/")[0] for name in set(after) - set(before)} == {f"append-000{number}"}
    assert len({state.fingerprint for state in states}) == 3
    for state in states:
        opened = Corpus.open(corpus.path, fingerprint=state.fingerprint, verify=True)
        assert opened == state
        assert opened.texts("train") == state.texts("train")
        assert opened.ownership("train").num_users == state.manifest.splits["train"].users
    assert Corpus.open(corpus.path, verify=True).fingerprint == states[-1].fingerprint
    with pytest.raises(CorpusError, match="has changed; it has no state with fingerprint 000000000000…"):
        Corpus.open(corpus.path, fingerprint="0" * 64)


def test_the_parts_say_when_they_joined_and_where_they_come_from(grown: Corpus) -> None:
    assert [part.manifest.joined_at for part in grown.parts] == [1, 31, 61]
    assert [part.manifest.name for part in grown.parts] == ["base", "later", "last"]
    assert [part.manifest.tagger["tagger"] for part in grown.parts] == ["gold", "rules", "gold"]
    added = grown.parts[1].manifest.splits["train"]
    assert added.model_dump() == {"users": 1, "sentences": 4, "entities": 1, "mentions": 3}


def test_an_interrupted_append_leaves_the_corpus_as_it_was(tmp_path: Path) -> None:
    corpus = write_corpus(BEFORE, tmp_path / "out", name="base")
    before = contents(corpus.path)
    for bad in (iter([]), (said("Hi.", user="eve", split="../up"),)):
        with pytest.raises(CorpusError, match=r"no sentence to append|split name"):
            append_corpus(corpus, bad, joined_at=2, name="bad")
    with pytest.raises(CorpusError, match="entities would get another identity"):
        append_corpus(corpus, LATER, joined_at=2, name="bad", identity=Identity(steps=("case",)))
    assert contents(corpus.path) == before
    with pytest.raises(CorpusError, match=r"user 'dee' is in split test of .* and would be in split train"):
        append_corpus(corpus, [said("Hello.", user="dee")], joined_at=2, name="bad")
    append_corpus(corpus, LATER, joined_at=7, name="later")
    with pytest.raises(CorpusError, match="`joined_at` 6 must be at least 7"):
        append_corpus(Corpus.open(corpus.path), LAST, joined_at=6, name="bad")


def test_a_split_may_be_called_as_a_part_is(tmp_path: Path) -> None:
    sentences = [*BEFORE, *(dataclasses.replace(one, split="append-2024", user=f"{one.user}'") for one in BEFORE)]
    corpus = write_corpus(sentences, tmp_path / "out", name="base")
    assert "append-2024" in corpus.splits
    assert len(append_corpus(corpus, LATER, joined_at=2, name="later").parts) == 2


def test_parts_that_do_not_follow_one_another_are_refused(grown: Corpus) -> None:
    with pytest.raises(CorpusError, match="is a part of another corpus"):
        Corpus.open(grown.parts[1].folder)
    part = grown.path / "append-0002" / "manifest.json"
    manifest = json.loads(part.read_text())
    part.write_text(json.dumps(manifest | {"follows": "0" * 64}))
    with pytest.raises(CorpusError, match="was not appended to the corpus"):
        Corpus.open(grown.path)
    part.write_text(json.dumps(manifest))
    (grown.path / "append-0001" / "train.users.parquet").unlink()
    with pytest.raises(CorpusError, match="missing; the manifest lists it"):
        Corpus.open(grown.path)
    (grown.path / "append-0001").rename(grown.path / "append-0003")
    with pytest.raises(CorpusError, match="append-0001 is missing"):
        Corpus.open(grown.path)
