"""Nothing that a run releases was set by looking: plans on a corpus and on its neighbours have the same public terms.

A neighbour lacks a user, or the sentences of an entity, or both. Where counts are known, all declare the same ones.
Whatever an adversary sees of a plan must be the same: the release records of the ledger, the noise, the denominator,
the number of rounds and the headline ε.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from fl_sim.config import RunConfig
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.declared_counts import write_counts
from fl_sim.data_prep.records import Sentence
from fl_sim.data_prep.store.contribution_limits import DeclaredCounts
from fl_sim.engines import simulation
from fl_sim.experiments.plan.guarantees import Declared
from fl_sim.experiments.plan.run_plan import Planned, plan_run
from fl_sim.experiments.run_record import computed_from
from fl_sim.storage.open_run import noise_key
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.ledger import LEDGER_FILE, ReleaseRecord
from tests import tiny
from tests.fl_sim.ownerships import ownership

Users = list[list[list[int]]]

POPULATION = 50
ROUNDS = 12


def uneven_users() -> Users:
    """12 users of 4 sentences but for one of 20, whose first 7 say entity 1; entity 0 in every user, others in one."""
    largest = [[1], [0, 1]] * 3 + [[1]] + [[0]] + [[]] * 12
    return [largest, *([[0], [2 + u], [0, 2 + u], []] for u in range(11))]


def without_user(users: Users, user: int) -> Users:
    return [sentences for number, sentences in enumerate(users) if number != user]


def without_entity(users: Users, entity: int) -> Users:
    return [[sentence for sentence in sentences if entity not in sentence] for sentences in users]


NEIGHBOURS = {
    "the largest user less": without_user(uneven_users(), 0),
    "another user less": without_user(uneven_users(), 5),
    "the most mentioned entity less": without_entity(uneven_users(), 0),
    "the entity of one user less": without_entity(uneven_users(), 1),
    "a user and an entity less": without_user(without_entity(uneven_users(), 0), 0),
}

ABSENT = {"the largest user less": 0, "another user less": 5, "a user and an entity less": 0}


def declared(neighbour: str = "") -> Declared:
    """Return the counts of the whole corpus, of those users who are present."""
    counts = DeclaredCounts.of(ownership(*uneven_users()))
    present = [user for user in range(counts.population) if user != ABSENT.get(neighbour)]
    return Declared(counts=replace(counts, users=counts.users[present]))


PUBLIC_SUMS = {"strategy": "published", "entity_weights": 14.0, "extended_weights": 20.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "uedp": {},
    "uedp, target": {"target_epsilon": 4.0},
    "uedp, target of a user": {"target_epsilon": 1.0, "target_unit": "user"},
    "uedp, target, no limit on users": {"target_epsilon": 4.0, "user_sentences": "unbounded"},
    "uedp, target, few users": {"target_epsilon": 4.0, "entity_bound": 4, "q_u": 0.5},
    "uedp, target, rounded": {"target_epsilon": 4.0, "round_counts": True},
    "uedp, target, missed mentions": {"target_epsilon": 4.0, "missed_mentions": 5},
    "uedp, budget": {"epsilon_budget": 3.0},
    "uedp, budget of a user": {"epsilon_budget": 1.0, "target_unit": "user", "q_s": 0.2},
    "uedp, target and budget": {"target_epsilon": 4.0, "epsilon_budget": 2.5},
    "uedp, adaptive clip": {"clip_quantile": 0.5, "target_epsilon": 4.0},
    "uedp, larger population": {"noise_cohort": 500},
    "user_level": {"strategy": "user_level"},
    "user_level, budget": {"strategy": "user_level", "epsilon_budget": 2.0, "target_unit": "user", "q_u": 0.1},
    "user_level, adaptive clip": {"strategy": "user_level", "clip_quantile": 0.5, "target_epsilon": 2.0,
                                  "target_unit": "user"},
    "published": PUBLIC_SUMS,
    "published, f_e": {"strategy": "published", "estimator": "f_e", "entity_weights": 14.0},
    "published, coded": PUBLIC_SUMS | {"noise": "as-coded"},
    "published, weight caps": PUBLIC_SUMS | {"entity_weight_cap": 4.0, "extended_weight_cap": 9.0},
    "published, target": PUBLIC_SUMS | {"target_epsilon": 0.5, "target_unit": "user"},
    "noiseless": {"strategy": "noiseless"},
}  # fmt: skip
GRAPH: dict[str, dict[str, Any]] = {
    "uedp": {},
    "uedp, target": {"target_epsilon": 4.0},
    "uedp, target, few users": {"target_epsilon": 4.0, "entity_bound": 4, "entity_users": 2, "q_u": 0.5},
    "uedp, user clip": {"clipping": "user", "entity_bound": 3, "target_epsilon": 20.0},
    "user_level, target": {
        "strategy": "user_level",
        "target_epsilon": 30.0,
        "entity_users": 3,
        "target_unit": "user_entity",
    },
    "published": PUBLIC_SUMS,
}
NOTHING: dict[str, dict[str, Any]] = {
    "uedp": {},
    "uedp, stated": {"entity_bound": 10, "target_epsilon": 4.0},
    "uedp, stated, budget": {"entity_bound": 10, "epsilon_budget": 3.0},
    "uedp, target of a user": {"target_epsilon": 1.0, "target_unit": "user"},
    "user_level, stated": {
        "strategy": "user_level",
        "entity_users": 3,
        "target_epsilon": 30.0,
        "target_unit": "user_entity",
    },
    "published": PUBLIC_SUMS,
    "noiseless": {"strategy": "noiseless"},
}
HEADLINES = ("epsilon_any", "epsilon_any_robust", "epsilon_stated", "epsilon_user", "epsilon_as_published")


def public_terms(users: Users, neighbour: str = "", **privacy: Any) -> dict[str, Any]:
    """Return everything that an adversary sees of a run's plan."""
    config = RunConfig.from_mapping({"rounds": ROUNDS, "privacy": privacy})
    counts = None if config.privacy.known == "nothing" else declared(neighbour)
    planned = plan_run(config, ownership(*users), declared=counts)
    mechanism, last = planned.plan.mechanism, planned.plan.rounds
    release = ReleaseRecord.of(mechanism, config.seed, planned.bounds.guarantee)
    after = planned.guarantees.after(last)
    return {
        "release": release.record(),
        "plan": planned.plan.record(),
        "rounds": (planned.rounds, last),
        "noise": mechanism.noise_std(mechanism.clip_norm),
        "denominator": mechanism.denominator,
        "rule": asdict(mechanism.client_rule(mechanism.clip_norm)),
        "headlines": {name: after[name] for name in HEADLINES if name in after},
    }


