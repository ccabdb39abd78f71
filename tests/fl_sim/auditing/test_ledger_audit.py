"""Test the audit of a run folder: it passes an honest run, and every figure that was made to look better is refuted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fl_sim
from fl_sim.auditing import ledger_audit
from fl_sim.auditing.audited_rounds import Distribution
from fl_sim.auditing.ledger_audit import RecordedRun, audit_ledger, delta_at_least
from fl_sim.auditing.lower_bounds import gaussian_epsilon
from fl_sim.data_prep.declared_counts import write_counts
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.experiments.plan import guarantees
from fl_sim.experiments.plan.lineage import Earlier
from fl_sim.formats import format_epsilon
from fl_sim.storage.model_files import Ancestor, Lineage
from fl_sim.storage.run_folder import ResultsError, RunFolder
from fl_sim.strategies.accounting.accountant import epsilon
from fl_sim.strategies.accounting.adjacency import ANY_NUMBER, Adjacency, ContributionBound
from fl_sim.strategies.accounting.guarantee import Guarantee, Known, ProtectedUnit
from fl_sim.strategies.ledger import Ledger, ReleaseRecord, epsilon_of, epsilon_of_any
from tests.fl_sim.auditing.faults import fault
from tests.fl_sim.released_runs import released_run
from tests.strategies.federation import plan

SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "model.hidden": 8,
    "model.layers": 1,
    "model.heads": 2,
    "evaluation.every": 1_000_000,
    "engine.name": "inline",
    "privacy.noise_multiplier": 4.0,
}


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "honest"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fl_sim.reporting.plots.write_run_plots", lambda run: None)
        fl_sim.run(SETTINGS | {"out": str(out)})
    return out


@pytest.fixture
def copy(honest: Path, tmp_path: Path) -> Path:
    shutil.copytree(honest, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(autouse=True)
def few_trials(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation has tests of its own."""
    if "honest" not in request.node.name:
        monkeypatch.setattr(ledger_audit, "delta_at_least", lambda *args: 0.0)


def edit(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def edit_rows(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        if row["round"]:
            change(row)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def refuted(folder: Path) -> list[str]:
    return list(audit_ledger(folder).record()["refuted"])


@pytest.mark.system
def test_an_honest_run_passes(honest: Path) -> None:
    audit = audit_ledger(honest)
    assert audit.holds, audit.record()
    names = [check.name for check in audit.checks]
    figures = ["epsilon", "epsilon_any", "bounds"]
    assert names[:10] == ["chain", "terms", "seed", "rounds", *figures, "noise", "updates", "rate of users"]
    assert "rate of sentences" in names
    assert {"simulated epsilon_user", "simulated epsilon_user_entity_max", "simulated epsilon_any"} <= {*names}
    result, details = (
        json.loads((honest / "result.json").read_text()),
        {check.name: check.detail for check in audit.checks},
    )
    assert details["simulated epsilon_any"].endswith(f"at ε {format_epsilon(result['epsilon_any'])}"), (
        "never rounded down"
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("terms", lambda config: config["plan"].update(noise_multiplier=5.0)),
        ("bounds", lambda config: config["run"]["privacy"].update(entity_bound=3)),
        ("terms", lambda config: config["plan"].update(q_s=0.05)),
        ("seed", lambda config: config["run"].update(seed=1)),
        ("seed", lambda config: config["run"]["privacy"].update(secure_noise=True)),
        ("rounds", lambda config: config["plan"].update(rounds=2)),
    ],
)
def test_another_record_is_refuted(name: str, change: Callable[[dict[str, Any]], None], copy: Path) -> None:
    edit(copy / "config.json", change)
    assert refuted(copy) == [name]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("noise", lambda row: row.update(noise_norm=0.95 * row["noise_norm"])),
        ("updates", lambda row: row.update(update_norm=10 * row["update_norm"])),
        ("rate of sentences", lambda row: row.update(cohort_sentences=2 * row["cohort_sentences"])),
        ("rounds", lambda row: row.update(releases=row["releases"] - 1)),
    ],
)
def test_other_metrics_are_refuted(name: str, change: Callable[[dict[str, Any]], None], copy: Path) -> None:
    edit_rows(copy / "metrics.jsonl", change)
    assert name in refuted(copy)


