"""Lists of public names and public weights: which entities they mean, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl_sim.cli.main import main
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.identity import Identity
from fl_sim.data_prep.public_names import (
    SHIPPED,
    PublicNames,
    entity_weights,
    mention_share,
    public_names_file,
    write_public_weights,
)
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.experiments.run_inputs import check_origin

TEXT = "London met Ada"
BOTH = (Mention(0, 6, "LOC"), Mention(11, 14, "PER"))


@pytest.fixture
def two_names(tmp_path: Path) -> Corpus:
    """Entity 0 is london, in 4 sentences; entity 1 is ada, in 1; a fifth sentence has none."""
    mentions = [BOTH, BOTH[:1], BOTH[:1], BOTH[:1], ()]
    sentences = [Sentence("train", user, TEXT, one) for user, one in zip("abcde", mentions, strict=True)]
    return write_corpus(sentences, tmp_path / "corpus", name="x")


def file(folder: Path, content: str | bytes) -> Path:
    path = folder / "names.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ("London", [0]),
        ("# places\r\n\r\nThe LONDON,\r\n", [0]),
        ("\ufeffLondon\nada’s\nnobody", [0, 1]),
        ("# London\nLeeds", []),
    ],
)
def test_names_are_normalised_as_entities_are(two_names: Corpus, tmp_path: Path, content: str, ids: list[int]) -> None:
    assert PublicNames.read(two_names, "train", file(tmp_path, content)).entities == tuple(ids)


def test_the_identity_is_that_of_the_corpus(tmp_path: Path) -> None:
    sentences = [Sentence("train", user, TEXT, BOTH) for user in "ab"]
    corpus = write_corpus(sentences, tmp_path / "corpus", name="x", identity=Identity(steps=("space",)))
    assert PublicNames.read(corpus, "train", file(tmp_path, "london\nAda")).entities == (1,)


def test_lists_of_the_same_names_have_one_digest(two_names: Corpus, tmp_path: Path) -> None:
    lists = ("London\nLeeds", "# towns\nLEEDS\nthe London", "London")
    first, same, fewer = (PublicNames.read(two_names, "train", file(tmp_path, names)).digest for names in lists)
    assert first == same != fewer


def test_the_share_of_mentions(two_names: Corpus, tmp_path: Path) -> None:
    ownership = two_names.ownership("train")
    assert mention_share(ownership, [0]) == 0.8
    assert mention_share(ownership, []) == 0
    none = write_corpus(
        [Sentence("train", user, TEXT, ()) for user in "ab"], tmp_path / "none", name="x", needs_entities=False
    )
    assert mention_share(none.ownership("train"), [0]) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "lists no name; allowed: UTF-8 text with a name on each line"),
        ("# London\n\n", "lists no name"),
        (b"K\xf6ln", r"not UTF-8 \(byte 1\); allowed: UTF-8 text"),
    ],
)
def test_bad_lists(two_names: Corpus, tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        PublicNames.read(two_names, "train", file(tmp_path, content))


def test_the_list_that_ships_names_no_common_person() -> None:
    lines = public_names_file(SHIPPED).read_text(encoding="utf-8").splitlines()
    names = {line for line in lines if not line.startswith("#")}
    assert {"London", "Linux", "Python", "Germany", "New York"} <= names
    assert not {"Jordan", "Georgia", "Paris", "Ada", "Ruby", "Django", "Israel"} & names
    assert not any("/" in name or name != name.strip() for name in names)


def test_weights(two_names: Corpus, tmp_path: Path) -> None:
    weights = entity_weights(two_names, "train", file(tmp_path, "# x\nthe London\t0.25\nLONDON\t.25\nLeeds\t1e-9\n"))
    assert weights.tolist() == [0.25, 1.0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no weight"),
        (b"K\xf6ln\t0.5", "not UTF-8"),
        ("London\t0", r"line 1: weight is '0'; allowed: name, tab and a number in \(0, 1\]"),
        ("a\t1\nLondon\t1.5", "line 2: weight is '1.5'"),
        ("London\tnan", "weight is 'nan'"),
        ("London", "weight is 'London'"),
        ("\t0.5", "weight is '0.5'"),
        ("London\t0.5\nlondon\t0.4", "line 2: 'london' has weight 0.4 and 0.5; allowed: one weight"),
    ],
)
def test_bad_weights(two_names: Corpus, tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(CorpusError, match=message) as error:
        entity_weights(two_names, "train", file(tmp_path, content))
    assert "\n" not in str(error.value)


def test_weights_of_a_public_corpus(two_names: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "weights.tsv"
    words = ["corpus", "weights", str(two_names.path), "--entity-bound", "10", "--sentences", "50", "--out", str(out)]
    assert main(words) == 0
    assert "1 names have a weight below 1" in capsys.readouterr().out
    assert out.read_text(encoding="utf-8").splitlines()[2:] == ["london\t0.25"]  # 10 · 5 / (50 · 4)
    assert entity_weights(two_names, "train", out).tolist() == [0.25, 1.0]
    assert main(words) == 2
    assert "exists already" in capsys.readouterr().err


def test_weights_that_were_counted_on_the_corpus_of_a_run_are_refused(two_names: Corpus, tmp_path: Path) -> None:
    met = [Sentence("train", user, TEXT, BOTH) for user in "ab"]
    made = write_corpus(met, tmp_path / "made", name="made", settings=two_names.as_parent)
    other = write_corpus([*met, *met], tmp_path / "other", name="other")
    write_public_weights(made, entity_bound=1, sentences=1000, out=tmp_path / "weights.tsv")
    config = RunConfig.from_mapping({"privacy.public_weights": tmp_path / "weights.tsv"})
    check_origin(config, other)
    for own in (made, two_names):
        with pytest.raises(ConfigError, match="counted on the corpus of this run, or on one that is made of the same"):
            check_origin(config, own)
    long = [f"{TEXT} at the station of Leeds for the {nth}th time this year" for nth in range(4)]
    for text in (str.upper, str.lower):  # the same text, prepared in two ways
        said = [Sentence("train", user, text(one), BOTH) for user in "ab" for one in long]
        once_more = write_corpus(said, tmp_path / text.__name__, name="long")
    write_public_weights(Corpus.open(tmp_path / "upper"), entity_bound=1, sentences=9, out=tmp_path / "upper.tsv")
    with pytest.raises(ConfigError, match="has several of its sentences"):
        check_origin(config.changed({"privacy.public_weights": str(tmp_path / "upper.tsv")}), once_more)
    check_origin(config.changed({"privacy.settings_from_corpus": True}), two_names)
    check_origin(config.changed({"corpus.train_split": "another"}), two_names)


@pytest.mark.parametrize(("bound", "sentences"), [(0, 5), (1, 0)])
def test_bounds_that_mean_nothing(two_names: Corpus, tmp_path: Path, bound: int, sentences: int) -> None:
    with pytest.raises(CorpusError, match="is 0; allowed: an integer of at least 1"):
        write_public_weights(two_names, entity_bound=bound, sentences=sentences, out=tmp_path / "weights.tsv")