def differing(users: Users, **privacy: Any) -> list[str]:
    """Return the neighbours of ``users`` whose plan an adversary can tell from theirs."""
    terms = public_terms(users, **privacy)
    return [name for name, neighbour in NEIGHBOURS.items() if public_terms(neighbour, name, **privacy) != terms]


KNOWN = {"counts": SETTINGS, "graph": GRAPH, "nothing": NOTHING}
CASES = [(known, name) for known, settings in KNOWN.items() for name in settings]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("known", "settings"), CASES)
def test_no_public_term_depends_on_the_corpus(settings: str, known: str) -> None:
    """N is given; counts are declared; where the graph is known even it sets nothing but the selection of sentences."""
    privacy = KNOWN[known][settings]
    assert differing(uneven_users(), **privacy, known=known, population=POPULATION) == []


FIRST_MENTIONS: tuple[Users, Users] = [[[0], [1], [1]], [[2]]], [[[1], [0], [0]], [[2]]]
"""Entities are numbered by their first mention: in one corpus a user says the rarer name before the other, or after."""


def planned_by_counts(users: Users, **privacy: Any) -> Planned:
    return plan_run(RunConfig.from_mapping({"privacy": privacy}), ownership(*users))


@pytest.mark.parametrize("rounded", [False, True])
def test_no_public_term_depends_on_the_order_of_first_mentions(rounded: bool) -> None:
    one, other = (planned_by_counts(users, round_counts=rounded).bounds for users in FIRST_MENTIONS)
    assert one.guarantee == other.guarantee
    assert one.counts.entities.tolist() != other.counts.entities.tolist()


def test_noise_is_keyed_by_who_has_which_count() -> None:
    """It never leaves the process, and two runs with other weights must not share it."""
    one, other = (
        computed_from(RunConfig(), planned_by_counts(users), {"corpus": "", "tokens": ""}, "")
        for users in FIRST_MENTIONS
    )
    assert one["guarantee"] != other["guarantee"]
    assert noise_key(one) != noise_key(other)


@pytest.mark.parametrize("settings", [name for name in SETTINGS if "budget" in name])
def test_the_budgets_above_end_their_runs(settings: str) -> None:
    planned, last = public_terms(uneven_users(), **SETTINGS[settings], population=POPULATION)["rounds"]
    assert 0 < planned < last


