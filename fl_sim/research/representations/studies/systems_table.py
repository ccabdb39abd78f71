"""Seven systems on any corpus with a private attribute, each selected from its grid: FEDERATE's tables, or one's own.

A record has the selected models at each relaxation threshold, fairness against accuracy (the paper's figure 3), and
leakage and accuracy against ε (figure 4). A gap is |TPR-gap|, of more than two classes GRMS; models are selected by the
largest of all attributes.

>>> fairest_by_accuracy([Candidate(0, 1, 0.831, 0.08), Candidate(0, 2, 0.834, 0.02), Candidate(1, 1, 0.84, 0.05)])
{83: 2.0, 84: 5.0}
>>> threshold_name(0.01), threshold_name(0.0)
('relaxation threshold 1.0', 'best validation accuracy')
>>> metric_names(("sex=m", "age=old"), "tpr_gap")[:3]
['accuracy', 'tpr_gap sex=m', 'leakage sex=m']
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict

from fl_sim.config import ConfigError
from fl_sim.formats import format_epsilon
from fl_sim.research.representations.client.client_workspace import open_data
from fl_sim.research.representations.config import ExperimentConfig, load_mapping
from fl_sim.research.representations.experiment_record import ExperimentRecord
from fl_sim.research.representations.server.group_metrics import share_error
from fl_sim.research.representations.studies.agreement import (
    Counts,
    Estimate,
    Published,
    count_verdicts,
    counted_words,
    estimate,
    reproduces,
    spread,
    table_cell,
)
from fl_sim.research.representations.studies.grid_selection import (
    FULL,
    RELAXATION,
    RELAXATIONS,
    SYSTEMS,
    THIN,
    Candidate,
    GapName,
    Selected,
    candidates_of,
    final,
    grid_points,
    selected_by_epsilon,
    selected_by_threshold,
)
from fl_sim.research.representations.studies.study_pictures import Curve, Panel, Picture, curves_of, draw_panels
from fl_sim.research.representations.studies.study_runs import Log, Options, Record, collect_records, heading
from fl_sim.research.study_files import Point, markdown_table

PublishedFigures = Mapping[str, Mapping[str, tuple[float, float] | None]]
"""Mean and deviation of each system's metrics."""


class Summary(TypedDict):
    """A metric over the seeds, the published mean and deviation, and whether they agree; None if none is published."""

    measured: Estimate
    published: list[float] | None
    agrees: bool | None


_OF_THE_GRID = (
    "method", "seed", "privacy.epsilon", "server.weight", "server.orthogonal", "training.stop_after",
    "training.inlp_rounds", "attacks", "releases", "encoder.run",
)  # fmt: skip
_SIZES = (
    "The interval of a TPR-gap is that of the mean of its size over the seeds, |gap|, which is above 0 also where the "
    "true gap is 0: it does not say where the true gap lies."
)
_LABELS = {"accuracy": "Accuracy", "tpr_gap": "TPR-gap", "grms": "GRMS", "leakage": "Leakage"}


def metric_names(attributes: Sequence[str], gap: GapName) -> list[str]:
    """Return the metrics of a table; of several private attributes each name ends with that of its attribute.

    ``mdl`` is MDL as FEDERATE's published code sums it (every step from the first row on again), ``mdl_online`` that of
    its equation 10.
    """
    ends = [f" {attribute}" for attribute in attributes] if len(attributes) > 1 else [""]
    return ["accuracy", *(f"{metric}{end}" for end in ends for metric in (gap, "leakage", "mdl", "mdl_online"))]


