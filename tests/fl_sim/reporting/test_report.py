"""The report answers first; in full it states the promise, its limits and its price. Neither rounds an ε down."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fl_sim.cli.main import main
from fl_sim.formats import percent_down, percent_up
from fl_sim.reporting.comparison import compare_runs
from fl_sim.reporting.model_card import card_of, note_on_texts
from fl_sim.reporting.plots import epsilon_chart, present
from fl_sim.reporting.recorded import Coverage, Share
from fl_sim.reporting.report import full_report_text, report_text
from fl_sim.reporting.run_facts import has_guarantee, read_facts
from fl_sim.reporting.run_list import list_runs
from fl_sim.storage.run_folder import ResultsError, RunFolder
from fl_sim.strategies.ledger import LedgerError
from tests.fl_sim.conftest import GUARANTEE, Capture, MakeRun, Printed, Refusal, add_releases, ended_with
from tests.fl_sim.released_runs import released_run
from tests.fl_sim.reporting.test_without_privacy import twin_beside
from tests.strategies.federation import plan


def words_of(run: RunFolder) -> str:
    """The full report of a run without its lines."""
    return " ".join(full_report_text(read_facts(run)).split())


def test_the_summary_leads_with_any_user_and_any_entity(make_run: MakeRun) -> None:
    run = make_run("uedp")
    text = full_report_text(read_facts(run))
    lines = text.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("Privacy at δ = 1e-5, counts known"))
    assert lines[head + 1].split("  ")[1] == "any user + any entity"
    assert lines[head + 1].split()[-2:] == ["15.02", "33.40"]
    for said in (
        "Bounds, enforced as sums of weights: ≤ 300 sentences with an entity, ≤ 60 sentences of a user.",
        "Kept, by weight: 87.0 % of the sentences, 64.1 % of the mentions (ORG 50.0 %, PER 77.7 %).",
        "said with the protected entity, that these sentences exist, and who mentions whom.",
        "It takes as known how many sentences each user has, and how many mention each entity.",
        "Any entity: each one that the tagger finds, and each sentence in which it finds none.",
        "Mentions that it misses, up to 4 of an entity, as stated, count in the ε of missed mentions alone.",
        "one user and one entity at once",
        "Privacy at δ = 1e-5",
        "any user, ≤ 60 sentences by weight",
        "946 users, 14,041 sentences",
        "30 of 30 rounds, finished",
        "noise multiplier z 1 (noise 2.5 on the sum)",
        "655.0 at the end; 912.3 by a unigram model",
        "The guarantee covers the sequence of models",
        "Not covered by ε: training loss, realised cohort sizes",
    ):
        assert said in words_of(run)
    assert text.index("any user + any entity") < text.index("by contribution, read off this corpus")
    rows = re.findall(r"^  (\w+)[^:\n]*: ≤ ([^.]+?) +([\d.]+) +([\d.]+)$", text, re.MULTILINE)
    assert {name: (" ".join(bound.split()), plain, robust) for name, bound, plain, robust in rows} == {
        "median": ("1 user, ≤ 1 sentence", "2.23", "2.31"),
        "95th": ("3 users, ≤ 2 sentences each, ≤ 5 in all", "2.61", "3.05"),
        "maximum": ("90 users, ≤ 12 sentences each, ≤ 300 in all", "14.20", "31.70"),
    }


def test_a_bound_that_is_only_stated_is_called_so(make_run: MakeRun) -> None:
    bounds = GUARANTEE | {"known": "nothing", "counts": "", "user_sentences": None, "missed_mentions": None}
    result = {"guarantee": bounds, "kept": None, "settings_from_corpus": True}
    run = make_run("uedp", rounds=2, result=result)
    ended_with(run, epsilon_stated=15.02, epsilon_any=math.inf, epsilon_any_robust=None)
    for said in (
        "Privacy at δ = 1e-5, nothing known",
        "any user + an entity within the stated bound 15.02 –",
        "Bounds, stated, not enforced: ≤ 300 sentences with an entity.",
        "said with the protected entity, and whether they exist.",
        "It takes nothing as known but N.",
        "Mentions that it misses are outside the bound",
    ):
        assert said in words_of(run)
    assert read_facts(run).epsilon["epsilon_any"] == math.inf


def test_the_seconds_of_a_run_are_those_of_its_recorded_rounds(make_run: MakeRun) -> None:
    run = make_run("uedp", rounds=3, finish=False)
    run.append_metrics({"round": 4, "seconds": 1e4})
    assert read_facts(run).seconds == read_facts(run).record()["seconds"] == 4 * 1.5 + 1e4
    run.truncate_metrics(-1)
    for number, seconds in enumerate((None, math.nan, "soon")):  # another version's, or an edited file
        run.append_metrics({"round": number, "seconds": seconds})
    assert read_facts(run).seconds is None


@pytest.mark.parametrize("strategy", ["uedp", "user_level", "noiseless"])
def test_the_summary_fits_one_screen(make_run: MakeRun, strategy: str) -> None:
    lines = full_report_text(read_facts(make_run(strategy, result={"warnings": ["δ is at least 1/N"]}))).splitlines()
    assert len(lines) <= 42
    assert max(len(line) for line in lines) <= 80


def test_the_summary_names_the_kinds_that_nobody_looked_for(make_run: MakeRun) -> None:
    corpus = {"name": "x", "users": 946, "sentences": 14041}
    run = make_run("uedp", result={"corpus": corpus | {"not_looked_for": ["persons", "places"]}})
    assert "Nobody looked for: persons, places. Plain ε of an entity covers none of these." in words_of(run)
    assert read_facts(run).record()["corpus"]["not_looked_for"] == ["persons", "places"]
    complete = make_run("uedp", name="complete", result={"corpus": corpus | {"not_looked_for": []}})
    assert "Nobody looked for" not in words_of(complete)


def test_a_noiseless_run_has_no_epsilon_at_all(make_run: MakeRun) -> None:
    text = full_report_text(read_facts(make_run("noiseless")))
    assert "no guarantee (ε = ∞)" in text
    assert "Protects    no user and no entity" in text
    assert "δ" not in text


def test_a_private_strategy_without_a_finite_epsilon_promises_nothing() -> None:
    private = plan().mechanism
    assert not has_guarantee(private, {"epsilon_user": math.inf, "loss": 1.0})
    assert has_guarantee(private, {"epsilon_user": math.inf, "epsilon_user_entity_median": 3.0})
    noiseless = plan(strategy="noiseless", clip_norm=math.inf, noise_multiplier=0.0).mechanism
    assert not has_guarantee(noiseless, {"epsilon_user": 0.0})
    claimed = {"epsilon_user": math.inf, "epsilon_as_published": 0.46}
    assert not has_guarantee(None, claimed)
    assert has_guarantee(None, claimed | {"epsilon_user": 0.007})


def test_a_published_claim_stands_below_what_is_proven(make_run: MakeRun) -> None:
    facts = read_facts(ended_with(make_run("uedp"), epsilon_as_published=0.46))
    assert "epsilon_as_published" not in facts.record()["epsilon"]
    assert facts.record()["epsilon_as_published"] == 0.46
    text = report_text(facts)
    assert "a claim, no guarantee" in text
    assert text.index("any user ") < text.index("as published")


def test_warnings_and_a_half_written_line_are_shown(make_run: MakeRun) -> None:
    run = make_run("uedp", result={"warnings": ["δ is 0.01, at least 1/N = 0.001: it permits naming a user"]})
    os.truncate(run.metrics_file, run.metrics_file.stat().st_size - 4)
    assert "Warning δ is 0.01, at least 1/N = 0.001" in words_of(run)
    assert "line 31: cut off" in words_of(run)


def test_an_unfinished_run_is_reported_as_far_as_it_came(make_run: MakeRun) -> None:
    text = full_report_text(read_facts(make_run("uedp", finish=False)))
    assert "30 of 30 rounds, interrupted" in text
    assert "an entity (its contribution bound is not recorded)" in text
    assert re.search(r"any user +\d", text)  # no bound on users is recorded


def known_in_config(run: RunFolder, known: str) -> RunFolder:
    """The run with another word in its config.json."""
    config = json.loads(run.config_file.read_text()) | {"guarantee": GUARANTEE | {"known": known}}
    run.config_file.write_text(json.dumps(config))
    return RunFolder.open(run.path)


@pytest.mark.parametrize("finish", [True, False])
@pytest.mark.parametrize("known", ["cxunts", "nothing"])
def test_no_run_claims_another_adjacency_than_its_ledger(make_run: MakeRun, finish: bool, known: str) -> None:
    run = known_in_config(make_run("uedp", rounds=2, finish=finish), known)
    facts = read_facts(run).record()
    assert facts["epsilon"] == {}
    assert facts["bounds"] == GUARANTEE
    assert facts["ledger"]["problem"].endswith(f"known is {known}, but the releases in its ledger have counts")
    assert "takes nothing as known" not in words_of(run)
    assert "no ε can be trusted" in words_of(run)
    with pytest.raises(LedgerError, match=f"known is {known}"):
        note_on_texts(read_facts(run))


def test_a_running_run_shows_the_bounds_of_its_releases(make_run: MakeRun) -> None:
    run = known_in_config(make_run("uedp", rounds=2, finish=False), "counts")
    assert read_facts(run).record()["bounds"] == GUARANTEE
    assert "It takes as known how many sentences each user has" in words_of(run)


def test_a_run_without_a_release_states_no_unknown_adjacency(tmp_path: Path) -> None:
    config = {"run": {"seed": 0}, "guarantee": GUARANTEE}
    run = RunFolder.create(tmp_path / "begun", config=config, environment={})
    assert read_facts(run).record()["bounds"] == GUARANTEE
    for changes in ({"known": "cxunts"}, {"entity_bound": 0}, {"graph": "counts"}):
        run.config_file.write_text(json.dumps(config | {"guarantee": GUARANTEE | changes}))
        with pytest.raises(ResultsError, match=r"config\.json: "):
            read_facts(RunFolder.open(run.path)).record()


def test_an_empty_run_can_be_finished(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "empty", config={}, environment={})
    run.finish({"stopped": "interrupted"}, present)
    text = run.summary_file.read_text()
    assert "no round is recorded" in text
    assert "no perplexity is recorded" in text


@pytest.mark.system
def test_finish_writes_every_file_and_may_be_repeated_after_a_resume(make_run: MakeRun) -> None:
    run = make_run("uedp", finish=False)
    run.finish({"stopped": "interrupted"}, present)
    run.append_metrics({"round": 31, "epsilon_user": math.inf, "perplexity": 600.0})
    run.finish({"stopped": "rounds"}, present)
    assert run.result is not None
    assert run.result["stopped"] == "rounds"
    assert run.summary_file.read_text() == full_report_text(read_facts(run))
    assert len(list(run.plots_dir.glob("*.png"))) == 2
    assert run.metrics()["epsilon_user"].iloc[-1] == math.inf


def test_settings_come_from_the_result_before_the_config(make_run: MakeRun) -> None:
    unfinished = make_run("uedp", z=1.5, finish=False)
    assert unfinished.setting("noise_multiplier") == 1.5
    unfinished.finish({"plan": {"noise_multiplier": 1.25}})
    assert unfinished.setting("noise_multiplier") == 1.25
    assert unfinished.setting("seed") == 0
    assert unfinished.setting("nothing_of_that_name") is None


def test_not_any_entity_is_covered_where_no_bound_is_enforced(make_run: MakeRun) -> None:
    unbounded = ended_with(make_run("uedp", rounds=2), epsilon_any=math.inf)
    assert "Any entity" not in words_of(unbounded)
    assert "ε is of one that the tagger finds, within a percentile of its corpus." in words_of(unbounded)
    stated = words_of(ended_with(unbounded, epsilon_stated=2.0))
    assert "An entity within the stated bound: one that the tagger finds, or a sentence" in stated
    assert "Any entity" not in stated


def test_epsilon_with_other_numbers_of_missed_mentions_are_told_apart(make_run: MakeRun) -> None:
    compared = compare_runs([make_run("uedp", name=name, rounds=1) for name in ("one", "other")])
    first, other = compared.runs
    bounds = replace(other.facts.bounds, missed_mentions=2)
    runs = (first, replace(other, facts=other.facts.model_copy(update={"bounds": bounds})))
    (note,) = replace(compared, runs=runs).notes
    assert note == "“ε missed” are not comparable: the number of missed mentions is 4 in A and 2 in B."
    assert replace(compared, runs=runs).epsilon_comparable


def test_a_unit_leaves_out_the_names_on_a_public_list(make_run: MakeRun) -> None:
    listed = {"public_entities": 12, "mentions_of_public_names": 0.021}
    runs = [
        make_run("uedp", name=name, rounds=1, result=listed | {"guarantee": GUARANTEE | {"public_names": digest * 32}})
        for name, digest in (("one", "ab"), ("same", "ab"), ("other", "cd"))
    ]
    plain = make_run("uedp", name="plain", rounds=1)
    assert read_facts(runs[0]).headline.unit_words == "any user + any entity, public names apart"
    assert "for any user together with any entity, public names apart," in note_on_texts(read_facts(runs[0]))["note"]
    text = compare_runs(runs[:2]).text()
    assert text.count("any entity, not public\n") == 2
    assert "not comparable" not in text
    assert compare_runs(runs[1:]).notes == [
        "ε are not comparable: the list of public names is abababab in A and cdcdcdcd in B."
    ]
    assert (
        "the protected unit is any user + any entity, public names apart in A"
        in compare_runs([runs[0], plain]).notes[0]
    )
    assert "not public" not in compare_runs([plain]).text()
    assert "ε of any user + any entity, public names apart" in epsilon_chart({"one": read_facts(runs[0])}).title
    said = list_runs([plain.path.parent]).text()
    assert said.count("Not protected: entities on a list of public names (12, 2.1 % of the mentions).") == 3


def test_after_earlier_runs_a_bound_that_nothing_enforces_is_of_each_of_them(make_run: MakeRun) -> None:
    """An ε of 6.10 stood beside "covers 50 %" and a bound that an entity kept whose ε was 16.1: the earlier run's."""
    head = {"run": "ab", "entries": 2, "last": "cd"}
    bounds = GUARANTEE | {"known": "nothing", "user_sentences": None, "counts": ""}
    before = {"initial_model": {"composed": [head], "left_out": 0, "disjoint": False}}
    run = make_run("uedp", rounds=1, result={"guarantee": bounds} | before)
    ended_with(run, epsilon_any=math.inf, epsilon_stated=15.02)
    assert "median in each run, here: ≤ 1 user, ≤ 1 sentence" in words_of(run)
    assert [found.share for found in read_facts(run).contributions()] == [None] * 3
    assert "any user + an entity within the stated bound in each of its runs 15.02" in words_of(run)


