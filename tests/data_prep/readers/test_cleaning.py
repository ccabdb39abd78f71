"""Bad text is survived, counted, cut and preprocessed, and every entity is still where the text says it."""

from __future__ import annotations

import itertools
import json
import string
import sys
import time
import unicodedata
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl_sim.cli.main import main
from fl_sim.data_prep.prepare import prepare
from fl_sim.data_prep.readers import cleaning
from fl_sim.data_prep.readers.cleaning import Note, Preprocessing, Reading, cut, sentence_bounds
from fl_sim.data_prep.readers.reader import RawCorpus
from fl_sim.data_prep.readers.tables import JsonlReader
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.taggers.tagger_registry import make_marking
from tests.data_prep.marked import marked

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


def same_words_and_mentions(parts: list[Sentence], whole: Sentence) -> bool:
    surfaces = [part.surface(mention).strip() for part in parts for mention in part.mentions]
    expected = [whole.surface(mention).strip() for mention in whole.mentions]
    words = "".join("".join(part.text for part in parts).split())
    return sorted(surfaces) == sorted(expected) and words == "".join(whole.text.split())


@given(marked(st.text(st.sampled_from("ab \n\u0301\u200d👩é"), min_size=1, max_size=600)))
@settings(max_examples=60, deadline=None)
def test_long_sentences_are_cut_at_white_space_and_never_in_an_entity(whole: Sentence) -> None:
    text = whole.text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaning, "MAX_CHARACTERS", 100)
        sentences, notes = finished(text, *whole.mentions)
    assert same_words_and_mentions(sentences, whole)
    assert all(len(s.text) <= 100 or s.mentions for s in sentences)
    assert notes[Note.LONG_SENTENCES] == (len(text) > 100 and bool(text.strip()))


BAD_ROWS = [
    {"id": 1, "user": "a", "text": "Ann\x00 slept in Oslo."},
    {"id": 1, "user": "a", "text": "Ann\x00 slept in Oslo."},
    {"id": 2, "user": "", "text": "Nobody's."},
    {"id": 3, "user": None, "text": "Nobody's."},
    {"id": 4, "user": "b\ud800", "text": "Bo woke \udfff up in Oslo."},
    {"id": 5, "user": "b", "text": None},
    {"id": None, "user": "b", "text": "x" * 100_000},
    {"id": None, "user": "b", "text": "\u202eשלום Bo\u202c 👩‍💻"},
]


def test_no_row_comes_in_where_a_user_and_an_entity_are_taken_out_of_the_source(tmp_path: Path) -> None:
    """As by an id whose message was edited. Rows that repeat another one are dropped."""

    def read(rows: list[dict[str, str]]) -> list[Sentence]:
        source = tmp_path / "rows.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        raw = JsonlReader(source=source, text_column="text", user_column="user", id_column="id").read()
        sentences = list(raw.sentences())
        assert raw.reading.notes[Note.REPEATED_IDS] == len(sentences) == len(rows) / 2
        return sentences

    messages = [("0", "Ann slept."), ("0", "She slept."), ("1", "Bo woke.")]
    rows = [{"user": user, "id": one, "text": text} for user in "ab" for one, text in messages] * 2
    without = read([row for row in rows if row["user"] != "a" and "Ann" not in row["text"]])
    assert without == [sentence for sentence in read(rows) if sentence.user != "a" and "Ann" not in sentence.text]


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
    for sentence in draw(st.lists(marked(st.text(alphabet, max_size=250)), min_size=1, max_size=4)):
        ents = [asdict(mention) for mention in sentence.mentions]
        rows.append({"user": draw(st.sampled_from("abc")), "text": sentence.text, "ents": ents})
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


# Cutting


def sentences_by_us(text: str) -> list[str]:
    return [text[start:end].strip() for start, end in sentence_bounds(text) if text[start:end].strip()]


def test_abbreviations_end_no_sentence_and_long_words_may() -> None:
    text = f"Mr. Ray of the U.S. left.  {'w' * 300}. No. Why?!"
    assert sentences_by_us(text) == ["Mr. Ray of the U.S. left.", f"{'w' * 300}.", "No.", "Why?!"]


@settings(deadline=None)
@given(st.text(st.sampled_from("aB. !?\n\u3002\u061f\u200d\u0301é\"'()"), max_size=40))
def test_bounds_follow_each_other_without_a_gap(text: str) -> None:
    bounds = sentence_bounds(text)
    assert [start for start, _ in bounds] == [0, *(end for _, end in bounds[:-1])]
    assert bounds[-1][1] == len(text)