def of_own_data(settings: Mapping[str, Any], options: Options, log: Log = lambda *line: None) -> Record:
    """Return the table of a corpus of one's own, JSON-ready.

    ``settings`` are those of every experiment, nested: data, encoder, server, and what is common to all trainings.

    Raises:
        ConfigError: a setting is the grid's own, or the corpus has no private attribute.
    """
    for name in _OF_THE_GRID:
        section, _, key = name.partition(".")
        values = settings.get(section)
        given = values.get(key) if key and isinstance(values, Mapping) else None if key else values
        if given is not None:
            raise ConfigError(f"{name} is {given!r}; allowed with a grid, which has its own: leave it out")
    layer, privacy = options.layer, settings.get("privacy")
    if isinstance(privacy, Mapping):
        layer = privacy.get("layer", layer)
        settings = {**settings, "privacy": {key: value for key, value in privacy.items() if key != "layer"}}
    data = open_data(load_mapping({**settings, "method": "unconstrained"}).data, options.seeds[0])
    if not data.attributes:
        raise ConfigError(f"{data.name} has no private attribute; allowed with a grid: data with one")
    if options.work is not None:  # the records of other data have another folder
        options = replace(options, work=options.work / data.fingerprint[:16])
    return {
        **heading("systems", f"FEDERATE's systems on {data.name}", options),
        **systems_table(settings, layer, options, log),
    }


def systems_table(
    settings: Mapping[str, Any], layer: str, options: Options, log: Log, published: PublishedFigures | None = None
) -> Record:
    """Return the figures of all systems with ``settings``, JSON-ready; ``layer`` is that of systems with noise."""
    grid = FULL if options.full else THIN
    points = {
        (seed, of): list(grid_points({**settings, "seed": seed}, of, grid, layer))
        for seed in options.seeds
        for of in SYSTEMS
    }
    data = open_data(next(iter(points.values()))[0].data, options.seeds[0])
    gap: GapName = "tpr_gap" if len(data.classes) == 2 else "grms"
    records = iter(collect_records([config for configs in points.values() for config in configs], options, log))
    trained = {
        key: list(zip(configs, itertools.islice(records, len(configs)), strict=True)) for key, configs in points.items()
    }
    finals: list[Selected] = []
    gaps: dict[tuple[str, int], list[float]] = defaultdict(list)  # of the fairest model, by system and accuracy
    for seed in options.seeds:
        of_seed = {of: trained[seed, of] for of in SYSTEMS}
        by_threshold = list(selected_by_threshold(of_seed, gap))
        finals += [*by_threshold, *selected_by_epsilon(of_seed, [selected.config for selected in by_threshold], gap)]
        for of in SYSTEMS[1:]:
            for centre, value in fairest_by_accuracy(candidates_of(of_seed[of], gap)).items():
                gaps[of, centre].append(value)
    chosen: list[Record] = []
    by_epsilon: list[Record] = []
    for one, record in zip(finals, collect_records([one.config for one in finals], options, log), strict=True):
        (chosen if one.relaxations else by_epsilon).extend(_rows(one, record))
    metrics = metric_names(data.attributes, gap)
    selections = {
        relaxation: {
            of: _summary(
                [row for row in chosen if (row["relaxation"], row["system"]) == (relaxation, of)],
                metrics,
                {} if published is None else published[of],
            )
            for of in SYSTEMS
        }
        for relaxation in RELAXATIONS
    }
    table: Record = {
        "layer": layer,
        "relaxation": RELAXATION,
        "rows": selections[RELAXATION],
        "selections": [{"relaxation": relaxation, "rows": rows} for relaxation, rows in selections.items()],
        "fairness_by_accuracy": [
            {"system": system, "accuracy": centre, "seeds": len(values), gap: estimate(values)}
            for (system, centre), values in sorted(gaps.items())
        ],
        "by_epsilon": epsilon_rows(by_epsilon, _on_every_model(metrics)),
        "chosen": chosen,
    }
    if published is not None:
        table["reproduced"] = {str(relaxation): _counts(selections[relaxation]) for relaxation in (0.0, RELAXATION)}
    return table


