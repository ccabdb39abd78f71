"""The pipeline that ships is what its card says: weights, size, terms, and its figures on our own sentences."""

from __future__ import annotations

import json

import pytest

from fl_sim.data_prep.tagger_evaluation import evaluate, gold_corpus
from fl_sim.data_prep.taggers.categories import Selection
from fl_sim.data_prep.taggers.spacy_tagger import MODELS, SHIPPED
from fl_sim.data_prep.taggers.tagger_registry import make_tagger, with_high_recall
from tests.conftest import REPOSITORY
from tools.ner.finished_pipeline import LICENCE, measure, weights_checksum
from tools.ner.open_sets import read_open_sets

FOLDER = MODELS / SHIPPED
DATA = REPOSITORY.parent / "shared" / "data"
SAME = 0.01
"""Versions of numpy and spaCy round differently; a changed model differs by more."""


@pytest.fixture(scope="module")
def meta() -> dict:
    return json.loads((FOLDER / "meta.json").read_text(encoding="utf-8"))


def test_the_folder_is_small_and_holds_no_code_and_no_words() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 10_000_000
    assert {path.suffix for path in files} <= {"", ".md", ".json", ".cfg", ".bin"}
    strings = json.loads((FOLDER / "vocab" / "strings.json").read_text(encoding="utf-8"))
    assert len(strings) < 2_000  # the tokenizer's exceptions and the labels


def test_the_card_has_checksum_terms_and_figures_of_the_meta_data(meta: dict) -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert weights_checksum(FOLDER) in card
    assert meta["license"] == LICENCE
    assert LICENCE in card
    for source in meta["sources"]:
        assert source["author"] in card
        assert source["license"] in card
    for name, parts in meta["performance"].items():
        for part, figures in parts.items():
            if part == "test":
                row = next(line for line in card.splitlines() if line.startswith(f"| {name}, {part} |"))
                assert f"{figures['f1']:.3f}" in row


@pytest.mark.nightly
def test_its_figures_on_our_own_sentences_are_those_of_the_card(meta: dict) -> None:
    names = Selection.parse("person,org,loc,gpe,misc")
    evaluation = evaluate(
        make_tagger(f"spacy:{SHIPPED}"), gold_corpus("bundled", "validation"), selection=names, resamples=1
    )
    of_the_card = meta["performance"]["synthetic"]["validation"]
    assert evaluation.hiding["sensitive_sentences"].value == pytest.approx(of_the_card["sensitive_sentences"], abs=SAME)
    for figure in ("precision", "recall", "f1"):
        value = evaluation.matching["exact"]["any"][figure].value
        assert value == pytest.approx(of_the_card[figure], abs=SAME)


def test_it_finds_names_that_it_never_saw() -> None:
    (mentions,) = make_tagger(f"spacy:{SHIPPED}").tag(["On Monday Karen Lindqvist flew from Germany to London."])
    assert ("Karen Lindqvist", "PER") in {
        ("On Monday Karen Lindqvist flew from Germany to London."[m.start : m.end], m.label) for m in mentions
    }


@pytest.mark.nightly
@pytest.mark.skipif(not (DATA / "ner_open").is_dir(), reason="needs ../shared/data/ner_open")
def test_its_figures_on_wikigold_are_those_of_the_card(meta: dict) -> None:
    parts = [p for p in read_open_sets(DATA / "ner_open")[0] if (p.name, p.part) == ("wikigold", "test")]
    scores = measure(FOLDER, parts)["wikigold"]["test"]
    assert scores["f1"] == pytest.approx(meta["performance"]["wikigold"]["test"]["f1"], abs=SAME)


@pytest.mark.nightly
@pytest.mark.skipif(not (DATA / "conll2003").is_dir(), reason="needs ../shared/data/conll2003")
def test_with_high_recall_it_covers_what_the_paper_claims_on_text_it_never_saw() -> None:
    tagger = make_tagger(with_high_recall(f"spacy:{SHIPPED}"))
    coverage = evaluate(tagger, gold_corpus(DATA / "conll2003" / "eng.testb.xz"), resamples=50)
    assert coverage.gold.sensitive_sentences == 2756
    low = coverage.hiding["sensitive_sentences"].low
    assert low is not None
    assert low >= 0.94