def test_a_stated_bound_is_of_users_too(make_run: MakeRun) -> None:
    """1.64 was beside 3.51 as one statement, of an entity in four sentences: of one user, and of four."""
    bounds = GUARANTEE | {"known": "nothing", "user_sentences": None, "counts": "", "entity_bound": 4}
    several = [
        ended_with(
            make_run("uedp", name=f"of-{users}", rounds=1, result={"guarantee": bounds | {"entity_users": users}}),
            epsilon_any=math.inf,
            epsilon_stated=15.02,
        )
        for users in (1, 4)
    ]
    compared = compare_runs(several)
    assert "an entity in ≤ 4 sentences of 1 user, stated" in compared.text()
    assert "within the stated bound of 4 sentences of 1 user in A and any user" in " ".join(compared.notes)
    assert not compared.epsilon_comparable


def test_settings_of_a_search_are_not_those_of_the_run(make_run: MakeRun) -> None:
    others = {"seed": 7, "noise_multiplier": 40.0, "population": 600, "delta": 0.1, "privacy": {"q_u": 0.25}}
    run = make_run("uedp", z=0.4, seed=3, result={"origin": others})
    settings = read_facts(run).record()["settings"]
    assert [settings[name] for name in ("seed", "noise_multiplier", "population", "q_u")] == [3, 0.4, 946, 1.0]
    assert read_facts(run).record()["delta"] == 1e-5


