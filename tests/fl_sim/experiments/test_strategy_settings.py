"""The settings of strategies: what belongs to which, what is refused with both keys named, what becomes of them."""

from __future__ import annotations

import pytest

from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.run_plan import Planned, plan_run
from fl_sim.strategies.client_rules import WeightedGradients
from fl_sim.strategies.ledger import ReleaseRecord
from fl_sim.strategies.primitives.adaptive_clip import AdaptiveClip
from fl_sim.strategies.published import Published
from fl_sim.strategies.registry import mechanism_from_record
from tests import tiny


@pytest.fixture(scope="module")
def ownership(tmp_path_factory: pytest.TempPathFactory) -> Ownership:
    corpus = Corpus.open(tiny.tiny_corpus(tmp_path_factory.mktemp("data") / "tiny"))
    return corpus.ownership("train")


ALLOCATED = {"strategy": "user_level", "sampling": "random_allocation"}


def planned(ownership: Ownership, **privacy: object) -> Planned:
    return plan_run(RunConfig.from_mapping({"rounds": 3, "privacy": privacy}), ownership)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clipping": "user", "strategy": "user_level"}, "clipping is user and privacy.strategy is user_level; "),
        ({"clip_quantile": 0.5, "strategy": "noiseless"}, "clip_quantile is 0.5 and privacy.strategy is noiseless; "),
        ({"clip_quantile": 0.5, "strategy": "published"}, "clip_quantile is 0.5 and privacy.strategy is published; "),
        ({"clip_count_noise": 3.0, "strategy": "noiseless"}, "clip_count_noise is 3.0 and privacy.strategy is "),
        ({"estimator": "f_e"}, "estimator is f_e and privacy.strategy is uedp; allowed: with published only"),
        ({"noise": "as-coded"}, "noise is as-coded and privacy.strategy is uedp; allowed: with published only"),
        ({"user_weight_cap": 3.0, "strategy": "user_level"}, "user_weight_cap is 3.0 and privacy.strategy is "),
        ({"extended_weights": 3.0}, "extended_weights is 3.0 and privacy.strategy is uedp"),
        ({"clip_stability": 0.1}, "clip_stability is 0.1; allowed: with privacy.clipping = automatic only"),
        ({"clipping": "automatic", "clip_stability": -0.01}, "clip_stability is -0.01; allowed: "),
        ({"clipping": "automatic", "clip_quantile": 0.5}, "clip_quantile is 0.5 and privacy.clipping is automatic; "),
        ({"clipping": "automatic", "strategy": "user_level"}, "clipping is automatic and privacy.strategy is user_"),
        ({"epoch_rounds": 5}, "epoch_rounds is 5 and privacy.strategy is uedp; allowed: with user_level only"),
        ({"sampling": "random_allocation"}, "sampling is random_allocation and privacy.strategy is uedp; allowed: "),
        ({"strategy": "user_level", "epoch_rounds": 5}, "epoch_rounds is 5; allowed: with sampling = random_alloc"),
        (ALLOCATED, "epoch_rounds is missing; allowed: a number"),
        (ALLOCATED | {"epoch_rounds": 5, "q_u": 0.1}, "q_u is 0.1 and epoch_rounds is 5; allowed: q_u 0.2, or none"),
        (
            ALLOCATED | {"epoch_rounds": 5, "secure_noise": True},
            "secure_noise is true and privacy.sampling is random_allocation; allowed: sampling = poisson",
        ),
        (
            {"strategy": "published", "noise": "as-coded", "target_epsilon": 2.0},
            "noise is as-coded and privacy.target_epsilon is 2; ",
        ),
    ],
)
def test_settings_of_another_strategy_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^privacy\.{message}"):
        RunConfig.from_mapping({"privacy": settings})


def test_the_published_plan_has_the_papers_settings_and_the_corpus_weights(ownership: Ownership) -> None:
    plan = planned(ownership, strategy="published", settings_from_corpus=True).plan.mechanism
    assert (plan.q_u, plan.q_e, plan.q_s, plan.clip_norm, plan.noise_multiplier) == (0.05, 0.5, 1.0, 0.1, 2.0)
    assert isinstance(plan, Published)
    terms = plan.terms
    plain = tiny.USERS * tiny.SENTENCES_EACH // 2
    assert (terms.estimator, terms.noise) == ("f_e_plus", "as-stated")
    assert (terms.user_weights, terms.entity_weights, terms.extended_weights) == (tiny.USERS, len(tiny.NAMES), plain)
    assert (terms.sentences, terms.sensitive_sentences) == (2 * plain, plain)
    assert "epsilon_as_published is what the paper's accountant says" in plan.describe().warnings[0]
    rule = plan.client_rule(0.1)
    assert isinstance(rule, WeightedGradients)
    assert (rule.batch_size, rule.learning_rate) == (None, 1.0)  # all of a user's sentences in one step, η = 1


def test_the_published_local_batches_are_a_setting_that_moves_no_epsilon(ownership: Ownership) -> None:
    local = {"update": "steps", "batch_size": 4, "learning_rate": 0.01, "epochs": 2}
    privacy = {"strategy": "published", "settings_from_corpus": True}
    stepped = plan_run(RunConfig.from_mapping({"rounds": 3, "privacy": privacy, "local": local}), ownership)
    stated = RunConfig.from_mapping({"privacy": privacy, "server": {"optimizer": "sgd", "learning_rate": 1.0}})
    rule = stepped.plan.mechanism.client_rule(0.1)
    assert isinstance(rule, WeightedGradients)
    assert (rule.batch_size, rule.learning_rate, rule.user_clip) == (4, 0.01, 0.1)
    assert stepped.plan == planned(ownership, **privacy).plan
    assert any("the server's step is not the paper's" in words for words in stepped.warnings)  # Adam
    assert not any("server's step" in words for words in plan_run(stated, ownership).warnings)
    assert "local.epochs has no effect: published takes one pass of SGD." in stepped.warnings


