"""A prepared corpus is read again, whole or with fewer users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from fl_sim.api import corpora as api
from fl_sim.cli.main import main
from fl_sim.config import RunConfig
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.deidentify import deidentify
from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.prepare import prepare
from fl_sim.data_prep.readers.cleaning import Preprocessing
from fl_sim.data_prep.readers.prepared_corpus import FEWER, PreparedReader
from fl_sim.data_prep.readers.reader import RawCorpus
from fl_sim.data_prep.records import CorpusError, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.experiments.plan.guarantees import EnforcedBounds
from tests.data_prep.marked import said

SENTENCES = (
    said("Ada Byron left.", "Ada Byron", user="a"),
    said("She came back.", user="a"),
    said("We met ada byron there.", user="b"),  # not marked
    said("Corwin stayed.", "Corwin", user="b"),
    said("Leeds is far.", ("Leeds", "LOC"), user="d"),
    said("I know Ada Byron's aunt.", "Ada Byron's", user="c", split="validation"),
    said("Nothing else.", user="c", split="validation"),
)


@pytest.fixture
def names(tmp_path: Path) -> Path:
    return write_corpus(SENTENCES, tmp_path / "corpus", name="names").path


def read(corpus: Path, **fewer: Any) -> list[Sentence]:
    return list(PreparedReader(source=str(corpus), **fewer).read().sentences())


def test_everything_or_certain_users_are_read_again(names: Path) -> None:
    assert read(names) == [*SENTENCES]
    kept = read(names, max_users=2)
    users = {sentence.user for sentence in kept if sentence.split == "train"}
    assert len(users) == 2
    assert kept == [sentence for sentence in SENTENCES if sentence.user in users or sentence.split == "validation"]
    assert set(read(names, max_users=1)) < set(kept)


def test_the_manifest_says_who_is_left_out(names: Path, tmp_path: Path) -> None:
    prepared = ["prepare", "prepared", "--source", str(names), "--out", str(tmp_path / "fewer"), "--json"]
    assert main([*prepared, "--max-users", "2"]) == 0
    fewer = Corpus.open(tmp_path / "fewer")
    assert fewer.manifest.settings["max_users"] == 2
    assert fewer.fingerprints == {fewer.fingerprint, Corpus.open(names).fingerprint}
    assert main(prepared) == 2  # another corpus lies there
    assert main([*prepared, "--max-users", "0"]) == 2
    lowered = ["prepare", "prepared", "--source", str(fewer.path), "--lower-case", "--out", str(tmp_path / "lowered")]
    assert main([*lowered, "--json"]) == 0
    deidentified, _ = deidentify(Corpus.open(tmp_path / "lowered"), tmp_path / "without")
    assert deidentified.fingerprints > Corpus.open(tmp_path / "lowered").fingerprints > fewer.fingerprints


def test_epsilon_of_the_source_s_users_is_not_claimed_where_others_take_their_places(names: Path) -> None:
    def users(corpus: Path) -> set[str]:
        return {sentence.user for sentence in read(corpus, max_users=2) if sentence.split == "train"}

    gone = min(users(names))
    remaining = [sentence for sentence in SENTENCES if sentence.user != gone]
    without = write_corpus(remaining, names.parent / "without", name="without").path
    assert len(users(without) ^ users(names)) == 2
    told, untold = (PreparedReader(source=str(names), max_users=most).read().settings for most in (2, 3))
    assert told["warnings"] == [FEWER.format(most=2)]
    assert "warnings" not in untold


def test_settings_of_a_reader_that_are_no_fingerprints_harm_nothing(tmp_path: Path) -> None:
    own = write_corpus(SENTENCES, tmp_path / "own", name="own", settings={"parent": ["a"], "before": 3})
    assert own.fingerprint in own.fingerprints


PREPROCESSED = (
    *(said("I met Mr. Johnson.", "Mr. Johnson", user=user) for user in "ab"),
    *(said("That is Johnson's boat.", "Johnson's", user=user) for user in "ab"),
    *(said("David Johnson sent $$$ to Leeds.", "David Johnson", "$$$", ("Leeds", "LOC"), user=user) for user in "ab"),
    said("The U.S. flag.", ("U.S.", "LOC"), user="c", split="validation"),
)


def weights(corpus: Corpus) -> NDArray[np.float64]:
    """Return the weight of every sentence where an entity is in two sentences at most, by weight."""
    bounds = {"privacy.entity_bound": 2, "privacy.user_sentences": "unbounded"}
    return EnforcedBounds.of(RunConfig.from_mapping(bounds).privacy, corpus.ownership("train")).weights


@pytest.mark.parametrize("identity", [Identity(), Identity(("case", "possessive"), family_names=True)])
def test_entities_of_preprocessed_text_stay_what_they_were(identity: Identity, tmp_path: Path) -> None:
    raw = RawCorpus("letters", lambda: iter(PREPROCESSED), has_gold=True).with_preprocessing(Preprocessing.of_paper())
    made = [prepare(raw, tmp_path / "0", identity=identity).corpus]
    for number in (1, 2):
        source = str(made[-1].path)
        made.append(api.prepare("prepared", source, tmp_path / str(number), structured=False))
    for again in made[1:]:
        assert again.texts("train") == made[0].texts("train")
        assert Identity.of_corpus(again.manifest.settings) == identity
        for split in ("train", "validation"):
            pd.testing.assert_frame_equal(again.entities(split), made[0].entities(split))
            assert again.ownership(split).entity_ids.tolist() == made[0].ownership(split).entity_ids.tolist()
        assert weights(again).tolist() == weights(made[0]).tolist()
    with pytest.raises(CorpusError, match="`identity` is not that of the source, whose text is preprocessed already"):
        prepare(PreparedReader(source=str(made[1].path)).read(), tmp_path / "other", identity=Identity(("case",)))
    with pytest.raises(CorpusError, match="`entities` is loc, but the source's text is preprocessed already"):
        # Which labels an entity has is known of all sentences together: those of one user would decide for the others.
        api.prepare("prepared", made[1].path, tmp_path / "places", entities="loc", structured=False)
    with pytest.raises(CorpusError, match="no entity at all"):  # a tagger alone, which finds nothing in this text
        api.prepare("prepared", made[1].path, tmp_path / "found", tagger="rules", structured=False)


def test_family_names_stay_entities_unless_flags_say_otherwise(tmp_path: Path) -> None:
    sentences = [said("I met Ada Byron.", "Ada Byron", user=user) for user in "ab"]
    source = write_corpus(sentences, tmp_path / "source", name="x", identity=Identity(family_names=True)).path
    command = ["prepare", "prepared", "--source", str(source), "--no-structured", "--out"]
    assert (
        main([*command, str(tmp_path / "same")]) == main([*command, str(tmp_path / "other"), "--identity", "case"]) == 0
    )
    assert list(Corpus.open(tmp_path / "same").entities("train")["entity"]) == ["ada byron", "byron"]
    assert list(Corpus.open(tmp_path / "other").entities("train")["entity"]) == ["ada byron"]
