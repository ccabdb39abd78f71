"""Figures of a tagger against hand-computed ones, against spaCy's own scorer, and their intervals."""

from __future__ import annotations

import numpy as np
import pytest
import spacy
from hypothesis import given, settings
from hypothesis import strategies as st
from spacy.scorer import Scorer
from spacy.tokens import Doc, Span
from spacy.training import Example

from fl_sim.data_prep.records import Mention
from fl_sim.data_prep.tagger_scores import ANY, Tally, figures, kind_of
from tests.data_prep.marked import said

NAMES = frozenset({"PER", "ORG", "LOC", "MISC"})


Judged = tuple[str, str, tuple[Mention, ...], tuple[Mention, ...]]
"""A cluster and a text, its gold mentions, and those that were found."""


def judged(cluster: str, text: str, gold: dict[str, str], found: dict[str, str]) -> Judged:
    return cluster, text, said(text, *gold.items()).mentions, said(text, *found.items()).mentions


def tally_of(*sentences: Judged) -> Tally:
    tally = Tally(NAMES)
    for cluster, text, gold, found in sentences:
        tally.add(cluster, text, gold=gold, tagged=found)
    return tally


EXAMPLE = tally_of(
    # Exact: one of two. "John Smith" is found short, and Acme under another label.
    judged(
        "ann",
        "John Smith left Acme for Paris",
        {"John Smith": "PER", "Acme": "ORG", "Paris": "LOC"},
        {"Smith": "PERSON", "Acme": "PRODUCT", "Paris": "GPE"},
    ),
    # A sensitive sentence that nobody flags.
    judged("ann", "paris again", {"paris": "LOC"}, {}),
    # A flagged sentence without an entity.
    judged("bob", "Hello there", {}, {"Hello": "PER"}),
    # Flagged at another place: the sentence is flagged, the mention is not hidden.
    judged("bob", "Yesterday Acme's shares", {"Acme": "ORG"}, {"Yesterday": "MISC"}),
    # A date is no kind that this gold marks, but it flags. The possessive leaves the coin the same.
    judged("cat", "Acme's loss on 3 May", {"Acme": "ORG"}, {"Acme's": "NAME", "3 May": "DATE"}),
)


def test_exact_figures_are_those_computed_by_hand() -> None:
    made = figures(EXAMPLE, resamples=10)
    # 6 gold mentions. 6 found in the scheme (the date is outside): Smith, Acme, Paris, Hello, Yesterday, Acme's.
    expected = {
        ("exact", ANY, "precision"): 1 / 6,  # Paris
        ("exact", ANY, "recall"): 1 / 6,
        ("exact", ANY, "f1"): 1 / 6,
        ("exact_any_label", ANY, "precision"): 2 / 6,  # Paris, Acme
        ("exact_any_label", ANY, "recall"): 2 / 6,
        ("exact", "LOC", "precision"): 1.0,
        ("exact", "LOC", "recall"): 1 / 2,
        ("exact", "LOC", "f1"): 2 / 3,
        ("exact", "ORG", "recall"): 0.0,
        ("exact", "MISC", "precision"): 0.0,  # Acme the product, Yesterday
    }
    for name, value in expected.items():
        assert made[name].value == pytest.approx(value), name
    assert made[("exact", "ORG", "precision")].value is None  # nothing was called an organisation
    assert made[("exact", "ORG", "f1")].value == 0.0
    assert made[("exact", "MISC", "recall")].value is None
    assert EXAMPLE.outside_scheme == 1


def test_hiding_figures_are_those_computed_by_hand() -> None:
    made = figures(EXAMPLE, resamples=10)
    expected = {
        "sensitive_sentences": 3 / 4,  # all but "paris again"
        "flag_precision": 3 / 4,  # "Hello there" is not sensitive
        "mentions_hidden": 4 / 6,
        "mentions_with_coin": 3 / 6,  # Acme, Paris, Acme's; "Smith" is not the coin of "John Smith"
        "entities_covered": 0 / 3,  # John Smith never, Paris and Acme each miss a sentence
    }
    for name, value in expected.items():
        assert made[(name,)].value == pytest.approx(value), name


def test_an_entity_is_covered_only_if_each_of_its_sentences_has_its_coin() -> None:
    tally = tally_of(
        judged("ann", "Acme here", {"Acme": "ORG"}, {"Acme": "ORG"}),
        judged("bob", "ACME there", {"ACME": "ORG"}, {"ACME": "PER"}),
        judged("bob", "Paris too", {"Paris": "LOC"}, {"Paris": "LOC"}),
        judged("cat", "Paris again", {"Paris": "LOC"}, {"Paris again": "LOC"}),
    )
    assert figures(tally, resamples=10)[("entities_covered",)].value == pytest.approx(1 / 2)
    assert tally.num_entities == 2


