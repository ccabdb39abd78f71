"""Training figures: settings to runs, runs as a batch, measurements to a record.

>>> from fl_sim.research.uedp_paper.figures import find_figures, load_figure
>>> figure = load_figure(find_figures()["fig2"])
>>> check_settings(figure)  # raises no ConfigError
>>> curves = curves_of(figure, figure.panels[0])
>>> len(points_of(figure, curves[0]))
1
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fl_sim.config import ConfigError, RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.guarantees import EnforcedBounds, EpsilonCurves, named_units
from fl_sim.experiments.plan.run_plan import plan_run, untuned_plan
from fl_sim.reporting.bootstrap import Figure
from fl_sim.reporting.run_facts import read_facts, strategy_of
from fl_sim.research.uedp_paper.comparisons import Predictions, add_comparisons
from fl_sim.research.uedp_paper.figure_corpora import TRAIN, CorpusStore, MissingCorpusError, tagger_of
from fl_sim.research.uedp_paper.figure_records import (
    CorpusRecord,
    CurveRecord,
    Epsilons,
    PanelRecord,
    Parts,
    PointRecord,
    Record,
    Spread,
    Trace,
    TrainingRecord,
    spread,
)
from fl_sim.research.uedp_paper.figures import (
    CurveSettings,
    PanelSettings,
    PointSettings,
    Settings,
    TrainingFigure,
)
from fl_sim.search.sweep import DONE, FAILED, Ending
from fl_sim.storage.run_folder import DIVERGED, MODEL_FOLDER, Result, RunFolder, numbers_of, utility_of
from fl_sim.strategies.accounting.accountant import RoundEvent, solve
from fl_sim.strategies.accounting.adjacency import Adjacency
from fl_sim.strategies.accounting.guarantee import Guarantee, ProtectedUnit
from fl_sim.strategies.accounting.paper_model import AS_PUBLISHED
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.registry import load_strategy, plan_from_record

_TARGET, _UNIT = "privacy.target_epsilon", "privacy.target_unit"
_EARLIER = 1_000_000  # added to the seed of a run from whose model another starts: both would draw the same samples
_NOISE = "privacy.noise_multiplier"
_WAYS_TO_NOISE = {_NOISE, _TARGET}


@dataclass(frozen=True)
class PlannedRun:
    """One run of a figure, in a folder of its ``name``; ``given`` are its settings without those of the figure.

    ``whole`` is the path of the corpus with its held-out users, before any of its text is left out or changed.
    """

    panel: PanelSettings
    curve: CurveSettings
    point: PointSettings
    seed: int
    name: str
    given: Settings
    config: RunConfig
    whole: str


@dataclass(frozen=True)
class Plan:
    """All runs of a figure, and the reason for each panel without runs.

    ``left_out`` has, by panel, the reason for each curve without runs by its label.
    """

    figure: TrainingFigure
    corpora: Mapping[str, str]
    runs: tuple[PlannedRun, ...]
    skipped: Mapping[str, str]
    left_out: Mapping[str, Mapping[str, str]]


def plan_figure(figure: TrainingFigure, out: Path, store: CorpusStore, panels: Sequence[str] = ()) -> Plan:
    """Prepare the corpora, check every run's configuration and return the plan.

    A curve whose corpus cannot be made is left out. Its panel goes with it if the curve is the figure's reference or
    baseline, or the last one.

    Args:
        figure: at the requested size.
        out: the figure's folder; runs go to ``out/runs``.
        store: of the corpora.
        panels: names of the panels to run; empty means all.

    Raises:
        ConfigError: a setting is impossible, or a panel unknown.
    """
    known = [panel.name for panel in figure.panels]
    for name in panels:
        if name not in known:
            raise ConfigError(f"--panel is '{name}'; allowed: {', '.join(known)}")
    check_settings(figure)
    corpora: dict[str, str] = {}
    runs: list[PlannedRun] = []
    skipped: dict[str, str] = {}
    left_out: dict[str, dict[str, str]] = {}
    for panel in figure.panels:
        if panels and panel.name not in panels:
            skipped[panel.name] = "not run (--panel)"
            continue
        source = figure.corpora[panel.corpus]
        try:
            wholes = {seed: store.prepared(panel.corpus, source, seed=seed) for seed in figure.seeds}
        except MissingCorpusError as error:
            skipped[panel.name] = str(error)
            continue
        paths, reasons = _corpora_of_curves(figure, panel, store)
        needed = {figure.reference, figure.baseline} if paths else reasons.keys()
        missing = [reasons[name] for name in reasons if name in needed]
        if missing:
            skipped[panel.name] = missing[0]
            continue
        labels = {curve.name: curve.label for curve in figure.curves if curve.name not in figure.beginnings}
        left_out[panel.name] = {labels[name]: reason for name, reason in reasons.items() if name in labels}
        corpora[panel.name] = wholes[figure.seeds[0]]
        runs += _runs(figure, panel, paths, wholes, out, store.folder.parent / "features")
    return Plan(figure, corpora, tuple(runs), skipped, left_out)


def _corpora_of_curves(
    figure: TrainingFigure, panel: PanelSettings, store: CorpusStore
) -> tuple[dict[tuple[str, int], str], dict[str, str]]:
    """Return the paths of the corpora by curve and seed, and the reason for each curve that lacks one, by its name.

    A curve that starts from another's model lacks what that one lacks.
    """
    paths: dict[tuple[str, int], str] = {}
    reasons: dict[str, str] = {}
    for curve in _beginnings_first(figure, panel):
        if curve.after in reasons:
            reasons[curve.name] = reasons[curve.after]
            continue
        changes = (curve.entities, curve.deidentified)
        try:
            of_seeds = {
                (curve.name, seed): store.prepared(
                    panel.corpus, figure.corpora[panel.corpus], *changes, seed, curve.kept, curve.missed
                )
                for seed in figure.seeds
            }
        except MissingCorpusError as error:
            reasons[curve.name] = str(error)
            continue
        paths |= of_seeds
    return paths, reasons


def check_settings(figure: TrainingFigure) -> None:
    """Check every run's settings; :class:`ConfigError` names the panel and the curve."""
    for panel in figure.panels:
        for curve in curves_of(figure, panel):
            for point in points_of(figure, curve):
                try:
                    RunConfig.from_mapping({**_merged_settings(figure, panel, curve, point), "corpus.path": "bundled"})
                except ConfigError as error:
                    raise ConfigError(f"panel {panel.name}, curve {curve.name}: {error}") from error


