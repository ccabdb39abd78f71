"""Training on a corpus of a few sentences: the same seed makes the same weights, and a stopped one leaves nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import spacy
from safetensors.numpy import save_file
from spacy.ml.staticvectors import StaticVectors
from spacy.tokens import DocBin
from spacy.vectors import Vectors
from thinc.api import chain, ragged2list

from fl_sim.data_prep.ner import pipeline_training
from fl_sim.data_prep.ner.augmentation import UNKNOWN, drop_case, mark_unknown, name_pools, swap_names
from fl_sim.data_prep.ner.open_sets import OPEN_SETS, TEST, TRAIN, VALIDATION, NamedPart, read_open_sets
from fl_sim.data_prep.ner.pipeline_training import Recipe, TrainedPipeline, train_pipeline, training_sentences
from fl_sim.data_prep.ner.word_vectors import reduce_vectors, word_vectors
from fl_sim.data_prep.records import CorpusError, Mention, Sentence

CONFIG = Path(__file__).parents[3] / "conf" / "ner.cfg"

PEOPLE = ("Ada Marsh", "Tom Brill", "Ines", "Ruth Okoye", "Wim de Vos")
PLACES = ("Leeds", "Porto", "New Haven", "Oslo")


def iob(tokens: str, sentence: int) -> str:
    """``token tag`` lines of ``Ada/B-PER Marsh/I-PER went``; words without a tag are outside."""
    rows = []
    for word in tokens.format(person=person(sentence), place=place(sentence)).split():
        token, _, tag = word.partition("/")
        rows.append(f"{token} {tag or 'O'}")
    return "\n".join(rows) + "\n"


def person(number: int) -> str:
    return tagged(PEOPLE[number % len(PEOPLE)], "PER")


def place(number: int) -> str:
    return tagged(PLACES[number % len(PLACES)], "LOC")


def tagged(name: str, label: str) -> str:
    first, *rest = name.split()
    return " ".join([f"{first}/B-{label}", *(f"{word}/I-{label}" for word in rest)])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one set, in the files of wikigold: forty documents of three sentences."""
    folder = tmp_path_factory.mktemp("open")
    texts = ("{person} moved to {place} in May .", "The shop in {place} is closed .", "Nobody saw {person} there .")
    documents = ["\n".join(iob(text, number) for text in texts) for number in range(40)]
    (folder / "wikigold").mkdir()
    (folder / "wikigold" / "wikigold.conll.txt").write_text("\n-DOCSTART- O\n\n".join(documents), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration that ships, made small."""
    text = CONFIG.read_text(encoding="utf-8")
    for old, new in {
        "width = 96": "width = 16",
        "hidden_width = 64": "hidden_width = 16",
        "depth = 4": "depth = 1",
        "rows = [500,2500,500]": "rows = [50,50,50]",
        "eval_frequency = 250": "eval_frequency = 40",
        "max_epochs = 5": "max_epochs = 4",
        '"wikigold":6': '"wikigold":3',
        "initial_rate = 0.002": "initial_rate = 0.01",
        "warmup_steps = 200": "warmup_steps = 1",
        "size = 600": "size = 100",
        '"synthetic":0.05': '"synthetic":0',
        "rows = 36000": "rows = 300",
        "columns = 40": "columns = 4",
        "again_epochs = 2": "again_epochs = 1",
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    path = tmp_path_factory.mktemp("config") / "small.cfg"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as that of a pretrained encoder, of twenty pieces with embeddings of width 8."""
    folder = tmp_path_factory.mktemp("encoder")
    pieces = ["[PAD]", "[CLS]", "!", "7", "##ing", *(name.split()[0].lower() for name in (*PEOPLE, *PLACES))]
    pieces += ["moved", "shop", "closed", "nobody", "saw", "there"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    table = np.random.default_rng(0).normal(size=(len(pieces), 8)).astype(np.float32)
    save_file({"embeddings.word_embeddings.weight": table}, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def trained(source: Path, config: Path, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainedPipeline:
    """One training with seed 0; the others are compared with it."""
    return train_pipeline(source, tmp_path_factory.mktemp("trained") / "out", config, teacher=encoder)


@pytest.mark.nightly
def test_the_same_seed_makes_the_same_bytes(
    source: Path, config: Path, encoder: Path, trained: TrainedPipeline, tmp_path: Path
) -> None:
    again = train_pipeline(source, tmp_path / "again", config, teacher=encoder)
    assert again.sha256 == trained.sha256
    names = [path.relative_to(trained.folder) for path in trained.folder.rglob("*") if path.is_file()]
    assert len(names) >= 10
    for name in names:
        assert (tmp_path / "again" / name).read_bytes() == (trained.folder / name).read_bytes(), name


def test_another_seed_makes_other_sentences() -> None:
    recipe = Recipe(repeats={"a": 2}, swap=1.0, upper=0.0, lower=0.0, choose_on=("a",))
    part = NamedPart("a", TRAIN, ("LOC", "PER"), POOL * 5)
    first, again, other = ([s.text for s in training_sentences([part], recipe, seed)] for seed in (0, 0, 1))
    assert first == again
    assert first != other


@pytest.mark.nightly
def test_what_is_trained_loads_without_code_finds_names_and_keeps_no_word(trained: TrainedPipeline) -> None:
    assert trained.scores["wikigold"]["test"]["f1"] is not None
    assert trained.scores["wikigold"]["test"]["f1"] > 0.8
    pipeline = spacy.load(trained.folder)
    found = {(ent.text, ent.label_) for ent in pipeline("Ruth Okoye moved to Porto in May.").ents}
    assert ("Porto", "LOC") in found
    assert pipeline.vocab.vectors.shape == (300, 4)
    assert not list(trained.folder.rglob("*.py"))
    strings = (trained.folder / "vocab" / "strings.json").read_text(encoding="utf-8")
    for word in ("Okoye", "Porto", "moved"):
        assert word not in strings
    card = (trained.folder / "README.md").read_text(encoding="utf-8")
    assert trained.sha256 in card
    assert "CC BY 4.0" in card
    assert "300 rows and 4 columns" in card
    assert "15 word embeddings" in card
    meta = json.loads((trained.folder / "meta.json").read_text(encoding="utf-8"))
    assert meta["performance"] == trained.scores
    assert "/" not in str(spacy.util.load_config(trained.folder / "config.cfg")["paths"])


@pytest.mark.nightly
def test_a_training_that_is_stopped_leaves_nothing(
    source: Path, config: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at its last step, when all but the card is written; what it would have learnt is left out."""
    written: list[Path] = []

    def stop(folder: Path) -> str:
        written.extend(path for path in folder.rglob("*") if path.is_file())
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline_training, "_train_best", lambda pipeline, folder, progress: pipeline)
    monkeypatch.setattr(pipeline_training, "weights_checksum", stop)
    with pytest.raises(KeyboardInterrupt):
        train_pipeline(source, tmp_path / "deep" / "out", config, teacher=encoder)
    assert len(written) >= 10
    assert not list(tmp_path.iterdir())


def test_a_set_in_part_and_a_folder_without_sets_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="at least one of the folders btc, uner, wikigold, wnut17"):
        read_open_sets(tmp_path)
    (tmp_path / "wnut17").mkdir()
    with pytest.raises(CorpusError, match=r"wnut17train\.conll .* is missing"):
        read_open_sets(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("swap = 0.7", "swap = 1.7", "recipe.swap"),
        ("[recipe]", "[other]", "recipe.repeats"),
        ('"wikigold":3', '"wikigold":"many"', "recipe.repeats.wikigold"),
        ("[paths]", "[paths", "not a training configuration of spaCy"),
        ("columns = 4", "columns = 0", "recipe.columns is 0, but .*include_static_vectors is True"),
        ("again_epochs = 1", "again_epochs = 0", "recipe.again_epochs"),
    ],
)
def test_a_wrong_configuration_is_named(
    source: Path, tmp_path: Path, config: Path, old: str, new: str, message: str
) -> None:
    text = config.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "wrong.cfg"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(CorpusError, match=message):
        train_pipeline(source, tmp_path / "out", path)


def test_word_vectors_are_those_of_whole_words_in_three_spellings(encoder: Path, tmp_path: Path) -> None:
    made = word_vectors(encoder)
    assert "porto" in made.words
    assert not {"[PAD]", "!", "7", "##ing"} & set(made.words)
    assert made.rows.std() == pytest.approx(1.0)
    made.write(tmp_path / "vectors")
    pipeline = spacy.load(tmp_path / "vectors")
    row = made.rows[made.words.index("porto")]
    for form in ("porto", "Porto", "PORTO"):
        np.testing.assert_array_equal(pipeline.vocab.get_vector(form), row)
    assert not pipeline.vocab.has_vector("pOrto")


@pytest.mark.nightly
def test_reduced_vectors_say_the_same_as_far_as_their_width_allows(encoder: Path, tmp_path: Path) -> None:
    made = word_vectors(encoder)
    made.write(tmp_path / "vectors")

    def outputs(width: int | None) -> np.ndarray:
        pipeline = spacy.load(tmp_path / "vectors")
        layer = StaticVectors(nO=6, nM=8)
        layer.initialize(X=[pipeline.make_doc("Porto")])
        layer.set_param("W", np.random.default_rng(1).normal(size=(6, 8)).astype(np.float32))
        model = pipeline.add_pipe("ner").model = chain(layer, ragged2list())
        if width:
            reduced = reduce_vectors(pipeline, "ner", width)
            assert reduced.shape == (len(made.words), width)
            vectors = Vectors(strings=pipeline.vocab.strings, data=reduced)
            for key, row in pipeline.vocab.vectors.key2row.items():
                vectors.add(key, row=row)
            pipeline.vocab.vectors = vectors
        return model.predict([pipeline.make_doc("Porto PORTO moved elsewhere")])[0]

    np.testing.assert_allclose(outputs(6), outputs(None), atol=1e-5)
    errors = [np.abs(outputs(width) - outputs(None)).max() for width in (5, 1)]
    assert 1e-4 < errors[0] < errors[1]
    with pytest.raises(CorpusError, match=r"recipe\.columns is 7, it must be from 1 to 6"):
        outputs(7)


def test_an_encoder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no encoder with .* and vocab\.txt"):
        word_vectors(tmp_path)
    (tmp_path / "vocab.txt").write_text("a\nb\n", encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(CorpusError, match=r"no encoder with .* and vocab\.txt"):
        word_vectors(tmp_path)


def test_the_parts_of_a_set_are_whole_documents_and_never_change(source: Path) -> None:
    parts, records = read_open_sets(source)
    documents = {part.part: {sentence.document for sentence in part.sentences} for part in parts}
    assert set(documents) == {TRAIN, VALIDATION, TEST}
    assert sum(len(names) for names in documents.values()) == 40
    assert not documents[TRAIN] & documents[TEST]
    assert documents[TEST] == {f"wikigold.conll.txt {number}" for number in (19, 27, 31)}
    assert list(records) == ["wikigold/wikigold.conll.txt"]
    assert all(sentence.split == part.part for part in parts for sentence in part.sentences)


def test_every_set_says_its_licence_and_its_authors() -> None:
    assert {each.licence for each in OPEN_SETS} == {"CC BY 4.0", "CC BY-SA 4.0"}
    assert all("(20" in each.source for each in OPEN_SETS)


def sentence(text: str, *names: tuple[str, str]) -> Sentence:
    mentions = tuple(Mention(text.index(name), text.index(name) + len(name), label) for name, label in names)
    return Sentence(TRAIN, "user", text, mentions)


POOL = (
    sentence("Ada Marsh left Leeds with @tom .", ("Ada Marsh", "PER"), ("Leeds", "LOC"), ("@tom", "PER")),
    sentence("In New Haven , Ines waited", ("New Haven", "LOC"), ("Ines", "PER")),
)


def test_swapped_names_are_where_the_mentions_say() -> None:
    pools = name_pools(POOL)
    assert pools == {"LOC": ("Leeds", "New Haven"), "PER": ("Ada Marsh", "Ines")}
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(20):
        made = swap_names(POOL[0], pools, 1.0, rng)
        surfaces = [made.surface(mention) for mention in made.mentions]
        assert surfaces[0] in pools["PER"]
        assert surfaces[1] in pools["LOC"]
        assert surfaces[2] == "@tom"
        assert made.text == f"{surfaces[0]} left {surfaces[1]} with @tom ."
        seen.add(made.text)
    assert len(seen) == 4
    assert swap_names(POOL[0], pools, 0.0, rng) == POOL[0]


def test_a_sentence_without_case_keeps_its_spans() -> None:
    odd = sentence("STRASSE or Straße, Ada", ("Ada", "PER"))
    upper = drop_case(odd, upper=True)
    assert upper.text == "STRASSE OR STRAßE, ADA"
    assert upper.surface(upper.mentions[0]) == "ADA"
    assert drop_case(odd, upper=False).text == "strasse or straße, ada"


def test_unmarked_capitals_are_unknown_where_a_set_does_not_mark_all_kinds() -> None:
    known = sentence("Some German met Ada in Rome", ("Ada", "PER"))
    made = mark_unknown(known)
    assert [(made.surface(m), m.label) for m in made.mentions] == [("Ada", "PER"), ("German", "?"), ("Rome", "?")]
    recipe = {"repeats": {"a": 1}, "swap": 0.0, "upper": 0.0, "lower": 0.0, "choose_on": ("a",)}
    part = NamedPart("a", TRAIN, ("LOC", "ORG", "PER"), (known,))
    assert training_sentences([part], Recipe(**recipe), 0) == [known]
    assert training_sentences([part], Recipe(**recipe, incomplete=("a",)), 0) == [made]


def test_unknown_words_are_missing_annotation_to_spacy(tmp_path: Path) -> None:
    made = mark_unknown(sentence("Some German met Ada", ("Ada", "PER")))
    assert UNKNOWN in {mention.label for mention in made.mentions}
    pipeline_training._write_documents([made], tmp_path / "one.spacy")
    (document,) = DocBin().from_disk(tmp_path / "one.spacy").get_docs(spacy.blank("en").vocab)
    assert [token.ent_iob_ for token in document] == ["O", "", "O", "B"]


def test_the_recipe_decides_what_is_learnt() -> None:
    part = NamedPart("wikigold", TRAIN, ("LOC", "PER"), (*POOL, sentence("Nothing here")))
    base = {"swap": 1.0, "upper": 0.0, "lower": 0.0, "choose_on": ("wikigold",)}
    once = training_sentences([part], Recipe(repeats={"wikigold": 1}, **base), 0)
    assert sorted(s.text for s in once) == sorted(s.text for s in part.sentences)
    thrice = training_sentences([part], Recipe(repeats={"wikigold": 3}, keep_empty={"wikigold": 0.0}, **base), 0)
    assert len(thrice) == 6
    half = training_sentences([part], Recipe(repeats={"wikigold": 1.34}, **base), 0)
    assert len(half) == 4
    capitals = training_sentences([part], Recipe(repeats={"wikigold": 1}, **{**base, "upper": 1.0}), 0)
    assert all(s.text.isupper() for s in capitals)
    with pytest.raises(CorpusError, match="repeats names none"):
        training_sentences([part], Recipe(repeats={"btc": 1}, **base), 0)
