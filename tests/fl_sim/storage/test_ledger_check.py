"""A ledger that lost lines, or disagrees with metrics or result, takes the run's ε away; a crash's traces do not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fl_sim.api.runs import open_run
from fl_sim.cli.main import main
from fl_sim.storage import ledger_check
from fl_sim.storage.checkpoint import Checkpoint
from fl_sim.storage.ledger_check import check_ledger
from fl_sim.storage.run_folder import RunFolder, encode, replace_file
from fl_sim.strategies.ledger import HEAD_FILE, LEDGER_FILE, Ledger, LedgerError
from tests.fl_sim.conftest import MakeRun, add_releases

ROUNDS = 4


def lines_of(run: RunFolder) -> list[bytes]:
    return (run.path / LEDGER_FILE).read_bytes().splitlines(keepends=True)


def rewrite(run: RunFolder, lines: list[bytes]) -> None:
    (run.path / LEDGER_FILE).write_bytes(b"".join(lines))


def lose_last_line(run: RunFolder) -> None:
    rewrite(run, lines_of(run)[:-1])


def tear_last_line(run: RunFolder) -> None:
    lines = lines_of(run)
    rewrite(run, [*lines[:-1], lines[-1][:-20]])


def lose_all(run: RunFolder) -> None:
    (run.path / LEDGER_FILE).unlink()


def lose_head(run: RunFolder) -> None:
    (run.path / HEAD_FILE).unlink()


def lose_line_and_count(run: RunFolder) -> None:
    """As an older copy of ledger and head would be."""
    lines = lines_of(run)[:-1]
    rewrite(run, lines)
    head = json.loads((run.path / HEAD_FILE).read_text())
    last = json.loads(lines[-1])["hash"]
    (run.path / HEAD_FILE).write_text(json.dumps(head | {"entries": len(lines) - 1, "last": last}))


def change_line(run: RunFolder) -> None:
    lines = lines_of(run)
    rewrite(run, [lines[0], lines[1].replace(b"1000.0", b"2000.0"), *lines[2:]])


BREAKS = [lose_last_line, tear_last_line, lose_all, lose_head, lose_line_and_count, change_line]


@pytest.mark.parametrize("damage", BREAKS, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("finish", [True, False])
def test_no_epsilon_is_shown_that_the_ledger_does_not_support(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str], damage: Callable[[RunFolder], None], finish: bool
) -> None:
    run = make_run("uedp", rounds=ROUNDS, finish=finish)
    damage(run)
    assert main(["report", str(run.path)]) == 2
    captured = capsys.readouterr()
    assert "no ε can be trusted" in captured.out
    assert "15.02" not in captured.out
    assert captured.err.count("\n") == 1
    assert str(run.path / "ledger") in captured.err
    assert main(["report", str(run.path), "--json"]) == 2
    facts = json.loads(capsys.readouterr().out)
    assert (facts["epsilon"], facts["headline"]["epsilon"], facts["guarantee"]) == ({}, None, False)
    assert facts["ledger"]["problem"]
    opened = open_run(run.path)
    for read in (lambda: opened.epsilon, opened.note_on_texts):
        with pytest.raises(LedgerError):
            read()


def test_a_ledger_in_order_says_nothing(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run("uedp", rounds=ROUNDS)
    found = check_ledger(run)
    assert (found.problem, found.notes) == (None, ())
    assert main(["report", str(run.path)]) == 0
    assert capsys.readouterr().err == ""


def test_a_release_of_a_killed_run_is_told_and_counted_apart(make_run: MakeRun) -> None:
    run = make_run("uedp", rounds=ROUNDS, finish=False)
    add_releases(run, 2)
    found = check_ledger(run)
    assert found.problem is None
    assert "2 more releases than the metrics have rounds" in found.notes[0]
    assert f"rounds 1 to {ROUNDS}" in found.notes[0]


@pytest.mark.parametrize("initial", [True, False], ids=["initial model measured", "not yet"])
def test_a_release_before_the_first_row_is_told(
    make_run: MakeRun, initial: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run("uedp", rounds=1, finish=False)
    first = run.metrics_file.read_bytes().splitlines(keepends=True)[0]
    run.metrics_file.write_bytes(first if initial else b"")
    found = check_ledger(run)
    assert (found.problem, len(found.notes)) == (None, 1)
    assert found.notes[0].startswith(f"{LEDGER_FILE} has 1 release and the metrics no round (killed, or at work)")
    assert main(["report", str(run.path)]) == 0
    assert "fl-sim account ledger" in " ".join(capsys.readouterr().out.split())


def checkpointed(run: RunFolder) -> Checkpoint:
    """Write a checkpoint of the last round."""
    heads = {"ledger": Ledger.read(run.path).head, "folder": RunFolder.open(run.path).head()}
    checkpoint = Checkpoint(ROUNDS, np.zeros(2, np.float32), {}, **heads)
    checkpoint.write(run.checkpoint_dir)
    return checkpoint


def test_lost_rows_are_a_problem_where_a_checkpoint_or_a_result_covers_them(make_run: MakeRun) -> None:
    run = make_run("uedp", rounds=ROUNDS)
    checkpointed(run)
    run.metrics_file.write_bytes(b"")
    ended = f"metrics.jsonl: ends after round 0, result.json counts {ROUNDS} rounds"
    assert (check_ledger(RunFolder.open(run.path)).problem or "").endswith(ended)
    run.result_file.unlink()
    assert "metrics.jsonl: was changed" in (check_ledger(RunFolder.open(run.path)).problem or "")
    lose_all(run)
    assert "ledger.jsonl: is missing" in (check_ledger(RunFolder.open(run.path)).problem or "")


def test_a_finished_run_has_no_more_releases_than_its_result(make_run: MakeRun) -> None:
    run = make_run("uedp", rounds=ROUNDS)
    add_releases(run, 1)
    problem = check_ledger(run).problem
    assert problem.endswith(f"has {ROUNDS + 1} releases, result.json counts {ROUNDS}")


def test_half_a_line_that_was_never_released_is_told(make_run: MakeRun) -> None:
    run = make_run("uedp", rounds=ROUNDS)
    with (run.path / LEDGER_FILE).open("ab") as file:
        file.write(b'{"half')
    found = check_ledger(run)
    assert found.problem is None
    assert found.notes == (f"{LEDGER_FILE}, line {ROUNDS + 2}: cut off (it was never released); left out",)


def with_last_row(run: RunFolder, **values: float) -> None:
    rows = run.metrics().to_dict("records")
    rows[-1] |= values
    lines = (json.dumps(encode({k: v for k, v in row.items() if v == v})) for row in rows)
    replace_file(run.metrics_file, "".join(f"{line}\n" for line in lines).encode())


def test_metrics_that_count_other_releases(make_run: MakeRun) -> None:
    run = make_run("uedp", rounds=ROUNDS)
    with_last_row(run, releases=ROUNDS - 1)
    assert "metrics.jsonl counts 3" in (check_ledger(run).problem or "")
    with_last_row(run, releases=ROUNDS)
    assert check_ledger(run).problem is None


@pytest.mark.parametrize("name", ["epsilon_any", "epsilon_user"])
def test_an_epsilon_below_that_of_the_ledger(make_run: MakeRun, name: str) -> None:
    run = make_run("uedp", rounds=ROUNDS)
    with_last_row(run, **{name: 1e-6})
    assert f"has {name} 1e-06, but the releases in its ledger have ε" in (check_ledger(run).problem or "")


def test_an_epsilon_of_nothing_is_not_told_from_less(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """At δ 0.5, z 4 and q_s 0.05 the row of an unfinished run had 9.5e-12 where its ledger has 2.8e-11."""
    run = make_run("uedp", rounds=ROUNDS)
    with_last_row(run, epsilon_any=9.5e-12)
    monkeypatch.setattr(ledger_check, "epsilon_of_any", lambda _entries, _delta: 2.8e-11)
    assert check_ledger(run).problem is None


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("config.json", b'"noise_multiplier": 1.0', b'"noise_multiplier": 7.0'),
        ("metrics.jsonl", b'"epsilon_user_entity_p95": 2.61', b'"epsilon_user_entity_p95": 1.61'),
    ],
)
def test_a_running_run_shows_nothing_that_was_changed_since_its_checkpoint(
    make_run: MakeRun, file: str, before: bytes, after: bytes
) -> None:
    run = make_run("uedp", rounds=ROUNDS, finish=False)
    checkpoint = checkpointed(run)
    assert check_ledger(RunFolder.open(run.path)).problem is None
    content = (run.path / file).read_bytes()
    assert before in content
    (run.path / file).write_bytes(content.replace(before, after))
    assert f"{file}: was changed" in (check_ledger(RunFolder.open(run.path)).problem or "")
    replace(checkpoint, server_round=0).write(run.checkpoint_dir)  # whose row is measured again
    assert check_ledger(RunFolder.open(run.path)).problem is None


def test_a_running_run_whose_ledger_and_metrics_were_put_back(make_run: MakeRun) -> None:
    run = make_run("uedp", rounds=ROUNDS, finish=False)
    checkpointed(run)
    lose_line_and_count(run)
    run.truncate_metrics(after_round=ROUNDS - 1)
    assert "head hash was kept after 4 entries" in (check_ledger(RunFolder.open(run.path)).problem or "")


def test_a_result_with_another_epsilon_than_the_metrics(make_run: MakeRun) -> None:
    run = make_run("uedp", rounds=ROUNDS, result={"epsilon_user": 1.0})
    assert "has epsilon_user 2.181 after round 4, result.json has 1" in (check_ledger(run).problem or "")


def test_releases_that_were_lost_in_a_crash_count(make_run: MakeRun) -> None:
    """Under a budget such a run ends early: its result has more releases, and a larger ε, than its last row."""
    run = make_run("uedp", rounds=ROUNDS, finish=False)
    add_releases(run, 2)
    head = Ledger.read(run.path).head
    run.finish({"rounds": ROUNDS, "ledger": head, "epsilon_any": 20.0, "plan": run.config["plan"]})
    found = check_ledger(run)
    assert found.problem is None
    assert [note.partition("(killed): ")[2] for note in found.notes] == ["ε counts them"]
    assert open_run(run.path).epsilon["epsilon_any"] == 20.0


def test_a_run_without_noise_has_no_epsilon_to_lose(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run("noiseless", rounds=ROUNDS)
    lose_last_line(run)
    assert main(["report", str(run.path)]) == 0
    assert "no guarantee (ε = ∞)" in capsys.readouterr().out
    assert math.isinf(open_run(run.path).epsilon["epsilon_any"])


def test_a_run_without_a_round_is_not_checked(tmp_path: Path) -> None:
    assert check_ledger(RunFolder.create(tmp_path / "empty", config={}, environment={})).problem is None
