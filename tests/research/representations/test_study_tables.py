"""The reproductions of the study's and DPNR's tables, on corpora and encoders of our own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_sim.cli import main
from fl_sim.research import reproduce_command
from fl_sim.research.representations.config import load_mapping
from fl_sim.research.representations.representation_experiment import RECORD_FORMAT
from fl_sim.research.representations.studies import (
    ag_study,
    dpnr_ag,
    dpnr_pages,
    dpnr_published,
    reproductions,
    study_runs,
)
from fl_sim.research.representations.studies.agreement import count_verdicts
from fl_sim.research.representations.studies.study_pictures import Curve, Panel, draw_panels
from fl_sim.research.representations.studies.study_runs import Options
from tests.research.representations.tiny_bert import save_tiny_bert

TINY_STUDY = ag_study.Grid((4.0,), dimensions=(4,), rows=60, epochs=1)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AG News and SST-2 in their formats, with a word that tells the class."""
    folder = tmp_path_factory.mktemp("corpora")
    rng = np.random.default_rng(0)
    for name in ("ag_news", "sst2"):
        (folder / name).mkdir()
    for name, count in (("train", 80), ("test", 40)):
        topics = rng.integers(1, 5, count)
        rows = [f'"{t}","Title {t} {i}","Words about topic{t} number {i} here"' for i, t in enumerate(topics)]
        (folder / "ag_news" / f"{name}.csv").write_text("\n".join(rows) + "\n")
        signs = rng.integers(0, 2, count)
        rows = [f"{s}\t{'good' if s else 'bad'} film number {i}" for i, s in enumerate(signs)]
        (folder / "sst2" / f"{name}.tsv").write_text("label\tsentence\n" + "\n".join(rows) + "\n")
    return folder


