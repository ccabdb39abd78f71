"""The attack on word vectors: its rule, its command, its table."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from fl_sim.cli import main
from fl_sim.research.representations.evaluation.word_attack import (
    NEAREST,
    WordAttack,
    WordVectors,
    part_texts,
    recover_words,
)
from fl_sim.research.representations.studies import reproductions, words_study
from fl_sim.research.representations.studies.study_runs import Options


def _own_texts(name: str, source: Path, size: int, seed: int) -> tuple[list[str], list[str]]:
    return _sentences(60, seed), _sentences(60, 9)


def _sentences(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{int(n)}" for n in np.minimum(rng.zipf(1.4, 12), 60)) for _ in range(count)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.csv"
    path.write_text("text\n" + "\n".join(_sentences(300, 0)) + "\n")
    return path


def test_a_rank_is_that_of_a_stable_sort() -> None:
    rng = np.random.default_rng(0)
    own = np.round(rng.normal(size=(40, 2))).astype(np.float32)  # many ties
    user = WordVectors(tuple(f"w{i}" for i in range(40)), own)
    attacker = WordVectors(tuple(f"w{i}" for i in range(5, 40)), np.round(rng.normal(size=(35, 2))).astype(np.float32))
    length = [np.linalg.norm(v, axis=1, keepdims=True) for v in (user.vectors, attacker.vectors)]
    unit = [
        np.divide(v, n, out=np.zeros_like(v), where=n > 0) for v, n in zip((own, attacker.vectors), length, strict=True)
    ]
    best = np.argsort(-(unit[0] @ unit[1].T), axis=1, kind="stable")[:, :NEAREST]
    hits = [f"w{i}" in [attacker.words[j] for j in row] for i, row in enumerate(best)]
    found = recover_words(user, attacker)
    assert found.nearest == sum(hits) / 40 > 0
    assert found.first == sum(attacker.words[row[0]] == f"w{i}" for i, row in enumerate(best)) / 40
    assert found.known == 35 / 40


def test_the_command_tells_the_initial_vectors_apart_and_a_layer_protects(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["represent", "words", str(texts), "--parts", "samples", "--widths", "16", "--seeds", "0,1"]
    layer = ["--layer", "dpnr", "--epsilons", "1,100000", "--out", str(tmp_path / "record.json")]
    assert main.main([*command, *layer]) == 0
    shown = capsys.readouterr().out
    record = json.loads((tmp_path / "record.json").read_text())
    rows = {(row["initial"], row["epsilon"]): row for row in record["rows"]}
    assert set(rows) == {(name, None) for name in ("word", "rank", "different")} | {("word", 1.0), ("word", 100_000.0)}
    share = {key: row["first"]["mean"] for key, row in rows.items()}
    assert share["word", None] > share["different", None] + 20
    assert share["word", 100_000.0] > share["word", 1.0] + 20
    assert rows["word", 1.0]["epsilon_proven"] == pytest.approx(16.0)
    assert rows["word", 1.0]["epsilon_claimed"] == pytest.approx(1.0)
    assert "\n| 16.00 | 1.00 | dpnr | 16 | word | " in shown
    assert "\n| ∞ | ∞ | none | 16 | different | " in shown
    assert len(record["values"]) == 2 * len(record["rows"])


def test_halves_are_disjoint_and_samples_overlap() -> None:
    texts = [str(number) for number in range(100)]
    assert not set.intersection(*map(set, part_texts(texts, "halves", 0)))
    user, attacker = part_texts(texts, "samples", 0)
    assert len(set(user)) == len(set(attacker)) == 50
    assert 10 < len({*user} & {*attacker}) < 40


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--parts", "x"], "--parts is 'x'; allowed: halves, samples"),
        (["--layer", "x"], "--layer is 'x'; allowed: none, dpnr, l1, l2"),
        (["--layer", "l1"], "layer is 'l1' with 0 ε; allowed: both or neither"),
        (["--layer", "l1", "--epsilons", "0"], "epsilon is 0.0; allowed: a finite number above 0"),
        (["--widths", "0"], "width is 0; allowed: an integer from 1 to 1000"),
        (["--seeds", "a"], "--seeds is 'a'; allowed: numbers"),
        (["--epochs", "0"], "allowed: at least 1"),
        (["--text", "body"], "body"),
        (["--least", "100000"], "the user's texts have no word that occurs 100000 times"),
    ],
)
def test_bad_input_is_one_line(more: list[str], said: str, texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["represent", "words", str(texts), *more]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_without_gensim_the_extra_is_named(
    texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    assert main.main(["represent", "words", str(texts)]) == 2
    assert capsys.readouterr().err.endswith("gensim is not installed; pip install 'fl-sim[representations]'\n")


def test_bad_bytes_are_refused_replaced_and_counted(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "latin.csv"
    bad.write_bytes(texts.read_bytes() + b"w1 w2 caf\xe9\n" + b"w1 " * 40 + b"\n")
    command = ["represent", "words", str(bad), "--seeds", "0", "--widths", "4", "--epochs", "1"]
    assert main.main(command) == 2
    assert capsys.readouterr().err.endswith("give --bad-bytes replace\n")
    record = tmp_path / "record.json"
    assert main.main([*command, "--bad-bytes", "replace", "--max-characters", "100", "--out", str(record)]) == 0
    counts = json.loads(record.read_text())["user"]["counts"]
    (replaced,) = (count for meaning, count in counts.items() if "not UTF-8" in meaning)
    assert replaced == 1
    (cut,) = (count for meaning, count in counts.items() if "not UTF-8" not in meaning)
    assert cut == 1
    assert "latin.csv: lines with bytes that are not UTF-8, replaced by U+FFFD: 1\n" in capsys.readouterr().out


@pytest.mark.nightly
def test_the_three_situations_resume_seed_by_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words_study, "ATTACKS", (WordAttack((8,)),))
    monkeypatch.setattr(words_study, "_texts_of", _own_texts)
    options = Options(tmp_path, (0, 1), work=tmp_path / "work")
    said: list[str] = []

    def stop_after_two(line: str) -> None:
        said.append(line)
        if len(said) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproductions.run("words", options, stop_after_two)
    whole = reproductions.run("words", Options(tmp_path, (0, 1)))
    resumed = reproductions.run("words", options, said.append)
    assert len(said) == 2 + 4, "three situations, two seeds"
    assert resumed["situations"] == whole["situations"]


@pytest.mark.nightly
def test_the_three_situations_are_the_same_on_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ag_news", "sst2"):
        (tmp_path / name).mkdir()
    rows = [f'"{1 + number % 4}","{text}",""' for number, text in enumerate(_sentences(400, 0))]
    (tmp_path / "ag_news" / "train.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "ag_news" / "test.csv").write_text("\n".join(rows[:4]) + "\n")
    lines = [f"{number % 2}\t{text}" for number, text in enumerate(_sentences(200, 1))]
    for part in ("train", "test"):
        (tmp_path / "sst2" / f"{part}.tsv").write_text("label\tsentence\n" + "\n".join(lines) + "\n")
    monkeypatch.setattr(words_study, "ATTACKS", (WordAttack((8,), "l1", (10.0,), epochs=1),))
    monkeypatch.setattr(words_study, "TEXTS", 300)
    alone, beside = (reproductions.run("words", Options(tmp_path, (0,), jobs=jobs)) for jobs in (1, 2))
    assert beside["situations"] == alone["situations"]


@pytest.mark.nightly
def test_the_three_situations_have_a_table_and_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        words_study, "ATTACKS", (WordAttack((8,), "dpnr", (1.0,)), WordAttack((8,), "l1", (10.0, 20.0)))
    )
    monkeypatch.setattr(words_study, "_texts_of", _own_texts)
    table = reproductions.run("words", Options(tmp_path, (0, 1)))
    assert set(table["situations"]) == set(words_study.SITUATIONS)
    assert [row["epsilon_proven"] for row in table["situations"]["samples"]] == pytest.approx(
        [math.inf, math.inf, math.inf, 8.0, 10.0, 20.0]
    )
    record, picture = reproductions.write(table, tmp_path / "words.json")
    assert (record.name, picture.name) == ("words.json", "words-recovered.png")
    page, _ = reproductions.write_document(tmp_path)
    assert "among the 5 nearest: 0.7." in page.read_text()
    assert "](words-recovered.png)" in page.read_text()
