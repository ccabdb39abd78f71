"""The CoNLL-2003 reader: exact offsets, both tag schemes, strictness, and the shared task's own counts."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_sim.data_prep.readers.raw_corpora import read_conll2003, read_conll_file
from fl_sim.data_prep.records import CorpusError, Sentence

SMALL = """-DOCSTART- -X- O O

Nobody NN I-NP O
met VBD I-VP O
Ada NNP I-NP I-PER
Byron NNP I-NP I-PER
Leeds NNP I-NP B-PER
in IN I-PP O
Hull NNP I-NP I-LOC

-DOCSTART- -X- O O

Rain NN I-NP O
. . O O
"""


def write(folder: Path, text: str, name: str = "eng.train") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_documents_are_users_and_offsets_are_exact(tmp_path: Path) -> None:
    sentences = list(read_conll_file(write(tmp_path, SMALL), "train"))
    assert [(s.user, s.text) for s in sentences] == [
        ("train-0001", "Nobody met Ada Byron Leeds in Hull"),
        ("train-0002", "Rain ."),
    ]
    first = sentences[0]
    found = [(first.surface(mention), mention.label) for mention in first.mentions]
    assert found == [("Ada Byron", "PER"), ("Leeds", "PER"), ("Hull", "LOC")]
    assert sentences[1].mentions == ()


@given(st.lists(st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=6), min_size=1, max_size=8))
def test_what_is_marked_is_what_the_text_says(tokens: list[str]) -> None:
    lines = [f"{token} X X {'I-ORG' if index % 2 else 'O'}" for index, token in enumerate(tokens)]
    sentence = parse("-DOCSTART- X X O\n\n" + "\n".join(lines) + "\n")[0]
    assert sentence.text == " ".join(tokens)
    assert [sentence.surface(mention) for mention in sentence.mentions] == tokens[1::2]


def parse(text: str) -> list[Sentence]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return list(read_conll_file(write(Path(folder), text), "train"))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("-DOCSTART- -X- O O\n\nRain NN O\n", r"eng.train, line 3: 3 columns, must be 4"),
        ("-DOCSTART- -X- O O\n\nRain NN I-NP O extra\n", r"line 3: 5 columns"),
        ("-DOCSTART- -X- O O\n\nRain NN I-NP X-LOC\n", r"line 3: tag 'X-LOC' must be O, B-TYPE or I-TYPE"),
        ("-DOCSTART- -X- O O\n\nRain NN I-NP I-\n", r"line 3: tag 'I-'"),
        ("Rain NN I-NP O\n", r"line 1: a sentence before the first -DOCSTART-"),
        ("", r"eng.train: the file is empty"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(CorpusError, match=place):
        list(read_conll_file(write(tmp_path, text), "train"))


def test_plain_xz_and_gz_files_read_alike(tmp_path: Path) -> None:
    results = []
    for name, pack in (("eng.train", bytes), ("eng.train.xz", lzma.compress), ("eng.train.gz", gzip.compress)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(pack(SMALL.encode()))
        results.append(list(read_conll2003(folder)))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("name", ["eng.train.xz", "eng.train.gz"])
def test_damaged_archives_are_named(tmp_path: Path, name: str) -> None:
    packed = (lzma.compress if name.endswith("xz") else gzip.compress)(SMALL.encode() * 50)
    (tmp_path / name).write_bytes(packed[: len(packed) // 2])
    with pytest.raises(CorpusError, match=f"{name}: the compressed file is damaged"):
        list(read_conll2003(tmp_path))


def test_a_folder_without_eng_train_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"no eng\.train"):
        list(read_conll2003(tmp_path))
    with pytest.raises(CorpusError, match="must be the folder"):
        list(read_conll2003(tmp_path / "absent"))


@pytest.mark.nightly
@pytest.mark.parametrize("unpacked", [False, True], ids=["xz", "plain"])
def test_counts_of_the_shared_task(shared_data: Path, tmp_path: Path, unpacked: bool) -> None:
    source = shared_data / "conll2003"
    if unpacked:
        for path in source.glob("eng.*.xz"):
            (tmp_path / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
        source = tmp_path
    sentences = [s for s in read_conll2003(source) if s.split == "train"]
    assert len({s.user for s in sentences}) == 946
    assert len(sentences) == 14_041
    with_label = {
        label: sum(any(m.label == label for m in s.mentions) for s in sentences)
        for label in ("ORG", "LOC", "PER", "MISC")
    }
    assert with_label == {"ORG": 4_587, "LOC": 5_127, "PER": 4_373, "MISC": 2_698}
    assert sum(bool(s.mentions) for s in sentences) == 11_132