@pytest.mark.parametrize(
    ("share", "up", "down"),
    [
        (0.12341, "12.4", "12.3"),
        (0.5, "50.0", "50.0"),
        (1.0, "100.0", "100.0"),
        (0.99999, "100.0", "99.9"),
        (0.0004, "0.1", "0.04"),
    ],
)
def test_shares_are_rounded_to_their_safe_side(share: float, up: str, down: str) -> None:
    """What an attacker may find is rounded up, what a tagger found down."""
    assert (percent_up(share), percent_down(share)) == (up, down)
    coverage = Coverage(mentions_with_coin=Share(value=0.9))
    assert "about 2 sentences" in coverage.in_words(10)  # 10/9 of a sentence


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("held_out", {"users": 1}, "held_out.sentences"),
        ("kept", {"sentences": "most", "mentions": 1.0}, "kept.sentences"),
        ("reach", {"p95": [3]}, "reach.p95"),
        ("failed_nodes", {"silent": "twice"}, "failed_nodes.silent"),
        ("unigram_perplexity", "high", "utility.reference"),
    ],
)
def test_a_value_of_another_kind_is_one_line_that_names_it(
    make_run: MakeRun, refusal: Refusal, key: str, value: Any, named: str
) -> None:
    run = make_run("uedp", rounds=1, result={key: value})
    assert f"{run.result_file}: is corrupt ({named}: " in refusal("report", run.path)


