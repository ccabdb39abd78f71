"""The kinds of personal data that nobody looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl_sim.data_prep.corpus_writer import append_corpus, write_corpus
from fl_sim.data_prep.deidentify import deidentify
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.taggers.tagger_registry import STRUCTURED_KINDS, make_tagger, unsought_among, unsought_kinds
from tests.data_prep.marked import said

FORMS = tuple(STRUCTURED_KINDS)
NAMES = ("persons", "organisations", "places")


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ([], NAMES),
        (["NICK", "MISC", "whatever"], NAMES),
        (["PER"], NAMES[1:]),
        (["corporation", "GPE"], NAMES[:1]),
        (["NAME"], ()),
    ],
)
def test_names(labels: list[str], names: tuple[str, ...]) -> None:
    assert unsought_among(labels) == (*names, *FORMS)
    assert unsought_among([*labels, "PII"]) == names


def test_taggers() -> None:
    assert unsought_among(make_tagger("rules").labels) == ("IP addresses",)
    assert unsought_among(make_tagger("rules", structured=True).labels) == ()


def corpus_of(folder: Path, label: str, **described: object) -> Corpus:
    sentences = [said("Ada left", "Ada", user=user, label=label) for user in "ab"]
    return write_corpus(sentences, folder, name="x", **described)  # type: ignore[arg-type]


def test_gold_marks_and_what_the_tagger_could_have_found(tmp_path: Path) -> None:
    assert unsought_kinds(corpus_of(tmp_path / "gold", "PER")) == ("organisations", "places", *FORMS)
    sought = corpus_of(tmp_path / "rules", "PER", sought_labels=["ORG", "LOC"])
    assert unsought_kinds(sought) == FORMS


def test_structured_data_counts_as_far_as_it_was_selected(tmp_path: Path) -> None:
    both = {"tagger": "gold", "structured": "1", "entities": "all"}
    assert unsought_kinds(corpus_of(tmp_path / "all", "PER", tagger=both)) == NAMES[1:]
    persons = corpus_of(tmp_path / "persons", "PER", tagger=both | {"entities": "person"})
    assert unsought_kinds(persons) == (*NAMES[1:], *FORMS)


def test_a_part_without_is_named(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "out", "PER", tagger={"tagger": "gold", "structured": "1"})
    more = [said("Acme paid", "Acme", user="c", label="ORG")]
    corpus = append_corpus(corpus, more, joined_at=2, name="x", tagger={"tagger": "gold"})
    assert unsought_kinds(corpus) == (*NAMES, *FORMS)


def test_a_deidentified_corpus_remembers(tmp_path: Path) -> None:
    corpus, _ = deidentify(corpus_of(tmp_path / "gold", "PER"), tmp_path / "out", "remove")
    assert unsought_kinds(corpus) == ("organisations", "places", *FORMS)