@pytest.mark.nightly
@pytest.mark.usefixtures("clean_commit")
def test_the_study_s_figures_have_every_release(
    corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ag_study, "GRID", TINY_STUDY)
    command = ["reproduce", "make", "ag-study", "--data", str(corpora), "--out", str(tmp_path / "work")]
    assert main.main([*command, "--seeds", "0,1", "--record", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.err.count("to go") == 2 * 2 * 4  # seeds, corpora, systems
    table = json.loads((tmp_path / "representations" / "ag-study.json").read_text())
    assert table["environment"]["libraries"]
    rows = {(r["corpus"], r["system"], r["epsilon"], r.get("word_dropout")): r for r in table["rows"]}
    assert len(rows) == len(table["rows"]) == 2 * (1 + 12 + 2 * 12 + 5)
    assert table["grid"] == "full"
    stored = [json.loads(path.read_bytes())["config"] for path in (tmp_path / "work" / "ag-study").glob("*.json")]
    of_notebook = {("masked", 2, "file", "first", 0.9)}
    assert of_notebook == {
        (
            config["privacy"]["dropped_words"], config["encoder"]["ngrams"], config["encoder"]["vocabulary"],
            config["data"]["selection"], config["optimizer"]["decay"],
        )
        for config in stored
    }  # fmt: skip
    schedules = [config["training"]["adaptive"] for config in stored if config["method"] == "adaptive"]
    assert sorted(schedules) == ["1/n"] * 4 + ["10/n"] * 4, "seeds, corpora"
    row = rows["ag-news", "non-robust", 0.5, 0.0]
    assert row["epsilon_claimed"] == 0.5
    assert row["epsilon_corrected"] == pytest.approx(2.0)  # k = 4
    dropped = rows["ag-news", "robust", 4.0, 0.5]
    assert dropped["epsilon_claimed"] < 4 < dropped["epsilon_corrected"] < 16
    assert "\n| 15.87 | 3.33 | 4 | 0.5 | " in said.out, "proven ε of a word in three tokens, then claimed ε"
    assert "| Adaptative 10/n | Adaptative 1/n |" in said.out
    assert "without noise" in said.out
    assert "* Reproduced with word dropout: " in said.out
    picture = tmp_path / "representations" / "ag-study-epsilon.png"
    assert picture.read_bytes().startswith(b"\x89PNG"), "beside the record"
    picture.unlink()
    page, drawn = reproductions.write_document(tmp_path / "representations")
    assert drawn == picture
    assert f"]({picture.name})\n" in page.read_text()
    assert picture.exists()
    assert "## The study's figures 7 and 8" in page.read_text()
    assert reproductions.show(table).strip() in page.read_text()
    assert reproductions.write_document(tmp_path / "work") == []
    assert main.main([*command, "--seeds", "0,1"]) == 0
    assert "to go" not in capsys.readouterr().err, "what is done is kept"
    checking = ["reproduce", "check", str(tmp_path), "ag-study", *command[3:]]
    assert main.main([*checking, "--points", "10", "--json"]) == 0, "every experiment"
    checked = json.loads(capsys.readouterr().out)
    assert {row["verdict"] for row in checked} == {"the same"}
    assert sum(row["comparison"]["figures"] for row in checked) > 4 * len(rows)


@pytest.fixture(scope="module")
def dpnr_table(small_persons: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """DPNR's record on two seeds, one of them fine-tuned, with a tiny BERT."""
    folder = tmp_path_factory.mktemp("dpnr-record")
    tiny = dpnr_ag.Grid(
        (0.05, 1.0), (0.5,), epochs=1, attacker_epochs=1, model=str(save_tiny_bert(folder)), tuned_seeds=1,
        tuned_epsilons=(0.05,), tuned_rates=(0.5,), tuned_epochs=1, tuned_layers=1,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpnr_ag, "THIN", tiny)
        table = reproductions.run("dpnr-ag", Options(small_persons, (0, 1), work=folder / "work"))
    assert list((folder / "work" / "features").glob("features-*.npy"))
    assert list((folder / "work" / "features").glob("states-*.bin"))
    return table


@pytest.mark.nightly
def test_dpnr_s_tables_say_what_is_proven_and_claimed_in_every_row(dpnr_table: dict[str, Any]) -> None:
    rows = {tuple(row[n] for n in ("encoder", "system", "epsilon", "word_dropout")): row for row in dpnr_table["rows"]}
    assert len(rows) == 3 + 2 * (2 + 1) + 2 + 2 + 1
    masked = rows["fine-tuned", "dpnr-shared", 1.0, 0.5]
    assert masked["published"] == {"accuracy": 77.42}
    assert masked["epsilon_claimed"] == pytest.approx(0.62, abs=0.001)
    assert rows["frozen", "dpnr", 0.05, 0.0]["epsilon_proven"] == pytest.approx(384 * 0.05)
    assert rows["frozen", "dpnr-shared", 0.05, 0.0]["epsilon_proven"] == float("inf")
    assert rows["fine-tuned", "dpnr", 0.05, 0.0]["epsilon_proven"] == pytest.approx(8 * 0.05)  # the pooler's width
    dropped = rows["frozen", "dpnr", 1.0, 0.5]
    assert dropped["epsilon_claimed"] == pytest.approx(0.62, abs=0.001)  # as the paper states it
    assert dropped["published"] == {"accuracy": 77.42}
    assert list(dropped).index("epsilon_proven") < list(dropped).index("epsilon_claimed")
    assert "privacy_f" in rows["frozen", "dpnr", 1.0, 0.0]  # figure 3 has an attacker per ε
    assert [rows[key]["seeds"] for key in rows if key[1] == "non-priv"] == [2, 1]
    assert set(rows["frozen", "non-priv", None, 0.0]["attacker"]) == {"Bush", "Kerry", "Arafat", "Blair", "Sharon"}
    shown = reproductions.show(dpnr_table)
    read = {key[:2]: row for key, row in rows.items() if "privacy_f_of_code" in row}
    assert list(read) == [("frozen", n) for n in ("majority", "non-priv", "adv")] + [
        ("fine-tuned", "non-priv"), ("fine-tuned", "adv"),
    ]  # fmt: skip
    assert read["frozen", "majority"]["privacy_f_of_code"] == read["frozen", "majority"]["privacy_f"]
    assert read["frozen", "adv"]["agrees_of_code"] is None, "two seeds"
    assert "| 1 − F, the published code's attacker |" in shown
    assert shown.index("proven") < shown.index("claimed")
    assert shown.count("| dpnr-shared |") == (3 + 1 + 1) + 2 * 3 + 2 * 5  # tables 2 and 3; 4, 5, 7; five persons' gaps


@pytest.mark.nightly
def test_dpnr_s_record_says_of_every_published_figure_whether_it_is_reproduced(dpnr_table: dict[str, Any]) -> None:
    row = next(row for row in dpnr_table["rows"] if row["system"] == "dpnr" and row["epsilon"] == 0.05)
    assert row["agrees"].keys() == row["published"].keys()
    assert row["agrees"]["task"].keys() == row["published"]["task"].keys() == set(dpnr_published.PERSONS)
    expected = {"accuracy": 1, "privacy_f": 1, "attacker": 6, "task": 6}
    assert {name: count_verdicts(row["agrees"][name])["published"] for name in expected} == expected
    frozen, tuned = (
        {of: counts["published"] for of, counts in dpnr_table["reproduced"][encoder].items()}
        for encoder in ("frozen", "fine-tuned")
    )
    assert frozen == {"baselines": 2 + 2 * 14, "dpnr": 14 + 2, "dpnr-shared": 14 + 2}, "majority; ε 1 and μ 0.5"
    assert tuned == {"baselines": 2 * 14, "dpnr": 14, "dpnr-shared": 14 + 1}
    assert "by the mechanism that made its tables, one noise number per text (dpnr-shared): no verdict on 15" in (
        reproductions.show(dpnr_table)
    )


@pytest.mark.nightly
def test_dpnr_s_pictures_and_page_come_from_the_record_alone(dpnr_table: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "representations"
    reproductions.write(dpnr_table, folder / "dpnr-ag.json")
    names = {"dpnr-ag-epsilon.png", "dpnr-ag-tsne.png"}
    assert {path.name for path in folder.glob("*.png")} == names
    page, *pictures = reproductions.write_document(folder)
    assert {path.name for path in pictures} == names
    assert all(f"]({name})" in page.read_text() for name in names)
    points = dpnr_table["tsne"]["points"]
    assert list(points) == ["non-priv", "dpnr", "dpnr-shared"]
    assert all(len(dpnr_pages.unpack_points(text)) == len(dpnr_table["tsne"]["named"]) for text in points.values())


def _figures(gap: float, accuracy: float = 80.0) -> dict[str, Any]:
    return {"task": {"Blair": (accuracy, gap)}, "sizes": {"Blair": (1308, 149)}}


@pytest.mark.nightly
def test_a_gap_narrows_by_its_size_with_an_error_of_seeds_and_texts() -> None:
    row = dpnr_published.fairness_row("dpnr", "Blair", [_figures(-15.0), _figures(-17.0)], [_figures(4.0)] * 2)
    assert row["narrower_by"] == 12.0  # 16 − |4|: a gap in the other direction counts with its size
    assert row["published"] == pytest.approx(15.44 - 12.22)
    rates = [(0.8, 0.64), (0.8, 0.84)]
    texts = sum(a * (1 - a) / 1308 + p * (1 - p) / 149 for a, p in rates)
    assert row["standard_error"] == pytest.approx(math.sqrt(1e4 * texts + 1.0), abs=0.01)  # the seeds': √2/√2
    assert row["published_standard_errors"] < 1


@pytest.mark.nightly
def test_the_verdict_is_in_words_and_says_what_fairness_costs(dpnr_table: dict[str, Any]) -> None:
    assert {row["verdict"] for row in dpnr_table["fairness"]} <= {"narrower", "wider", "not told apart"}
    assert len(dpnr_table["fairness"]) == 2 * 2 * 5
    shown = reproductions.show(dpnr_table)
    assert "* Published: narrower by 1.9, 3.2, 4.7 points for Arafat, Blair, Sharon" in shown
    assert shown.count("the accuracy changes by") == 4


def test_reproduce_knows_and_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(reproductions.REPRODUCTIONS) == reproduce_command.TABLES
    assert main.main(["reproduce", "list"]) == 0
    said = capsys.readouterr().out
    titles = (found.title for found in reproductions.REPRODUCTIONS.values())
    assert all(name in said for name in ("fig2", "fig3a", "fig9", "table2", *titles))


def test_a_record_of_another_layer_or_grid_has_another_name() -> None:
    recorded = sorted((Path("results") / "representations").glob("*.json"))
    assert [reproductions.file_name(reproductions.read(path)) for path in recorded] == [path.name for path in recorded]
    assert reproductions.file_name({"name": "adult", "layer": "l2", "grid": "full"}) == "adult_l2_full.json"


def test_a_table_is_recorded_under_its_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reproductions.read(Path("results") / "representations" / "adult_l2.json")
    written = []
    monkeypatch.setattr(reproductions, "run", lambda *_: made)
    monkeypatch.setattr(reproductions, "write", lambda table, path: written.append(path))
    monkeypatch.setattr("fl_sim.research.study_files.check_commits", lambda *_: None)
    command = ["reproduce", "make", "adult", "--layer", "l2", "--quiet", "--json", "--out", str(tmp_path / "out")]
    assert main.main([*command, "--record", str(tmp_path)]) == 0
    assert written == [tmp_path / "representations" / "adult_l2.json"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--panel", "x"], "--panel is 'x'; dpnr-ag has no panels"),
        (["--seeds", "a"], "--seeds is 'a'; allowed: different integers"),
        (["--seeds", "0,0,0"], "--seeds is '0,0,0'; allowed: different integers"),
        (["--seeds", "99999999999999999999"], "allowed: different integers of at least 0 and 18 digits at most"),
        (["--jobs", "0"], "--jobs is 0"),
    ],
)
def test_bad_options_are_named(more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["reproduce", "make", "dpnr-ag", *more]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.nightly
def test_published_points_stand_beside_measured_ones_with_bars() -> None:
    measured = tuple({"mean": mean, "half_width": 2.0} for mean in (30.0, 60.0))
    curves = (Curve("robust", (1.0, 4.0), measured, (None, (66.0, 3.0))), Curve("plain", (), measured[:1]))
    figure = draw_panels([Panel("AG", curves), Panel("SST", curves)], "ε", "accuracy")
    assert [len(axes.containers) for axes in figure.axes] == [2, 2]
    ours, theirs = figure.axes[0].containers
    assert list(ours[0].get_ydata()) == [30.0, 60.0]
    assert list(theirs[0].get_ydata()) == [66.0]
    ((_, top),) = [segment[:, 1] for segment in theirs[2][0].get_segments()]
    assert top == 69.0
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["plain", "robust", "robust, published"]


@pytest.mark.nightly
def test_epsilon_on_an_axis_is_rounded_up() -> None:
    curve = Curve("noise", (84.8528, 141.4214), tuple({"mean": mean, "half_width": 2.0} for mean in (82.8, 82.9)))
    (axes,) = draw_panels([Panel("Adult", (curve,))], "ε", "accuracy").axes
    assert [axes.xaxis.get_major_formatter()(value, at) for at, value in enumerate(curve.x)] == ["84.86", "142"]


@pytest.mark.nightly
def test_a_stored_record_is_found_again_by_what_was_asked_for() -> None:
    asked = {"method": "random", "data": {"source": "adult"}}
    name = study_runs.experiment_file(load_mapping(asked))
    assert study_runs.experiment_file(load_mapping({**asked, "feature_cache": "there"})) == name
    assert study_runs.experiment_file(load_mapping({**asked, "seed": 1})) != name


@pytest.mark.nightly
def test_stored_tasks_do_not_run_again(tmp_path: Path) -> None:
    ran: list[str] = []

    def work(task: str) -> dict[str, Any]:
        ran.append(task)
        return {"format": RECORD_FORMAT, "task": task, "cpu_seconds": 2.0}

    tasks, options = {"a.json": "1", "b.json": "2"}, Options(tmp_path, work=tmp_path, commit="a1")
    found = study_runs.collect(work, tasks, options, str, lambda *line: None)
    assert {name: record["task"] for name, record in found.items()} == tasks
    later, said = Options(tmp_path, work=tmp_path, commit="b2"), []
    tasks["c.json"] = "3"
    again = study_runs.collect(work, tasks, later, lambda one: one["task"], lambda *line: said.append(line[0]))
    assert again.items() >= found.items()
    assert ran == ["1", "2", "3"]
    assert said == ["  3 experiments, 2 of them finished", "  3 0 to go"]
    assert later.used == study_runs.Used(3, 6.0, {"a1", "b2"}), "the table is made of those of both commits"
