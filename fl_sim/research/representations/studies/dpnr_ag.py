"""DPNR's tables 2 to 5 and 7 and its figures 3 and 4 on its AG set, with MiniLM in place of BERT-base.

Two encoders: *frozen*, a network of two layers on features that are computed once; and *fine-tuned*, whose upper layers
and tanh pooler train, for fewer seeds. DPNR appears twice: as in its paper, with independent noise on each coordinate,
and as in its published code, with one noise number for all coordinates (``dpnr-shared``), which protects nothing.

>>> THIN.tuned_seeds, FULL.tuned_seeds is None, THIN.epsilons == FULL.epsilons
(3, True, True)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fl_sim.research.representations.config import ExperimentConfig, load_mapping
from fl_sim.research.representations.corpora.labelled_text import AG_PERSONS
from fl_sim.research.representations.experiment_record import ExperimentRecord
from fl_sim.research.representations.studies.agreement import (
    Counts,
    Estimate,
    Published,
    count_verdicts,
    estimate,
    reproduces,
)
from fl_sim.research.representations.studies.dpnr_pages import scattered
from fl_sim.research.representations.studies.dpnr_published import (
    ATTACKED,
    EPSILON_OF_RATES,
    EPSILONS,
    LAYERS,
    RATES,
    fairness_row,
    published_figures,
    verdict,
)
from fl_sim.research.representations.studies.study_runs import (
    Log,
    Options,
    Record,
    collect_figures,
    heading,
    points_of_experiments,
)
from fl_sim.research.study_files import Point

BASELINES = {"majority": "majority", "unconstrained": "non-priv", "coavoux": "adv"}
"""The paper's name of each method."""
LEAST_SEEDS = 3
"""For a verdict on a published figure: the interval of two seeds, 9 deviations to each side, holds nearly any."""
FROZEN, TUNED = "frozen", "fine-tuned"
RowKey = tuple[str, str, float | None, float]
"""Encoder, system, ε and μ."""
Rows = dict[RowKey, list[Record]]


@dataclass(frozen=True)
class Grid:
    """The trainings of each seed.

    Attributes:
        epsilons: ε of DPNR, 0.05 and 1 among them; one training and one attacker each.
        rates: μ at ε = 1.
        tuned_seeds: number of seeds that are also fine-tuned; None for all.
        tuned_epsilons: ε of DPNR with a fine-tuned encoder, 0.05 among them.
        tuned_rates: μ at ε = 1 with a fine-tuned encoder, as in DPNR's code: a mask in training and test.
        tuned_layers: uppermost layers that train, with the pooler.
        tuned_tokens: longest text of a fine-tuned encoder.
    """

    epsilons: tuple[float, ...] = EPSILONS
    rates: tuple[float, ...] = RATES
    epochs: int = 4
    attacker_epochs: int = 20
    model: str = "minilm"
    tuned_seeds: int | None = None
    tuned_epsilons: tuple[float, ...] = EPSILONS
    tuned_rates: tuple[float, ...] = RATES
    tuned_epochs: int = 4
    tuned_layers: int = 2
    tuned_tokens: int = 64


THIN = Grid(attacker_epochs=5, tuned_seeds=3, tuned_epsilons=(0.05,), tuned_rates=(), tuned_epochs=1)
"""The default."""

FULL = Grid()
"""Four epochs of fine-tuning with every ε, μ and seed, and the attacker's default training."""


def reproduce(options: Options, log: Log = lambda *line: None) -> Record:
    """Return tables and figures as a JSON-ready mapping: a row for each encoder, system, ε and μ."""
    grid = FULL if options.full else THIN
    rows: Rows = collect_figures(lambda seed: _frozen(seed, grid, options), _figures, options, log)
    tuned = replace(options, seeds=options.seeds[: grid.tuned_seeds])
    rows |= collect_figures(lambda seed: _tuned(seed, grid, options), _figures, tuned, log)
    log("  t-SNE")
    return {
        **heading("dpnr-ag", "DPNR (Lyu, He and Li 2020), tables 2 to 5 and 7, figures 3 and 4, the AG set", options),
        "model": grid.model,
        "attacker_epochs": grid.attacker_epochs,
        "tuning": {
            "seeds": list(tuned.seeds),
            "epochs": grid.tuned_epochs,
            "trained_layers": grid.tuned_layers,
            "max_tokens": grid.tuned_tokens,
        },
        "rows": (made := [_row(key, values) for key, values in rows.items()]),
        "reproduced": {encoder: _counts(made, encoder) for encoder in (FROZEN, TUNED)},
        "fairness": _fairness(rows),
        "tsne": scattered(_pictured(options.seeds[0], grid, options)),
    }


