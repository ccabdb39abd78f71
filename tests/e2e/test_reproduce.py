"""`fl-sim reproduce` from a file to a record: made once, continued after a kill, without tracebacks."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fl_sim.cli.main import main
from fl_sim.research.uedp_paper.figure_records import TrainingRecord, read_record
from fl_sim.storage.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("no_plots")  # of the runs; the figure is drawn

PARTS = """
"model.name" = "small-gpt2"
"model.hidden" = 16
"model.layers" = 1
"model.heads" = 2
"model.max_tokens" = 24
[[panels]]
name = "a"
title = "a"
corpus = "small"
[corpora.small]
kind = "jsonl"
source = "small.jsonl"
[corpora.small.flags]
text-column = "text"
user-column = "user"
tagger = "rules"
test-fraction = 0.3
split-sentences = false
"""
FIGURE = f"""
title = "Small"
shows = "Nothing."
x = "epsilon"
baseline = "noiseless"
seeds = [0, 1, 2]
[set]
"privacy.entity_bound" = "unbounded"
"privacy.user_sentences" = "corpus"
"privacy.settings_from_corpus" = true
rounds = 2
{PARTS}
[corpora.absent]
kind = "conll2003"
source = "nowhere"
[[panels]]
name = "b"
title = "b"
corpus = "absent"
[[curves]]
name = "noiseless"
label = "noiseless"
set = {{ "privacy.strategy" = "noiseless", "privacy.q_s" = 1.0 }}
[[curves]]
name = "deidentified"
label = "De-Identification"
deidentified = "category"
set = {{ "privacy.strategy" = "user_level", "privacy.q_u" = 0.5 }}
[[curves]]
name = "coded"
label = "as coded"
points = [{{ set = {{ "privacy.noise_multiplier" = 1.0 }} }}, {{ set = {{ "privacy.noise_multiplier" = 2.0 }} }}]
set = {{ "privacy.strategy" = "published", "privacy.noise" = "as-coded", "privacy.q_u" = 0.5 }}
[[curves]]
name = "uedp"
label = "uedp"
set = {{ "privacy.strategy" = "uedp" }}
"""
ATTACKED = f"""
title = "Attacked: small"
shows = "Nothing."
x = "joint"
joint = [8.0]
reference = "uedp"
baseline = "deidentified"
seeds = [0]
[attack]
max_users = 3
sentences_per_user = 2
secrets = 4
entities = 2
candidates = 2
[set]
rounds = 1
"evaluation.every" = 1
"privacy.population" = 60
{PARTS}
canaries = 2
[[curves]]
name = "deidentified"
label = "De-Identification"
deidentified = "category"
set = {{ "privacy.strategy" = "noiseless", "privacy.q_u" = 1.0, "privacy.q_s" = 1.0 }}
[[curves]]
name = "uedp"
label = "uedp"
budget = "joint"
set = {{ "privacy.strategy" = "uedp", "privacy.q_u" = 1.0, "privacy.q_s" = 0.5, "privacy.entity_bound" = 2 }}
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    names = ("Ada Stone", "Carl Grey", "Emmy Lake")
    rows = [
        {"user": f"user {user}", "text": f"we met {names[(user + number) % 3]} near river {number}"}
        for user in range(9)
        for number in range(4)
    ]
    (folder / "small.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return folder


def command(tmp_path: Path, data: Path, *more: str, text: str = FIGURE) -> list[str]:
    file = tmp_path / "small.toml"
    file.write_text(text, encoding="utf-8")
    return ["reproduce", "make", str(file), "--data", str(data), "--out", str(tmp_path / "out"), "--quiet", *more]


@pytest.mark.nightly
def test_a_figure_is_made_once_continued_recorded_and_computed_again(
    tmp_path: Path, data: Path, clean_commit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    words = command(tmp_path, data, "--record", str(results))
    assert main([word for word in words if word != "--quiet"]) == 0
    output = capsys.readouterr()
    said = [line for line in output.err.splitlines() if line.partition(" ")[0].startswith(("15", "a-"))]
    assert said[0] == "15 runs of small, 0 of them finished; 1 at once"
    assert [line.partition(",")[2].partition(",")[0] for line in said[1:]] == [f" {n} to go" for n in range(14, -1, -1)]
    assert "left out: b: absent:" in output.err
    assert "--data" in output.err
    record = read_record(results / "small.json")
    assert isinstance(record, TrainingRecord)
    assert record.commit == clean_commit
    (panel,) = record.panels
    noiseless, deidentified, coded, uedp = panel.curves
    assert noiseless.points[0].epsilon.claimed is None
    assert deidentified.points[0].epsilon.user_entity_p95 is None, "its entities were removed and have no ε"
    assert deidentified.points[0].epsilon.claimed == deidentified.points[0].epsilon.user
    assert deidentified.points[0].initial == noiseless.points[0].initial, "all are evaluated on the same held-out text"
    assert [one.noise_multiplier for one in coded.points] == [1.0, 2.0]
    for one in coded.points:
        assert one.epsilon.claimed is not None
        assert one.epsilon.claimed < one.epsilon.user, "the noise that the code draws does not give the claimed ε"
    assert uedp.points[0].epsilon.claimed == uedp.points[0].epsilon.user_entity_p95, "no bound is set"
    assert math.isfinite(uedp.points[0].epsilon.claimed)
    assert all(len(one.utility.values) == 3 for curve in panel.curves for one in curve.points)
    assert (tmp_path / "out" / "small" / "small.png").stat().st_size > 0

    runs = tmp_path / "out" / "small" / "runs"
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()}
    assert main(command(tmp_path, data)) == 0
    assert before == {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()}

    RunFolder.open(next(runs.glob("a-coded-0-seed1-*"))).result_file.unlink()  # killed before it was written
    assert main(command(tmp_path, data, "--record", str(tmp_path / "again"))) == 0
    again = read_record(tmp_path / "again" / "small.json")
    assert isinstance(again, TrainingRecord)
    assert again.panels[0].curves[2].points[0].utility == coded.points[0].utility

    assert main(["reproduce", "readme", str(results)]) == 0
    assert "| as coded |" in (results / "README.md").read_text(encoding="utf-8")
    assert (results / "small.png").exists()
    capsys.readouterr()

    checking = ["reproduce", "check", str(results), "--data", str(data), "--out", str(tmp_path / "out"), "--json"]
    assert main([*checking, "--points", "3"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["verdict"] for row in rows] == ["the same"] * 3
    assert all(row["comparison"]["figures"] >= 4 for row in rows), "utility, start, and ε or z"
    values = json.loads((results / "small.json").read_bytes())
    for curve in values["panels"][0]["curves"]:
        for one in curve["points"]:
            one["utility"]["values"] = [1.01 * value for value in one["utility"]["values"]]
    values["panels"][0]["corpus"]["fingerprint"] = "another"
    (results / "small.json").write_text(json.dumps(values), encoding="utf-8")
    assert main(checking) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["verdict"], row["comparison"]["name"]) == ("DIFFERS", "perplexity")
    assert row["reasons"][0].startswith("corpus was another, and is ")
    assert main([*checking[:3], "--data", str(tmp_path), "--out", str(tmp_path / "new"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["verdict"] == "skipped"


def test_nothing_can_be_made_without_any_corpus(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path, data / "nowhere")) == 1
    output = capsys.readouterr()
    assert "left out: a: small:" in output.err
    assert "nothing could be made" in output.err
    assert main(["reproduce", "make", "table2", "--data", str(data), "--out", str(tmp_path / "out"), "--quiet"]) == 1
    assert "left out: conll2003:" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.usefixtures("clean_commit")
def test_attacks_on_the_runs_of_a_figure_are_recorded(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, made = command(tmp_path, data, text=ATTACKED), tmp_path / "out" / "small"
    assert main(words) == 0
    assert "nothing can be concluded" in capsys.readouterr().out
    record = read_record(made / "record.json")
    assert isinstance(record, TrainingRecord)
    deidentified, uedp = record.panels[0].attacked
    assert (deidentified.deidentified, deidentified.joint, deidentified.epsilon_any) == (True, None, None)
    assert (uedp.deidentified, uedp.joint) == (False, 8.0)
    assert uedp.epsilon_any is not None
    assert 7.9 < uedp.epsilon_any <= 8.0
    for run in (deidentified, uedp):
        assert set(run.attacks) == {"users", "canaries", "entities"}
        assert run.attacks["canaries"]["canaries"] == 2
        assert "claims" not in json.dumps(run.attacks)
    kept = sorted((made / "attacks").iterdir())
    assert main(words) == 0
    assert sorted((made / "attacks").iterdir()) == kept
    assert read_record(made / "record.json").panels == record.panels  # type: ignore[union-attr]
    assert main([*words, "--record", str(tmp_path / "results")]) == 2
    assert "at least 3" in capsys.readouterr().err
    checking = f"reproduce check {made} record --data {data} --out {tmp_path / 'out'} --json".split()
    assert main([*checking, "--points", "2"]) == 0
    for row in json.loads(capsys.readouterr().out):
        assert row["verdict"] == "the same"
        assert row["comparison"]["figures"] > 30, "its attacks, too"
