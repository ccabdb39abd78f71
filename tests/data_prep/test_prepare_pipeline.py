"""Preparing the same twice, something else, and with interruptions: nothing is done twice, nothing is mixed up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fl_sim.data_prep import prepare as pipeline
from fl_sim.data_prep.canaries import CanarySettings
from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.prepare import append, prepare
from fl_sim.data_prep.readers.in_memory import read_in_memory
from fl_sim.data_prep.readers.reader import RawCorpus
from fl_sim.data_prep.readers.tables import JsonlReader, TableColumns
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store import tagged_store
from fl_sim.data_prep.store.atomic import folder_appearing_at
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.tagged_store import TaggedStore
from fl_sim.data_prep.taggers.tagger import Marking
from fl_sim.data_prep.taggers.tagger_registry import make_marking


def gold(source: Path, **settings: Any) -> RawCorpus:
    columns = {"text_column": "text", "user_column": "user", "entities_column": "ents"}
    return JsonlReader(source=source, **{**columns, "split_sentences": False, "test_fraction": 0.0, **settings}).read()


def row(user: int, number: int) -> str:
    name = f"Bo{number % 7} Zed"
    entity = {"start": 5, "end": 5 + len(name), "label": "PERSON"}
    return json.dumps({"user": f"u{user}", "text": f"I met {name} and {number} others."[1:], "ents": [entity]})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "messages.jsonl"
    path.write_text("\n".join(row(number % 5, number) for number in range(40)), encoding="utf-8")
    return path


class CountingTagger:
    """Marks the first word of every text, and counts; ``stop_after`` so many it fails, as if it were killed."""

    labels = frozenset({"FIRST"})

    def __init__(self, version: str = "1", stop_after: int | None = None) -> None:
        self.version, self.stop_after, self.seen = version, stop_after, 0

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        for text in texts:
            if self.seen == self.stop_after:
                raise KeyboardInterrupt
            self.seen += 1
            yield (Mention(0, len(text.split()[0]), "FIRST"),)

    def describe(self) -> dict[str, str]:
        return {"tagger": "counting", "version": self.version}


def prepared(source: Path, out: Path, tagger: CountingTagger) -> pipeline.PreparedCorpus:
    return prepare(gold(source, entities_column=None), out, marking=Marking(False, tagger))


def never(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
    raise AssertionError("something was read")


# The same again, and something else


def test_the_same_again_reads_nothing(source: Path, tmp_path: Path) -> None:
    first = prepare(gold(source), tmp_path / "out")
    assert not first.cached
    again = prepare(gold(source), tmp_path / "out", watch=never)
    assert again.cached
    assert again.corpus.fingerprint == first.corpus.fingerprint
    moved = source.rename(tmp_path / "deeper.jsonl").rename(source)
    assert prepare(gold(moved), tmp_path / "out", watch=never).cached


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda raw, how: how.update(identity=Identity(steps=("case",))), "settings identity"),
        (lambda raw, how: how.update(canaries=CanarySettings(2)), "settings canaries: nothing then"),
        (lambda raw, how: how.update(marking=make_marking("rules", has_gold=True)), 'tagger: "gold" then, "rules"'),
        (lambda raw, how: how.update(marking=make_marking(has_gold=True, entities="org")), "tagger entities"),
        (lambda raw, how: raw.update(settings={**raw["settings"], "seed": 7}), "settings seed: 0 then, 7 now"),
        (lambda raw, how: raw.update(tools=("pydantic",)), "tools pydantic: nothing then"),
    ],
)  # fmt: skip
def test_any_difference_is_named_and_nothing_is_touched(
    change: Callable[[dict[str, object], dict[str, object]], None], named: str, source: Path, tmp_path: Path
) -> None:
    raw = gold(source)
    before = prepare(raw, tmp_path / "out").corpus.fingerprint
    fields: dict[str, object] = {name: getattr(raw, name) for name in raw.__dataclass_fields__}
    how: dict[str, object] = {}
    change(fields, how)
    with pytest.raises(CorpusError, match=f"holds another corpus .*{named}"):
        prepare(RawCorpus(**fields), tmp_path / "out", watch=never, **how)  # type: ignore[arg-type]
    assert Corpus.open(tmp_path / "out", verify=True).fingerprint == before


def test_a_changed_source_is_noticed_even_if_its_size_and_time_are_the_same(source: Path, tmp_path: Path) -> None:
    prepare(gold(source), tmp_path / "out")
    times = source.stat()
    source.write_text(source.read_text().replace("Bo1", "Bo8"), encoding="utf-8")
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(CorpusError, match=r"sources messages.jsonl: [\d,]+ bytes with checksum .* then, .* now"):
        prepare(gold(source), tmp_path / "out", watch=never)


def test_a_source_that_changes_while_it_is_read_is_refused(source: Path, tmp_path: Path) -> None:
    def changing(sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        yield from sentences if source.open("a").write("\n") else ()

    with pytest.raises(CorpusError, match="changed while it was read"):
        prepare(gold(source), tmp_path / "out", watch=changing)
    assert not (tmp_path / "out").exists()


def test_overwrite_replaces_a_corpus_when_the_new_one_is_finished_and_nothing_else(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = prepare(gold(source), out).corpus
    other = gold(source, test_fraction=0.4, seed=1)
    with pytest.raises(ZeroDivisionError):
        prepare(other, out, overwrite=True, watch=lambda sentences: (1 // 0 for _ in sentences))
    assert Corpus.open(out, verify=True).fingerprint == first.fingerprint
    assert prepare(gold(source), out, overwrite=True, watch=never).cached
    second = prepare(other, out, overwrite=True).corpus
    assert set(second.splits) == {"train", "test"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["messages.jsonl", "out"]
    (out / "train.users.parquet").unlink()
    with pytest.raises(CorpusError, match="missing") as caught:
        prepare(other, out)
    assert caught.value.__notes__ == ["`overwrite` replaces it"]
    assert prepare(other, out, overwrite=True).corpus.fingerprint == second.fingerprint
    foreign = tmp_path / "mine"
    foreign.mkdir()
    (foreign / "letter").touch()
    with pytest.raises(CorpusError, match="exists and is not empty"):
        prepare(other, foreign, overwrite=True)
    out.rename(tmp_path / ".out.replaced")  # as a power cut between the two renames would leave it
    assert prepare(other, out, watch=never).cached
    shutil.copytree(out, tmp_path / ".out.replaced")  # as a kill after both renames would leave it
    (tmp_path / ".out.replaced" / "manifest.json").unlink()
    assert prepare(other, out, watch=never).cached
    assert sorted(path.name for path in tmp_path.iterdir()) == ["messages.jsonl", "mine", "out"]


def test_overwrite_does_not_replace_a_link(source: Path, tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    made = prepare(gold(source), real).corpus
    link.symlink_to(real)
    assert prepare(gold(source), link, watch=never).cached
    with pytest.raises(CorpusError, match="a link, which is not replaced"):
        prepare(gold(source, seed=1, test_fraction=0.4), link, overwrite=True)
    assert (link.readlink(), Corpus.open(link, verify=True).fingerprint) == (real, made.fingerprint)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "messages.jsonl", "real"]


def test_appending_the_same_twice_does_nothing(source: Path, tmp_path: Path) -> None:
    later = tmp_path / "later.jsonl"
    later.write_text("\n".join(row(number, number) for number in range(3, 9)), encoding="utf-8")
    base = prepare(gold(source), tmp_path / "out").corpus
    grown = append(gold(later), tmp_path / "out", joined_at=9)
    assert not grown.cached
    assert [part.manifest.joined_at for part in grown.corpus.parts] == [1, 9]
    for again in (later, source):
        found = append(gold(again), tmp_path / "out", joined_at=9, watch=never)
        assert (found.cached, found.corpus.fingerprint) == (True, grown.corpus.fingerprint)
    assert Corpus.open(tmp_path / "out", fingerprint=base.fingerprint).manifest == base.manifest
    with pytest.raises(CorpusError, match=r"not a prepared corpus|no such folder"):
        append(gold(later), tmp_path / "absent", joined_at=2)


def test_appending_the_same_table_twice_does_nothing(source: Path, tmp_path: Path) -> None:
    columns = TableColumns(text_column="text", user_column="user", entities_column="ents", test_fraction=0.0)
    table = pd.read_json(source, lines=True)
    for rows, parts in ((table[:30], 1), (table[30:], 2), (table[30:], 2), (table[:30], 2), (table[29:], 3)):
        raw = read_in_memory(rows, columns, "posts")
        made = append(raw, tmp_path / "out") if (tmp_path / "out").exists() else prepare(raw, tmp_path / "out")
        assert len(made.corpus.parts) == parts


# Interrupted


@pytest.mark.parametrize("batch", [1, 7, 40])
def test_what_was_tagged_is_not_tagged_again(
    batch: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tagged_store, "_SENTENCES_PER_BATCH", batch)
    whole = prepared(source, tmp_path / "whole", CountingTagger()).corpus.fingerprint
    with pytest.raises(KeyboardInterrupt) as caught:
        prepared(source, tmp_path / "out", CountingTagger(stop_after=30))
    kept = 30 - 30 % batch
    assert bool(kept) == any("the same command goes on" in note for note in getattr(caught.value, "__notes__", []))
    with pytest.raises(KeyboardInterrupt):
        prepared(source, tmp_path / "out", CountingTagger(stop_after=0))
    tagger = CountingTagger()
    done = prepared(source, tmp_path / "out", tagger)
    assert (done.reused, tagger.seen) == (kept, 40 - kept)
    assert done.corpus.fingerprint == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["messages.jsonl", "out", "whole"]


@pytest.mark.parametrize("damage", ["torn", "swap_names", "other tagger", "other source"])
def test_what_does_not_belong_is_thrown_away(
    damage: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tagged_store, "_SENTENCES_PER_BATCH", 10)
    with pytest.raises(KeyboardInterrupt):
        prepared(source, tmp_path / "out", CountingTagger(stop_after=35))
    files = sorted((tmp_path / ".out.tagged").glob("*.arrow"))
    assert len(files) == 3
    tagger, kept = CountingTagger(), 0
    if damage == "torn":
        files[1].write_bytes(files[1].read_bytes()[:-20])
        (tmp_path / ".out.tagged" / ".00000003.arrow.00aa11bb.tmp").write_bytes(b"half")
        kept = 10
    elif damage == "swap_names":
        shutil.copy(files[0], files[2])
        kept = 20
    elif damage == "other tagger":
        tagger = CountingTagger(version="2")
    else:
        source.write_text(source.read_text() + "\n" + row(1, 99), encoding="utf-8")
    done = prepared(source, tmp_path / "out", tagger)
    assert done.reused == kept
    assert tagger.seen == done.corpus.manifest.splits["train"].sentences - kept
    fresh = prepared(source, tmp_path / "fresh", CountingTagger(tagger.version))
    assert done.corpus.fingerprint == fresh.corpus.fingerprint


def test_replayed_sentences_keep_everything_but_their_mentions(tmp_path: Path) -> None:
    sentences = [
        Sentence("train", "u", "Bo is here.", (Mention(0, 2, "P"),), target="news"),
        Sentence("test", "v", "Rain", ()),
    ]
    TaggedStore(tmp_path / "store", "key")._write(sentences, 0)
    store = TaggedStore(tmp_path / "store", "key")
    bare = (replace(sentence, mentions=()) for sentence in sentences)
    assert list(store.marked(bare, lambda rest: rest)) == sentences
    assert store.reused == 2


SLOW = """
import sys, time
from pathlib import Path
from fl_sim.data_prep.store import tagged_store
from fl_sim.data_prep.prepare import prepare
from fl_sim.data_prep.readers.tables import JsonlReader
from fl_sim.data_prep.records import Mention
from fl_sim.data_prep.taggers.tagger import Marking

