"""FEDERATE's table 3 (Adult): seven systems, each selected from its grid, beside the published figures.

The record also has the paper's other thresholds (its tables 4 to 6) and its two trade-offs, which the paper does not
have for Adult: fairness against accuracy (figure 3), leakage and accuracy against ε (4).

>>> fairest_by_accuracy([Candidate(0, 1, 0.831, 0.08), Candidate(0, 2, 0.834, 0.02), Candidate(1, 1, 0.84, 0.05)])
{83: 2.0, 84: 5.0}
>>> threshold_name(0.01), threshold_name(0.0)
('relaxation threshold 1.0', 'best validation accuracy')
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

from fl_sim.formats import format_epsilon
from fl_sim.research.representations.experiment_record import ExperimentRecord
from fl_sim.research.representations.server.group_metrics import share_error
from fl_sim.research.representations.studies.agreement import (
    Estimate,
    Published,
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
    Selected,
    candidates_of,
    grid_points,
    selected_by_epsilon,
    selected_by_threshold,
)
from fl_sim.research.representations.studies.study_pictures import Curve, Panel, Picture, curves_of, draw_panels
from fl_sim.research.representations.studies.study_runs import Log, Options, Record, collect_records, heading
from fl_sim.research.study_files import markdown_table


class Summary(TypedDict):
    """A metric over the seeds, the published mean and deviation, and whether they agree; None if none is published."""

    measured: Estimate
    published: list[float] | None
    agrees: bool | None


METRICS = ("accuracy", "tpr_gap", "leakage", "mdl")
SHOWN = (*METRICS, "mdl_online")
"""The paper's metrics, with MDL as summed by its published code (every step from the first row on again), and MDL of
its equation 10, for which no figure is published."""
_ON_EVERY_MODEL = METRICS[:3]  # MDL is measured on the models of table 3 alone
_LABELS = {"accuracy": "Accuracy", "tpr_gap": "TPR-gap", "leakage": "Leakage"}

PUBLISHED: dict[str, dict[str, tuple[float, float] | None]] = {
    system: dict(zip(METRICS, figures, strict=True))
    for system, figures in {
        "random": ((50.00, 0.00), (0.00, 0.00), None, (20.15, 0.083)),
        "unconstrained": ((83.41, 0.32), (12.73, 7.17), (78.19, 1.0), (16.38, 0.46)),
        "inlp": ((83.11, 0.51), (3.91, 2.43), (74.54, 0.67), (19.93, 0.35)),
        "noise": ((82.87, 0.37), (8.01, 1.18), (68.12, 0.94), (19.38, 0.33)),
        "adversarial": ((83.14, 0.53), (7.02, 3.31), (78.2, 0.18), (16.1, 0.36)),
        "adversarial-multiple": ((83.14, 0.25), (3.55, 2.16), (81.37, 0.98), (13.5, 1.09)),
        "federate": ((82.29, 0.9), (2.73, 2.18), (70.25, 4.81), (18.1, 2.79)),
    }.items()
}
"""Table 3: mean and deviation; accuracy, gap and leakage in percent, MDL in 1024 bits."""


NETWORK: dict[str, dict[str, str | float | list[int]]] = {
    "encoder": {"kind": "mlp", "width": 50, "layers": 3, "first_width": 100, "dropout": 0.5},
    "server": {
        "classifier": [50, 25],
        "adversary": [50],
        "dropout": 0.5,
        "adversary_dropout": 0.4,
        "weighed": "loss",
    },
}
"""That of FEDERATE's published code for Adult, with which Random and Unconstrained reproduce, not its paper's."""


def reproduce(options: Options, log: Log = lambda line: None) -> Record:
    """Return the table as a JSON-ready mapping: published and measured figures, selected points, every value."""
    grid = FULL if options.full else THIN
    data = {"name": "adult", "source": str(options.source), "split": "code"}
    points = {
        (seed, of): list(grid_points({"seed": seed, "data": data, **NETWORK}, of, grid, options.layer))
        for seed in options.seeds
        for of in SYSTEMS
    }
    records = iter(collect_records([config for configs in points.values() for config in configs], options, log))
    trained = {
        key: list(zip(configs, itertools.islice(records, len(configs)), strict=True)) for key, configs in points.items()
    }
    finals: list[Selected] = []
    gaps: dict[tuple[str, int], list[float]] = defaultdict(list)  # of the fairest model, by system and accuracy
    for seed in options.seeds:
        of_seed = {of: trained[seed, of] for of in SYSTEMS}
        by_threshold = list(selected_by_threshold(of_seed))
        finals += [*by_threshold, *selected_by_epsilon(of_seed, [selected.config for selected in by_threshold])]
        for of in SYSTEMS[1:]:
            for centre, gap in fairest_by_accuracy(candidates_of(of_seed[of])).items():
                gaps[of, centre].append(gap)
    chosen: list[Record] = []
    by_epsilon: list[Record] = []
    for final, record in zip(finals, collect_records([f.config for f in finals], options, log), strict=True):
        (chosen if final.relaxations else by_epsilon).extend(_rows(final, record))
    selections = {
        relaxation: {
            of: _summary(of, [row for row in chosen if (row["relaxation"], row["system"]) == (relaxation, of)])
            for of in SYSTEMS
        }
        for relaxation in RELAXATIONS
    }
    return {
        **heading("adult", "FEDERATE (Maheshwari et al. 2022), table 3", options),
        "layer": options.layer,
        "relaxation": RELAXATION,
        "rows": selections[RELAXATION],
        "selections": [{"relaxation": relaxation, "rows": rows} for relaxation, rows in selections.items()],
        "reproduced": {str(relaxation): _counts(selections[relaxation]) for relaxation in (0.0, RELAXATION)},
        "fairness_by_accuracy": [
            {"system": system, "accuracy": centre, "seeds": len(values), "tpr_gap": estimate(values)}
            for (system, centre), values in sorted(gaps.items())
        ],
        "by_epsilon": epsilon_rows(by_epsilon),
        "chosen": chosen,
    }


def _rows(final: Selected, record: ExperimentRecord) -> Iterator[Record]:
    """Yield a row of figures for each threshold that selects a model; one, without any, for the choice of an ε."""
    test = record["metrics"]["test"]
    attribute, gaps = next(iter(test["groups"].items()))
    attacks = record["metrics"]["attacks"][attribute]
    figures = {"accuracy": test["accuracy"], "leakage": attacks["leakage"]}
    errors = {name: share_error(share, record["data"]["test"]) for name, share in figures.items()}
    figures |= {"tpr_gap": abs(gaps["tpr_gap"]), "grms": gaps["grms"]}
    errors |= {"tpr_gap": gaps["tpr_gap_error"], "grms": gaps["grms_error"]}
    figures = {name: round(100 * value, 4) for name, value in figures.items()}
    if "mdl" in attacks:
        figures |= {"mdl": attacks["mdl"]["recoded_kilobits"], "mdl_online": attacks["mdl"]["kilobits"]}
    config = final.config
    for relaxation in final.relaxations or (None,):
        yield {
            "system": final.system,
            "relaxation": relaxation,
            "seed": record["seed"],
            "figures": figures,
            "errors": {name: round(100 * value, 4) for name, value in errors.items()},
            "weight": config.server.weight,
            "orthogonal": config.server.orthogonal,
            "inlp_rounds": config.training.inlp_rounds,
            "epoch": config.training.stop_after,
            "privacy": record["privacy"],
            "data": record["data"]["fingerprint"],
            "cpu_seconds": record["cpu_seconds"],
        }


def _summary(system: str, rows: Sequence[Record]) -> dict[str, Summary]:
    """Return each metric over the seeds, beside its published figure; of those that every seed has."""
    metrics: dict[str, Summary] = {}
    for metric in (metric for metric in SHOWN if all(metric in row["figures"] for row in rows)):
        errors = [row["errors"][metric] for row in rows if metric in row["errors"]]
        measured = estimate([row["figures"][metric] for row in rows], errors)
        figures = PUBLISHED[system].get(metric)
        metrics[metric] = {
            "measured": measured,
            "published": None if figures is None else list(figures),
            "agrees": None if figures is None else reproduces(measured, Published(*figures)),
        }
    return metrics


def _counts(table: Mapping[str, Mapping[str, Summary]]) -> dict[str, int]:
    """Return the number of published figures, and of those that are reproduced."""
    verdicts = [agrees for row in table.values() for figure in row.values() if (agrees := figure["agrees"]) is not None]
    return {"published": len(verdicts), "reproduced": sum(verdicts)}


def fairest_by_accuracy(candidates: Sequence[Candidate]) -> dict[int, float]:
    """Return the smallest unfairness, in percent, of the candidates within half a point of each whole percentage."""
    fairest: dict[int, float] = {}
    for candidate in candidates:
        if not math.isnan(candidate.unfairness):
            centre = math.floor(100 * candidate.accuracy + 0.5)
            fairest[centre] = min(fairest.get(centre, math.inf), round(100 * candidate.unfairness, 4))
    return dict(sorted(fairest.items()))


def epsilon_rows(chosen: Sequence[Record]) -> list[Record]:
    """Return a row per system and ε: test accuracy and leakage over the seeds; ``chosen`` has one of each seed."""
    groups: dict[tuple[str, float, float], list[Record]] = defaultdict(list)
    for row in chosen:
        privacy = row["privacy"]
        groups[row["system"], privacy["epsilon_any_text"], privacy["epsilon_claimed"]].append(row)
    return [
        {"system": system, "epsilon_proven": proven, "epsilon_claimed": claimed, "seeds": len(rows)}
        | {
            metric: estimate([row["figures"][metric] for row in rows], [row["errors"][metric] for row in rows])
            for metric in ("accuracy", "leakage", "tpr_gap")
        }
        for (system, proven, claimed), rows in sorted(groups.items())
    ]


def as_markdown(table: Record) -> str:
    """Return the tables in Markdown: measured ± deviation [± half width] (published ± deviation), ✓ if reproduced."""
    seeds = len(table["seeds"])
    selections = {selection["relaxation"]: selection["rows"] for selection in table["selections"]}
    lines: list[str] = []
    for relaxation in (RELAXATION, 0.0):
        rows = ([of, *(_cell(row[m], seeds) for m in SHOWN)] for of, row in selections[relaxation].items())
        lines += [f"Selected by {threshold_name(relaxation)}:", "", *markdown_table(["system", *SHOWN], rows), ""]
        counts = table["reproduced"][str(relaxation)]
        lines += [f"Reproduced: {counts['reproduced']} of {counts['published']} published figures.", ""]
    lines += [*_epsilon_lines(table["chosen"]), ""]
    lines += ["All relaxation thresholds (the paper's tables 4 to 6, here on Adult; nothing is published for it):", ""]
    swept = (
        [system, f"{100 * rt:.1f}", *(spread(rows[system][m]["measured"], seeds, 2) for m in _ON_EVERY_MODEL)]
        for system in selections[RELAXATION]
        for rt, rows in selections.items()
    )
    lines += [*markdown_table(["system", "RT", *_ON_EVERY_MODEL], swept), ""]
    lines.append(
        "Accuracy and leakage on the test split against ε (figure 4), models selected at relaxation threshold 1.0:"
    )
    metrics = ("accuracy", "leakage", "tpr_gap")
    by_epsilon = (
        [
            row["system"],
            *(format_epsilon(row[name]) for name in ("epsilon_proven", "epsilon_claimed")),
            *(spread(row[metric], row["seeds"], 2) for metric in metrics),
        ]
        for row in table["by_epsilon"]
    )
    lines += ["", *markdown_table(["system", "ε proven", "ε claimed", *metrics], by_epsilon), ""]
    lines += ["The smallest validation TPR-gap of any model within half a point of an accuracy (figure 3):", ""]
    return "\n".join([*lines, *_fairness_table(table["fairness_by_accuracy"])]) + "\n"


def threshold_name(relaxation: float) -> str:
    """Return a rule of selection in words."""
    return f"relaxation threshold {100 * relaxation:.1f}" if relaxation else "best validation accuracy"


def _cell(figure: Record, seeds: int) -> str:
    published = None if figure["published"] is None else "{:.2f} ± {:.2f}".format(*figure["published"])
    return table_cell(figure["measured"], seeds, 2, published, figure["agrees"])


def _epsilon_lines(chosen: Sequence[Record]) -> Iterator[str]:
    """Yield a line of proven and claimed ε for each system with a privacy layer."""
    for system in dict.fromkeys(row["system"] for row in chosen):
        rows = [row["privacy"] for row in chosen if row["system"] == system and row["relaxation"] == RELAXATION]
        if rows[0].get("layer", "none") != "none":
            pairs = sorted({(privacy["epsilon_any_text"], privacy["epsilon_claimed"]) for privacy in rows})
            text = "; ".join(f"{format_epsilon(p)} proven ({format_epsilon(c)} claimed)" for p, c in pairs)
            yield f"* ε of {system} at relaxation threshold {100 * RELAXATION:.1f}: {text}"


def _fairness_table(rows: Sequence[Record]) -> list[str]:
    """Return a row per accuracy and a column per system; in brackets the number of seeds with such a model."""
    systems = list(dict.fromkeys(row["system"] for row in rows))
    gaps = {(row["accuracy"], row["system"]): f"{row['tpr_gap']['mean']:.2f} ({row['seeds']})" for row in rows}
    centres = sorted({accuracy for accuracy, _ in gaps})
    cells = ([str(centre), *(gaps.get((centre, system), "–") for system in systems)] for centre in centres)
    return markdown_table(["validation accuracy", *systems], cells)


def draw(table: Record) -> list[Picture]:
    """Return the pictures of the table: the thresholds, and both trade-offs."""
    thresholds = tuple(100 * selection["relaxation"] for selection in table["selections"])
    swept = []
    for metric in _ON_EVERY_MODEL:
        curves = tuple(
            Curve(of, thresholds, tuple(selection["rows"][of][metric]["measured"] for selection in table["selections"]))
            for of in table["rows"]
            if of != "random"  # it has no model
        )
        swept.append(Panel(_LABELS[metric], curves))
    by_epsilon = [
        Panel(_LABELS[metric], curves_of(table["by_epsilon"], "system", "epsilon_proven", metric))
        for metric in _ON_EVERY_MODEL
    ]
    fairest = Panel(
        "The smallest validation TPR-gap within half a point of an accuracy",
        curves_of(table["fairness_by_accuracy"], "system", "accuracy", "tpr_gap"),
    )
    return [
        Picture(
            "thresholds", "Accuracy, TPR-gap and leakage against the relaxation threshold",
            draw_panels(swept, "relaxation threshold, points of accuracy", "percent", log=False),
        ),
        Picture(
            "epsilon", "Accuracy, leakage and TPR-gap against proven ε", draw_panels(by_epsilon, "ε, proven", "percent")
        ),
        Picture(
            "fairness", "The fairest model of each accuracy",
            draw_panels([fairest], "validation accuracy, percent", "TPR-gap, percent", log=False),
        ),
    ]  # fmt: skip
