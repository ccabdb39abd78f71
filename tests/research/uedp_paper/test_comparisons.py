"""Comparisons at equal ε: their points, differences, tables and pictures."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fl_sim.config import ConfigError
from fl_sim.experiments.plan.run_plan import plan_run
from fl_sim.research.uedp_paper.comparisons import add_comparisons, estimate, mean_figures, resampled_figures
from fl_sim.research.uedp_paper.figure_document import picture_of, section
from fl_sim.research.uedp_paper.figure_records import CurveRecord, Parts, PointRecord, TrainingRecord, spread
from fl_sim.research.uedp_paper.figure_training import _largest, _user_epsilons, check_settings, points_of
from fl_sim.research.uedp_paper.figures import CurveSettings, TrainingFigure
from fl_sim.storage.run_folder import ResultsError
from tests.research.uedp_paper.records import plain_point
from tests.research.uedp_paper.test_figures import training_record

CURVES: dict[str, dict[str, Any]] = {
    "noiseless": {"set": {"privacy.strategy": "noiseless"}},
    "ours": {"budget": "joint", "set": {"privacy.strategy": "uedp", "rounds": 2}},
    "users": {
        "budget": "joint",
        "set": {"privacy.strategy": "user_level", "privacy.known": "graph", "privacy.entity_users": 2},
    },
    "hidden": {"budget": "user", "deidentified": "category", "set": {"privacy.strategy": "user_level"}},
}
WRONG = {"noiseless": 1, "ours": 3, "users": 5, "hidden": 2}  # of 10 predictions of every user
PREDICTIONS = [10.0] * 30


def figure(**changes: Any) -> TrainingFigure:
    values = {
        "title": "Equal", "shows": "What it shows.", "x": "joint", "joint": (2.0, 8.0), "reference": "ours",
        "metric": "error", "baseline": "noiseless", "corpora": {"bundled": {"kind": "bundled"}},
        "panels": ({"name": "a", "title": "a: bundled", "corpus": "bundled"},),
        "curves": tuple({"name": name, "label": name, **curve} for name, curve in CURVES.items()),
    }  # fmt: skip
    return TrainingFigure.model_validate(values | changes)


def curve_of(name: str, made: TrainingFigure) -> CurveSettings:
    return next(curve for curve in made.curves if curve.name == name)


def point(name: str, x: float | None) -> PointRecord:
    any_entity = None if "deidentified" in CURVES[name] else x
    return plain_point([WRONG[name] / 10] * 3, 0.75, x=x, claimed=None, user=1.5, any_entity=any_entity)


def folder(name: str, predictions: list[float]) -> Any:
    """The figures of a run: a user of three has one error more, and one of three one less."""
    wrong = WRONG[name] + np.resize([-1.0, 0.0, 1.0], len(predictions))
    sums = {"predictions": predictions, "nats": (wrong / 2).tolist(), "wrong": wrong.tolist()}
    return SimpleNamespace(held_out_users=sums, result={"initial_error": 0.75})


def compared(**predictions: list[float]) -> tuple[TrainingFigure, list[CurveRecord], Any]:
    made = figure()
    curves = [
        CurveRecord(
            name=curve.name, label=curve.name, strategy="s", budget=curve.budget,
            deidentified=curve.deidentified is not None,
            points=tuple(point(curve.name, p.x) for p in points_of(made, curve)),
        )
        for curve in made.curves
    ]  # fmt: skip
    runs = {
        (curve.name, p.x, seed): folder(curve.name, predictions.get(curve.name, PREDICTIONS))
        for curve in curves
        for p in curve.points
        for seed in made.seeds
    }
    return made, *add_comparisons(made, curves, runs)


def record() -> TrainingRecord:
    made, curves, predictions = compared()
    base = training_record()
    panel = base.panels[0].model_copy(update={"curves": tuple(curves), "predictions": predictions, "references": {}})
    changes = {
        "x": "joint", "joint": made.joint, "reference": made.reference, "baseline": made.baseline, "metric": "error",
        "panels": (panel,), "figure": "ours_none",
    }  # fmt: skip
    return base.model_copy(update=changes)


def test_the_points_of_a_curve_have_the_targets_of_its_budget() -> None:
    made = figure()
    check_settings(made)
    assert len(points_of(made, curve_of("noiseless", made))) == 1
    joint = [point.set for point in points_of(made, curve_of("users", made))]
    assert joint == [{"privacy.target_epsilon": x, "privacy.target_unit": "user_entity"} for x in (2.0, 8.0)]
    user = [point.set for point in points_of(made, curve_of("hidden", made), {2.0: 0.7, 8.0: 3.1})]
    assert user == [{"privacy.target_epsilon": x, "privacy.target_unit": "user"} for x in (0.7, 3.1)]


@pytest.mark.nightly
def test_the_epsilon_of_a_user_is_what_the_reference_spends(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []

    def recorded(config: Any, ownership: Any) -> Any:
        planned.append(plan_run(config, ownership))
        return planned[-1]

    monkeypatch.setattr("fl_sim.research.uedp_paper.figure_training.plan_run", recorded)
    made = figure(joint=(8.0,))
    paths = {(curve.name, seed): "bundled" for curve in made.curves for seed in made.seeds}
    (spent,) = _user_epsilons(made, made.panels[0], paths).values()
    after = planned[0].guarantees.after(2)
    assert after["epsilon_any"] == pytest.approx(8.0, rel=0.01)
    assert after["epsilon_user"] - 0.001 < spent <= after["epsilon_user"] < 8.0


def test_an_epsilon_is_the_largest_of_all_seeds() -> None:
    """Users are drawn by seed in some figures: the name of most users has more of them with one seed than another."""
    first = point("ours", 8.0).epsilon.model_copy(update={"user_entity_max": 18.99, "any_name": 1.0})
    second = first.model_copy(update={"user_entity_max": 20.41, "any_name": None})
    assert _largest([first, second]) == _largest([second, first]) == second


def test_differences_are_from_the_reference_at_the_same_joint_epsilon() -> None:
    _, curves, predictions = compared()
    assert predictions == ((10,) * 30,) * 3
    by_name = {curve.name: [point.comparison for point in curve.points] for curve in curves}
    assert all(c is not None and c.difference is None for c in by_name["ours"] + by_name["noiseless"])
    for name in ("users", "hidden"):
        for comparison in by_name[name]:
            assert comparison is not None
            assert comparison.difference is not None
            assert comparison.difference.value == pytest.approx((WRONG[name] - WRONG["ours"]) / 10)
            assert comparison.difference.standard_error == pytest.approx(0.0, abs=1e-9)  # all users differ alike
            assert comparison.utility.standard_error > 0.005
            assert comparison.accuracy == pytest.approx(1 - WRONG[name] / 10)
            assert comparison.initial_accuracy == pytest.approx(0.25)


def test_the_record_has_what_its_figures_are_made_of() -> None:
    """A reader of the record can compute its figures again."""
    made = record()
    panel = made.panels[0]
    for curve in panel.curves:
        comparison = curve.points[0].comparison
        assert comparison is not None
        shares = [sum(wrong) / sum(of) for wrong, of in zip(comparison.sums, panel.predictions, strict=True)]
        assert sum(shares) / 3 == pytest.approx(comparison.utility.value)


def test_runs_on_other_users_are_not_compared() -> None:
    with pytest.raises(ResultsError, match="curve hidden, seed 0: was measured on other held-out users"):
        compared(hidden=[9.0] * 30)


def test_the_table_of_one_epsilon_has_no_run_of_the_other() -> None:
    text = section(record())
    joint, user = text.split("**At the same ε of any user.**")
    (head,) = (line for line in joint.splitlines() if line.startswith("|  | ε any user"))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in joint.splitlines() if line[:2] == "| "]
    columns = [cell.strip() for cell in head.strip("|").split("|")]
    assert [row[0] for row in rows[1:]] == ["start", "noiseless", "ours", "users", "ours", "users"]
    assert rows[4][-1] == "**+20.0 ± 0.0 (+20.0 to +20.0)**"
    assert rows[3][columns.index("way to noiseless")] == f"{(0.75 - 0.3) / (0.75 - 0.1):.0%}"
    assert [user.count(f"| {name} |") for name in ("ours", "hidden", "users")] == [2, 2, 0]
    assert user.count("| hidden | none |") == 2
    assert "no ε of an entity is proven" in text
    assert "± its standard error" in text


def test_claims_and_parts_of_the_text_have_tables() -> None:
    whole = record()
    parts = Parts(
        metric="bits_per_byte", by_text={"all text": spread([2.0, 3.0]), "entity tokens": spread([4.5])},
        by_sentences={"1": spread([2.25])}, by_mentions={}, kept={"sentences": spread([0.5])},
    )  # fmt: skip
    panel = whole.panels[0]
    curves = tuple(
        curve.model_copy(update={"points": tuple(p.model_copy(update={"parts": parts}) for p in curve.points)})
        for curve in panel.curves
    )
    text = section(whole.model_copy(update={"panels": (panel.model_copy(update={"curves": curves}),)}))
    assert "| ours, ε 2 | none | 1.50 | ∞ | 2.00 | counts | 50% | – | 20 |" in text
    assert "| noiseless | 2.50 | 4.50 |" in text
    assert "by how often the training text" not in text
    assert "Claimed and proven" not in section(whole)


@pytest.mark.parametrize(
    ("settings", "known"),
    [({}, "counts"), ({"privacy.known": "graph"}, "graph"), ({"privacy.known": "nothing"}, "nothing")],
)
def test_a_page_says_what_its_epsilons_take_as_known(settings: dict[str, Any], known: str) -> None:
    whole = record()
    panel = whole.panels[0]

    def of_all(settings: dict[str, Any], *names: str) -> TrainingRecord:
        curves = tuple(
            curve.model_copy(
                update={"points": tuple(point.model_copy(update={"settings": settings}) for point in curve.points)}
            )
            if curve.name in names
            else curve
            for curve in panel.curves
        )
        changed = panel.model_copy(update={"curves": curves})
        return whole.model_copy(update={"panels": (changed,)})

    text = section(of_all(settings, *CURVES))
    assert re.search(rf"Every proven ε takes as known .* \(`{known}`, docs/privacy.md\)", text)
    if known == "graph":
        assert "of *users*: who mentions whom in which sentence (`graph`)" in section(of_all(settings, "users"))


def test_trials_stand_in_the_section_with_their_origin() -> None:
    trials = {"ours: cap 1": 0.2, "ours: cap 2": 0.1, "users: cap 1": 0.3}
    tuning = {"command": "fl-sim reproduce trials.toml", "words": "Public text.", "trials": trials}
    text = section(record().model_copy(update={"config": {"tuning": tuning}}))
    assert "Settings: Public text. Again: `fl-sim reproduce trials.toml`." in text
    assert "| ours | 2 | 10.0% | 20.0% | cap 2 |" in text
    assert "| users | 1 | 30.0% | 30.0% | cap 1 |" in text


def test_the_picture_has_an_axis_of_one_epsilon() -> None:
    picture = picture_of(record())
    assert picture is not None
    (axes,) = picture.axes
    assert axes.get_xlabel() == "ε of any user with any entity, δ = 1e-05"
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert [label.split(":")[0] for label in labels] == ["start", "noiseless", "ours", "users"]
    drawn = [container.lines[0].get_xdata()[0] for container in axes.containers]
    assert drawn[0] < 2.0 < drawn[1]  # side by side, so that neither hides the other


def test_a_curve_far_worse_than_the_start_is_in_the_legend_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WRONG, "users", 20)
    picture = picture_of(record())
    assert picture is not None
    (axes,) = picture.axes
    assert "users: 200.0% to 200.0%" in [text.get_text() for text in axes.get_legend().get_texts()]
    assert len(axes.containers) == 1
    assert axes.get_ylim()[1] < 1.0


def test_trials_are_the_combinations_of_a_grid() -> None:
    grid = {"privacy.user_cap": (1.0, 2.0), "server.learning_rate": (0.1, 0.2, 0.3)}
    curve = CurveSettings(name="uedp", label="ours", set={"rounds": 2}, grid=grid)
    made = figure(x="curve", joint=(), reference=None, baseline=None, curves=(curve,)).sized("default")
    assert len(made.curves) == 6
    assert made.curves[4].label == "ours: user_cap 2.0, learning_rate 0.2"
    assert made.curves[4].set == {"rounds": 2, "privacy.user_cap": 2.0, "server.learning_rate": 0.2}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"joint": ()}, "joint is \\[\\]"),
        ({"reference": None}, "reference is 'None'; allowed: noiseless, ours, users, hidden"),
        ({"reference": "hidden"}, "curves.hidden.budget is 'user'; allowed for the reference: 'joint'"),
        ({"x": "epsilon"}, "x is 'epsilon'; allowed with joint, reference, attack or a budget: x = 'joint'"),
        ({"attack": {}, "baseline": None}, "baseline is not given; allowed with attack: a curve without a budget"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        figure(**changes)


@pytest.mark.parametrize("changes", [{"panels": ("b",)}, {"grid": {"privacy.user_cap": (1.0, 2.0)}}])
def test_the_epsilon_of_a_user_needs_the_reference_in_every_panel(changes: dict[str, Any]) -> None:
    panels = tuple({"name": name, "title": name, "corpus": "bundled"} for name in "ab")
    curves = tuple(
        {"name": name, "label": name, **curve, **(changes if name == "ours" else {})} for name, curve in CURVES.items()
    )
    made = figure(panels=panels, curves=curves).sized("default")
    with pytest.raises(ConfigError, match="reference is 'ours', which panel a lacks; allowed beside"):
        _user_epsilons(made, made.panels[0], {})


USERS = 400


def test_means_weigh_seeds_equally_and_users_by_their_targets() -> None:
    above = [np.array([[1.0, 3.0]]), np.array([[2.0, 2.0, 2.0]])]
    below = [np.array([2.0, 8.0]), np.array([4.0, 4.0, 4.0])]
    assert mean_figures(above, below) == pytest.approx([(0.4 + 0.5) / 2])
    assert mean_figures(above, below, np.exp) == pytest.approx([(np.exp(0.4) + np.exp(0.5)) / 2])


def test_a_difference_is_paired_by_user() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(3.0, 1.0, USERS)
    second = first + rng.normal(0.1, 0.01, USERS)  # hardly any noise beside what both share
    drawn = resampled_figures([np.stack([first, second])], [np.ones(USERS)], rng)
    difference = estimate(drawn[:, 1] - drawn[:, 0], 0.1)
    assert difference.standard_error == pytest.approx(0.01 / USERS**0.5, rel=0.1)
    assert estimate(drawn[:, 1], 3.1).standard_error > 50 * difference.standard_error


def test_the_spread_of_the_seeds_counts_besides_that_of_users() -> None:
    levels = [1.0, 2.0, 3.0]
    above = [np.full((1, USERS), level) for level in levels]  # no spread over users at all
    drawn = resampled_figures(above, [np.ones(USERS)] * 3, np.random.default_rng(0))
    assert drawn[:, 0].std() == pytest.approx(np.std(levels) / 3**0.5, rel=0.05)


def test_two_draws_of_a_seed_have_users_of_their_own() -> None:
    """A resample that draws one seed thrice averages three resamples of its users, not one."""
    losses = np.random.default_rng(1).normal(0.0, 1.0, USERS)[None]
    drawn = resampled_figures([losses] * 3, [np.ones(USERS)] * 3, np.random.default_rng(0))
    assert drawn[:, 0].std() == pytest.approx(losses.std() / (3 * USERS) ** 0.5, rel=0.08)