tagged_store._SENTENCES_PER_BATCH = 5

class Slow:
    labels = frozenset()
    def tag(self, texts):
        for text in texts:
            time.sleep(float(sys.argv[3]))
            yield (Mention(0, len(text.split()[0]), "FIRST"),)
    def describe(self):
        return {"tagger": "counting", "version": "1"}

raw = JsonlReader(
    source=Path(sys.argv[1]), text_column="text", user_column="user", split_sentences=False, test_fraction=0.0
).read()
done = prepare(raw, Path(sys.argv[2]), marking=Marking(False, Slow()))
print(done.reused, done.corpus.fingerprint)
"""


@pytest.mark.system
def test_killed_again_and_again_it_ends_where_it_would_have(tmp_path: Path) -> None:
    source, out, store = tmp_path / "messages.jsonl", tmp_path / "out", tmp_path / ".out.tagged"
    source.write_text("\n".join(row(number % 5, number) for number in range(150)), encoding="utf-8")
    whole = prepared(source, tmp_path / "whole", CountingTagger()).corpus.fingerprint
    kept = 0
    for patience in (0.01, 0.2, 0.05):
        process = subprocess.Popen([sys.executable, "-c", SLOW, str(source), str(out), "0.01"])
        while len(list(store.glob("*.arrow"))) <= kept and process.poll() is None:
            time.sleep(0.005)
        time.sleep(patience)
        process.kill()
        process.wait()
        kept = len(list(store.glob("*.arrow")))
    last = subprocess.run([sys.executable, "-c", SLOW, str(source), str(out), "0"], capture_output=True, text=True)
    assert last.returncode == 0, last.stderr
    reused, fingerprint = last.stdout.split()
    assert fingerprint == whole
    assert int(reused) == 5 * kept > 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["messages.jsonl", "out", "whole"]


def test_what_a_killed_writer_left_is_cleared_away(source: Path, tmp_path: Path) -> None:
    (tmp_path / ".out.partial" / "scratch").mkdir(parents=True)
    (tmp_path / ".out.partial" / "train.entity_ids.npy").write_bytes(b"half")
    corpus = prepare(gold(source), tmp_path / "out").corpus
    assert corpus.fingerprint == prepare(gold(source), tmp_path / "fresh").corpus.fingerprint
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fresh", "messages.jsonl", "out"]


def test_two_at_once_do_not_mix(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with folder_appearing_at(out) as folder:
        (folder / "mine").touch()
        with pytest.raises(CorpusError, match="another process is writing this folder"), folder_appearing_at(out):
            pass
    assert [path.name for path in out.iterdir()] == ["mine"]
    with folder_appearing_at(tmp_path / "next"):
        pass
