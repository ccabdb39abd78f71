"""Tuning on public text: trials at the private run's size and noise, a file with its origin, and what is refused."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fl_sim.api.initial_models import pretrain
from fl_sim.cli.main import main
from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.corpus_writer import append_corpus, write_corpus
from fl_sim.data_prep.records import Mention, Sentence
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.experiments.plan.guarantees import target_of
from fl_sim.experiments.plan.run_plan import plan_run
from fl_sim.experiments.run_inputs import check_origin
from fl_sim.search import bounds, settings_search
from fl_sim.search.planner import epsilon_of_units
from fl_sim.search.settings_search import (
    MOST_BOUNDS,
    PrivateRun,
    PublicText,
    Search,
    Tried,
    candidates,
    ranked_bounds,
    settings_under,
    tune,
)
from fl_sim.search.sweep import DONE, FAILED, Ending
from fl_sim.settings_origin import Origin
from fl_sim.stop_signals import stops_handled_by
from fl_sim.storage.open_run import released_settings
from fl_sim.storage.run_folder import INTERRUPTED, ResultsError
from tests import tiny

Capture = pytest.CaptureFixture[str]

STATED = {"rounds": 2, "privacy.noise_multiplier": 4.0, "privacy.q_s": 0.1, "privacy.population": 6000, **tiny.MODEL}
USER_LEVEL = STATED | {"privacy.strategy": "user_level", "privacy.q_s": 1.0, "privacy.target_unit": "user"}


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.tiny_corpus(tmp_path_factory.mktemp("public") / "corpus", users=12, each=8)


def private(sentences: float | None = None, **settings: Any) -> PrivateRun:
    return PrivateRun.of(RunConfig.from_mapping(STATED | settings), sentences)


def test_bounds_on_public_text_protect_an_entity_among_the_users_of_the_private_run(public: Path) -> None:
    run = private(**{"privacy.entity_bound": 3, "privacy.user_sentences": 8, "privacy.population": 5000})
    text = PublicText.open(str(public), run)
    bounds = [unit.adjacency.entity_bound for unit in text.candidate(run.config.privacy).units]
    assert max(bound.users for bound in bounds) == 5000
    assert text.users.population < 5000


# A trial


@pytest.mark.system
@pytest.mark.parametrize(
    ("settings", "tried", "sentences"),
    [
        ({}, {}, None),
        ({}, {"privacy.user_cap": 1.0, "privacy.clip_norm": 0.3}, 500.0),
        ({"privacy.population": 13}, {"privacy.user_cap": 3.0}, 4.0),
        ({}, {"privacy.entity_bound": 1, "privacy.user_sentences": 3, "privacy.q_s": 0.4}, 500.0),
        (USER_LEVEL, {}, None),
        (USER_LEVEL | {"privacy.population": 12, "privacy.q_u": 0.5}, {}, 24.0),
    ],
)
def test_a_trial_has_the_noise_to_signal_ratio_of_the_private_run(
    public: Path, settings: dict[str, Any], tried: dict[str, Any], sentences: float | None
) -> None:
    run = private(sentences, **settings)
    public = PublicText.open(str(public), run)
    trial, drawn = public.trial(run, tried, 30.0, 0, "trial")
    planned = plan_run(trial, public.corpus.ownership("train"))
    own, there = planned.plan.mechanism, run.mechanism(tried)

    crowd, given = (public.candidate(config.privacy).crowd for config in (trial, run.config))
    scale = run.population / 12 if sentences is None else sentences / given.sentences(run.mechanism({}))
    expected = scale * crowd.signal(there)
    ratio = there.noise_std(there.clip_norm) / expected
    assert own.noise_std(own.clip_norm) / crowd.signal(own) == pytest.approx(ratio, rel=0.1 if expected < 10 else 1e-2)
    assert (own.clip_norm, own.user_cap, own.q_e) == (there.clip_norm, there.user_cap, there.q_e)
    assert crowd.sentences(drawn) <= 30.0
    if "privacy.strategy" not in settings:
        guarantee = planned.bounds.guarantee
        asked = tried.get("privacy.entity_bound", 10), tried.get("privacy.user_sentences", 32)
        assert (guarantee.entity_bound, guarantee.user_sentences) == asked


def test_all_settings_spend_the_same_epsilon() -> None:
    run = private()
    for settings in ({}, {"privacy.user_cap": 1.0}, {"rounds": 8}):
        config = run.with_settings(settings)
        assert config.privacy.target_epsilon == run.target
    noise, longer = (run.mechanism(settings).noise_multiplier for settings in ({}, {"rounds": 8}))
    assert noise == pytest.approx(4.0, rel=0.01)
    assert longer > 1.5 * noise


@pytest.mark.system
def test_nothing_depends_on_the_private_corpus(public: Path, tmp_path: Path) -> None:
    other = tiny.tiny_corpus(tmp_path / "private", users=20)
    trials = []
    for path in (other, tmp_path / "not here"):
        run = private(**{"corpus.path": str(path)})
        text = PublicText.open(str(public), run)
        trials.append([text.trial(run, tried, 30.0, 0, "trial") for tried in candidates(run, Search(trials=3))])
    assert trials[0] == trials[1]


@pytest.mark.system
def test_candidates_follow_the_seed_and_begin_with_what_is_given() -> None:
    run = private()
    first, again, other = (list(candidates(run, Search(trials=12, seed=seed))) for seed in (0, 0, 1))
    assert first == again != other
    assert first[0] == {}
    assert len(first) == 12
    for settings in first[1:]:
        assert settings["rounds"] in (1, 2, 4)
        assert 0.25 <= settings["privacy.clip_norm"] <= 2
        run.with_settings(settings)
    assert {settings.get("server.optimizer") for settings in first} == {None, "sgd"}


# Bounds


@pytest.fixture
def few_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "ENTITY_BOUNDS", (1, 3, 9))
    monkeypatch.setattr(bounds, "USER_SENTENCES", (2, 3))


@pytest.mark.usefixtures("few_bounds")
def test_bounds_are_tried_on_public_text_at_equal_sentences(public: Path) -> None:
    """Twelve users of eight sentences, every other with one of four names: each is in 12 sentences."""
    run = private(**{"privacy.q_s": 0.05, "privacy.counts": "counts of the private corpus.json"})
    text = PublicText.open(str(public), run)
    trades = ranked_bounds(run, text)
    assert 2 <= len(trades) <= MOST_BOUNDS
    assert len({trade.guarantee.entity_bound for trade in trades}) == len(trades)
    ratios = [trade.ratio for trade in trades[1:]]
    assert ratios == sorted(ratios, reverse=True)
    wanted = text.sentences_of(run, {})
    for trade in trades:
        under = settings_under(trade.privacy, q_s=trade.settings.event.q_s)
        assert text.sentences_of(run, under) == pytest.approx(wanted, rel=1e-3)
        mechanism = run.mechanism(under)
        units = target_of(trade.guarantee, "user_entity", clips_sentences=True, population=6000)[1].values()
        spent = epsilon_of_units(mechanism.event(), list(units), 2, 1e-5)
        assert 0.99 * run.target <= spent <= run.target
    floor = max(trade.kept_mentions for trade in trades)
    assert all(trade.kept_mentions >= floor for trade in ranked_bounds(run, text, floor))
    with pytest.raises(ConfigError, match="keep_mentions is 1; allowed: at most 0"):
        ranked_bounds(private(**{"privacy.entity_bound": 3}), text, 1.0)
    assert ranked_bounds(private(**{"privacy.entity_bound": 3, "privacy.user_sentences": 5}), text) == []


@pytest.mark.system
@pytest.mark.usefixtures("few_bounds")
def test_trials_draw_from_the_bounds(public: Path, tmp_path: Path, trials: Trials) -> None:
    run = private()
    text = PublicText.open(str(public), run)
    pairs = tuple(settings_under(t.privacy, q_s=t.settings.event.q_s) for t in ranked_bounds(run, text))
    search = Search(trials=8, sentences=30, bounds=pairs)
    drawn = list(candidates(run, search))
    assert drawn[0] == pairs[0]
    tried = {tuple(settings[key] for key in pairs[0]) for settings in drawn}
    assert len(tried) >= 2
    assert tried <= {tuple(one.values()) for one in pairs}
    ended: list[Tried] = []
    file = tune(run, text, search, tmp_path / "out", ended.append)
    config, origin = RunConfig.load(file), RunConfig.load(file).tuned_on
    for key in pairs[0]:
        value = getattr(config.privacy, key.partition(".")[2])
        assert value == origin.settings["privacy"][key.partition(".")[2]]
    assert (config.privacy.entity_bound, config.privacy.user_sentences, config.privacy.q_s) in tried
    assert {(c.privacy.entity_bound, c.privacy.user_sentences) for c in trials.ran} == {pair[:2] for pair in tried}


# A search


class Trials:
    """Take the place of runs: score a configuration, and stop when told."""

    def __init__(self) -> None:
        self.ran: list[RunConfig] = []
        self.status = DONE

    def __call__(self, configs: Mapping[str, RunConfig], jobs: int) -> Iterator[Ending]:
        for name, config in configs.items():
            self.ran.append(config)
            yield Ending(name, self.status, "SIGTERM" if self.status == INTERRUPTED else "")

    @staticmethod
    def score(config: RunConfig) -> float:
        return abs(math.log(config.server.learning_rate / 0.004)) + config.rounds / 100


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Trials:
    fake = Trials()
    monkeypatch.setattr(settings_search, "run_batch", fake)
    monkeypatch.setattr(settings_search, "_score", fake.score)
    return fake


@pytest.mark.system
def test_a_search_writes_the_best_settings_with_their_origin(public: Path, tmp_path: Path, trials: Trials) -> None:
    run = private(**{"corpus.path": "mine", "server.schedule": "linear"})
    public = PublicText.open(str(public), run)
    search = Search(trials=5, sentences=30)
    ended: list[Tried] = []
    file = tune(run, public, search, tmp_path / "out", ended.append)
    first = {tried.number: tried.trial.settings for tried in ended[:5]}
    assert all(first[tried.number] == tried.trial.settings for tried in ended)
    assert [tried.name for tried in ended] == [
        *(f"rung1-trial0{number}" for number in range(5)),
        *(f"rung2-trial0{tried.number}" for tried in ended[5:]),
    ]
    config = RunConfig.load(file)
    origin = config.tuned_on
    assert [trial.rung for trial in origin.trials] == [1] * 5 + [2] * 2
    assert [len(trials.ran), len(origin.trials)] == [7, 7]
    scores = sorted(Trials.score(run.with_settings(settings)) for settings in candidates(run, search))
    assert Trials.score(config) == scores[0] == min(trial.score for trial in origin.trials if trial.score is not None)
    assert (config.privacy.target_epsilon, config.privacy.noise_multiplier) == (run.target, None)
    assert (config.corpus.path, config.server.schedule, config.privacy.population) == ("mine", "linear", 6000)
    assert (origin.users, origin.fingerprint, origin.seed) == (6000, public.corpus.fingerprint, 0)
    assert {origin.fingerprint, *origin.made_of} == public.corpus.fingerprints
    assert origin.changed_since(config.model_dump()) == []
    changed = config.changed({"server.learning_rate": 0.5})
    assert origin.changed_since(changed.model_dump()) == ["server.learning_rate"]
    assert "tuned on public text, tiny (7 trials, seed 0" in origin.in_words(changed.model_dump())
    own = config.changed({"privacy.settings_from_corpus": True})
    assert "tuned on text that counts as private, tiny" in origin.in_words(own.model_dump())
    assert released_settings(config) == released_settings(config.model_copy(update={"origin": {}}))


def test_a_search_that_is_interrupted_says_so_and_writes_nothing(public: Path, tmp_path: Path, trials: Trials) -> None:
    run = private()
    public = PublicText.open(str(public), run)
    trials.status = INTERRUPTED
    ended = tune(run, public, Search(trials=3), tmp_path / "out")
    assert not isinstance(ended, Path)
    assert (ended.reason, len(trials.ran)) == ("SIGTERM", 1)


@pytest.mark.system
def test_a_stop_in_the_last_trial_of_a_rung_begins_no_other(corpus: Path, tmp_path: Path, trials: Trials) -> None:
    """Such a trial just finishes, as a run does that is stopped in its last round."""
    run = private()
    public = PublicText.open(str(corpus), run)

    def stop_after_the_last(tried: Tried) -> None:
        if tried.name == "rung1-trial02":
            with stops_handled_by(lambda name: None):
                signal.raise_signal(signal.SIGTERM)

    ended = tune(run, public, Search(trials=3), tmp_path / "out", stop_after_the_last)
    assert not isinstance(ended, Path)
    assert (ended.name, ended.interrupted, ended.reason) == ("rung1-trial02", True, "SIGTERM")
    assert len(trials.ran) == 3
    assert isinstance(tune(run, public, Search(trials=3), tmp_path / "out"), Path)  # the same again goes on
    trials.status = DONE
    assert isinstance(tune(run, public, Search(trials=3), tmp_path / "out"), Path)
    with pytest.raises(ResultsError, match="holds another search"):
        tune(run, public, Search(trials=3, seed=1), tmp_path / "out")
    trials.status = FAILED
    with pytest.raises(ConfigError, match="all 3 trials failed"):
        tune(run, public, Search(trials=3, seed=1), tmp_path / "other")


# What is refused


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "privacy.population is not given"),
        (["--users", "60", "--set", "privacy.noise_cohort=90"], "privacy.noise_cohort is 90; allowed: nothing"),
        (["--users", "60", "--set", "privacy.epsilon_budget=3"], "privacy.epsilon_budget is 3; allowed: nothing"),
        (["--users", "60", "--set", "privacy.strategy=published", "--set", "privacy.entity_weights=2",
          "--set", "privacy.extended_weights=2"], "allowed: uedp, user_level or noiseless"),
        (["--users", "60", "--trials", "0"], "--trials is 0; allowed"),
        (["--users", "60", "--trial-sentences", "nan"], "--trial-sentences is nan; allowed"),
        (["--users", "60", "--sentences", "-1"], "--sentences is -1; allowed"),
        (["--users", "60", "--set", "privacy.entity_bound=unbounded"], "has no finite ε for any user with any entity"),
        (["--users", "60", "--public", "no/corpus"], "no/corpus"),
        (["--users", "sixty"], "privacy.population is 'sixty'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(public: Path, tmp_path: Path, flags: list[str], words: str, capsys: Capture) -> None:
    public = [] if "--public" in flags else ["--public", str(public)]
    assert main(["plan", "trials", *public, "--out", str(tmp_path / "out"), *flags]) == 2
    line = capsys.readouterr().err
    assert words in line
    assert line.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_private_corpus_itself_is_refused(public: Path, tmp_path: Path, capsys: Capture) -> None:
    out = ["--out", str(tmp_path / "out"), "--users", "60", "--corpus", str(public)]
    assert main(["plan", "trials", "--public", str(public), *out]) == 2
    assert "the corpus of the run itself" in capsys.readouterr().err
    settings = Corpus.open(public).as_parent
    made_of_it = write_corpus(long_sentences("it"), tmp_path / "made", name="made", settings=settings)
    assert main(["plan", "trials", "--public", str(made_of_it.path), *out]) == 2
    assert "or is made of the same" in capsys.readouterr().err


def tuned_on(corpus: Corpus, path: Path, **privacy: Any) -> RunConfig:
    sample = settings_search.sentence_sample(map(str, corpus.texts("train")))
    origin = {
        "made_by": "fl-sim plan trials", "corpus": "public", "fingerprint": corpus.fingerprint, "seed": 0, "users": 60,
        "sentence_sample": list(sample), "sentences": 5.0, "delta": 1e-5, "metric": "perplexity", "trials": [],
        "settings": {"rounds": 2}, "made_of": list(corpus.fingerprints - {corpus.fingerprint}),
    }  # fmt: skip
    Origin.model_validate(origin)
    return RunConfig.from_mapping({"corpus": {"path": str(path)}, "privacy": privacy, "origin": origin})


def long_sentences(word: str) -> Iterator[Sentence]:
    for number in range(200):
        text = f"Number {number} of the many sentences about {word} in this corpus."
        split = "train" if number < 190 else "validation"
        yield Sentence(split, f"user {number % 10}", text, (Mention(7, 7 + len(str(number)), "MISC"),))


def test_a_run_on_the_text_that_settings_were_tuned_on_is_refused(tmp_path: Path) -> None:
    paths = {word: tmp_path / word for word in ("boats", "birds", "both")}
    for word in ("boats", "birds"):
        write_corpus(long_sentences(word), paths[word], name=word)
    some = [*list(long_sentences("boats"))[:20], *long_sentences("birds")]
    write_corpus(sorted(some, key=lambda sentence: (sentence.split, sentence.user)), paths["both"], name="both")
    public = Corpus.open(paths["boats"])
    check_origin(tuned_on(public, paths["birds"]), Corpus.open(paths["birds"]))
    with pytest.raises(ConfigError, match="is public, which is the corpus of this run"):
        check_origin(tuned_on(public, paths["boats"]), public)
    with pytest.raises(ConfigError, match=r"\d of the 64 sentences sampled from it are in the training split"):
        check_origin(tuned_on(public, paths["both"]), Corpus.open(paths["both"]))
    check_origin(tuned_on(public, paths["boats"], settings_from_corpus=True), public)
    lowered = write_corpus(long_sentences("b"), tmp_path / "lowered", name="lowered", settings=public.as_parent)
    with pytest.raises(ConfigError, match="or is made of the same"):
        check_origin(tuned_on(lowered, paths["boats"]), public)
    append_corpus(public, [Sentence("train", "new", "One more.", ())], name="boats", joined_at=2)
    with pytest.raises(ConfigError, match="which is the corpus of this run"):
        check_origin(tuned_on(public, paths["boats"]), Corpus.open(paths["boats"]))


def test_a_model_that_was_pretrained_on_the_text_of_a_run_is_refused(tmp_path: Path) -> None:
    corpora = [write_corpus(long_sentences(word), tmp_path / word, name=word) for word in ("boats", "birds")]
    text = tmp_path / "public.txt"
    text.write_text("\n".join(sentence.text.upper() for sentence in long_sentences("boats")), encoding="utf-8")
    sizes = {"hidden": 8, "layers": 1, "heads": 1, "max_tokens": 8}
    pretrain([text], out=tmp_path / "model", epochs=1, batch_size=200, **sizes)
    config = RunConfig.from_mapping({"model.name": tmp_path / "model", "privacy.settings_from_corpus": True})
    with pytest.raises(ConfigError, match="of the 64 sentences sampled from the text that it was pretrained on are in"):
        check_origin(config, corpora[0])
    check_origin(config, corpora[1])


@pytest.mark.system
@pytest.mark.usefixtures("no_plots")
def test_from_public_text_to_a_run_with_its_origin(public: Path, tmp_path: Path, capsys: Capture) -> None:
    out, mine = tmp_path / "out", tiny.tiny_corpus(tmp_path / "mine", users=9)
    flags = ["--public", str(public), "--users", "600", "--trials", "1", "--trial-sentences", "20", "--out", str(out)]
    given = [word for key, value in tiny.MODEL.items() for word in ("--set", f"{key}={value}")]
    given += ["--rounds", "1", "--set", "privacy.q_s=0.5", "--corpus", str(mine), "--set", "privacy.entity_bound=3"]
    assert main(["plan", "trials", *flags, *given]) == 0
    assert f"Run it: fl-sim run {out / 'tuned.toml'}" in capsys.readouterr().out
    began = (out / "runs" / "rung1-trial00" / "result.json").stat().st_mtime_ns
    assert main(["plan", "trials", *flags, *given, "--json"]) == 0, "a finished search is not repeated"
    assert (out / "runs" / "rung1-trial00" / "result.json").stat().st_mtime_ns == began
    printed = json.loads(capsys.readouterr().out)
    run = ["run", str(out / "tuned.toml"), "--engine", "inline", "--quiet", "--out", str(tmp_path / "run")]
    assert main(run) == 0
    assert main(["report", run[-1], "--full"]) == 0
    assert "tuned on public text, tiny (1 trial," in " ".join(capsys.readouterr().out.split())
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["origin"]["trials"] == printed["trials"]
    assert main([*run[:-1], str(tmp_path / "again"), "--corpus", str(public)]) == 2
    assert "which is the corpus of this run" in capsys.readouterr().err
