"""Figures without training: ε of a mechanism by the paper's accountant and by ours, and the counts of Table II.

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

from dataclasses import asdict
from typing import Any

from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.research.uedp_paper.figure_corpora import CorpusStore, MissingCorpusError
from fl_sim.research.uedp_paper.figure_records import EpsilonCurveRecord, EpsilonPanelRecord, TableCorpusRecord
from fl_sim.research.uedp_paper.figures import EpsilonCurve, EpsilonFigure, EpsilonPanel, TableFigure
from fl_sim.research.uedp_paper.table_two import table_of
from fl_sim.strategies.accounting.accountant import epsilon, epsilon_curve
from fl_sim.strategies.accounting.adjacency import Adjacency, ContributionBound
from fl_sim.strategies.accounting.paper_model import (
    PublishedSettings,
    curve_as_published,
    epsilon_as_published,
    proven_event,
)

_STEPS = 25  # points of a curve


def epsilon_panels(figure: EpsilonFigure) -> tuple[EpsilonPanelRecord, ...]:
    """Return the claimed and proven ε of every curve of a figure."""
    return tuple(
        EpsilonPanelRecord(
            name=panel.name,
            title=panel.title,
            users=panel.users,
            curves=tuple(_curve(figure, panel, curve) for curve in panel.curves),
        )
        for panel in figure.panels
    )


def panel_of_corpus(corpus: Corpus, q_u: float) -> EpsilonPanel:
    """Return the inputs of the paper's accountant from a corpus's training split, a curve per kind of entity.

    Args:
        corpus: with entities.
        q_u: the rate at which users are sampled.
    """
    table = table_of(corpus)
    row = table.ours["train"]
    curves = [
        EpsilonCurve(name=kind, label=kind, estimator="f_e_plus", sensitive_sentences=row.sensitive[kind])
        for kind in table.columns
        if row.sensitive[kind]
    ]
    name = corpus.manifest.name
    return EpsilonPanel(
        name=name,
        title=name,
        users=row.users,
        users_per_round=q_u * row.users,
        sentences=row.sentences,
        curves=tuple(curves),
    )


def settings_of(figure: EpsilonFigure, panel: EpsilonPanel, curve: EpsilonCurve) -> PublishedSettings:
    """Return a curve's training as inputs of the paper's accountant."""
    return PublishedSettings(
        estimator=curve.estimator,
        users=panel.users,
        users_per_round=panel.users_per_round,
        noise_multiplier=figure.noise_multiplier,
        q_e=figure.q_e,
        sentences=panel.sentences,
        sensitive_sentences=curve.sensitive_sentences or panel.sentences,
    )


def _curve(figure: EpsilonFigure, panel: EpsilonPanel, curve: EpsilonCurve) -> EpsilonCurveRecord:
    settings = settings_of(figure, panel, curve)
    event = proven_event(settings)
    grid = {round(1 + step * (figure.rounds - 1) / _STEPS) for step in range(_STEPS + 1)}
    rounds = sorted(grid | {int(number) for number in curve.published if int(number) <= figure.rounds})
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
        at_printed={number: epsilon_as_published(settings, int(number), figure.delta) for number in curve.published},
        section=curve.section,
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
        rows.append(_row(corpus))
    return tuple(rows), skipped


def _row(corpus: Corpus) -> TableCorpusRecord:
    table = table_of(corpus)
    published: dict[str, Any] = {} if table.published is None else asdict(table.published)
    return TableCorpusRecord(
        title=published.pop("name", corpus.manifest.name),
        tagger=corpus.manifest.tagger["tagger"],
        columns=table.columns,
        ours=table.ours["train"],
        difference=published.pop("difference", ""),
        published=published,
    )
