"""AG News: both shapes of its files, classes, and users of the sizes that the paper draws."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fl_sim.data_prep.readers.cleaning import Note, Reading
from fl_sim.data_prep.readers.raw_corpora import AgNewsOptions, ag_news_files, read_ag_news, users_of_rows
from fl_sim.data_prep.records import CorpusError

ORIGINAL = '"3","Oil up","Oil rose ""sharply"". It fell."\n"1","Vote","Chad voted."\n"2","","A goal."\n'
MERGED = (
    "class_index,title,description,fields,source\n"
    '3,Oil up,"Oil rose ""sharply"". It fell.",full,a\n'
    "1,,Vote Chad voted.,joined,b\n"
    "2,,A goal.,desc,c\n"
)


def write(folder: Path, text: str, name: str = "train.csv") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("content", [ORIGINAL, MERGED], ids=["original", "merged"])
def test_both_shapes_read_alike(content: str, tmp_path: Path) -> None:
    sentences = list(read_ag_news(write(tmp_path, content)))
    assert [(sentence.text, sentence.target) for sentence in sentences] == [
        ('Oil up Oil rose "sharply". It fell.', "Business"),
        ("Vote Chad voted.", "World"),
        ("A goal.", "Sports"),
    ]
    assert {sentence.split for sentence in sentences} == {"train"}
    assert [sentence.document for sentence in sentences] == ["row 1", "row 2", "row 3"]


@pytest.mark.parametrize(
    ("text", "content", "kept", "dropped"),
    [
        ("description", ORIGINAL, ['Oil rose "sharply". It fell.', "Chad voted.", "A goal."], 0),
        ("description", MERGED, ['Oil rose "sharply". It fell.', "A goal."], 1),
        ("title", ORIGINAL, ["Oil up", "Vote"], 1),
        ("title", MERGED, ["Oil up"], 2),
    ],
)
def test_rows_without_the_text_asked_for_are_counted(
    text: str, content: str, kept: list[str], dropped: int, tmp_path: Path
) -> None:
    reading = Reading()
    sentences = list(read_ag_news(write(tmp_path, content), AgNewsOptions(text=text), reading))
    assert [sentence.text for sentence in sentences] == kept
    assert reading.notes[Note.ROWS_WITHOUT_THAT_FIELD] == dropped


def test_rows_may_be_cut_into_sentences_that_keep_class_and_user(tmp_path: Path) -> None:
    sentences = list(read_ag_news(write(tmp_path, ORIGINAL), AgNewsOptions(split_sentences=True)))
    assert [sentence.text for sentence in sentences[:2]] == ['Oil up Oil rose "sharply".', "It fell."]
    assert len({(sentence.user, sentence.target, sentence.document) for sentence in sentences[:2]}) == 1


def test_users_have_the_sizes_of_the_paper() -> None:
    users = users_of_rows(112_000, np.random.default_rng(0))
    sizes = np.bincount(users)
    assert len(users) == 112_000
    assert abs(len(sizes) - 112_000 / 15) < 5 * 2 * np.sqrt(112_000 / 15) / 15
    assert abs(sizes[:-1].mean() - 15) < 0.1
    assert abs(sizes[:-1].std() - 2) < 0.1
    assert sizes.min() >= 1
    assert abs(np.corrcoef(users, np.arange(len(users)))[0, 1]) < 0.02  # rows of a user stand anywhere


def test_the_division_depends_on_the_seed_alone(tmp_path: Path) -> None:
    write(tmp_path, '"1","a","b"\n' * 100)
    write(tmp_path, '"1","a","b"\n' * 100, "test.csv")

    def users(seed: int) -> list[str]:
        return [sentence.user for sentence in read_ag_news(tmp_path, AgNewsOptions(seed=seed))]

    assert users(0) == users(0) != users(1)
    train, test = users(0)[:100], users(0)[100:]
    assert [user.replace("train", "test") for user in train] != test
    assert set(train).isdisjoint(test)


def test_fewer_users_are_the_first_of_all(tmp_path: Path) -> None:
    write(tmp_path, "".join(f'"1","a","{number}"\n' for number in range(200)))
    everybody = {s.text: s.user for s in read_ag_news(tmp_path)}
    few = {s.text: s.user for s in read_ag_news(tmp_path, AgNewsOptions(max_users=3))}
    assert set(few.values()) == {"train-00001", "train-00002", "train-00003"}
    assert few == {text: user for text, user in everybody.items() if user in few.values()}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('"5","a","b"\n', "line 1: class '5' must be one of 1, 2, 3, 4"),
        ('"1","a"\n', "line 1: 2 columns, must be 3"),
        ('"1","a","b\n', "line 1: unexpected end of data"),
        (MERGED + "1,2\n", "line 5: 2 columns, must be 5"),
    ],
)
def test_bad_rows_are_named(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=message):
        list(read_ag_news(write(tmp_path, content)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"text": "body"}, "--text 'body' must be one of"),
        ({"max_users": 0}, "--max-users 0 must be"),
        ({"seed": -1}, "--seed -1 must not"),
    ],
)
def test_settings_that_are_not_allowed(settings: dict[str, object], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        AgNewsOptions(**settings)  # type: ignore[arg-type]


def test_files_are_found_by_name(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no train\.csv"):
        ag_news_files(tmp_path)
    for name in ("train.csv.xz", "test.csv", "classes.txt"):
        (tmp_path / name).touch()
    assert {split: path.name for split, path in ag_news_files(tmp_path).items()} == {
        "train": "train.csv.xz",
        "test": "test.csv",
    }
    assert list(ag_news_files(tmp_path / "test.csv")) == ["test"]


@pytest.mark.nightly
def test_counts_of_the_real_files(shared_data: Path) -> None:
    sentences = list(read_ag_news(shared_data / "ag_news"))
    assert Counter(sentence.split for sentence in sentences) == {"train": 70_927, "test": 7_600}
    assert Counter(sentence.target for sentence in sentences if sentence.split == "train") == {
        "World": 17_688, "Sports": 17_727, "Business": 17_781, "Sci/Tech": 17_731,
    }  # fmt: skip
