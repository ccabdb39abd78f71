"""Figures as files and as records: what may be asked for, what is claimed beside what is proven, what is written."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.taggers.categories import Selection
from fl_sim.research.uedp_paper.figure_corpora import CorpusStore, settings_of
from fl_sim.research.uedp_paper.figure_document import (
    document,
    ordered,
    picture_name,
    picture_of,
    section,
    write_document,
)
from fl_sim.research.uedp_paper.figure_records import (
    CorpusRecord,
    CurveRecord,
    PanelRecord,
    PointRecord,
    Trace,
    TrainingRecord,
    check_publishable,
    check_same_settings,
    file_name,
    read_record,
    read_records,
    with_earlier_panels,
    write_record,
)
from fl_sim.research.uedp_paper.figure_training import Plan, check_settings, plan_figure, points_of
from fl_sim.research.uedp_paper.figures import (
    EpsilonFigure,
    PublishedNumber,
    TableFigure,
    TrainingFigure,
    find_figure,
    find_figures,
    load_figure,
)
from fl_sim.research.uedp_paper.make_figure import epsilon_panels
from fl_sim.storage.run_folder import ResultsError
from fl_sim.strategies.postprocessing import ServerOptimizerConfig
from fl_sim.strategies.published import STATED_STEP
from tests.research.uedp_paper.records import plain_point

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results"
GOLDEN = ROOT / "tests" / "golden" / "published_epsilon.csv"

SMALL = """
title = "A figure"
shows = "What it shows."
x = "epsilon"
[corpora.bundled]
kind = "bundled"
[[panels]]
name = "a"
title = "a: bundled"
corpus = "bundled"
[[curves]]
name = "uedp"
label = "ours"
set = { "privacy.strategy" = "uedp" }
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "figure.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", sorted((ROOT / "conf" / "figures").glob("*.toml")), ids=lambda path: path.stem)
def test_every_file_of_the_project_can_be_run_at_both_sizes(path: Path) -> None:
    figure = load_figure(path)
    if isinstance(figure, TrainingFigure):
        check_settings(figure.sized("default"))
        check_settings(figure.sized("full"))
        assert len(figure.seeds) >= 3 or figure.why_few_seeds


@pytest.mark.parametrize("name", ["table2", "fig2", "fig3a", "fig3b", "fig5", "fig6", "fig7"])
def test_ag_and_sec_have_the_entities_that_the_paper_means(name: str) -> None:
    """Its accounts of both are of spaCy's labels, and "all" is organisation, location, GPE and PII."""
    figure = load_figure(find_figures()[name])
    assert isinstance(figure, TrainingFigure | TableFigure)
    sources = [
        source for source in (*figure.corpora.values(), *figure.full.corpora.values()) if source.kind != "conll2003"
    ]
    assert sources
    for source in sources:
        settings, _ = settings_of(source)
        assert settings["tagger"] == "spacy:en_core_web_sm"
        assert Selection.parse(settings["entities"]) == Selection.parse("org,loc,gpe,pii")
        assert settings.get("text") == ("title" if source.kind == "ag-news" else None)


def test_every_kind_of_entity_that_the_paper_prints_is_drawn() -> None:
    figure = load_figure(find_figures()["fig2"])
    assert isinstance(figure, TrainingFigure)
    for number in figure.published:
        if number.curve.startswith("UeDP-Alg"):
            kind = number.curve.removeprefix("UeDP-Alg ")
            drawn = [
                curve
                for curve in figure.curves
                if kind in curve.label and number.panel in (curve.panels or (number.panel,))
            ]
            assert drawn, f"{number.panel}: {number.curve}"


def test_curves_of_the_published_algorithm_say_whose_step_the_server_takes() -> None:
    """Line 15 of the paper's Algorithm 1 adds the noisy average; with the divisor of equation 4 that cannot learn."""
    named = dict[str, set[ServerOptimizerConfig]]()
    for path in (ROOT / "conf" / "figures").rglob("*.toml"):
        figure = load_figure(path)
        for curve in figure.sized("full").curves if isinstance(figure, TrainingFigure) else ():
            if curve.set.get("privacy.strategy") == "published":
                config = RunConfig.from_mapping({**figure.set, **curve.set})
                named.setdefault(curve.label.partition(":")[0], set()).add(config.server)
    for label, steps in named.items():
        assert (steps == {STATED_STEP}) == (", as stated" in label), label
        assert ("Adam (ours)" in label) == (", as stated" not in label), label
    assert sum(", as stated" in label for label in named) >= 4
    for estimator in ("fe", "feplus"):
        assert RunConfig.load(ROOT / "conf" / f"conll2003_published_{estimator}.toml").server == STATED_STEP