def curves_of(figure: TrainingFigure, panel: PanelSettings) -> list[CurveSettings]:
    return [curve for curve in figure.curves if not curve.panels or panel.name in curve.panels]


def _beginnings_first(figure: TrainingFigure, panel: PanelSettings) -> list[CurveSettings]:
    """Return a panel's curves, those first from whose models others start."""
    return sorted(curves_of(figure, panel), key=lambda curve: curve.name not in figure.beginnings)


def points_of(
    figure: TrainingFigure,
    curve: CurveSettings,
    user_epsilons: Mapping[float, float] | None = None,
    noise: Mapping[float, float] | None = None,
) -> tuple[PointSettings, ...]:
    """Return the points of a curve; a single one if it is drawn round by round.

    ``user_epsilons`` has ε of any user that the reference spends, by joint ε, and ``noise`` the noise multiplier with
    which the curve claims the joint ε; None stands for the joint ε themselves, with which settings can be checked
    before a corpus is there.
    """
    if figure.x != "joint" or curve.budget is None:
        return curve.points or (PointSettings(),)
    joint = [x for x in figure.joint if not curve.joint or x in curve.joint]
    of_user = user_epsilons or {x: x for x in joint}
    if curve.budget == "joint":
        return tuple(_joint_point(x) for x in joint)
    if curve.budget == "own":
        return tuple(PointSettings(x=x, set={_NOISE: x if noise is None else noise[x]}) for x in joint)
    return tuple(PointSettings(x=x, set={_TARGET: of_user[x], _UNIT: "user"}) for x in joint)


def _joint_point(epsilon: float) -> PointSettings:
    """Return the point of a curve with the noise for an ε of any user with any entity."""
    return PointSettings(x=epsilon, set={_TARGET: epsilon, _UNIT: "user_entity"})


def panel_records(plan: Plan, endings: Iterable[Ending]) -> list[PanelRecord]:
    """Return the records of the panels with finished runs."""
    return [_panel_record(plan, panel, done, failed) for panel, done, failed in ended_by_panel(plan, endings) if done]


