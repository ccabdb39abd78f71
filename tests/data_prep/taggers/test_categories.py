"""The paper's 20 categories: every tagger's labels have one, and selecting by category never loses what may belong."""

from __future__ import annotations

import pytest

from fl_sim.data_prep.records import CorpusError
from fl_sim.data_prep.taggers.categories import (
    GROUPS,
    NAMES,
    Category,
    Selection,
    category_of,
    possible_categories,
    selectable,
)
from fl_sim.data_prep.taggers.presidio_tagger import PresidioTagger
from fl_sim.data_prep.taggers.rule_tagger import NAME, RuleTagger

_ONTONOTES = """
PERSON NORP FAC ORG GPE LOC PRODUCT EVENT WORK_OF_ART LAW LANGUAGE DATE TIME PERCENT MONEY QUANTITY ORDINAL CARDINAL
"""
ONTONOTES = _ONTONOTES.split()


def test_the_paper_has_twenty_categories() -> None:
    assert len(Category) == 20
    assert set(ONTONOTES) | {"MISC", "PII"} == {category.value for category in Category}


@pytest.mark.parametrize(
    ("label", "category"),
    [
        *((label, label) for label in ONTONOTES),
        ("PER", "PERSON"),
        ("MISC", "MISC"),
        ("person", "PERSON"),
        ("location", "LOC"),
        ("corporation", "ORG"),
        ("group", "ORG"),
        ("product", "PRODUCT"),
        ("creative-work", "WORK_OF_ART"),
        ("EMAIL", "PII"),
        ("PHONE", "PII"),
        ("NRP", "NORP"),
        ("DATE_TIME", "DATE"),
        (NAME, "MISC"),
        ("CUSTOMER", "MISC"),
    ],
)
def test_labels_of_conll_ontonotes_wnut_and_presidio(label: str, category: str) -> None:
    assert category_of(label) == category


def test_every_label_of_ours_and_of_presidios_recognisers_is_known() -> None:
    for label in RuleTagger.labels | PresidioTagger.labels:
        assert possible_categories(label) != frozenset(Category), label
    assert {category_of(label) for label in PresidioTagger.labels} == {Category.PII}


@pytest.mark.parametrize(
    ("names", "kept", "dropped"),
    [
        ("org", ["ORG", "corporation", NAME, "CUSTOMER"], ["PER", "GPE", "LOC", "MISC", "EMAIL", "DATE"]),
        ("pii", ["PER", "LOC", "GPE", "EMAIL", "US_SSN", NAME], ["ORG", "MISC", "DATE", "MONEY"]),
        ("misc", ["MISC", "NORP", "EVENT", "creative-work", NAME], ["PERSON", "ORG", "LOC", "GPE", "EMAIL", "DATE"]),
        ("event", ["EVENT", "MISC", NAME], ["ORG", "PRODUCT", "LOC"]),
        ("person, DATE", ["PER", "DATE", "DATE_TIME"], ["ORG", "TIME"]),
        ("time", ["TIME", "DATE_TIME"], ["DATE"]),
        ("all", [*ONTONOTES, "MISC", "EMAIL", NAME, "CUSTOMER"], []),
    ],
)
def test_selections(names: str, kept: list[str], dropped: list[str]) -> None:
    selection = Selection.parse(names)
    assert [label for label in kept if not selection.keeps(label, ONTONOTES)] == []
    assert [label for label in dropped if selection.keeps(label, ONTONOTES)] == []


def test_a_location_may_be_a_country_unless_its_source_tells_them_apart() -> None:
    gpe, loc = Selection.parse("gpe"), Selection.parse("loc")
    assert gpe.keeps("LOC", ["PER", "ORG", "LOC", "MISC"])
    assert gpe.keeps("LOC")
    assert not gpe.keeps("LOC", ["LOC", "GPE"])
    assert not loc.keeps("GPE", ["LOC", "GPE"])


def test_the_groups_cover_what_they_say() -> None:
    assert GROUPS["all"] == frozenset(Category)
    assert not Selection.parse("org,loc,gpe,pii,person,misc").everything
    assert frozenset().union(*(GROUPS[name] for name in ["org", "loc", "gpe", "pii", "person", "misc"])) == NAMES | {
        Category.PII
    }
    assert Selection.parse(["ORG", "org ", "all"]).everything


@pytest.mark.parametrize("names", ["", " , ", "org,nobody", "name"])
def test_an_unknown_name_is_refused_with_those_that_exist(names: str) -> None:
    with pytest.raises(CorpusError, match="org, loc, gpe, pii, person, misc, all, date, norp"):
        Selection.parse(names)
    assert set(selectable()) == {category.value.lower() for category in Category} | {"all"}
