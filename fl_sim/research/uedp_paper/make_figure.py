"""Make a figure: from its file to its record, picture and table.

Attacks on the runs of a figure that asks for them are kept in its folder: an interrupted figure goes on where it was.

>>> published({"users": {"auc": 0.123456789, "bound": {"largest_advantage": 0.123456789, "claims": [1]}}})
{'users': {'auc': 0.123457, 'bound': {'largest_advantage': 0.123456789}}}

An ε figure needs neither text nor training: ε of a mechanism by the paper's accountant and by ours.

>>> curve = EpsilonCurve(name="org", label="org", estimator="f_e_plus", sensitive_sentences=200)
>>> panel = EpsilonPanel(name="demo", title="Demo", users=100, users_per_round=10, sentences=1000, curves=(curve,))
>>> figure = EpsilonFigure(
...     title="Demo", shows="ε", kind="epsilon", rounds=10, noise_multiplier=2.0, q_e=0.5, delta=1e-5, entity_users=5,
...     panels=(panel,),
... )
>>> record = epsilon_panels(figure)[0].curves[0]
>>> record.rounds[0], record.rounds[-1], len(record.as_published), len(record.proven_user)
(1, 10, 10, 10)
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fl_sim.auditing.leakage.attacked_run import Options
from fl_sim.auditing.leakage.leak import attack_runs
from fl_sim.config import ConfigError
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.files import owner_only, remove_temporaries
from fl_sim.formats import counted
from fl_sim.reporting import plots
from fl_sim.reporting.run_facts import strategy_of
from fl_sim.research.study_files import commits_of
from fl_sim.research.uedp_paper import figure_training
from fl_sim.research.uedp_paper.figure_corpora import CorpusStore, MissingCorpusError, tagger_of
from fl_sim.research.uedp_paper.figure_document import picture_of, section
from fl_sim.research.uedp_paper.figure_records import (
    AttackedRunRecord,
    Attacks,
    EpsilonCurveRecord,
    EpsilonPanelRecord,
    EpsilonRecord,
    FigureRecord,
    Record,
    TableCorpusRecord,
    TableRecord,
    TrainingRecord,
    write_record,
)
from fl_sim.research.uedp_paper.figure_training import Plan, PlannedRun, ended_by_panel
from fl_sim.research.uedp_paper.figures import (
    AttackSettings,
    EpsilonCurve,
    EpsilonFigure,
    EpsilonPanel,
    Figure,
    Size,
    TableFigure,
    TrainingFigure,
)
from fl_sim.research.uedp_paper.table_two import rows_of
from fl_sim.search.sweep import INTERRUPTED, Ending, run_batch
from fl_sim.stop_signals import raise_missed_stop
from fl_sim.storage import model_files
from fl_sim.storage.environment import Environment, describe
from fl_sim.storage.run_folder import RunFolder, decode, encode, numbers_of, replace_file
from fl_sim.strategies.accounting.accountant import epsilon, epsilon_curve
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.paper_model import (
    PublishedSettings,
    curve_as_published,
    proven_event,
)

_STEPS = 25  # points of a curve of ε
_ATTACKS = "attacks"
_BOUNDS = ("bound", "bounds")


@dataclass(frozen=True)
class FigureJob:
    """A figure to make, and how.

    Attributes:
        size: that of the paper, the default, or a small one.
        panels: of a training figure; empty means all.
        data: the folder with the raw corpora.
        out: the folder for prepared corpora and the figure's own folder.
        jobs: runs at once.
        say: called with a line before a slow step and after every run, and the seconds that are left if they are known.
        known: an earlier record of the figure, whose times tell how long the runs will take.
    """

    name: str
    figure: Figure
    size: Size
    panels: tuple[str, ...]
    data: Path
    out: Path
    jobs: int = 1
    say: Callable[..., None] = lambda *_: None
    known: Record | None = None

    @property
    def folder(self) -> Path:
        """Return the figure's own folder."""
        return self.out / (self.name if self.size == "default" else f"{self.name}-{self.size}")

    @property
    def store(self) -> CorpusStore:
        """Return the store of prepared corpora."""
        return CorpusStore(self.data, self.out / "corpora", self.say)