def test_a_figure_is_found_with_its_parts_and_another_refused_with_those_that_are() -> None:
    assert set(find_figure("fig3")) == {"fig3a", "fig3b"}
    with pytest.raises(ConfigError, match=r"figure is 'fig99'; allowed: .*fig2"):
        find_figure("fig99")
    with pytest.raises(ConfigError, match=r"figure is 'a/my figure.toml'; allowed: a file whose name has A-Z"):
        find_figure("a/my figure.toml")


def test_the_example_of_the_documentation_is_a_figure(tmp_path: Path) -> None:
    text = (ROOT / "conf" / "figures" / "README.md").read_text(encoding="utf-8")
    figure = load_figure(written(tmp_path, text.split("```toml")[1].split("```")[0]))
    assert isinstance(figure, TrainingFigure)
    check_settings(figure.sized("default"))


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('label = "ours"', 'label = "ours"\ncolour = "red"', "curves.0.colour: unknown key; allowed: name, label"),
        ('title = "A figure"', 'title = "A figure"\nsurprise = 1', "surprise: unknown key; allowed: title, shows"),
        ('corpus = "bundled"', 'corpus = "nowhere"', "panels.corpus is 'nowhere'; allowed: bundled"),
        ('x = "epsilon"', 'x = "value"', "curves.uedp has no points with x"),
        ('x = "epsilon"', 'x = "epsilon"\nseeds = [1, 1]', "seeds is [1, 1]"),
        ('x = "epsilon"', 'x = "epsilon"\nbaseline = "none"', "baseline is 'none'; allowed: uedp"),
        ('x = "epsilon"', 'x = "epsilon"\nkind = "drawing"', "kind is 'drawing'"),
        ('x = "epsilon"', 'x = "epsilon"\nkind = ["epsilon"]', "kind is ['epsilon']; allowed: training"),
        ('"privacy.strategy" = "uedp"', '"seed" = 3', "seed cannot be set"),
        ('kind = "bundled"', 'kind = "bundled"\nmode = 1', "corpora.bundled.mode: unknown key; allowed: kind, source"),
        ('kind = "bundled"', 'kind = "bundled"\nsource = "here"', "source is 'here'"),
        ('kind = "bundled"', 'kind = "conll2003"', "source is None"),
        ('label = "ours"', 'label = "ours"\nafter = "noone"', "curves.uedp.after is 'noone'"),
        ('label = "ours"', 'label = "ours"\nkept = { rule = "all" }', "curves.0.kept.rule"),
    ],
)
def test_what_cannot_be_a_figure_is_refused_by_name(tmp_path: Path, old: str, new: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_figure(written(tmp_path, SMALL.replace(old, new)))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", ["abc", "50", "0", "1.5"])
def test_a_printed_epsilon_is_of_a_round_that_is_computed(tmp_path: Path, number: str) -> None:
    text = (ROOT / "conf" / "figures" / "fig4.toml").read_text(encoding="utf-8").replace("rounds = 50", "rounds = 10")
    text = text.replace("50 = 0.52", f'"{number}" = 0.52', 1).replace("50 = ", "10 = ")
    with pytest.raises(ConfigError) as caught:
        load_figure(written(tmp_path, text))
    assert f"published has '{number}'; allowed: rounds from 1 to 10" in str(caught.value)


def test_an_impossible_setting_is_refused_with_its_curve(tmp_path: Path) -> None:
    figure = load_figure(written(tmp_path, SMALL.replace('"uedp" }', '"uedp", "privacy.user_cap" = 0.5 }')))
    assert isinstance(figure, TrainingFigure)
    with pytest.raises(ConfigError, match=r"panel a, curve uedp: privacy.user_cap is 0.5"):
        check_settings(figure)


def test_a_run_that_starts_from_another_comes_after_it_with_another_seed(tmp_path: Path) -> None:
    later = '[[curves]]\nname = "later"\nlabel = "later"\nafter = "uedp"\n'
    figure = load_figure(written(tmp_path, SMALL + later))
    assert isinstance(figure, TrainingFigure)
    store = CorpusStore(tmp_path, tmp_path / "corpora")
    runs = plan_figure(figure.sized("default"), tmp_path / "out", store).runs
    firsts, others = [run for run in runs if run.curve.name == "uedp"], [run for run in runs if run.curve.after]
    assert [run.seed for run in others] == [0, 1, 2]
    for first, other in zip(firsts, others, strict=True):
        assert other.config.model.name == str(Path(str(first.config.out)) / "model")
        assert first.config.seed != other.config.seed == other.seed


def test_what_a_run_keeps_is_a_share_of_the_corpus_with_its_own_held_out_users(tmp_path: Path) -> None:
    drawn = 'kind = "bundled"\nheld_out = { splits = ["train"], users = 100, seeds = [1, 2] }'
    figure = load_figure(written(tmp_path, SMALL.replace('kind = "bundled"', drawn)))
    assert isinstance(figure, TrainingFigure)
    runs = plan_figure(figure, tmp_path / "out", CorpusStore(tmp_path, tmp_path / "corpora")).runs
    assert [run.whole == "bundled" for run in runs] == [True, False, False]
    assert all(run.whole == str(run.config.corpus.path) for run in runs)  # nothing is left out, so all of it is kept


def test_a_curve_without_the_text_that_it_needs_is_left_out_by_name_and_a_panel_without_its_reference(
    tmp_path: Path,
) -> None:
    marked = {"text": "Anna came.", "entities": [{"start": 0, "end": 4, "label": "PER"}]}
    for name, row in (("marked", marked), ("plain", {"text": "She came.", "entities": []})):
        rows = ({**row, "user": user, "split": split} for user in "abc" for split in ("train", "validation"))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    columns = 'text-column = "text", user-column = "user", entities-column = "entities", split-column = "split"'
    corpora = "".join(
        f'[corpora.{name}]\nkind = "jsonl"\nsource = "{name}.jsonl"\nflags = {{ {columns}, tagger = "gold" }}\n'
        for name in ("marked", "plain")
    )
    text = SMALL.replace('[corpora.bundled]\nkind = "bundled"\n', corpora).replace('"bundled"', '"marked"')
    text += '[[panels]]\nname = "b"\ntitle = "b"\ncorpus = "plain"\n'
    rest = 'name = "rest"\nlabel = "no names"\nkept = { rule = "without_entity" }\n'
    text += f'[[curves]]\n{rest}[[curves]]\nname = "twice"\nlabel = "later"\nafter = "rest"\n'
    text += f"[[curves]]\n{rest.replace('rest', 'alone')}"

    def planned(text: str) -> Plan:
        figure = load_figure(written(tmp_path, text))
        assert isinstance(figure, TrainingFigure)
        return plan_figure(figure, tmp_path / "out", CorpusStore(tmp_path, tmp_path / "corpora"))

    plan = planned(text)
    assert {run.curve.name for run in plan.runs} == {"uedp"}
    reason = "marked: without_entity keeps no sentence of train"
    assert plan.left_out == {"a": {"later": reason, "no names": reason}}  # a beginning is no row
    assert list(plan.skipped) == ["b"]
    assert "has no entity at all" in plan.skipped["b"]
    plan = planned(text.replace('x = "epsilon"', 'x = "epsilon"\nbaseline = "alone"'))
    assert (plan.runs, plan.skipped["a"]) == ((), reason)


def test_curves_of_full_size_are_left_out_of_the_other(tmp_path: Path) -> None:
    figure = load_figure(written(tmp_path, SMALL + "full_only = true\n[full]\nseeds = [7]\nset = { rounds = 9 }\n"))
    assert isinstance(figure, TrainingFigure)
    assert figure.sized("default").curves == ()
    full = figure.sized("full")
    assert (len(full.curves), full.seeds, full.set) == (1, (7,), {"rounds": 9})


def test_a_small_size_has_its_panels_its_joint_epsilons_and_the_curves_that_run_there(tmp_path: Path) -> None:
    text = SMALL.replace('x = "epsilon"', 'x = "joint"\njoint = [2.0, 8.0]\nreference = "uedp"')
    text = text.replace('label = "ours"', 'label = "ours"\nbudget = "joint"') + "joint = [8.0]\n"
    text += '[[curves]]\nname = "at2"\nlabel = "at 2"\nbudget = "joint"\njoint = [2.0]\n'
    text += '[[panels]]\nname = "b"\ntitle = "b"\ncorpus = "bundled"\n'
    figure = load_figure(written(tmp_path, text + '[small]\npanels = ["b"]\njoint = [8.0]\nset = { rounds = 2 }\n'))
    assert isinstance(figure, TrainingFigure)
    small = figure.sized("small")
    assert ([panel.name for panel in small.panels], small.seeds, small.set) == (["b"], (0,), {"rounds": 2})
    assert [(curve.name, [point.x for point in points_of(small, curve)]) for curve in small.curves] == [("uedp", [8.0])]
    assert [[point.x for point in points_of(figure, curve)] for curve in figure.curves] == [[8.0], [2.0]]
    with pytest.raises(ConfigError, match="small"):
        figure.model_copy(update={"small": None}).sized("small")


def test_the_printed_epsilons_are_in_the_figures_with_the_inputs_of_the_papers_accountant() -> None:
    files = {"50": "fig4", "500": "fig9"}
    entities = {"all": "all", "gpe": "gpe", "org": "org"}
    with GOLDEN.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9
    for row in rows:
        figure = load_figure(find_figures()[files[row["rounds"]]])
        assert isinstance(figure, EpsilonFigure)
        curve_name = row["estimator"]
        if row["rounds"] == "500" and curve_name == "f_e_plus":
            curve_name = entities[row["entities"]]
        panel = next(panel for panel in figure.panels if panel.name == row["dataset"])
        curve = next(curve for curve in panel.curves if curve.name == curve_name)
        published = float(row["published_epsilon"])
        assert curve.published[row["rounds"]] == published
        # tests/strategies/test_published.py has the accountant's ε of these rows
        of_file = (panel.users, panel.users_per_round, panel.sentences, curve.estimator, figure.noise_multiplier)
        names = ("users", "users_per_round", "sentences", "estimator", "z")
        assert of_file == tuple(type(value)(row[name]) for value, name in zip(of_file, names, strict=True))
        if curve.estimator == "f_e_plus":
            assert curve.sensitive_sentences == int(row["sensitive_sentences"])


@pytest.mark.nightly
def test_an_epsilon_figure_never_shows_a_claim_without_what_is_proven() -> None:
    figure = load_figure(find_figures()["fig4"])
    assert isinstance(figure, EpsilonFigure)
    (panel,) = epsilon_panels(figure.model_copy(update={"panels": figure.panels[:1]}))
    for curve in panel.curves:
        assert len(curve.as_published) == len(curve.proven_user) == len(curve.proven_user_entity)
        assert all(user <= both for user, both in zip(curve.proven_user, curve.proven_user_entity, strict=True))
        assert curve.proven_everywhere >= curve.proven_user_entity[-1]
        at_printed = {number: curve.as_published[curve.rounds.index(int(number))] for number in curve.printed}
        assert at_printed == pytest.approx(curve.printed, abs=0.01)


def point(values: tuple[float, ...] = (200.0, 210.0, 220.0), **changes: Any) -> PointRecord:
    trace = Trace(rounds=(0, 2), mean=(400.0, 210.0), std=(0.0, 10.0), claimed=(0.0, 0.46), proven=(0.0, math.inf))
    return plain_point(values, 400.0, of_entity=math.inf, claimed=0.46, user=513265.0).model_copy(
        update={"settings": {"rounds": 2}, "noise_multiplier": 2.0, "trace": trace, **changes}
    )


def training_record(*curves: CurveRecord, **changes: Any) -> TrainingRecord:
    panel = PanelRecord(
        name="a",
        title="a: bundled",
        corpus=CorpusRecord(name="x", users=9, sentences=90, entities=7, tagger="rules", fingerprint="0f"),
        curves=curves or (CurveRecord(name="coded", label="as coded", strategy="published", points=(point(),)),),
        references={"a unigram model": 700.0},
        failed={},
    )
    values = {
        "figure": "none-of-the-project", "title": "A figure", "size": "default", "commit": "ab" * 20, "config": {},
        "versions": {"torch": "2"}, "when": "2026-01-02T03:04:05+00:00", "skipped": {"b": "is not there"},
        "seeds": (0, 1, 2), "x": "epsilon", "x_words": "", "metric": "perplexity", "delta": 1e-5, "baseline": None,
        "panels": (panel,), "published": (),
    }  # fmt: skip
    return TrainingRecord.model_validate(values | changes)


def test_a_record_is_the_same_after_writing_and_reading(tmp_path: Path) -> None:
    record = training_record()
    write_record(record, tmp_path / "results" / file_name(record))
    text = (tmp_path / "results" / "none-of-the-project.json").read_text(encoding="utf-8")
    assert '"seeds": [0,1,2]' in text
    assert json.loads(text)["panels"][0]["curves"][0]["points"][0]["epsilon"]["user_entity_p95"] == "inf"
    assert read_records(tmp_path / "results") == [record]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda v: v.update(format=2), "format is 2; allowed: 1"),
        (lambda v: v.pop("seeds"), "seeds"),
    ],
)
def test_a_record_of_another_kind_is_refused(tmp_path: Path, change: Any, named: str) -> None:
    path = tmp_path / "r.json"
    write_record(training_record(), path)
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ResultsError, match=named) as caught:
        read_record(path)
    assert "r.json" in str(caught.value)


