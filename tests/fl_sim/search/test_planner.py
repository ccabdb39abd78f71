"""``fl-sim plan``: the signal against simulation, the search against trying everything, the guarantee kept."""

from __future__ import annotations

import itertools
import json
import math
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fl_sim.cli.main import main
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import EnforcedBounds
from fl_sim.experiments.plan.run_plan import plan_run
from fl_sim.search import planner
from fl_sim.search.planner import Crowd, Goal, Observe, Proposal, propose
from fl_sim.strategies.accounting.accountant import epsilon
from fl_sim.strategies.accounting.guarantee import ProtectedUnit
from tests.tiny import tiny_corpus

GOAL = Goal(target_epsilon=4.0, unit="user_entity", delta=1e-5, sentences_per_round=60, rounds=10)


ASKED = ("--target-epsilon", "8", "--sentences-per-round", "6", "--rounds", "4", "--user-sentences", "9")


def crowd_of(users: int = 60, entities: int = 30, seed: int = 0) -> Ownership:
    """Users with 1 to 40 sentences, each with one entity of 30 or with none."""
    draw = np.random.default_rng(seed)
    sizes = draw.geometric(0.1, users).clip(max=40)
    mentioned = draw.random(sizes.sum()) < 0.6
    return Ownership(
        user_offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        entity_offsets=np.concatenate([[0], np.cumsum(mentioned)]).astype(np.int64),
        entity_ids=draw.integers(0, entities, mentioned.sum()).astype(np.int32),
        num_entities=entities,
    )


def bounds_of(ownership: Ownership, **privacy: object) -> EnforcedBounds:
    config = RunConfig.from_mapping({"privacy": {"entity_bound": 10, "user_sentences": 20} | privacy})
    return EnforcedBounds.of(config.privacy, ownership, seed=0)


def units_of(bounds: EnforcedBounds, unit: str = "user_entity") -> tuple[ProtectedUnit, ...]:
    bounds = replace(bounds, settings_from_corpus=True)
    return tuple(bounds.target(unit, clips_sentences=True, population=bounds.ownership.num_users)[1].values())


def largest_epsilon(settings: planner.Settings, units: tuple[ProtectedUnit, ...]) -> float:
    """Return the largest ε of the units, each from scratch."""
    event = settings.event
    return max(
        epsilon(event.robust() if unit.robust else event, unit.adjacency, settings.rounds, GOAL.delta) for unit in units
    )


def few() -> Ownership:
    """So few knowers of an entity that ε takes a third of the time."""
    return crowd_of(users=20, entities=60)


