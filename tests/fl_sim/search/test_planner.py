"""``fl-sim plan formula``: the search against trying everything, the guarantee kept, and what it may read."""

from __future__ import annotations

import itertools
import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fl_sim.api.planning import plan_by_formula
from fl_sim.cli.commands.plan_command import _text
from fl_sim.cli.main import main
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.declared_counts import write_counts
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.run_plan import plan_run
from fl_sim.search import bounds, planner
from fl_sim.search.bounds import Candidate, Users
from fl_sim.search.planner import Goal, Proposal, Tradeoff, best_first, propose
from fl_sim.strategies.accounting.accountant import epsilon
from fl_sim.strategies.privacy_config import PrivacyConfig
from tests.fl_sim.search.test_crowd import people
from tests.tiny import tiny_corpus

Capture = pytest.CaptureFixture[str]

GOAL = Goal(target_epsilon=4.0, delta=1e-5, sentences_per_round=60, rounds=10)

ASKED = ("--target-epsilon", "8", "--sentences-per-round", "6", "--rounds", "4", "--user-sentences", "9")


def privacy_of(k: int = 10, **privacy: object) -> PrivacyConfig:
    return RunConfig.from_mapping({"privacy": {"entity_bound": k, "user_sentences": 20} | privacy}).privacy


def proposed(ownership: Ownership, *choices: PrivacyConfig, goal: Goal = GOAL, keep: float | None = None) -> Proposal:
    return propose(choices, Users(ownership, ownership.num_users).candidate, goal, keep)


def largest_epsilon(settings: planner.Settings, candidate: Candidate) -> float:
    """Return the largest ε of the units, each from scratch."""
    event = settings.event
    return max(
        epsilon(event.robust() if unit.robust else event, unit.adjacency, settings.rounds, GOAL.delta)
        for unit in candidate.units
    )


def few() -> Ownership:
    """So few people that ε takes a third of the time."""
    return people(users=20, entities=60)