@pytest.mark.nightly
@pytest.mark.usefixtures("no_plots")
def test_a_run_that_did_not_enforce_its_bounds_is_refuted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The auditor's own code enforces them, so it is the run's computation.json that tells."""
    with monkeypatch.context() as patched:
        patched.setattr(guarantees, "_weights", lambda guarantee, split, counts: np.ones(split.num_sentences))
        fl_sim.run(SETTINGS | {"out": str(tmp_path / "run"), "rounds": 1, "privacy.user_sentences": 3})
    audit = audit_ledger(tmp_path / "run")
    assert audit.record()["refuted"] == ["bounds"]
    (check,) = (check for check in audit.checks if not check.holds)
    assert "not from the sentences that its bounds keep" in check.detail


@pytest.mark.system
def test_a_computation_that_the_ledger_is_not_bound_to_is_refuted(copy: Path) -> None:
    edit(copy / "computation.json", lambda content: content["parts"].update(selection="0a1b"))
    assert refuted(copy) == ["bounds"]


@pytest.mark.system
def test_a_run_that_was_killed_before_its_first_row_passes(copy: Path) -> None:
    for rows in (b"", (copy / "metrics.jsonl").read_bytes().splitlines(keepends=True)[0]):
        (copy / "metrics.jsonl").write_bytes(rows)
        (copy / "result.json").unlink(missing_ok=True)
        assert refuted(copy) == []


def test_a_changed_line_is_refuted(copy: Path) -> None:
    ledger = copy / "ledger.jsonl"
    ledger.write_text(ledger.read_text().replace('"noise_multiplier":4.0', '"noise_multiplier":9.0', 1))
    (check,) = audit_ledger(copy).checks
    assert not check.holds
    assert "line 2" in check.detail


@pytest.mark.nightly
@pytest.mark.usefixtures("no_plots")
def test_honest_accounts_with_half_of_the_rate_are_refuted(tmp_path: Path) -> None:
    """The ledger has the real rate, and the same accountant confirms its own ε; the simulation does not."""
    with fault("accounted_rate_halved"):
        fl_sim.run(SETTINGS | {"out": str(tmp_path / "run"), "rounds": 2, "privacy.noise_multiplier": 2.0})
        names = refuted(tmp_path / "run")
    assert {"simulated epsilon_user", "simulated epsilon_user_entity_max", "simulated epsilon_any"} <= {*names}
    assert "epsilon" not in names


@pytest.mark.system
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="there is no such folder"):
        audit_ledger(tmp_path / "none")
    for name in ("config.json", "environment.json", "metrics.jsonl"):
        (tmp_path / name).write_text("" if name == "metrics.jsonl" else "{}")
    with pytest.raises(ResultsError, match=r"config.json: is corrupt \('run' and 'plan' are expected\)"):
        audit_ledger(tmp_path)


# --- single checks, on a record that is made by hand ------------------------------------------------------------------


MECHANISM = plan(q_e=0.5, q_s=0.2, user_cap=3.0, noise_multiplier=3.0, population=50)
BOUNDED = Guarantee(known="graph", entity_bound=3, user_sentences=9)
P95 = ContributionBound(2, 2, 3)


def released(folder: Path, *noise: float, seeds: tuple[int, ...] = (0,), guarantee: Guarantee = BOUNDED) -> Ledger:
    """A ledger of rounds with these noise multipliers."""
    folder.mkdir()
    ledger = Ledger.create(folder)
    for number, z in enumerate(noise, start=1):
        mechanism = replace(MECHANISM.mechanism, noise_multiplier=z)
        seed = seeds[min(number, len(seeds)) - 1]
        ledger.record_release(ReleaseRecord.of(mechanism, seed, guarantee), number)
    return ledger


def recorded(ledger: Ledger, earlier: Earlier = guarantees.NOTHING_EARLIER, **result: Any) -> RecordedRun:
    run = {"seed": 0, "privacy": {}}
    config = {"plan": MECHANISM.record() | {"rounds": 3}, "run": run}
    folder = RunFolder(ledger.folder, config=config, environment={})
    figures = {"user_sentences": 9, "reach": {"p95": asdict(P95)}} | result
    return RecordedRun(ledger, earlier, folder, MECHANISM.mechanism, pd.DataFrame(), figures)


def holds(check: Callable[[RecordedRun], Iterator[ledger_audit.Check]], run: RecordedRun) -> bool:
    return all(one.holds for one in check(run))


def bounds_of(folder: RunFolder) -> ledger_audit.Check:
    """What the audit says of the bounds of a run whose releases are recorded."""
    ledger = Ledger.read(folder.path)
    run = RecordedRun(ledger, (), folder, ledger.entries[0].terms.mechanism, pd.DataFrame(), {})
    (check,) = ledger_audit._bounds(run)
    return check


@pytest.mark.parametrize("known", ["counts", "graph"])
def test_bounds_that_the_corpus_keeps_hold(corpus: Path, tmp_path: Path, known: str) -> None:
    run = released_run(tmp_path / "run", corpus, 1, entity_bound=2, user_sentences=3, known=known)
    assert bounds_of(run) == ledger_audit.Check("bounds", True, "kept by every entity and user of the corpus")


@pytest.mark.parametrize(
    ("bounds", "message"),
    [({"entity_bound": 2}, "entity 0 has weight "), ({"user_sentences": 3}, "user 0 has weight 4 in sentences")],
)
def test_weights_that_exceed_the_bounds_are_refuted(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: dict[str, int], message: str
) -> None:
    """A rule that is wrong in the run and in the audit is seen, since what it makes is added up."""
    monkeypatch.setattr(guarantees, "count_weights", lambda split, limits, counts: np.ones(split.num_sentences))
    check = bounds_of(released_run(tmp_path / "run", corpus, 1, **{"entity_bound": 99} | bounds))
    assert not check.holds
    assert message in check.detail


@pytest.mark.parametrize("by_name", [False, True])
def test_weights_that_were_not_enforced_are_refuted_whatever_entities_are_sampled_by(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    (tmp_path / "key").write_text("a key of 23 characters.")
    named: dict[str, Any] = {"entity_key": str(tmp_path / "key")} if by_name else {}
    assert bounds_of(released_run(tmp_path / "honest", corpus, 1, entity_bound=2, **named)).holds
    with monkeypatch.context() as patched:
        patched.setattr(guarantees, "count_weights", lambda split, limits, counts: np.ones(split.num_sentences))
        run = released_run(tmp_path / "run", corpus, 1, entity_bound=2, **named)
    check = bounds_of(run)
    assert not check.holds
    assert "not from the sentences that its bounds keep" in check.detail


@pytest.mark.parametrize(
    ("factor", "message"),
    [(2, "states other bounds than the ledger"), (0.5, "user 'user 0' has count 2; allowed: at least 4")],
)
def test_other_declared_counts_than_those_of_the_releases_are_refuted(
    corpus: Path, tmp_path: Path, factor: float, message: str
) -> None:
    file = tmp_path / "counts.json"
    write_counts(Corpus.open(corpus), file)
    run = released_run(tmp_path / "run", corpus, 1, entity_bound=2, counts=str(file))
    assert bounds_of(run).holds
    content = json.loads(file.read_text())
    content["users"] = {user: int(factor * count) for user, count in content["users"].items()}
    file.write_text(json.dumps(content))
    check = bounds_of(run)
    assert not check.holds
    assert message in check.detail


@pytest.mark.system
def test_every_release_is_compared_with_the_record(tmp_path: Path) -> None:
    assert holds(ledger_audit._terms, recorded(released(tmp_path / "a", 3.0, 3.0)))
    assert not holds(ledger_audit._terms, recorded(released(tmp_path / "b", 3.0, 2.0)))
    assert not holds(ledger_audit._terms, recorded(released(tmp_path / "c", 2.0, 3.0)))


@pytest.mark.system
def test_every_release_is_of_the_seed_of_the_run(tmp_path: Path) -> None:
    assert holds(ledger_audit._seed, recorded(released(tmp_path / "a", 3.0, 3.0)))
    for name, seeds in {"b": (0, 1), "c": (1, 0)}.items():
        assert not holds(ledger_audit._seed, recorded(released(tmp_path / name, 3.0, 3.0, seeds=seeds)))


@pytest.mark.system
@pytest.mark.parametrize("known", ["graph", "counts"])
def test_every_figure_is_recomputed_for_the_unit_of_its_name(tmp_path: Path, known: Known) -> None:
    """By counts the user's sentences have weights, whatever the result says of their number."""
    guarantee = replace(BOUNDED, known=known)
    ledger, both = released(tmp_path / "a", 3.0, 3.0, guarantee=guarantee), Adjacency(9, P95, known == "counts")
    event = MECHANISM.mechanism.event()
    assert event is not None
    honest = {
        "epsilon_user_entity_p95": epsilon(event, both, 2, 1e-5),
        "epsilon_user_entity_robust_p95": epsilon(event.robust(), both, 2, 1e-5),
    }
    assert holds(ledger_audit._epsilon, recorded(ledger, **honest))
    for name, figure in honest.items():
        assert not holds(ledger_audit._epsilon, recorded(ledger, **honest | {name: 0.995 * figure}))