class TestShortReport:
    """What ``fl-sim run`` and ``fl-sim report`` print."""

    MAIN_JOB: ClassVar[dict[str, Any]] = {  # as conf/irc.toml ends
        "corpus": {
            "name": "irc", "users": 15768, "sentences": 199679,
            "not_looked_for": ["persons", "organisations", "places"],
        },
        "attacker": {"unit": "any", "largest_tpr_at_fpr": {"0.001": 0.0594, "0.01": 0.1995}},
        "guarantee": GUARANTEE | {"entity_bound": 2, "user_sentences": 8, "missed_mentions": None},
        "user_sentences": 8.0, "bits_per_byte": 2.3977, "initial_bits_per_byte": 2.6725,
        "warnings": ["N is the corpus's number of users, which its counts make public (privacy.population)."],
    }  # fmt: skip

    @pytest.mark.parametrize("has_twin", [False, True])
    def test_the_main_job_takes_24_lines(self, make_run: MakeRun, has_twin: bool) -> None:
        run = make_run("uedp", name="irc-uedp", result=self.MAIN_JOB)
        if has_twin:
            twin_beside(run, "irc-noiseless")
        text = report_text(read_facts(run))
        lines = text.splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80
        words = " ".join(text.split())
        said = [
            "irc-uedp (uedp): 30 of 30 rounds, finished; its rounds took 46 s",
            "Privacy at δ = 1e-5, counts known",
            "any user + any entity 15.02",
            "ε hides what the protected user wrote",
            "it takes as known how many sentences each user has",
            "nobody looked for: persons, organisations, places",
            "finds at most 6.0 % (at 0.1 % false positives) and 20.0 % (at 1 % false positives)",
            "Warning N is the corpus's number of users",
            "held-out perplexity 655.0 4,000.0",
            "bits per byte 2.40 2.67",
        ]
        for words_of_report in said:
            assert words_of_report in words
        assert ("of the way from the start to irc-noiseless in log perplexity" in words) == has_twin
        assert ("Without privacy: not known" in words) != has_twin
        assert "per word" not in words
        sentences = re.findall(r"[^·.;:]{25,}", words)
        assert len(set(sentences)) == len(sentences)  # nothing is said twice

    def test_what_the_guarantee_does_not_hold_for_is_said(self, make_run: MakeRun) -> None:
        result = {"public_entities": 12, "mentions_of_public_names": 0.021}
        words = " ".join(report_text(read_facts(make_run("uedp", result=result))).split())
        assert "Not protected: entities on a list of public names (12, 2.1 % of the mentions)." in words
        assert "those that the tagger found, in “ε missed” with up to 4 mentions missed of each." in words

    def test_entities_are_told_by_contribution_where_no_bound_is_set(self, make_run: MakeRun) -> None:
        run = make_run("uedp", rounds=2)
        assert "by contribution" not in report_text(read_facts(run))
        words = " ".join(report_text(read_facts(ended_with(run, epsilon_any=math.inf))).split())
        assert "any user + any entity ∞" in words
        assert "95th pctl (95 %): ≤ 3 users, ≤ 2 sentences each, ≤ 5 in all" in words

    def test_an_older_measurement_names_its_round(self, make_run: MakeRun) -> None:
        run = make_run("uedp", rounds=2, finish=False)
        assert "Measured after" not in report_text(read_facts(run))
        run.append_metrics({"round": 3, "seconds": 1.5})
        assert "Measured after round 2." in report_text(read_facts(run))

    def test_an_interrupted_run_that_went_on_has_no_figures_of_its_earlier_end(self, make_run: MakeRun) -> None:
        """An attacker of the later models reaches more than was proven of the earlier ones."""
        run = make_run("uedp", result=self.MAIN_JOB | {"stopped": "interrupted"})
        assert "finds at most 6.0 %" in report_text(read_facts(run))
        add_releases(run, 1)
        run.append_metrics(run.metrics().to_dict("records")[-1] | {"round": 31, "releases": 31, "epsilon_any": 30.0})
        text = report_text(read_facts(run))
        assert "31 of 30 rounds, interrupted" in text
        assert "30.00" in text
        assert "finds at most" not in text
        assert "2.40" not in text  # bits per byte

    def test_a_noiseless_run_has_an_end_and_no_twin(self, make_run: MakeRun) -> None:
        run = make_run("noiseless")
        twin_beside(run, "another")
        text = report_text(read_facts(run))
        assert "no guarantee (ε = ∞)" in text
        assert re.search(r"^Utility +end +start$", text, re.MULTILINE)
        assert "δ" not in text
        assert "of the way" not in text