def test_panels_join_those_of_an_earlier_record_of_the_same_settings_alone() -> None:
    settings = {"panels": [{"name": "a"}, {"name": "b"}], "set": {"rounds": 2}, "finding": ""}
    first = training_record(config=settings, skipped={"b": "not run (--panel)"})
    other = first.panels[0].model_copy(update={"name": "b"})
    second = first.model_copy(update={"panels": (other,), "skipped": {"a": "not run (--panel)"}, "commit": "cd" * 20})
    joined = with_earlier_panels(first, second)
    assert ([panel.name for panel in joined.panels], joined.skipped) == (["a", "b"], {})
    assert joined.commit == f"{'cd' * 20}, {'ab' * 20}"
    again = first.panels[0].model_copy(update={"title": "anew"})
    replaced = with_earlier_panels(first.model_copy(update={"panels": (again,)}), joined)
    assert [panel.title for panel in replaced.panels] == ["anew", other.title]
    assert with_earlier_panels(first, None) == first


def test_panels_join_a_record_of_the_same_settings_alone(tmp_path: Path) -> None:
    figure = load_figure(written(tmp_path, SMALL))
    assert isinstance(figure, TrainingFigure)
    old = figure.model_dump(mode="json", exclude={"small", "tuning", "sentences_per_round"})  # added since
    earlier = training_record(config={**old, "finding": "written since", "taken out": 1})
    check_same_settings(figure, earlier)
    for other in (figure.model_copy(update={"set": {"rounds": 3}}), figure.model_copy(update={"joint": (3.0,)})):
        with pytest.raises(ResultsError, match="panels of other settings"):
            check_same_settings(other, earlier)
    with pytest.raises(ResultsError, match="panels of other settings"):
        check_same_settings(figure, training_record(config={"x": "nothing"}))


