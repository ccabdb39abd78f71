"""Hugging Face's datasets: saved ones, folders of tables, and what cannot be had, in one line each."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fl_sim.cli.main import main
from fl_sim.data_prep.readers.hugging_face import HuggingFaceReader
from fl_sim.data_prep.readers.in_memory import read_in_memory
from fl_sim.data_prep.readers.tables import TableColumns
from fl_sim.data_prep.records import CorpusError, Sentence

datasets = pytest.importorskip("datasets", reason="the hf extra is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")

ROWS: dict[str, list[Any]] = {
    "body": ["Ada met Bo. Nobody else!", None, "It rained."],
    "who": ["u1", "u2", "u3"],
    "ents": [[{"start": 8, "end": 10, "label": "PER"}], [], []],
    "kind": [1, 0, -1],
}
COLUMNS: dict[str, Any] = {
    "text_column": "body", "user_column": "who", "entities_column": "ents", "target_column": "kind",
    "test_fraction": 0.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))


def dataset() -> Any:
    entity = {"start": datasets.Value("int64"), "end": datasets.Value("int64"), "label": datasets.Value("string")}
    features = {
        "body": datasets.Value("string"),
        "who": datasets.Value("string"),
        "ents": datasets.List(entity),
        "kind": datasets.ClassLabel(names=["calm", "busy"]),
    }
    return datasets.Dataset.from_dict(ROWS, features=datasets.Features(features))


def saved(folder: Path, *splits: str) -> Path:
    if splits:
        datasets.DatasetDict({split: dataset() for split in splits}).save_to_disk(folder)
    else:
        dataset().save_to_disk(folder)
    return folder


def read(folder: Path, splits: str = "") -> list[Sentence]:
    return list(HuggingFaceReader(source=str(folder), splits=splits, **COLUMNS).read().sentences())


def test_a_saved_dataset(tmp_path: Path) -> None:
    sentences = read(saved(tmp_path / "set"))
    assert [(s.split, s.user, s.text, s.target) for s in sentences] == [
        ("train", "u1", "Ada met Bo.", "busy"),
        ("train", "u1", "Nobody else!", "busy"),
        ("train", "u3", "It rained.", None),
    ]
    assert [[s.surface(m) for m in s.mentions] for s in sentences] == [["Bo"], [], []]


def test_a_dataset_in_memory() -> None:
    columns, two = TableColumns(**COLUMNS), datasets.DatasetDict({"train": dataset(), "validation": dataset()})
    raw = read_in_memory(dataset(), columns, "set")
    assert [(s.split, s.user, s.target, len(s.mentions)) for s in raw.sentences()] == [
        ("train", "u1", "busy", 1),
        ("train", "u1", "busy", 0),
        ("train", "u3", None, 0),
    ]
    assert Counter(s.split for s in read_in_memory(two, columns, "set").sentences()) == {"train": 3, "validation": 3}
    assert len(list(read_in_memory(dataset().to_iterable_dataset(), columns, "set").sentences())) == 3
    with pytest.raises(CorpusError, match=r"^a dataset, split train: no column 'ents'; found 'body', 'who', 'kind'$"):
        read_in_memory(dataset().remove_columns("ents"), columns, "set")


def test_splits_of_a_dataset_are_those_of_the_corpus(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", "train", "validation", "unsupervised")
    assert Counter(s.split for s in read(folder)) == {"train": 3, "validation": 3, "unsupervised": 3}
    assert Counter(s.split for s in read(folder, splits="train, validation")) == {"train": 3, "validation": 3}
    assert Counter(s.split for s in read(folder, splits="validation")) == {"train": 3}
    with pytest.raises(CorpusError, match="no split 'dev', only train, validation, unsupervised"):
        read(folder, splits="dev")


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "ndjson"])
def test_a_folder_of_tables(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for split in ("train", "test"):
        if kind == "parquet":
            dataset().to_parquet(folder / f"{split}.parquet")
        else:
            dataset().to_json(folder / f"{split}.{kind}")
    assert len(HuggingFaceReader(source=str(folder), **COLUMNS).read().sources) == 2
    sentences = read(folder)
    assert Counter(s.split for s in sentences) == {"train": 3, "test": 3}
    assert [[s.surface(m) for m in s.mentions] for s in sentences[:3]] == [["Bo"], [], []]
    assert sentences[0].target == ("busy" if kind == "parquet" else "1")


def test_a_card_that_names_other_files_makes_another_corpus(tmp_path: Path) -> None:
    folder, rows = tmp_path / "set", ("a", "b")
    folder.mkdir()
    for name in rows:
        (folder / f"{name}.jsonl").write_text(json.dumps({"body": "Ada.", "who": name}) + "\n")
    sources = []
    for name in rows:
        card = f"---\nconfigs:\n- config_name: default\n  data_files: {name}.jsonl\n---\n"
        (folder / "README.md").write_text(card)
        raw = HuggingFaceReader(source=str(folder), text_column="body", user_column="who", test_fraction=0.0).read()
        assert [sentence.user for sentence in raw.sentences()] == [name]
        sources.append({key: path.read_bytes() for key, path in raw.sources.items()})
    assert sources[0] != sources[1]


def test_prepare_a_saved_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = saved(tmp_path / "set", "train", "test")
    columns = ["--text-column", "body", "--user-column", "who", "--entities-column", "ents", "--target-column", "kind"]
    assert main(["prepare", "hf", "--source", str(folder), *columns, "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["splits"]["test"]["sentences"] == 3
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["settings"]["dataset"] == "set"
    assert manifest["classes"] == ["busy"]
    assert {"train/data-00000-of-00001.arrow", "test/data-00000-of-00001.arrow"} < set(manifest["sources"])
    assert str(tmp_path) not in json.dumps(manifest)


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.jsonl", '{"body": "a", "who": "u1"}\n')


def elsewhere(folder: Path) -> None:
    (folder.parent / "b.jsonl").write_text('{"body": "a", "who": "u1"}\n')
    (folder / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: ../b.jsonl\n---\n")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, "set: the dataset cannot be loaded"),
        (lambda folder: (folder / "set.py").write_text("raise SystemExit"), "set: the dataset cannot be loaded"),
        (lambda folder: (folder / "a.txt").write_text("hello\n"), "set: files of kind 'text'; only arrow, csv"),
        (lambda folder: (folder / "a.jsonl").write_text("{"), "set"),
        (lambda folder: (folder / "a.parquet").write_bytes(b"PAR1"), "set"),
        (lambda folder: (folder / "a.jsonl").write_text('{"body": "a"}\n'), "no column 'who'; found 'body'"),
        (lambda folder: zipped(folder / "a.zip"), "a.zip: not a table file of .*; allowed: files in it that end with"),
        (lambda folder: elsewhere(folder), "b.jsonl: not a table file of"),
    ],
)
def test_folders_that_will_not_do(make: Any, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    make(folder)
    with pytest.raises(CorpusError, match=message) as error:
        read(folder)
    assert "\n" not in str(error.value)


def test_a_name_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import HfApi

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("Name or service not known\nand much more")

    monkeypatch.setattr(HfApi, "dataset_info", unreachable)
    with pytest.raises(CorpusError, match=r"nobody/nothing: no such folder, and no dataset .* \(Name or service"):
        HuggingFaceReader(source="nobody/nothing", **COLUMNS).read()