def points(table: Record, options: Options) -> list[Point]:
    """Return the points of a table, without figure 4."""
    grid = FULL if options.full else THIN

    def configs(seed: int) -> Iterator[ExperimentConfig]:
        yield from _frozen(seed, grid, options)
        if seed in options.seeds[: grid.tuned_seeds]:
            yield from _tuned(seed, grid, options)

    return points_of_experiments(
        table, configs, _figures, _row, ("encoder", "system", "epsilon", "word_dropout"), options
    )


def _base(seed: int, options: Options) -> Record:
    return {
        "seed": seed,
        "data": {"name": "dpnr-ag", "source": str(options.source)},
        "feature_cache": None if options.work is None else str(options.work / "features"),
    }


def _attacks(grid: Grid) -> Record:
    return {"leakage": False, "mdl": False, "attacker": True, "attacker_epochs": grid.attacker_epochs}


_ADV = {"server": {"weight_schedule": "constant"}}
"""The paper names no schedule of ADV's weight, and a rising one is 0 in the only epoch of fine-tuning."""


def _baseline(method: str, base: Record, grid: Grid) -> ExperimentConfig:
    style = _ADV if method == "coavoux" else {}
    # How much is read from vectors without noise depends on the attacker most.
    attacks = {**_attacks(grid), "published_attacker": True}
    return load_mapping({**base, **style, "method": method, "attacks": attacks})


def _frozen(seed: int, grid: Grid, options: Options) -> Iterator[ExperimentConfig]:
    """Yield the experiments of a seed with frozen features."""
    base = {
        **_base(seed, options),
        "encoder": {"kind": "mlp", "width": 384, "model": grid.model},
        "training": {"epochs": grid.epochs, "batch_size": 64},
        "attacks": _attacks(grid),
    }
    for method in BASELINES:
        yield _baseline(method, base, grid)
    for layer in LAYERS:
        for epsilon in grid.epsilons:
            rates = grid.rates if epsilon == EPSILON_OF_RATES else ()
            releases = [{"epsilon": epsilon, "word_dropout": rate} for rate in rates]
            privacy = {"layer": layer, "epsilon": epsilon}
            yield load_mapping({**base, "method": "robust", "privacy": privacy, "releases": releases})


def _tuned(seed: int, grid: Grid, options: Options) -> Iterator[ExperimentConfig]:
    """Yield the experiments of a seed that fine-tune the encoder and send its pooler's state."""
    base = {
        **_base(seed, options),
        "encoder": {
            "kind": "transformer",
            "model": grid.model,
            "pooling": "pooler",
            "trained_layers": grid.tuned_layers,
            "max_tokens": grid.tuned_tokens,
        },
        "training": {"epochs": grid.tuned_epochs, "batch_size": 32},
        "optimizer": {"learning_rate": 1e-4},
        "attacks": _attacks(grid),
    }
    for method in BASELINES:
        if method != "majority":  # it has no encoder
            yield _baseline(method, base, grid)
    for layer in LAYERS:
        for epsilon in grid.tuned_epsilons:
            yield load_mapping({**base, "method": "robust", "privacy": {"layer": layer, "epsilon": epsilon}})
    for rate in grid.tuned_rates:
        mask = {"word_dropout": rate, "dropped_words": "masked", "dropout_in_training": True}
        privacy = {"layer": "dpnr-shared", "epsilon": EPSILON_OF_RATES, **mask}
        yield load_mapping({**base, "method": "robust", "privacy": privacy})


def _pictured(seed: int, grid: Grid, options: Options) -> dict[str, ExperimentConfig]:
    """Return the systems of figure 4 by name: those whose sent vectors are drawn."""
    systems = {}
    for config in _frozen(seed, grid, options):
        if config.method == "unconstrained":
            systems["non-priv"] = config
        if config.method == "robust" and config.privacy.epsilon == ATTACKED:
            systems[config.layer] = config
    return systems


