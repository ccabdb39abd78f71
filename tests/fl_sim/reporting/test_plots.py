"""The plots show what was measured, draw no missing guarantee as a number, and keep legends aside."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from fl_sim.cli.main import main
from fl_sim.reporting import plots
from fl_sim.reporting.run_facts import read_facts
from fl_sim.storage.run_folder import ResultsError, RunFolder

PNG = b"\x89PNG\r\n\x1a\n"
MakeRun = Callable[..., RunFolder]


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def epsilon_figure(run: RunFolder) -> Figure:
    return plots.epsilon_figure(read_facts(run))


def utility_figure(run: RunFolder) -> Figure:
    return plots.overlay_figure([read_facts(run)], "epsilon")


def overlay(runs: list[RunFolder], x: str, unit: str | None = None) -> Figure:
    return plots.overlay_figure([read_facts(run) for run in runs], x, unit)


def test_a_runs_epsilon_plot_draws_every_unit_as_measured(make_run: MakeRun) -> None:
    run = make_run("uedp")
    figure = epsilon_figure(run)
    (axes,) = figure.axes
    drawn = {str(line.get_label()).rpartition(":")[0]: line for line in axes.lines}
    units = {unit: words for unit, words in plots.UNITS.items() if not unit.startswith("stated")}
    assert set(drawn) == set(units.values())
    metrics = run.metrics()
    for unit, words in units.items():
        np.testing.assert_array_equal(drawn[words].get_xdata(), metrics["round"])
        np.testing.assert_array_equal(drawn[words].get_ydata(), metrics[f"epsilon_{unit}"])
        assert (drawn[words].get_linestyle() == "--") == ("robust" in unit)
    assert "δ = 1e-5" in axes.get_title(loc="left")
    assert "uedp" in axes.get_title(loc="left")
    assert labels(figure)[:2] == [
        "any user + any entity, with missed mentions: 33.40",
        "user + entity, max. contributions, robust: 31.70",
    ]


def with_epsilons(run: RunFolder, **changes: float | None) -> RunFolder:
    """Change ε of every unit in ``changes`` after every round but 0; None removes it."""
    rows = run.metrics().to_dict("records")
    run.truncate_metrics(-1)
    for row in rows:
        changed = row | {name: (0.0 if row["round"] == 0 else value) for name, value in changes.items()}
        run.append_metrics({name: value for name, value in changed.items() if changes.get(name, 0) is not None})
    return run


def test_a_stated_bound_is_drawn_under_its_own_name(make_run: MakeRun) -> None:
    infinite = {"epsilon_any": math.inf, "epsilon_any_robust": None}
    run = with_epsilons(make_run("uedp", rounds=2, finish=False), epsilon_stated=40.0, **infinite)
    words = labels(epsilon_figure(run))
    assert words[0] == "any user + an entity within the stated bound: 40.00"
    assert not any("any entity" in label for label in words)


@pytest.mark.parametrize("missing", [math.inf, None])
def test_a_run_without_a_bound_is_drawn_at_its_95th_percentile(make_run: MakeRun, missing: float | None) -> None:
    bounded = make_run("uedp", rounds=2, finish=False)
    unbounded = with_epsilons(make_run("uedp", rounds=2, seed=1, finish=False), epsilon_any=missing)
    noiseless = make_run("noiseless", rounds=2, finish=False)
    for runs, unit in (([bounded, noiseless], "any"), ([bounded, unbounded], "user_entity_p95")):
        assert overlay(runs, "round").axes[0].get_ylabel() == f"ε, {plots.UNITS[unit]}"


def test_statements_with_the_same_epsilon_share_one_line(make_run: MakeRun) -> None:
    run = make_run("user_level", rounds=2, finish=False)
    row = run.metrics().iloc[-1].to_dict() | {"round": 2}
    run.truncate_metrics(-1)
    for entity_bound in ("median", "p95", "max"):
        row[f"epsilon_user_entity_robust_{entity_bound}"] = row[f"epsilon_user_entity_{entity_bound}"]
    row["epsilon_any_robust"] = row["epsilon_any"]
    run.append_metrics(row | {"epsilon_user_unbounded": row["epsilon_user"]})
    words = [label.rpartition(":")[0] for label in labels(epsilon_figure(run))]
    assert words == ["any user + any entity (also robust)"] + [
        f"user + entity, {entity_bound} contributions (also robust)" for entity_bound in ("max.", "p95", "median")
    ] + ["any user, any number of sentences"]


@pytest.mark.parametrize(("proven", "claims"), [(1.0, 1), (np.inf, 0)])
def test_a_published_claim_is_drawn_as_one_and_never_alone(make_run: MakeRun, proven: float, claims: int) -> None:
    run = make_run("user_level", rounds=2, finish=False)
    rows = run.metrics().to_dict("records")
    run.truncate_metrics(-1)
    for row in rows:
        epsilons = {name: proven * value for name, value in row.items() if name.startswith("epsilon_") and row["round"]}
        run.append_metrics(row | epsilons | {"epsilon_as_published": 0.2 * row["round"]})
    words = labels(epsilon_figure(run))
    assert words.count("as published, a claim and no guarantee: 0.400") == claims
    assert len(words) > claims or not claims


def test_epsilon_goes_on_a_log_axis_only_where_the_curves_lie_far_apart(make_run: MakeRun) -> None:
    far = epsilon_figure(make_run("uedp")).axes[0]
    near = overlay([make_run("uedp", z=2.0)], "round").axes[0]
    assert far.get_yscale() == "log"
    with np.errstate(divide="ignore"):
        assert np.isneginf(far.yaxis.get_transform().transform([0.0]))  # ε = 0 is left out, not drawn at a floor
    assert near.get_yscale() == "linear"
    assert near.get_ylim()[0] == 0


@pytest.mark.parametrize("draw", [epsilon_figure, utility_figure])
def test_a_noiseless_run_says_no_guarantee_and_has_no_epsilon_curve(
    make_run: MakeRun, draw: Callable[[RunFolder], Figure]
) -> None:
    (axes,) = draw(make_run("noiseless")).axes
    assert [text.get_text() for text in axes.texts] == ["no guarantee (ε = ∞)"]
    for line in axes.lines:
        assert len(set(np.asarray(line.get_ydata()))) == 1  # at most level reference lines
    assert len(axes.lines) == (2 if draw is utility_figure else 0)


def test_utility_is_drawn_against_epsilon_with_its_references(make_run: MakeRun) -> None:
    run, free = make_run("uedp"), make_run("noiseless")
    figure = overlay([run, free], "epsilon")
    curve, level, unigram = figure.axes[0].lines
    metrics = run.metrics()
    np.testing.assert_array_equal(curve.get_xdata(), metrics["epsilon_any"])
    np.testing.assert_array_equal(curve.get_ydata(), metrics["perplexity"])
    assert set(level.get_ydata()) == {free.metrics()["perplexity"].iloc[-1]}
    assert set(unigram.get_ydata()) == {912.3}
    assert labels(figure) == [
        "uedp, z 1, seed 0",
        "noiseless, seed 0: no guarantee (ε = ∞), final 318",
        "unigram model: 912",
    ]


def test_rounds_without_a_measurement_leave_no_point(make_run: MakeRun) -> None:
    run = make_run("uedp", rounds=3, finish=False)
    run.truncate_metrics(2)
    run.append_metrics({"round": 3, "epsilon_any": 19.0, "perplexity": None})
    (curve,) = [line for line in utility_figure(run).axes[0].lines if line.get_marker() == "o"]
    assert len(curve.get_xdata()) == 3


def test_the_overlay_tells_runs_apart_by_label_and_colour(make_run: MakeRun) -> None:
    runs = [make_run("uedp", z=z) for z in (1.0, 2.0)] + [make_run("user_level"), make_run("noiseless")]
    runs.append(make_run("uedp", z=2.0, name="again"))
    figure = overlay(runs, "round", "user")
    assert labels(figure) == [
        "uedp, z 1, seed 0",
        "uedp, z 2, seed 0 (uedp-2-0)",
        "user_level, z 1, seed 0",
        "noiseless, seed 0: no guarantee (ε = ∞)",
        "uedp, z 2, seed 0 (again)",
    ]
    lines = figure.axes[0].lines
    assert len(lines) == 4
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 4


def test_many_runs_never_share_colour_and_dash(make_run: MakeRun) -> None:
    runs = [make_run("uedp", seed=seed, rounds=1, finish=False) for seed in range(20)]
    lines = overlay(runs, "round").axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 20


def test_different_deltas_are_not_passed_off_as_comparable(make_run: MakeRun) -> None:
    runs = [make_run("uedp"), make_run("user_level", delta=1e-6)]
    title = overlay(runs, "round").axes[0].get_title(loc="left")
    assert title == "Privacy loss, δ = 1e-6 and 1e-5 (not comparable)"


@pytest.mark.system
@pytest.mark.parametrize("x", ["round", "epsilon", "both"])
def test_the_legend_lies_inside_the_picture_and_beside_the_axes(make_run: MakeRun, x: str) -> None:
    runs = [make_run("uedp"), make_run("user_level"), make_run("noiseless")]
    figures = [plots.two_panel_figure([read_facts(run) for run in runs])] if x == "both" else [overlay(runs, x)]
    if x == "round":
        figures.append(epsilon_figure(runs[0]))
    for figure in figures:
        plots.render(figure)
        (legend,) = figure.legends
        box = legend.get_window_extent()
        width, height = figure.canvas.get_width_height()
        assert 0 <= box.x0 < box.x1 <= width
        assert 0 <= box.y0 < box.y1 <= height
        for axes in figure.axes:
            assert not box.overlaps(axes.get_window_extent())


@pytest.mark.system
def test_a_finished_run_has_its_plots_and_an_empty_one_has_none(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("uedp")
    plots.write_run_plots(run)
    for name in (plots.EPSILON_FILE, plots.UTILITY_FILE):
        assert (run.plots_dir / name).read_bytes().startswith(PNG)
    empty = RunFolder.create(tmp_path / "empty", config={}, environment={})
    assert plots.write_run_plots(empty) == []
    with pytest.raises(ResultsError, match="has no rounds yet"):
        epsilon_figure(empty)


@pytest.mark.system
def test_drawing_leaves_pyplot_alone(make_run: MakeRun) -> None:
    before = pyplot.get_fignums()
    plots.write_run_plots(make_run("uedp", rounds=1))
    assert pyplot.get_fignums() == before


@pytest.mark.parametrize(
    ("x", "unit", "message"),
    [
        ("time", "user", "x is 'time'; allowed: round, epsilon"),
        ("round", "cat", "unit is 'cat'; allowed: any, any_robust, .*user, "),
    ],
)
def test_unknown_axes_and_units_are_refused(make_run: MakeRun, x: str, unit: str, message: str) -> None:
    with pytest.raises(ResultsError, match=message):
        overlay([make_run("uedp")], x, unit)


def test_runs_of_two_tasks_share_no_picture_of_utility(make_run: MakeRun) -> None:
    words, classes = make_run("uedp"), make_run("uedp", z=2.0, result={"task": "classification"})
    with pytest.raises(ResultsError, match="the runs measure perplexity and error; allowed in one plot: runs of one"):
        overlay([words, classes], "epsilon")
    overlay([words, classes], "round")  # ε compares


def test_an_error_is_drawn_as_a_share(make_run: MakeRun) -> None:
    run = make_run("noiseless", result={"task": "classification", "majority_error": 0.75}, finish=False)
    for number in (31, 32):
        run.append_metrics({"round": number, "error": 0.125, "epsilon_user_entity_p95": math.inf})
    run.finish({"task": "classification", "majority_error": 0.75})
    figure = utility_figure(run)
    (axes,) = figure.axes
    assert axes.get_ylabel() == "held-out error"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert any(label.endswith("final 12.5%") for label in labels)
    assert "always the most frequent class: 75.0%" in labels


def test_a_missing_metric_is_named(make_run: MakeRun) -> None:
    bare = make_run("uedp", rounds=1, finish=False)
    bare.truncate_metrics(-1)
    for number in range(2):
        bare.append_metrics({"round": number, "epsilon_user": 5.0 * number})
    with pytest.raises(ResultsError, match="seed 0: the metrics have no epsilon_user_entity_p95"):
        overlay([bare], "round")
    with pytest.raises(ResultsError, match="seed 0: the metrics have no perplexity"):
        overlay([bare], "epsilon", "user")


class TestCommand:
    @pytest.mark.system
    def test_out_and_x_choose_file_and_plot(
        self, make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = str(make_run("uedp").path)
        out = tmp_path / "new" / "figure.png"
        assert main(["report", run, "--picture", str(out), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["run"] == Path(run).name
        assert out.read_bytes().startswith(PNG)
        both = out.read_bytes()
        assert main(["report", run, "--picture", str(out), "--x", "epsilon", "--unit", "user"]) == 0
        assert out.read_bytes() != both
        assert main(["report", run, "--picture", str(out.with_suffix(".pdf"))]) == 0
        assert out.with_suffix(".pdf").read_bytes().startswith(b"%PDF")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["{run}", "--picture", "a.png", "--unit", "cat"], "unit is 'cat'"),
            (["{run}", "--unit", "user"], "--unit is given without --picture"),
            (["{run}", "{tmp}", "--picture", "a.png", "--x", "users"], "is not a run folder"),
            (["{run}", "--picture", "figure.docx"], "--picture is figure.docx; allowed"),
            (["{run}", "{tmp}/none", "--picture", "a.png"], "there is no such folder"),
        ],
    )
    def test_bad_input_is_one_line_and_writes_nothing(
        self, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str], arguments: list[str], message: str,
    ) -> None:  # fmt: skip
        run = make_run("uedp").path
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        assert main(["report", *(text.format(run=run, tmp=tmp_path) for text in arguments)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert message in captured.err
        assert captured.err.count("\n") == 1
        assert not list(Path().iterdir())

    @pytest.mark.system
    def test_a_half_written_line_is_reported(
        self, make_run: MakeRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = make_run("uedp", finish=False)
        os.truncate(run.metrics_file, run.metrics_file.stat().st_size - 4)
        assert main(["report", str(run.path), "--picture", str(tmp_path / "out.png")]) == 0
        assert "metrics.jsonl, line 31: cut off" in capsys.readouterr().err