@pytest.fixture(scope="module")
def found() -> Proposal:
    return proposed(few(), privacy_of())


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that takes little time."""
    monkeypatch.setattr(planner, "SHARES", (1.0,))
    monkeypatch.setattr(planner, "CAPS", (1, 2))
    monkeypatch.setattr(planner, "ENTITY_RATES", (1.0, 0.25))
    monkeypatch.setattr(planner, "_STARTS", ((0, 0, 0),))
    monkeypatch.setattr(bounds, "ENTITY_BOUNDS", (2, 5))
    monkeypatch.setattr(bounds, "USER_SENTENCES", (2, 3))


@pytest.mark.nightly
def test_the_proposal_keeps_the_target_and_the_budget(found: Proposal) -> None:
    assert [unit.robust for unit in found.bounds.units] == [False, True]  # any entity, and any sentence without one
    for settings in (found.best, *found.others, *found.fewer_rounds):
        assert 0.994 * 4 <= largest_epsilon(settings, found.bounds) <= 4
        assert settings.sentences <= GOAL.sentences_per_round
        assert settings.rounds <= GOAL.rounds


@pytest.mark.nightly
def test_nothing_that_was_not_tried_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "CAPS", (1, 2, 3, 5, 8, 12))
    monkeypatch.setattr(planner, "ENTITY_RATES", (1.0, 0.5))
    monkeypatch.setattr(planner, "SHARES", (1.0, 0.7, 0.4))
    candidate = Users(few(), 20).candidate(privacy_of())
    search = planner._Search(candidate.crowd, candidate.units, GOAL)
    search.climb((0, 2, 0))
    best = max(settings.signal_to_noise for settings in search.ranked())
    everything = [search.value(point) for point in itertools.product(range(3), range(6), range(2))]
    assert best >= 0.995 * max(everything)  # the noise is found to 0.5 %


def test_a_sentence_without_a_name_meets_the_target_too() -> None:
    """At k 1 and q_e ¼ it needs more noise than a named one, which is active in a quarter of the rounds."""
    candidate = Users(few(), 20).candidate(privacy_of(1))
    search = planner._Search(candidate.crowd, candidate.units[:1], GOAL)
    both = planner._Search(candidate.crowd, candidate.units, GOAL)
    quarter = (0, 0, planner.ENTITY_RATES.index(0.25))
    assert search.value(quarter) > 1.05 * both.value(quarter)
    assert 0.994 * 4 <= largest_epsilon(both.ranked()[0], candidate) <= 4


@pytest.mark.system
def test_alternatives_come_best_first(found: Proposal) -> None:
    ratios = [settings.signal_to_noise for settings in found.others]
    assert ratios == sorted(ratios, reverse=True)
    assert found.best.signal_to_noise >= 0.9 * ratios[0]
    assert found.best.event.q_u == 1


def test_of_rates_within_a_tenth_those_win_with_the_most_active_entities(found: Proposal) -> None:
    def settings(ratio: float, q_e: float) -> Any:
        event = replace(found.best.event, q_e=q_e)
        return SimpleNamespace(signal_to_noise=ratio, event=event)

    search = planner._Search(found.bounds.crowd, found.bounds.units, GOAL)
    best, second, third = settings(100.0, 0.25), settings(91.0, 0.75), settings(89.0, 1.0)
    search._evaluated = {(0, 0, 3): best, (0, 0, 1): second, (0, 0, 0): third}
    assert search.ranked() == [second, best, third]
    assert search.point_of(second) == (0, 0, 1)


@pytest.mark.system
def test_the_ratios_are_those_of_the_definition(found: Proposal) -> None:
    best, event, crowd = found.best, found.best.event, found.bounds.crowd
    noise = event.noise_multiplier * event.user_cap
    assert best.signal_to_noise == pytest.approx(crowd.signal(event) * math.sqrt(best.rounds) / noise)
    different = crowd.different(event, best.rounds)
    assert best.different_to_noise == pytest.approx(different / (math.sqrt(best.rounds) * noise))
    assert best.noise_per_sentence == pytest.approx(noise / crowd.signal(event))


@pytest.mark.system
def test_a_target_out_of_reach_is_said() -> None:
    with pytest.raises(ConfigError, match=r"target_epsilon is 0\.0001"):
        proposed(people(), privacy_of(target_unit="user"), goal=Goal(1e-4, 1e-90, 60, 10))


# Bounds


@pytest.mark.system
@pytest.mark.usefixtures("narrow")
def test_the_best_bounds_teach_the_most_different_sentences_for_their_noise() -> None:
    ownership = few()
    choices = [privacy_of(k, user_sentences=m) for k, m in ((1, 2), (3, 6), (3, 30), (30, 60))]
    found = proposed(ownership, *choices)
    assert [trade.privacy for trade in found.trades] == choices
    won, *others = best_first(found.trades)
    assert found.bounds.privacy == won.privacy
    assert won.settings in (found.best, *found.others)
    highest = max(trade.ratio for trade in found.trades)
    assert won.ratio >= 0.9 * highest
    assert all(trade.active_mentions <= won.active_mentions for trade in found.trades if trade.ratio >= 0.9 * highest)
    assert [trade.ratio for trade in others] == sorted((trade.ratio for trade in others), reverse=True)
    assert len({trade.guarantee.entity_bound for trade in (won, *others)}) == 1 + len(others) == 3
    kept = [trade.kept_mentions for trade in found.trades]
    assert kept == sorted(kept)
    with_floor = proposed(ownership, *choices, keep=kept[2])
    assert [trade.privacy for trade in with_floor.trades] == choices[2:]
    last = found.trades[-1]
    alone = proposed(ownership, last.privacy).best
    assert last.settings.signal_to_noise >= 0.99 * alone.signal_to_noise, "as good as a search of its own"


def test_of_bounds_within_a_tenth_those_win_with_the_most_mentions_in_a_round(found: Proposal) -> None:
    def trade(ratio: float, kept: float, q_e: float = 1.0) -> Tradeoff:
        settings: Any = SimpleNamespace(different_to_noise=ratio, event=SimpleNamespace(q_e=q_e))
        return replace(found.trades[0], settings=settings, kept_mentions=kept)

    trades = [trade(100.0, 0.1), trade(95.0, 0.3, q_e=0.5), trade(91.0, 0.2), trade(89.0, 0.3)]
    assert best_first(trades)[0] is trades[2]


Graph = Sequence[Sequence[str]]
"""The names in the sentences of each user, a letter each; "-" for a sentence without one."""

EQUAL_COUNTS: tuple[Graph, Graph] = (
    [["A", "A", "B", "-", "-", "-"], ["A", "B", "-", "-"], ["A", "AB", "AC", "-"], ["C", "A"]] * 3,
    [["ABC", "-", "-", "-", "-", "A"], ["AB", "-", "-", "A"], ["-", "A", "B", "-"], ["A", "AC"]] * 3,
)
"""Two graphs in which each user has as many sentences, and each name as many mentions, and no more is equal."""


def written(graph: Graph, folder: Path) -> Path:
    sentences = [
        Sentence("train", f"user {user:02d}", names, tuple(Mention(at, at + 1, "PER") for at in _mentioned(names)))
        for user, own in enumerate(graph)
        for names in own
    ]
    write_corpus(sentences, folder, name="graph")
    return folder


def _mentioned(names: str) -> list[int]:
    return [at for at, name in enumerate(names) if name != "-"]


@pytest.mark.system
@pytest.mark.usefixtures("narrow")
def test_a_plan_by_counts_reads_counts_alone(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal counts on different graphs: all that is not for the owner is equal, to the last printed figure."""
    words = ["--target-epsilon", "8", "--sentences-per-round", "9", "--rounds", "4", "--json"]
    printed, reports, graphs = [], [], []
    for number, graph in enumerate(EQUAL_COUNTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        graphs.append(Corpus.open(written(graph, folder / "corpus")).ownership("train"))
        assert main(["plan", "formula", "corpus", *words]) == 0
        reports.append(json.loads(capsys.readouterr().out))
        printed.append(_text(reports[-1]).partition("For the owner"))
        del reports[-1]["seconds"]
    for counts in ("sentences_per_user", "entities_per_sentence"):
        first, second = (getattr(graph, counts) for graph in graphs)
        assert np.array_equal(first, second) == (counts == "sentences_per_user")
    assert np.array_equal(*(np.bincount(graph.entity_ids) for graph in graphs))
    assert printed[0][0] == printed[1][0]
    assert printed[0][1] == "For the owner"
    assert printed[0][2] != printed[1][2]
    owners = [report.pop("owner") for report in reports]
    assert reports[0] == reports[1]
    assert owners[0] != owners[1]
    assert not reports[0]["settings_from_corpus"]


@pytest.mark.system
@pytest.mark.usefixtures("narrow")
def test_a_target_is_enough_to_ask_for(tmp_path: Path, capsys: Capture) -> None:
    corpus = written(EQUAL_COUNTS[0], tmp_path / "corpus")
    assert main(["plan", "formula", str(corpus), "--target-epsilon", "8", "--quiet", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["sentences_per_round"], report["rounds"]) == (2.4, 20), "48 sentences, each once"
    assert "server.learning_rate=0.008" in shlex.split(report["command"])
    assert "trials on public text" in report["learning_rate_from"]
    assert report["owner"]["seconds"] > 0
    shown = _text(report).partition("For the owner")
    assert "Learning rate 0.008: Adam on the small GPT-2" in shown[0]
    assert "On this machine the run takes 2 sentences and about" in shown[2]
    assert "On this machine" not in shown[0], "it is measured on private sentences"


@pytest.mark.system
@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("by_file", [False, True])
def test_a_plan_for_other_declared_counts_does_not_tell_the_exact_ones(
    tmp_path: Path, capsys: Capture, by_file: bool
) -> None:
    """A user has a sentence more, another mentions C once more, and the rounded counts stay: so does the proposal."""
    graph = EQUAL_COUNTS[0]
    more = [[*graph[0], "-"], [*graph[1][:2], "C", "-"], *graph[2:]]
    file, proposals = tmp_path / "counts.json", []
    write_counts(Corpus.open(written(more, tmp_path / "larger")), file)
    flags = ["--counts", str(file)] if by_file else ["--round-counts"]
    for number, users in enumerate((graph, more)):
        corpus = written(users, tmp_path / str(number))
        assert main(["plan", "formula", str(corpus), "--target-epsilon", "8", *flags, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        setting = f"privacy.counts={file}" if by_file else "privacy.round_counts=true"
        assert shlex.split(report["command"])[-2:] == ["--set", setting]
        shown = ("proposal", "alternatives", "bounds", "note", "sentences_per_round")
        proposals.append({name: report[name] for name in shown})
    assert proposals[0] == proposals[1]


@pytest.mark.system
@pytest.mark.usefixtures("narrow")
def test_a_known_graph_may_be_read(tmp_path: Path) -> None:
    first, second = (
        plan_by_formula(
            written(graph, tmp_path / str(number)), known="graph", target_epsilon=8, sentences_per_round=9, rounds=4
        )
        for number, graph in enumerate(EQUAL_COUNTS)
    )
    assert first["bounds"] != second["bounds"]
    assert not first["settings_from_corpus"]


# The command


@pytest.mark.system
@pytest.mark.usefixtures("narrow")
def test_the_command_line_prints_one_object(tmp_path: Path, capsys: Capture) -> None:
    corpus = tiny_corpus(tmp_path / "a corpus")
    words = ["plan", "formula", str(corpus), *ASKED]
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["user_sentences"] == 9
    assert [(trade["entity_bound"], trade["user_sentences"]) for trade in report["bounds"]] == [(2, 9), (5, 9)]
    assert 7.9 <= report["proposal"]["epsilon_target"] <= 8
    assert report["owner"]["epsilons"][0]["epsilon_user_entity_max"] <= report["proposal"]["epsilon_target"]
    command = shlex.split(report["command"])
    assert command[:4] == ["fl-sim", "run", "--corpus", str(corpus)]
    bound = str(report["entity_bound"])
    assert command[-6:] == ["--known", "counts", "--entity-bound", bound, "--user-sentences", "9"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "Run it: fl-sim run" in printed
    assert all(f"k {k}, m 9" in printed for k in (2, 5))
    assert max(map(len, printed.partition("Run it")[0].splitlines()[2:])) <= 80


@pytest.mark.system
@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("flags", "covered", "note"),
    [
        ([], True, "rest on counts alone"),
        (["--round-counts"], True, "if as many mentions as are declared"),  # there are fewer, of other names
        (["--known", "graph"], True, "rest on the mention graph, which is taken as known"),
        (["--public"], True, "The corpus is public, as stated, so its sizes may set what is released."),
        (["--known", "nothing", "--entity-bound", "3"], False, "The planner reads the private corpus"),
        (["--entity-bound", "unbounded"], False, "The planner reads the private corpus"),
        (["--user-sentences", "corpus"], False, "The planner reads the private corpus"),
        (["--entity-bound", "unbounded", "--target-unit", "user"], True, "rest on counts alone"),
    ],
)
def test_a_proposal_says_what_it_rests_on(
    tmp_path: Path, capsys: Capture, flags: list[str], covered: bool, note: str
) -> None:
    corpus = tiny_corpus(tmp_path / "corpus")
    assert main(["plan", "formula", str(corpus), *ASKED[:-2], *flags, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert ("settings_from_corpus" not in report["command"]) == covered
    assert note in report["note"]


@pytest.mark.system
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--rounds", "0"], "rounds is 0"),
        (["--rounds", "10000000"], "rounds is 10000000; allowed: an integer in [1, 100000]"),
        (["--delta", "1e-200"], "delta is 1e-200; allowed: a number in [1e-100, 1)"),
        (["--target-epsilon", "-1"], "target_epsilon is -1"),
        (["--sentences-per-round", "1e-322"], "sentences_per_round is 1e-322; allowed: a finite number of at least"),
        (["--user-sentences", "few"], "privacy.user_sentences"),
        (["--entity-bound", "0"], "privacy.entity_bound is 0"),
        (["--known", "most"], "is 'most'; allowed: counts, graph, nothing"),
        (["--known", "nothing"], "known is nothing and no bound on entities is stated; allowed: entity_bound"),
        (["--keep-mentions", "2"], "keep_mentions is 2; allowed: above 0, at most 1"),
        (["--entity-bound", "2", "--keep-mentions", "0.9"], "keep_mentions is 0.9; allowed: at most 0.66"),
        (["--split", "absent"], "absent"),
        (["--known", "graph", "--round-counts"], "privacy.round_counts is given and privacy.known is graph"),
        (["--counts", "none.json"], "none.json: cannot be read"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, capsys: Capture, flags: list[str], words: str) -> None:
    corpus = tiny_corpus(tmp_path / "corpus")
    asked = [str(corpus), "--target-epsilon", "8", "--sentences-per-round", "6", "--rounds", "4", "--quiet"]
    assert main(["plan", "formula", *asked, *flags]) == 2
    line = capsys.readouterr().err
    assert words in line
    assert line.count("\n") == 1


@pytest.mark.system
@pytest.mark.usefixtures("narrow")
def test_the_proposed_run_finds_the_same_noise(tmp_path: Path, capsys: Capture) -> None:
    corpus = tiny_corpus(tmp_path / "corpus")
    assert main(["plan", "formula", str(corpus), *ASKED, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    proposal = report["proposal"]
    settings = {f"privacy.{name}": proposal[name] for name in ("q_u", "q_e", "q_s", "user_cap")}
    settings |= {f"privacy.{name}": report[name] for name in ("entity_bound", "user_sentences")}
    config = RunConfig.from_mapping(
        {"corpus.path": str(corpus), "rounds": proposal["rounds"], "privacy.target_epsilon": 8.0} | settings
    )
    planned = plan_run(config, Corpus.open(corpus).ownership("train"))
    assert planned.plan.mechanism.noise_multiplier == pytest.approx(proposal["noise_multiplier"], rel=0.01)
