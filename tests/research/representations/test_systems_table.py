"""All systems on a table of one's own: seeds, grid, both rules of selection, intervals."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from fl_sim.cli import main as cli
from fl_sim.research.representations.client.client_workspace import open_data
from fl_sim.research.representations.evaluation import attacks
from fl_sim.research.representations.studies import grid_selection, systems_table
from fl_sim.research.representations.studies.agreement import estimate

SETTINGS = (
    "data.name=table data.table.task=income data.table.least_rows=1 encoder.kind=mlp encoder.width=4 "
    "training.batch_size=200 training.epochs=2 server.adversary=[4]"
)


def people(path: Path, *, classes: tuple[str, ...] = ("low", "high"), changed: int = 0) -> Path:
    """A table whose class follows age and sex, with two private columns; ``changed`` rows have another age."""
    draw = random.Random(0)
    lines = ["age,hours,sex,town,income"]
    for number in range(400):
        sex, town, age = draw.choice("fm"), draw.choice(["Oslo", "Rome"]), draw.randint(18, 65)
        rank = min(age + 5 * (sex == "m") + draw.randint(-30, 30), 65) / 66
        age += number < changed
        lines.append(f"{age},{draw.randint(10, 50)},{sex},{town},{classes[int(max(rank, 0) * len(classes))]}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def tiny_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """One point or two of each system, and attackers that train for two steps."""
    monkeypatch.setattr(systems_table, "THIN", grid_selection.Grid((1.0,), (0.5,), (8.0, 20.0), (20.0,), (1,)))
    monkeypatch.setattr(attacks, "_MOST_ITERATIONS", 2)
    monkeypatch.setattr(attacks, "FRACTIONS", (0.5, 1.0))


def command(source: Path, work: Path, *more: str, private: str = '["sex"]') -> list[str]:
    settings = f"{SETTINGS} data.source={source} data.table.private={private}".split()
    flags = [word for one in settings for word in ("--set", one)]
    return ["represent", "run", *flags, "--grid", "--work", str(work), *more]


@pytest.mark.usefixtures("tiny_grid")
def test_a_table_of_one_s_own_has_seeds_grid_selections_and_intervals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = people(tmp_path / "people.csv"), tmp_path / "table.json"
    asked = command(source, tmp_path / "work", "--seeds", "2", "--out", str(out))
    assert cli.main(asked) == 0
    said = capsys.readouterr()
    table: dict[str, Any] = json.loads(out.read_text())
    assert (table["name"], table["grid"], table["seeds"], table["layer"]) == ("systems", "thin", [0, 1], "l1")
    assert set(table["rows"]) == set(grid_selection.SYSTEMS)
    assert [selection["relaxation"] for selection in table["selections"]] == [0.0, 0.01, 0.03, 0.1]
    by_threshold = {
        row["seed"]: row for row in table["chosen"] if (row["system"], row["relaxation"]) == ("federate", 0.01)
    }
    values = [[by_threshold[seed][of]["accuracy"] for seed in (0, 1)] for of in ("figures", "errors")]
    assert table["rows"]["federate"]["accuracy"]["measured"] == estimate(*values)
    assert table["environment"]["libraries"]
    assert "reproduced" not in table, "nothing is published for it"
    assert "Selected by relaxation threshold 1.0:\n\n| system | accuracy | tpr_gap | leakage | mdl |" in said.out
    assert "Selected by best validation accuracy:" in said.out
    assert "it does not say where the true gap lies" in said.out
    assert "(figure 3), on the rows that chose it, so lower than on others:" in said.out
    assert "(–)" not in said.out
    assert {path.name for path in tmp_path.glob("*.png")} == {
        f"table-{name}.png" for name in ("epsilon", "fairness", "thresholds")
    }
    assert said.err.count("to go") >= 2 * (8 + 8), "grid points, and the selected"
    assert cli.main(asked) == 0
    assert "to go" not in capsys.readouterr().err, "what is done is kept"
    open_data.cache_clear()  # as in another process
    people(source, changed=1)
    assert cli.main(asked) == 0
    assert "to go" in capsys.readouterr().err, "other data, other experiments"


@pytest.mark.nightly
@pytest.mark.usefixtures("tiny_grid")
def test_three_classes_are_compared_by_grms_and_several_attributes_by_the_worst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = people(tmp_path / "people.csv", classes=("low", "middle", "high")), tmp_path / "table.json"
    asked = command(source, tmp_path / "work", "--seeds", "1", "--out", str(out), private='["sex","town"]')
    assert cli.main(asked) == 0
    assert "| system | accuracy | grms sex=m | leakage sex=m | mdl sex=m |" in capsys.readouterr().out
    (row,) = [r for r in json.loads(out.read_text())["chosen"] if (r["system"], r["relaxation"]) == ("inlp", 0.01)]
    groups: dict[str, dict[str, float]] = {"sex=m": {"grms": 0.2}, "town=Rome": {"grms": 0.3}}
    record: Any = {
        "config": {"method": "inlp", "training": {"epochs": 2}},
        "metrics": {"validation": {"accuracy": 0.8, "groups": groups}},
    }
    (candidate,) = grid_selection._candidates(0, record, "grms")
    assert candidate.unfairness == 0.3
    assert row["figures"]["grms town=Rome"] >= 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--seeds", "0"], "--seeds is 0; allowed: an integer from 1 to 1024"),
        (["--jobs", "0"], "--jobs is 0; allowed: an integer from 1 to 1024"),
        (["--picture", "a.png"], "--picture is a.png; allowed without --grid"),
        (["--set", "method=noise"], "method is 'noise'; allowed with a grid, which has its own: leave it out"),
        (["--set", "privacy.epsilon=3"], "privacy.epsilon is 3; allowed with a grid"),
        (["--set", "attacks.mdl=false"], "attacks is {'mdl': False}; allowed with a grid"),
        (["--set", "privacy.layer=l3"], "privacy.layer is 'l3'"),
        (["--set", "privacy=3"], "privacy is 3"),
        (["--set", "serverr.weight=3"], "serverr: unknown key"),
        (["--set", "data.table.private=[]"], "data.table.private is"),
    ],
)
def test_what_a_grid_cannot_have_is_named(
    more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command(people(tmp_path / "people.csv"), tmp_path / "work"), *more]) == 2
    assert said in capsys.readouterr().err


def test_flags_of_a_grid_need_one_and_a_grid_needs_a_private_attribute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in (["--full"], ["--seeds", "0"], ["--jobs", "2"], ["--work", "w"]):
        assert cli.main(["represent", "run", "--set", "data.name=toy-adult", *flag]) == 2
        assert f"{flag[0]} is given; allowed with --grid" in capsys.readouterr().err
    assert cli.main(command(people(tmp_path / "people.csv"), tmp_path, private="[]")) == 2
    assert "people has no private attribute; allowed with a grid: data with one" in capsys.readouterr().err
