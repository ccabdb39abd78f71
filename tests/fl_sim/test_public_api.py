"""The public API: what ``import fl_sim`` offers, and that the command line says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fl_sim
from fl_sim.api.settings import configuration
from fl_sim.cli.main import main
from fl_sim.config import ConfigError
from fl_sim.data_prep.records import CorpusError
from fl_sim.storage.run_folder import ResultsError, decode
from fl_sim.strategies.accounting.adjacency import ANY_NUMBER, ContributionBound, PrivacyError
from tests import tiny
from tests.fl_sim.conftest import Capture, MakeRun, Printed

# Names


def test_every_public_name_is_there_and_documented() -> None:
    for name in fl_sim.__all__:
        part = getattr(fl_sim, name)
        assert name == "__version__" or (part.__doc__ or "").strip(), name
    assert set(fl_sim.__all__) <= set(dir(fl_sim))
    assert {*fl_sim._MODULES, "__version__"} == set(fl_sim.__all__)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'fl_sim' has no attribute 'runn'"):
        fl_sim.runn  # noqa: B018


def test_no_package_has_the_name_of_a_function() -> None:
    """Importing ``fl_sim.experiments.x`` would put a module in the place of the function ``fl_sim.run``."""
    folder = Path(fl_sim.__file__).parent
    assert not [name for name in fl_sim.__all__ if (folder / name).exists() or (folder / f"{name}.py").exists()]


def test_the_package_is_typed() -> None:
    assert (Path(fl_sim.__file__).parent / "py.typed").exists()


# Configurations


def test_every_form_of_a_configuration(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("rounds = 3\nprivacy.q_s = 0.5\n")
    config = fl_sim.RunConfig.from_mapping({"rounds": 3, "privacy": {"q_s": 0.5}})
    for form in (config, file, str(file), {"rounds": 3, "privacy.q_s": 0.5}):
        assert configuration(form, {}) == config
        assert configuration(form, {"privacy.q_s": 0.25}).privacy.q_s == 0.25
        assert configuration(form, {"privacy__q_s": 0.25}).privacy.q_s == 0.25
        assert configuration(form, {"privacy": {"q_u": 0.25}}).privacy.q_s == 0.5
    assert configuration(None, {"rounds": 3, "privacy": {"q_s": 0.5}}) == config


def test_a_mistake_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rounds is 0"):
        fl_sim.run(rounds=0, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="'round' is not a configuration key; did you mean 'rounds'"):
        fl_sim.run(round=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Runs


@pytest.mark.system
@pytest.mark.usefixtures("no_plots")
def test_a_run_and_what_it_says(tmp_path: Path, printed: Printed, capsys: Capture) -> None:
    corpus = tiny.tiny_corpus(tmp_path / "tiny")
    settings: dict[str, Any] = {"corpus.path": str(corpus), "engine.name": "inline", **tiny.MODEL}
    run = fl_sim.run(rounds=2, out=tmp_path / "run", **settings)
    assert (run.path, run.strategy, run.finished) == (tmp_path / "run", "uedp", True)
    assert list(run.metrics["round"]) == [0, 1, 2]
    assert run.config.rounds == 2
    assert run.epsilon["epsilon_user"] == run.metrics["epsilon_user"].iloc[-1] == (run.result or {})["epsilon_user"]
    assert run.facts() == decode(printed("report", run.path))
    assert main(["report", str(run.path)]) == 0
    assert capsys.readouterr().out == run.report()
    assert repr(fl_sim.open_run(run.path)).startswith("Run(run: uedp, ε ")
    bounds = (run.result or {})["guarantee"]
    k, m = bounds["entity_bound"], bounds["user_sentences"]
    entity = ContributionBound(tiny.USERS, ANY_NUMBER, k, weighted=True)
    figures = fl_sim.account_runs([run], delta=1e-5, user_sentences=m, entity=entity)
    assert figures["epsilon_user"] == pytest.approx(run.epsilon["epsilon_user"], rel=1e-3)
    assert figures["epsilon_user_entity"] == pytest.approx(run.epsilon["epsilon_any"], rel=1e-3)
    with pytest.raises(ResultsError, match="the run is finished"):
        fl_sim.resume(run.path)


def test_a_run_that_is_not_finished(make_run: MakeRun) -> None:
    folder = make_run("uedp", finish=False)
    run = fl_sim.open_run(folder.path)
    assert (run.finished, run.result) == (False, None)
    assert repr(run).startswith(
        "Run(uedp-1-0: uedp, ε 15.02 for any user + any entity at δ 1e-5, 30 of 30 rounds, interrupted"
    )
    assert run._repr_html_() == f"<pre>{run.report()}</pre>"
    named = fl_sim.open_run(make_run("uedp", name="<b>").path)
    assert (named._repr_html_() or "").startswith("<pre>Run         &lt;b&gt; ")


def test_a_run_that_cannot_be_read_still_has_a_name(make_run: MakeRun) -> None:
    run = fl_sim.open_run(make_run("uedp").path)
    run.folder.metrics_file.write_text("no JSON\n{}\n")
    assert repr(run).startswith(f"Run(uedp-1-0: {run.folder.metrics_file}, line 1")
    assert run._repr_html_() is None


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="is not a run folder"):
        fl_sim.open_run(tmp_path)


@pytest.mark.system
def test_plots(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [fl_sim.open_run(make_run(strategy).path) for strategy in ("uedp", "user_level")]
    one = runs[0].plot("round")
    assert len(one.figure.axes) == 1
    assert len(fl_sim.plot_runs(runs).figure.axes) == 2
    assert len(fl_sim.plot_runs([run.path for run in runs], "epsilon", "user").figure.axes) == 1
    png, metadata = one._repr_png_()
    assert png.startswith(b"\x89PNG")
    assert metadata == {"width": 720}
    assert one.save(tmp_path / "new" / "one.svg").read_bytes().startswith(b"<?xml")
    with pytest.raises(ResultsError, match=r"is no picture; allowed: a file that ends in \.png, \.pdf, \.svg"):
        one.save(tmp_path / "one.txt")
    with pytest.raises(ResultsError, match="x is 'rounds'; allowed: round, epsilon"):
        runs[0].plot("rounds")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fl_sim.plot_runs("runs"), "runs is 'runs'; allowed: a list of runs"),
        (lambda: fl_sim.compare("runs"), "runs is 'runs'; allowed: a list of runs"),
        (lambda: fl_sim.account_runs("runs"), "runs is 'runs'; allowed: a list of runs"),
        (lambda: fl_sim.account_runs([5]), "run is 5; allowed: an open run, or the path of its folder"),
        (lambda: fl_sim.leak([5]), "run is 5; allowed: an open run, or the path of its folder"),
        (lambda: fl_sim.open_run(None), "run is None; allowed: an open run, or the path of its folder"),
        (lambda: fl_sim.resume(None), "run is None; allowed: an open run, or the path of its folder"),
    ],
)
def test_what_is_no_run(call: Any, message: str) -> None:
    with pytest.raises(ResultsError, match=message):
        call()


# Corpora


def test_what_is_no_corpus() -> None:
    with pytest.raises(CorpusError, match="`path` is None; allowed: a folder, or the name of a corpus that ships"):
        fl_sim.open_corpus(None)  # type: ignore[arg-type]
    with pytest.raises(CorpusError, match="no split 'tran', only train, validation, public"):
        fl_sim.open_corpus().sentences("tran")


def test_a_corpus(tmp_path: Path, printed: Printed) -> None:
    corpus = fl_sim.open_corpus(tiny.tiny_corpus(tmp_path / "tiny"), verify=True)
    sentences = corpus.sentences("train")
    assert len(sentences) == tiny.USERS * tiny.SENTENCES_EACH
    assert list(sentences.columns) == ["user", "text", "mentions"]
    assert sentences.loc[0, "text"] == "Ada saw 0 boats and 0 birds."
    assert sentences["mentions"].sum() == corpus.mentions("train").num_rows
    np.testing.assert_array_equal(sentences.groupby("user").size(), corpus.users("train")["sentences"])
    splits = "train 6 users, 24 sentences; validation 6 users, 24 sentences; lonely 1 user, 1 sentence; plain 2 users, "
    assert repr(corpus) == f"Corpus(tiny: {splits}2 sentences)"
    html = corpus._repr_html_()
    assert all(cell in html for cell in ("<th>tiny</th>", "<th>train</th>", "<td>6</td>", "<td>24</td>"))
    assert fl_sim.corpus_stats(corpus).items() <= printed("corpus", "stats", corpus.path).items()


@pytest.mark.system
def test_a_prepared_corpus_is_that_of_the_command(tmp_path: Path, printed: Printed) -> None:
    rows = [{"who": f"user {n % 5}", "said": f"Ada Lovelace wrote letter {n}.", "kind": n % 2} for n in range(30)]
    source = tmp_path / "letters.jsonl"
    source.write_text("\n".join(json.dumps(row) for row in rows))
    columns = {"text_column": "said", "user_column": "who", "target_column": "kind"}
    corpus = fl_sim.prepare("jsonl", str(source), tmp_path / "ours", tagger=["rules", "structured"], seed=3, **columns)
    flags = [word for name, value in columns.items() for word in (f"--{name.replace('_', '-')}", value)]
    words = ["--source", source, "--out", tmp_path / "theirs", "--tagger", "rules+structured", "--seed", 3]
    assert corpus.fingerprint == printed("prepare", "jsonl", *words, *flags)["fingerprint"]
    assert set(corpus.sentences("train")["class"]) == {"0", "1"}
    grown = tmp_path / "more.jsonl"
    grown.write_text(json.dumps({"who": "user 9", "said": "Ada was late.", "kind": 1}))
    corpus = fl_sim.prepare(
        "jsonl", grown, tmp_path / "ours", tagger="rules", test_fraction=0, append=True, joined_at=3, **columns
    )
    assert len(corpus.parts) == 2


def test_a_prepared_frame_is_recognised(tmp_path: Path) -> None:
    rows = [(f"user {n % 5}", f"Ada Lovelace wrote letter {n}.") for n in range(30)]
    table, columns = pd.DataFrame(rows, columns=["who", "said"]), {"text_column": "said", "user_column": "who"}
    corpus = fl_sim.prepare(table, tmp_path / "ours", tagger="rules", **columns)
    assert (corpus.manifest.name, corpus.sentences("train")["text"][0]) == ("ours", rows[0][1])
    assert fl_sim.prepare(table, out=tmp_path / "ours", tagger="rules", **columns) == corpus
    with pytest.raises(CorpusError, match="holds another corpus"):
        fl_sim.prepare(table.head(20), tmp_path / "ours", tagger="rules", **columns)
    with pytest.raises(CorpusError, match="no sentence, so no user") as told:
        fl_sim.prepare(table.assign(who=None), tmp_path / "none", tagger="rules", **columns)
    assert told.value.__notes__ == ["30 rows without a user dropped"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([pd.DataFrame()], "`out` is missing; allowed: the corpus's folder"),
        ([pd.DataFrame(), "a.csv", "out"], "`source` is 'a.csv' beside a DataFrame; allowed: one of them"),
        (
            ["csv", pd.DataFrame(), "out"],
            "`source` is of type DataFrame; allowed: a path; a table stands in place of kind",
        ),
        (
            [["a text"], "out"],
            "`kind` is of type list; allowed: the name of a reader, a pandas DataFrame, or a dataset",
        ),
        ([pd.DataFrame(), "out"], "`text_column` is missing; allowed: a value is needed with a DataFrame"),
    ],
)
def test_a_table_in_another_place(words: list[Any], message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        fl_sim.prepare(*words)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_column": "a"}, "`user_column` is missing; allowed: a value is needed with csv"),
        (
            {"text_column": "a", "user_column": "b", "text": "c"},
            "`text` is no option of csv; allowed: source, text_column",
        ),
    ],
)
def test_an_option_that_a_reader_does_not_have(options: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=message):
        fl_sim.prepare("csv", tmp_path / "a.csv", tmp_path / "corpus", **options)  # type: ignore[arg-type]


# ε


@pytest.mark.system
def test_account_says_what_the_command_says(printed: Printed) -> None:
    words = "--strategy uedp --z 3 --q-e 0.5 --q-s 0.05 --user-cap 2 --rounds 20 --delta 1e-5 --user-sentences 40"
    mechanism = {"noise_multiplier": 3.0, "q_e": 0.5, "q_s": 0.05, "user_cap": 2.0, "rounds": 20, "user_sentences": 40}
    figures = fl_sim.account(**mechanism, delta=1e-5, entity=(6, 3, 7))
    bound = "--entity-users 6 --entity-sentences 3 --entity-total 7"
    assert figures == decode(printed("account", "mechanism", *words.split(), *bound.split()))
    assert figures == fl_sim.account("uedp", **mechanism, delta=1e-5, entity=ContributionBound(6, 3, 7))


@pytest.mark.system
def test_calibrate_finds_what_the_command_finds(printed: Printed) -> None:
    words = "--strategy user_level --target-epsilon 2 --q-u 0.05 --delta 1e-5"
    z = fl_sim.calibrate(2.0, "user_level", q_u=0.05, rounds=30, delta=1e-5)
    found = decode(printed("account", "calibrate", *words.split(), "--rounds", 30))
    assert found["noise_multiplier"] == z
    assert found["epsilon_user"] <= 2 < found["epsilon_user_entity"]  # the default target is what user_level protects
    rounds = fl_sim.calibrate(2.0, "user_level", q_u=0.05, noise_multiplier=2.0, delta=1e-5, solve_for="rounds")
    found = printed("account", "calibrate", *words.split(), "--z", 2, "--solve-for", "rounds")
    assert (found["rounds"], type(found["rounds"])) == (rounds, int)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fl_sim.calibrate(2.0, delta=1e-5), "rounds is missing; allowed: a value is needed to solve for noi"),
        (
            lambda: fl_sim.calibrate(2.0, delta=1e-5, solve_for="rounds"),
            "noise_multiplier is missing; allowed: a value is needed to solve for rounds",
        ),
        (lambda: fl_sim.account(noise_multiplier=1e-9, rounds=1, delta=1e-5), "noise_multiplier is 1e-09; allowed: at"),
        (lambda: fl_sim.account(noise_multiplier="4", rounds=1), "noise_multiplier is '4'; allowed: a number"),
        (lambda: fl_sim.account(noise_multiplier=1.0, rounds=0, delta=1e-5), "rounds is 0"),
        (lambda: fl_sim.account(noise_multiplier=10**400, rounds=1), "noise_multiplier is 10000.*of at most 1e308"),
        (lambda: fl_sim.account(noise_multiplier=1.0, rounds=1, clipping="User"), "clipping is 'User'; allowed: sent"),
        (lambda: fl_sim.account(noise_multiplier=1.0, rounds=1, users=-5), "users is -5; allowed: at least 1"),
        (lambda: fl_sim.calibrate(2.0, rounds=1.5), "rounds is 1.5; allowed: an integer"),
        (lambda: fl_sim.calibrate(2.0, rounds=3, epoch_rounds=2.5), "epoch_rounds is 2.5; allowed: an integer"),
        (
            lambda: fl_sim.account(noise_multiplier=1.0, rounds=1, entity=5),
            r"entity is 5; allowed: \(users, sentences of",
        ),
        (lambda: fl_sim.calibrate(2.0, rounds=3, unit="users"), "unit is 'users'; allowed: user, user_entity, user_e"),
        (lambda: fl_sim.calibrate(2.0, rounds=3, solve_for="z"), "solve_for is 'z'; allowed: noise_multiplier, rounds"),
        (
            lambda: fl_sim.calibrate(2.0, rounds=3, qs=0.1),
            "'qs' is no setting of a round; allowed: q_u, q_e, q_s, user_cap, clipping, epoch_rounds$",
        ),
        (lambda: fl_sim.audit(noise_multiplier=1.0, qs=0.1), "'qs' is no setting of a round; .*, user_cap, clipping$"),
        (lambda: fl_sim.account_runs([]), "runs is empty; allowed: at least one run"),
        (lambda: fl_sim.account(noise_multiplier=1.0, rounds=1, delta=1e-5, entity=(-1, 1)), "users is -1"),
        (
            lambda: fl_sim.audit(noise_multiplier=1.0, units=("users",)),
            "unit is 'users'; allowed: user, entity, user_entity",
        ),
    ],
)
def test_an_impossible_value_is_named(call: Any, message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        call()


def test_the_published_algorithm(printed: Printed) -> None:
    settings = fl_sim.PublishedSettings("f_e_plus", 946, 50, 2.0, q_e=0.5, sentences=14040, sensitive_sentences=11176)
    words = (
        "--estimator f_e_plus --users 946 --users-per-round 50 --z 2 --q-e 0.5 --sentences 14040 "
        "--sensitive-sentences 11176 --rounds 5 --delta 1e-5 --entity-users 2"
    )
    figures = fl_sim.account_published(settings, rounds=5, delta=1e-5, entity=(2, 1))
    assert figures["delta_times_users"] == 1e-5 * 946
    assert figures == decode(printed("account", "published", *words.split()))


@pytest.mark.system
def test_audit_says_what_the_command_says(printed: Printed) -> None:
    words = "--strategy uedp --z 2 --q-s 0.5 --user-sentences 3 --trials 500 --seed 3"
    names: list[str] = []
    findings = fl_sim.audit(noise_multiplier=2.0, q_s=0.5, user_sentences=3, trials=500, seed=3, progress=names.append)
    assert names == ["user", "entity", "user_entity"]
    told = printed("audit", "mechanism", *words.split())["audits"]
    assert [decode(finding.record()) for finding in findings] == decode(told)