@pytest.mark.system
def test_weights_and_their_public_sums(ownership: Ownership) -> None:
    plan = planned(
        ownership, strategy="published", settings_from_corpus=True, population=100, user_weight_cap=4.0,
        entity_weight_cap=24.0, extended_weight_cap=24.0, entity_weights=50.0,
    ).plan.mechanism  # fmt: skip
    assert isinstance(plan, Published)
    terms = plan.terms
    assert terms.user_weights == tiny.USERS  # every user reaches the cap
    assert terms.entity_weights == 50.0
    assert terms.extended_weights == pytest.approx(12 * 12 / 24)
    assert planned(
        ownership, strategy="published", settings_from_corpus=True, population=100
    ).plan.mechanism.denominator == pytest.approx(0.05 * 100 * (0.5 * len(tiny.NAMES) + 12))
    with pytest.raises(ConfigError, match=r"privacy\.user_weight_cap is 5; allowed: at most 4"):
        planned(ownership, strategy="published", settings_from_corpus=True, user_weight_cap=5.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r"entity_weights is not given; allowed: a public constant, or settings_from_corpus = true"),
        ({"entity_weights": 4.0}, r"extended_weights is not given; allowed: a public constant, or settings_from_"),
        ({"extended_weights": 4.0, "estimator": "f_e"}, r"entity_weights is not given; "),
        (
            {"entity_weights": 4.0, "extended_weights": 12.0, "user_weight_cap": 3.0},
            r"user_weight_cap is 3; allowed: nothing, or settings_from_corpus = true",
        ),
    ],
)
def test_sums_of_weights_are_never_read_off_the_corpus_unasked(
    ownership: Ownership, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^privacy\.{message}"):
        planned(ownership, strategy="published", **settings)
    planned(ownership, strategy="published", settings_from_corpus=True, **settings)


def test_public_sums_leave_the_corpus_out_of_every_term(ownership: Ownership) -> None:
    plan = planned(ownership, strategy="published", estimator="f_e", entity_weights=4.0).plan.mechanism
    assert isinstance(plan, Published)
    terms = plan.terms
    assert (terms.user_weights, terms.entity_weights, terms.extended_weights) == (tiny.USERS, 4.0, 0.0)
    assert (terms.sentences, terms.sensitive_sentences) == (1, 1)  # the largest claim, and no count


@pytest.mark.system
def test_an_adaptive_clip_is_planned(ownership: Ownership) -> None:
    plan = planned(ownership, clip_quantile=0.4, target_epsilon=2.0).plan.mechanism
    assert plan.adaptive == AdaptiveClip(quantile=0.4, learning_rate=0.2, count_noise=5.0)
    fixed = planned(ownership, target_epsilon=2.0).plan.mechanism
    assert plan.noise_multiplier == fixed.noise_multiplier  # the same ε, and 2 % more noise on the sum
    assert plan.noise_std(1.0) == pytest.approx(fixed.noise_std(1.0) / (1 - 1 / 25) ** 0.5)


@pytest.mark.system
def test_random_allocation_is_planned(ownership: Ownership) -> None:
    keys = ALLOCATED | {"epoch_rounds": 4}
    for given in ({}, {"q_u": 0.25}):
        plan = planned(ownership, population=100, **keys, **given).plan.mechanism
        assert (plan.q_u, plan.epoch_rounds, plan.denominator) == (0.25, 4, 25.0)
        assert plan.event().epoch_rounds == 4
        assert mechanism_from_record(plan.record()) == plan
        assert plan.describe().settings[0] == "each user in one of every 4 rounds (random allocation)"
    assert "epoch_rounds" not in planned(ownership, strategy="user_level").plan.record()


def test_a_user_clip_alone_is_planned(ownership: Ownership) -> None:
    plan = planned(ownership, clipping="user", known="graph").plan.mechanism
    assert plan.event().clipping == "user"
    assert plan.client_rule(1.0).sentence_clip == float("inf")


def test_automatic_clipping_is_planned_at_the_same_epsilon(ownership: Ownership) -> None:
    plain, automatic = (planned(ownership, clipping=kind) for kind in ("sentence", "automatic"))
    mechanism = automatic.plan.mechanism
    rule = mechanism.client_rule(0.5)
    assert (rule.sentence_clip, rule.user_clip, rule.stability) == (0.5, 1.0, 0.01)
    assert mechanism.event() == plain.plan.mechanism.event()
    record = mechanism.record()
    assert record["options"] == {"clipping": "automatic", "clip_stability": 0.01}
    assert mechanism_from_record(record) == mechanism
    assert ReleaseRecord.from_record(ReleaseRecord.of(mechanism, 0).record()).mechanism == mechanism
    assert plain.plan.mechanism.record()["options"] == {"clipping": "sentence"}
    assert mechanism.describe().settings[3].startswith("automatic clipping to c 1 (γ 0.01), user cap ŵ 2")
