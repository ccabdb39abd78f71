"""``fl-sim account ledger``, and the ledgers of real runs: crashed and gone on, with seeded and secure noise."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fl_sim.cli.main import main
from fl_sim.engines import simulation
from fl_sim.formats import format_delta
from fl_sim.strategies.accounting.accountant import epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.ledger import (
    HEAD_FILE,
    LEDGER_FILE,
    Ledger,
    LedgerError,
    ReleaseRecord,
    together,
)
from fl_sim.strategies.mechanism import Mechanism
from tests.e2e.small_runs import configuration, crashed, finished_run, small_corpus
from tests.fl_sim.conftest import Capture, Printed, Refusal
from tests.fl_sim.released_runs import ledger_of
from tests.strategies.federation import plan

pytestmark = pytest.mark.usefixtures("no_plots")

PLAN = plan(q_e=0.5, q_s=0.05, user_cap=15.0, noise_multiplier=1.0, population=500).mechanism
LOUDER = plan(q_u=0.2, q_e=0.5, q_s=0.5, user_cap=15.0, noise_multiplier=2.0).mechanism
ASKED = [
    "--delta", "1e-5", "--user-sentences", "15",
    "--entity-users", "15", "--entity-sentences", "2", "--entity-total", "20",
]  # fmt: skip
NO_BOUNDS = Guarantee()
USER, BOTH = Adjacency(15), Adjacency(15, ContributionBound(15, 2, 20))


def alone(folder: Path, seed: int, rounds: int, guarantee: Guarantee = NO_BOUNDS, mechanism: Mechanism = PLAN) -> Path:
    """Make a folder with nothing but a ledger in it."""
    return ledger_of(folder, mechanism, rounds, guarantee, seed).folder


def test_joined_at(printed: Printed, tmp_path: Path) -> None:
    folder = alone(tmp_path / "a", 0, 50)
    report = printed("account", "ledger", folder, "--joined-at", 41, *ASKED)
    assert (report["joined_at"], report["releases"], report["releases_robust"]) == (41, 10, 50)
    assert (report["user_sentences"], report["reach_users"], report["reach_total"]) == (15, 15, 20)
    assert report["epsilon_user"] == epsilon(PLAN.event(), USER, 10, 1e-5)
    assert report["epsilon_user_entity"] == epsilon(PLAN.event(), BOTH, 10, 1e-5)
    # A sentence before round 41 whose mention the tagger missed is a release of the entity: it did not join in 41.
    assert report["epsilon_user_entity_robust"] == epsilon(PLAN.event().robust(), BOTH, 50, 1e-5)


def test_names_that_a_run_does_not_protect_are_told(printed: Printed, capsys: Capture, tmp_path: Path) -> None:
    bounds = Guarantee(known="counts", entity_bound=3, user_sentences=15)
    folders = [
        str(alone(tmp_path / name, seed, 2, replace(bounds, public_names=names)))
        for seed, (name, names) in enumerate({"a": "", "b": "x", "c": "y"}.items())
    ]
    assert main(["account", "ledger", *folders[:2], "--json", *ASKED]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["public_names"] == 1
    for name in ("on the runs' list of public names", "that the tagger of one run never marks"):
        assert f"note: a name {name} is protected by epsilon_user_entity_robust alone" in shown.err
    report = printed("account", "ledger", *folders[1:], *ASKED)
    assert (report["public_names"], report["epsilon_any"]) == (2, "inf")


def test_noiseless_releases_are_infinite_and_said_so(capsys: Capture, tmp_path: Path) -> None:
    bare = plan(strategy="noiseless", clip_norm=math.inf, noise_multiplier=0.0).mechanism
    folders = [str(alone(tmp_path / "a", 0, 3)), str(alone(tmp_path / "b", 1, 3, mechanism=bare))]
    assert main(["account", "ledger", *folders, "--json", *ASKED]) == 0
    output = capsys.readouterr()
    report = json.loads(output.out)
    assert report["noiseless_releases"] == 3
    assert {value for name, value in report.items() if name.startswith("epsilon")} == {"inf"}
    assert "3 releases have no guarantee: ε is infinite" in output.err


@pytest.mark.system
def test_delta_is_that_of_the_run_or_1e_5(capsys: Capture, tmp_path: Path) -> None:
    corpus = small_corpus(tmp_path / "corpus")
    simulation.run(configuration(corpus, tmp_path / "run", privacy__delta=1e-4, rounds=1))
    ledger = alone(tmp_path / "a", 7, 3)
    lines = {
        f"ledger {tmp_path / 'run'}": (1e-4, "that of the run"),
        f"ledger {tmp_path / 'run'} {ledger}": (1e-5, "the default"),
        f"ledger {ledger}": (1e-5, "the default"),
        "mechanism --z 1 --rounds 3": (1e-5, "the default"),
    }
    for line, (delta, source) in lines.items():
        capsys.readouterr()
        assert main(["account", *line.split(), "--json"]) == 0
        output = capsys.readouterr()
        report = json.loads(output.out)
        assert report["delta"] == delta
        assert f"note: δ is {format_delta(delta)}, {source}; --delta states ε at another" in output.err
        assert main(["account", *line.split(), "--json", "--delta", str(delta)]) == 0
        output = capsys.readouterr()
        assert json.loads(output.out) == report
        assert "note: δ" not in output.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("ledger {a} --delta 1e-5 --joined-at 4", "round 4 is not in the ledger; allowed: a released round, 1 to 3"),
        ("ledger {a} {b} --delta 1e-5 --joined-at 2", "joined-at is 2, of 2 runs"),
        ("ledger {a} {same_seed} --delta 1e-5", "from the same seed"),
        ("ledger nowhere --delta 1e-5", "nowhere: there is no such folder"),
        ("ledger {empty} --delta 1e-5", "ledger.head.json: is missing"),
        ("ledger {cut} --delta 1e-5", "ledger.jsonl, line 3: is cut off"),
    ],
)
def test_bad_input_is_one_line(refusal: Refusal, tmp_path: Path, flags: str, message: str) -> None:
    folders = {
        "a": alone(tmp_path / "a", 0, 3),
        "b": alone(tmp_path / "b", 1, 3),
        "same_seed": alone(tmp_path / "same_seed", 0, 3, mechanism=LOUDER),
        "cut": alone(tmp_path / "cut", 0, 3),
        "empty": tmp_path / "empty",
    }
    folders["empty"].mkdir()
    lines = (folders["cut"] / LEDGER_FILE).read_bytes().splitlines(keepends=True)
    (folders["cut"] / LEDGER_FILE).write_bytes(b"".join(lines[:2]))
    assert message in refusal("account", *flags.format(**folders).split())


# --- real runs -------------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_a_crashed_secure_run_pays_for_the_rounds_that_it_does_again(small: Path, tmp_path: Path) -> None:
    once = simulation.run(configuration(small, tmp_path / "once", rounds=4, privacy__q_s=0.5))
    resumed = simulation.resume(crashed(small, tmp_path / "crashed", privacy__secure_noise=True))
    assert [entry.round for entry in Ledger.read(resumed.path).entries] == [1, 2, 3, 1, 2, 3, 4]
    assert (resumed.result or {})["releases"] == 7
    metrics = resumed.metrics()
    assert metrics["releases"].tolist() == [0, 2, 4, 6, 7]
    assert metrics["epsilon_user"].iloc[-1] == (resumed.result or {})["epsilon_user"]
    assert (resumed.result or {})["epsilon_user"] > 1.2 * (once.result or {})["epsilon_user"]
    assert (resumed.result or {})["stopped"] == "rounds"


@pytest.mark.system
def test_secure_runs_of_one_seed_have_other_noise_and_other_coins(small: Path, tmp_path: Path) -> None:
    changes = {"rounds": 5, "privacy__secure_noise": True, "privacy__q_u": 0.5, "privacy__q_s": 0.5}
    runs = [simulation.run(configuration(small, tmp_path / name, **changes)) for name in "ab"]
    first, second = (run.metrics() for run in runs)
    assert not np.isclose(first["noise_norm"].iloc[1:], second["noise_norm"].iloc[1:], rtol=1e-6).any()
    assert first["cohort_sentences"].tolist()[1:] != second["cohort_sentences"].tolist()[1:]
    assert len(together([Ledger.read(run.path) for run in runs])) == 10


@pytest.mark.system
def test_a_ledger_that_knows_less_than_the_checkpoint_is_refused(small: Path, tmp_path: Path) -> None:
    crashed(small, tmp_path / "run", checkpoint_every=1)
    for name in (LEDGER_FILE, HEAD_FILE):
        (tmp_path / "run" / name).unlink()
    Ledger.create(tmp_path / "run")
    with pytest.raises(LedgerError, match="is not the ledger whose head hash was kept after 3 entries"):
        simulation.resume(tmp_path / "run")


def test_a_consistent_forgery_does_not_meet_the_seal_in_the_result(tmp_path: Path, refusal: Refusal) -> None:
    run = finished_run(folder=tmp_path / "run")
    for name in (LEDGER_FILE, HEAD_FILE):
        (run.path / name).unlink()
    Ledger.create(run.path).record_release(ReleaseRecord.of(PLAN, 0), 1)
    result = json.loads(run.result_file.read_bytes()) | {"stopped": "interrupted"}
    run.result_file.write_text(json.dumps(result))
    with pytest.raises(LedgerError, match="head hash was kept after 2 entries"):
        simulation.resume(run.path)
    shutil.rmtree(run.checkpoint_dir)  # which keeps the head, too
    said = refusal("account", "ledger", run.path, "--delta", 1e-5)
    assert "is not the ledger whose head hash was kept after 2 entries" in said


def test_a_result_that_names_another_ledger_is_not_gone_on_from(tmp_path: Path) -> None:
    """The head in a result was published; the ledger and the checkpoint of a run must be those of that head."""
    run = finished_run(folder=tmp_path / "run")
    result = json.loads(run.result_file.read_bytes()) | {"stopped": "interrupted"}
    run.result_file.write_text(json.dumps(result | {"ledger": result["ledger"] | {"last": "0" * 64}}))
    with pytest.raises(LedgerError, match="head hash was kept after 2 entries"):
        simulation.resume(run.path)
