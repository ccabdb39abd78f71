"""Entity identity: the normalisation step by step, what must never merge, and links that keep the proof."""

from __future__ import annotations

import itertools
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fl_sim.data_prep.corpus_stats import identity_effect, identity_table
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.identity import NESTED, STEPS, Entity, Identity, entity_key, link_names
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus


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
    return "".join(c for c in folded if unicodedata.category(c)[0] in "LNM" and c != "ʼ")  # an apostrophe to us


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


def test_no_step_means_the_very_characters() -> None:
    assert Identity(steps=()).key(" The  Oval's") == " The  Oval's"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": ("case", "stem")}, "identity step 'stem' is unknown, it must be one of unicode, case,"),
        ({"nested": "inner"}, "nested mentions 'inner' must be one of all, outermost, longest"),
    ],
)
def test_settings_that_do_not_exist(settings: dict, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        Identity(**settings)


def sentence(text: str, *names: str, document: str | None = None, user: str = "u", label: str = "PER") -> Sentence:
    starts = [(text.index(name), name) for name in names]
    mentions = tuple(Mention(start, start + len(name), label) for start, name in starts)
    return Sentence("train", user, text, mentions, document=document)


def keys(entities: tuple[Entity, ...]) -> set[str]:
    return {key for key, _ in entities}


@pytest.mark.parametrize(
    ("nested", "expected"),
    [
        ("all", {"bank of england", "england", "england rates", "rates"}),
        ("outermost", {"bank of england", "england rates"}),
        ("longest", {"bank of england", "rates"}),
    ],
)
def test_nested_and_overlapping_mentions(nested: str, expected: set[str]) -> None:
    text = "The Bank of England rates"
    found = sentence(text, "Bank of England", "England", "England rates", "rates", label="ORG")
    assert keys(Identity(nested=nested).entities(found)) == expected


def test_equal_mentions_are_no_nesting() -> None:
    twice = sentence("Ada left", "Ada", "Ada")
    for nested in NESTED:
        assert keys(Identity(nested=nested).entities(twice)) == {"ada"}


def test_family_names_are_further_entities() -> None:
    named = Identity(family_names=True)
    assert keys(named.entities(sentence("Dr. David Johnson's cat", "Dr. David Johnson's"))) == {
        "david johnson",
        "johnson",
    }
    assert keys(named.entities(sentence("New York", "New York", label="GPE"))) == {"new york"}


LINKING = Identity(link_within_document=True)


def resolved(sentences: list[Sentence]) -> list[set[str]]:
    return [keys(found) for _, found in LINKING.resolve(sentences)]


def test_a_part_of_a_name_stands_for_the_name_within_its_document() -> None:
    found = resolved(
        [
            sentence("Johnson said no.", "Johnson", document="a"),
            sentence("David Johnson and Mary Smith met.", "David Johnson", "Mary Smith", document="a"),
            sentence("Mary knew.", "Mary", document="a"),
            sentence("Rain fell.", document="a"),
            sentence("Johnson left.", "Johnson", document="b"),
            sentence("Johnson came.", "Johnson"),
        ]
    )
    both = {"david johnson", "mary smith"}
    assert found == [both | {"johnson"}, both, both | {"mary"}, set(), {"johnson"}, {"johnson"}]


def test_places_are_not_linked() -> None:
    york = [sentence(text, text, document="a", label="GPE") for text in ("York", "New York")]
    assert resolved(york) == [{"york"}, {"new york"}]


def test_a_document_in_two_pieces_is_refused() -> None:
    pieces = [sentence("Ada", "Ada", document=document) for document in ("a", "b", "a")]
    with pytest.raises(CorpusError, match="document 'a' of user 'u' goes on after another began"):
        resolved(pieces)
    assert resolved([*pieces[:2], sentence("Ada", "Ada", document="a", user="w")]) == [{"ada"}] * 3


NAMES = st.lists(st.sampled_from(["a", "b", "c", "a b", "b c", "c d", "a b c", "d a"]), max_size=3, unique=True)


@given(st.lists(NAMES, max_size=7))
def test_removing_an_entity_leaves_the_entities_of_all_other_sentences(document: list[list[str]]) -> None:
    """What section 14 of docs/privacy.md rests on; a plain union of linked keys fails here."""
    own = [tuple((name, "PER") for name in names) for names in document]
    whole = link_names(own)
    for entity in {key for found in whole for key, _ in found}:
        left = [index for index, found in enumerate(whole) if entity not in keys(found)]
        alone = link_names([own[index] for index in left])
        assert [keys(found) for found in alone] == [keys(whole[index]) for index in left]


def test_the_counterexample_of_the_documentation() -> None:
    """Direct links alone: without David Johnson's sentence, Smith's sentence no longer needs Mary Smith's coin."""
    own = [(("david johnson", "PER"), ("mary smith", "PER")), (("smith", "PER"),)]
    direct_union = {"smith", "mary smith"}
    assert keys(link_names(own)[1]) == direct_union | {"david johnson"}
    assert keys(link_names(own[1:])[0]) == {"smith"}


@pytest.mark.nightly
def test_a_million_mentions_a_minute() -> None:
    """New names, so that nothing is remembered; the stated minimum, with a machine ten times slower in mind."""
    names = [f"Dr. David J.R. Johnson{i}'s & Co." for i in range(20_000)]
    started = time.perf_counter()
    assert len(set(map(entity_key, names))) == len(names)
    assert time.perf_counter() - started < 20_000 / (1_000_000 / 60) * 2


def test_warnings_name_what_changes_the_promise() -> None:
    assert Identity().warnings() == Identity(family_names=True).warnings() == ()
    assert "inside another name" in Identity(nested="longest").warnings()[0]
    assert "linked" in LINKING.warnings()[0]
    described = [
        Identity(**s).manifest_settings() for s in ({}, {"nested": "longest"}, {"steps": ()}, {"family_names": True})
    ]
    assert all(a != b for a, b in itertools.combinations([*described, LINKING.manifest_settings()], 2))


def test_the_effect_of_all_steps_is_what_the_corpus_has() -> None:
    corpus = Corpus.open("bundled")
    rows = {row["identity"]: row for row in identity_effect(corpus, "validation")}
    stored = corpus.ownership("validation").entity_contributions()
    last = rows["+ suffix"]
    assert last["entities"] == corpus.manifest.splits["validation"].entities
    assert (last["users"]["p95"], last["max_per_user"]["p95"], last["sentences"]["p95"]) == stored.quantile(0.95)
    assert (last["users"]["max"], last["max_per_user"]["max"], last["sentences"]["max"]) == stored.quantile(1.0)
    entities = [row["entities"] for row in rows.values()]
    assert entities[: len(STEPS) + 1] == sorted(entities[: len(STEPS) + 1], reverse=True)
    assert identity_table("bundled", "validation", list(rows.values())).row_count == len(rows)


def test_a_corpus_is_written_with_its_identity(tmp_path: Path) -> None:
    sentences = [
        sentence("Johnson said no.", "Johnson", document="a", user="u"),
        sentence("David Johnson met Mary Smith.", "David Johnson", "Mary Smith", document="a", user="u"),
        sentence("Johnson left.", "Johnson", document="a", user="w"),
    ]
    corpus = write_corpus(sentences, tmp_path / "linked", name="linked", identity=LINKING)
    names = corpus.entities("train")["entity"].tolist()
    ownership = corpus.ownership("train")
    found = [
        {names[e] for e in ownership.entity_ids[slice(*ownership.entity_offsets[row : row + 2])]} for row in range(3)
    ]
    assert found == [{"johnson", "david johnson", "mary smith"}, {"david johnson", "mary smith"}, {"johnson"}]
    assert corpus.warnings == LINKING.warnings()
    assert corpus.manifest.settings["identity"] == LINKING.manifest_settings()
    assert write_corpus(sentences, tmp_path / "plain", name="plain").warnings == ()
    rows = {row["identity"]: row for row in identity_effect(corpus, "train")}
    assert rows["all steps, linked within a user"]["sentences"] == {"median": 2, "p95": 2, "max": 2}
    with pytest.raises(CorpusError, match="no split 'dev'"):
        identity_effect(corpus, "dev")
