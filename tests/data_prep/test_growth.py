"""A corpus that grows: what was there stays to the byte, ids go on, and every earlier state can be opened."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fl_sim.data_prep.corpus_writer import append_corpus, write_corpus
from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus


def says(
    user: str, text: str, *names: str, split: str = "train", label: str = "PERSON", target: str | None = None
) -> Sentence:
    mentions = tuple(Mention(text.index(name), text.index(name) + len(name), label) for name in names)
    return Sentence(split, user, text, mentions, target)


BEFORE = (
    says("ann", "Bo is here.", "Bo", target="news"),
    says("cy", "Rain."),
    says("ann", "Oslo and Bo.", "Oslo", "Bo"),
    says("dee", "Far Oslo.", "Oslo", split="test"),
)
LATER = (
    says("eve", "Bo met Zoe.", "Bo", "Zoe", label="NAME", target="art"),
    says("ann", "Zoe again.", "Zoe"),
    says("cy", "More rain."),
    says("ann", "Nothing."),
    says("fay", "Held out Una.", "Una", split="public"),
)
LAST = (says("cy", "Una in Oslo.", "Una", "Oslo", target="news"),)


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
    assert entities["labels"].map(list).tolist() == [["NAME", "PERSON"], ["PERSON"], ["NAME", "PERSON"], ["PERSON"]]
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
    for bad in (iter([]), (says("eve", "Hi.", split="../up"),)):
        with pytest.raises(CorpusError, match=r"no sentence to append|split name"):
            append_corpus(corpus, bad, joined_at=2, name="bad")
    with pytest.raises(CorpusError, match="entities would get another identity"):
        append_corpus(corpus, LATER, joined_at=2, name="bad", identity=Identity(steps=("case",)))
    assert contents(corpus.path) == before
    with pytest.raises(CorpusError, match=r"user 'dee' is in split test of .* and would be in split train"):
        append_corpus(corpus, [says("dee", "Hello.")], joined_at=2, name="bad")
    append_corpus(corpus, LATER, joined_at=7, name="later")
    with pytest.raises(CorpusError, match="--joined-at 6 must be at least 7"):
        append_corpus(Corpus.open(corpus.path), LAST, joined_at=6, name="bad")


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