class TestCommand:
    def test_text(self, make_run: MakeRun, refusal: Refusal, capsys: Capture) -> None:
        run = make_run("uedp")
        for flags, text in (((), report_text), (("--full",), full_report_text)):
            assert main(["report", str(run.path), *flags]) == 0
            assert capsys.readouterr().out == text(read_facts(run))
        assert "--full is given with 2 runs; allowed: with one" in refusal("report", run.path, run.path, "--full")

    def test_json_is_one_strict_object_with_unrounded_epsilon(self, make_run: MakeRun, printed: Printed) -> None:
        facts = printed("report", make_run("uedp").path)
        assert facts["epsilon"]["epsilon_user"] == 2.181
        assert facts["delta"] == 1e-5
        assert facts["guarantee"] is True
        assert facts["headline"]["epsilon"] == facts["epsilon"]["epsilon_any"] == 15.02
        assert facts["bounds"]["entity_bound"] == 300
        assert facts["kept"]["sentences"] == 0.8709
        assert facts["settings_from_corpus"] is False
        assert facts["rounds_done"] == 30
        assert facts["utility"]["reference"] == 912.3
        free = printed("report", make_run("noiseless").path)
        assert (free["epsilon"]["epsilon_user"], free["guarantee"]) == ("inf", False)


def test_an_epsilon_of_users_alone_hides_nothing_of_an_entity(make_run: MakeRun) -> None:
    """As in a corpus without entities: 1.04 of any user was said to hide “what was said with the protected entity”."""
    facts = read_facts(make_run("user_level"))
    users = {name: value for name, value in facts.epsilon.items() if "entity" not in name}
    facts = facts.model_copy(update={"epsilon": users | {"epsilon_any": math.inf, "epsilon_any_robust": math.inf}})
    said = " ".join(report_text(facts).split())
    assert "No entity is protected: what several users say of one is not hidden." in said
    assert "said with the protected entity" not in said


