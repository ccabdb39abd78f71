"""CoNLL-2003 with exact offsets, and AG News with users of the sizes that the paper draws."""

from __future__ import annotations

import gzip
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_sim.data_prep.readers.cleaning import Note
from fl_sim.data_prep.readers.raw_corpora import AgNewsReader, Conll2003Reader, users_of_rows
from fl_sim.data_prep.readers.reader import BY_PLACE
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.textfiles import bytes_read

CONLL = """-DOCSTART- -X- O O

Nobody NN I-NP O
met VBD I-VP O
Ada NNP I-NP I-PER
Byron NNP I-NP I-PER
Leeds NNP I-NP B-PER
in IN I-PP O
Hull NNP I-NP I-LOC

-DOCSTART- -X- O O

Rain NN I-NP O
. . O O
"""


def conll(folder: Path) -> list[Sentence]:
    return list(Conll2003Reader(folder).read().sentences())


@pytest.mark.parametrize(
    ("name", "pack"), [("eng.train", bytes), ("eng.train.xz", lzma.compress), ("eng.train.gz", gzip.compress)]
)
def test_documents_are_users_and_offsets_are_exact(name: str, pack: Any, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(pack(CONLL.encode()))
    first, second = conll(tmp_path)
    assert (first.user, first.text) == ("train-0001", "Nobody met Ada Byron Leeds in Hull")
    assert (second.user, second.text, second.mentions) == ("train-0002", "Rain .", ())
    marked = [(first.surface(mention), mention.label) for mention in first.mentions]
    assert marked == [("Ada Byron", "PER"), ("Leeds", "PER"), ("Hull", "LOC")]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("-DOCSTART- -X- O O\n\nRain NN O\n", r"eng.train, line 3: 3 columns, must be 4"),
        ("-DOCSTART- -X- O O\n\nRain NN I-NP X-LOC\n", r"line 3: tag 'X-LOC' must be O, B-TYPE or I-TYPE"),
        ("Rain NN I-NP O\n", r"line 1: a sentence before the first -DOCSTART-"),
        ("", r"eng.train: the file is empty"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "eng.train").write_text(text)
    with pytest.raises(CorpusError, match=place):
        conll(tmp_path)


@pytest.mark.parametrize(("name", "pack"), [("eng.train.xz", lzma.compress), ("eng.train.gz", gzip.compress)])
def test_damaged_archives_are_named(tmp_path: Path, name: str, pack: Any) -> None:
    packed = pack(CONLL.encode() * 50)
    (tmp_path / name).write_bytes(packed[: len(packed) // 2])
    with pytest.raises(CorpusError, match=f"{name}: the compressed file is damaged"):
        conll(tmp_path)


def test_a_folder_without_eng_train_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no eng\.train"):
        conll(tmp_path)
    with pytest.raises(CorpusError, match="must be the folder"):
        conll(tmp_path / "absent")


@pytest.mark.nightly
def test_counts_of_the_shared_task(shared_data: Path) -> None:
    sentences = [s for s in conll(shared_data / "conll2003") if s.split == "train"]
    assert (len({s.user for s in sentences}), len(sentences)) == (946, 14_041)
    with_label = Counter(label for s in sentences for label in {m.label for m in s.mentions})
    assert with_label == {"ORG": 4_587, "LOC": 5_127, "PER": 4_373, "MISC": 2_698}
    assert sum(bool(s.mentions) for s in sentences) == 11_132


ORIGINAL = '"3","Oil up","Oil rose ""sharply"". It fell."\n"1","Vote","Chad voted."\n"2","","A goal."\n'
MERGED = (
    "class_index,title,description,fields,source\n"
    '3,Oil up,"Oil rose ""sharply"". It fell.",full,a\n'
    "1,,Vote Chad voted.,joined,b\n"
    "2,,A goal.,desc,c\n"
)


def ag(folder: Path, content: str | None = None, **settings: Any) -> list[Sentence]:
    if content is not None:
        (folder / "train.csv").write_text(content, encoding="utf-8")
    return list(AgNewsReader(folder, **settings).read().sentences())


@pytest.mark.parametrize("content", [ORIGINAL, MERGED], ids=["original", "merged"])
def test_both_shapes_read_alike(content: str, tmp_path: Path) -> None:
    assert [(s.split, s.text, s.target) for s in ag(tmp_path, content, text="title+description")] == [
        ("train", 'Oil up Oil rose "sharply". It fell.', "Business"),
        ("train", "Vote Chad voted.", "World"),
        ("train", "A goal.", "Sports"),
    ]


@pytest.mark.parametrize(
    ("text", "content", "kept", "dropped"),
    [
        ("description", ORIGINAL, ['Oil rose "sharply". It fell.', "Chad voted.", "A goal."], 0),
        ("description", MERGED, ['Oil rose "sharply". It fell.', "A goal."], 1),
        (None, ORIGINAL, ["Oil up", "Vote"], 1),
        ("title", MERGED, ["Oil up"], 2),
    ],
)
def test_rows_without_the_text_asked_for_are_counted(
    text: Any, content: str, kept: list[str], dropped: int, tmp_path: Path
) -> None:
    """Titles are the default."""
    (tmp_path / "train.csv").write_text(content, encoding="utf-8")
    raw = AgNewsReader(tmp_path, **({"text": text} if text else {})).read()
    assert [sentence.text for sentence in raw.sentences()] == kept
    assert raw.reading.notes[Note.ROWS_WITHOUT_THAT_FIELD] == dropped


def test_users_have_the_sizes_of_the_paper() -> None:
    users = users_of_rows(112_000, np.random.default_rng(0))
    sizes = np.bincount(users)
    assert len(users) == 112_000
    assert abs(len(sizes) - 112_000 / 15) < 5 * 2 * np.sqrt(112_000 / 15) / 15
    assert abs(sizes[:-1].mean() - 15) < 0.1
    assert abs(sizes[:-1].std() - 2) < 0.1
    assert sizes.min() >= 1
    assert abs(np.corrcoef(users, np.arange(len(users)))[0, 1]) < 0.02  # rows of a user stand anywhere


def test_progress_follows_the_rows_that_are_passed_on(tmp_path: Path) -> None:
    (path := tmp_path / "train.csv").write_text(ORIGINAL * 25, encoding="utf-8")
    corpus = AgNewsReader(tmp_path).read()
    read = [bytes_read(path) / path.stat().st_size for _ in corpus.sentences()]
    assert read == sorted(read)
    assert read[0] == 0.0, "although all rows are read before the first is passed on"
    assert read[-1] == pytest.approx(1.0, abs=0.05)


def test_the_division_depends_on_the_seed_alone_and_few_users_are_the_first_of_all(tmp_path: Path) -> None:
    rows = "".join(f'"1","{number}","a"\n' for number in range(200))
    (tmp_path / "test.csv").write_text(rows)
    everybody = {s.text: s.user for s in ag(tmp_path, rows) if s.split == "train"}
    assert everybody == {s.text: s.user for s in ag(tmp_path) if s.split == "train"}
    assert everybody != {s.text: s.user for s in ag(tmp_path, seed=1) if s.split == "train"}
    test = {s.text: s.user for s in ag(tmp_path) if s.split == "test"}
    assert test != {text: user.replace("train", "test") for text, user in everybody.items()}
    few = {s.text: s.user for s in ag(tmp_path, max_users=3) if s.split == "train"}
    assert set(few.values()) == {"train-00001", "train-00002", "train-00003"}
    assert few == {text: user for text, user in everybody.items() if user in few.values()}
    assert AgNewsReader(tmp_path).read().settings["warnings"] == [BY_PLACE]


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        ('"5","a","b"\n', {}, "line 1: class '5' must be one of 1, 2, 3, 4"),
        ('"1","a"\n', {}, "line 1: 2 columns, must be 3"),
        ('"1","a","b\n', {}, "line 1: unexpected end of data"),
        (MERGED + "1,2\n", {}, "line 5: 2 columns, must be 5"),
        (ORIGINAL, {"text": "body"}, r"`text` 'body' must be one of title, description, title\+description"),
        (ORIGINAL, {"max_users": 0}, "`max_users` 0 must be"),
        (ORIGINAL, {"seed": -1}, "`seed` -1 must not"),
        (None, {}, r"no train\.csv"),
    ],
)
def test_bad_rows_and_settings_are_named(content: str | None, settings: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=message):
        ag(tmp_path, content, **settings)


def test_files_are_found_by_name(tmp_path: Path) -> None:
    for name in ("train_partial.csv.xz", "test.csv", "classes.txt"):
        (tmp_path / name).touch()
    assert list(AgNewsReader(tmp_path).read().sources) == ["train_partial.csv.xz", "test.csv"]
    assert list(AgNewsReader(tmp_path / "test.csv").read().sources) == ["test.csv"]


@pytest.mark.nightly
def test_counts_of_the_real_files(shared_data: Path) -> None:
    assert Counter(sentence.split for sentence in ag(shared_data / "ag_news")) == {"train": 43_889, "test": 7_600}
    sentences = ag(shared_data / "ag_news", text="title+description")
    assert Counter(sentence.split for sentence in sentences) == {"train": 70_927, "test": 7_600}
    assert Counter(sentence.target for sentence in sentences if sentence.split == "train") == {
        "World": 17_688, "Sports": 17_727, "Business": 17_781, "Sci/Tech": 17_731,
    }  # fmt: skip
