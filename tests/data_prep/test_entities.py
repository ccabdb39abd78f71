"""The taggers: each a function of one sentence alone, with high recall on names."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st

from data_prep.entities import make_tagger, tagged
from data_prep.prepare import Corpus
from data_prep.records import CorpusError, Mention, Sentence
from data_prep.tagger_rules import RuleTagger

RULES = RuleTagger()


def found(text: str) -> list[tuple[str, str]]:
    (mentions,) = RULES.tag([text])
    return [(text[m.start : m.end], m.label) for m in mentions]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("However, Ada Byron left.", [("Ada Byron", "NAME")]),
        ("The Bank of England raised rates.", [("Bank of England", "NAME")]),
        (
            "We went to Marks & Spencer in Stoke-on-Trent.",
            [("Marks & Spencer", "NAME"), ("Stoke", "NAME"), ("Trent", "NAME")],
        ),
        ("Anne-Marie O'Neil's dog", [("Anne-Marie O'Neil", "NAME")]),
        ("Prices rose again on Monday.", []),
        ("I think it is fine.", []),
        ("Thank you, Dr Ray.", [("Ray", "NAME")]),
        ("US troops met NATO.", [("US", "NAME"), ("NATO", "NAME")]),
        ("write to a.b@c.example or see www.c.example/x", [("a.b@c.example", "EMAIL"), ("www.c.example/x", "URL")]),
        ("call +44 (0)20 7496 0353 now", [("+44 (0)20 7496 0353", "PHONE")]),
        ("call 07700 900 777.", [("07700 900 777", "PHONE")]),
        ("on 12 March 2024", [("12 March 2024", "DATE")]),
        ("on March 12, 2024", [("March 12, 2024", "DATE")]),
        ("on 2024-03-12 at 14:30", [("2024-03-12", "DATE"), ("14:30", "TIME")]),
        ("it cost £1,240.50 or 20 dollars", [("£1,240.50", "MONEY"), ("20 dollars", "MONEY")]),
        ("from GB33BUKB20201555555555 today", [("GB33BUKB20201555555555", "IBAN")]),
        ("card 4929 1234 5678 9012 please", [("4929 1234 5678 9012", "CARD")]),
        ("", []),
    ],
)
def test_rules(text: str, expected: list[tuple[str, str]]) -> None:
    assert found(text) == expected


@given(st.lists(st.text(max_size=40), max_size=5))
def test_rules_see_one_text_at_a_time_and_stay_inside_it(texts: list[str]) -> None:
    together = list(RULES.tag(texts))
    assert together == [next(RULES.tag([text])) for text in texts]
    for text, mentions in zip(texts, together, strict=True):
        Sentence("train", "u", text, mentions)
        assert all(a.end <= b.start for a, b in itertools.pairwise(mentions))


def test_rules_find_nearly_all_names_of_the_bundled_corpus() -> None:
    corpus = Corpus.open("bundled")
    texts = corpus.texts("validation").to_pylist()
    gold = corpus.mentions("validation").to_pylist()
    spans = [list(mentions) for mentions in RULES.tag(texts)]
    capitalised = [m for m in gold if not texts[m["sentence"]].islower()]
    missed = [
        m for m in capitalised if not any(s.start < m["end"] and s.end > m["start"] for s in spans[m["sentence"]])
    ]
    assert len(missed) / len(capitalised) < 0.02


class Shouting:
    """A tagger that marks every first word."""

    def tag(self, texts: Iterable[str]) -> Iterator[tuple[Mention, ...]]:
        for text in texts:
            yield (Mention(0, len(text.split()[0]), "FIRST"),)

    def describe(self) -> dict[str, str]:
        return {"tagger": "shouting"}


def test_any_tagger_replaces_the_mentions() -> None:
    sentences = [Sentence("train", "u", f"word{n} and more", (Mention(0, 3, "GOLD"),)) for n in range(5000)]
    result = list(tagged(iter(sentences), Shouting()))
    assert [s.text for s in result] == [s.text for s in sentences]
    assert {s.surface(m) for s in result for m in s.mentions} == {f"word{n}" for n in range(5000)}
    assert {m.label for s in result for m in s.mentions} == {"FIRST"}


def test_a_spacy_pipeline_from_a_folder(tmp_path: Path) -> None:
    pipeline = spacy.blank("en")
    pipeline.add_pipe("entity_ruler").add_patterns([{"label": "ORG", "pattern": "Acme"}])
    pipeline.to_disk(tmp_path / "model")
    tagger = make_tagger(f"spacy:{tmp_path / 'model'}")
    assert list(tagger.tag(["At Acme.", "Nothing."])) == [(Mention(3, 7, "ORG"),), ()]
    assert str(tmp_path) not in json.dumps(tagger.describe())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("regex", "must be rules, gold or spacy:NAME_OR_PATH"),
        ("spacy:", "must be rules, gold or spacy:NAME_OR_PATH"),
        ("spacy:no_such_pipeline", "cannot be loaded"),
    ],
)
def test_taggers_that_do_not_exist(name: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        make_tagger(name)


def test_a_pipeline_without_entities_is_refused(tmp_path: Path) -> None:
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(CorpusError, match="finds no entities: it has no component"):
        make_tagger(f"spacy:{tmp_path / 'blank'}")


def test_rules_tag_a_thousand_sentences_in_seconds() -> None:
    started = time.perf_counter()
    assert sum(1 for _ in RULES.tag(["However, Ada Byron left Leeds on 12 March 2024."] * 1000)) == 1000
    assert time.perf_counter() - started < 5