def points_of_systems(table: Record, settings: Mapping[str, Any], options: Options) -> list[Point]:
    """Return a point for each selected model of a seed, of a table with ``settings``."""
    return [
        Point(
            f"{row['system']}, threshold {100 * row['relaxation']:g}, seed {row['seed']}", row["cpu_seconds"],
            partial(_trained_again, row, {**settings, "seed": row["seed"]}, options),
        )
        for row in table["chosen"]
    ]  # fmt: skip


def _trained_again(row: Record, settings: Mapping[str, Any], options: Options) -> tuple[Record, Record]:
    """Return the row of a selected model, and that of the same settings trained again."""
    (config,) = (
        config
        for config in grid_points(settings, row["system"], FULL if options.full else THIN, options.layer)
        if _axes(config) == tuple(row[name] for name in _AXES)
        and config.privacy.epsilon in (None, row["privacy"].get("epsilon"))
    )
    config = final(config, row["epoch"], mdl=any(name.startswith("mdl") for name in row["figures"]))
    (record,) = collect_records([config], options, lambda *_: None)
    (again,) = _rows(Selected(row["system"], (row["relaxation"],), config), record)
    return row, again


_AXES = ("weight", "orthogonal", "inlp_rounds")


def _axes(config: ExperimentConfig) -> tuple[float, float, int]:
    """Return what tells the grid points of a system apart, with ε, by the names of ``_AXES``."""
    return config.server.weight, config.server.orthogonal, config.training.inlp_rounds


def _on_every_model(metrics: Sequence[str]) -> list[str]:
    """Return the metrics without MDL, which is measured on the models of two thresholds alone."""
    return [metric for metric in metrics if not metric.startswith("mdl")]


def _rows(selected: Selected, record: ExperimentRecord) -> Iterator[Record]:
    """Yield a row of figures for each threshold that selects a model; one, without any, for the choice of an ε."""
    test, size = record["metrics"]["test"], record["data"]["test"]
    figures = {"accuracy": round(100 * test["accuracy"], 4)}
    errors = {"accuracy": round(100 * share_error(test["accuracy"], size), 4)}
    for attribute, group in test["groups"].items():
        end = f" {attribute}" if len(test["groups"]) > 1 else ""
        attacks = record["metrics"]["attacks"][attribute]
        shares = {"tpr_gap": abs(group["tpr_gap"]), "grms": group["grms"], "leakage": attacks["leakage"]}
        off = (group["tpr_gap_error"], group["grms_error"], share_error(attacks["leakage"], size))
        figures |= {f"{name}{end}": round(100 * share, 4) for name, share in shares.items()}
        errors |= {f"{name}{end}": round(100 * error, 4) for name, error in zip(shares, off, strict=True)}
        if "mdl" in attacks:
            figures[f"mdl{end}"] = attacks["mdl"]["recoded_kilobits"]
            figures[f"mdl_online{end}"] = attacks["mdl"]["kilobits"]
    config = selected.config
    for relaxation in selected.relaxations or (None,):
        yield {
            "system": selected.system,
            "relaxation": relaxation,
            "seed": record["seed"],
            "figures": figures,
            "errors": errors,
            **dict(zip(_AXES, _axes(config), strict=True)),
            "epoch": config.training.stop_after,
            "privacy": record["privacy"],
            "data": record["data"]["fingerprint"],
            "cpu_seconds": record["cpu_seconds"],
        }


def _summary(
    rows: Sequence[Record], metrics: Sequence[str], published: Mapping[str, tuple[float, float] | None]
) -> dict[str, Summary]:
    """Return each metric over the seeds, beside its published figure; of those that every seed has."""
    made: dict[str, Summary] = {}
    for metric in (metric for metric in metrics if all(metric in row["figures"] for row in rows)):
        errors = [row["errors"][metric] for row in rows if metric in row["errors"]]
        measured = estimate([row["figures"][metric] for row in rows], errors)
        figures = published.get(metric)
        made[metric] = {
            "measured": measured,
            "published": None if figures is None else list(figures),
            "agrees": None if figures is None else reproduces(measured, Published(*figures)),
        }
    return made


