"""Bad text is survived and counted, and whatever is indexed afterwards is what the text says."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl_sim.cli.main import main
from fl_sim.data_prep.prepare import prepare
from fl_sim.data_prep.readers import cleaning
from fl_sim.data_prep.readers.cleaning import Note, Preprocessing, Reading
from fl_sim.data_prep.readers.tables import JsonlReader
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus

KEPT = [
    "שלום \u200fעולם\u200e",  # right to left, with direction marks
    "👩‍💻👨‍👩‍👧‍👦🏳️‍🌈 ok",  # emoji of several code points
    "Z̡̢̛͉̟a͟l̤͢g͈o",  # combining marks
    "tab\there\nand there",
    "\ufeffmark \ufffe \ue000 \u2028 end",
]


def finished(text: str, *mentions: Mention) -> tuple[list[Sentence], Counter[str]]:
    reading = Reading()
    return list(reading.clean([Sentence("train", "u", text, mentions)])), reading.notes


@pytest.mark.parametrize("text", KEPT)
def test_unusual_text_is_kept_as_it_is(text: str) -> None:
    sentences, notes = finished(text)
    assert [sentence.text for sentence in sentences] == [text]
    assert notes == {}


def test_control_characters_and_surrogates_are_replaced_one_by_one() -> None:
    sentences, notes = finished("A\x00da\x9b \ud800Byron\x1b[0m", Mention(7, 12, "PER"), Mention(1, 2, "X"))
    assert sentences[0].text == "A da  \ufffdByron [0m"
    assert [sentences[0].surface(mention) for mention in sentences[0].mentions] == ["Byron"]
    assert notes == {Note.CONTROL_CHARACTERS: 1, Note.LONE_SURROGATES: 1, Note.BLANK_ENTITIES: 1}


def test_which_characters_are_replaced() -> None:
    for code in (*range(0x180), *range(0x2000, 0x2070), *range(0xD7F0, 0xE010), 0xFEFF, 0xFFFE, 0x1F469):
        text = f"a{chr(code)}b"
        sentences, _ = finished(text)
        assert [sentence.text for sentence in sentences] == ["".join(map(_clean, text))]


@pytest.mark.parametrize("text", ["", " \n", "\x00\x01", "\u3000"])
def test_blank_texts_are_dropped(text: str) -> None:
    sentences, notes = finished(text)
    assert sentences == []
    assert notes[Note.BLANK_TEXTS] == 1


@given(
    st.text(st.sampled_from("ab \n\u0301\u200d👩é"), min_size=1, max_size=600),
    st.lists(st.tuples(st.integers(0, 600), st.integers(1, 40)), max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_long_sentences_are_cut_at_white_space_and_never_in_an_entity(text: str, places: list[tuple[int, int]]) -> None:
    mentions = tuple(
        Mention(start, min(start + length, len(text)), "X")
        for start, length in places
        if text[start : start + length].strip()
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaning, "MAX_CHARACTERS", 100)
        sentences, notes = finished(text, *mentions)
    surfaces = [text[m.start : m.end].strip() for m in mentions]
    assert sorted(s.surface(m).strip() for s in sentences for m in s.mentions) == sorted(surfaces)
    assert "".join("".join(s.text for s in sentences).split()) == "".join(text.split())
    assert all(len(s.text) <= 100 or s.mentions for s in sentences)
    assert notes[Note.LONG_SENTENCES] == (len(text) > 100 and bool(text.strip()))


BAD_ROWS = [
    {"id": 1, "user": "a", "text": "Ann\x00 slept in Oslo."},
    {"id": 1, "user": "a", "text": "Again."},
    {"id": 2, "user": "", "text": "Nobody's."},
    {"id": 3, "user": None, "text": "Nobody's."},
    {"id": 4, "user": "b\ud800", "text": "Bo woke \udfff up in Oslo."},
    {"id": 5, "user": "b", "text": None},
    {"id": None, "user": "b", "text": "x" * 100_000},
    {"id": None, "user": "b", "text": "\u202eשלום Bo\u202c 👩‍💻"},
]


def test_bad_rows_end_in_the_manifest_and_on_the_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "out"
    source.write_text("".join(json.dumps(row) + "\n" for row in BAD_ROWS))
    arguments = ["jsonl", "--source", str(source), "--text-column", "text", "--user-column", "user", "--out", str(out)]
    chosen = ["--id-column", "id", "--test-fraction", "0", "--tagger", "rules"]
    assert main(["prepare", *arguments, *chosen]) == 0
    shown = capsys.readouterr().out
    corpus = Corpus.open(out)
    assert corpus.manifest.notes == {
        Note.BLANK_TEXTS: 1,
        Note.CONTROL_CHARACTERS: 1,
        Note.LONE_SURROGATES: 2,
        Note.LONG_SENTENCES: 1,
        Note.REPEATED_IDS: 1,
        Note.ROWS_WITHOUT_USER: 2,
    }
    assert "survived: 2 rows without a user dropped" in shown
    assert set(corpus.users("train")["user"]) == {"a", "b\ufffd", "b"}
    texts = corpus.texts("train").to_pylist()
    assert [text for text in texts if not text.startswith("x")] == [
        "Ann  slept in Oslo.",
        "Bo woke \ufffd up in Oslo.",
        "\u202eשלום Bo\u202c 👩‍💻",
    ]


@st.composite
def marked_rows(draw: st.DrawFn) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = [
        {"user": user, "text": "Ann left.", "ents": [{"start": 0, "end": 3, "label": "PER"}]} for user in "ab"
    ]
    alphabet = st.one_of(st.sampled_from("aB .!?\n\x00\x9f\ud800\u200d\u0301é👩א،'’İΣ"), st.characters())
    for _ in range(draw(st.integers(1, 4))):
        text = draw(st.text(alphabet, max_size=250))
        places = st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))
        spans = {tuple(sorted(place)) for place in draw(st.lists(places, max_size=4))}
        ents = [{"start": a, "end": b, "label": "X"} for a, b in sorted(spans) if text[a:b].strip()]
        rows.append({"user": draw(st.sampled_from("abc")), "text": text, "ents": ents})
    return rows


@pytest.mark.nightly
@given(marked_rows(), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_indexed_is_what_the_text_says(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]], cut: bool, preprocess: bool
) -> None:
    """Through reading, cleaning, cutting, preprocessing, writing and opening."""
    folder = tmp_path_factory.mktemp("round")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    reader = JsonlReader(
        source=folder / "rows.jsonl", text_column="text", user_column="user", entities_column="ents",
        test_fraction=0.0, split_sentences=cut,
    )  # fmt: skip
    chosen = Preprocessing.of_paper() if preprocess else Preprocessing()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaning, "MAX_CHARACTERS", 100)
        corpus = prepare(reader.read().with_preprocessing(chosen), folder / "out").corpus
    texts = corpus.texts("train").to_pylist()
    found = Counter(
        texts[row["sentence"]][row["start"] : row["end"]].strip() for row in corpus.mentions("train").to_pylist()
    )
    expected: Counter[str] = Counter()
    for row in rows:
        for ent in row["ents"]:  # type: ignore[attr-defined]
            surface = "".join(map(_clean, str(row["text"])[ent["start"] : ent["end"]]))
            expected[chosen.text(surface).strip()] += 1
    del expected[""]
    assert found == expected


def _clean(character: str) -> str:
    """What the module's table says, in other words."""
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return " " if (code < 32 and character not in "\t\n\r") or 127 <= code < 160 else character