@dataclass(frozen=True)
class FigureResult:
    """The result of a job: no record if nothing could be made, or the job was interrupted.

    ``skipped`` has the reason of each missing panel, curve or corpus.
    """

    record: Record | None
    skipped: dict[str, str] = field(default_factory=dict)
    endings: tuple[Ending, ...] = ()
    files: tuple[Path, ...] = ()

    @property
    def interrupted_by(self) -> str | None:
        """Return the name of the signal that interrupted a run, so that the same job resumes; None if none was."""
        return next((ending.reason for ending in self.endings if ending.status == INTERRUPTED), None)


def make_figure(making: FigureJob) -> FigureResult:
    """Make a figure and write its record, table and picture to its folder.

    Raises:
        ConfigError: a setting is impossible, or panels are named for a figure without panels to choose.
    """
    figure = making.figure
    if isinstance(figure, TrainingFigure):
        return _make_runs(making, figure.sized(making.size))
    if making.panels:
        raise ConfigError(f"--panel is '{making.panels[0]}'; allowed: nothing for {making.name}, which takes seconds")
    if making.size == "small":
        raise ConfigError(f"--small is given; allowed: not for {making.name}, which takes seconds")
    if isinstance(figure, EpsilonFigure):
        making.say(f"computing ε of {counted(sum(len(panel.curves) for panel in figure.panels), 'curve')}")
        return _write_results(making, epsilon_record(making.name, figure))
    corpora = {**figure.corpora, **(figure.full.corpora if making.size == "full" else {})}
    rows, skipped = table_corpora(figure.model_copy(update={"corpora": corpora}), making.store)
    if not rows:
        return FigureResult(None, skipped)
    common = _common_fields(making.name, figure, skipped, [describe()], making.size)
    return _write_results(making, TableRecord(**dict(common), corpora=rows))


def epsilon_record(name: str, figure: EpsilonFigure) -> EpsilonRecord:
    """Return the record of an ε figure, claimed and proven; nothing is trained, read or written."""
    return EpsilonRecord(
        **dict(_common_fields(name, figure, {}, [describe()])),
        delta=figure.delta,
        entity_users=figure.entity_users,
        panels=epsilon_panels(figure),
    )


def _make_runs(making: FigureJob, figure: TrainingFigure) -> FigureResult:
    """Run the unfinished runs of a figure, attack them if it asks for it, and write what came of them."""
    remove_temporaries(making.folder)
    plan = figure_training.plan_figure(figure, making.folder, making.store, making.panels)
    endings = tuple(_run_plan(making, plan))
    skipped = {
        **plan.skipped,
        **{
            f"{panel}, {label}": reason for panel, reasons in plan.left_out.items() for label, reason in reasons.items()
        },
    }
    if any(ending.status == INTERRUPTED for ending in endings):
        return FigureResult(None, skipped, endings)
    attacked: dict[str, tuple[AttackedRunRecord, ...]] = {}
    if figure.attack is not None:
        raise_missed_stop()  # it came in the last round of the last run, and the attacks take long
        attacked = attacked_runs(plan, figure.attack, endings, making.folder, making.store)
    panels = figure_training.panel_records(plan, endings)
    if not panels:
        return FigureResult(None, skipped, endings)
    # The environments of the runs may differ from the current one.
    folders = [Path(str(run.config.out)) for run in plan.runs]
    environments = [RunFolder.open(folder).environment for folder in folders if (folder / "config.json").exists()]
    common = _common_fields(making.name, figure, dict(plan.skipped), environments, making.size)
    shown = {panel.name for panel in panels}
    panels = [panel.model_copy(update={"attacked": attacked.get(panel.name, ())}) for panel in panels]
    record = TrainingRecord(
        **dict(common),
        seeds=figure.seeds,
        metric=figure.metric,
        delta=plan.runs[0].config.privacy.delta,
        x=figure.x,
        x_words=figure.x_words,
        joint=figure.joint,
        reference=figure.reference,
        baseline=figure.baseline,
        panels=tuple(panels),
        published=tuple(number for number in figure.published if number.panel in shown),
    )
    return replace(_write_results(making, record, endings), skipped=skipped)


