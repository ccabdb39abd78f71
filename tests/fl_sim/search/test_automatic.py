"""Settings without looking: ``fl-sim plan auto`` chooses by public text, and by what the guarantee takes as known."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fl_sim.cli.main import main
from fl_sim.config import ConfigError, RunConfig
from fl_sim.experiments.cost import CLIPPING, Forecast, Pace
from fl_sim.search import automatic, settings_search
from fl_sim.search.automatic import Automatic, choose_settings, public_text, round_down_to_grid
from fl_sim.search.bounds import Candidate, keeping
from fl_sim.search.planner import Goal, Proposal, Settings, Tradeoff
from fl_sim.search.sweep import DONE, Ending
from fl_sim.storage.run_folder import INTERRUPTED, ResultsError
from fl_sim.strategies.accounting.accountant import RoundEvent
from fl_sim.strategies.privacy_config import PrivacyConfig
from tests import tiny
from tests.fl_sim.search.test_planner import EQUAL_COUNTS, written

Capture = pytest.CaptureFixture[str]
Goals = list[Goal]
Candidates = Callable[[PrivacyConfig], Candidate]


PACE = Pace(sentence=0.01 / CLIPPING, server=0.0, evaluation=0.0, tokens=20.0)
"""A hundred sentences a second."""


@pytest.fixture
def goals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Goals:
    """Plan, measure and search without doing it, on a tiny public text; return what was to be planned."""
    public, asked = tiny.tiny_corpus(tmp_path / "public", users=10, each=8), Goals()

    def propose(
        choices: Sequence[PrivacyConfig], candidate_of: Candidates, goal: Goal, keep_mentions: float | None
    ) -> Proposal:
        asked.append(goal)
        tried = list(keeping(map(candidate_of, choices), keep_mentions))
        rate = min(1.0, goal.sentences_per_round / tried[0].crowd.sampled_sentences(1.0))
        event = RoundEvent("uedp", 2.0, q_u=1.0, q_e=1.0, q_s=rate, user_cap=2.0)
        trades = [Tradeoff.of(one, Settings.of(event, goal.rounds, one.crowd)) for one in tried]
        return Proposal(tried[0], tuple(trades), trades[0].settings, (), ())

    monkeypatch.setattr(automatic, "propose", propose)
    monkeypatch.setattr(automatic, "public_text", lambda corpus: str(public))
    monkeypatch.setattr(automatic, "_pace", lambda config, corpus: PACE)
    monkeypatch.setattr(automatic, "forecast_of", lambda config: Forecast(9.0, 0.1, config.rounds, 1e9, 1e6))
    monkeypatch.setattr(settings_search, "run_batch", lambda configs, jobs: (Ending(name, DONE) for name in configs))
    monkeypatch.setattr(settings_search, "_score", lambda config: abs(config.server.learning_rate - 0.003))
    return asked


def chosen(corpus: Path, trials: Path, **stated: Any) -> RunConfig:
    settings = {"corpus.path": str(corpus), "engine.name": "inline", **tiny.MODEL, **stated}
    automatically = choose_settings(RunConfig.from_mapping(settings), 1.0, trials)
    assert all("\n" not in note for note in automatically.notes)
    return automatically.config


@pytest.mark.system
def test_where_nothing_is_known_no_more_is_read_than_the_stated_number_of_users(goals: Goals, tmp_path: Path) -> None:
    few, many = (tiny.tiny_corpus(tmp_path / str(each), users=20, each=each) for each in (2, 9))
    stated = {"privacy.known": "nothing", "privacy.population": 20, "privacy.entity_bound": 3}
    first, second = (chosen(path, tmp_path / f"trials{path.name}", **stated) for path in (few, many))
    assert first.model_copy(update={"corpus": second.corpus}) == second
    assert goals[0] == goals[1]
    assert goals[0].sentences_per_round == 2000 / 20 * 10 / 20, "half of a minute, at 0.01 s, on half the users"
    assert (first.privacy.population, first.privacy.target_epsilon, first.rounds) == (20, 8.0, 20)
    assert first.privacy.user_cap is not None
    assert first.tuned_on.users == 20
    more = chosen(few, tmp_path / "more", **stated | {"privacy.population": 40, "privacy.target_epsilon": 2.0})
    assert (goals[2].target_epsilon, goals[2].sentences_per_round) == (2.0, goals[0].sentences_per_round / 2)
    assert more.privacy.population == 40


@pytest.mark.system
def test_where_counts_are_known_they_alone_are_read(goals: Goals, tmp_path: Path) -> None:
    """Equal counts on different graphs and other words: the same settings. More sentences a user: a lower rate."""
    first, second = (written(graph, tmp_path / str(number)) for number, graph in enumerate(EQUAL_COUNTS))
    bound = {"privacy.entity_bound": 5}
    settings = [chosen(path, tmp_path / f"trials{number}", **bound) for number, path in enumerate((first, second))]
    assert settings[0].model_copy(update={"corpus": settings[1].corpus}) == settings[1]
    assert goals[0] == goals[1]
    assert goals[0].sentences_per_round == 2000 / 20, "of these users themselves"
    assert settings[0].tuned_on.sentences < 48, "the sentences of the corpus, less what the bound takes in weight"
    few, many = (tiny.tiny_corpus(tmp_path / f"users of {each}", users=40, each=each) for each in (8, 16))
    bounds = {f"privacy.{name}": "unbounded" for name in ("entity_bound", "user_sentences")}
    stated = bounds | {"privacy.target_unit": "user"}
    rates = [chosen(path, tmp_path / f"trials of {path.name}", **stated).privacy.q_s for path in (few, many)]
    assert rates == pytest.approx([100 / 320, 100 / 640])


@pytest.mark.system
def test_a_known_graph_is_read(goals: Goals, tmp_path: Path) -> None:
    stated = {"privacy.known": "graph", "privacy.entity_bound": 5}
    configs = [
        chosen(written(graph, tmp_path / str(number)), tmp_path / f"trials{number}", **stated)
        for number, graph in enumerate(EQUAL_COUNTS)
    ]
    assert len({config.tuned_on.sentences for config in configs}) == 2


def training_of(seconds: float) -> Callable[[RunConfig], Forecast]:
    """Return a forecast of rounds of so many seconds."""
    return lambda config: Forecast(9.0, seconds, config.rounds, 1e9, 1e6)


@pytest.mark.system
def test_what_the_private_sentences_take_is_shown_or_refuses_and_sets_nothing(
    goals: Goals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    corpus = tiny.tiny_corpus(tmp_path / "corpus", users=20)
    settings = []
    for number, seconds in enumerate((0.01, 1.0, math.nan)):
        monkeypatch.setattr(automatic, "forecast_of", training_of(seconds))
        settings.append(chosen(corpus, tmp_path / str(number)))
    assert settings[0] == settings[1] == settings[2]
    monkeypatch.setattr(automatic, "forecast_of", training_of(6.0))
    words = ["plan", "auto", "--corpus", str(corpus), "--engine", "inline", "--minutes", "1"]
    assert main([*words, "--out", str(tmp_path / "refused"), *tiny.command_line(dict(tiny.MODEL))]) == 2
    said, told = capsys.readouterr().err.splitlines()[-2:]
    assert "training 9 sentences and about 6 s a round, about 2 min in all" in said
    assert "for its owner alone" in said
    assert re.search(r"--minutes is 1, and search and training would take 2\.\d: the corpus has longer sentences", told)
    assert "than planned for, 20 tokens each; allowed: --tokens N" in told
    assert not (tmp_path / "refused").exists()


@pytest.mark.system
def test_stated_tokens_make_rounds_smaller(goals: Goals, tmp_path: Path) -> None:
    corpus = tiny.tiny_corpus(tmp_path / "corpus", users=20)
    config = RunConfig.from_mapping({"corpus.path": str(corpus), "engine.name": "inline", **tiny.MODEL})
    for tokens in (20.0, 200.0):
        choose_settings(config, 1.0, tmp_path / f"trials{tokens}", tokens=tokens)
    assert [goal.sentences_per_round for goal in goals] == [100.0, 10.0]


def test_a_search_takes_its_share_of_the_time(goals: Goals) -> None:
    stated = RunConfig()
    for seconds in (30.0, 300.0):
        search = automatic._search(stated, [], PACE, seconds)
        assert 0.4 * seconds <= automatic._seconds_of(search, PACE) <= seconds
    assert automatic._search(stated, [], PACE, 1.0).sentences == 10.0, "the smallest trials, whatever the time"
    with pytest.raises(ConfigError, match=r"--minutes is 0\.1; allowed here: at least 1\.2"):
        automatic._check_time(0.1, 17.0, 1.0, 20.0)


@pytest.mark.system
def test_a_stopped_search_goes_on_with_the_rates_that_it_began_with(
    goals: Goals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, finishing = tiny.tiny_corpus(tmp_path / "corpus", users=20), settings_search.run_batch
    config = RunConfig.from_mapping({"corpus.path": str(corpus), "engine.name": "inline", **tiny.MODEL})
    monkeypatch.setattr(
        settings_search, "run_batch", lambda configs, jobs: iter([Ending(min(configs), INTERRUPTED, "SIGINT")])
    )
    ended = choose_settings(config, 1.0, tmp_path / "trials")
    assert isinstance(ended, settings_search.Tried)
    assert ended.interrupted
    monkeypatch.setattr(settings_search, "run_batch", finishing)
    monkeypatch.setattr(automatic, "_pace", lambda config, corpus: replace(PACE, sentence=0.001))
    assert isinstance(choose_settings(config, 1.0, tmp_path / "trials"), Automatic)
    assert len(goals) == 1
    with pytest.raises(ConfigError, match=r"--minutes is 0\.01; allowed here: at least 0\.034, or another --out"):
        choose_settings(config, 0.01, tmp_path / "trials")


@pytest.mark.parametrize(("value", "grid"), [(1.0, 1.0), (4.99, 2.0), (730.0, 500.0), (0.06, 0.05), (1e6, 1e6)])
def test_the_grid(value: float, grid: float) -> None:
    assert round_down_to_grid(value) == pytest.approx(grid)


def test_settings_never_come_from_the_runs_own_corpus() -> None:
    assert all(public_text(corpus) != corpus for corpus in ("bundled", "irc", "mine"))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--q-s", "0.1"], "privacy.q_s is given with fl-sim plan auto, which chooses it"),
        (["--rounds", "3"], "rounds is given with fl-sim plan auto"),
        (["--minutes", "-1"], "--minutes is -1; allowed"),
        (["--minutes", "1e-6"], "--minutes is 1e-06; allowed here: at least"),
        (["--tokens", "0"], "--tokens is 0; allowed: a finite number above 0"),
        (["--set", "privacy.known=nothing"], "privacy.population is not given"),
        (
            ["--set", "privacy.known=nothing", "--set", "privacy.population=9000"],
            "no bound on entities is set; allowed",
        ),
        (["--keep-mentions", "1", "--set", "privacy.entity_bound=2"], "keep_mentions is 1; allowed: at most 0."),
        (["--set", "privacy.settings_from_corpus=true"], "privacy.settings_from_corpus is true with fl-sim plan auto"),
        (["--set", "task=classification"], "because no text with classes ships to choose"),
        (["--corpus", "no/corpus"], "no/corpus"),
    ],
)
def test_bad_input_is_one_line(flags: list[str], words: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(["plan", "auto", "--out", str(tmp_path / "out"), "--minutes", "600", *flags]) == 2
    line = capsys.readouterr().err
    assert words in line
    assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_taken_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automatic, "_pace", None)
    (tmp_path / "file").touch()
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(ResultsError, match="holds another search, or something else"):
            choose_settings(RunConfig(), 1.0, taken)


@pytest.mark.system
def test_the_file_of_the_verb_has_all_settings_and_is_written_once(
    goals: Goals, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, out = tiny.tiny_corpus(tmp_path / "corpus", users=20), tmp_path / "out"
    sizes = tiny.command_line(dict(tiny.MODEL))
    words = ["plan", "auto", "--corpus", str(corpus), "--engine", "inline", "--minutes", "1", "--out", str(out), *sizes]
    assert main(words) == 0
    assert f"Run it: fl-sim run {out / 'tuned.toml'}\n" in capsys.readouterr().out
    searched = RunConfig.load(out / "tuned.toml")
    assert searched == chosen(corpus, tmp_path / "again")
    assert main([*words, "--seed", "7"]) == 2
    assert "holds another search" in capsys.readouterr().err


@pytest.mark.system
def test_a_target_needs_a_bound(goals: Goals, tmp_path: Path) -> None:
    corpus = tiny.tiny_corpus(tmp_path / "corpus")
    ask: Callable[..., RunConfig] = chosen
    with pytest.raises(ConfigError, match="no bound on entities is set"):
        ask(corpus, tmp_path / "trials", **{"privacy.entity_bound": "unbounded"})
    ask(corpus, tmp_path / "trials", **{"privacy.entity_bound": "unbounded", "privacy.target_unit": "user"})
