"""The phrase grammar and its verbs: the notation, agreement and tense, and the templates that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.synthetic.grammar import Grammar, Piece
from fl_sim.data_prep.synthetic.inflection import TENSES, Agreement, conjugate, gerund_of, third_person_of
from fl_sim.data_prep.synthetic.phrasebook import phrasebook
from fl_sim.data_prep.synthetic.writing import Style, tidy

SHE = Agreement("she", 3, plural=False)
THEY = Agreement("they", 3, plural=True)
ME = Agreement("I", 1, plural=False)


class Fixed:
    """A writer who always means the same."""

    def __init__(self, verbosity: float = 1.0, agreement: Agreement = SHE) -> None:
        self.verbosity = verbosity
        self.agreement = agreement

    def entity(self, label: str, tense: str, rng: np.random.Generator) -> Piece:
        return f"the-{label}", label

    def subject(self, rng: np.random.Generator) -> tuple[Piece, Agreement]:
        return ("Ada", "PERSON"), self.agreement


def said(template: str, tense: str = "past", negated: bool = False, **writer: object) -> str:
    grammar = Grammar({"s": [template], "thing": ["lamp"], "when_past": ["then"], "when_future": ["soon"]})
    pieces = grammar.expand("s", tense, negated, Fixed(**writer), np.random.default_rng(0))  # type: ignore[arg-type]
    return "".join(text for text, _ in pieces)


@pytest.mark.parametrize(
    ("template", "tense", "expected"),
    [
        ("<S> @buy a <thing> <when>", "past", "Ada bought a lamp then"),
        ("<S> @buy a <thing> <when>", "future", "Ada will buy a lamp soon"),
        ("<S> @carry %my <thing>", "present", "Ada carries her lamp"),
        ("the roof @leak and ^pl the walls @crack", "present", "the roof leaks and the walls crack"),
        ("{ORG} @be late [again]", "perfect", "the-ORG has been late again"),
        ("(a|a) b", "past", "a b"),
    ],
)
def test_notation(template: str, tense: str, expected: str) -> None:
    assert said(template, tense) == expected


def test_options_follow_verbosity_and_the_first_verb_is_negated() -> None:
    assert said("a [b [c]]", verbosity=0.0) == "a "
    assert said("a [b [c]]") == "a b c"
    assert said("<S> @see and @hear it", negated=True) == "Ada did not see and heard it"


@pytest.mark.parametrize("template", ["a (b", "a b)", "a [b)", "<unknown> a"])
def test_templates_that_are_refused(template: str) -> None:
    with pytest.raises(CorpusError, match=r"brackets|not closed|unknown rule"):
        said(template)


@pytest.mark.parametrize(
    ("lemma", "forms"),
    [
        ("send", ("sent", "sends", "will send", "has sent", "is sending")),
        ("carry", ("carried", "carries", "will carry", "has carried", "is carrying")),
        ("stop", ("stopped", "stops", "will stop", "has stopped", "is stopping")),
        ("bite", ("bit", "bites", "will bite", "has bitten", "is biting")),
        ("take", ("took", "takes", "will take", "has taken", "is taking")),
        ("be", ("was", "is", "will be", "has been", "is")),
        ("know", ("knew", "knows", "will know", "has known", "knows")),
    ],
)
def test_third_person_singular(lemma: str, forms: tuple[str, ...]) -> None:
    assert tuple(conjugate(lemma, tense, SHE) for tense in TENSES[:5]) == forms


@pytest.mark.parametrize(
    ("lemma", "tense", "agreement", "expected"),
    [
        ("go", "past", THEY, "did not go"),
        ("go", "present", SHE, "does not go"),
        ("go", "present", THEY, "do not go"),
        ("be", "present", ME, "am not"),
        ("be", "past", THEY, "were not"),
        ("go", "perfect", THEY, "have not gone"),
        ("go", "progressive", ME, "am not going"),
        ("go", "future", ME, "will not go"),
    ],
)
def test_negation(lemma: str, tense: str, agreement: Agreement, expected: str) -> None:
    assert conjugate(lemma, tense, agreement, negated=True) == expected


@pytest.mark.parametrize(
    ("modal", "positive", "negative"),
    [
        ("should", "should go", "should not go"),
        ("can", "can go", "cannot go"),
        ("would like to", "would like to go", "would not like to go"),
        ("have to", "has to go", "does not have to go"),
    ],
)
def test_modals(modal: str, positive: str, negative: str) -> None:
    assert conjugate("go", "modal", SHE, modal=modal) == positive
    assert conjugate("go", "modal", SHE, modal=modal, negated=True) == negative


def test_spelling_of_endings() -> None:
    assert [gerund_of(v) for v in ("lie", "see", "run", "make", "dye", "be")] == [
        "lying",
        "seeing",
        "running",
        "making",
        "dyeing",
        "being",
    ]
    assert [third_person_of(v) for v in ("try", "play", "watch", "go", "have")] == [
        "tries",
        "plays",
        "watches",
        "goes",
        "has",
    ]


def test_the_phrasebook_is_rich() -> None:
    book = phrasebook()
    assert len(book.topics) >= 10
    assert len(book.relatives) < len(book.subjects)
    sentences = [book.grammar.rules[f"{topic}_sentence"] for topic in book.topics]
    assert sum(map(len, sentences)) >= 150
    assert min(map(len, sentences)) >= 20


def test_left_out_options_leave_no_trace() -> None:
    assert tidy([("a  b ", ""), (" ", ""), ("Oslo", "GPE"), (" ", ""), (" , c ", "")]) == [
        ("a b ", ""),
        ("Oslo", "GPE"),
        (", c", ""),
    ]


def test_articles_and_contractions() -> None:
    style = Style(
        verbosity=1,
        contractions=True,
        lower_case=False,
        greets=0,
        hedges=(),
        hedge_rate=0,
        tail_rate=0,
        negation_rate=0,
        endings=(".",),
        date_style="{d.year}",
    )
    pieces = style.apply(
        [("we did not buy a_ hour or a_ used ", ""), ("Orbit", "PRODUCT"), (" or a_ ", ""), ("Aster", "PRODUCT")],
        np.random.default_rng(0),
    )
    assert "".join(text for text, _ in pieces) == "We didn't buy an hour or a used Orbit or an Aster."