def test_one_surface_found_twice_counts_once() -> None:
    text = "Acme Acme"
    once = (Mention(0, 4, "ORG"),)
    made = figures(tally_of(("ann", text, once, once * 2)), resamples=10)
    assert made[("exact", ANY, "precision")].value == 1.0


def test_a_tagger_that_finds_nothing_scores_zero_and_has_no_precision() -> None:
    made = figures(tally_of(judged("ann", "Acme here", {"Acme": "ORG"}, {})), resamples=10)
    assert made[("exact", ANY, "precision")].value is None
    assert made[("exact", ANY, "recall")].value == 0.0
    assert made[("exact", ANY, "f1")].value == 0.0
    assert made[("flag_precision",)].value is None


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("PERSON", "PER"),
        ("B-PER", "MISC"),
        ("corporation", "ORG"),
        ("creative-work", "MISC"),
        ("GPE", "LOC"),
        ("FAC", "LOC"),
        ("NORP", "MISC"),
        ("NAME", "NAME"),
        ("EMAIL", "PII"),
        ("DATE", "DATE"),
    ],
)
def test_labels_of_every_scheme_meet_in_one(label: str, kind: str) -> None:
    assert kind_of(label) == kind


def test_intervals_hold_the_value_and_are_the_same_for_the_same_seed() -> None:
    rng, acme = np.random.default_rng(3), {"Acme": "ORG"}
    hits = [(f"user {user}", rng.random() < (0.5 + user / 200)) for user in range(60) for _ in range(4)]
    tally = tally_of(*(judged(user, "Acme here", acme, acme if hit else {}) for user, hit in hits))
    figure = figures(tally, seed=1)[("sensitive_sentences",)]
    assert figure.low is not None
    assert figure.high is not None
    assert figure.value is not None
    assert figure.low < figure.value < figure.high
    assert figures(tally, seed=1)[("sensitive_sentences",)] == figure
    assert figures(tally, seed=2)[("sensitive_sentences",)] != figure


def test_intervals_are_of_clusters_not_of_sentences() -> None:
    """With users who are all right or all wrong, the deviation is that of 40 users, whatever they wrote."""
    acme = {"Acme": "ORG"}
    users = (judged(f"user {user}", "Acme here", acme, acme if user % 2 else {}) for user in range(40))
    tally = tally_of(*(of_user for of_user in users for _ in range(50)))
    figure = figures(tally, resamples=2000)[("mentions_hidden",)]
    assert figure.low is not None
    assert figure.high is not None
    half = 1.96 * (0.25 / 40) ** 0.5
    assert (figure.high - figure.low) / 2 == pytest.approx(half, rel=0.15)


def test_one_cluster_has_no_interval() -> None:
    tally = tally_of(judged("ann", "Acme here", {"Acme": "ORG"}, {"Acme": "ORG"}))
    figure = figures(tally)[("mentions_hidden",)]
    assert (figure.value, figure.low, figure.high) == (1.0, None, None)


_PIPELINE = spacy.blank("en")
_LABELS = ("PER", "ORG", "LOC", "MISC")
_SPANS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(1, 3), st.sampled_from(_LABELS)),
    max_size=4,
    unique_by=lambda span: span[0],
)


def _document(spans: list[tuple[int, int, str]]) -> Doc:
    """Ten one-letter words; of overlapping spans the first stays."""
    document = Doc(_PIPELINE.vocab, words=list("abcdefghij"))
    taken: set[int] = set()
    kept = []
    for start, length, label in spans:
        tokens = set(range(start, start + length))
        if taken.isdisjoint(tokens):
            taken |= tokens
            kept.append(Span(document, start, start + length, label=label))
    document.ents = kept
    return document


def _mentions(document: Doc) -> tuple[Mention, ...]:
    return tuple(Mention(ent.start_char, ent.end_char, ent.label_) for ent in document.ents)


@pytest.mark.nightly
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(_SPANS, _SPANS), min_size=1, max_size=6))
def test_exact_figures_are_those_of_spacys_scorer(pairs: list[tuple[list, list]]) -> None:
    examples = [Example(_document(found), _document(gold)) for found, gold in pairs]
    scores = Scorer.score_spans(examples, "ents")
    tally = tally_of(*(("user", e.reference.text, _mentions(e.reference), _mentions(e.predicted)) for e in examples))
    made = figures(tally, resamples=1)
    for ours, theirs in (("precision", "ents_p"), ("recall", "ents_r"), ("f1", "ents_f")):
        assert (made[("exact", ANY, ours)].value or 0.0) == pytest.approx(scores[theirs] or 0.0)
    for label, of_label in (scores["ents_per_type"] or {}).items():
        for ours, theirs in (("precision", "p"), ("recall", "r"), ("f1", "f")):
            assert (made[("exact", label, ours)].value or 0.0) == pytest.approx(of_label[theirs])