def _counts(table: Mapping[str, Mapping[str, Summary]]) -> Counts:
    """Return the counts of the published figures."""
    verdicts = [figure["agrees"] for row in table.values() for figure in row.values()]
    return count_verdicts([agrees for agrees in verdicts if agrees is not None])


def fairest_by_accuracy(candidates: Sequence[Candidate]) -> dict[int, float]:
    """Return the smallest unfairness, in percent, of the candidates within half a point of each whole percentage."""
    fairest: dict[int, float] = {}
    for candidate in candidates:
        if not math.isnan(candidate.unfairness):
            centre = math.floor(100 * candidate.accuracy + 0.5)
            fairest[centre] = min(fairest.get(centre, math.inf), round(100 * candidate.unfairness, 4))
    return dict(sorted(fairest.items()))


def epsilon_rows(chosen: Sequence[Record], metrics: Sequence[str]) -> list[Record]:
    """Return a row per system and ε: the metrics on the test split over the seeds; ``chosen`` has one of each seed."""
    groups: dict[tuple[str, float, float], list[Record]] = defaultdict(list)
    for row in chosen:
        privacy = row["privacy"]
        groups[row["system"], privacy["epsilon_any_text"], privacy["epsilon_claimed"]].append(row)
    return [
        {"system": system, "epsilon_proven": proven, "epsilon_claimed": claimed, "seeds": len(rows)}
        | {
            metric: estimate([row["figures"][metric] for row in rows], [row["errors"][metric] for row in rows])
            for metric in metrics
        }
        for (system, proven, claimed), rows in sorted(groups.items())
    ]


def as_markdown(table: Record) -> str:
    """Return the tables in Markdown: measured ± deviation [± half width] (published ± deviation), ✓ if reproduced."""
    seeds, metrics = len(table["seeds"]), _metrics_of(table)
    every = _on_every_model(metrics)
    selections = {selection["relaxation"]: selection["rows"] for selection in table["selections"]}
    lines: list[str] = []
    for relaxation in (RELAXATION, 0.0):
        rows = (
            [of, *(_cell(row[m], seeds, published="reproduced" in table) for m in metrics)]
            for of, row in selections[relaxation].items()
        )
        lines += [f"Selected by {threshold_name(relaxation)}:", "", *markdown_table(["system", *metrics], rows), ""]
        if "reproduced" in table:
            lines += [f"Reproduced: {counted_words(table['reproduced'][str(relaxation)])}.", ""]
    lines += [*_epsilon_lines(table["chosen"]), ""]
    lines += ["All relaxation thresholds (the paper's tables 4 to 6 are of other corpora):", ""]
    swept = (
        [system, f"{100 * rt:.1f}", *(spread(rows[system][m]["measured"], seeds, 2) for m in every)]
        for system in selections[RELAXATION]
        for rt, rows in selections.items()
    )
    lines += [*markdown_table(["system", "RT", *every], swept), ""]
    lines.append("The test split against ε (figure 4), models selected at relaxation threshold 1.0:")
    by_epsilon = (
        [
            row["system"],
            *(format_epsilon(row[name]) for name in ("epsilon_proven", "epsilon_claimed")),
            *(spread(row[metric], row["seeds"], 2) for metric in every),
        ]
        for row in table["by_epsilon"]
    )
    lines += ["", *markdown_table(["system", "ε proven", "ε claimed", *every], by_epsilon), ""]
    gap = _gap_of(table)
    if gap == "tpr_gap":
        lines += [_SIZES, ""]
    lines += [f"{_fairest(gap)} of an accuracy (figure 3), on the rows that chose it, so lower than on others:", ""]
    return "\n".join([*lines, *_fairness_table(table["fairness_by_accuracy"], gap)]) + "\n"