def ended_by_panel(
    plan: Plan, endings: Iterable[Ending]
) -> Iterator[tuple[PanelSettings, list[PlannedRun], dict[str, str]]]:
    """Yield each panel with its finished runs, and the reason for each that failed, by its name.

    Runs from whose models others start are no rows, and are not among the finished.
    """
    ended = {ending.name: ending for ending in endings}
    for panel, group in itertools.groupby(plan.runs, key=lambda run: run.panel):
        runs = list(group)
        failed = {run.name: ended[run.name].reason for run in runs if ended[run.name].status in (FAILED, DIVERGED)}
        shown = [run for run in runs if run.curve.name not in plan.figure.beginnings]
        yield panel, [run for run in shown if ended[run.name].status == DONE], failed


def _runs(
    figure: TrainingFigure,
    panel: PanelSettings,
    paths: Mapping[tuple[str, int], str],
    wholes: Mapping[int, str],
    out: Path,
    features: Path,
) -> list[PlannedRun]:
    runs = []
    spent = _user_epsilons(figure, panel, paths)
    models: dict[tuple[str, int], Path] = {}  # of the curves from which others start
    for curve in _beginnings_first(figure, panel):
        if (curve.name, figure.seeds[0]) not in paths:
            continue
        rate = _rate(figure, panel, curve, paths[curve.name, figure.seeds[0]])
        noise = _noise_of_claims(figure, panel, curve, paths[curve.name, figure.seeds[0]], rate)
        for number, point in enumerate(points_of(figure, curve, spent, noise)):
            given = _merged_settings(figure, panel, curve, point) | rate
            own = {}
            frozen_body = given.get("task") == "classification" and given.get("model.tune") == "head"
            if frozen_body or "model.lora_layers" in given:
                own["corpus.feature_cache"] = str(features)
            for seed in figure.seeds:
                own["corpus.path"] = paths[curve.name, seed]
                settings = {**given, **own, "seed": seed + _EARLIER * (curve.name in figure.beginnings)}
                begins, start = {}, {}
                if curve.after is not None:  # the name of a run does not depend on where its folder is
                    model = models[curve.after, seed]
                    begins, start = {"after": model.parent.name}, {"model.name": str(model)}
                stem = f"{panel.name}-{curve.name}-{number}-seed{seed}"
                name = f"{stem}-{_digest({**settings, **begins})}"
                folder = out / "runs" / name
                models[curve.name, seed] = folder / MODEL_FOLDER
                config = RunConfig.from_mapping({**settings, **start, "out": str(folder)})
                runs.append(PlannedRun(panel, curve, point, seed, name, given, config, wholes[seed]))
    return runs


def _rate(figure: TrainingFigure, panel: PanelSettings, curve: CurveSettings, path: str) -> Settings:
    """Return the rate at which a curve reads the figure's sentences in a round, by what may be known of its corpus.

    It is that of users for a strategy that samples no sentences. Nothing if neither figure nor curve has a number.
    """
    wanted = curve.sentences_per_round or figure.sentences_per_round
    if wanted is None:
        return {}
    config, ownership = _planned_on(path, _merged_settings(figure, panel, curve, PointSettings()))
    bounds = EnforcedBounds.of(config.privacy, ownership)
    guarantee = bounds.guarantee
    if guarantee.known == "graph":
        most = float(bounds.weights.sum())
    else:  # the counts of users alone: what names leave of their sentences depends on who mentions whom
        most = float(np.minimum(bounds.counts.users, guarantee.user_sentences or math.inf).sum())
    sampled = "q_u" if "q_s" in load_strategy(config.privacy.strategy).fixed_at_one else "q_s"
    return {f"privacy.{sampled}": min(1.0, float(f"{wanted / most:.4g}"))}