@pytest.mark.parametrize("word", ["a", "!", ".", '"', "a.b", "http://a.b/", "(-)"])
def test_a_word_of_a_million_characters_takes_no_time(word: str) -> None:
    began = time.process_time()
    assert len(sentences_by_us(word * (1_000_000 // len(word)) + " Next one.")) <= 2
    assert time.process_time() - began < 5


@given(marked(st.text("ab .\n", min_size=1, max_size=30)), st.sets(st.integers(0, 30), max_size=4))
@settings(max_examples=100, deadline=None)
def test_cutting_loses_no_mention_and_no_word(row: Sentence, places: set[int]) -> None:
    cuts = sorted({min(place, len(row.text)) for place in places} | {0, len(row.text)})
    parts = list(cut(row, itertools.pairwise(cuts)))
    assert same_words_and_mentions(parts, row)
    assert all(part.text == part.text.strip() != "" for part in parts)
    assert all(part.target == "class" for part in parts)


def test_many_entities_in_a_long_text_take_linear_time() -> None:
    text = "Ada left. " * 20_000
    mentions = tuple(Mention(place, place + 3, "PER") for place in range(0, len(text), 10))
    began = time.process_time()
    parts = list(Reading().clean([Sentence("train", "u", text, mentions)], split_sentences=True))
    assert len(parts) == 20_000
    assert all([part.surface(mention) for mention in part.mentions] == ["Ada"] for part in parts)
    assert time.process_time() - began < 5


# The paper's preprocessing

PAPER = Preprocessing.of_paper()
NASTY = "aB .,-'’\"İΣσßǅﬁé́👩‍💻$+ \t\nא،؟。A1_"
TEXTS = st.one_of(st.text(st.sampled_from(NASTY), max_size=40), st.text(max_size=40))


@pytest.mark.nightly
@given(marked(TEXTS), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_moved_span_covers_the_preprocessed_surface(sentence: Sentence, lower: bool, strip: bool) -> None:
    chosen, reading = Preprocessing(lower, strip), Reading()
    after = chosen.rewriter(reading)(sentence)
    expected = [surface for m in sentence.mentions if (surface := chosen.text(sentence.surface(m)))]
    if after is None:
        assert (chosen.text(sentence.text), expected) == ("", [])
        assert reading.notes == {Note.EMPTIED_SENTENCES: 1}
    else:
        assert after.text == chosen.text(sentence.text)
        assert [after.surface(mention) for mention in after.mentions] == expected
        assert after.target == "class"
        assert reading.notes[Note.EMPTIED_ENTITIES] == len(sentence.mentions) - len(expected)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("EU rejects German call to boycott British lamb .", "eu rejects german call to boycott british lamb"),
        ('He said: "U.S. dollars ($5), don\'t!"', "he said us dollars 5 dont"),
        ("- - -", ""),
        ("ΑΣ ΣΑΣ", "ας σας".replace("ς", "σ")),
        ("İstanbul — 東京。", "i̇stanbul 東京"),
        ("שלום, עולם! 👩‍💻", "שלום עולם 👩‍💻"),
    ],
)
def test_what_the_paper_does(before: str, after: str) -> None:
    assert PAPER.text(before) == after


def test_taggers_and_identity_see_the_text_as_it_was(tmp_path: Path) -> None:
    texts = {"a": "Yesterday Mr. Johnson's boat sank in Hull.", "b": "I met Johnson, in Hull!", "c": "..."}
    rows = [Sentence("train", user, text, ()) for user, text in texts.items()]
    raw = RawCorpus("small", lambda: iter(rows), has_gold=False).with_preprocessing(PAPER)
    corpus = prepare(raw, tmp_path / "out", marking=make_marking("rules", has_gold=False)).corpus
    assert corpus.texts("train").to_pylist() == ["yesterday mr johnsons boat sank in hull", "i met johnson in hull"]
    entities = corpus.entities("train")
    assert dict(zip(entities["entity"], entities["users"], strict=True)) == {"johnson": 2, "hull": 2}
    assert corpus.manifest.settings["lower_case"] is True
    assert corpus.manifest.notes == {Note.EMPTIED_SENTENCES: 1}


def test_no_punctuation_is_overlooked() -> None:
    marks = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)).startswith("P")]
    assert PAPER.text("".join([*marks, *string.punctuation])) == ""
