"""Sweeps: the joint ε of runs under several bounds, from ledgers alone; a stop signal starts no other run."""

from __future__ import annotations

import itertools
import math
import signal
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import cast

import pytest

from fl_sim.config import RunConfig
from fl_sim.search import sweep
from fl_sim.search.sweep import DONE, INTERRUPTED, Ending, _joint_account, run_batch
from fl_sim.stop_signals import stops_handled_by
from fl_sim.storage.model_files import Ancestor, Lineage, write_ancestors
from fl_sim.storage.run_folder import ResultsError, RunFolder
from fl_sim.strategies.accounting.accountant import composed_epsilon
from fl_sim.strategies.accounting.adjacency import NO_ENTITY, Adjacency, ContributionBound
from fl_sim.strategies.accounting.guarantee import Guarantee, Known
from fl_sim.strategies.ledger import Ledger, ReleaseRecord
from fl_sim.strategies.uedp import UserEntityDP

MECHANISM = UserEntityDP(
    strategy="uedp", population=40, q_u=1.0, q_e=0.5, q_s=0.1, clip_norm=1.0, user_cap=2.0, noise_multiplier=2.0
)
P95 = {"greedy": ContributionBound(1, 1, 1), "wider": ContributionBound(3, 2, 4)}
WEIGHTS = ContributionBound(6, 3, 1, weighted=True)


def unfinished_run(
    path: Path,
    seed: int,
    bound: ContributionBound,
    user_sentences: int = 20,
    before: Ancestor | None = None,
    names: str = "",
) -> RunFolder:
    """A run of four rounds that failed after them, from the model of the run ``before``."""
    run = RunFolder.create(path, config={"plan": {"delta": 1e-5}, "corpus": {"fingerprint": "here"}}, environment={})
    write_ancestors(path, Lineage(() if before is None else (before,)))
    known: Known = "counts" if bound.weighted else "graph"
    guarantee = Guarantee(known=known, entity_bound=4, user_sentences=user_sentences, public_names=names)
    ledger = Ledger.create(path, [] if before is None else [before.ledger.head])
    terms = ReleaseRecord.of(MECHANISM, seed, guarantee)
    for number in range(1, 5):
        ledger.record_release(terms, number)
    return run


def finished_run(
    path: Path, seed: int, bound: ContributionBound, before: Ancestor | None = None, names: str = ""
) -> RunFolder:
    """A run of four rounds, with the p95 that its bounds leave of the corpus."""
    run, ledger = unfinished_run(path, seed, bound, before=before, names=names), Ledger.read(path)
    result = {"corpus": {"name": "tiny"}, "user_sentences": 20, "reach": {"p95": asdict(bound)}}
    run.finish(result | {"plan": {"delta": 1e-5}, "ledger": ledger.head})
    return RunFolder.open(path)


def test_a_sweep_over_bounds_states_an_entity_that_every_run_covers(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path / name, seed, bound) for seed, (name, bound) in enumerate(P95.items())]
    accounts = [_joint_account(order) for order in itertools.permutations(runs)]
    (event,) = {MECHANISM.event()}
    widest = composed_epsilon([(event, Adjacency(20, P95["wider"]), 8)], 1e-5)
    for account in accounts:
        assert account["epsilon_user_entity"] == pytest.approx(widest, rel=1e-6)
    assert accounts[0]["epsilon_user_entity"] == accounts[1]["epsilon_user_entity"]
    assert "at δ = 1e-5, graph known: ε user" in accounts[0]["note"]


@pytest.mark.system
def test_a_sum_of_weights_of_one_run_bounds_no_sentences_of_another(tmp_path: Path) -> None:
    runs = [finished_run(tmp_path / "a", 0, WEIGHTS), finished_run(tmp_path / "b", 1, P95["greedy"])]
    accounts = [_joint_account(order)["epsilon_user_entity"] for order in itertools.permutations(runs)]
    assert accounts[0] == accounts[1]
    event = MECHANISM.event()
    parts = [(event, Adjacency(20, WEIGHTS, weighted=True), 4), (event, Adjacency(20, ContributionBound(6, 3)), 4)]
    assert accounts[0] == pytest.approx(composed_epsilon(parts, 1e-5), rel=1e-6)