@pytest.mark.system
def test_every_epsilon_counts_the_releases_of_ancestors(tmp_path: Path) -> None:
    ledger, before = released(tmp_path / "a", 3.0, 3.0), released(tmp_path / "b", 4.0, seeds=(5,))
    unit = ProtectedUnit(Adjacency(9), robust=False)
    earlier = Earlier(Lineage((Ancestor(before, "", {"epsilon_user": unit}),)))
    both = [*before.entries, *ledger.entries]
    together = {"epsilon_any": epsilon_of_any(both, 1e-5), "epsilon_user": epsilon_of(both, Adjacency(9), 1e-5)}
    alone = {
        "epsilon_any": epsilon_of_any(ledger.entries, 1e-5),
        "epsilon_user": epsilon_of(ledger.entries, Adjacency(9), 1e-5),
    }
    for name, check in (("epsilon_any", ledger_audit._epsilon_any), ("epsilon_user", ledger_audit._epsilon)):
        assert holds(check, recorded(ledger, earlier, **{name: together[name]}))
        assert not holds(check, recorded(ledger, earlier, **{name: alone[name]}))
        assert holds(check, recorded(ledger, **{name: alone[name]}))


def test_the_result_of_an_interrupted_run_that_went_on_is_about_the_releases_before(tmp_path: Path) -> None:
    ledger = released(tmp_path / "a", 3.0, 3.0)
    first = ledger.entries[:1]
    figures = {"epsilon_any": epsilon_of_any(first, 1e-5), "epsilon_user": epsilon_of(first, Adjacency(9), 1e-5)}
    run = recorded(ledger, **figures)
    went_on = replace(run, result=run.result | {"ledger": {"entries": 1}})
    for check in (ledger_audit._epsilon, ledger_audit._epsilon_any):
        assert holds(check, went_on)
        assert not holds(check, run)


