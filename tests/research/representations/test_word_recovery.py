"""The attack on word vectors: its rule, its layer, its table."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from fl_sim.config import ConfigError
from fl_sim.research.representations.studies import reproductions, words_study
from fl_sim.research.representations.studies.study_runs import Options
from fl_sim.research.representations.studies.words_study import (
    NEAREST,
    WordAttack,
    WordVectors,
    attack_words,
    part_texts,
    recover_words,
    train_word_vectors,
)


def _own_texts(name: str, source: Path, size: int, seed: int) -> tuple[list[str], list[str]]:
    return _sentences(60, seed), _sentences(60, 9)


def _sentences(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{int(n)}" for n in np.minimum(rng.zipf(1.4, 12), 60)) for _ in range(count)]


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


def test_the_attack_tells_the_initial_vectors_apart_and_a_layer_protects() -> None:
    user, attacker = part_texts(_sentences(300, 0), "samples", 0)
    rows = attack_words(user, attacker, WordAttack(16, "dpnr", (1.0, 100_000.0)), seed=0)
    shares = {(row["initial"], row["epsilon"]): row["first"] for row in rows}
    assert set(shares) == {(name, None) for name in ("word", "rank", "different")} | {
        ("word", 1.0),
        ("word", 100_000.0),
    }
    assert shares["word", None] > shares["different", None] + 0.2
    assert shares["word", 100_000.0] > shares["word", 1.0] + 0.2
    (noisy,) = (row for row in rows if row["epsilon"] == 1.0)
    assert (noisy["epsilon_proven"], noisy["epsilon_claimed"]) == (pytest.approx(16.0), pytest.approx(1.0))


def test_without_gensim_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gensim", None)
    with pytest.raises(ConfigError, match=r"gensim is not installed; pip install 'fl-sim\[representations\]'"):
        attack_words(["a"], ["a"], WordAttack(), seed=0)


def test_the_page_says_that_no_epsilon_covers_the_text_of_which_the_vectors_were_made() -> None:
    texts = ["red green blue"] * 50 + ["one two three"] * 50
    plain, other = (train_word_vectors(of, 0, 8, by_word=True) for of in (texts, ["red green red", *texts[1:]]))
    moved = plain.vectors[plain.words.index("three")] != other.vectors[other.words.index("three")]
    assert moved.any(), "a word that the changed sentence lacks"
    page = words_study.as_markdown({"situations": {}, "seeds": [0]})
    assert "beside a known model; the model was trained on the user's text, which no ε covers." in page


def test_halves_are_disjoint_and_samples_overlap() -> None:
    texts = [str(number) for number in range(100)]
    assert not set.intersection(*map(set, part_texts(texts, "halves", 0)))
    user, attacker = part_texts(texts, "samples", 0)
    assert len(set(user)) == len(set(attacker)) == 50
    assert 10 < len({*user} & {*attacker}) < 40


@pytest.mark.nightly
def test_the_three_situations_have_a_table_and_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words_study, "ATTACKS", (WordAttack(8, "dpnr", (1.0,)), WordAttack(8, "l1", (10.0, 20.0))))
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
