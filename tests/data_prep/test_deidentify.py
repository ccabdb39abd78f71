"""De-identification: nothing of a mention stays at its place, all else stays, and surrogates are consistent."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_sim.data_prep.corpus_writer import Corpus, append_corpus, write_corpus
from fl_sim.data_prep.deidentify import (
    EMPTY,
    MODES,
    Rewriter,
    SurrogateMaker,
    assign_surrogates,
    deidentify,
    match_case,
    merge_overlapping,
)
from fl_sim.data_prep.identity import Identity, entity_key
from fl_sim.data_prep.readers.prepared_corpus import sentences_of
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.taggers.categories import Category


def sentence(text: str, *names: tuple[str, str], user: str = "u", split: str = "train", target: str | None = None):
    mentions = [Mention(text.index(name), text.index(name) + len(name), label) for name, label in names]
    return Sentence(split, user, text, tuple(mentions), target=target)


SENTENCES = [
    sentence("Ada Byron met IBM's people.", ("Ada Byron", "PER"), ("IBM's", "ORG"), target="b"),
    sentence("ADA BYRON left London.", ("ADA BYRON", "PER"), ("London", "GPE"), target="a"),
    sentence("Nothing here.", target="a"),
    sentence("Ada", ("Ada", "PER"), user="w"),
    sentence("The Bank of England 's rate", ("Bank of England", "ORG"), ("England", "LOC"), user="w"),
    sentence("the oval said ada byron", ("ada byron", "PER"), user="w", split="validation"),
    sentence("Byron and Ada Byron again", user="x", split="validation"),
]


@pytest.fixture
def parent(tmp_path: Path) -> Corpus:
    return write_corpus(SENTENCES, tmp_path / "parent", name="parent", settings={"k": 1})


def texts(corpus: Corpus, split: str = "train") -> list[str]:
    return corpus.texts(split).to_pylist()


def test_category(parent: Corpus, tmp_path: Path) -> None:
    made, tally = deidentify(parent, tmp_path / "out", "category")
    assert texts(made) == [
        "[PERSON] met [ORG]'s people.",
        "[PERSON] left [GPE].",
        "Nothing here.",
        "[PERSON]",
        "The [ORG] 's rate",
    ]
    assert (tally.sentences, tally.changed, tally.mentions, tally.replaced, tally.emptied) == (7, 5, 8, 7, 0)
    assert (tally.still_there, tally.names_still_there) == (1, 1)  # "Ada Byron" in the last sentence


def test_remove(parent: Corpus, tmp_path: Path) -> None:
    made, tally = deidentify(parent, tmp_path / "out", "remove")
    assert texts(made) == ["met people.", "left.", "Nothing here.", EMPTY, "The rate"]
    assert texts(made, "validation")[0] == "the oval said"
    assert tally.emptied == 1


def test_surrogates_are_consistent_and_keep_capitals_and_possessives(parent: Corpus, tmp_path: Path) -> None:
    made, _ = deidentify(parent, tmp_path / "out", "surrogate", seed=3)
    first, second, *_ = texts(made)
    name = first.removesuffix("'s people.").split(" met ")[0]
    assert len(name.split()) == 2
    assert name.istitle()
    assert second.startswith(f"{name.upper()} left ")
    assert texts(made, "validation")[0] == f"the oval said {name.lower()}"
    assert first.split(" met ")[1].removesuffix("'s people.").isupper()
    assert made.manifest.splits == parent.manifest.splits | {
        "train": parent.manifest.splits["train"].model_copy(update={"entities": 5, "mentions": 6})
    }
    assert {m.label for s in sentences_of(made) for m in s.mentions} == {"PER", "ORG", "GPE"}


@pytest.mark.parametrize("mode", MODES)
def test_everything_else_stays(parent: Corpus, tmp_path: Path, mode: str) -> None:
    made, _ = deidentify(parent, tmp_path / "out", mode)
    for split in parent.splits:
        assert made.users(split).equals(parent.users(split))
        assert made.targets(split).tolist() == parent.targets(split).tolist()
        assert len(texts(made, split)) == len(texts(parent, split))
    assert made.classes == parent.classes
    described = made.manifest.settings
    assert described["deidentified"].items() >= {"mode": mode, "parent": parent.fingerprint}.items()
    assert (described["k"], made.manifest.tagger) == (1, parent.manifest.tagger)
    assert "the tagger missed" in made.warnings[0]
    assert "no ε" in made.warnings[0]
    assert (made.manifest.splits["train"].entities > 0) == (mode == "surrogate")


def test_what_was_appended_is_appended(parent: Corpus, tmp_path: Path) -> None:
    more = [sentence("Ada Byron is back in Rome", ("Ada Byron", "PER"), ("Rome", "GPE"), user="u")]
    parent = append_corpus(parent, more, joined_at=5, name="more")
    made, tally = deidentify(parent, tmp_path / "out", "surrogate")
    assert [part.manifest.joined_at for part in made.parts] == [1, 5]
    assert texts(made)[-1].startswith(texts(made)[0].split(" met ")[0] + " is back in ")
    assert tally.sentences == 8
    assert not list(tmp_path.glob(".out*"))


def test_the_seed_decides(parent: Corpus, tmp_path: Path) -> None:
    prints = [
        deidentify(parent, tmp_path / f"{n}", "surrogate", seed)[0].fingerprint for n, seed in enumerate([0, 0, 1])
    ]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("mode", "seed", "message"),
    [("mask", 0, "mode 'mask' must be one of category, remove, surrogate"), ("remove", -1, "seed -1 must not be")],
)
def test_impossible_settings(parent: Corpus, tmp_path: Path, mode: str, seed: int, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        deidentify(parent, tmp_path / "out", mode, seed)
    assert not (tmp_path / "out").exists()


def test_twice_is_refused(parent: Corpus, tmp_path: Path) -> None:
    made, _ = deidentify(parent, tmp_path / "out", "category")
    with pytest.raises(CorpusError, match="no mention of an entity"):
        deidentify(made, tmp_path / "again", "category")


def test_overlapping_mentions_become_their_hull() -> None:
    mentions = [Mention(0, 4, "A"), Mention(2, 9, "B"), Mention(3, 5, "C"), Mention(9, 11, "D"), Mention(9, 10, "E")]
    assert merge_overlapping(reversed(mentions)) == (Mention(0, 9, "B"), Mention(9, 11, "D"))


_SOME_WORDS = "Ada ADA ada Byron London's O’Neil 12 March 1999 a@b.example . , é 😀 IBM the Mr. first £5 's"
WORDS = st.sampled_from(_SOME_WORDS.split())
LABELS = st.sampled_from(["PER", "ORG", "GPE", "MISC", "DATE", "EMAIL", "CARDINAL", "MONEY", "NAME", "strange"])


@st.composite
def marked(draw: st.DrawFn) -> Sentence:
    words = draw(st.lists(WORDS, min_size=1, max_size=8))
    text = " ".join(words)
    bounds = sorted({0, len(text), *(i for i, c in enumerate(text) if c == " ")})
    spans = [(a, b) for a, b in itertools.combinations(bounds, 2) if text[a:b].strip()]
    chosen = draw(st.lists(st.tuples(st.sampled_from(spans), LABELS), max_size=3))
    return Sentence("train", draw(st.sampled_from("uw")), text, tuple(Mention(*span, label) for span, label in chosen))


@pytest.mark.nightly
@settings(deadline=None)
@given(st.lists(marked(), min_size=1, max_size=4), st.sampled_from(MODES))
def test_no_mention_remains_at_its_place(drawn: list[Sentence], mode: str) -> None:
    surrogates = assign_surrogates(drawn, Identity(), 0) if mode == "surrogate" else None
    rewriter = Rewriter(mode, surrogates=surrogates)
    real = {entity_key(s.surface(m)) for s in drawn for m in (*s.mentions, *merge_overlapping(s.mentions))}
    for old in drawn:
        hulls, found = merge_overlapping(old.mentions), rewriter.rewrite(old)
        assert len(found.kept) == len(found.replacements) + 1 == len(hulls) + 1
        joined = "".join(itertools.chain(*zip(found.kept, (*found.replacements, ""), strict=True)))
        assert found.sentence.text == joined or (found.sentence.text == EMPTY and not joined.strip())
        bounds = [0, *(x for m in hulls for x in (m.start, m.end)), len(old.text)]
        outside = [old.text[a:b] for a, b in zip(bounds[::2], bounds[1::2], strict=True)]
        if mode == "remove":
            assert all(kept.strip() in piece for kept, piece in zip(found.kept, outside, strict=True))
            assert set(found.replacements) <= {""}
        else:
            assert list(found.kept) == outside
            assert all(put.strip() and put != old.surface(m) for put, m in zip(found.replacements, hulls, strict=True))
        assert all(entity_key(found.sentence.surface(m)) not in real for m in found.sentence.mentions)
        assert len(found.sentence.mentions) == (len(hulls) if mode == "surrogate" else 0)


@pytest.mark.nightly
@settings(deadline=None)
@given(st.lists(marked(), min_size=1, max_size=4))
def test_one_surrogate_per_entity(drawn: list[Sentence]) -> None:
    surrogates = assign_surrogates(drawn, Identity(), 0)
    assert set(surrogates) == {entity_key(s.surface(m)) for s in drawn for m in merge_overlapping(s.mentions)}
    assert len({entity_key(name) for name in surrogates.values()}) == len(surrogates)


@pytest.mark.sample(1)
@pytest.mark.parametrize("category", Category)
def test_a_thousand_entities_of_one_kind_get_a_thousand_surrogates(category: Category) -> None:
    keys = [f"{i}" for i in range(300)] + [f"name{i}" for i in range(350)] + [f"two words{i}" for i in range(350)]
    maker = SurrogateMaker(0, entity_key, keys)
    made = {key: maker.surrogate(key, category) for key in keys}
    assert len({entity_key(name) for name in made.values()} - set(keys)) == len(keys)
    assert all(maker.surrogate(key, Category.MISC) == name for key, name in made.items())


@pytest.mark.parametrize(
    ("key", "category", "shape"),
    [
        ("david johnson", Category.PERSON, r"[A-Z][a-z]+ [A-Z][a-z]+"),
        ("johnson", Category.PERSON, r"[A-Z][a-z]+"),
        ("12 high street", Category.LOC, r"\d\d [A-Z][a-z]+ [A-Z][a-z]+"),
        ("bank of england", Category.ORG, r"[A-Z][a-z]+ [A-Z][a-z]+ [A-Z][a-z]+"),
        ("j.smith@b.example", Category.PII, r"[a-z]+@[a-z]+\.example"),
        ("www.b.example/x", Category.PII, r"www\.[a-z]+\.example"),
        ("07700 900 777", Category.PII, r"0\d{4} \d{3} \d{3}"),
        ("01632)960173", Category.PII, r"0\d{4} \d{6}"),
        ("gb33bukb2020", Category.PII, r"[A-Z]{2}\d\d[A-Z]{4}\d{4}"),
        ("12 march 2024", Category.DATE, r"(0[1-9]|1[0-2]) [A-Z][a-z]+ (19[5-9]|20[0-4])\d"),
        ("2024-03-12", Category.DATE, r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-2])"),
        ("last week", Category.DATE, r"\d+ [A-Z][a-z]+ \d{4}"),
        ("£1,240.50", Category.MONEY, r"£\d,\d{3}\.\d\d"),
        ("second", Category.ORDINAL, r"[a-z]+"),
    ],
)
def test_surrogates_have_a_plausible_shape(key: str, category: Category, shape: str) -> None:
    for seed in range(20):
        surrogate = SurrogateMaker(seed, entity_key, [key]).surrogate(key, category)
        assert re.fullmatch(shape, surrogate), surrogate


@pytest.mark.parametrize(
    ("surface", "expected"), [("ADA", "GRETA BY"), ("ada", "greta by"), ("Ada", "Greta By"), ("A", "Greta By")]
)
def test_case(surface: str, expected: str) -> None:
    assert match_case(surface, "Greta By") == expected


def test_a_corpus_keeps_its_identity(tmp_path: Path) -> None:
    identity = Identity(steps=("case",), family_names=True)
    corpus = write_corpus(SENTENCES, tmp_path / "parent", name="parent", identity=identity)
    made, _ = deidentify(corpus, tmp_path / "out", "surrogate")
    assert made.manifest.settings["identity"] == identity.manifest_settings()
