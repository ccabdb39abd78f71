"""Compare utility at equal ε by what may be known, by bounds, and by the sampling of entities; say who loses.

    python benchmarks/what_is_known.py --config conf/irc.toml --out DIR
    python benchmarks/what_is_known.py --config conf/irc.toml --out DIR --picture entities.png

runs a configuration of ``uedp`` with its own bounds, for every seed and at one target ε of any user with any entity:
with counts known and with the mention graph known; with q_e = ½ and as many sentences, at the same ε, and at the same ε
for an entity that the tagger misses; without bounds, with the noise that the corpus's most mentioned entity then needs;
``user_level`` with at most five users of an entity, and without bounds; and ``noiseless`` with as many rounds. Finished
runs are not repeated. The tables have means over the seeds; the picture has ε of every entity, by its mentions, with
and without the bounds at equal noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import fl_sim
from fl_sim.config import RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.entity_report import Training, bounded_entity_epsilons, epsilon_of_any
from fl_sim.experiments.plan.run_plan import Planned, plan_run
from fl_sim.formats import format_epsilon
from fl_sim.reporting.plots import save
from fl_sim.storage.run_folder import RunFolder

FEW_USERS = 5
DELTAS = (1e-5, 1e-6, 1e-8)
COUNTS, GRAPH, HALF, ROBUST = "counts", "graph", "counts, q_e ½", "counts, q_e ½, at robust ε"

Settings = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True, help="a configuration of uedp")
    parser.add_argument("--target", type=float, default=8.0, help="ε of any user with any entity")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", help="variants to run (default: all)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and the tables")
    parser.add_argument("--picture", type=Path, help="draw ε over the entities into this file, and run nothing")
    args = parser.parse_args()
    config = RunConfig.load(args.config).changed({"engine.name": "inline", "privacy.known": COUNTS})
    ownership = Corpus.open(config.corpus.path).ownership(config.corpus.train_split)
    if args.picture:
        save(entity_picture(config, ownership), args.picture)
        return
    every = variants(config, ownership, args.target)
    noise = {name: noise_by_delta(config, ownership, every[name]) for name in (COUNTS, GRAPH, HALF)}
    rows = {}
    for name in args.only or every:
        runs = [run_once(args.out, name, config.changed(every[name]), seed) for seed in args.seeds]
        rows[name] = row_of(runs)
        print(json.dumps({"variant": name} | rows[name]), flush=True)
    (args.out / "table.json").write_text(json.dumps({"rows": rows, "noise_by_delta": noise}, indent=2) + "\n")
    print(as_markdown(rows))


def variants(config: RunConfig, ownership: Ownership, target: float) -> dict[str, Settings]:
    """Return what every variant changes in the configuration."""
    aimed = {"privacy.noise_multiplier": None, "privacy.target_epsilon": target}
    contributions = ownership.entity_contributions()
    stated = {
        "privacy.known": "nothing", "privacy.population": ownership.num_users,
        "privacy.entity_users": int(contributions.users.max()),
    }  # fmt: skip
    counted = plan_run(config.changed(aimed), ownership)
    messages = expected_sentences(counted)
    half = {"privacy.q_e": 0.5}
    thinned = expected_sentences(plan_run(config.changed(aimed | half), ownership))
    half["privacy.q_s"] = min(1.0, counted.plan.mechanism.q_s * messages / thinned)
    robust = plan_run(config.changed(aimed | half | {"privacy.q_e": 1.0}), ownership)
    unbounded = {"privacy.user_sentences": "unbounded", "privacy.q_s": messages / ownership.num_sentences}
    user_level = aimed | {
        "privacy.strategy": "user_level", "privacy.q_u": messages / ownership.num_sentences, "privacy.q_e": None,
        "privacy.q_s": None, "privacy.user_cap": None, "privacy.entity_bound": None, "privacy.user_sentences": None,
    }  # fmt: skip
    return {
        COUNTS: aimed,
        GRAPH: aimed | {"privacy.known": "graph"},
        HALF: aimed | half,
        ROBUST: half | {"privacy.noise_multiplier": robust.plan.mechanism.noise_multiplier},
        "no bounds": aimed | stated | unbounded | {"privacy.entity_bound": int(contributions.sentences.max())},
        f"user_level, ≤ {FEW_USERS} users": user_level
        | {"privacy.known": "graph", "privacy.entity_users": FEW_USERS},
        "user_level, no bounds": user_level | stated,
        "noiseless": {
            "privacy.strategy": "noiseless", "privacy.noise_multiplier": None, "privacy.clip_norm": None,
            "privacy.user_cap": None, "privacy.entity_bound": None, "privacy.user_sentences": None,
            "privacy.q_e": 1.0, "privacy.q_s": messages / ownership.num_sentences,
        },
    }  # fmt: skip


def expected_sentences(plan: Planned) -> float:
    """Return the expected number of sentences that train in a round, which the owner alone may know."""
    mechanism, bounds = plan.plan.mechanism, plan.bounds
    active = np.power(mechanism.q_e, bounds.ownership.entities_per_sentence)
    return float(mechanism.q_u * mechanism.q_s * (bounds.weights * active).sum())


def noise_by_delta(config: RunConfig, ownership: Ownership, settings: Settings) -> dict[str, float]:
    """Return z that meets the target at each of :data:`DELTAS`."""
    return {
        f"{delta:g}": plan_run(
            config.changed(settings | {"privacy.delta": delta}), ownership
        ).plan.mechanism.noise_multiplier
        for delta in DELTAS
    }


def run_once(out: Path, name: str, config: RunConfig, seed: int) -> RunFolder:
    folder = out / f"{name.replace(',', '').replace('≤ ', '').replace('ε', 'epsilon').replace(' ', '-')}-{seed}"
    if not (folder / "result.json").exists():
        fl_sim.run(config.changed({"seed": seed, "out": str(folder), "evaluation.every": config.rounds}))
    return RunFolder.open(folder)


def row_of(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """Return the figures of runs that differ in their seed: means, and the standard deviation of the perplexity."""
    results = [run.result or {} for run in runs]
    last = [run.metrics().iloc[-1] for run in runs]
    perplexities = [float(result["perplexity"]) for result in results]
    epsilon = {name: max(float(row[name]) for row in last) for name in last[0].index if name.startswith("epsilon_")}

    def mean(*keys: str) -> float:
        values = []
        for result in results:
            value: Any = result["held_out"]
            for key in keys:
                value = value[key]
            values.append(float(value["value"]))
        return statistics.fmean(values)

    def classes(key: str) -> dict[str, float]:
        found: dict[str, list[float]] = {}
        for result in results:
            for row in result["held_out"][key]:
                found.setdefault(f"{row['lowest']}+", []).append(float(row["figure"]["value"]))
        return {name: statistics.fmean(values) for name, values in found.items()}

    return {
        "noise_multiplier": results[0]["plan"]["noise_multiplier"],
        "epsilon": epsilon,
        "kept": results[0]["kept"],
        "messages": statistics.fmean(float(run.metrics()["cohort_sentences"].iloc[1:].sum()) for run in runs),
        "initial_perplexity": statistics.fmean(float(result["initial_perplexity"]) for result in results),
        "perplexity": statistics.fmean(perplexities),
        "deviation": statistics.stdev(perplexities) if len(perplexities) > 1 else None,
        "bits_per_byte": mean("figures", "bits_per_byte"),
        "parts": {
            part: mean("by_mention", part, "figures", "bits_per_byte") for part in results[0]["held_out"]["by_mention"]
        },
        "by_sentences": classes("by_sentences"),
        "by_training_mentions": classes("by_training_mentions"),
        "seeds": len(runs),
    }


def as_markdown(rows: Mapping[str, Mapping[str, Any]]) -> str:
    columns = ["", "z", "kept: sentences, mentions", "messages", "perplexity", "bits per byte", "entities"]
    columns.append("their sentences")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, row in rows.items():
        spread = "" if row["deviation"] is None else f" ± {row['deviation']:.1f}"
        kept, parts = row["kept"], row["parts"]
        cells = [
            name,
            f"{row['noise_multiplier']:.2f}",
            f"{kept['sentences']:.1%}, {kept['mentions']:.1%}",
            f"{row['messages']:,.0f}",
            f"{row['initial_perplexity']:.1f} → {row['perplexity']:.1f}{spread}",
            *(f"{bits:.2f}" for bits in (row["bits_per_byte"], parts["entity_tokens"], parts["with_mention"])),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for title in ("by_sentences", "by_training_mentions"):
        columns = list(dict.fromkeys(key for row in rows.values() for key in row[title]))
        lines += ["", f"| {title} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
        for name, row in rows.items():
            cells = [f"{row[title][key]:.2f}" if key in row[title] else "–" for key in columns]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def entity_picture(config: RunConfig, ownership: Ownership) -> Figure:
    """Draw ε of every entity with any user, entities sorted by mentions, by what is known and without bounds."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    rank = np.argsort(-ownership.entity_contributions().sentences, kind="stable")
    unbounded = {"privacy.entity_bound": "unbounded", "privacy.user_sentences": "unbounded"}
    for label, settings, colour in (
        ("no bounds", unbounded, "#D55E00"),
        ("graph known", {"privacy.known": "graph"}, "#009E73"),
        ("counts known", {}, "#0072B2"),
    ):
        plan = plan_run(config.changed(settings), ownership)
        event, bounds = plan.plan.mechanism.event(), plan.bounds
        training = Training(event, config.rounds, config.privacy.delta, bounds.guarantee.user)
        entities = bounded_entity_epsilons(bounds, training, ownership.num_users)
        epsilon = np.asarray(entities.detected)[entities.profile_of][rank]
        axes.plot(np.arange(1, len(rank) + 1), epsilon, ".", markersize=3, color=colour, label=label)
        if bounds.guarantee.covers_any_entity:
            headline = epsilon_of_any(bounds.guarantee, training, ownership.num_users)
            axes.axhline(headline, color=colour, linewidth=1.2, label=f"ε of any entity: {format_epsilon(headline)}")
    axes.set(xscale="log", yscale="log", xlabel="entities, most mentioned first", ylabel="ε, any user + entity")
    axes.grid(color="#E3E3E3", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


if __name__ == "__main__":
    main()
