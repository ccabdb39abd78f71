"""Which names are attacked: those of entities that stand in no other split, with all their mentions."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl_sim.auditing.leakage.name_ranking import Occurrence, entity_of_name, training_entities
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.readers.cleaning import Preprocessing, Reading
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus


def says(user: str, text: str, *names: tuple[str, str], split: str = "train") -> Sentence:
    mentions = [Mention(text.index(name), text.index(name) + len(name), label) for name, label in names]
    return Sentence(split, user, text, tuple(mentions))


SENTENCES = [
    says("ann", "Zorbin Quell met May.", ("Zorbin Quell", "PER"), ("May", "PER")),
    says("bob", "I saw ZORBIN QUELL'S boat in Oslo.", ("ZORBIN QUELL'S", "PER"), ("Oslo", "GPE")),
    says("bob", "Mr. Zorbin Quell and Li.", ("Mr. Zorbin Quell", "PER"), ("Li", "PER")),
    says("bob", "Fjordhus Bank is closed.", ("Fjordhus Bank", "ORG")),
    says("eve", "You may go to the bank.", split="validation"),
    says("eve", "Oslo is far.", ("Oslo", "GPE"), split="public"),
]


@pytest.fixture
def named(tmp_path: Path) -> Corpus:
    return write_corpus(SENTENCES, tmp_path / "corpus", name="x")


def test_private_entities_are_those_in_no_other_split_marked_or_not(named: Corpus) -> None:
    entities = training_entities(named, "train")
    assert [(one.key, one.kind, len(one.occurrences)) for one in entities if one.is_private] == [
        ("zorbin quell", "PERSON", 3),
        ("fjordhus bank", "ORG", 1),
    ]
    assert {one.key for one in entities if not one.is_private} == {"may", "oslo", "li"}


def test_a_possessive_stays_in_the_sentence(named: Corpus) -> None:
    zorbin = training_entities(named, "train")[0]
    assert zorbin.occurrences[1] == Occurrence("I saw ", "ZORBIN QUELL", "'S boat in Oslo.")
    assert [occurrence.with_name(occurrence.name) for occurrence in zorbin.occurrences] == [
        sentence.text for sentence in SENTENCES[:3]
    ]


def test_an_entity_is_found_by_any_form_of_its_name(named: Corpus) -> None:
    entities = training_entities(named, "train")
    assert entity_of_name(named, "train", entities, "mr. zorbin QUELL") is entities[0]
    with pytest.raises(CorpusError, match=r"^entity is 'Nemo'; allowed: one that split train of "):
        entity_of_name(named, "train", entities, "Nemo")


def test_a_mention_whose_preprocessed_text_means_another_entity_is_not_attacked_as_that_one(tmp_path: Path) -> None:
    """The bound of an entity is of its own sentences: "O'Neil" reads "oneil" now, "Kent's" reads "kents"."""
    texts = {"He is O'Neil.": "O'Neil", "She is Oneil.": "Oneil", "It is Kent's.": "Kent's", "It is Kent.": "Kent"}
    sentences = [says("ann", text, (name, "PER")) for text, name in texts.items()]
    rewrite = Preprocessing.of_paper().rewriter(Reading())
    corpus = write_corpus([*sentences, says("bob", "Hello.")], tmp_path / "corpus", name="x", rewrite=rewrite)
    entities = {one.key: [o.with_name(o.name) for o in one.occurrences] for one in training_entities(corpus, "train")}
    assert entities == {"oneil": ["she is oneil"], "kent": ["it is kent"]}