def _noise_of_claims(
    figure: TrainingFigure, panel: PanelSettings, curve: CurveSettings, path: str, rate: Settings
) -> dict[float, float]:
    """Return the noise multipliers with which a curve of budget ``own`` claims the joint ε; nothing for others.

    The claim is its strategy's, of one sentence, or that of any user or any name within its bounds.
    """
    if curve.budget != "own":
        return {}
    config, ownership = _planned_on(path, _merged_settings(figure, panel, curve, PointSettings()) | rate)
    plan, guarantee = untuned_plan(config, ownership), EnforcedBounds.of(config.privacy, ownership).guarantee
    event = plan.mechanism.event()
    if event is None:
        raise ConfigError(f"curves.{curve.name}.budget is 'own'; allowed for a strategy that states an ε")
    claimed = {None: [Adjacency(user_sentences=1)], "user": [guarantee.user]}.get(curve.claims) or [
        unit.adjacency for unit in _alone(guarantee, plan, event)
    ]
    return {x: solve("noise_multiplier", event.robust(), claimed, plan.rounds, plan.delta, x) for x in figure.joint}


def _user_epsilons(
    figure: TrainingFigure, panel: PanelSettings, paths: Mapping[tuple[str, int], str]
) -> dict[float, float]:
    """Return ε of any user that the figure's reference spends, by joint ε, rounded down to a thousandth.

    Nothing if no curve needs it. ε rests on the settings and the public bounds alone, so it is the same for all seeds.
    """
    curves = curves_of(figure, panel)
    if not any(curve.budget == "user" for curve in curves):
        return {}
    reference = next((curve for curve in curves if curve.name == figure.reference), None)
    if reference is None:
        raise ConfigError(
            f"reference is '{figure.reference}', which panel {panel.name} lacks; allowed beside curves with budget = "
            "'user': a curve of every panel, without a grid or full_only"
        )
    path = paths[reference.name, figure.seeds[0]]
    spent = {}
    for x in figure.joint:
        settings = _merged_settings(figure, panel, reference, _joint_point(x)) | _rate(figure, panel, reference, path)
        planned = plan_run(*_planned_on(path, settings))
        spent[x] = math.floor(1000 * planned.guarantees.after(planned.rounds)["epsilon_user"]) / 1000
    return spent


def _planned_on(path: str, settings: Settings) -> tuple[RunConfig, Ownership]:
    """Return the configuration of a run on the corpus at ``path``, and who owns its training text."""
    config = RunConfig.from_mapping({**settings, "corpus.path": path})
    return config, Corpus.open(path).ownership(config.corpus.train_split)


def _merged_settings(
    figure: TrainingFigure, panel: PanelSettings, curve: CurveSettings, point: PointSettings
) -> Settings:
    """Return the settings of a run: the figure's, the panel's, the curve's and the point's, later over earlier ones.

    A later choice of the noise replaces an earlier one.
    """
    merged: Settings = {"engine.name": "inline"}
    for layer in (figure.set, panel.set, curve.set, point.set):
        if _WAYS_TO_NOISE & layer.keys():
            merged = {key: value for key, value in merged.items() if key not in _WAYS_TO_NOISE}
        merged |= layer
    return merged


