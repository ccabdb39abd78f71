"""A run end to end: its output describes what ran."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fl_sim.cli.main import main
from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.accounting.adjacency import ANY_NUMBER, Adjacency, ContributionBound
from fl_sim.strategies.ledger import Ledger
from fl_sim.strategies.primitives import sampling
from tests import tiny
from tests.e2e.small_runs import Run, finished_run, model_of

pytestmark = pytest.mark.usefixtures("no_plots")

SGD = {"server.optimizer": "sgd", "server.learning_rate": 1.0}


@pytest.fixture(scope="module")
def corpus() -> Path:
    """Return the tiny corpus, whose users and entities are alike."""
    return tiny.shared_corpus()


@pytest.mark.sample(1)
@pytest.mark.parametrize("strategy", ["uedp", "user_level"])
@pytest.mark.parametrize("population", [None, 60])
def test_the_noise_on_the_model_is_that_of_epsilon(strategy: str, population: int | None, run: Run) -> None:
    z, cap, clip, q_u = 900.0, 1.0 if strategy == "user_level" else 3.0, 0.01, 0.5
    mechanism = {"noise_multiplier": z, "clip_norm": clip, "user_cap": cap, "q_u": q_u, "strategy": strategy}
    settings = {f"privacy.{key}": value for key, value in mechanism.items()} | {"privacy.population": population}
    folder = run("run", **settings, **SGD, rounds=1)
    sizes = {key.removeprefix("model."): value for key, value in tiny.MODEL.items()}
    step = (model_of(folder) - load_model(ModelSpec(**sizes), 0).get_vector()).astype(np.float64)
    enrolled = population or tiny.USERS
    # The users' contribution is at most 6·β in all coordinates together, which is negligible beside the noise.
    assert step.std() * q_u * enrolled == pytest.approx(z * cap * clip, rel=0.02)
    epsilon = accountant.epsilon(
        RoundEvent("uedp" if strategy == "uedp" else "user_level", z, q_u, user_cap=cap,
                   **({"q_e": 0.5, "q_s": 0.05} if strategy == "uedp" else {})),
        Adjacency(), 1, 1e-5,
    )  # fmt: skip
    assert (folder.result or {})["epsilon_user_unbounded"] == pytest.approx(epsilon, rel=1e-3, abs=1e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("strategy", "cap"), [("uedp", 1.0), ("uedp", 2.5), ("user_level", 1.0)], ids=["cap 1", "cap 2.5", "user_level"]
)
def test_no_user_moves_the_sum_by_more_than_the_clip(strategy: str, cap: float, run: Run) -> None:
    clip = 1e-4
    rates = {"privacy.q_u": 1.0, "privacy.q_e": 1.0, "privacy.q_s": 1.0}
    mechanism = {"privacy.strategy": strategy, "privacy.clip_norm": clip, "privacy.user_cap": cap}
    metrics = run("run", **rates, **mechanism).metrics().iloc[1:]
    sums = metrics["update_norm"] * tiny.USERS
    assert (sums <= tiny.USERS * cap * clip * 1.001).all()
    assert (sums > 0.3 * tiny.USERS * cap * clip).all()  # the sentences and their gradients are similar
    assert (metrics["clipped_fraction"] == 1).all()
    assert (metrics["cohort_sentences"] == tiny.USERS * tiny.SENTENCES_EACH).all()


@pytest.mark.system
def test_the_cohorts_are_those_of_the_rates(corpus: Path, run: Run) -> None:
    rates = {"q_u": 0.6, "q_e": 0.7, "q_s": 0.8}
    folder = run("run", **{f"privacy.{key}": rate for key, rate in rates.items()}, rounds=12, seed=5)
    ownership = Corpus.open(corpus).ownership("train")
    owner = ownership.user_of_sentence
    for row in folder.metrics().iloc[1:].itertuples():
        number = int(row.round)
        users = sampling.sample_users(5, number, tiny.USERS, rates["q_u"])
        seed = sampling.round_seed(5, number)
        sampled = sampling.sampled_sentences(seed, np.arange(ownership.num_sentences), rates["q_s"])
        active = sampling.sampled_entities(seed, np.arange(ownership.num_entities), rates["q_e"])
        offsets = ownership.entity_offsets
        eligible = [
            s for s in range(ownership.num_sentences)
            if owner[s] in users and sampled[s] and active[ownership.entity_ids[offsets[s] : offsets[s + 1]]].all()
        ]  # fmt: skip
        assert (row.cohort_users, row.cohort_sentences) == (len(users), len(eligible))
    assert (folder.result or {})["plan"].items() >= rates.items()


@pytest.mark.sample(1)
@pytest.mark.parametrize("known", ["counts", "graph"])
def test_epsilon_columns_are_the_accountants(corpus: Path, run: Run, known: str) -> None:
    rates = {"q_u": 0.9, "q_e": 0.5, "q_s": 0.3}
    mechanism = rates | {"noise_multiplier": 1.5, "user_cap": 2.0}
    mechanism |= {"user_sentences": tiny.SENTENCES_EACH, "entity_bound": 3}  # which every user and entity just meets
    mechanism |= {"known": known}
    folder = run("run", **{f"privacy.{key}": value for key, value in mechanism.items()}, rounds=4)
    event = RoundEvent("uedp", noise_multiplier=1.5, user_cap=2.0, **rates)
    n = tiny.SENTENCES_EACH  # every user's
    weighted = known == "counts"  # then n and 3 bound sums of weights
    most = ContributionBound(3, 1, 3, weighted=weighted)  # six users share four names in turn
    of_any = ContributionBound(tiny.USERS, ANY_NUMBER, 3, weighted=True) if weighted else ContributionBound(3, 3, 3)
    expected = {
        "epsilon_any": (event, Adjacency(n, of_any, weighted)),
        "epsilon_user": (event, Adjacency(n, weighted=weighted)),
        "epsilon_user_unbounded": (event, Adjacency()),
        "epsilon_user_entity_max": (event, Adjacency(n, most, weighted)),
        "epsilon_user_entity_robust_max": (event.robust(), Adjacency(n, most, weighted)),
    }
    metrics = folder.metrics()
    for name, (round_event, adjacency) in expected.items():
        curve = accountant.epsilon_curve(round_event, adjacency, [1, 2, 3, 4], 1e-5)
        np.testing.assert_allclose(metrics[name].to_numpy(), [0.0, *curve], rtol=2e-3)
        assert (folder.result or {})[name] == metrics[name].iloc[-1]
    for name in metrics.filter(like="epsilon_"):
        assert (np.diff(metrics[name]) >= 0).all()


def test_declared_counts_may_be_larger_than_those_of_the_corpus(corpus: Path, run: Run, tmp_path: Path) -> None:
    """Absent users are enrolled, and larger counts lower weights; the ledger says of which counts its ε is."""
    file = tmp_path / "counts.json"
    assert main(["corpus", "counts", str(corpus), "--out", str(file)]) == 0
    counts = json.loads(file.read_text())
    users = {user: 2 * count for user, count in counts["users"].items()} | {"absent": 1}
    file.write_text(json.dumps(counts | {"users": users}))
    bounds = {"privacy.user_sentences": tiny.SENTENCES_EACH, "privacy.entity_bound": "unbounded", "rounds": 1}
    own, larger = run("own", **bounds), run("larger", **bounds, **{"privacy.counts": str(file)})
    assert [folder.config["plan"]["population"] for folder in (own, larger)] == [tiny.USERS, tiny.USERS + 1]
    assert [(folder.result or {})["kept"]["sentences"] for folder in (own, larger)] == pytest.approx([1.0, 0.5])
    said = {entry.terms.guarantee.counts for folder in (own, larger) for entry in Ledger.read(folder.path).entries}
    assert len(said) == 2


def test_noiseless_has_no_guarantee() -> None:
    folder = finished_run("noiseless")
    metrics = folder.metrics().filter(like="epsilon_")
    assert len(metrics.columns) == 9
    assert (metrics.iloc[0] == 0).all()  # the initial model is independent of the corpus
    assert np.isinf(metrics.iloc[1:]).all(axis=None)
    assert math.isinf((folder.result or {})["epsilon_user"])
    assert (folder.metrics()["noise_norm"].iloc[1:] == 0).all()


@pytest.mark.system
def test_a_budget_ends_the_run_before_it_is_exceeded(run: Run) -> None:
    settings = {"privacy.q_s": 0.5, "privacy.noise_multiplier": 2.0, "rounds": 6}
    curve = run("whole", **settings).metrics()["epsilon_any"]
    budget = float(curve.iloc[4] + curve.iloc[5]) / 2
    folder = run("run", **settings, **{"privacy.epsilon_budget": budget})
    result = folder.result or {}
    assert (result["stopped"], result["rounds"]) == ("epsilon_budget", 4)
    assert list(folder.metrics()["round"]) == [0, 1, 2, 3, 4]
    assert result["epsilon_any"] <= budget < curve.iloc[5]


@pytest.mark.system
def test_evaluations_between_rounds(run: Run) -> None:
    folder = run("run", **{"evaluation.every": 2, "rounds": 5})
    measured = folder.metrics()["perplexity"].notna()
    assert list(measured) == [True, False, True, False, True, True]
    assert (folder.result or {})["perplexity"] == folder.metrics()["perplexity"].iloc[-1]


@pytest.mark.system
def test_the_summary_and_where_the_results_are(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "--corpus", str(corpus), "--engine", "inline", "--rounds", "1", "--quiet", "--delta", "0.2"]
    assert main([*arguments, "--out", str(tmp_path / "[out]"), *tiny.command_line(tiny.MODEL)]) == 0
    output = capsys.readouterr()
    assert f"Results are in {tmp_path / '[out]'}" in output.out
    assert "not below 1/N" in " ".join(output.out.split())
    assert "round" not in output.err
