"""``fl-sim entities``: every entity's ε against computing it alone, and names only when asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_sim.cli.main import main
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.entity_report import (
    EntityEpsilons,
    Training,
    bounded_entity_epsilons,
    entity_epsilons,
    epsilon_of_any,
    pair_epsilons,
    summarise,
)
from fl_sim.experiments.plan.guarantees import Declared, EnforcedBounds
from fl_sim.experiments.plan.run_plan import plan_run
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.accounting.accountant import RoundEvent, epsilon
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.entity_profiles import ProfileAccountant
from tests.fl_sim.conftest import Capture, Printed, Refusal
from tests.fl_sim.released_runs import released_run
from tests.strategies.accounting.oracles import weighted_epsilon
from tests.tiny import NAMES

SENTENCE_SAMPLING = Training(RoundEvent("uedp", 3.0, q_e=0.5, q_s=0.1, user_cap=2), 10, 1e-5, Adjacency(20))
USER_SAMPLING = Training(RoundEvent("uedp", 1.0, q_u=0.1, q_e=0.5, user_cap=5), 10, 1e-5, Adjacency(20))
BOTH = Training(RoundEvent("uedp", 1.0, q_u=0.2, q_e=0.5, q_s=0.3, user_cap=3), 10, 1e-5, Adjacency(20))
both_samplings = pytest.mark.parametrize("training", [SENTENCE_SAMPLING, USER_SAMPLING], ids=["sentences", "users"])
FLAGS = ["--z", "3", "--rounds", "10", "--q-e", "0.5", "--q-s", "0.1", "--user-cap", "2"]


def long_tailed(entities: int = 150, users: int = 40, sentences: int = 600) -> Ownership:
    draw = np.random.default_rng(0)
    owners = np.sort(draw.integers(0, users, sentences))
    mentioned = draw.zipf(1.5, sentences).clip(max=entities) - 1
    return Ownership(
        user_offsets=np.searchsorted(owners, np.arange(users + 1)).astype(np.int64),
        entity_offsets=np.arange(sentences + 1, dtype=np.int64),
        entity_ids=mentioned.astype(np.int32),
        num_entities=entities,
    )


def enforced(incidence: Ownership, **privacy: Any) -> EnforcedBounds:
    """What a run with these settings enforces."""
    return EnforcedBounds.of(RunConfig.from_mapping({"privacy": privacy}).privacy, incidence)


def one_by_one(ownership: Ownership, training: Training, event: RoundEvent) -> list[float]:
    """ε of every entity, each from scratch."""
    owners = ownership.user_of_sentence
    result = []
    for entity in range(ownership.num_entities):
        counts = np.bincount(owners[ownership.entity_ids == entity])
        profile = np.sort(counts[counts > 0])[::-1].astype(np.int64)
        accountant = ProfileAccountant(event, training.user.user_sentences, training.rounds, training.delta)
        result.append(accountant.epsilon(profile))
    return result


@pytest.mark.system
@both_samplings
def test_every_entity_has_the_epsilon_of_its_own_profile(training: Training) -> None:
    ownership = long_tailed(entities=12, sentences=60)
    found = entity_epsilons(ownership, training)
    of_entities = found.detected[found.profile_of]
    assert of_entities == pytest.approx(one_by_one(ownership, training, training.event), rel=1e-9)
    robust = found.robust[found.profile_of]
    assert robust == pytest.approx(one_by_one(ownership, training, training.event.robust()), rel=1e-9)
    assert found.user == epsilon(training.event, Adjacency(20), 10, 1e-5)


def made_up() -> EntityEpsilons:
    """Eight entities of three profiles with ε 1, 2 and 9."""
    profiles = [np.array(counts, dtype=np.int64) for counts in ([1], [2, 1], [5, 5, 1])]
    epsilons = np.array([1.0, 2.0, 9.0])
    return EntityEpsilons(profiles, np.array([0, 0, 0, 0, 0, 1, 1, 2]), epsilons, epsilons, 0.5)


def test_the_spread_counts_entities_and_not_profiles() -> None:
    spread = summarise(made_up(), thresholds=(1.5, 2))["epsilon_user_entity"]
    assert [spread[name] for name in ("median", "p75", "p90", "max")] == [1, 2, 9, 9]
    assert spread["share_within"] == {"1.5": 5 / 8, "2": 7 / 8}


def test_the_worst_come_first_with_their_profile() -> None:
    worst = summarise(made_up())["worst"]
    assert [row["epsilon_user_entity"] for row in worst] == [9, 2, 1]
    assert [row["entities"] for row in worst] == [1, 2, 5]
    assert worst[0]["users_by_sentences"] == {"1": 1, "5": 2}
    assert (worst[0]["users"], worst[0]["sentences"], worst[0]["max_per_user"]) == (3, 11, 5)


def test_a_corpus_without_entities_is_refused() -> None:
    bare = Ownership(
        np.array([0, 1], dtype=np.int64), np.array([0, 0], dtype=np.int64), np.array([], dtype=np.int32), 0
    )
    for known in ("counts", "graph"):
        bounds = enforced(bare, known=known)
        with pytest.raises(ConfigError, match="no entity that is not public"):
            bounded_entity_epsilons(bounds, SENTENCE_SAMPLING, 1)


def test_the_command_line_prints_one_object_without_names(corpus: Path, printed: Printed) -> None:
    report = printed("entities", "corpus", corpus, *FLAGS)
    assert report["user_sentences"] == 4
    assert report["entities"] == len(NAMES)
    assert report["epsilon_user"] < report["epsilon_user_entity"]["max"] < report["epsilon_user_entity_robust"]["max"]
    assert not any(name.lower() in json.dumps(report).lower() for name in NAMES)


@pytest.mark.parametrize("flags", [[], ["--show-names"]])
def test_names_need_their_flag(corpus: Path, capsys: Capture, flags: list[str]) -> None:
    assert main(["entities", "corpus", str(corpus), *FLAGS, *flags]) == 0
    printed = capsys.readouterr().out.lower()
    assert {name.lower() in printed for name in NAMES} == {bool(flags)}


def test_a_run_is_accounted_for_the_rounds_it_released(corpus: Path, tmp_path: Path, printed: Printed) -> None:
    folder = released_run(tmp_path / "run", corpus, rounds_done=6)
    of_run = printed("entities", "run", folder.path)
    flags = [*FLAGS, "--rounds", 6, "--user-sentences", 20, "--entity-bound", 10]
    assert of_run == printed("entities", "corpus", corpus, *flags)
    assert of_run["rounds"] == 6


def edited(folder: RunFolder, section: str, **changes: Any) -> None:
    """Change what config.json says, as a careless owner may."""
    config = json.loads(folder.config_file.read_text())
    part = config["run"]["privacy"] if section == "privacy" else config[section]
    part.update(changes)
    folder.config_file.write_text(json.dumps(config))


def test_the_noise_of_a_run_is_that_of_its_ledger(corpus: Path, tmp_path: Path, printed: Printed) -> None:
    folder = released_run(tmp_path / "run", corpus, rounds_done=6)
    before = printed("entities", "run", folder.path)
    edited(folder, "plan", noise_multiplier=30.0, q_s=0.01, q_e=0.1, user_cap=9.0, population=10_000, adaptive=3)
    edited(folder, "privacy", noise_multiplier=30.0)
    assert printed("entities", "run", folder.path) == before


@pytest.mark.parametrize(
    ("known", "changes"),
    [
        ("counts", {"entity_bound": 3}),
        ("counts", {"user_sentences": 5}),
        ("counts", {"known": "graph"}),
        ("counts", {"round_counts": True}),
        ("graph", {"public_names": "names.txt"}),
    ],
)
def test_bounds_that_the_ledger_does_not_state_are_refused(
    corpus: Path, tmp_path: Path, refusal: Refusal, known: str, changes: dict[str, Any]
) -> None:
    folder = released_run(tmp_path / "run", corpus, rounds_done=2, known=known)
    if "public_names" in changes:
        changes["public_names"] = str(tmp_path / "names.txt")
        (tmp_path / "names.txt").write_text("\n".join(NAMES))
    edited(folder, "privacy", **changes)
    assert "config.json: states other bounds than the ledger" in refusal("entities", "run", folder.path, "--json")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "bounds",
    [
        {"entity_bound": 2},
        {"entity_bound": 2, "known": "graph"},
        {"entity_bound": 2, "known": "graph", "population": 1000, "user_sentences": 2},
    ],
    ids=["counts", "graph", "population"],
)
def test_under_a_bound_every_entity_is_at_or_below_the_headline(
    corpus: Path, tmp_path: Path, printed: Printed, bounds: dict[str, Any]
) -> None:
    folder = released_run(tmp_path / "run", corpus, rounds_done=10, **bounds)
    of_run = printed("entities", "run", folder.path)
    config = RunConfig.from_mapping(folder.config["run"])
    headline = plan_run(config, Corpus.open(corpus).ownership("train")).guarantees.after(10)["epsilon_any"]
    assert of_run["epsilon_any"] == pytest.approx(headline, rel=1e-3)
    assert 0 < of_run["epsilon_user_entity"]["max"] <= of_run["epsilon_any"]
    # Without the bound some entity is above what all of them are below now.
    flags = [*FLAGS, "--user-sentences", int(of_run["user_sentences"]), "--known", config.privacy.known]
    free = printed("entities", "corpus", corpus, *flags)
    assert free["epsilon_user_entity"]["max"] > of_run["epsilon_user_entity"]["max"]


def test_an_entity_that_the_tagger_misses_may_exceed_the_headline() -> None:
    """The headline covers detected entities and sentences without any; robust figures are not cut at it."""
    bounds = enforced(long_tailed(4, sentences=100), known="graph", entity_bound=5, user_sentences=12)
    training = replace(SENTENCE_SAMPLING, user=Adjacency(12))
    found, free = bounded_entity_epsilons(bounds, training, 40), entity_epsilons(bounds.kept, training)
    np.testing.assert_array_equal(found.robust, free.robust)
    assert found.robust.max() > epsilon_of_any(bounds.guarantee, training, 40)


def test_the_headline_is_that_of_a_sentence_without_an_entity_if_it_is_larger() -> None:
    bounds = enforced(long_tailed(4, sentences=100), known="graph", entity_bound=1, user_sentences=12)
    training = replace(SENTENCE_SAMPLING, user=Adjacency(12))
    one, figures = Adjacency(12, ContributionBound(1, 1)), (training.rounds, training.delta)
    headline = epsilon_of_any(bounds.guarantee, training, 40)
    assert headline == epsilon(training.event.robust(), one, *figures) > epsilon(training.event, one, *figures)


@pytest.mark.parametrize("z", [1.0, 2.0])
def test_weights_that_add_up_to_one_are_not_those_of_one_sentence(z: float) -> None:
    """One user has 32 sentences of weight 1/32 with the entity, beside a user who is protected."""
    one_user = Ownership(
        user_offsets=np.array([0, 32, 64]),
        entity_offsets=np.concatenate([np.arange(33), np.full(32, 32)]),
        entity_ids=np.zeros(32, dtype=np.int32),
        num_entities=1,
    )
    bounds = enforced(one_user, entity_bound=1, user_sentences=32)
    training = Training(RoundEvent("uedp", z, user_cap=2), 1, 1e-5, bounds.guarantee.user)
    attained = weighted_epsilon(32, 1, 2, z)
    everyone = bounded_entity_epsilons(bounds, training, population=2)
    pair = pair_epsilons(bounds, training, user=None, entity=0)
    for figure in (everyone.detected[0], everyone.robust[0], pair.detected, pair.robust):
        assert attained <= figure <= 1.05 * attained
    assert attained <= epsilon_of_any(bounds.guarantee, training, population=2)


def test_a_round_that_was_released_again_is_paid_for_again(corpus: Path, tmp_path: Path, printed: Printed) -> None:
    once = released_run(tmp_path / "once", corpus, rounds_done=8)
    again = released_run(tmp_path / "again", corpus, rounds_done=6, done_again=2)
    assert printed("entities", "run", once.path) == printed("entities", "run", again.path)


PAIR_BOUNDS = {
    "counts": {"entity_bound": 6, "user_sentences": 12},
    "graph": {"known": "graph", "entity_bound": 6, "user_sentences": 12},
    "nothing": {"known": "nothing", "population": 40, "entity_bound": 400},
}


@pytest.mark.system
@pytest.mark.parametrize("settings", PAIR_BOUNDS.values(), ids=PAIR_BOUNDS)
def test_any_user_with_an_entity_has_the_entitys_figure(settings: dict[str, Any]) -> None:
    incidence = long_tailed(entities=6, sentences=300)
    bounds = enforced(incidence, **settings)
    training = replace(SENTENCE_SAMPLING, user=bounds.guarantee.user)
    all_of_them = bounded_entity_epsilons(bounds, training, 40)
    for entity in range(6):
        pair = pair_epsilons(bounds, training, None, entity)
        of_profile = all_of_them.profile_of[entity]
        assert pair.detected == pytest.approx(all_of_them.detected[of_profile], rel=1e-3)
        assert pair.robust == pytest.approx(all_of_them.robust[of_profile], rel=1e-9)
        assert pair.user == all_of_them.user


@pytest.mark.parametrize("settings", PAIR_BOUNDS.values(), ids=PAIR_BOUNDS)
def test_no_epsilon_covers_an_entity_that_is_declared_public(settings: dict[str, Any]) -> None:
    """All of its sentences train, whatever the bounds are."""
    privacy = RunConfig.from_mapping({"privacy": settings}).privacy
    bounds = EnforcedBounds.of(privacy, long_tailed(entities=6, sentences=300), Declared(public=(0, 4)))
    training = replace(SENTENCE_SAMPLING, user=bounds.guarantee.user)
    for entity in (0, 4):
        pair = pair_epsilons(bounds, training, None, entity)
        assert pair.user < pair.detected == pair.robust == np.inf
    found = bounded_entity_epsilons(bounds, training, 40)
    assert np.flatnonzero(found.profile_of < 0).tolist() == [0, 4]
    assert summarise(found)["entities"] == 4
    assert all(profile.sum() > 0 for profile in found.profiles)


@pytest.mark.system
def test_a_user_with_an_entity_counts_what_takes_part_and_stays_below_any() -> None:
    incidence, training = long_tailed(entities=6, sentences=300), replace(SENTENCE_SAMPLING, user=Adjacency(6))
    bounds = enforced(incidence, known="graph", entity_bound=5, user_sentences=6)
    most = epsilon_of_any(bounds.guarantee, training, 40)
    kept = np.bincount(incidence.user_of_sentence, bounds.weights, minlength=40)
    assert len(set(kept)) > 2
    for user in range(12):
        pair = pair_epsilons(bounds, training, user, 0)
        assert (pair.user_sentences, pair.profile.sum()) == (kept[user], 5)
        assert pair.user <= pair.detected <= most * (1 + 1e-3)
        alone = ProfileAccountant(training.event, kept[user], training.rounds, training.delta)
        assert pair.detected == pytest.approx(alone.epsilon(pair.profile), rel=1e-9)
        nobody = pair_epsilons(bounds, training, user, None)
        assert nobody.user == nobody.detected == pair.user


def test_by_counts_a_user_takes_part_with_the_sum_of_its_weights() -> None:
    incidence = long_tailed(entities=6, sentences=300)
    bounds = enforced(incidence, entity_bound=5, user_sentences=6)
    training = replace(SENTENCE_SAMPLING, user=bounds.guarantee.user)
    most = epsilon_of_any(bounds.guarantee, training, 40)
    weight = np.bincount(incidence.user_of_sentence, bounds.weights, minlength=40)
    user = int(weight.argmax())
    pair = pair_epsilons(bounds, training, user, 0)
    assert 1 < pair.user_sentences == np.ceil(weight[user]) < incidence.sentences_per_user[user]
    assert pair.user < pair.detected <= most * (1 + 1e-3)


@pytest.mark.system
def test_a_name_is_a_user_and_an_entity(printed: Printed) -> None:
    flags = ["corpus", "irc", *FLAGS, "--entity-bound", "10", "--user-sentences", "32"]
    named = (["--user", "bathjith"], ["--entity", "Bathjith,"], ["--user", "bathjith", "--entity", "bathjith"])
    reports = [printed("entities", *flags, *asked) for asked in named]
    assert reports[0] == reports[1] == reports[2]
    assert (reports[0]["user"], reports[0]["entity"], reports[0]["entity_is_user"]) == ("bathjith", "bathjith", True)
    assert reports[0]["epsilon_user"] < reports[0]["epsilon_user_entity"] < reports[0]["epsilon_user_entity_robust"]


def test_a_user_whom_nobody_mentions_has_an_epsilon_alone(corpus: Path, capsys: Capture) -> None:
    assert main(["entities", "corpus", str(corpus), *FLAGS, "--user", "user 0"]) == 0
    assert "No sentence mentions an entity of that name." in capsys.readouterr().out
    assert main(["entities", "corpus", str(corpus), *FLAGS, "--user", "user 0", "--entity", "ADA"]) == 0
    assert "user user 0, 4 sentences by weight that take part: " in (printed := capsys.readouterr().out)
    assert "together with entity ada, in " in printed
    assert main(["entities", "corpus", str(corpus), *FLAGS, "--known", "graph", "--user", "user 0"]) == 0
    assert "user user 0, 4 sentences that take part: " in capsys.readouterr().out


def test_a_run_without_a_round_has_no_figures(corpus: Path, tmp_path: Path, refusal: Refusal) -> None:
    folder = released_run(tmp_path / "run", corpus, rounds_done=0)
    assert "no round has been released" in refusal("entities", "run", folder.path)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["corpus", "bundled", *FLAGS, "--user-sentences", "1.5"], "user_sentences is 1.5"),
        (["corpus", "bundled", *FLAGS, "--entity-bound", "0"], "privacy.entity_bound is 0; allowed: an integer in [1"),
        (["corpus", "bundled", *FLAGS, "--known", "all"], "known is 'all'; allowed: counts, graph, nothing"),
        (["corpus", "bundled", *FLAGS, "--user", "Ada"], "--user is 'Ada'; allowed: the name of a user of split"),
        (["corpus", "bundled", *FLAGS, "--entity", "-"], "--entity is '-'; allowed: the name of an entity of split"),
    ],
)
def test_a_mistake_is_one_line(refusal: Refusal, asked: list[str], words: str) -> None:
    assert words in refusal("entities", *asked)