def _digest(settings: Settings) -> str:
    """Return a short hash of a run's settings, so that a changed figure runs only its changed curves."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:8]


def known_seconds(runs: Sequence[PlannedRun], record: Record | None) -> dict[str, float]:
    """Return how long runs took when a figure was recorded, by name; that of their mean for what it lacks.

    Nothing if the record has no times.
    """
    panels = record.panels if isinstance(record, TrainingRecord) else ()
    points = ((panel, curve, point) for panel in panels for curve in panel.curves for point in curve.points)
    known = {
        (panel.name, curve.name, _digest(point.settings)): point.seconds / len(point.utility.values)
        for panel, curve, point in points
    }
    of_runs = {run.name: known.get((run.panel.name, run.curve.name, _digest(run.given))) for run in runs}
    there = [seconds for seconds in of_runs.values() if seconds is not None]
    return {name: statistics.fmean(there) if one is None else one for name, one in of_runs.items()} if there else {}


def _panel_record(
    plan: Plan, panel: PanelSettings, runs: Sequence[PlannedRun], failed: Mapping[str, str]
) -> PanelRecord:
    curves = []
    folders = {run.name: RunFolder.open(str(run.config.out)) for run in runs}
    for curve, of_curve in itertools.groupby(runs, key=lambda run: run.curve):
        points = [
            point_record(plan, curve, [(run, folders[run.name]) for run in group])
            for _, group in itertools.groupby(of_curve, key=lambda run: run.point)
        ]
        strategy = next(strategy_of(folders[run.name]) for run in runs if run.curve == curve)
        curves.append(
            CurveRecord(
                name=curve.name,
                label=curve.label,
                strategy=strategy,
                points=tuple(points),
                budget=curve.budget,
                deidentified=curve.deidentified is not None,
            )
        )
    predictions: Predictions = ()
    if plan.figure.x == "joint" and not failed:
        by_point = {(run.curve.name, run.point.x, run.seed): folders[run.name] for run in runs}
        curves, predictions = add_comparisons(plan.figure, curves, by_point)
    return PanelRecord(
        name=panel.name,
        title=panel.title,
        corpus=corpus_record(plan.corpora[panel.name]),
        curves=tuple(curves),
        references=_references(plan.figure, [(run, folders[run.name]) for run in runs]),
        failed=dict(failed),
        left_out=dict(plan.left_out[panel.name]),
        predictions=predictions,
    )


def point_record(plan: Plan, curve: CurveSettings, runs: Sequence[tuple[PlannedRun, RunFolder]]) -> PointRecord:
    """Return the record of the runs of one setting, an own one for each seed."""
    figure, first, folders = plan.figure, runs[0][0], [folder for _, folder in runs]
    results = [numbers_of(folder.result or {}) for folder in folders]
    strategy = strategy_of(folders[0])
    return PointRecord(
        x=first.point.x,
        settings=first.given,
        noise_multiplier=folders[0].setting("noise_multiplier") or None,
        utility=spread([result[figure.metric] for result in results]),
        initial=spread([result[f"initial_{figure.metric}"] for result in results]),
        epsilon=_largest([_epsilons(curve, strategy, folder) for folder in folders]),
        trace=None if curve.points or figure.x == "joint" else _trace(figure, curve, strategy, folders),
        seconds=sum(float(folder.metrics()["seconds"].sum()) for folder in folders),
        parts=_parts([run for run, _ in runs], folders) if figure.x == "joint" else None,
    )


def _parts(runs: Sequence[PlannedRun], folders: Sequence[RunFolder]) -> Parts | None:
    """Return what runs measured of parts of the held-out text, and what they kept of it; None if one measured none."""
    figures = [held_out for folder in folders if (held_out := read_facts(folder).held_out) is not None]
    if len(figures) < len(folders):
        return None
    kept = [_kept(run, folder) for run, folder in zip(runs, folders, strict=True)]
    return Parts(
        metric=figures[0].metric,
        by_text=_spreads([{"all text": one.figures[one.metric]} | one.by_part() for one in figures]),
        by_sentences=_spreads([one.by_size() for one in figures]),
        by_mentions=_spreads([one.by_name() for one in figures]),
        kept={name: spread([one[name] for one in kept]) for name in kept[0]},
    )


def _kept(run: PlannedRun, folder: RunFolder) -> dict[str, float]:
    """Return the shares of the corpus's sentences and mentions that a run trained on, in weight."""
    whole = Corpus.open(run.whole).manifest.splits[TRAIN]
    own = Corpus.open(str(run.config.corpus.path)).manifest.splits[TRAIN]
    bounds = numbers_of((folder.result or {}).get("kept") or {"sentences": 1.0, "mentions": 1.0})
    shares = {"sentences": own.sentences / whole.sentences, "mentions": own.mentions / max(whole.mentions, 1)}
    return {name: bounds[name] * share for name, share in shares.items()}


def _spreads(seeds: Sequence[Mapping[str, Figure]]) -> dict[str, Spread]:
    """Return mean and deviation of each figure over the seeds that have it."""
    names = dict.fromkeys(name for one in seeds for name in one)
    return {name: spread([one[name].value for one in seeds if name in one]) for name in names}


def _largest(of_seeds: Sequence[Epsilons]) -> Epsilons:
    """Return the largest of each ε: seeds may have other users, and an entity then has other contributions."""
    columns = {name: [getattr(one, name) for one in of_seeds] for name in Epsilons.model_fields}
    return Epsilons(**{name: None if None in column else max(column) for name, column in columns.items()})


