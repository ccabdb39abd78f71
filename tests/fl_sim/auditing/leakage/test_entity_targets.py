"""Which entities are attacked: those whose names stand in no public text, with all their mentions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fl_sim.auditing.leakage.entity_targets import Occurrence, Target, TrainingEntities, fitting_occurrence, grouped
from fl_sim.clients.models.language_model import load_model
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from tests.fl_sim.auditing.leakage.memorising import SPEC


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


def test_private_entities_are_those_in_no_public_text_marked_or_not(named: Corpus) -> None:
    entities = TrainingEntities.of(named, "train")
    assert [(t.key, t.kind, t.mentions) for t in entities.targets] == [
        ("zorbin quell", "PERSON", 3),
        ("fjordhus bank", "ORG", 1),
    ]
    assert entities.known == {("may",), ("oslo",), ("li",)}
    more = TrainingEntities.of(named, "train", public_texts=["the fjordhus BANK, of course"])
    assert [t.key for t in more.targets] == ["zorbin quell"]
    assert ("fjordhus", "bank") in more.known


def test_a_possessive_stays_in_the_sentence(named: Corpus) -> None:
    zorbin = TrainingEntities.of(named, "train").targets[0]
    assert zorbin.occurrences[1] == Occurrence("I saw ", "ZORBIN QUELL", "'S boat in Oslo.")
    assert zorbin.occurrences[1].with_name("Ada") == "I saw Ada'S boat in Oslo."
    assert [occurrence.with_name(occurrence.name) for occurrence in zorbin.occurrences] == [
        sentence.text for sentence in SENTENCES[:3]
    ]


def test_a_corpus_without_private_entities_is_refused(tmp_path: Path) -> None:
    sentences = [says(user, "Oslo.", ("Oslo", "GPE"), split=split) for user, split in (("a", "train"), ("b", "train"))]
    corpus = write_corpus([*sentences, says("c", "In oslo", split="test")], tmp_path / "corpus", name="x")
    with pytest.raises(CorpusError, match=r": no entity of split train is private; allowed: "):
        TrainingEntities.of(corpus, "train")


def test_groups_are_means_over_all_by_kind_and_by_mentions() -> None:
    targets = [Target(str(n), "ORG" if n % 2 else "GPE", str(n), n + 1, ()) for n in range(8)]
    values = {"hit": np.arange(8.0), "miss": np.ones(8)}
    groups = grouped(targets, values, np.random.default_rng(0))
    means = {(g.kind, g.mentions): (g.entities, g.figures["hit"].value) for g in groups}
    assert means == {
        (None, None): (8, 3.5),
        ("GPE", None): (4, 3.0),
        ("ORG", None): (4, 4.0),
        (None, (1, 1)): (1, 0.0),
        (None, (2, 3)): (2, 1.5),
        (None, (4, 7)): (4, 4.5),
        (None, (8, 15)): (1, 7.0),
    }
    assert groups[0].figures["hit"].low < 3.5 < groups[0].figures["hit"].high
    assert groups[3].record()["hit"] == {"value": 0.0, "low": None, "high": None}


def test_a_sample_is_uniform_and_at_most_all(named: Corpus) -> None:
    entities = TrainingEntities.of(named, "train")
    assert entities.sample(9, np.random.default_rng(0)) == [0, 1]
    drawn = [entities.sample(1, np.random.default_rng(seed))[0] for seed in range(200)]
    assert 60 < sum(drawn) < 140


def test_a_mention_that_does_not_fit_is_never_chosen() -> None:
    model = load_model(SPEC, seed=0)
    short, long = Occurrence("See ", "Ada", "."), Occurrence("See ", "Ada", " again" * 60)
    for seed in range(10):
        assert (
            fitting_occurrence(model, Target("ada", "PERSON", "Ada", 2, (long, short)), np.random.default_rng(seed))
            == short
        )
    assert fitting_occurrence(model, Target("ada", "PERSON", "Ada", 1, (long,)), np.random.default_rng(0)) is None