def _figures(record: ExperimentRecord) -> Iterator[tuple[RowKey, Record]]:
    """Yield the rows of a record and their figures, in percent."""
    test, privacy = record["metrics"]["test"], record["privacy"]
    method = record["config"]["method"]
    noisy = method not in BASELINES
    system = privacy["layer"] if noisy else BASELINES[method]
    encoder = TUNED if record["config"]["encoder"]["kind"] == "transformer" else FROZEN
    figures: Record = {"accuracy": 100 * test["accuracy"], "privacy": privacy}
    attacker = record["metrics"]["attacks"]["attacker"]
    figures["privacy_f"] = 100 * attacker["empirical_privacy_f"]
    figures["privacy_x"] = 100 * attacker["empirical_privacy_x"]
    if not noisy:
        of_code = record["metrics"]["attacks"]["published_attacker"]
        figures["privacy_f_of_code"] = 100 * of_code["empirical_privacy_f"]
    figures["attacker"], figures["task"], figures["sizes"] = {}, {}, {}
    for number, person in enumerate(AG_PERSONS):
        group = test["groups"][person]
        absent = 100 * group["accuracy_without"]
        named = round(record["data"]["test"] * group["share_with"])
        figures["attacker"][person] = (100 * attacker["absent"][number], 100 * attacker["present"][number])
        figures["task"][person] = (absent, 100 * group["accuracy_with"] - absent)
        figures["sizes"][person] = (record["data"]["test"] - named, named)
    rate = record["config"]["privacy"]["word_dropout"]
    yield (encoder, system, privacy["epsilon"] if noisy else None, rate), figures
    for release in record.get("releases", ()):
        key = (encoder, system, release["privacy"]["epsilon"], release["word_dropout"])
        yield key, {"accuracy": 100 * release["test"]["accuracy"], "privacy": release["privacy"]}


def _row(key: RowKey, values: Sequence[Record]) -> Record:
    encoder, system, epsilon, rate = key
    privacy = values[0]["privacy"]
    row: Record = {
        "encoder": encoder,
        "system": system,
        "epsilon_proven": privacy.get("epsilon_corrected"),
        "epsilon_claimed": privacy.get("epsilon_claimed"),
        "epsilon": epsilon,
        "word_dropout": rate,
        "seeds": len(values),
    }
    for name in ("accuracy", "privacy_f", "privacy_x", "privacy_f_of_code"):
        if name in values[0]:
            row[name] = estimate([value[name] for value in values])
    for name in ("attacker", "task"):
        if name in values[0]:
            row[name] = {
                person: [estimate([value[name][person][side] for value in values]) for side in (0, 1)]
                for person in AG_PERSONS
            }
    row["published"] = published_figures(system, epsilon, rate)
    enough = len(values) >= LEAST_SEEDS
    row["agrees"] = _compare(row, enough)
    if "privacy_f_of_code" in row:  # beside "agrees", so that the figure does not count twice
        row["agrees_of_code"] = _verdict(row["privacy_f_of_code"], row["published"]["privacy_f"], enough)
    return row


def _verdict(ours: Estimate, published: float, enough: bool) -> bool | None:
    """Return whether a published figure is reproduced; None where there are too few seeds for a verdict."""
    return reproduces(ours, Published(published)) if enough else None


def _compare(row: Record, enough: bool) -> Record:
    """Return the verdict on each published figure of a row, in the form of "published"."""
    verdicts: Record = {}
    for name, published in row["published"].items():
        if isinstance(published, float):
            verdicts[name] = _verdict(row[name], published, enough)
        else:
            verdicts[name] = {
                person: [_verdict(ours, figure, enough) for ours, figure in zip(row[name][person], pair, strict=True)]
                for person, pair in published.items()
            }
    return verdicts


def _counts(rows: Sequence[Record], encoder: str) -> dict[str, Counts]:
    """Return the counts of the baselines and of each version of DPNR, both of which have the paper's figures."""
    verdicts: dict[str, list[Record]] = {"baselines": [], **{layer: [] for layer in LAYERS}}
    for row in rows:
        if row["encoder"] == encoder:
            verdicts[row["system"] if row["system"] in LAYERS else "baselines"].append(row["agrees"])
    return {of: count_verdicts(agrees) for of, agrees in verdicts.items()}


def _fairness(rows: Rows) -> list[Record]:
    """Return a row per encoder, version of DPNR and person: by how much its gap is smaller than NON-PRIV's."""
    made = []
    for encoder in (FROZEN, TUNED):
        plain = rows[encoder, "non-priv", None, 0.0]
        for layer in LAYERS:
            private = rows[encoder, layer, ATTACKED, 0.0]
            own = [fairness_row(layer, person, plain, private) for person in AG_PERSONS]
            after, before = (estimate([one["accuracy"] for one in of])["mean"] for of in (private, plain))
            words = verdict([row["standard_errors"] for row in own if "published" in row])
            made += [{"encoder": encoder, **row, "accuracy_change": after - before, "verdict": words} for row in own]
    return made