def _epsilons(curve: CurveSettings, strategy: str, folder: RunFolder) -> Epsilons:
    row: dict[str, Any] = {str(name): value for name, value in folder.metrics().iloc[-1].items()}
    result: Result = folder.result or {}
    claimed, plan = _claim_column(strategy), plan_from_record(result["plan"])
    if claimed == AS_PUBLISHED and claimed not in row:  # after another training the run itself claims nothing
        row = {**row, claimed: plan.mechanism.claims(plan.rounds, plan.delta)[claimed][-1]}
    entities = curve.deidentified is None and curve.missed is None  # ε of a name does not cover one that is not marked
    any_name = _of_any_name(plan, Guarantee.from_record(result["guarantee"])) if curve.after is None else None
    stated = None if claimed is None else float(row[claimed])
    if curve.claims is not None:
        stated = any_name if curve.claims == "name" else float(row["epsilon_user"])

    def of_entity(name: str) -> float | None:
        return float(row.get(f"epsilon_user_entity_{name}", math.inf)) if entities else None

    return Epsilons(
        claimed=stated,
        user=float(row["epsilon_user"]),
        user_entity_median=of_entity("median"),
        user_entity_p95=of_entity("p95"),
        user_entity_max=of_entity("max"),
        robust_p95=of_entity("robust_p95"),
        any_entity=_finite(row.get("epsilon_any")) if entities else None,
        any_name=any_name if entities else None,
    )


def _of_any_name(plan: PrivacyPlan, guarantee: Guarantee) -> float | None:
    """Return ε of any entity alone, within enforced bounds; None if none are enforced."""
    event = plan.mechanism.event()
    if event is None or not guarantee.covers_any_entity:
        return None
    units = named_units("name", _alone(guarantee, plan, event))
    return _finite(EpsilonCurves.of(plan, {"name": units}).after(plan.rounds)["name"])


def _alone(guarantee: Guarantee, plan: PrivacyPlan, event: RoundEvent) -> list[ProtectedUnit]:
    """Return the units of any entity within the bounds, without a user."""
    units = guarantee.units(clips_sentences=event.clips_sentences, population=plan.mechanism.population)
    return [replace(unit, adjacency=replace(unit.adjacency, user_sentences=0)) for unit in units]


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _claim_column(strategy: str) -> str | None:
    """Return the metric by which a strategy states its ε; None for one that states none.

    The figures' runs set no bounds, so that ε of an entity is that of the 95th percentile of contributions.
    """
    headline = load_strategy(strategy).headline
    return "epsilon_user_entity_p95" if headline == "epsilon_any" else headline


def _trace(figure: TrainingFigure, curve: CurveSettings, strategy: str, folders: Sequence[RunFolder]) -> Trace:
    tables = [folder.metrics().set_index("round") for folder in folders]
    first = tables[0]
    measured = [int(number) for number in first.index if first[figure.metric].notna()[number]]
    figures = [spread([float(table[figure.metric][number]) for table in tables]) for number in measured]
    claimed = _claim_column(strategy)
    proven = "epsilon_user_entity_p95" if "epsilon_user_entity_p95" in first else "epsilon_user"
    return Trace(
        rounds=tuple(measured),
        mean=tuple(value.mean for value in figures),
        std=tuple(value.std for value in figures),
        claimed=None if claimed is None else tuple(float(first[claimed][number]) for number in measured),
        proven=tuple(float(first[proven][number]) for number in measured),
    )


def _references(figure: TrainingFigure, runs: Sequence[tuple[PlannedRun, RunFolder]]) -> dict[str, float]:
    """Return the utility without a model, from the panel's own training text: the mean over the runs.

    The runs' held-out samples differ by their seeds.
    """
    own = [folder for run, folder in runs if run.curve.deidentified is None] or [folder for _, folder in runs]
    utility = utility_of(own[0])
    key = utility.reference + figure.metric.removeprefix(utility.column)  # per token or per word
    values = [figures[key] for folder in own if key in (figures := numbers_of(folder.result or {}))]
    return {utility.reference_words: spread(values).mean} if values else {}


def corpus_record(path: str) -> CorpusRecord:
    """Return the facts of a corpus for a record."""
    corpus = Corpus.open(path)
    counts = corpus.manifest.splits["train"]
    return CorpusRecord(
        name=corpus.manifest.name,
        users=counts.users,
        sentences=counts.sentences,
        entities=counts.entities,
        tagger=tagger_of(corpus),
        fingerprint=corpus.fingerprint,
    )