def _run_plan(making: FigureJob, plan: Plan) -> Iterator[Ending]:
    """Run the unfinished runs of a plan; say before what is to be done, and after every run what is left."""
    seconds = figure_training.known_seconds(plan.runs, making.known)
    folders = {run.name: Path(str(run.config.out)) for run in plan.runs}
    begun = {name for name, folder in folders.items() if (folder / "config.json").exists()}
    unfinished = [name for name in folders if name not in begun or not RunFolder.open(folders[name]).finished]
    left = {name: seconds.get(name, 1.0) for name in unfinished}
    expected = sum(left.values())
    finished = len(plan.runs) - len(unfinished)
    words = f"{counted(len(plan.runs), 'run')} of {making.name}, {finished} of them finished; {making.jobs} at once"
    making.say(words, expected / making.jobs if seconds else None)
    began, stopped = time.monotonic(), False
    for first in (True, False):  # then those that begin from the models of the first
        configs = {run.name: run.config for run in plan.runs if (run.curve.after is None) == first}
        for ending in run_batch(configs, making.jobs):
            if left.pop(ending.name, None) is not None and ending.status != INTERRUPTED:
                rest = sum(left.values())
                seconds_left = rest * (time.monotonic() - began) / (expected - rest)
                making.say(f"{ending.name} {ending.status}, {len(left)} to go", seconds_left)
            stopped |= ending.status == INTERRUPTED
            yield ending
        if stopped:
            return


def _common_fields(
    name: str, figure: Figure, skipped: dict[str, str], environments: Sequence[Environment], size: Size = "default"
) -> FigureRecord:
    """Return what the records of all kinds have; the versions are those of the first environment."""
    first = environments[0]
    versions = {name: first.get(name) for name in ("fl_sim", "python", "platform")}
    return FigureRecord(
        figure=name,
        title=figure.title,
        size=size,
        commit=commits_of(environments),
        config=figure.model_dump(mode="json"),
        versions=versions | first.get("libraries", {}),
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        skipped=skipped,
    )


def _write_results(making: FigureJob, record: Record, endings: tuple[Ending, ...] = ()) -> FigureResult:
    """Write record, table and picture; return the result."""
    folder = making.folder
    files = [folder / "record.json", folder / "table.md"]
    write_record(record, files[0])
    replace_file(files[1], section(record).encode())
    picture = picture_of(record)
    if picture is not None:
        files.append(plots.save(picture, folder / f"{making.name}.png"))
    return FigureResult(record, dict(record.skipped), endings, tuple(files))


def epsilon_panels(figure: EpsilonFigure) -> tuple[EpsilonPanelRecord, ...]:
    """Return the claimed and proven ε of every curve of a figure."""
    return tuple(
        EpsilonPanelRecord(
            name=panel.name,
            title=panel.title,
            curves=tuple(_curve(figure, panel, curve) for curve in panel.curves),
        )
        for panel in figure.panels
    )


def _curve(figure: EpsilonFigure, panel: EpsilonPanel, curve: EpsilonCurve) -> EpsilonCurveRecord:
    settings = PublishedSettings(
        estimator=curve.estimator,
        users=panel.users,
        users_per_round=panel.users_per_round,
        noise_multiplier=figure.noise_multiplier,
        q_e=figure.q_e,
        sentences=panel.sentences,
        sensitive_sentences=curve.sensitive_sentences or panel.sentences,
    )
    event = proven_event(settings)
    grid = {round(1 + step * (figure.rounds - 1) / _STEPS) for step in range(_STEPS + 1)}
    rounds = sorted(grid | {int(number) for number in curve.published})
    bounded_entity = Adjacency(entity_bound=ContributionBound(figure.entity_users, 1))
    unbounded_entity = Adjacency(entity_bound=ContributionBound(panel.users, 1))
    return EpsilonCurveRecord(
        name=curve.name,
        label=curve.label,
        rounds=tuple(rounds),
        as_published=tuple(curve_as_published(settings, rounds, figure.delta).tolist()),
        proven_user=tuple(epsilon_curve(event, Adjacency(), rounds, figure.delta).tolist()),
        proven_user_entity=tuple(epsilon_curve(event, bounded_entity, rounds, figure.delta).tolist()),
        proven_everywhere=epsilon(event, unbounded_entity, figure.rounds, figure.delta),
        printed=curve.published,
    )


