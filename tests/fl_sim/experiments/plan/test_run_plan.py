"""From a configuration to a plan: defaults, targets, budgets, what is refused and what is warned of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.store.contribution_limits import DeclaredCounts
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import Declared
from fl_sim.experiments.plan.run_plan import Planned, idle_settings, plan_run
from fl_sim.strategies.accounting import accountant
from fl_sim.strategies.accounting.losses import composition
from fl_sim.strategies.registry import STRATEGIES, load_strategy
from tests.conftest import REPOSITORY
from tests.fl_sim.ownerships import ownership, village

PUBLIC_SUMS = {"strategy": "published", "entity_weights": 21.0, "extended_weights": 44.0}
FLAG = {"settings_from_corpus": True}
OLD = FLAG | {"entity_bound": "unbounded", "user_sentences": "corpus"}
"""No bounds; targets rest on the corpus's 95th percentile."""


def planned(incidence: Ownership | None = None, **settings: Any) -> Planned:
    keys = {key if "." in key or key == "rounds" else f"privacy.{key}": value for key, value in settings.items()}
    return plan_run(RunConfig.from_mapping({"rounds": 10, **keys}), incidence or village())


# Defaults


@pytest.mark.system
def test_the_job_on_real_messages_is_within_eight_for_any_user_with_any_entity() -> None:
    config = RunConfig.load(REPOSITORY / "conf" / "irc.toml")
    job = plan_run(config, Corpus.open("irc").ownership("train"))
    assert (config.privacy.target_epsilon, config.privacy.settings_from_corpus) == (None, False)
    assert 7.9 < job.guarantees.after(config.rounds)["epsilon_any"] <= 8
    assert job.plan.delta == 1e-5 < 1 / job.plan.mechanism.population
    assert job.bounds.contributions().sentences.max() == job.bounds.guarantee.entity_bound


@pytest.mark.parametrize("strategy", list(STRATEGIES.built_in))
def test_what_is_left_out_takes_the_strategys_default(strategy: str) -> None:
    plan = planned(**(PUBLIC_SUMS if strategy == "published" else {"strategy": strategy})).plan
    for name, value in load_strategy(strategy).defaults.items():
        assert getattr(plan.mechanism, name) == value
    assert (plan.mechanism.strategy, plan.mechanism.population, plan.rounds, plan.delta) == (strategy, 20, 10, 1e-5)


@pytest.mark.system
def test_bounds_that_are_left_out_are_enforced_where_the_strategy_can_keep_them() -> None:
    for settings in ({}, {"strategy": "user_level"}, {"strategy": "noiseless"}, PUBLIC_SUMS):
        bounds = planned(**settings).bounds
        of_strategy = load_strategy(settings.get("strategy", "uedp")).Config.default_bounds
        assert (bounds.guarantee.entity_bound, bounds.guarantee.user_sentences) == (
            of_strategy.get("entity_bound"),
            of_strategy.get("user_sentences"),
        )
        assert bounds.guarantee.known == "counts"
        assert bounds.enforces == bool(of_strategy)
    assert planned().bounds.guarantee.entity_bound == 10
    assert planned().bounds.guarantee.user_sentences == 32
    private = planned(known="nothing", population=20).bounds
    assert (private.guarantee.entity_bound, private.guarantee.user_sentences, private.enforces) == (None, None, False)


def test_population_scales_the_denominator_and_not_epsilon() -> None:
    here, larger = planned(), planned(population=2000)
    assert larger.plan.mechanism.expected_cohort == 100 * here.plan.mechanism.expected_cohort
    assert larger.guarantees.after(10) == here.guarantees.after(10)


# Targets


