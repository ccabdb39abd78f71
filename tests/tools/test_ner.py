"""The tools that train the tagger that ships: sets, augmentation, word vectors, and a whole training at small size."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import spacy
from safetensors.numpy import save_file
from spacy.tokens import DocBin

from fl_sim.data_prep.records import CorpusError
from tests.conftest import REPOSITORY
from tests.data_prep.marked import said
from tools.ner import training_data
from tools.ner.augmentation import drop_case, mark_unknown, name_pools, swap_names
from tools.ner.distillation import distil_table, hashed_vectors
from tools.ner.open_sets import OPEN_SETS, TEST, TRAIN, VALIDATION, NamedPart, read_open_sets
from tools.ner.training_data import Recipe, training_sentences, write_documents
from tools.ner.word_vectors import word_vectors

PROJECT = REPOSITORY / "tools" / "ner"
PEOPLE = ("Ada/B-PER Marsh/I-PER", "Tom/B-PER Brill/I-PER", "Ines/B-PER", "Ruth/B-PER Okoye/I-PER")
PLACES = ("Leeds/B-LOC", "Porto/B-LOC", "New/B-LOC Haven/I-LOC")
TEXTS = ("{person} moved to {place} in May .", "The shop in {place} is closed .", "Nobody saw {person} there .")


def iob(text: str, number: int) -> str:
    """``token tag`` lines of ``Ada/B-PER Marsh/I-PER went``; words without a tag are outside."""
    words = text.format(person=PEOPLE[number % len(PEOPLE)], place=PLACES[number % len(PLACES)]).split()
    return "".join(f"{token} {tag or 'O'}\n" for token, _, tag in (word.partition("/") for word in words))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one set, in the files of wikigold: forty documents of three sentences."""
    folder = tmp_path_factory.mktemp("open")
    documents = ["\n".join(iob(text, number) for text in TEXTS) for number in range(40)]
    (folder / "wikigold").mkdir()
    (folder / "wikigold" / "wikigold.conll.txt").write_text("\n-DOCSTART- O\n\n".join(documents), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as that of a pretrained encoder, of a few pieces with embeddings of width 8."""
    folder = tmp_path_factory.mktemp("encoder")
    pieces = ["[PAD]", "!", "7", "##ing", "ada", "tom", "ines", "ruth", "leeds", "porto", "moved", "shop", "saw"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    table = np.random.default_rng(0).normal(size=(len(pieces), 8)).astype(np.float32)
    save_file({"embeddings.word_embeddings.weight": table}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project whose configuration is made small."""
    folder = tmp_path_factory.mktemp("project") / "ner"
    shutil.copytree(PROJECT, folder)
    text = (folder / "ner.cfg").read_text(encoding="utf-8")
    for old, new in {
        "width = 96": "width = 16",
        "hidden_width = 64": "hidden_width = 16",
        "depth = 4": "depth = 1",
        "rows = [500,2500,500]": "rows = [50,50,50]",
        "eval_frequency = 250": "eval_frequency = 40",
        '"wikigold":6': '"wikigold":3',
        '"synthetic":0.05': '"synthetic":0',
        "initial_rate = 0.002": "initial_rate = 0.01",
        "warmup_steps = 200": "warmup_steps = 1",
        "size = 600": "size = 100",
        "rows = 36000": "rows = 300",
        "columns = 40": "columns = 4",
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    (folder / "ner.cfg").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.nightly
def test_the_project_trains_a_pipeline_that_finds_names_and_keeps_no_word(
    project: Path, source: Path, encoder: Path
) -> None:
    variables = [f"--vars.source={source}", f"--vars.encoder={encoder}"]
    command = [sys.executable, "-m", "spacy", "project", "run", "all", str(project), *variables]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    trained = project / "en_fl_sim_ner"
    pipeline = spacy.load(trained)
    assert ("Porto", "LOC") in {(ent.text, ent.label_) for ent in pipeline("Ruth Okoye moved to Porto in May.").ents}
    assert pipeline.vocab.vectors.shape == (300, 4)
    assert not list(trained.rglob("*.py"))
    strings = (trained / "vocab" / "strings.json").read_text(encoding="utf-8")
    assert not [word for word in ("Okoye", "Porto", "moved") if word in strings]
    meta = json.loads((trained / "meta.json").read_text(encoding="utf-8"))
    assert meta["performance"]["wikigold"]["test"]["f1"] > 0.8
    card = (trained / "README.md").read_text(encoding="utf-8")
    assert "300 rows and 4 columns" in card
    assert "CC BY 4.0" in card
    assert set(spacy.util.load_config(trained / "config.cfg")["paths"].values()) == {None}


def test_the_first_step_writes_documents_and_vectors(
    project: Path, source: Path, encoder: Path, tmp_path: Path
) -> None:
    words = ["--config", str(project / "ner.cfg"), "--seed", "0", f"--encoder={encoder}", "--out", str(tmp_path / "a")]
    training_data.main(["--source", str(source), *words])
    documents = list(DocBin().from_disk(tmp_path / "a" / "train.spacy").get_docs(spacy.blank("en").vocab))
    assert {ent.label_ for document in documents for ent in document.ents} == {"PER", "LOC"}
    record = json.loads((tmp_path / "a" / "training.json").read_text(encoding="utf-8"))
    assert (record["sentences"], record["teacher"]["words"]) == (len(documents), 9)
    with pytest.raises(SystemExit):
        training_data.main(["--source", str(tmp_path), *words])


def test_a_set_in_part_and_a_folder_without_sets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="at least one of the folders btc, uner, wikigold, wnut17"):
        read_open_sets(tmp_path)
    (tmp_path / "wnut17").mkdir()
    with pytest.raises(CorpusError, match=r"wnut17train\.conll .* is missing"):
        read_open_sets(tmp_path)


def test_the_parts_of_a_set_are_whole_documents_and_never_change(source: Path) -> None:
    parts, records = read_open_sets(source)
    documents = {part.part: {sentence.user for sentence in part.sentences} for part in parts}
    assert set(documents) == {TRAIN, VALIDATION, TEST}
    assert sum(len(names) for names in documents.values()) == 40
    assert documents[TEST] == {f"wikigold.conll.txt-{number:04d}" for number in (19, 27, 31)}
    assert list(records) == ["wikigold/wikigold.conll.txt"]
    assert {each.licence for each in OPEN_SETS} == {"CC BY 4.0", "CC BY-SA 4.0"}


def test_word_vectors_are_those_of_whole_words_in_three_spellings(encoder: Path, tmp_path: Path) -> None:
    made = word_vectors(encoder)
    assert not {"[PAD]", "!", "7", "##ing"} & set(made.words)
    made.write(tmp_path / "vectors")
    pipeline = spacy.load(tmp_path / "vectors")
    row = made.rows[made.words.index("porto")]
    for form in ("porto", "Porto", "PORTO"):
        np.testing.assert_array_equal(pipeline.vocab.get_vector(form), row)
    (tmp_path / "vocab.txt").write_text("a\nb\n", encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(CorpusError, match=r"no encoder with .* and vocab\.txt"):
        word_vectors(tmp_path)


@pytest.mark.nightly
def test_a_table_with_room_resembles_its_teacher_in_any_case() -> None:
    words = [f"word{number}" for number in range(400)]
    targets = np.random.default_rng(0).normal(size=(len(words), 6)).astype(np.float32)
    table = distil_table(words, targets, [f"other{number}" for number in range(200)], rows=2000)
    pipeline = spacy.blank("en")
    pipeline.vocab.vectors = hashed_vectors(table, pipeline.vocab.strings)
    read = np.array([pipeline.make_doc(word.upper())[0].vector for word in words])
    assert ((read - targets) ** 2).mean() < 0.05 * (targets**2).mean()


POOL = (
    said("Ada Marsh left Leeds with @tom .", ("Ada Marsh", "PER"), ("Leeds", "LOC"), ("@tom", "PER")),
    said("In New Haven , Ines waited", ("New Haven", "LOC"), ("Ines", "PER")),
)


def test_swapped_names_are_where_the_mentions_say() -> None:
    pools = name_pools(POOL)
    assert pools == {"LOC": ("Leeds", "New Haven"), "PER": ("Ada Marsh", "Ines")}
    rng = np.random.default_rng(0)
    made = [swap_names(POOL[0], pools, 1.0, rng) for _ in range(20)]
    assert len({each.text for each in made}) == 4
    for each in made:
        person, place, handle = (each.surface(mention) for mention in each.mentions)
        assert each.text == f"{person} left {place} with @tom ."
        assert (person in pools["PER"], place in pools["LOC"], handle) == (True, True, "@tom")


def test_a_sentence_without_case_keeps_its_spans() -> None:
    odd = said("STRASSE or Straße, Ada", ("Ada", "PER"))
    upper = drop_case(odd, upper=True)
    assert upper.text == "STRASSE OR STRAßE, ADA"
    assert upper.surface(upper.mentions[0]) == "ADA"


def test_unmarked_capitals_are_missing_annotation_to_spacy(tmp_path: Path) -> None:
    write_documents([mark_unknown(said("Some German met Ada", ("Ada", "PER")))], tmp_path / "one.spacy")
    (document,) = DocBin().from_disk(tmp_path / "one.spacy").get_docs(spacy.blank("en").vocab)
    assert [token.ent_iob_ for token in document] == ["O", "", "O", "B"]


def test_the_recipe_decides_what_is_learnt() -> None:
    part = NamedPart("wikigold", TRAIN, ("LOC", "PER"), (*POOL, said("Nothing here")))

    def learnt(repeats: float, seed: int = 0, upper: float = 0.0, **others: object) -> list[str]:
        settings = {"swap": 1.0, "upper": upper, "lower": 0.0, "choose_on": ("wikigold",), **others}
        recipe = Recipe.model_validate({"repeats": {"wikigold": repeats}, **settings})
        return [s.text for s in training_sentences([part], recipe, seed)]

    assert sorted(learnt(1)) == sorted(s.text for s in part.sentences)
    assert len(learnt(3, keep_empty={"wikigold": 0.0})) == 6
    assert len(learnt(1.34)) == 4
    assert all(text.isupper() for text in learnt(1, upper=1.0))
    assert learnt(9) == learnt(9) != learnt(9, seed=1)
    with pytest.raises(CorpusError, match="repeats names none"):
        learnt(0)