def test_all_views_of_a_run_of_a_sweep_say_that_epsilon_covers_no_choice(tmp_path: Path, corpus: Path) -> None:
    run = ended_with(released_run(tmp_path / "runs" / "point0000-seed0", corpus, 1), epsilon_any=9.0, epsilon_user=9.0)
    words = "One of the runs of a sweep: its ε covers no choice among them"
    for of_a_sweep in (False, True):
        facts = read_facts(run)
        for said in (report_text(facts), card_of(run, facts), note_on_texts(facts)["note"]):
            assert (words in " ".join(said.split())) is of_a_sweep
        (tmp_path / "sweep.json").touch()


def test_what_epsilon_does_not_hold_for_is_said_of_a_killed_run(tmp_path: Path, corpus: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("Ada\nKent\nZurich\n")
    stated = {"entity_bound": 2, "user_sentences": 3, "settings_from_corpus": True, "delta": 0.5}
    run = released_run(tmp_path / "run", corpus, 1, public_names=str(names), **stated)
    facts = read_facts(ended_with(run, epsilon_any=9.0, epsilon_user=9.0))
    assert (facts.state, facts.settings_from_corpus) == ("interrupted", True)
    assert facts.public_entities
    said = " ".join(report_text(facts).split())
    assert "Not protected: entities on a list of public names" in said
    assert "settings chosen on this corpus: not covered by ε" in said
    assert "δ = 0.5 is not below 1/N" in said
