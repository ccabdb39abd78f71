"""Compare utility with and without enforced bounds, at equal ε of any user with any entity of a corpus.

    python benchmarks/bounded_utility.py --corpus bundled --out DIR
    python benchmarks/bounded_utility.py --corpus DIR --set privacy.q_s=0.024 --out DIR --picture entities.png

runs, for every seed and at one target ε: ``uedp`` with the bounds of its defaults; ``uedp`` without them, with the
noise that the corpus's most mentioned entity and largest user then need; ``user_level`` likewise, whose entities are
groups of users; and ``user_level`` with at most five users of an entity. Settings apart from the bounds and the noise
are the defaults. Finished runs are not repeated. The table has mean and standard deviation over the seeds, and
the picture ε of every entity, by its mentions, with and without the bounds at equal noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import fl_sim
from fl_sim.config import RunConfig, parse_assignments
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.experiments.plan.entity_report import Training, entity_epsilons, epsilon_of_any
from fl_sim.experiments.plan.guarantees import EnforcedBounds
from fl_sim.formats import format_epsilon
from fl_sim.reporting.plots import save
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.accounting.accountant import RoundEvent

FEW_USERS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", default="bundled", help="a prepared corpus")
    parser.add_argument("--target", type=float, default=8.0, help="ε of any user with any entity")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", help="variants to run (default: all)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of all uedp runs")
    parser.add_argument(
        "--set-user-level", action="append", default=[], metavar="KEY=VALUE", help="settings of all user_level runs"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and the table")
    parser.add_argument("--picture", type=Path, help="draw ε over the entities into this file, and run nothing")
    args = parser.parse_args()
    ownership = Corpus.open(args.corpus).ownership("train")
    common, of_users = parse_assignments(args.set), parse_assignments(args.set_user_level)
    if args.picture:
        save(entity_picture(ownership, common, args.rounds), args.picture)
        return
    rows = {}
    for name, settings in variants(ownership, common, of_users).items():
        if args.only and name not in args.only:
            continue
        runs = [run_once(args, name, settings, seed) for seed in args.seeds]
        rows[name] = row_of(runs)
        print(json.dumps({"variant": name} | rows[name]), flush=True)
    (args.out / "table.json").write_text(json.dumps(rows, indent=2) + "\n")
    print(as_markdown(rows))


def variants(ownership: Ownership, common: Mapping[str, Any], of_users: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings of every variant; those without bounds state what the corpus's largest contributes."""
    contributions = ownership.entity_contributions()
    users, sentences = int(contributions.users.max()), int(contributions.sentences.max())
    stated = {"privacy.entity_bound_by": "stated", "privacy.entity_users": users}
    user_level = {"privacy.strategy": "user_level", **of_users}
    return {
        "uedp, bounds enforced": dict(common),
        "uedp, no bounds": {
            **common,
            **stated,
            "privacy.entity_bound": sentences,
            "privacy.user_sentences": int(ownership.sentences_per_user.max()),
        },
        "user_level, no bounds": user_level | stated,
        f"user_level, entities of ≤ {FEW_USERS} users": user_level | {"privacy.entity_users": FEW_USERS},
    }


def run_once(args: argparse.Namespace, name: str, settings: Mapping[str, Any], seed: int) -> RunFolder:
    folder = args.out / f"{name.replace(',', '').replace(' ', '-').replace('≤-', '')}-{seed}"
    if not (folder / "result.json").exists():
        fixed = {
            "corpus.path": args.corpus,
            "rounds": args.rounds,
            "seed": seed,
            "out": str(folder),
            "privacy.target_epsilon": args.target,
            "engine.name": "inline",
            "evaluation.every": args.rounds,
        }
        fl_sim.run({**fixed, **settings})
    return RunFolder.open(folder)


def row_of(runs: list[RunFolder]) -> dict[str, Any]:
    results = [run.result or {} for run in runs]
    last = [run.metrics().iloc[-1] for run in runs]
    perplexities = [float(result["perplexity"]) for result in results]
    bound = "epsilon_any" if np.isfinite(last[0]["epsilon_any"]) else "epsilon_stated"
    return {
        "noise_multiplier": results[0]["plan"]["noise_multiplier"],
        "epsilon": max(float(row[bound]) for row in last),
        "kept": results[0]["kept"],
        "initial_perplexity": float(results[0]["initial_perplexity"]),
        "perplexity": statistics.fmean(perplexities),
        "deviation": statistics.stdev(perplexities) if len(perplexities) > 1 else None,
        "seeds": len(runs),
    }


def as_markdown(rows: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["| | z | sentences kept | ε any user + any entity | perplexity |", "|---|---|---|---|---|"]
    for name, row in rows.items():
        spread = "" if row["deviation"] is None else f" ± {row['deviation']:.2f}"
        lines.append(
            f"| {name} | {row['noise_multiplier']:.2f} | {row['kept']['weight']:.1%} "
            f"| {format_epsilon(row['epsilon'])} | {row['initial_perplexity']:.1f} → {row['perplexity']:.1f}{spread} |"
        )
    return "\n".join(lines)


def entity_picture(ownership: Ownership, common: Mapping[str, Any], rounds: int) -> Figure:
    """Draw ε of every entity with any user, entities sorted by mentions, with and without the bounds."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    mentions = ownership.entity_contributions().sentences
    rank = np.argsort(-mentions, kind="stable")
    config = RunConfig.from_mapping(common)
    unbounded = {"privacy.entity_bound": "unbounded", "privacy.user_sentences": "unbounded"}
    for label, settings, colour in (("no bounds", unbounded, "#D55E00"), ("bounds enforced", {}, "#0072B2")):
        privacy = config.changed(settings).privacy if settings else config.privacy
        bounds = EnforcedBounds.of(privacy, ownership, seed=0)
        noise, q_e, q_s = privacy.noise_multiplier or 4.0, privacy.q_e or 0.5, privacy.q_s or 0.1
        event = RoundEvent("uedp", noise, q_e=q_e, q_s=q_s, user_cap=privacy.user_cap or 2.0)
        training = Training(event, rounds, privacy.delta, bounds.guarantee.user.user_sentences)
        entities = entity_epsilons(bounds.kept, training)
        epsilon = entities.detected.upper[entities.profile_of][rank]
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
