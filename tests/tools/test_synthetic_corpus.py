"""The generator of the synthetic corpus: splits, clean text, exact spans, and the corpus that ships from its seed."""

from __future__ import annotations

import re
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest

from fl_sim.data_prep.readers.prepared_corpus import sentences_of_split
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from tools.synthetic_corpus.grammar import Grammar
from tools.synthetic_corpus.make_corpus import DEFAULT_SEED, DEFAULT_USERS, main, synthetic_sentences

SHAPES = {
    "EMAIL": r"[a-z0-9.-]+@[a-z0-9-]+\.example",
    "PHONE": r"[+()\d ]{9,}",
    "MONEY": r"£[\d,]+(\.\d\d)?",
    "DATE": r".*\d{4}.*",
    "LOC": r"\d+ [A-Za-z ]+",
    "PERSON": r"\D+",
    **dict.fromkeys(("ORG", "GPE", "PRODUCT"), ".+"),
}


@pytest.fixture(scope="module")
def small() -> list[Sentence]:
    return list(synthetic_sentences(140, seed=0))


def test_spans_are_what_their_labels_say(small: list[Sentence]) -> None:
    seen = set()
    for sentence in small:
        for mention in sentence.mentions:
            surface = sentence.surface(mention)
            assert surface == surface.strip()
            assert re.fullmatch(SHAPES[mention.label], surface), (mention.label, surface)
            seen.add(mention.label)
    assert seen == set(SHAPES)


def test_text_is_clean_and_splits_are_by_user(small: list[Sentence]) -> None:
    for sentence in small:
        assert not re.search(r"  | [,.?!]|[<>{}\[\]|^_%]|\ba_|^\s|\s$", sentence.text), sentence.text
        assert sentence.text[0].isupper() or sentence.text.islower() or not sentence.text[0].isalpha()
    users = {split: {s.user for s in small if s.split == split} for split in ("train", "validation", "public")}
    assert {split: len(keys) for split, keys in users.items()} == {"train": 110, "validation": 10, "public": 20}
    assert len(set.union(*users.values())) == 140
    assert all(5 <= count <= 40 for count in Counter(s.user for s in small).values())


@pytest.mark.parametrize(("users", "seed", "message"), [(19, 0, "users 19 must be at least 20"), (50, -1, "seed -1")])
def test_impossible_settings_are_refused(users: int, seed: int, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        next(synthetic_sentences(users, seed))


@pytest.mark.parametrize("template", ["a (b", "a b)", "a [b)", "<unknown> a"])
def test_templates_that_are_refused(template: str) -> None:
    with pytest.raises(CorpusError, match=r"brackets|not closed|unknown rule"):
        Grammar({"s": [template]})


def test_the_program_prepares_a_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--users", "20", "--seed", "1", "--out", str(tmp_path / "made")])
    made = Corpus.open(tmp_path / "made", verify=True)
    assert made.splits == ("train", "validation", "public")
    assert made.manifest.settings | {"kind": "synthetic", "users": 20, "seed": 1} == made.manifest.settings
    with pytest.raises(SystemExit):
        main(["--users", "3", "--out", str(tmp_path / "none")])
    assert "users 3 must be at least 20" in capsys.readouterr().err


@pytest.mark.nightly
def test_the_corpus_that_ships_comes_again_from_its_seed() -> None:
    bundled = Corpus.open("bundled", verify=True)
    recorded = bundled.manifest.tools["faker"]
    if metadata.version("faker") != recorded:
        pytest.skip(f"the bundled corpus was made with Faker {recorded}, another version is installed")
    sentences = list(synthetic_sentences(DEFAULT_USERS, DEFAULT_SEED))
    for split in bundled.splits:
        assert list(sentences_of_split(bundled, split)) == [s for s in sentences if s.split == split]