@pytest.fixture(scope="module")
def found() -> Proposal:
    bounds = bounds_of(few())
    return propose(bounds, units_of(bounds), GOAL)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that takes little time."""
    monkeypatch.setattr(planner, "SHARES", (1.0,))
    monkeypatch.setattr(planner, "CAPS", tuple(range(1, 10)))
    monkeypatch.setattr(planner, "propose", proposed_once)


_PROPOSALS: dict[tuple[object, ...], Proposal] = {}


def proposed_once(bounds: EnforcedBounds, units: tuple[ProtectedUnit, ...], goal: Goal, observe: Observe) -> Proposal:
    """Propose for each goal once: several tests plan for the same corpus."""
    key = (bounds.ownership.entity_ids.tobytes(), bounds.weights.tobytes(), tuple(units), goal)
    if key not in _PROPOSALS:
        _PROPOSALS[key] = propose(bounds, units, goal, observe=observe)
    return _PROPOSALS[key]


@pytest.mark.system
@pytest.mark.parametrize("bound", [{"entity_bound": "unbounded"}, {"entity_bound": 7, "entity_bound_by": "weights"}])
def test_signal_and_budget_are_what_rounds_draw(bound: dict[str, object]) -> None:
    ownership, draw = crowd_of(), np.random.default_rng(1)
    weights = bounds_of(ownership, **bound).weights
    assert (len(np.unique(weights)) > 2) == (bound["entity_bound"] == 7)
    q_u, q_e, q_s, cap = 0.5, 0.7, 0.4, 2
    counted, computed, rounds = 0.0, 0, 3000
    owners = ownership.user_of_sentence
    entity = np.full(ownership.num_sentences, ownership.num_entities)
    entity[ownership.entities_per_sentence == 1] = ownership.entity_ids
    for _ in range(rounds):
        active = np.append(draw.random(ownership.num_entities) < q_e, True)[entity]
        taken = active & (draw.random(len(owners)) < q_s * weights) & (draw.random(ownership.num_users) < q_u)[owners]
        counted += np.minimum(np.bincount(owners[taken], minlength=ownership.num_users), cap).sum()
        computed += int(taken.sum())
    crowd = Crowd(ownership, weights)
    assert crowd.signal(q_u, q_e, q_s, cap) == pytest.approx(counted / rounds, rel=0.03)
    assert q_u * q_s * crowd.sampled_sentences(q_e) == pytest.approx(computed / rounds, rel=0.03)


@pytest.mark.nightly
def test_the_proposal_keeps_the_target_and_the_budget(found: Proposal) -> None:
    units = units_of(bounds_of(few()))
    assert [unit.robust for unit in units] == [False, True]  # any entity, and any sentence without one
    for settings in (found.best, *found.others, *found.fewer_rounds):
        assert 0.994 * 4 <= largest_epsilon(settings, units) <= 4
        assert settings.sentences <= GOAL.sentences_per_round
        assert settings.rounds <= GOAL.rounds


@pytest.mark.nightly
def test_nothing_that_was_not_tried_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "CAPS", (1, 2, 3, 5, 8, 12))
    monkeypatch.setattr(planner, "ENTITY_RATES", (1.0, 0.5))
    monkeypatch.setattr(planner, "SHARES", (1.0, 0.7, 0.4))
    bounds = bounds_of(few())
    search = planner._Search(Crowd(bounds.ownership, bounds.weights), units_of(bounds), GOAL)
    search.climb((0, 2, 0))
    best = search.ranked()[0].signal_to_noise
    everything = [search._value(point) for point in itertools.product(range(3), range(6), range(2))]
    assert best >= 0.995 * max(everything)  # the noise is found to 0.5 %


@pytest.mark.system
def test_proposals_come_best_first(found: Proposal) -> None:
    ratios = [settings.signal_to_noise for settings in (found.best, *found.others)]
    assert ratios == sorted(ratios, reverse=True)
    assert found.best.event.q_u == 1


@pytest.mark.system
def test_the_ratio_is_that_of_the_definition(found: Proposal) -> None:
    best, event = found.best, found.best.event
    bounds = bounds_of(few())
    signal = Crowd(bounds.ownership, bounds.weights).signal(event.q_u, event.q_e, event.q_s, event.user_cap)
    expected = signal * math.sqrt(best.rounds) / (event.noise_multiplier * event.user_cap)
    assert best.signal_to_noise == pytest.approx(expected)


@pytest.mark.system
def test_a_target_out_of_reach_is_said() -> None:
    bounds = bounds_of(crowd_of())
    with pytest.raises(ConfigError, match=r"target_epsilon is 0\.0001"):
        propose(bounds, units_of(bounds, "user"), Goal(1e-4, "user", 1e-90, 60, 10))


@pytest.mark.nightly
@pytest.mark.usefixtures("narrow")
def test_the_command_line_prints_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tiny_corpus(tmp_path / "a corpus")
    words = ["plan", "formula", str(corpus), *ASKED]
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["user_sentences"] == 9
    assert 7.9 <= report["proposal"]["epsilon_target"] <= 8
    assert report["proposal"]["epsilon_user_entity_max"] <= report["proposal"]["epsilon_target"]
    command = shlex.split(report["command"])
    assert command[:4] == ["fl-sim", "run", "--corpus", str(corpus)]
    assert command[-3:] == ["privacy.user_sentences=9", "--set", "privacy.settings_from_corpus=true"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "Run it: fl-sim run" in printed
    assert "a proposal reveals information about it, and no ε covers that" in printed


@pytest.mark.system
@pytest.mark.usefixtures("narrow")
def test_a_proposal_of_public_text_needs_no_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tiny_corpus(tmp_path / "corpus")
    assert main(["plan", "formula", str(corpus), *ASKED, "--public", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "settings_from_corpus" not in report["command"]
    assert report["note"] == "The corpus is public, as stated, so its sizes may set what is released."


@pytest.mark.system
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--rounds", "0"], "rounds is 0"),
        (["--target-epsilon", "-1"], "target_epsilon is -1"),
        (["--user-sentences", "few"], "privacy.user_sentences"),
        (["--entity-bound", "0"], "privacy.entity_bound is 0"),
        (["--entity-bound-by", "most"], "privacy.entity_bound_by is 'most'"),
        (["--split", "absent"], "absent"),
    ],
)
def test_a_mistake_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    corpus = tiny_corpus(tmp_path / "corpus")
    asked = [str(corpus), "--target-epsilon", "8", "--sentences-per-round", "6", "--rounds", "4"]
    assert main(["plan", "formula", *asked, *flags]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.system
@pytest.mark.usefixtures("narrow")
def test_the_proposed_run_finds_the_same_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tiny_corpus(tmp_path / "corpus")
    assert main(["plan", "formula", str(corpus), *ASKED, "--json"]) == 0
    proposal = json.loads(capsys.readouterr().out)["proposal"]
    settings = {f"privacy.{name}": proposal[name] for name in ("q_u", "q_e", "q_s", "user_cap")}
    settings |= {"privacy.user_sentences": 9, "privacy.settings_from_corpus": True}
    config = RunConfig.from_mapping(
        {"corpus.path": str(corpus), "rounds": proposal["rounds"], "privacy.target_epsilon": 8.0} | settings
    )
    planned = plan_run(config, Corpus.open(corpus).ownership("train"))
    assert planned.plan.mechanism.noise_multiplier == pytest.approx(proposal["noise_multiplier"], rel=0.01)
