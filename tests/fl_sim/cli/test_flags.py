"""Files that flags name: no link or device is replaced, no text is a formula, pictures are for their owner alone."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from fl_sim.api.runs import Plot
from fl_sim.cli.flags import PAGE, TABLE, check_writable, csv_text
from fl_sim.cli.main import main
from fl_sim.storage.open_run import Anchor
from fl_sim.storage.run_folder import ResultsError
from tests.fl_sim.conftest import MakeRun, Refusal

WRITING = {
    "report --csv": ["report", "no/run", "--csv"],
    "report --html": ["report", "no/run", "--html"],
    "report --picture": ["report", "no/run", "--picture"],
    "leak --html": ["leak", "no/run", "--html"],
    "generate --out": ["generate", "no/run", "--out"],
    "corpus ner --out": ["corpus", "ner", "rules", "--gold", "no/gold", "--out"],
    "corpus weights --out": ["corpus", "weights", "bundled", "--entity-bound", "1", "--sentences", "9", "--out"],
    "represent run --out": ["represent", "run", "--out"],
    "represent run --picture": ["represent", "run", "--picture"],
}


@pytest.mark.parametrize("words", WRITING.values(), ids=list(WRITING))
def test_a_link_stays_and_is_refused_before_any_work(words: list[str], tmp_path: Path, refusal: Refusal) -> None:
    target, link = tmp_path / "target.png", tmp_path / "link.png"
    target.write_bytes(b"kept")
    link.symlink_to(target)
    said = refusal(*words, link)
    assert str(link) in said
    assert "a link; allowed: a regular file" in said or "exists already" in said
    assert link.readlink() == target
    assert target.read_bytes() == b"kept"


def test_nothing_but_an_older_page_or_table_is_replaced(make_run: MakeRun, tmp_path: Path, refusal: Refusal) -> None:
    run = make_run("uedp", rounds=1).path
    mine, ledger = tmp_path / "mine.jsonl", run / "ledger.jsonl"
    mine.write_text('{"text": "private"}\n')
    before = {file: file.read_bytes() for file in (mine, *run.iterdir())}
    for words in (["generate", "--out"], ["leak", "--html"], ["report", "--html"], ["report", "--csv"]):
        for path in (mine, ledger, run / "metrics.jsonl"):
            said = refusal(words[0], run, words[1], path)
            assert said.startswith(f"fl-sim {words[0]}: {words[1]} is {path}, ")
    assert main(["report", str(run), "--picture", str(ledger)]) == 2
    assert {file: file.read_bytes() for file in before} == before
    for name in ("page.html", "table.csv"):
        check_writable("--x", tmp_path / name, begins=PAGE if name == "page.html" else TABLE)
    for _ in range(2):  # the second time they are ours
        words = ["report", str(run), "--html", str(tmp_path / "page.html"), "--csv", str(tmp_path / "table.csv")]
        assert main(words) == 0


def test_an_anchor_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "anchor").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ResultsError, match="which exists; allowed: a new file"):
        Anchor(tmp_path / "anchor", required=True).check_new()


def test_texts_of_a_table_are_no_formulas_and_numbers_stay(tmp_path: Path) -> None:
    table = pd.DataFrame(
        [
            {"run": "=HYPERLINK(1)", "final": -1.5, "value": "-1.5", "low": math.inf, "@note": "+1 is -2"},
            {"run": "@name", "final": math.nan, "value": "-e", "low": -math.inf, "@note": "\t=1"},
        ]
    )
    assert csv_text(table).splitlines() == [
        "run,final,value,low,'@note",
        "'=HYPERLINK(1),-1.5,-1.5,inf,'+1 is -2",
        "'@name,,'-e,-inf,'\t=1",
    ]


def test_a_picture_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        saved = Plot(Figure()).save(tmp_path / "pictures" / "users.png")
    finally:
        os.umask(before)
    assert saved.stat().st_mode & 0o777 == 0o600
    assert saved.parent.stat().st_mode & 0o777 == 0o700