def test_two_seeds_and_failed_runs_are_no_result() -> None:
    check_publishable(training_record())
    with pytest.raises(ResultsError, match=r"seeds is \[0, 1\]"):
        check_publishable(training_record(seeds=(0, 1)))
    few = training_record(seeds=(0,), config={"why_few_seeds": "one takes a day"})
    check_publishable(few)
    assert "seeds 0 (one takes a day);" in section(few)
    record = training_record()
    broken = record.panels[0].model_copy(update={"failed": {"run": "no memory"}})
    with pytest.raises(ResultsError, match="runs failed"):
        check_publishable(record.model_copy(update={"panels": (broken,)}))


def test_claims_stand_beside_what_is_proven_in_words_and_picture() -> None:
    text = section(training_record())
    assert "| as coded | 210.0 ± 10.0 | 0.460 | 513265 | ∞ | ∞ | ∞ |" in text
    assert "Left out: b: is not there" in text
    figure = picture_of(training_record())
    assert figure is not None
    (legend,) = figure.subfigs[0].legends
    assert legend.get_texts()[0].get_text() == "as coded: 210.0 ± 10.0; ε 0.460 claimed, ∞ proven (user + entity)"


def test_points_are_drawn_at_their_values_with_printed_numbers() -> None:
    points = tuple(point(x=x, trace=None) for x in (0.25, 0.5))
    record = training_record(CurveRecord(name="ours", label="ours", strategy="uedp", points=points))
    printed = PublishedNumber(panel="a", curve="UeDP-Alg", value=180.0, x=0.25, section="VI")
    changes = {"x": "value", "x_words": "q_s", "published": (printed,)}
    record = record.model_copy(update=changes)
    figure = picture_of(record)
    assert figure is not None
    (axes,) = figure.axes
    assert axes.get_xlabel() == "q_s"
    assert [list(line.get_xdata()) for line in axes.lines[:2]] == [[0.25, 0.5], [0.25]]
    text = section(record)
    assert "| ours | 0.25 | 210.0 ± 10.0 |" in text
    assert "UeDP-Alg 180.0 at q_s 0.25" in text