BOUNDED = {"known": "graph", "entity_bound": 10, "entity_users": 5, "user_sentences": 12}
COUNTED = {"entity_bound": 10, "user_sentences": 12}
STATED = {"known": "nothing", "population": 20, "entity_bound": 10, "entity_users": 5}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("unit", "bounds", "name"),
    [
        ("user", BOUNDED, "epsilon_user"),
        ("user", OLD, "epsilon_user"),
        ("user_entity", BOUNDED, "epsilon_any"),
        ("user_entity", STATED, "epsilon_stated"),
        ("user_entity", OLD, "epsilon_user_entity_p95"),
    ],
    ids=["user", "user of the corpus", "any", "stated", "p95"],
)
@pytest.mark.parametrize(
    ("target", "strategy", "rates"),
    [(0.3, "uedp", {}), (4.0, "uedp", {}), (4.0, "uedp", {"q_u": 0.2, "q_s": 1.0}), (4.0, "user_level", {"q_u": 0.2})],
    ids=["small", "uedp", "uedp, sampled users", "user_level"],
)
def test_a_target_is_met_and_not_by_more_than_half_a_percent(
    target: float, strategy: str, rates: dict[str, float], unit: str, bounds: dict[str, Any], name: str
) -> None:
    result = planned(strategy=strategy, target_epsilon=target, target_unit=unit, **rates, **bounds)
    mechanism = result.plan.mechanism
    metric, units = result.bounds.target(
        unit, clips_sentences=mechanism.clips_sentences, population=mechanism.population
    )
    assert metric == name
    assert target * 0.995 <= result.guarantees.after(10)[name] <= target
    event = mechanism.event()
    for party in units.values():
        accounted = event.robust() if party.robust else event
        assert accountant.epsilon(accounted, party.adjacency, 10, 1e-5) <= target


NO_BOUND = r"but no bound on entities is set; allowed: privacy\.{}, privacy\.target_unit = user, or privacy\.settings_"


@pytest.mark.system
@pytest.mark.parametrize("key", ["target_epsilon", "epsilon_budget"])
@pytest.mark.parametrize(
    ("settings", "bound"),
    [
        ({"entity_bound": "unbounded"}, "entity_bound"),
        ({"known": "nothing", "population": 20}, "entity_bound"),
        ({"strategy": "user_level", "target_unit": "user_entity"}, "entity_users"),
        (PUBLIC_SUMS, "entity_users"),
    ],
    ids=["unbounded", "private", "user_level", "published"],
)
def test_a_target_without_bounds_is_refused(key: str, settings: dict[str, Any], bound: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"^privacy\.{key} is 2 for any user with any entity, {NO_BOUND.format(bound)}"
    ):
        planned(**{key: 2.0}, **settings)
    # A user needs no bound, and a bound may be stated.
    of_users = planned(**{key: 1e6}, **(settings | {"target_unit": "user"}))
    assert of_users.guarantees.after(10)["epsilon_user"] <= 1e6
    if settings is not PUBLIC_SUMS:
        stated = planned(**{key: 1e6}, **(settings | {"known": "nothing", "population": 20, "entity_bound": 3}))
        assert stated.guarantees.after(10)["epsilon_stated"] <= 1e6


@pytest.mark.parametrize(
    ("strategy", "unit", "other"), [("user_level", "user", "user_entity"), ("uedp", "user_entity", "user")]
)
def test_a_target_is_for_whom_the_strategy_protects_and_recorded(strategy: str, unit: str, other: str) -> None:
    settings = {"strategy": strategy, "q_u": 0.2, "known": "graph", "entity_users": 2, "entity_bound": 3}
    found, same, another = (
        planned(**settings, target_epsilon=3.0, **more) for more in ({}, {"target_unit": unit}, {"target_unit": other})
    )
    assert found.plan == same.plan != another.plan
    for key in ("target_epsilon", "epsilon_budget"):
        given = RunConfig.from_mapping({"privacy": {"strategy": strategy, key: 4.0}})
        record = given.model_dump(mode="json")
        assert record["privacy"]["target_unit"] == unit
        assert RunConfig.from_mapping(record) == given.changed({"privacy.target_unit": unit})
    without = RunConfig.from_mapping({"privacy.strategy": strategy}).model_dump(mode="json")
    assert without["privacy"]["target_unit"] is None
    assert idle_settings(RunConfig.from_mapping(without)) == []


def test_a_target_by_counts_is_met() -> None:
    result = planned(target_epsilon=4.0, **COUNTED)
    assert 4 * 0.995 <= result.guarantees.after(10)["epsilon_any"] <= 4


