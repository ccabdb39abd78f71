"""Sweeps: the points are fixed, finished runs are not repeated, and all runs are accounted for together."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from fl_sim.cli.main import main
from fl_sim.config import ConfigError
from fl_sim.search.sweep import DONE, FAILED, Sweep, run_sweep
from fl_sim.storage.run_folder import DIVERGED, ResultsError, RunFolder
from tests.conftest import REPOSITORY
from tests.e2e.small_runs import QUICK_TO_LOAD
from tests.tiny import MODEL

pytestmark = pytest.mark.usefixtures("no_plots")

SMALL = {**MODEL, **{key.replace("__", "."): value for key, value in QUICK_TO_LOAD.items()}}


def written(folder: Path, corpus: Path, body: str) -> Path:
    """Write a sweep's file with ``body`` and settings that make every run small; return its path."""
    fixed = {"corpus.path": str(corpus), "rounds": 2, **SMALL}
    lines = [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in fixed.items()]
    path = folder / "sweep.toml"
    path.write_text("\n".join([body, "[set]", *lines]), encoding="utf-8")
    return path


@pytest.mark.parametrize("file", sorted((REPOSITORY / "conf" / "sweeps").glob("*.toml")), ids=lambda file: file.name)
def test_a_sweep_that_ships_is_valid(file: Path) -> None:
    sweep = Sweep.load(file)
    assert sweep.config(sweep.points()[0]).corpus.path == "bundled"


GRID = 'seeds = [0, 1]\n[grid]\n"privacy.user_cap" = [1.0, 2.0]\n'


def test_a_grid_tries_every_combination_with_every_seed(tmp_path: Path, corpus: Path) -> None:
    body = 'seeds = [3, 4]\n[grid]\n"privacy.user_cap" = [1.0, 2.0]\n"privacy.q_s" = [0.1, 0.2, 0.3]\n'
    points = Sweep.load(written(tmp_path, corpus, body)).points()
    assert len(points) == 12
    assert {(p.settings["privacy.user_cap"], p.settings["privacy.q_s"], p.seed) for p in points} == {
        (cap, rate, seed) for cap in (1.0, 2.0) for rate in (0.1, 0.2, 0.3) for seed in (3, 4)
    }
    assert len({p.run_seed for p in points}) == 12, "two runs with one root seed would share their noise"