def _metrics_of(table: Record) -> list[str]:
    return list(next(iter(table["rows"].values())))


def _gap_of(table: Record) -> GapName:
    return "grms" if any(metric.startswith("grms") for metric in _metrics_of(table)) else "tpr_gap"


def _fairest(gap: GapName) -> str:
    return f"The smallest validation {_LABELS[gap]} of any model within half a point"


def _label(metric: str) -> str:
    """Return a metric in words, with its attribute where there are several."""
    name, _, attribute = metric.partition(" ")
    return f"{_LABELS[name]}, {attribute}" if attribute else _LABELS[name]


def threshold_name(relaxation: float) -> str:
    """Return a rule of selection in words."""
    return f"relaxation threshold {100 * relaxation:.1f}" if relaxation else "best validation accuracy"


def _cell(figure: Record, seeds: int, *, published: bool) -> str:
    if not published:
        return spread(figure["measured"], seeds, 2)
    shown = None if figure["published"] is None else "{:.2f} ± {:.2f}".format(*figure["published"])
    return table_cell(figure["measured"], seeds, 2, shown, figure["agrees"])


def _epsilon_lines(chosen: Sequence[Record]) -> Iterator[str]:
    """Yield a line of proven and claimed ε for each system with a privacy layer."""
    for system in dict.fromkeys(row["system"] for row in chosen):
        rows = [row["privacy"] for row in chosen if row["system"] == system and row["relaxation"] == RELAXATION]
        if rows[0].get("layer", "none") != "none":
            pairs = sorted({(privacy["epsilon_any_text"], privacy["epsilon_claimed"]) for privacy in rows})
            text = "; ".join(f"{format_epsilon(p)} proven ({format_epsilon(c)} claimed)" for p, c in pairs)
            yield f"* ε of {system} at relaxation threshold {100 * RELAXATION:.1f}: {text}"


def _fairness_table(rows: Sequence[Record], gap: GapName) -> list[str]:
    """Return a row per accuracy and a column per system; in brackets the number of seeds with such a model."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    gaps = {(row["accuracy"], row["system"]): f"{row[gap]['mean']:.2f} ({row['seeds']})" for row in rows}
    centres = sorted({accuracy for accuracy, _ in gaps})
    cells = ([str(centre), *(gaps.get((centre, system), "–") for system in systems)] for centre in centres)
    return markdown_table(["validation accuracy", *systems], cells)


def draw(table: Record) -> list[Picture]:
    """Return the pictures of the table: the thresholds, and both trade-offs."""
    gap, every = _gap_of(table), _on_every_model(_metrics_of(table))
    thresholds = tuple(100 * selection["relaxation"] for selection in table["selections"])
    swept = []
    for metric in every:
        curves = tuple(
            Curve(of, thresholds, tuple(selection["rows"][of][metric]["measured"] for selection in table["selections"]))
            for of in table["rows"]
            if of != "random"  # it has no model
        )
        swept.append(Panel(_label(metric), curves))
    by_epsilon = [
        Panel(_label(metric), curves_of(table["by_epsilon"], "system", "epsilon_proven", metric)) for metric in every
    ]
    fairest = Panel(
        f"{_fairest(gap)} of an accuracy", curves_of(table["fairness_by_accuracy"], "system", "accuracy", gap)
    )
    words = f"Accuracy, {_LABELS[gap]} and leakage against"
    return [
        Picture(
            "thresholds", f"{words} the relaxation threshold",
            draw_panels(swept, "relaxation threshold, points of accuracy", "percent", log=False),
        ),
        Picture("epsilon", f"{words} proven ε", draw_panels(by_epsilon, "ε, proven", "percent")),
        Picture(
            "fairness", "The fairest model of each accuracy",
            draw_panels([fairest], "validation accuracy, percent", f"{_LABELS[gap]}, percent", log=False),
        ),
    ]  # fmt: skip