@pytest.mark.parametrize("settings", [{"clipping": "user"}, {"strategy": "user_level"}])
def test_by_counts_an_entity_is_bounded_only_where_sentences_are_clipped(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^privacy\.entity_bound is 10 under .* allowed: privacy\.known = graph"):
        planned(**settings, **COUNTED)


def test_users_with_declared_counts_are_enrolled() -> None:
    of_village = DeclaredCounts.of(village())
    counts = replace(of_village, declared=(np.ones(23, np.int64), of_village.entities))
    config = RunConfig.from_mapping({"rounds": 10})
    assert plan_run(config, village(), declared=Declared(counts=counts)).plan.mechanism.population == 23
    stated = RunConfig.from_mapping({"rounds": 10, "privacy.population": 40})
    assert plan_run(stated, village(), declared=Declared(counts=counts)).plan.mechanism.population == 40
    fewer = RunConfig.from_mapping({"rounds": 10, "privacy.population": 22, "privacy.counts": "file"})
    with pytest.raises(ConfigError, match=r"population is 22; allowed: at least 23, the users .* its declared counts$"):
        plan_run(fewer, village(), declared=Declared(counts=counts))


@pytest.mark.system
def test_the_noise_that_a_run_found_is_kept() -> None:
    config = RunConfig.from_mapping({"rounds": 10, "privacy.target_epsilon": 2.0})
    assert plan_run(config, village(), noise_multiplier=7.0).plan.mechanism.noise_multiplier == 7.0
    fixed = RunConfig.from_mapping({"rounds": 10, "privacy.noise_multiplier": 2.0})
    assert plan_run(fixed, village(), noise_multiplier=7.0).plan.mechanism.noise_multiplier == 2.0


# Budgets


@pytest.mark.parametrize(
    ("unit", "bounds", "name"),
    [
        ("user", {}, "epsilon_user"),
        ("user_entity", {}, "epsilon_any"),
        ("user_entity", {"known": "nothing", "population": 20, "entity_bound": 3}, "epsilon_stated"),
        ("user_entity", OLD, "epsilon_user_entity_p95"),
    ],
)
def test_the_last_round_within_a_budget(unit: str, bounds: dict[str, Any], name: str) -> None:
    curve = planned(**bounds).guarantees.curves[name]
    for budget, rounds in ((curve[4], 4), (curve[4] * 0.999, 3), (curve[10] * 10, 10)):
        result = planned(epsilon_budget=float(budget), target_unit=unit, **bounds)
        assert result.rounds == rounds
        assert result.plan.rounds == 10
        assert result.guarantees.after(result.rounds)[name] <= budget


def test_the_budget_that_a_refusal_names_is_enough() -> None:
    with pytest.raises(ConfigError, match="first round") as caught:
        planned(epsilon_budget=1e-4)
    enough = float(str(caught.value).split("at least ")[1].split(",")[0])
    assert planned(epsilon_budget=enough).rounds >= 1


# Refusals


USERS, COHORT = 20, 160
LARGER = {"noise_cohort": COHORT}
LONELY = ownership([[0], [1]])
PLAIN = ownership([[], []], [[]])


@pytest.mark.parametrize(
    ("incidence", "settings", "words"),
    [
        (LONELY, {}, r"corpus\.train_split is 'train'.*one user.*at least 2"),
        (LONELY, {"strategy": "noiseless"}, "one user"),
        (PLAIN, {}, r"privacy\.strategy is uedp.*no entity.*user_level"),
        (
            PLAIN,
            {"strategy": "user_level", "target_epsilon": 2.0, "target_unit": "user_entity"},
            r"privacy\.target_epsilon is 2 .* no entity that is not public; allowed: privacy\.target_unit = user",
        ),
        (village(), {"population": 19}, r"privacy\.population is 19; allowed: at least 20"),
        (village(), {"engine.nodes": 21}, r"engine\.nodes is 21; allowed: at most 20"),
        (village(), {"strategy": "user_level", "q_e": 0.5}, r"privacy\.q_e is 0\.5; allowed: 1 under user_level"),
        (village(), {"strategy": "noiseless", "clip_norm": 1.0}, r"privacy\.clip_norm is 1\.0; .* under noiseless"),
        (village(), {"strategy": "noiseless", "target_epsilon": 1.0}, r"privacy\.target_epsilon is 1\.0"),
        (village(), {"epsilon_budget": 1e-4}, r"privacy\.epsilon_budget is 0\.0001; allowed: at least"),
        (village(), {"target_epsilon": 1e-9, "delta": 1e-14, "q_s": 1.0}, "1e-09; allowed: what noise can reach"),
        (village(), {"noise_cohort": USERS - 1}, r"privacy\.noise_cohort is 19; allowed: at least 20"),
        (village(), {"noise_cohort": 10**9}, r"privacy\.noise_cohort is 1000000000; allowed: at most 80000 at z 4"),
        (village(), LARGER | {"secure_noise": True}, "secure_noise is true; allowed: one of them"),
        (village(), LARGER | {"epsilon_budget": 3.0}, "epsilon_budget is 3; allowed: one of them"),
        (village(), LARGER | {"target_epsilon": 4.0}, "target_epsilon is 4; allowed: one of them"),
        (village(), LARGER | {"strategy": "noiseless"}, "allowed: with uedp or user_level only"),
        (village(), {"noise_cohort": 0}, r"privacy\.noise_cohort is 0; allowed"),
    ],
)
def test_refusals(incidence: Ownership, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        planned(incidence, **settings)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("known", ["counts", "graph"])
def test_no_epsilon_of_an_entity_is_stated_where_the_tagger_found_none(known: str) -> None:
    """Names that it missed may be in any number of sentences: neither plan, nor ledger, nor lineage bounds them."""
    bounds = {"known": known, "user_sentences": 2} | ({"entity_users": 1} if known == "graph" else {})
    nobody, somebody = (planned(incidence, strategy="user_level", **bounds) for incidence in (PLAIN, village()))
    after = nobody.guarantees.after(10)
    assert {name for name, epsilon in after.items() if np.isfinite(epsilon)} == {
        "epsilon_user", "epsilon_user_unbounded"
    }  # fmt: skip
    assert not any("entity" in name or "any" in name for name in nobody.bounds.units(nobody.plan.mechanism))
    assert nobody.bounds.guarantee == replace(
        nobody.bounds.configured, entity_bound=None, entity_users=None
    )  # what the ledger keeps
    assert somebody.bounds.guarantee == somebody.bounds.configured
    assert nobody.bounds.record()["reach"]["max"]["users"] == 0


# Warnings


@pytest.mark.system
@pytest.mark.parametrize(
    ("settings", "words", "without"),
    [
        ({"delta": 0.05}, "δ = 0.05 is not below 1/N = 0.05", {"delta": 0.0499}),
        ({"delta": 0.01, "population": 100}, "is not below 1/N", {"delta": 0.01, "population": 99}),
        ({}, "N is the corpus's number of users", {"population": 20}),
        (OLD, "settings chosen on this corpus: not covered by ε", {}),
        ({"entity_bound": "unbounded"}, "no bound on entities is enforced, so ε of any user with any entity is", {}),
        ({"known": "nothing", "population": 20, "entity_bound": 3}, "no bound on entities is enforced, so ε of", {}),
        (
            {"strategy": "published", "settings_from_corpus": True},
            "W_e and W_s are the corpus's",
            PUBLIC_SUMS | {"population": 20},
        ),
        (
            {"server.momentum": 0.5},
            "server.momentum has no effect",
            {"server.optimizer": "sgd", "server.momentum": 0.5},
        ),
        ({"strategy": "noiseless"}, "gives no guarantee", {"strategy": "user_level"}),
    ],
)
def test_warnings(settings: dict[str, Any], words: str, without: dict[str, Any]) -> None:
    said = " ".join(planned(**settings).warnings)
    assert words in said
    assert words not in " ".join(planned(**without).warnings)


def test_an_epsilon_that_cannot_be_proven_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "_TAIL_SHARE", 1e8)  # truncations use up more than δ
    said = " ".join(planned(delta=1.25e-14).warnings)
    assert "no finite ε can be computed at δ = 1.25e-14" in said


# The noise of a larger population


@pytest.mark.system
@pytest.mark.parametrize("privacy", [{"q_u": 0.5}, {"strategy": "user_level", "q_u": 0.5}, {"clip_quantile": 0.5}])
def test_every_epsilon_is_that_of_the_noise_really_added(privacy: dict[str, Any]) -> None:
    share = privacy.get("q_u", 1.0) * USERS / COHORT
    rescaled, plain = planned(**privacy, **LARGER, noise_multiplier=4.0), planned(**privacy, noise_multiplier=4 * share)
    assert rescaled.plan == plain.plan
    assert rescaled.guarantees.after(10) == plain.guarantees.after(10)


def test_the_noise_per_user_is_that_of_the_larger_cohort() -> None:
    mechanism = planned(**LARGER, noise_multiplier=4.0).plan.mechanism
    assert mechanism.noise_std(1.0) / mechanism.denominator == pytest.approx(4.0 * mechanism.user_clip(1.0) / COHORT)
