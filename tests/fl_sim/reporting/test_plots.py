"""The charts show what was measured, draw no missing guarantee as a number, and keep legends aside."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from fl_sim.cli.main import main
from fl_sim.reporting import plots
from fl_sim.reporting.held_out import HeldOutFigures
from fl_sim.reporting.plots import Axis, Chart, Line, Point, Row
from fl_sim.reporting.recorded import parsed
from fl_sim.reporting.run_facts import read_facts
from fl_sim.storage.run_folder import ResultsError, RunFolder
from tests.fl_sim.conftest import GUARANTEE, Capture, MakeRun, Printed, Refusal, ended_with, rewritten
from tests.fl_sim.reporting.test_without_privacy import twin_beside

PNG = b"\x89PNG\r\n\x1a\n"


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def drawn(runs: RunFolder | list[RunFolder], x: str | None, unit: str | None = None) -> Figure:
    folders = runs if isinstance(runs, list) else [runs]
    return plots.run_picture({run.path.name: read_facts(run) for run in folders}, x, unit)


def test_a_runs_epsilon_plot_draws_every_unit_as_measured(make_run: MakeRun) -> None:
    run = make_run("uedp")
    figure = drawn(run, "round")
    (axes,) = figure.axes
    lines = {str(line.get_label()).rpartition(":")[0]: line for line in axes.lines}
    units = {unit: words for unit, words in plots.UNITS.items() if not unit.startswith("stated")}
    assert set(lines) == set(units.values())
    metrics = run.metrics()
    for unit, words in units.items():
        np.testing.assert_array_equal(lines[words].get_xdata(), metrics["round"])
        np.testing.assert_array_equal(lines[words].get_ydata(), metrics[f"epsilon_{unit}"])
        assert (lines[words].get_linestyle() == "--") == ("robust" in unit)
    assert axes.get_title(loc="left") == "Privacy loss of uedp-1-0, δ = 1e-5"
    assert labels(figure)[:2] == [
        "any user + any entity, with missed mentions: 33.40",
        "user + entity, max. contributions, robust: 31.70",
    ]


def with_epsilons(run: RunFolder, **changes: float | None) -> RunFolder:
    """Change ε of every unit in ``changes`` after every round but 0; None removes it."""

    def changed(row: dict[str, Any]) -> dict[str, Any]:
        values = {name: value for name, value in changes.items() if value is not None}
        kept = {name: value for name, value in row.items() if name not in changes}
        return kept | (values if row["round"] else dict.fromkeys(values, 0.0))

    return rewritten(run, changed)


def test_a_stated_bound_is_drawn_under_its_own_name(make_run: MakeRun) -> None:
    infinite = {"epsilon_any": math.inf, "epsilon_any_robust": None}
    words = labels(
        drawn(with_epsilons(make_run("uedp", rounds=2, finish=False), epsilon_stated=40.0, **infinite), "round")
    )
    assert words[0] == "any user + an entity within the stated bound: 40.00"
    assert not any("any entity" in label for label in words)


@pytest.mark.parametrize(("missing", "words"), [(math.inf, "ε of any user + any entity is ∞"), (None, "no such ε")])
def test_the_axis_is_the_epsilon_that_leads_and_no_other(make_run: MakeRun, missing: float | None, words: str) -> None:
    bounded = make_run("uedp", rounds=2, finish=False)
    unbounded = with_epsilons(make_run("uedp", rounds=2, seed=1, finish=False), epsilon_any=missing)
    noiseless = make_run("noiseless", rounds=2, finish=False)
    for x in ("round", "epsilon"):
        figure = drawn([noiseless, bounded, unbounded], x)
        shown = figure.axes[0].get_title(loc="left") + figure.axes[0].get_xlabel()
        assert "any user + any entity" in shown
        assert "p95" not in shown
        (said,) = [label for label in labels(figure) if label.startswith("uedp-1-1")]
        assert words in " ".join(said.split())
    asked = drawn([bounded, unbounded], "epsilon", "user")
    assert asked.axes[0].get_xlabel() == "ε, any user"
    assert labels(asked)[:2] == ["uedp-1-0", "uedp-1-1"]


@pytest.mark.parametrize(("proven", "claims"), [(1.0, 1), (np.inf, 0)])
def test_a_published_claim_is_drawn_as_one_and_never_alone(make_run: MakeRun, proven: float, claims: int) -> None:

    def claiming(row: dict[str, Any]) -> dict[str, Any]:
        epsilons = {name: proven * value for name, value in row.items() if name.startswith("epsilon_") and row["round"]}
        return row | epsilons | {"epsilon_as_published": 0.2 * row["round"]}

    words = labels(drawn(rewritten(make_run("user_level", rounds=2, finish=False), claiming), "round"))
    assert words.count("as published, a claim and no guarantee: 0.400") == claims
    assert len(words) > claims


def test_epsilon_goes_on_a_log_axis_only_where_the_curves_lie_far_apart(make_run: MakeRun) -> None:
    far = drawn(make_run("uedp"), "round").axes[0]
    near = drawn([make_run("uedp", z=2.0)], "round", "any").axes[0]
    assert far.get_yscale() == "log"
    with np.errstate(divide="ignore"):
        assert np.isneginf(far.yaxis.get_transform().transform([0.0]))  # ε = 0 is left out, not drawn at a floor
    assert near.get_yscale() == "linear"
    assert near.get_ylim()[0] == 0


@pytest.mark.parametrize("x", ["round", "epsilon"])
def test_a_noiseless_run_says_no_guarantee_and_has_no_epsilon_curve(make_run: MakeRun, x: str) -> None:
    figure = drawn(make_run("noiseless"), x)
    (axes,) = figure.axes
    assert "no guarantee (ε = ∞)" in labels(figure)[0]
    assert all(len(set(np.asarray(line.get_ydata()))) <= 1 for line in axes.lines)  # at most level reference lines
    assert len([line for line in axes.lines if len(np.asarray(line.get_ydata()))]) == (2 if x == "epsilon" else 0)
    assert len((axes.yaxis if x == "round" else axes.xaxis).get_ticklocs()) == 0


def test_utility_is_drawn_against_epsilon_with_its_references(make_run: MakeRun) -> None:
    run, free = make_run("uedp"), make_run("noiseless")
    figure = drawn([run, free], "epsilon")
    curve, level, unigram = figure.axes[0].lines
    metrics = run.metrics()
    np.testing.assert_array_equal(curve.get_xdata(), metrics["epsilon_any"])
    np.testing.assert_array_equal(curve.get_ydata(), metrics["perplexity"])
    assert set(level.get_ydata()) == {free.metrics()["perplexity"].iloc[-1]}
    assert set(unigram.get_ydata()) == {912.3}
    assert labels(figure) == ["uedp-1-0", "noiseless-1-0: no guarantee (ε = ∞), final 318.0", "unigram model: 912.3"]


def test_the_twin_without_privacy_is_a_level_unless_it_is_drawn_itself(make_run: MakeRun) -> None:
    run = make_run("uedp")
    twin = twin_beside(run, "twin", final=318.0)
    assert "without privacy (twin): 318.0" in labels(drawn(run, "epsilon"))
    assert not [label for label in labels(drawn([run, twin], "epsilon")) if "without privacy" in label]


def test_a_reference_far_above_the_runs_does_not_press_them_together(make_run: MakeRun) -> None:
    run = make_run("uedp", rounds=3, result={"unigram_perplexity": 9e4})
    figure = drawn(run, "epsilon")
    assert labels(figure) == ["uedp-1-0", "unigram model: 90,000.0, above the picture"]
    assert figure.axes[0].get_ylim()[1] < 1e4


def test_rounds_without_a_measurement_leave_no_point(make_run: MakeRun) -> None:
    run = ended_with(make_run("uedp", rounds=3, finish=False), perplexity=None)
    (curve,) = [line for line in drawn(run, "epsilon").axes[0].lines if line.get_marker() == "o"]
    assert len(curve.get_xdata()) == 3


def test_the_overlay_tells_runs_apart_by_label_and_colour(make_run: MakeRun) -> None:
    runs = [make_run("uedp", z=z) for z in (1.0, 2.0)] + [make_run("user_level"), make_run("noiseless")]
    runs.append(make_run("uedp", z=2.0, name="again"))
    figure = drawn(runs, "round", "user")
    assert labels(figure) == [
        "uedp-1-0", "uedp-2-0", "user_level-1-0", "noiseless-1-0: no guarantee (ε = ∞)", "again",
    ]  # fmt: skip
    lines = [line for line in figure.axes[0].lines if len(np.asarray(line.get_ydata()))]
    assert len(lines) == len({(line.get_color(), line.get_linestyle()) for line in lines}) == 4
    assert len({(look.colour, look.dash) for look in plots.looks(20)}) == 20


def test_different_deltas_are_not_passed_off_as_comparable(make_run: MakeRun) -> None:
    runs = [make_run("uedp"), make_run("user_level", delta=1e-6)]
    title = drawn(runs, "round").axes[0].get_title(loc="left")
    assert title.endswith("δ = 1e-6 and 1e-5 (not comparable)")
    graph = make_run("uedp", name="graph", result={"guarantee": GUARANTEE | {"known": "graph", "counts": ""}})
    title = drawn([runs[0], graph], "round").axes[0].get_title(loc="left")
    assert title.endswith("δ = 1e-5, counts and graph known (not comparable)")


@pytest.mark.system
@pytest.mark.parametrize("x", ["round", "epsilon", None])
def test_the_legend_lies_inside_the_picture_and_beside_the_axes(make_run: MakeRun, x: str | None) -> None:
    runs = [make_run("uedp"), make_run("user_level"), make_run("noiseless")]
    for figure in [drawn(runs, x), drawn(runs[0], "round")]:
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
    before = pyplot.get_fignums()
    run = make_run("uedp")
    plots.write_run_plots(run)
    for name in (plots.EPSILON_FILE, plots.UTILITY_FILE):
        assert (run.plots_dir / name).read_bytes().startswith(PNG)
    assert pyplot.get_fignums() == before
    empty = RunFolder.create(tmp_path / "empty", config={}, environment={})
    assert plots.write_run_plots(empty) == []
    with pytest.raises(ResultsError, match="has no rounds yet"):
        drawn(empty, "round")


@pytest.mark.parametrize(
    ("x", "unit", "message"),
    [
        ("time", "user", "x is 'time'; allowed: round, epsilon, users"),
        ("round", "cat", "unit is 'cat'; allowed: any, any_robust, .*user, "),
        ("users", None, "has recorded nothing by user; allowed: a run that has ended"),
    ],
)
def test_unknown_axes_and_units_are_refused(make_run: MakeRun, x: str, unit: str | None, message: str) -> None:
    with pytest.raises(ResultsError, match=message):
        drawn(make_run("uedp"), x, unit)


def test_runs_of_two_tasks_share_no_picture_of_utility(make_run: MakeRun) -> None:
    words, classes = make_run("uedp"), make_run("uedp", z=2.0, result={"task": "classification"})
    with pytest.raises(ResultsError, match="the runs measure perplexity and error; allowed in one plot: runs of one"):
        drawn([words, classes], "epsilon")
    drawn([words, classes], "round")  # ε compares


def test_an_error_is_drawn_as_a_share(make_run: MakeRun) -> None:
    run = make_run("noiseless", result={"task": "classification", "majority_error": 0.75}, finish=False)
    for number in (31, 32):
        run.append_metrics({"round": number, "error": 0.125, "epsilon_user_entity_p95": math.inf})
    run.finish({"task": "classification", "majority_error": 0.75})
    figure = drawn(run, "epsilon")
    assert figure.axes[0].get_ylabel() == "held-out error"
    assert any(label.endswith("final 12.5%") for label in labels(figure))
    assert "always the most frequent class: 75.0%" in labels(figure)


def test_long_runs_are_thinned_and_keep_their_last_round() -> None:
    points = tuple(Point(float(n), float(n), f"{n}") for n in range(5001))
    rows = Chart("x", plots.ROUND, Axis("ε"), "", lines=(Line("A", 0, points),)).table.rows
    assert len(rows) < 210
    assert rows[-1] == ["5,000", "5000"]


def test_no_table_of_a_chart_rounds_epsilon_down(make_run: MakeRun) -> None:
    """3.13 stood in the first column for an ε of 3.130056, beside 3.14 in the second."""
    run = ended_with(make_run("uedp", rounds=2), epsilon_any=33.130056)
    assert plots.utility_chart({"run": read_facts(run)}).table.rows[-1][0] == "33.14"


def test_a_picture_ends_at_the_epsilon_of_all_releases(make_run: MakeRun) -> None:
    """Killed in the last round that a budget allows, a run has more releases than rounds: 4.26 was drawn for 5.18."""
    run = make_run("uedp", rounds=2, result={"epsilon_any": 33.5})
    assert drawn(run, None).axes[0].lines[0].get_ydata()[-1] == read_facts(run).epsilon["epsilon_any"] == 33.5


def test_a_mark_lies_where_its_figure_is() -> None:
    rows = (Row("a", 0.25, 0.0, 0.5, ""), Row("b", 0.5, 0.0, 0.5, "", bound=1.0))
    text = Chart("x", Axis("share"), Axis(""), "", rows=rows).svg
    marks = re.findall(r'<use xlink:href="(#\w+)" x="([\d.]+)" y="[\d.]+" style="fill: var', text)
    number = Counter(mark for mark, _ in marks)  # one a row, and two at the ends of its interval
    second, first = (float(at) for mark, at in marks if number[mark] == 2)  # from the bottom to the top
    (bound,) = re.findall(r'<path d="M ([\d.]+) [\d.]+\s+L [\d.]+ [\d.]+\s+" [^>]*var\(--bound\)', text)
    assert float(bound) - second == pytest.approx(2 * (second - first), abs=0.1)


def test_an_interval_that_the_axis_cuts_has_an_arrow_there_and_no_other() -> None:
    inside, beyond = Row("a", 0.25, 0.1, 0.5, "", 1), Row("b", 0.5, -0.2, 0.6, "", 2)
    chart = Chart("x", Axis("share", zero=True), Axis(""), "", rows=(inside, beyond))
    axes = Figure().subplots()
    handles = plots.draw(axes, chart)
    (arrow,) = [line for line in axes.lines if line.get_marker() == "<"]
    assert (list(arrow.get_xdata()), list(arrow.get_ydata())) == ([0.0], [0])
    assert axes.get_xlim()[0] == 0
    assert handles["goes on beyond the axis"] is arrow
    points = (Point(1.0, 1.0, "", -0.5, 2.0), Point(2.0, 1.5, "", 1.0, 2.0))
    axes = Figure().subplots()
    plots.draw(axes, Chart("x", Axis("times"), Axis("bits", zero=True), "", lines=(Line("A", 0, points),)))
    assert [line.get_marker() for line in axes.lines if line.get_marker() in ("<", ">", "^", "v")] == ["v"]
    assert axes.get_ylim()[0] == 0


def test_every_limit_is_in_the_legend() -> None:
    rows = (Row("a", 0.25, 0.1, 0.5, "", bound=0.75),)
    chart = Chart("x", Axis("share", percent=True, guess=0.5), Axis(""), "", rows=rows, bound_words="the most")
    assert list(plots.draw(Figure().subplots(), chart)) == ["the most", "guessing: 50%"]
    assert "the most" in chart.svg


def test_a_long_label_takes_lines_of_its_own_and_stays_inside(make_run: MakeRun) -> None:
    name = "a_name_that_people_give " * 6
    figure = plots.picture([plots.epsilon_chart({name: read_facts(make_run("uedp", rounds=2))})])
    plots.render(figure)
    assert labels(figure)[0].count("\n") >= 1
    assert figure.legends[0].get_window_extent().x1 <= figure.canvas.get_width_height()[0]


# Utility by user


def figure(value: float, spread: float = 0.1) -> dict[str, float]:
    return {"value": value, "low": value - spread, "high": value + spread}


HELD_OUT = {
    "users": 9, "sentences": 1234, "cut": 0, "interval": "", "resamples": 10,
    "figures": {"bits_per_byte": figure(2.0), "perplexity_per_word": figure(4000, 100),
                "perplexity_per_token": figure(300, 9)},
    "metric": "bits_per_byte", "deciles": [1.6 + 0.1 * n for n in range(9)],
    "by_sentences": [
        {"lowest": 1, "highest": 1, "members": 1, "figure": figure(2.5, math.nan)},
        {"lowest": 64, "highest": None, "members": 8, "figure": figure(1.9)},
    ],
    "by_mention": {"entity_tokens": {"share": 0.25, "figures": {"bits_per_byte": figure(3.0)}},
                   "other_tokens": {"share": 0.75, "figures": {"bits_per_byte": figure(1.5)}}},
    "by_training_mentions": [{"lowest": 0, "highest": 0, "members": 3, "figure": figure(4.0)}],
}  # fmt: skip


def test_the_picture_by_user_draws_deciles_classes_and_parts(make_run: MakeRun) -> None:
    run = make_run("uedp", rounds=1, result={"held_out": HELD_OUT, "model_files": {"a": "b"}})
    deciles, sizes, parts, names = drawn(run, "users").axes
    np.testing.assert_allclose(deciles.lines[0].get_ydata(), HELD_OUT["deciles"])
    assert [label.get_text() for label in sizes.get_yticklabels()] == ["64 or more", "1"]
    assert [label.get_text() for label in parts.get_yticklabels()] == ["other tokens", "entity tokens"]
    assert [label.get_text() for label in names.get_yticklabels()] == ["0"]
    assert deciles.get_ylabel() == "held-out bits per byte"
    no_places = make_run(
        "uedp",
        rounds=1,
        name="no places",
        result={"held_out": HELD_OUT | {"by_mention": {}, "by_training_mentions": []}},
    )
    assert len(drawn(no_places, "users").axes) == 2


@pytest.mark.parametrize(
    ("result", "column", "levels"),
    [
        ({"unigram_bits_per_byte": 3.29}, "bits_per_byte", ["start: 2.67", "unigram model: 3.29"]),
        ({}, "other", []),
        (
            {"task": "classification", "majority_error": 0.75, "held_out": HELD_OUT | {"metric": "error", "figures": {
                "error": figure(0.5)}}},
            "error",
            ["start: 267.0%", "always the most frequent class: 75.0%"],
        ),
    ],
)  # fmt: skip
def test_start_and_reference_stand_beside_the_figure_over_all_text(
    make_run: MakeRun, result: dict[str, Any], column: str, levels: list[str]
) -> None:
    run = make_run("uedp", rounds=1, result={"held_out": HELD_OUT} | result)
    rewritten(run, lambda row: row | {column: 2.0 if row["round"] else 2.67})
    chart = plots.overall_chart({"A": read_facts(run), "B": read_facts(run)})
    assert chart is not None
    assert [level.label for level in chart.levels] == levels


def test_the_words_by_user() -> None:
    first, figures, deciles, sizes, parts, names = parsed(HeldOutFigures, HELD_OUT, Path("result.json")).lines()
    assert first.startswith("1,234 held-out sentences of 9 users; in brackets 95 % intervals")
    assert "bits per byte 2.00 (1.90 to 2.10); perplexity per word 4,000.0 (3,900.0 to 4,100.0)" in figures
    assert "perplexity per token 300.0 (291.0 to 309.0), explained by the tokenizer" in figures
    assert deciles.endswith("1.60 1.70 1.80 1.90 2.00 2.10 2.20 2.30 2.40")
    assert sizes.endswith("1: 2.50, 64 or more: 1.90 (1.80 to 2.00)")
    assert "entity tokens 3.00 (2.90 to 3.10) (25 % of all), other tokens 1.50 (1.40 to 1.60) (75 % of all)" in parts
    assert names == "entity tokens by their name's mentions in training, bits per byte: 0: 4.00 (3.90 to 4.10)"


class TestCommand:
    @pytest.mark.system
    def test_out_and_x_choose_file_and_plot(self, make_run: MakeRun, tmp_path: Path, printed: Printed) -> None:
        run = str(make_run("uedp").path)
        out = tmp_path / "new" / "figure.png"
        assert printed("report", run, "--picture", out)["run"] == Path(run).name
        assert out.read_bytes().startswith(PNG)
        both = out.read_bytes()
        assert main(["report", run, "--picture", str(out), "--x", "epsilon", "--unit", "user"]) == 0
        assert out.read_bytes() != both
        assert main(["report", run, "--picture", str(out.with_suffix(".pdf"))]) == 0
        assert out.with_suffix(".pdf").read_bytes().startswith(b"%PDF")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--picture", "a.png", "--unit", "cat"], "unit is 'cat'"),
            (["--unit", "user"], "--unit is given without --picture"),
            (["--picture", "figure.docx"], "--picture is figure.docx; allowed"),
            (["none", "--picture", "a.png"], "there is no such folder"),
        ],
    )
    def test_bad_input_is_one_line_and_writes_nothing(
        self, make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        refusal: Refusal, arguments: list[str], message: str,
    ) -> None:  # fmt: skip
        run = make_run("uedp").path
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        assert message in refusal("report", run, *arguments)
        assert not list(Path().iterdir())

    @pytest.mark.system
    def test_a_half_written_line_is_reported(self, make_run: MakeRun, tmp_path: Path, capsys: Capture) -> None:
        run = make_run("uedp", finish=False)
        os.truncate(run.metrics_file, run.metrics_file.stat().st_size - 4)
        assert main(["report", str(run.path), "--picture", str(tmp_path / "out.png")]) == 0
        assert "metrics.jsonl, line 31: cut off" in capsys.readouterr().err
