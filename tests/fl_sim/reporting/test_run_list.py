"""The list of runs: what state each is in, which ε and utility it has, and that nothing ends it."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import fl_sim
from fl_sim.cli.main import main
from fl_sim.reporting.run_facts import RunFacts, read_facts, state_of
from fl_sim.reporting.run_list import ListedRun, in_one_line
from fl_sim.storage.run_claim import RunClaim
from fl_sim.storage.run_folder import DIVERGED, INTERRUPTED, RunFolder
from fl_sim.strategies.ledger import LEDGER_FILE
from tests.fl_sim.conftest import GUARANTEE, Capture, MakeRun, Printed, add_releases, cut_ledger, ended_with, rewritten

# States


def test_the_state_is_what_the_folder_and_its_lock_say(make_run: MakeRun, tmp_path: Path) -> None:
    ended = {
        stopped: make_run(rounds=2, name=stopped, result={"stopped": stopped}) for stopped in (INTERRUPTED, DIVERGED)
    }
    assert {stopped: state_of(run) for stopped, run in ended.items()} == {name: name for name in ended}
    assert state_of(make_run(rounds=2)) == "finished"
    killed = make_run(rounds=2, finish=False, name="killed")
    assert state_of(killed) == "interrupted"
    assert state_of(RunFolder.create(tmp_path / "begun", config={}, environment={})) == "not started"
    for run in (killed, ended[INTERRUPTED]):  # begun again
        claim = RunClaim.hold(run.path)
        assert state_of(run) == "running"
        assert read_facts(run).ended() == "2 of 2 rounds, running"
        claim.release()
        assert state_of(run) == "interrupted"


def test_a_run_says_how_it_ends_while_it_still_holds_its_folder(make_run: MakeRun) -> None:
    run, said = make_run(rounds=2, finish=False), []
    claim = RunClaim.hold(run.path)
    run.finish({"stopped": INTERRUPTED}, lambda closing: said.append(read_facts(closing).ended()))
    claim.release()
    assert said == ["2 of 2 rounds, interrupted; it can be resumed"]


def test_settings_that_were_chosen_on_the_corpus_are_named(make_run: MakeRun) -> None:
    run = make_run("uedp", rounds=1, result={"settings_from_corpus": True})
    for said in (fl_sim.list_runs([run.path]).text(), fl_sim.open_run(run.path).note_on_texts()["note"]):
        assert "Settings chosen on this corpus: not covered by ε." in said
    bare = make_run("noiseless", rounds=1, result={"settings_from_corpus": True})
    assert "Settings chosen" not in fl_sim.list_runs([bare.path]).text()


def test_a_killed_process_leaves_an_interrupted_run(make_run: MakeRun) -> None:
    run = make_run(rounds=2, finish=False)
    ready, held = os.pipe()
    child = os.fork()
    if not child:
        RunClaim.hold(run.path)
        os.write(held, b".")
        signal.pause()
    assert os.read(ready, 1) == b"."
    assert state_of(run) == "running"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert state_of(run) == "interrupted"
    for end in (ready, held):
        os.close(end)


def test_without_locks_nobody_knows_whether_a_run_is_at_work(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert state_of(make_run(rounds=2, finish=False)) == "not finished"
    assert state_of(make_run(rounds=2, name="ended")) == "finished"


# The list


def test_a_line_a_run_in_80_columns(make_run: MakeRun, tmp_path: Path, capsys: Capture) -> None:
    make_run("uedp", name="a_name_that_is_longer_than_a_line_has_room_for_and_ends_differently", rounds=3)
    make_run("noiseless", name="free", rounds=3)
    ended_with(make_run("uedp", name="late", rounds=3, finish=False), perplexity=None)
    assert main(["list", str(tmp_path)]) == 0
    header, *rows, epsilon, measured = capsys.readouterr().out.splitlines()
    assert max(map(len, [header, *rows])) <= 80
    assert header.split() == ["run", "strategy", "ε", "any", "user", "perplexity", "rounds", "state"]
    assert rows[0].split()[1:] == ["uedp", "15.02", "2.19", "655.0", "3/3", "finished"]
    assert rows[0].startswith("a_name_")
    assert "rently  uedp" in rows[0]
    assert rows[1].split() == ["free", "noiseless", "∞", "∞", "318.0", "3/3", "finished"]
    assert rows[2].split() == ["late", "uedp", "15.02", "2.19", "759.3", "@2", "3/3", "interrupted"]
    assert epsilon == "ε: any user + any entity, after the rounds done, at δ = 1e-5"
    assert measured == "@ the round after which it was measured"


def test_no_epsilon_is_called_one_that_it_is_not(make_run: MakeRun, tmp_path: Path, capsys: Capture) -> None:
    bounds = GUARANTEE | {"known": "nothing", "counts": "", "user_sentences": None, "missed_mentions": None}
    stated = make_run("uedp", name="stated", rounds=2, result={"guarantee": bounds, "kept": None})
    ended_with(stated, epsilon_stated=15.02, epsilon_any=math.inf, epsilon_any_robust=None)
    cut_ledger(make_run("uedp", name="cut", rounds=2).path)
    RunFolder.create(tmp_path / "begun", config={"run": {"rounds": 7}}, environment={})
    make_run("uedp", name="other", rounds=2, delta=1e-6)
    assert main(["list", str(tmp_path)]) == 2
    said = capsys.readouterr()
    rows = {line.split()[0]: line.split()[1:] for line in said.out.splitlines()}
    assert rows["begun"] == ["unknown", "–", "–", "–", "0/7", "not", "started"]
    assert rows["cut"][1:3] == ["none", "none"]
    assert rows["stated"][1:3] == ["15.02*", "2.19"]
    assert "* any user + an entity within the stated bound" in said.out
    assert "at δ = 1e-6 and 1e-5 (not comparable)" in said.out
    assert said.err.count("\n") == 1
    assert "is cut off" in said.err


def test_releases_of_a_killed_run_that_its_epsilon_leave_out_are_named(
    make_run: MakeRun, tmp_path: Path, capsys: Capture
) -> None:
    add_releases(make_run("uedp", finish=False), 2)
    assert main(["list", str(tmp_path)]) == 0
    assert re.search(r"^\S+: ledger.jsonl has 2 more releases than .* account ledger$", capsys.readouterr().out, re.M)


def test_what_cannot_be_read_is_named_and_does_not_end_the_list(
    make_run: MakeRun, tmp_path: Path, printed: Printed, capsys: Capture
) -> None:
    make_run("uedp", name="sweep/runs/point0000-seed0", rounds=2)
    broken = make_run("uedp", name="broken", rounds=2)
    broken.config_file.write_text("{")
    (make_run("uedp", name="half", rounds=2).path / "config.json").unlink()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")  # that of a model, which is no run
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    found = printed("list", tmp_path, tmp_path / "none", code=2)
    assert [run["name"] for run in found["runs"]] == [str(tmp_path / "sweep/runs/point0000-seed0")]
    reasons = [reason.partition(": ") for reason in found["unreadable"]]
    assert [(Path(where).relative_to(tmp_path).parts[0], why[:9]) for where, _, why in reasons] == [
        ("broken", "is corrup"), ("half", "is not a "), ("none", "there is "),
    ]  # fmt: skip
    assert main(["list", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.err.count("fl-sim list: ") == said.err.count("\n") == 2
    assert said.out.splitlines()[1].split()[0] == "sweep/runs/…t0000-seed0"


@pytest.mark.parametrize("value", ["abc", [1.0], {"a": 1}])
def test_a_figure_that_is_none_is_told_in_a_line(make_run: MakeRun, tmp_path: Path, value: Any) -> None:
    make_run("uedp", name="good", rounds=2)
    ended_with(make_run("uedp", name="bad", rounds=2), perplexity=value)
    found = fl_sim.list_runs([tmp_path])
    assert [run.name for run in found.runs] == ["good"]
    assert "perplexity of round 2 is a" in found.unreadable[0]


@pytest.mark.parametrize(
    ("in_metrics", "in_result", "words"),
    [
        ({"releases": None}, {}, "counts nan"),
        ({"releases": math.inf}, {}, "counts inf"),
        ({}, {"epsilon_any": None}, "has none"),
    ],
)
def test_no_epsilon_is_listed_beside_a_record_without_one(
    make_run: MakeRun, tmp_path: Path, in_metrics: dict[str, Any], in_result: dict[str, Any], words: str
) -> None:
    run = make_run("uedp", name="a", rounds=2, result=in_result)
    rewritten(run, lambda row: row | {"releases": row["round"]} | (in_metrics if row["round"] == 2 else {}))
    (listed,) = fl_sim.list_runs([tmp_path]).runs
    assert (listed.epsilon_state, listed.epsilon, listed.cells()[2]) == ("not trusted", None, "none")
    assert words in str(listed.problem)


def test_a_run_that_has_written_nothing_yet_is_starting(tmp_path: Path) -> None:
    claim = RunClaim.claim(tmp_path / "new")
    (run,) = fl_sim.list_runs([tmp_path]).runs
    assert (run.name, run.state, run.epsilon, run.problem) == ("new", "starting", None, None)
    claim.release()
    assert fl_sim.list_runs([tmp_path]) == fl_sim.list_runs([tmp_path / "new"])  # an empty folder is no run


def test_json_has_the_figures_of_the_report(make_run: MakeRun, printed: Printed) -> None:
    run = make_run("uedp", name="one", rounds=3)
    (listed,) = printed("list", run.path)["runs"]
    facts = read_facts(run)
    assert listed["name"] == listed["folder"] == str(run.path)
    assert (listed["epsilon"], listed["utility"]) == (facts.headline.epsilon, facts.utility.final)
    assert (listed["seconds"], listed["rounds_done"], listed["rounds"], listed["state"]) == (6.0, 3, 3, "finished")


@pytest.mark.parametrize(("metric", "value", "words"), [("error", 0.125, "12.5%"), ("accuracy", 0.87512, "0.8751")])
def test_what_is_measured_otherwise(metric: str, value: float, words: str) -> None:
    run = ListedRun(name="a", folder="a", state="finished", metric=metric, utility=value, rounds_done=2, rounds=2)
    assert run.cells()[4] == words


def test_a_folder_without_runs_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed, capsys: Capture
) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["list"]) == 0
    assert capsys.readouterr() == ("", "fl-sim list: runs: no run is here\n")
    assert printed("list") == {"format": 1, "runs": [], "unreadable": []}


# One run in a line


def facts_of(make_run: MakeRun, **epsilon: float) -> RunFacts:
    return read_facts(make_run("uedp")).model_copy(
        update={"epsilon": {f"epsilon_{unit}": value for unit, value in epsilon.items()}}
    )


def test_a_proven_run_in_one_line_with_delta_rounded_up(make_run: MakeRun) -> None:
    facts = read_facts(make_run("uedp")).model_copy(update={"delta": 1.00000001e-5})
    assert in_one_line(facts) == (
        "uedp-1-0: uedp, ε 15.02 for any user + any entity at δ 1.00001e-5, 30 of 30 rounds, finished, "
        "perplexity 4,000.0 → 655.0"
    )


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        ({"any": math.inf, "user": 2.181}, "ε 2.19 for any user at δ"),
        ({"stated": 4.001, "user": 2.181}, "ε 4.01 for any user + an entity within the stated bound at δ"),
        ({"any": math.inf, "user": math.inf}, "ε ∞ for any user + any entity at δ"),
        ({"user_entity_p95": 2.0}, "no ε is recorded"),
    ],
)
def test_the_epsilon_that_leads_the_line(make_run: MakeRun, epsilon: dict[str, float], words: str) -> None:
    line = in_one_line(facts_of(make_run, **epsilon))
    assert words in line
    assert line.count("ε") == 1


def test_runs_without_an_epsilon_in_one_line(make_run: MakeRun) -> None:
    noiseless, untrusted = make_run("noiseless"), make_run("uedp")
    (untrusted.path / LEDGER_FILE).unlink()
    words: dict[Any, str] = {noiseless: "ε ∞: no guarantee", untrusted: "ε none: the ledger does not support one"}
    for run, said in words.items():
        line = in_one_line(read_facts(run))
        assert said in line
        assert "δ" not in line


def test_an_app_has_what_it_measured(make_run: MakeRun) -> None:
    facts = facts_of(make_run, user=2.181).model_copy(update={"app": "flower", "measured": {"acc <1>": [0.5, 0.75]}})
    assert "ε 2.19 for any user at δ 1e-5" in in_one_line(facts)
    assert in_one_line(facts).endswith("acc <1> 0.5 → 0.75")


def test_names_stay_on_one_line(make_run: MakeRun) -> None:
    facts = read_facts(make_run("uedp")).model_copy(update={"run": "x\ny\x1b[2J"})
    assert in_one_line(facts).startswith("x\\ny\\u001b[2J: uedp")
