"""Copies of a run's folder resumed twice, and older copies put back: the anchor notices, account unites."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fl_sim.cli.main import main
from fl_sim.engines import simulation
from fl_sim.experiments.experiment import Experiment
from fl_sim.storage.run_folder import ResultsError
from fl_sim.strategies.accounting.accountant import epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.ledger import Ledger, LedgerError
from tests.e2e.small_runs import Crash, crash_after, crashed

pytestmark = pytest.mark.usefixtures("no_plots")

ROUNDS = 5


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's state folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def stopped(corpus: Path, out: Path, number: int = 3, **changes: Any) -> Path:
    """A run with secure noise that ended after a round and its checkpoint."""
    return crashed(corpus, out, number, rounds=ROUNDS, checkpoint_every=1, privacy__secure_noise=True, **changes)


def refused(folder: Path, message: str, **arguments: Any) -> None:
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    with pytest.raises((LedgerError, ResultsError), match=message) as caught:
        simulation.resume(folder, **arguments)
    assert "\n" not in str(caught.value)
    assert before == {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.system
def test_a_copy_that_is_resumed_after_another_is_refused(corpus: Path, tmp_path: Path, state: Path) -> None:
    one = stopped(corpus, tmp_path / "run")
    other = Path(shutil.copytree(one, tmp_path / "copy"))
    assert simulation.resume(one).result is not None
    (file,) = state.glob("fl-sim/anchors/*.json")
    assert json.loads(file.read_text())["entries"] == ROUNDS
    message = "is an older copy of the run, or another copy went on: .* knows of 5 releases"
    refused(other, message)
    with pytest.raises(LedgerError, match=message):  # before an engine starts
        Experiment.resume(other)


def test_an_older_copy_put_back_is_refused(corpus: Path, tmp_path: Path) -> None:
    anchor = tmp_path / "anchor.json"
    one = stopped(corpus, tmp_path / "run", 2, anchor=str(anchor))
    older = shutil.copytree(one, tmp_path / "older")
    with pytest.raises(Crash):
        simulation.resume(one, on_row=crash_after(4))
    shutil.rmtree(one)
    shutil.move(older, one)
    refused(one, r"anchor\.json knows of 4 releases; allowed: the copy that went on, or a new file as `anchor`")


@pytest.mark.system
def test_a_copy_at_work_beside_another_stops_before_it_releases(corpus: Path, tmp_path: Path) -> None:
    anchor = tmp_path / "anchor.json"
    run = stopped(corpus, tmp_path / "run", anchor=str(anchor))

    def meanwhile(row: Any) -> None:
        if row["round"] == 4:  # another copy records round 4 at the same time
            anchor.write_text(json.dumps(json.loads(anchor.read_text()) | {"last": "0" * 64}))

    with pytest.raises(LedgerError, match=r"another copy went on: .* knows of 4 releases"):
        simulation.resume(run, on_row=meanwhile)
    assert len(Ledger.read(run).entries) == 4


@pytest.mark.nightly
def test_account_unites_copies(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = stopped(corpus, tmp_path / "run", anchor="none")
    other = Path(shutil.copytree(one, tmp_path / "copy"))
    runs = [simulation.resume(folder) for folder in (one, other)]
    capsys.readouterr()
    assert main(f"account ledger {one} {other} --delta 1e-5 --user-sentences 12 --json".split()) == 0
    output = capsys.readouterr()
    report = json.loads(output.out)
    assert (report["releases"], report["forks"]) == (7, 2)
    assert "2 copies of a run went on separately; their common releases count once" in output.err
    event = Ledger.read(one).entries[0].terms.mechanism.event()
    assert event is not None
    assert report["epsilon_user"] == epsilon(event, Adjacency(12), 7, 1e-5)
    for run in runs:
        assert (run.result or {})["releases"] == 5


@pytest.mark.system
def test_another_anchor_lets_an_older_copy_go_on(corpus: Path, tmp_path: Path) -> None:
    one = stopped(corpus, tmp_path / "run")
    other = Path(shutil.copytree(one, tmp_path / "copy"))
    simulation.resume(one)
    assert simulation.resume(other, anchor=str(tmp_path / "new.json")).result is not None
    assert json.loads((tmp_path / "new.json").read_text()) == {
        name: Ledger.read(other).head[name] for name in ("run", "entries", "last")
    }


@pytest.mark.system
def test_a_missing_corrupt_or_foreign_anchor_is_refused(corpus: Path, tmp_path: Path) -> None:
    anchor = tmp_path / "anchor.json"
    run = stopped(corpus, tmp_path / "run", anchor=str(anchor))
    kept = anchor.read_bytes()
    anchor.unlink()
    refused(run, r"anchor\.json: is missing; allowed: the anchor of the run, or a new file as `anchor`")
    anchor.write_text("[]")
    refused(run, r"anchor\.json: cannot be read as an anchor")
    anchor.write_text(json.dumps(json.loads(kept) | {"run": "other"}))
    refused(run, "is the anchor of another run")
    anchor.write_bytes(kept)
    assert simulation.resume(run).result is not None