@pytest.mark.parametrize("sentences", [20, 30])
def test_what_a_run_released_before_it_failed_counts(tmp_path: Path, sentences: int) -> None:
    """What the bounds of another user leave of the corpus, a run tells that has them and is finished."""
    bound = P95["greedy"]
    finished = finished_run(tmp_path / "a", 0, bound)
    account = _joint_account([finished], [unfinished_run(tmp_path / "b", 1, bound, sentences)])
    assert (account["runs"], account["unfinished"], account["releases"]) == (1, 1, 8)
    user = Adjacency(20 if sentences == 20 else math.inf)
    expected = composed_epsilon([(MECHANISM.event(), user, 8)], 1e-5)
    assert account["epsilon_user"] == pytest.approx(expected, rel=1e-6)
    assert (account["epsilon_user_entity"] == math.inf) == (sentences != 20)
    assert _joint_account([finished])["epsilon_any"] < account["epsilon_any"] < math.inf


@pytest.mark.parametrize(("sentences", "corpus"), [(20, "here"), (30, "here"), (20, "elsewhere")])
def test_bounds_of_the_runs_hold_for_no_initial_model_under_others(tmp_path: Path, sentences: int, corpus: str) -> None:
    bound, holds = P95["greedy"], (sentences, corpus) == (20, "here")
    unfinished_run(tmp_path / "before", 5, bound, sentences)
    before = Ancestor(Ledger.read(tmp_path / "before"), corpus, {})
    account = _joint_account([finished_run(tmp_path / name, seed, bound, before) for seed, name in enumerate("ab")])
    assert account["releases"] == 12
    user = Adjacency(20 if holds else math.inf)
    assert account["epsilon_user"] == pytest.approx(composed_epsilon([(MECHANISM.event(), user, 12)], 1e-5), rel=1e-6)
    assert (account["epsilon_user_entity"] == math.inf) == (not holds)


def test_a_sweep_of_which_no_run_is_finished_has_spent_what_its_runs_released(tmp_path: Path) -> None:
    assert "releases" not in _joint_account([])
    account = _joint_account([], [unfinished_run(tmp_path / "a", 0, P95["greedy"])])
    assert (account["runs"], account["releases"], account["epsilon_user_entity"]) == (0, 4, math.inf)
    assert account["epsilon_user"] > 0
    assert 0 < account["epsilon_any"] < math.inf


def test_a_sweep_on_a_corpus_without_entities_states_none_of_an_entity(tmp_path: Path) -> None:
    account = _joint_account([finished_run(tmp_path / "a", 0, NO_ENTITY)])
    assert account["epsilon_user"] < account["epsilon_user_entity"] == account["epsilon_user_entity_robust"] == math.inf


def test_a_sweep_over_lists_of_public_names_states_no_epsilon_of_an_entity(tmp_path: Path) -> None:
    """A name on one of two lists is within the bound of the other run alone."""
    bound = P95["greedy"]
    runs = [finished_run(tmp_path / f"{seed}", seed, bound, names=names) for seed, names in enumerate("xxy")]
    assert _joint_account(runs[:2])["epsilon_user_entity"] < math.inf
    assert _joint_account(runs)["epsilon_user_entity"] == _joint_account(runs)["epsilon_any"] == math.inf


def test_a_sweep_goes_on_with_another_metric_and_with_no_other_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "run_batch", lambda configs, jobs: iter(()))
    base, file = tmp_path / "base.toml", tmp_path / "sweep.toml"
    for metric, rounds in (("perplexty", 2), ("perplexity", 2), ("perplexity", 3)):
        base.write_text(f"rounds = {rounds}\n")
        file.write_text(f'base = "base.toml"\nmetric = "{metric}"\n[grid]\n"privacy.q_s" = [0.1, 0.2]\n')
        with pytest.raises(ResultsError, match="another sweep") if rounds == 3 else nullcontext():
            sweep.run_sweep(sweep.Sweep.load(file), tmp_path / "out")


# Stops


def test_a_stop_in_the_last_round_of_a_run_starts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a run just finishes, as it would have without the signal."""
    stops = iter([False, True, False, False])

    def finished(name: str, config: RunConfig) -> Ending:
        with stops_handled_by(lambda signal_name: None):
            if next(stops):
                signal.raise_signal(signal.SIGTERM)
        return Ending(name, DONE)

    monkeypatch.setattr(sweep, "run_one", finished)
    runs = {name: cast("RunConfig", None) for name in "abcd"}
    assert list(run_batch(runs)) == [Ending("a", DONE), Ending("b", DONE), Ending("c", INTERRUPTED, "SIGTERM")]
    assert list(run_batch({"d": runs["d"]})) == [Ending("d", DONE)]  # it was said, and the next command begins anew
