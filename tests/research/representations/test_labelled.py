"""Readers of labelled examples with private attributes: own small files, and the real ones where they are."""

from __future__ import annotations

import lzma
import string
from pathlib import Path

import numpy as np
import pytest

from fl_sim import data_prep
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.readers.cleaning import Preprocessing, Reading
from fl_sim.data_prep.records import CorpusError, Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.research.representations.corpora.labelled import cut, shuffled
from fl_sim.research.representations.corpora.labelled_tables import read_adult
from fl_sim.research.representations.corpora.labelled_text import (
    entity_words,
    read_dpnr_ag,
    read_labelled_ag_news,
    read_sst2,
)

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"

ROW = "{age}, Private, 100, {school}, 9, Never-married, Sales, Husband, White, {sex}, 0, 0, 40, {home}, {income}"


def adult_folder(folder: Path, rows: int = 40) -> Path:
    lines = [
        ROW.format(
            age=20 + i % 30,
            school=("9th", "Bachelors", "1st-4th")[i % 3],
            sex=("Male", "Female")[i % 2],
            home=("United-States", "Cuba", "?")[i % 3 if i % 10 == 0 else 0],
            income=("<=50K", ">50K")[i % 4 == 0],
        )
        for i in range(rows)
    ]
    (folder / "adult.data").write_text("\n".join(lines[: rows // 2]) + "\n")
    (folder / "adult.test").write_text("|1x3 Cross validator\n" + "\n".join(f"{x}." for x in lines[rows // 2 :]) + "\n")
    return folder


def test_adult_splits_are_complete_standardised_and_a_function_of_the_seed(tmp_path: Path) -> None:
    source = adult_folder(tmp_path, 200)
    data = read_adult(source, 0)
    sizes = [len(data.splits[name]) for name in ("train", "validation", "test")]
    dropped = sum("?" in ("United-States", "Cuba", "?")[i % 3] for i in range(0, 200, 10))
    assert sum(sizes) == 200 - dropped
    assert sizes[0] == round(0.6 * sum(sizes))
    np.testing.assert_allclose(data.train.table.mean(axis=0), 0, atol=1e-5)
    assert set(np.unique(data.train.labels)) == {0, 1}
    assert data.fingerprint == read_adult(source, 0).fingerprint
    assert data.fingerprint != read_adult(source, 1).fingerprint
    assert read_adult(source, 0, "code").train.table.shape[1] != data.train.table.shape[1]
    code = read_adult(source, 0, split="code")
    whole = len(data.train) + len(data.validation) + len(data.test)
    assert [len(code.train), len(code.validation)] == [round(0.72 * whole), round(0.8 * whole) - round(0.72 * whole)]


def test_adult_labels_and_sexes_stay_with_their_rows(tmp_path: Path) -> None:
    rows = [("<=50K", "Male", 20), (">50K", "Female", 60)] * 10
    lines = [ROW.format(age=a, school="9th", sex=s, home="Cuba", income=i) for i, s, a in rows]
    (tmp_path / "adult.data").write_text("\n".join(lines))
    (tmp_path / "adult.test").write_text(lines[0] + ".\n")
    data = read_adult(tmp_path, 3)
    for split in data.splits.values():
        old = split.table[:, -3] > 0  # columns end with age, education-num, hours-per-week
        np.testing.assert_array_equal(old, split.labels == 1)
        np.testing.assert_array_equal(old, split.private[:, 0] == 0)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1, 2, 3", "line 1: 3 columns"),
        (ROW.format(age="x", school="9th", sex="Male", home="Cuba", income="<=50K"), "line 1: age is 'x'"),
        (ROW.format(age=1, school="9th", sex="Any", home="Cuba", income="<=50K"), "line 1: sex is 'Any'"),
        (ROW.format(age=1, school="9th", sex="Male", home="Cuba", income="50"), "line 1: income is '50'"),
    ],
)
def test_bad_rows_of_adult_are_named(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "adult.data").write_text(line + "\n")
    (tmp_path / "adult.test").write_text(line + "\n")
    with pytest.raises(CorpusError) as error:
        read_adult(tmp_path, 0)
    assert said in str(error.value)


def test_a_missing_file_of_adult_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no adult\.data"):
        read_adult(tmp_path, 0)


def dpnr_file(folder: Path) -> Path:
    parts = ["0\tBush met Kerry\t0 1\n2\tSharon spoke\t4\n", "1\tBlair\t3\n", "3\tArafat \t2\n"]
    text = "====================\n".join(parts) + "====================\n"
    (folder / "ag_data.txt.xz").write_bytes(lzma.compress(text.encode()))
    return folder


def test_dpnr_s_set_keeps_its_splits_and_persons(tmp_path: Path) -> None:
    data = read_dpnr_ag(dpnr_file(tmp_path))
    assert [len(data.splits[name]) for name in ("train", "validation", "test")] == [2, 1, 1]
    assert data.train.texts == ("Bush met Kerry", "Sharon spoke")
    np.testing.assert_array_equal(data.train.private, [[1, 1, 0, 0, 0], [0, 0, 0, 0, 1]])
    assert data.test.labels.tolist() == [3]


@pytest.mark.parametrize("line", ["0\tno private", "7\ttext\t0", "0\ttext\t5", "0\ttext\tx"])
def test_bad_lines_of_dpnr_s_set_are_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "ag_data.txt").write_text(line + "\n")
    with pytest.raises(CorpusError, match="line 1"):
        read_dpnr_ag(tmp_path)


def test_sst2_is_drawn_by_the_seed(tmp_path: Path) -> None:
    for name, rows in (("train", 100), ("test", 20)):
        (tmp_path / f"{name}.tsv").write_text(
            "label\tsentence\r\n" + "".join(f"{i % 2}\ts {i}\r\n" for i in range(rows))
        )
    data = read_sst2(tmp_path, 0, 40)
    assert [len(data.splits[name]) for name in ("train", "validation", "test")] == [38, 2, 20]
    assert all(
        int(text.split()[1]) % 2 == label for text, label in zip(data.train.texts, data.train.labels, strict=True)
    )
    assert data.train.texts != read_sst2(tmp_path, 1, 40).train.texts
    assert data.train.private.shape == (38, 0)
    with pytest.raises(CorpusError, match="rows 1000"):
        read_sst2(tmp_path, 0, 1000)
    assert len(data.unused) == 60
    assert not set(data.unused) & {*data.train.texts, *data.validation.texts}
    first = [read_sst2(tmp_path, seed, 40, "first") for seed in (0, 1)]
    for one in first:
        assert {*one.train.texts, *one.validation.texts} == {f"s {i}" for i in range(40)}
        assert one.unused == tuple(f"s {i}" for i in range(40, 100))
    assert first[0].validation.texts != first[1].validation.texts


def test_the_words_of_a_prepared_corpus_s_entities() -> None:
    corpus = Corpus.open(Path(data_prep.__file__).parent / "bundled")
    words = entity_words(corpus)
    keys = corpus.entities("train")["entity"]
    assert len(words) > 1000
    assert all(word == word.lower() and word.strip(string.punctuation) == word for word in words)
    named = sum(all(word in words for word in key.lower().replace(".", "").split()) for key in keys)
    assert named > 0.75 * len(keys)


def test_a_name_in_lower_case_has_words(tmp_path: Path) -> None:
    mentions = (Mention(0, 15, "PERSON"), Mention(20, 35, "ORG"))
    owners = [("train", "a"), ("train", "b"), ("test", "c")]
    sentences = [Sentence(split, user, "jean-luc picard met Bank of England", mentions) for split, user in owners]
    words = {"jean-luc", "picard", "bank", "england"}
    assert entity_words(write_corpus(sentences, tmp_path / "c", name="c")) == words


def test_preprocessed_text_has_the_words_of_its_entities_before(tmp_path: Path) -> None:
    mention = (Mention(0, 6, "PERSON"),)
    sentences = [Sentence("train", user, "Kent's letter.", mention) for user in "ab"]
    paper = Preprocessing.of_paper()
    settings, rewrite = paper.manifest_settings(), paper.rewriter(Reading())
    corpus = write_corpus(sentences, tmp_path / "c", name="c", settings=settings, rewrite=rewrite)
    assert entity_words(corpus) == {"kent", "kents"}


def test_cutting_loses_nothing_and_seed_0_is_a_seed() -> None:
    parts = cut(shuffled(11, 0, "x"), (0.6, 0.2, 0.2))
    assert sorted(np.concatenate(parts).tolist()) == list(range(11))
    assert shuffled(50, 0, "x").tolist() != shuffled(50, 1, "x").tolist()
    assert shuffled(50, 0, "x").tolist() != shuffled(50, 0, "y").tolist()


@pytest.mark.nightly
@pytest.mark.skipif(not (SHARED / "adult").is_dir(), reason="the real Adult is not there (../shared/data/adult)")
def test_the_real_adult_has_the_sizes_of_the_papers() -> None:
    data = read_adult(SHARED / "adult", 0)
    assert [len(data.splits[name]) for name in ("train", "validation", "test")] == [27133, 9045, 9044]
    assert data.train.table.shape[1] == 44


@pytest.mark.skipif(not (SHARED / "dpnr").is_dir(), reason="DPNR's AG set is not there (../shared/data/dpnr)")
def test_dpnr_s_real_set_has_the_sizes_of_table_1() -> None:
    data = read_dpnr_ag(SHARED / "dpnr")
    assert [len(data.splits[name]) for name in ("train", "validation", "test")] == [11657, 1457, 1457]
    assert data.train.private.sum(axis=0).tolist() == [6327, 3028, 2127, 1202, 1180]


def test_a_text_of_ag_news_is_a_title_with_its_description(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text('"3","Oil up","It rose."\n' * 40, encoding="utf-8")
    assert set(read_labelled_ag_news(tmp_path, 0).train.texts) == {"Oil up It rose."}


@pytest.mark.nightly
@pytest.mark.skipif(not (SHARED / "ag_news").is_dir(), reason="AG News is not there (../shared/data/ag_news)")
def test_the_real_ag_news_can_be_drawn() -> None:
    data = read_labelled_ag_news(SHARED / "ag_news", 0, 1000)
    assert [len(data.splits[name]) for name in ("train", "validation", "test")] == [950, 50, 7600]