def test_random_draws_depend_on_the_seed_alone_and_stay_in_range(tmp_path: Path, corpus: Path) -> None:
    body = """
        [random]
        samples = 40
        seed = {seed}
        [random.keys]
        "server.learning_rate" = {{ low = 0.001, high = 1.0, log = true }}
        "privacy.user_cap" = {{ choices = [1.0, 5.0] }}
    """
    first, again, other = (
        [p.settings for p in Sweep.load(written(tmp_path, corpus, body.format(seed=seed))).points()]
        for seed in (0, 0, 1)
    )
    assert first == again != other
    rates = [settings["server.learning_rate"] for settings in first]
    assert all(0.001 <= rate <= 1.0 for rate in rates)
    assert 10 <= sum(rate < 0.0316 for rate in rates) <= 30, "uniform in the logarithm: half lie below the middle"
    assert {settings["privacy.user_cap"] for settings in first} == {1.0, 5.0}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("seeds = [0]", "neither a grid nor a random search"),
        ('[grid]\n"privacy.user_cap" = []', "grid.privacy.user_cap is empty"),
        ('[grid]\n"privacy.user_cap" = [0.5]', "privacy.user_cap is 0.5"),
        ('[grid]\n"privacy.usercap" = [2.0]', "did you mean 'privacy.user_cap'"),
        ("[grid]\nseed = [1, 2]", "seed cannot be set"),
        ("[grid]\nrounds = [1, 2]", "rounds is given twice"),
        ('seeds = [1, 1]\n[grid]\n"privacy.user_cap" = [1.0]', "seeds is [1, 1]"),
        ('base = "nowhere.toml"\n[grid]\n"privacy.user_cap" = [1.0]', "nowhere.toml"),
        ('[random]\nsamples = 1\n[random.keys]\n"privacy.q_s" = { low = 0.5, high = 0.1 }', "low is 0.5"),
        ('[random]\nsamples = 1\n[random.keys]\n"privacy.q_s" = { low = 0, high = 1, log = true }', "above 0"),
        ('[random]\nsamples = 1\n[random.keys]\n"privacy.q_s" = { low = 0 }', "either low and high, or choices"),
        ("surprise = 1\n[grid]\nrounds = [1]", "surprise"),
    ],
)
def test_what_cannot_be_tried_is_refused_before_anything_runs(
    tmp_path: Path, corpus: Path, body: str, named: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Sweep.load(written(tmp_path, corpus, body))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.system
def test_a_sweep_ends_in_a_table_and_is_not_done_twice(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = written(tmp_path, corpus, GRID), tmp_path / "out"
    assert main(["sweep", str(file), "--out", str(out), "--json", "--quiet"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert [row["runs"] for row in table["rows"]] == [2, 2]
    assert table["rows"][0]["mean"] <= table["rows"][1]["mean"], "best first"
    each = max(row["epsilon_user"] for row in table["rows"])
    assert each < table["all_runs"]["epsilon_user"], "all runs together reveal more than any one"
    assert "a release too" in (out / "table.txt").read_text(encoding="utf-8")

    before = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*") if path.is_file()}
    sweep = Sweep.load(file)
    assert {ending.status for ending in run_sweep(sweep, out)[0]} == {DONE}
    assert before == {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*") if path.is_file()}

    # Killed before two runs had ended, it continues to the same table.
    shutil.rmtree(out / "runs" / sweep.points()[3].name)
    RunFolder.open(out / "runs" / sweep.points()[1].name).result_file.unlink()
    for name in ("table.json", "table.txt"):
        (out / name).unlink()
    run_sweep(sweep, out)
    assert json.loads((out / "table.json").read_text())["rows"] == table["rows"]


@pytest.mark.system
def test_runs_that_fail_or_diverge_are_reported_and_stop_no_other(tmp_path: Path, corpus: Path) -> None:
    body = '[grid]\n"server.learning_rate" = [1e300, 0.001]\n"engine.nodes" = [999, 1]\n'
    sweep, out = Sweep.load(written(tmp_path, corpus, body)), tmp_path / "out"
    endings, table = run_sweep(sweep, out)
    assert [ending.status for ending in endings] == [FAILED, DIVERGED, FAILED, DONE]
    assert "engine.nodes is 999" in endings[0].reason
    text = (out / "table.txt").read_text(encoding="utf-8")
    assert "engine.nodes is 999" in text
    assert "Diverged: point0001-seed0: in round 1: its model is not finite" in text
    assert [row.mean is None for row in table.rows] == [False, True, True, True]  # the one that ended is first
    assert table.all_runs["runs"] == 2


@pytest.mark.system
def test_another_sweep_does_not_end_up_in_the_same_folder(tmp_path: Path, corpus: Path) -> None:
    sweep, out = Sweep.load(written(tmp_path, corpus, '[grid]\n"privacy.user_cap" = [1.0]\n')), tmp_path / "out"
    run_sweep(sweep, out)
    with pytest.raises(ResultsError, match="another sweep"):
        run_sweep(sweep.model_copy(update={"seeds": (1,)}), out)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").touch()
    with pytest.raises(ResultsError, match="not empty"):
        run_sweep(sweep, tmp_path / "full")


def test_the_example_in_the_documentation_is_a_sweep() -> None:
    text = (REPOSITORY / "docs" / "settings.md").read_text(encoding="utf-8")
    example = text.split("## Sweeps")[1].split("```toml")[1].split("```")[0]
    values = tomllib.loads(example)
    assert Sweep.model_validate({key: value for key, value in values.items() if key != "base"}).points()