def table_corpora(figure: TableFigure, store: CorpusStore) -> tuple[tuple[TableCorpusRecord, ...], dict[str, str]]:
    """Return the rows of Table II, and the reason for each corpus that is missing."""
    rows: list[TableCorpusRecord] = []
    skipped: dict[str, str] = {}
    for name, source in figure.corpora.items():
        try:
            corpus = Corpus.open(store.prepared(name, source))
        except MissingCorpusError as error:
            skipped[name] = str(error)
            continue
        ours, published = rows_of(corpus)
        rows.append(
            TableCorpusRecord(
                title=corpus.manifest.name if published is None else published.name,
                tagger=tagger_of(corpus),
                columns=tuple(ours.sensitive),
                ours=ours,
                published=published and published.row,
                difference="" if published is None else published.difference,
            )
        )
    return tuple(rows), skipped


def attacked_runs(
    plan: Plan, attack: AttackSettings, endings: Iterable[Ending], out: Path, store: CorpusStore
) -> dict[str, tuple[AttackedRunRecord, ...]]:
    """Attack the finished runs; return their records by the name of their panel."""
    attacked, figure = dict[str, tuple[AttackedRunRecord, ...]](), plan.figure
    for panel, done, _ in ended_by_panel(plan, endings):
        records = []
        chosen = [run for run in done if attack.joint is None or run.point.x in (None, attack.joint)]
        for number, run in enumerate(chosen, start=1):
            store.say(f"attacking {run.name} ({number} of {len(chosen)})")
            raw, source, curve = None, figure.corpora[panel.corpus], run.curve
            if curve.deidentified is not None or curve.missed is not None:  # the corpus from which the run's was made
                raw = store.prepared(panel.corpus, source, curve.entities, seed=run.seed, kept=curve.kept)
            records.append(_attacked(run, figure.metric, attack, raw, out / _ATTACKS))
        attacked[panel.name] = tuple(records)
    return attacked


def published(value: Any, *, measured: bool = True) -> Any:
    """Return records of attacks without the (δ, ε) pairs of their bounds, which the rates follow from.

    Measured figures have six digits. Bounds keep all, because rounding could lower them.
    """
    if isinstance(value, Mapping):
        kept = {key: one for key, one in value.items() if key != "claims"}
        return {key: published(one, measured=measured and key not in _BOUNDS) for key, one in kept.items()}
    if isinstance(value, list | tuple):
        return [published(one, measured=measured) for one in value]
    return float(f"{value:.6g}") if measured and isinstance(value, float) else value


def _attacked(run: PlannedRun, metric: str, attack: AttackSettings, raw: str | None, kept: Path) -> AttackedRunRecord:
    folder = RunFolder.open(str(run.config.out))
    figures = numbers_of(folder.result or {})
    options = Options(seed=run.seed, **attack.model_dump(exclude={"joint"}))
    epsilon = figures.get("epsilon_any", math.inf)
    attacks = _kept_attacks(folder, options, raw, kept)
    spent = [float(folder.metrics()["seconds"].sum()), *(float(str(one.get("seconds", 0))) for one in attacks.values())]
    return AttackedRunRecord(
        curve=run.curve.name,
        label=run.curve.label,
        strategy=strategy_of(folder),
        deidentified=raw is not None,
        joint=run.point.x,
        seed=run.seed,
        epsilon_any=epsilon if raw is None and math.isfinite(epsilon) else None,
        utility=figures[metric],
        initial=figures[f"initial_{metric}"],
        attacks=attacks,
        seconds=sum(spent),
    )


def _kept_attacks(folder: RunFolder, options: Options, raw: str | None, kept: Path) -> Attacks:
    """Return the records of the attacks on a run: those that are kept, if model, ledger and options are the same."""
    file, result = kept / f"{folder.path.name}.json", folder.result or {}
    heads = {"ledger": result["ledger"], model_files.KEY: result["model_files"]}
    parts = {"options": options.record(), "raw": raw, **heads}
    of = json.dumps(encode(parts), sort_keys=True)
    try:
        known = decode(json.loads(file.read_bytes()))
    except (FileNotFoundError, ValueError):
        known = None
    if known is None or known["of"] != of:
        (found,) = attack_runs([folder.path], options, raw=raw).runs
        known = {"of": of, "attacks": published(found.record()["attacks"])}
        with owner_only():
            kept.mkdir(parents=True, exist_ok=True)
            replace_file(file, json.dumps(encode(known)).encode())
    attacks: Attacks = known["attacks"]
    return attacks
