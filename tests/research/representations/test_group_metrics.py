"""Metrics and attacks against values worked out by hand, and against scikit-learn's."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score

from fl_sim.research.representations.evaluation import attacks
from fl_sim.research.representations.evaluation.representation_pictures import draw_tsne, tsne
from fl_sim.research.representations.server.group_metrics import accuracy, f1, grms, group_accuracies, tpr_gap
from fl_sim.research.representations.studies.grid_selection import Candidate, select

PREDICTED = np.array([1, 0, 1, 1, 0, 0, 1, 0])
LABELS = np.array([1, 1, 1, 0, 0, 0, 1, 1])
GROUP = np.array([1, 1, 1, 1, 0, 0, 0, 0])


def test_gaps_by_hand() -> None:
    # group 1: labels 1 1 1 0, predicted 1 0 1 1 → TPR 2/3, TNR 0; group 0: labels 0 0 1 1, predicted 0 0 1 0 → ½, 1
    assert tpr_gap(PREDICTED, LABELS, GROUP) == pytest.approx(2 / 3 - 1 / 2)
    assert tpr_gap(PREDICTED, LABELS, GROUP, positive=0) == pytest.approx(0 - 1)
    assert grms(PREDICTED, LABELS, GROUP) == pytest.approx(math.sqrt(((1 / 6) ** 2 + 1) / 2))
    assert accuracy(PREDICTED, LABELS) == 5 / 8
    assert group_accuracies(PREDICTED, LABELS, GROUP) == {
        "share_with": 0.5,
        "accuracy_without": 0.75,
        "accuracy_with": 0.5,
    }


def test_gaps_of_swapped_groups_change_sign_and_missing_groups_are_unknown() -> None:
    assert tpr_gap(PREDICTED, LABELS, 1 - GROUP) == -tpr_gap(PREDICTED, LABELS, GROUP)
    assert math.isnan(tpr_gap(PREDICTED, LABELS, np.ones(8, dtype=np.int64)))
    assert math.isnan(grms(PREDICTED, LABELS, np.ones(8, dtype=np.int64)))
    assert grms(LABELS, LABELS, GROUP) == 0


def test_f1_is_scikit_learn_s_micro_average() -> None:
    rng = np.random.default_rng(0)
    predicted, truth = rng.integers(0, 2, (2, 50, 3))
    assert f1(predicted, truth) == pytest.approx(f1_score(truth, predicted, average="micro"))
    assert f1(np.zeros((4, 2)), np.zeros((4, 2))) == 0.0


def told(rng: np.random.Generator, size: int, signal: float) -> tuple[np.ndarray, np.ndarray]:
    private = rng.integers(0, 2, (size, 2))
    vectors = rng.normal(size=(size, 6)).astype(np.float32)
    vectors[:, :2] += signal * private
    return vectors, private


def test_the_published_attacker_scales_each_vector_by_its_own_extremes() -> None:
    vectors = np.array([[1, 3, 2], [5, 5, 5]], dtype=np.float32)
    own, others = attacks._scaled(vectors, vectors[:1], attacks.PUBLISHED.inputs)
    assert own.tolist() == [[0.0, 1.0, 0.5], [0.0, 0.0, 0.0]]
    assert others.tolist() == own.tolist()[:1]
    rng = np.random.default_rng(0)
    (train, s), (test, t) = told(rng, 600, 3.0), told(rng, 300, 3.0)
    shift = rng.normal(scale=1000, size=(900, 1)).astype(np.float32)  # hides all from whoever reads vectors as sent
    train, test = train + shift[:600], test + shift[600:]
    assert attacks.attack(train, s, test, t, 0, attacks.PUBLISHED).accuracy > 0.7
    assert attacks.attack(train, s, test, t, 0, replace(attacks.PUBLISHED, inputs="standardised")).accuracy < 0.65


def test_the_majority_s_attack_by_hand() -> None:
    found = attacks.majority_attack(np.array([[1, 0]] * 3 + [[1, 1]]), np.array([[1, 0], [0, 0], [1, 1]]))
    assert found.accuracy == pytest.approx(4 / 6)
    assert found.absent == (0.0, 1.0)
    assert found.present == (1.0, 0.0)


@pytest.mark.nightly
def test_leakage_is_between_chance_and_the_bayes_rate() -> None:
    rng = np.random.default_rng(0)
    (train, s), (test, t) = told(rng, 500, 3.0), told(rng, 400, 3.0)
    found = attacks.leakage(train, s[:, 0], test, t[:, 0], seed=0)
    assert 0.85 < found <= 1.0
    assert found == attacks.leakage(train, s[:, 0], test, t[:, 0], seed=0)


def test_description_length_is_equation_10_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """A classifier that always says ⅞ for the truth: t_1 bits, then log₂(8/7) each."""

    class Knowing:
        def fit(self, vectors: np.ndarray, private: np.ndarray) -> None:
            pass

        def predict_proba(self, vectors: np.ndarray) -> np.ndarray:
            truth = vectors[:, 0].astype(int)
            return np.stack([np.where(truth == 0, 7 / 8, 1 / 8), np.where(truth == 1, 7 / 8, 1 / 8)], axis=1)

    monkeypatch.setattr(attacks, "_classifier", lambda seed, purpose: Knowing())
    private = np.tile([0, 1], 2000)
    found = attacks.description_length(private[:, None].astype(np.float32), private, seed=1)
    ends = [int(f * 4000) for f in attacks.FRACTIONS]
    each = math.log2(8 / 7)
    assert ends[0] == 4
    assert found.kilobits == pytest.approx((4 + (4000 - 4) * each) / 1024)
    assert found.recoded_kilobits == pytest.approx((4 + sum(ends[1:]) * each) / 1024)
    assert found.uniform_kilobits == pytest.approx(4000 / 1024)


def test_selection_takes_the_fairest_within_the_threshold() -> None:
    candidates = [
        Candidate("a", 1, 0.90, 0.20),
        Candidate("b", 2, 0.895, 0.10),
        Candidate("c", 3, 0.88, 0.01),
        Candidate("d", 4, 0.899, math.nan),
    ]
    assert select(candidates, 0.0).point == "a"
    assert select(candidates, 0.01).point == "b"
    assert select(candidates, 0.03).point == "c"
    same = [Candidate("x", 5, 0.9, 0.1), Candidate("y", 2, 0.9, 0.1)]
    assert select(same, 0.01).point == "y"


@pytest.mark.parametrize("vectors", [np.arange(5.0)[:, None], np.ones((6, 4))])
def test_vectors_without_two_axes_have_a_picture(vectors: np.ndarray) -> None:
    points = tsne(vectors.astype(np.float32), seed=0)
    assert points.shape == (len(vectors), 2)
    assert np.isfinite(points).all()


@pytest.mark.nightly
def test_pictures_keep_like_vectors_together_and_are_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1], 30)
    vectors = (rng.normal(size=(60, 5)) + 12 * groups[:, None]).astype(np.float32)
    points = tsne(vectors, seed=0)
    centres = [points[groups == g].mean(axis=0) for g in (0, 1)]
    spread = max(points[groups == g].std() for g in (0, 1))
    assert np.linalg.norm(centres[0] - centres[1]) > spread
    draw_tsne("plain", vectors, groups, "sex", tmp_path / "x.svg", seed=0)
    assert "<svg" in (tmp_path / "x.svg").read_text()
