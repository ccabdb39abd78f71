"""Run folders with made-up figures, on which reports are tested without training, and commands in this process."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fl_sim.cli.main import main
from fl_sim.storage.run_folder import RunFolder, encode, replace_file
from fl_sim.strategies.accounting.guarantee import Guarantee
from fl_sim.strategies.ledger import LEDGER_FILE, Ledger, ReleaseRecord
from tests.strategies.federation import plan

REACH = {
    "median": {"users": 1, "sentences_per_user": 1, "sentences": 1},
    "p95": {"users": 3, "sentences_per_user": 2, "sentences": 5},
    "max": {"users": 90, "sentences_per_user": 12, "sentences": 300},
}
AFTER_LAST_ROUND = {
    "epsilon_any": 15.02,
    "epsilon_any_robust": 33.4,
    "epsilon_user": 2.181,
    "epsilon_user_unbounded": 2.675,
    "epsilon_user_entity_median": 2.23,
    "epsilon_user_entity_p95": 2.61,
    "epsilon_user_entity_max": 14.2,
    "epsilon_user_entity_robust_median": 2.31,
    "epsilon_user_entity_robust_p95": 3.05,
    "epsilon_user_entity_robust_max": 31.7,
}
GUARANTEE = {
    "known": "counts", "entity_bound": 300, "entity_users": None, "public_weights": False, "user_sentences": 60,
    "missed_mentions": 4, "counts": "c0" * 32, "public_names": "",
}  # fmt: skip
KEPT = {"sentences": 0.8709, "mentions": 0.6413, "mentions_by_kind": {"ORG": 0.5, "PER": 0.7777}}
FINAL_PERPLEXITY = {"uedp": 655.0, "user_level": 702.0, "noiseless": 318.0}

Capture = pytest.CaptureFixture[str]
MakeRun = Callable[..., RunFolder]
Printed = Callable[..., Any]
Refusal = Callable[..., str]


@pytest.fixture
def printed(capsys: Capture) -> Printed:
    """``printed("report", run)`` is the object that the command prints with ``--json``; ``code`` is its exit code."""

    def of(*words: object, code: int = 0) -> Any:
        assert main([*map(str, words), "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return of


def metrics_row(strategy: str, number: int, rounds: int, z: float = 1.0) -> dict[str, Any]:
    """Round ``number`` of ``rounds``: ε grows like √t / z, perplexity decays from 4,000."""
    done = number / rounds
    row: dict[str, Any] = {"round": number, "train_loss": None, "seconds": 1.5}
    final = FINAL_PERPLEXITY[strategy] * z**0.2
    row["perplexity"] = final + (4000 - final) * (math.exp(-5 * done) - math.exp(-5) * done)
    row["loss"] = math.log(row["perplexity"])
    for name, last in AFTER_LAST_ROUND.items():
        growth = 0.0 if number == 0 else math.inf if strategy == "noiseless" else math.sqrt(done) / z
        only_users = strategy == "user_level" and ("entity" in name or "any" in name)
        row[name] = last * growth * (3 if only_users else 1)
    return row


def made_run(
    folder: Path,
    strategy: str = "uedp",
    *,
    name: str | None = None,
    rounds: int = 30,
    z: float = 1.0,
    seed: int = 0,
    delta: float = 1e-5,
    finish: bool = True,
    result: dict[str, Any] | None = None,
    corpus: str | None = None,
    **settings: Any,
) -> RunFolder:
    """A run in ``folder``, on a corpus of that fingerprint; other settings are those of its configuration."""
    plan = {
        "strategy": strategy, "population": 946, "q_u": 1.0, "q_e": 0.5, "q_s": 0.05, "clip_norm": 0.5,
        "user_cap": 5.0, "noise_multiplier": z, "rounds": rounds, "delta": delta,
    }  # fmt: skip
    stated = {"seed": seed, "rounds": rounds, "privacy": {"strategy": strategy}} | settings
    config = {"run": stated, "plan": plan} | ({} if corpus is None else {"corpus": {"fingerprint": corpus}})
    run = RunFolder.create(folder / (name or f"{strategy}-{z:g}-{seed}"), config=config, environment={})
    for number in range(rounds + 1):
        run.append_metrics(metrics_row(strategy, number, rounds, z))
    write_ledger(run.path, rounds, (result or {}).get("guarantee", GUARANTEE) or {})
    if finish:
        head = {"ledger": Ledger.read(run.path).head}
        content = json.dumps(encode(finished(plan, rounds) | head | (result or {})))
        replace_file(run.result_file, content.encode())
    return run


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """``make_run("uedp")`` is a run folder with its result (yet without plots, which are slow to draw);

    ``finish=False`` leaves it as a killed run would.
    """
    return functools.partial(made_run, tmp_path)


def rewritten(run: RunFolder, change: Callable[[dict[str, Any]], dict[str, Any]]) -> RunFolder:
    """The run with every row of its metrics as ``change`` makes it."""
    rows = [change(row) for row in run.metrics().to_dict("records")]
    run.truncate_metrics(-1)
    for row in rows:
        run.append_metrics(row)
    return run


def ended_with(run: RunFolder, **figures: float | None) -> RunFolder:
    """The run with other figures in its last row, without those that are None."""
    last = run.metrics().to_dict("records")[-1] | figures
    run.truncate_metrics(last["round"] - 1)
    run.append_metrics({name: value for name, value in last.items() if name not in figures or value is not None})
    return run


def cut_ledger(folder: Path) -> None:
    """Take the last line of a run's ledger away."""
    ledger = folder / LEDGER_FILE
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))


def add_releases(run: RunFolder, count: int) -> None:
    """Record so many further releases in the ledger of a run."""
    ledger = Ledger.open(run.path)
    for number in range(ledger.last_round + 1, ledger.last_round + 1 + count):
        ledger.record_release(ledger.entries[0].terms, number, str(number))


def write_ledger(folder: Path, rounds: int, guarantee: dict[str, Any]) -> None:
    """A ledger of so many releases under a guarantee, whose ε is below the made-up figures."""
    ledger, quiet = Ledger.create(folder), plan(noise_multiplier=1000.0).mechanism
    for number in range(1, rounds + 1):
        ledger.record_release(ReleaseRecord.of(quiet, 0, Guarantee.from_record(guarantee)), number, str(number))


def finished(plan: dict[str, Any], rounds: int) -> dict[str, Any]:
    """What a run says at its end."""
    return {
        "stopped": "rounds",
        "rounds": rounds,
        "plan": plan,
        "corpus": {"name": "synthetic", "users": 946, "sentences": 14041},
        "user_sentences": 60.0,
        "guarantee": GUARANTEE,
        "kept": KEPT,
        "public_entities": 0,
        "settings_from_corpus": False,
        "reach": REACH,
        "reach_coverage": {"median": 0.614, "p95": 0.9599, "max": 1.0},
        "unigram_perplexity": 912.3,
        "warnings": [],
    }
