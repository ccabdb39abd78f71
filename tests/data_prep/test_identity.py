"""Entity identity: the normalisation step by step, and what must never merge."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fl_sim.data_prep.corpus_stats import identity_effect, identity_table
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.identity import STEPS, Identity, NameIndex, entity_key
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from tests.data_prep.marked import said


@pytest.mark.parametrize(
    ("surface", "key"),
    [
        ("David Johnson", "david johnson"),
        ("DAVID  JOHNSON", "david johnson"),
        ("David\nJohnson's", "david johnson"),
        ("David Johnson 's", "david johnson"),
        ("David Johnson’s", "david johnson"),
        ("“David Johnson”,", "david johnson"),
        ("Da\u200bvid\u00a0John\u00adson", "david johnson"),
        ("Da\u034fvid \u3164John\ufe0fson\U000e0101", "david johnson"),
        ("Johnson", "johnson"),
        ("U.S.", "us"),
        ("US", "us"),
        ("U.S.-based", "us-based"),
        ("J.R.R. Tolkien", "jrr tolkien"),
        ("A. Johnson", "a johnson"),
        ("a.b.example", "a.b.example"),
        ("j.s@b.example", "j.s@b.example"),
        ("Straße", "strasse"),
        ("ＡＢＣ", "abc"),
        ("O’Neil", "o'neil"),
        ("O´Neil", "o'neil"),
        ("O \u0301Neil", "o'neil"),
        ("¿O'Neil", "o'neil"),
        ("「北京」、", "北京"),
        ("#Obama", "obama"),
        ("İzmir", "izmir"),
        ("IŞIK", "işik"),
        ("ışık", "işik"),
        ("@ voxd", "voxd"),
        ("مريم؟", "مريم"),
        ("O′Neil", "o'neil"),
        ("Hawaiʻi", "hawai'i"),
        ("O`Neil", "o'neil"),
        ("O`Neil’s", "o'neil"),
        ("O'\x07Neil", "o'neil"),
        ("Jean–Luc", "jean-luc"),
        ("C++", "c++"),
        ("?!", "?!"),
        ("The :", "the"),
        ("Mr. ?!", "mr"),
        ("'s", "s"),
        ("Mr. Johnson", "johnson"),
        ("Dr", "dr"),
        ("Prof. Dr. Ada Byron's", "ada byron"),
        ("Vice President Johnson", "johnson"),
        ("President of France", "president of france"),
        ("Mayor and Sons", "mayor and sons"),
        ("the Bank of England", "bank of england"),
        ("The", "the"),
        ("A Coruña", "a coruña"),
        ("Acme Inc.", "acme"),
        ("Acme & Co. Ltd", "acme"),
        ("Volta S.A.", "volta"),
        ("Carver & Sons", "carver & sons"),
        ("Ltd.", "ltd"),
        ("& Co", "& co"),
        ("Ray King, Jr.", "ray king"),
        ("Mr. Inc.", "inc"),
    ],
)
def test_entity_key(surface: str, key: str) -> None:
    assert entity_key(surface) == key


# Every code point counts, and also what the steps look for.
_PIECES = "the Mr. Dr president vice of & and Co. Ltd S.A. U.S. 's ’s Ada ß ."
PIECES = st.sampled_from(_PIECES.split())
SURFACES = st.one_of(
    st.text(min_size=1, max_size=30),
    st.lists(PIECES, min_size=1, max_size=6).map(" ".join),
    st.lists(PIECES).map("".join),
).filter(str.strip)


@given(SURFACES)
def test_a_key_is_settled_and_never_empty(surface: str) -> None:
    key = entity_key(surface)
    assert key.strip()
    assert entity_key(key) == key


@given(SURFACES)
def test_a_key_ignores_case_space_and_possessives(surface: str) -> None:
    key = entity_key(surface)
    assert entity_key(f" {surface}\n") == key
    assert entity_key(surface.casefold()) == key
    assert entity_key(surface.replace(" ", "\t ")) == key
    if any(character.isalpha() for character in key):
        assert entity_key(f"{surface}'s") == entity_key(f"{surface} ’S") == key


def letters(text: str) -> str:
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return "".join(c for c in folded if unicodedata.category(c)[0] in "LNM" and c not in "ʼʻ")  # apostrophes to us


WORDS = st.text(st.characters(categories=["Ll", "Lu", "Lo"]), min_size=2, max_size=8).filter(
    lambda word: (
        {letters(entity_key(f"{name} x")) for name in (word, f"Mr. {word}")} == {letters(f"{word} x")}
        and letters(entity_key(f"x {word}")) == letters(f"x {word}")
    )
)
"""Words that no list has, before or after a name."""


@pytest.mark.nightly
@given(st.lists(WORDS, min_size=1, max_size=4), st.sampled_from([" ", "  ", " - ", "-", ", "]))
def test_different_letters_never_merge(words: list[str], gap: str) -> None:
    """No letter is lost but those of listed words, so two keys can only be equal where all letters are."""
    surface = gap.join(words)
    assume(not letters(surface).endswith("s"))
    assert letters(entity_key(f"Mr. {surface}, Inc.")) == letters(entity_key(surface)) == letters(surface)


@pytest.mark.parametrize("step", STEPS)
def test_every_step_merges_something_that_the_others_do_not(step: str) -> None:
    pairs = {
        "unicode": ("Ｋent", "Kent"),
        "case": ("KENT", "Kent"),
        "space": ("New\n York", "New York"),
        "punctuation": ("(Kent)", "Kent"),
        "possessive": ("Kent's", "Kent"),
        "initials": ("U.K.", "UK"),
        "determiner": ("the Oval", "Oval"),
        "title": ("Mrs. Kent", "Kent"),
        "suffix": ("Kent Ltd", "Kent"),
    }
    one, other = pairs[step]
    without = Identity(steps=tuple(name for name in STEPS if name != step))
    assert entity_key(one) == entity_key(other)
    assert without.key(one) != without.key(other)


def test_a_name_is_found_in_text_with_decomposed_letters() -> None:
    index = NameIndex(["Zoë Quell"])
    assert index.names_in(unicodedata.normalize("NFD", "I met ZOË QUELL.")) == {("zoë", "quell")}


def test_no_step_means_the_very_characters() -> None:
    assert Identity(steps=()).key(" The  Oval's") == " The  Oval's"


def test_a_step_that_does_not_exist() -> None:
    with pytest.raises(CorpusError, match="identity step 'stem' is unknown, it must be one of unicode, case,"):
        Identity(steps=("case", "stem"))


def keys(identity: Identity, of: Sentence) -> list[str]:
    return [key for key, _ in identity.entities(of)]


def test_nested_and_equal_mentions_all_count_once() -> None:
    nested = said("The Bank of England rates", "Bank of England", "England", "England rates", label="ORG")
    assert keys(Identity(), nested) == ["bank of england", "england", "england rates"]
    assert keys(Identity(), said("Ada left", "Ada", "Ada")) == ["ada"]


def test_family_names_are_further_entities() -> None:
    named = Identity(family_names=True)
    assert keys(named, said("Dr. David Johnson's cat", "Dr. David Johnson's")) == ["david johnson", "johnson"]
    assert keys(named, said("New York", "New York", label="GPE")) == ["new york"]


@pytest.mark.parametrize("identity", [Identity(), Identity(steps=("case",)), Identity(family_names=True)])
def test_a_corpus_is_written_with_its_identity(identity: Identity, tmp_path: Path) -> None:
    text = said("Dr. David Johnson met The Oval.", "Dr. David Johnson", "The Oval")
    corpus = write_corpus([text, replace(text, user="w")], tmp_path / "corpus", name="x", identity=identity)
    assert corpus.entities("train")["entity"].tolist() == keys(identity, text)
    assert Identity.of_corpus(corpus.manifest.settings) == identity


def test_the_effect_of_all_steps_is_what_the_corpus_has() -> None:
    corpus = Corpus.open("bundled")
    rows = {row["identity"]: row for row in identity_effect(corpus, "validation")}
    stored = corpus.ownership("validation").entity_contributions()
    last = rows["+ suffix"]
    assert last["entities"] == corpus.manifest.splits["validation"].entities
    assert (last["users"]["p95"], last["max_per_user"]["p95"], last["sentences"]["p95"]) == stored.quantile(0.95)
    assert (last["users"]["max"], last["max_per_user"]["max"], last["sentences"]["max"]) == stored.quantile(1.0)
    ladder = [row["entities"] for row in rows.values()][: len(STEPS) + 1]
    assert ladder == sorted(ladder, reverse=True)
    assert rows["all steps, family names"]["entities"] > ladder[-1]
    assert identity_table("bundled", "validation", list(rows.values())).row_count == len(rows)
    with pytest.raises(CorpusError, match="no split 'dev'"):
        identity_effect(corpus, "dev")
