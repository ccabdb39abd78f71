"""The paper's preprocessing: lower case, no punctuation, and every entity still where the text says it."""

from __future__ import annotations

import string
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_sim.data_prep.prepare import prepare
from fl_sim.data_prep.readers.cleaning import Note, Preprocessing, Reading
from fl_sim.data_prep.readers.reader import RawCorpus
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.data_prep.taggers.tagger_registry import make_marking

PAPER = Preprocessing.of_paper()
NASTY = "aB .,-'’\"İΣσßǅﬁé́👩‍💻$+ \t\nא،؟。A1_"
TEXTS = st.one_of(st.text(st.sampled_from(NASTY), max_size=40), st.text(max_size=40))


@st.composite
def sentences(draw: st.DrawFn) -> Sentence:
    text = draw(TEXTS)
    places = st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))
    spans = [tuple(sorted(place)) for place in draw(st.lists(places, max_size=4))]
    mentions = tuple(Mention(a, b, "X") for a, b in spans if text[a:b].strip())
    return Sentence("train", "u", text, mentions, "class")


@pytest.mark.nightly
@given(sentences(), st.booleans(), st.booleans())
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
    assert corpus.texts("train").to_pylist() == [
        "yesterday mr johnsons boat sank in hull",
        "i met johnson in hull",
    ]
    entities = corpus.entities("train")
    assert dict(zip(entities["entity"], entities["users"], strict=True)) == {"johnson": 2, "hull": 2}
    assert corpus.manifest.settings["lower_case"] is True
    assert corpus.manifest.notes == {Note.EMPTIED_SENTENCES: 1}


def test_no_punctuation_is_overlooked() -> None:
    marks = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)).startswith("P")]
    assert PAPER.text("".join([*marks, *string.punctuation])) == ""