@pytest.mark.parametrize(
    ("bound", "sentences"),
    [
        (P95, (1, 2)),
        (ContributionBound(2, 2, 1.5, weighted=True), (1, 1)),
        (ContributionBound(50, ANY_NUMBER, 3, weighted=True), (3, 1)),
        (ContributionBound(2, ANY_NUMBER, 7, weighted=True), (2, 3)),
        (ContributionBound(2, 2, 7, weighted=True), (2, 2)),
        (ContributionBound(2, 2, 0.5, weighted=True), (0, 0)),
    ],
)
def test_as_many_sentences_are_simulated_as_a_sum_of_weights_allows(
    bound: ContributionBound, sentences: tuple[int, int]
) -> None:
    """At their full rate more would refute an ε that is true."""
    scenario = ledger_audit._scenario(Adjacency(9, bound))
    assert scenario is not None
    assert (scenario.entity_users, scenario.entity_sentences, scenario.user_sentences) == (*sentences, 9)


@pytest.mark.parametrize(("mu", "delta"), [(1.0, 0.1), (2.0, 0.01)])
def test_delta_of_a_gaussian(mu: float, delta: float) -> None:
    """Four rounds at noise 2/μ have the privacy loss of one Gaussian with μ."""
    one = Distribution(np.ones(1), np.zeros(1))
    least = delta_at_least(one, 2 / mu, 4, gaussian_epsilon(mu, delta), seed=0, trials=200_000)
    assert 0.85 * delta < least < delta


@pytest.mark.system
@pytest.mark.parametrize("known", ["graph", "counts"])
@pytest.mark.parametrize("name", ["epsilon_any", "epsilon_user_entity_p95"])
def test_the_simulation_tells_an_honest_epsilon_from_that_of_twice_the_noise(
    tmp_path: Path, known: Known, name: str
) -> None:
    """Also of an entity whose sentences have weights, by an attack on as many of weight 1."""
    guarantee, event = replace(BOUNDED, known=known), MECHANISM.mechanism.event()
    assert event is not None
    ledger = released(tmp_path / "a", 3.0, 3.0, 3.0, guarantee=guarantee)
    bound = replace(P95, weighted=known == "counts")
    units = {
        "epsilon_any": guarantee.units(clips_sentences=True, population=50)[0].adjacency,
        "epsilon_user_entity_p95": guarantee.with_entity(bound),
    }
    for factor in (1, 2):
        figure = epsilon(replace(event, noise_multiplier=factor * event.noise_multiplier), units[name], 3, 1e-5)
        run = recorded(ledger, reach={"p95": asdict(bound)}, **{name: figure})
        (check,) = ledger_audit._simulated(run, 0)
        assert check.name == f"simulated {name}"
        assert check.holds == (factor == 1), check.detail