def test_what_makes_one_promise_is_drawn_in_rows_best_on_top() -> None:
    ends = {"worse": (210.0, 230.0), "better": (100.0, 120.0)}
    curves = tuple(
        CurveRecord(name=name, label=name, strategy="uedp", points=(point(values, trace=None),))
        for name, values in ends.items()
    )
    record = training_record()
    panel = record.panels[0].model_copy(update={"curves": curves})
    figure = picture_of(record.model_copy(update={"x": "curve", "panels": (panel,), "figure": "ours_none"}))
    assert figure is not None
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["worse (ε ∞)", "better (ε ∞)"]
    assert [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"] == [220.0, 110.0]
    assert "The paper prints no number" in section(record)
    assert "The paper" not in section(record.model_copy(update={"figure": "ours_none"}))


def test_the_gap_is_measured_from_the_start_to_the_baseline() -> None:
    curves = (
        CurveRecord(name="plain", label="plain", strategy="noiseless", points=(point((100.0, 100.0)),)),
        CurveRecord(name="other", label="other", strategy="uedp", points=(point((325.0, 325.0)),)),
    )
    text = section(training_record(*curves, baseline="plain"))
    assert "| plain | 100.0 ± 0.0 | 100% |" in text
    assert "| other | 325.0 ± 0.0 | 25% |" in text


def test_a_record_says_what_its_page_says(tmp_path: Path) -> None:
    for record in read_records(RESULTS):
        figure = load_figure(find_figures()[record.figure])
        texts = [str(record.config.get(name, "")).strip() for name in ("shows", "finding")]
        assert texts == [figure.shows.strip(), figure.finding.strip()], f"{record.figure}: reproduce --readme results"
    (record,) = [record for record in read_records(RESULTS) if record.figure == "table2"]
    stale = record.model_copy(update={"config": {**record.config, "finding": "Another one."}})
    write_record(stale, tmp_path / "table2.json")
    write_document(tmp_path)
    assert (tmp_path / "table2.json").read_bytes() == (RESULTS / "table2.json").read_bytes()


@pytest.mark.nightly
def test_the_results_are_what_their_records_say() -> None:
    records = ordered(read_records(RESULTS))
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == document(records), (
        "results/README.md is not what is made of results/*.json: fl-sim reproduce --readme results"
    )
    for record in records:
        check_publishable(record)
        assert picture_of(record) is None or (RESULTS / picture_name(record)).stat().st_size > 0


def test_records_of_one_corpus_agree_on_its_tagging() -> None:
    """A tagger that changed in between would let two figures of one corpus show different entities."""
    prepared: dict[tuple[object, ...], set[tuple[int, str]]] = {}
    for record in read_records(RESULTS):
        for panel in record.panels if isinstance(record, TrainingRecord) else ():
            corpus = panel.corpus
            size = (corpus.name, corpus.users, corpus.sentences, corpus.tagger)
            prepared.setdefault(size, set()).add((corpus.entities, corpus.fingerprint))
    assert len(prepared) > 3
    assert {size: found for size, found in prepared.items() if len(found) > 1} == {}
