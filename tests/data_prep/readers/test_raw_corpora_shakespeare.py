"""Shakespeare by speaker: users qualified by their play, and what may be held out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fl_sim.data_prep.readers.cleaning import Note, Reading
from fl_sim.data_prep.readers.raw_corpora import ShakespeareOptions, read_shakespeare, shakespeare_file
from fl_sim.data_prep.records import CorpusError

SPEECHES = [
    {"play": "Hamlet", "user": "FIRST CLOWN", "text": "Is she to be\nburied? I tell thee."},
    {"play": "Twelfth Night", "user": "FIRST CLOWN", "text": "Come away."},
    {"user": "ALL", "text": "Speak."},
    {"user": " ", "text": "Exeunt."},
]


def write(folder: Path, speeches: list[dict[str, str]]) -> Path:
    path = folder / "plays.jsonl"
    path.write_text("".join(json.dumps(speech) + "\n" for speech in speeches), encoding="utf-8")
    return path


def test_speakers_are_users_of_their_play(tmp_path: Path) -> None:
    reading = Reading()
    sentences = list(read_shakespeare(write(tmp_path, SPEECHES), ShakespeareOptions(test_fraction=0.0), reading))
    assert [(s.user, s.text, s.document) for s in sentences] == [
        ("Hamlet: FIRST CLOWN", "Is she to be\nburied?", "speech 1"),
        ("Hamlet: FIRST CLOWN", "I tell thee.", "speech 1"),
        ("Twelfth Night: FIRST CLOWN", "Come away.", "speech 2"),
        ("ALL", "Speak.", "speech 3"),
    ]
    assert reading.notes == {Note.ROWS_WITHOUT_USER: 1}


@pytest.mark.parametrize(("unit", "shared"), [("speeches", True), ("speakers", False)])
def test_speeches_or_speakers_are_held_out(unit: str, shared: bool, tmp_path: Path) -> None:
    speeches = [{"user": f"S{number % 20}", "text": f"Line {number}. Again."} for number in range(600)]
    sentences = list(read_shakespeare(write(tmp_path, speeches), ShakespeareOptions(unit, 0.2)))
    users = {split: {s.user for s in sentences if s.split == split} for split in ("train", "test")}
    assert (not users["train"].isdisjoint(users["test"])) == shared
    assert 0.05 < sum(s.split == "test" for s in sentences) / len(sentences) < 0.45
    splits_of_speeches = {(s.document, s.split) for s in sentences}
    assert len(splits_of_speeches) == 600


def test_one_edition_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"one edition must be named .*; found none"):
        shakespeare_file(tmp_path)
    path = write(tmp_path, SPEECHES)
    assert shakespeare_file(tmp_path) == path
    (tmp_path / "more.jsonl.xz").touch()
    with pytest.raises(CorpusError, match=r"found more\.jsonl\.xz, plays\.jsonl"):
        shakespeare_file(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [(("lines",), "--held-out 'lines' must be one of"), (("speeches", 1.0), "--test-fraction 1.0 must lie")],
)
def test_settings_that_are_not_allowed(settings: tuple[object, ...], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        ShakespeareOptions(*settings)  # type: ignore[arg-type]


def test_bad_speeches_are_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="line 1: user, text and play must be text"):
        list(read_shakespeare(write(tmp_path, [{"user": "A", "text": 4}])))  # type: ignore[list-item]
    with pytest.raises(CorpusError, match="line 1: no column 'user'"):
        list(read_shakespeare(write(tmp_path, [{"text": "A"}])))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("edition", "users", "notes"),
    [
        ("nltk_8plays_by_speaker.jsonl.xz", 306, {Note.ROWS_WITHOUT_USER: 1}),  # a prologue that nobody speaks
        ("tiny_by_speaker.jsonl.xz", 299, {Note.BLANK_TEXTS: 125}),
    ],
)
def test_counts_of_the_real_editions(edition: str, users: int, notes: dict[str, int], shared_data: Path) -> None:
    reading = Reading()
    sentences = list(read_shakespeare(shared_data / "users_shakespeare" / edition, None, reading))
    assert (len({sentence.user for sentence in sentences}), reading.notes) == (users, notes)
