"""The study's figures 7 and 8: accuracy of text classification after DPNR's layer, over ε and word dropout.

As in the study's notebook a bag has words and pairs of words, from a vocabulary of the whole training file, its texts
are the first of the file, the step shrinks by a factor of 0.9 per epoch, and dropout masks each word and each pair by
itself. SST-2 replaces Yelp polarity. The trainings without noise (Non Robust) and with ε_n = 10/n or 1/n in epoch n
(Adaptative) do not depend on ε, so one of each serves all releases; the Robust training at ε = 4 serves all rates of
dropout.

>>> PUBLISHED["ag-news", 32]["robust"][5.0, 0.0]
0.73
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from fl_sim.formats import format_epsilon
from fl_sim.research.representations.config import ExperimentConfig, load_mapping
from fl_sim.research.representations.experiment_record import ExperimentRecord, GuaranteeRow
from fl_sim.research.representations.server.adversarial_training import AdaptiveName
from fl_sim.research.representations.studies.agreement import (
    Published,
    count_verdicts,
    counted_words,
    estimate,
    reproduces,
    table_cell,
)
from fl_sim.research.representations.studies.study_pictures import Panel, Picture, curves_of, draw_panels
from fl_sim.research.representations.studies.study_runs import (
    Log,
    Options,
    Record,
    collect_figures,
    heading,
    points_of_experiments,
)
from fl_sim.research.study_files import Point, markdown_table

Key = tuple[float, float]
"""ε and μ of a release."""
RowKey = tuple[str, int, str, Key | None]
"""Corpus, k, system and release; the release is None without noise."""

EPSILONS = (0.05, 0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
RATES = (0.1, 0.3, 0.5, 0.8)
EPSILON_OF_RATES = 4.0
NO_NOISE: Key = (1e6, 0.0)
"""A release of Non Robust whose noise, a millionth of a vector's range, changes nothing: the study's Non Private."""
RELEASES: tuple[Key, ...] = (*((e, 0.0) for e in EPSILONS), *((EPSILON_OF_RATES, m) for m in RATES))
SCHEDULES: tuple[AdaptiveName, ...] = ("10/n", "1/n")
SYSTEMS = ("non-robust", "robust", *(f"adaptive {schedule}" for schedule in SCHEDULES))
FOLDERS = {"ag-news": "ag_news", "sst2": "sst2"}
"""Folder of each corpus in the source."""

_COLUMNS: dict[tuple[str, int], dict[str, tuple[float, ...]]] = {
    ("ag-news", 32): {
        "non-robust": (0.26, 0.26, 0.31, 0.36, 0.48, 0.57, 0.63, 0.67, 0.53, 0.37, 0.32, 0.27),
        "robust": (0.25, 0.25, 0.25, 0.25, 0.30, 0.51, 0.66, 0.73, 0.58, 0.35, 0.33, 0.27),
    },
    ("ag-news", 64): {
        "non-robust": (0.26, 0.26, 0.30, 0.36, 0.46, 0.54, 0.59, 0.66, 0.53, 0.37, 0.30, 0.26),
        "robust": (0.25, 0.25, 0.25, 0.25, 0.31, 0.42, 0.50, 0.68, 0.47, 0.29, 0.28, 0.25),
        "adaptive 10/n": (0.26, 0.26, 0.34, 0.42, 0.50, 0.57, 0.64, 0.63, 0.40, 0.37, 0.28, 0.26),
    },
}
PUBLISHED: dict[tuple[str, int], dict[str, dict[Key, float]]] = {
    table: {system: dict(zip(RELEASES, column, strict=True)) for system, column in columns.items()}
    for table, columns in _COLUMNS.items()
}
"""Test accuracy, a share: the mean of five runs, published without deviations. Yelp's columns are left out. Of 1/n the
study has no figure, but says that with k 32 "the test accuracy was as good as a randomness"."""
PUBLISHED_PLAIN = {("ag-news", 32): 0.80, ("ag-news", 64): 0.77}
"""Test accuracy of normalised vectors without noise."""


_COUNTED: dict[str, Callable[[Record], bool]] = {
    "without noise": lambda row: row["epsilon"] is None,
    "with noise": lambda row: row["epsilon"] is not None and not row["word_dropout"],
    "with word dropout": lambda row: row["word_dropout"] > 0,
}


@dataclass(frozen=True)
class Grid:
    """The trainings of each corpus: ε of Robust (4 among them), k, texts of training and validation, epochs."""

    robust: tuple[float, ...] = EPSILONS
    dimensions: tuple[int, ...] = (32, 64)
    rows: int = 30_000
    epochs: int = 5


GRID = Grid()
"""All of both figures."""


def reproduce(options: Options, log: Log = lambda *line: None) -> Record:
    """Return the figures as a JSON-ready mapping: a row for each corpus, k, system, ε and μ.

    ``options.source`` has a folder for each corpus (:data:`FOLDERS`).
    """
    rows = collect_figures(lambda seed: _configs(seed, GRID, options), _accuracies, options, log)
    made = [_row(key, values) for key, values in rows.items()]
    return {
        **heading("ag-study", "Study of DPNR (Zouhri and Abecidan 2021), figures 7 and 8", replace(options, full=True)),
        "texts": GRID.rows,
        "epochs": GRID.epochs,
        "rows": made,
        "reproduced": {
            words: count_verdicts([row["agrees"] for row in made if of(row) and row["agrees"] is not None])
            for words, of in _COUNTED.items()
        },
    }


def points(table: Record, options: Options) -> list[Point]:
    """Return the points of a table."""
    names = ("corpus", "dimensions", "system", "epsilon", "word_dropout")
    return points_of_experiments(table, lambda seed: _configs(seed, GRID, options), _accuracies, _row, names, options)


def as_markdown(table: Record) -> str:
    """Return the figures in Markdown: accuracy in percent ± deviation (published), proven and claimed ε."""
    lines: list[str] = []
    seeds = len(table["seeds"])
    names = ["ε' proven", "ε' claimed", "ε", "μ", "Non Robust", "Robust", "Adaptative 10/n", "Adaptative 1/n"]
    for title, part in _parts(table).items():
        plain = next(row for row in part if row["system"] == "no noise")
        rows = []
        for key in RELEASES:
            of_key = {row["system"]: row for row in part if (row["epsilon"], row["word_dropout"]) == key}
            if of_key:
                row = next(iter(of_key.values()))
                epsilons = [format_epsilon(row[name]) for name in ("epsilon_corrected", "epsilon_claimed")]
                cells = [_cell(of_key[system], seeds) if system in of_key else "–" for system in SYSTEMS]
                rows.append([*epsilons, *(f"{value:g}" for value in key), *cells])
        lines += [f"{title}; without noise {_cell(plain, seeds)}:", "", *markdown_table(names, rows), ""]
    lines += [f"* Reproduced {words}: {counted_words(counts)}." for words, counts in table["reproduced"].items()]
    lines.append('* Of 1/n the study prints no figures; with k = 32 "the test accuracy was as good as a randomness".')
    return "\n".join(lines)


def draw(table: Record) -> list[Picture]:
    """Return a picture of accuracy against proven ε: a panel for each corpus and k, published points beside ours."""
    panels = []
    for title, part in _parts(table).items():
        rows = [{"epsilon_corrected": None, **row} for row in part if not row["word_dropout"]]
        ordered = sorted(rows, key=lambda row: ("no noise", *SYSTEMS).index(row["system"]))
        panels.append(Panel(title, curves_of(ordered, "system", "epsilon_corrected", "measured", "published")))
    figure = draw_panels(panels, "ε, proven: k times the study's", "accuracy, percent")
    words = "Accuracy of the systems against proven ε, with 95 % intervals; full marks are the study's figures"
    return [Picture("epsilon", words, figure)]


def _parts(table: Record) -> dict[str, list[Record]]:
    """Return the rows of each corpus and k, by their title."""
    parts: dict[str, list[Record]] = {}
    for row in table["rows"]:
        parts.setdefault(f"{row['corpus']}, k = {row['dimensions']}", []).append(row)
    return parts


def _configs(seed: int, grid: Grid, options: Options) -> Iterator[ExperimentConfig]:
    for corpus, folder in FOLDERS.items():
        for width in grid.dimensions:
            training = {"epochs": grid.epochs, "batch_size": 64}
            base = {
                "seed": seed,
                "data": {
                    "selection": "first",
                    "name": corpus,
                    "source": str(options.source / folder),
                    "rows": grid.rows,
                },
                "encoder": {"kind": "bag", "width": width, "ngrams": 2, "vocabulary": "file"},
                "training": training,
                "optimizer": {"name": "sgd", "learning_rate": 2.0, "decay": 0.9},
            }
            privacy = {"epsilon": EPSILON_OF_RATES, "dropped_words": "masked"}
            of_all = {"privacy": privacy, "releases": _sections(RELEASES)}
            quiet = {**of_all, "releases": _sections([*RELEASES, NO_NOISE])}
            yield load_mapping({**base, **quiet, "method": "non-robust"})
            for schedule in SCHEDULES:
                adaptive = {"method": "adaptive", "training": {**training, "adaptive": schedule}}
                yield load_mapping({**base, **of_all, **adaptive})
            for epsilon in grid.robust:
                if epsilon == EPSILON_OF_RATES:
                    keys = [(epsilon, 0.0), *((epsilon, rate) for rate in RATES)]
                    yield load_mapping({**base, **of_all, "method": "robust", "releases": _sections(keys)})
                else:
                    alone = {"privacy": {"epsilon": epsilon}, "releases": _sections([(epsilon, 0.0)])}
                    yield load_mapping({**base, **alone, "method": "robust"})


def _sections(keys: Sequence[Key]) -> list[dict[str, float]]:
    return [{"epsilon": epsilon, "word_dropout": rate} for epsilon, rate in keys]


def _accuracies(record: ExperimentRecord) -> Iterator[tuple[RowKey, tuple[float, GuaranteeRow]]]:
    """Yield the row, accuracy and guarantee of each release of a record."""
    config = record["config"]
    corpus, width, system = config["data"]["name"], config["encoder"]["width"], config["method"]
    if system == "adaptive":
        system = f"adaptive {config['training']['adaptive']}"
    for release in record["releases"]:
        figures = (release["test"]["accuracy"], release["privacy"])
        key = (release["privacy"]["epsilon"], release["word_dropout"])
        yield (corpus, width, "no noise", None) if key == NO_NOISE else (corpus, width, system, key), figures


def _row(key: RowKey, values: list[tuple[float, GuaranteeRow]]) -> Record:
    corpus, width, system, release = key
    row: Record = {
        "corpus": corpus,
        "dimensions": width,
        "system": system,
        "epsilon": None,
        "word_dropout": 0.0,
    }
    row["measured"] = estimate([100 * accuracy for accuracy, _ in values])
    privacy = values[0][1]
    if release is None:
        published = PUBLISHED_PLAIN.get((corpus, width))
    else:
        published = PUBLISHED.get((corpus, width), {}).get(system, {}).get(release)
        row |= {"epsilon": release[0], "word_dropout": release[1]}
        row |= {"epsilon_claimed": privacy["epsilon_claimed"], "epsilon_corrected": privacy["epsilon_corrected"]}
    agrees = None if published is None else reproduces(row["measured"], Published(100 * published, rounding=0.5))
    return row | {"published": None if published is None else 100 * published, "agrees": agrees}


def _cell(row: Record, seeds: int) -> str:
    published = None if row["published"] is None else f"{row['published']:.0f}"
    return table_cell(row["measured"], seeds, 1, published, row["agrees"])
