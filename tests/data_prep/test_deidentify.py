"""De-identification: nothing of a mention stays at its place, all else stays."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_sim.data_prep.corpus_writer import Corpus, append_corpus, write_corpus
from fl_sim.data_prep.deidentify import EMPTY, MODES, Mode, deidentify, merge_overlapping, rewrite
from fl_sim.data_prep.readers.cleaning import Preprocessing, Reading
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from tests.data_prep.marked import said

SENTENCES = [
    said("Ada Byron met IBM's people.", ("Ada Byron", "PER"), ("IBM's", "ORG"), target="b"),
    said("ADA BYRON left London.", ("ADA BYRON", "PER"), ("London", "GPE"), target="a"),
    said("Nothing here.", target="a"),
    said("Ada", ("Ada", "PER"), user="w"),
    said("The Bank of England 's rate", ("Bank of England", "ORG"), ("England", "LOC"), user="w"),
    said("the oval said ada byron", ("ada byron", "PER"), user="w", split="validation"),
    said("Byron and Ada Byron again", user="x", split="validation"),
]


@pytest.fixture
def parent(tmp_path: Path) -> Corpus:
    return write_corpus(SENTENCES, tmp_path / "parent", name="parent", settings={"k": 1})


def texts(corpus: Corpus, split: str = "train") -> list[str]:
    return corpus.texts(split).to_pylist()


def test_category(parent: Corpus, tmp_path: Path) -> None:
    made, tally = deidentify(parent, tmp_path / "out", "category")
    first = ["[PERSON] met [ORG]'s people.", "[PERSON] left [GPE].", "Nothing here."]
    assert texts(made) == [*first, "[PERSON]", "The [ORG] 's rate"]
    assert (tally.sentences, tally.changed, tally.mentions, tally.replaced, tally.emptied) == (7, 5, 8, 7, 0)
    assert (tally.still_there, tally.names_still_there) == (1, 1)  # "Ada Byron" in the last sentence


def test_remove(parent: Corpus, tmp_path: Path) -> None:
    made, tally = deidentify(parent, tmp_path / "out", "remove")
    assert texts(made) == ["met people.", "left.", "Nothing here.", EMPTY, "The rate"]
    assert texts(made, "validation")[0] == "the oval said"
    assert tally.emptied == 1


@pytest.mark.parametrize("mode", MODES)
def test_everything_else_stays(parent: Corpus, tmp_path: Path, mode: Mode) -> None:
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
    assert made.manifest.splits["train"].entities == 0
    assert made.manifest.settings["identity"] == parent.manifest.settings["identity"]
    assert made.fingerprints == {made.fingerprint, parent.fingerprint}  # a model of the parent is of the same users


def test_names_that_were_missed_in_lower_case_are_counted(tmp_path: Path) -> None:
    lower = Preprocessing(lower_case=True)
    rewrite, settings = lower.rewriter(Reading()), lower.manifest_settings()
    parent = write_corpus(SENTENCES, tmp_path / "lowered", name="x", rewrite=rewrite, settings=settings)
    _, tally = deidentify(parent, tmp_path / "out")
    assert (tally.still_there, tally.names_still_there) == (1, 1)


def test_what_was_appended_is_appended(parent: Corpus, tmp_path: Path) -> None:
    more = [said("Ada Byron is back in Rome", ("Ada Byron", "PER"), ("Rome", "GPE"), user="u")]
    parent = append_corpus(parent, more, joined_at=5, name="more", settings={"warnings": ["Of two years."]})
    assert parent.warnings == ("Of two years.",)
    made, tally = deidentify(parent, tmp_path / "out", "category")
    assert [part.manifest.joined_at for part in made.parts] == [1, 5]
    assert made.warnings[1:] == parent.warnings
    assert texts(made)[-1] == "[PERSON] is back in [GPE]"
    assert tally.sentences == 8
    assert not list(tmp_path.glob(".out*"))


def test_an_unknown_mode_is_refused(parent: Corpus, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="mode 'mask' must be one of category, remove"):
        deidentify(parent, tmp_path / "out", "mask")  # type: ignore[arg-type]
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


@settings(deadline=None)
@given(marked(), st.sampled_from(MODES))
def test_no_mention_remains_at_its_place(old: Sentence, mode: Mode) -> None:
    hulls, found = merge_overlapping(old.mentions), rewrite(old, mode)
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
    assert found.sentence.mentions == ()
