"""The points of a figure's record, and how each is computed again: a run, or what a figure without runs has.

>>> from fl_sim.research.uedp_paper.figure_records import read_record
>>> record = read_record(Path(__file__).parents[2] / "results" / "table2.json")
>>> [point.words for point in points_of(record, CorpusStore(Path("data"), Path("corpora")), Path("out"))][:2]
['conll2003', 'ag']
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fl_sim.research.study_files import Point, first_problem
from fl_sim.research.uedp_paper import figure_training
from fl_sim.research.uedp_paper.figure_corpora import CorpusStore
from fl_sim.research.uedp_paper.figure_records import (
    EpsilonRecord,
    PointRecord,
    Record,
    TableRecord,
    TrainingRecord,
)
from fl_sim.research.uedp_paper.figure_training import Plan, PlannedRun
from fl_sim.research.uedp_paper.figures import EpsilonFigure, TableFigure, TrainingFigure
from fl_sim.research.uedp_paper.make_figure import attacked_runs, epsilon_panels, table_corpora
from fl_sim.search.sweep import DONE, INTERRUPTED, Ending, run_one
from fl_sim.stop_signals import Stopped
from fl_sim.storage.run_folder import ResultsError, RunFolder

Kind = TypeVar("Kind", EpsilonFigure, TableFigure, TrainingFigure)


def points_of(record: Record, store: CorpusStore, out: Path) -> list[Point]:
    """Return the points of a record: its runs, the corpora of a table, or ε of a figure without runs as a whole.

    Runs go to the folder ``out``, which is to have none.
    """
    if isinstance(record, EpsilonRecord):
        return [Point("all of it", None, partial(_epsilon_panels, record))]
    if isinstance(record, TableRecord):
        names = [name for name in _figure(TableFigure, record).corpora if name not in record.skipped]
        return [Point(name, None, partial(_corpus, record, name, number, store)) for number, name in enumerate(names)]
    return list(_trained_points(record, store, out))


def _figure(kind: type[Kind], record: Record) -> Kind:
    """Return the figure as recorded, without what figures no longer have, such as words on its page."""
    try:
        return kind.model_validate({key: value for key, value in record.config.items() if key in kind.model_fields})
    except ValidationError as error:
        raise ResultsError(f"{record.figure}: config: {first_problem(error, kind)}") from error


def _epsilon_panels(record: EpsilonRecord) -> tuple[Any, Any]:
    again = epsilon_panels(_figure(EpsilonFigure, record))
    return [panel.model_dump() for panel in record.panels], [panel.model_dump() for panel in again]


def _corpus(record: TableRecord, name: str, number: int, store: CorpusStore) -> tuple[Any, Any]:
    figure = _figure(TableFigure, record)
    store.prepared(name, figure.corpora[name])  # whose error has its cause
    (row,), _ = table_corpora(figure.model_copy(update={"corpora": {name: figure.corpora[name]}}), store)
    return record.corpora[number].model_dump(), row.model_dump()


def _trained_points(record: TrainingRecord, store: CorpusStore, out: Path) -> Iterator[Point]:
    for panel in record.panels:
        for curve in panel.curves:
            for number, point in enumerate(curve.points):
                for seed in record.seeds:
                    x = "" if point.x is None else f" at {point.x:g}"
                    yield Point(
                        f"{panel.name}, {curve.name}{x}, seed {seed}",
                        point.seconds / len(record.seeds),
                        partial(_trained, record, (panel.name, curve.name, number, seed), store, out),
                    )


def _trained(
    record: TrainingRecord, of: tuple[str, str, int, int], store: CorpusStore, out: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    name, curve_name, number, seed = of
    plan, run, ending = _run_again(_figure(TrainingFigure, record), of, store, out)
    panel = next(panel for panel in record.panels if panel.name == name)
    curve = next(curve for curve in panel.curves if curve.name == curve_name)
    folder = RunFolder.open(str(run.config.out))
    again = figure_training.point_record(plan, run.curve, [(run, folder)])
    source = plan.figure.corpora[run.panel.corpus]
    corpus = figure_training.corpus_record(store.prepared(run.panel.corpus, source, seed=record.seeds[0]))

    def figures(point: PointRecord, seed: int, fingerprint: str) -> dict[str, Any]:
        start = point.initial.values[seed]
        return {
            record.metric: point.utility.values[seed],
            "start": start,
            "z": point.noise_multiplier,
            "ε": point.epsilon.model_dump() if source.held_out is None else "the largest of seeds with other users",
            "corpus": fingerprint,
            "parts": _parts_of(point, seed),
            "the start, of initial model and held-out text,": f"{start:.4g}",
        }

    recorded = figures(curve.points[number], record.seeds.index(seed), panel.corpus.fingerprint)
    found = figures(again, 0, corpus.fingerprint)
    point = (curve_name, curve.points[number].x, seed)
    attacked = [one for one in panel.attacked if (one.curve, one.joint, one.seed) == point]
    if attacked and plan.figure.attack is not None:
        ((attacked_again,),) = attacked_runs(plan, plan.figure.attack, [ending], out, store).values()
        recorded["attacks"], found["attacks"] = attacked[0].attacks, attacked_again.attacks
    return recorded, found


def _parts_of(point: PointRecord, seed: int) -> dict[str, dict[str, float]]:
    """Return the figures of parts of the held-out text of one seed, but those that not every seed has."""
    groups = {} if point.parts is None else point.parts.model_dump(exclude={"metric"})
    count = len(point.utility.values)
    return {
        group: {name: one["values"][seed] for name, one in of_group.items() if len(one["values"]) == count}
        for group, of_group in groups.items()
    }


def _run_again(
    figure: TrainingFigure, of: tuple[str, str, int, int], store: CorpusStore, out: Path
) -> tuple[Plan, PlannedRun, Ending]:
    """Run a point of a curve with a seed again; return the plan with this run alone, the run, and how it ended.

    Raises:
        MissingCorpusError: the corpus cannot be prepared.
        ResultsError: the run failed.
        Stopped: it was interrupted.
    """
    panel, curve, number, seed = of
    before = next(one.after for one in figure.curves if one.name == curve)
    needed = (curve, before, figure.reference)  # whose ε that of others follows
    curves = tuple(one for one in figure.curves if one.name in needed)
    figure = figure.model_copy(update={"curves": curves, "seeds": (seed,)})
    corpus = next(one.corpus for one in figure.panels if one.name == panel)
    store.prepared(corpus, figure.corpora[corpus], seed=seed)  # whose error has its cause
    plan = figure_training.plan_figure(figure, out, store, (panel,))
    reason = plan.skipped.get(panel) or next(iter(plan.left_out[panel].values()), None)
    if reason is not None:
        raise ResultsError(reason)
    run = [run for run in plan.runs if run.curve.name == curve][number]
    for one in (*(one for one in plan.runs if one.curve.name == before), run):
        ending = run_one(one.name, one.config)
        if ending.status == INTERRUPTED:
            raise Stopped(ending.reason)
        if ending.status != DONE:
            raise ResultsError(f"{one.name} {ending.status}: {ending.reason}")
    return replace(plan, runs=(run,)), run, ending