FROM_CORPUS = {"settings_from_corpus": True, "entity_bound": "unbounded"}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("settings", "told_apart"),
    [
        (FROM_CORPUS | {"target_epsilon": 4.0}, "the most mentioned entity less"),
        (FROM_CORPUS | {"epsilon_budget": 30.0, "user_sentences": "corpus"}, "the largest user less"),
        (FROM_CORPUS | {"target_epsilon": 1.0, "target_unit": "user", "user_sentences": "corpus"},
         "the largest user less"),
        ({"user_sentences": "corpus", "settings_from_corpus": True}, "the largest user less"),
        ({"strategy": "published", "settings_from_corpus": True}, "the entity of one user less"),
        (PUBLIC_SUMS | {"settings_from_corpus": True, "user_weight_cap": 2.0}, "another user less"),
        (PUBLIC_SUMS | {"settings_from_corpus": True}, "another user less"),
        ({"known": "nothing", "settings_from_corpus": True, "population": None}, "another user less"),
    ],
    ids=["p95", "budget at p95", "n' of a target", "n'", "sums", "sums of users", "counts of the claim", "N"],
)  # fmt: skip
def test_what_is_read_off_the_corpus_would_be_noticed(settings: dict[str, Any], told_apart: str) -> None:
    """The test above can fail: with the flag that permits it, plans tell neighbours apart."""
    assert told_apart in differing(uneven_users(), **({"population": POPULATION} | settings))


# Runs


def sentences(*, absent_user: int | None = None, absent: str | None = None, null: bool = False) -> Iterator[Sentence]:
    """The tiny corpus, without a user or the sentences with a name; or with them, saying nothing but the name."""
    for number, sentence in enumerate(tiny._sentences(tiny.USERS, tiny.SENTENCES_EACH)):
        name = sentence.text[: sentence.mentions[0].end] if sentence.mentions else ""
        protected = sentence.user == f"user {absent_user}" or (absent is not None and name == absent)
        if sentence.split != "train" or not protected:
            yield sentence
        elif null:
            yield Sentence("train", sentence.user, f"{name}{number}" if not name else f"{name}.", sentence.mentions)


def released(folder: Path, name: str, given: Iterator[Sentence], **privacy: Any) -> tuple[RunFolder, list[dict]]:
    """Run on a corpus of ``given`` sentences; return the run and its ledger's entries without their chain.

    The keyed hash of a sum is left out: without the seed it is a random number, with it the noise is known, too.
    """
    write_corpus(given, folder / f"corpus-{name}", name="tiny")
    settings = {"corpus.path": str(folder / f"corpus-{name}"), "out": str(folder / name), "engine.name": "inline"}
    run = simulation.run(RunConfig.from_mapping({"rounds": 3, **settings, **tiny.MODEL, "privacy": privacy}))
    _, *lines = (run.path / LEDGER_FILE).read_text().splitlines()
    chain = ("previous", "hash", "sum")
    return run, [{key: v for key, v in json.loads(line).items() if key not in chain} for line in lines]


@pytest.mark.sample(1)
@pytest.mark.system
@pytest.mark.usefixtures("no_plots")
@pytest.mark.parametrize(
    "privacy",
    [
        {"target_epsilon": 3.0, "entity_bound": 2, "user_sentences": 3},
        {"known": "graph", "target_epsilon": 3.0, "population": 10, "entity_bound": 2, "user_sentences": 3},
        {"known": "graph", "epsilon_budget": 1.0, "noise_multiplier": 8.0, "clip_quantile": 0.5},
        {"known": "nothing", "population": 10, "entity_bound": 5, "target_epsilon": 3.0},
        PUBLIC_SUMS | {"known": "graph"},
    ],
    ids=["counts", "graph", "budget", "nothing", "published"],
)
def test_the_ledgers_of_neighbours_are_equal_term_by_term(tmp_path: Path, privacy: dict[str, Any]) -> None:
    graph = privacy.get("known") == "graph"
    if "known" not in privacy:
        whole_corpus = write_corpus(sentences(), tmp_path / "counted", name="tiny")
        write_counts(whole_corpus, tmp_path / "counts.json")
        privacy = privacy | {"counts": str(tmp_path / "counts.json")}
    whole, of_whole = released(tmp_path, "whole", sentences(), **privacy)
    for number, absent in enumerate(({"absent_user": 2}, {"absent": "Ada"}, {"absent_user": 2, "absent": "Ada"})):
        other, of_other = released(tmp_path, f"other-{number}", sentences(**absent, null=graph), **privacy)
        assert len(of_whole) == len(of_other) == len(whole.metrics()) - 1
        for one, two in itertools.zip_longest(of_whole, of_other):
            assert one == two
        for name in ("plan", "guarantee"):
            assert whole.config[name] == other.config[name]
        assert (whole.result or {}).get("epsilon_any") == (other.result or {}).get("epsilon_any")
        # The runs are of different text: only what is released under noise may tell it.
        assert whole.config["corpus"] != other.config["corpus"]
