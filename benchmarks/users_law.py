"""Measure what more users bring: held-out perplexity against the signal-to-noise ratio of `fl-sim plan`, on `irc`.

    python benchmarks/users_law.py --out DIR                                # runs what is missing, on one core
    python benchmarks/users_law.py --out DIR --record results/users_law/irc.json --picture results/users_law/irc.png

Every point is a run of ``uedp`` with the noise that meets an ε of any user with any entity, on the messages of 1,000 to
15,768 users of Ubuntu IRC: smaller populations are a seeded sample of the users, and the held-out users are always the
same. The law of `fl_sim.search.planner` is fitted to the points of `FITTED` and checked on those of `HELD_OUT`: other
populations, ε, rates, numbers of rounds and seeds. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fl_sim.config import RunConfig
from fl_sim.data_prep.corpus_writer import write_corpus
from fl_sim.data_prep.readers.prepared_corpus import sentences_of
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.engines import simulation
from fl_sim.experiments.plan.run_plan import plan_run
from fl_sim.reporting.plots import save
from fl_sim.search.planner import START, Crowd, UsersLaw, error_on, law_of
from fl_sim.storage import environment

CORPUS = "irc"
Q_E, HELD_OUT_MESSAGES = 0.5, 2000
LEARNING_RATE, ENOUGH_SIGNAL = 0.008, 300.0
"""η of the main job, and the ratio below which η falls in proportion: noise alone would move the model too far."""


@dataclass(frozen=True)
class Point:
    """A run.

    Attributes:
        users: N; as many as the corpus has if it has fewer.
        epsilon: of any user with any entity at δ 1e-5, k 10 and m 32.
        q_s: the sampling rate of sentences.
        rounds: T.
        seed: of the run, and of the sample of users.
    """

    users: int
    epsilon: float
    q_s: float = 0.02
    rounds: int = 20
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.users}-{self.epsilon:g}-{self.q_s:g}-{self.rounds}-{self.seed}"


FITTED = [
    *(Point(users, epsilon) for users in (1000, 2000) for epsilon in (2, 4, 8)),
    Point(8000, 2),
    Point(8000, 4),
    Point(16000, 8, 0.033),
]
HELD_OUT = [
    *(Point(4000, epsilon) for epsilon in (2, 4, 8)),
    Point(1500, 16, 0.033, seed=1),
    Point(1500, 1, seed=1),
    Point(16000, 8, 0.025),
    Point(16000, 8, 0.033, seed=1),
]
OTHER_ROUNDS = [Point(3000, 3, rounds=12, seed=2)]  # neither fitted nor in the error: what becomes of fewer rounds
ROUNDS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of corpora and runs")
    parser.add_argument("--record", type=Path, help="write the points that are there, and the law, into this file")
    parser.add_argument("--picture", type=Path, help="and draw them into this one")
    args = parser.parse_args()
    if args.record is None:
        for point in (*FITTED, *HELD_OUT, *OTHER_ROUNDS):
            print(json.dumps(measured(point, args.out)), flush=True)
        return
    fitted, held_out, others = (
        [measured(point, args.out) for point in points if (args.out / f"{point.name}.json").exists()]
        for points in (FITTED, HELD_OUT, OTHER_ROUNDS)
    )
    points = [[(row["signal_to_noise"], gain_of(row)) for row in rows] for rows in (fitted, held_out)]
    law = law_of(*points, ROUNDS)
    record = {
        "format": "fl-sim users law",
        "format_version": 1,
        "corpus": {"name": CORPUS, "fingerprint": Corpus.open(CORPUS).fingerprint},
        "law": asdict(law),
        "fitted": fitted,
        "error_on": {name: error_on(law, pairs) for name, pairs in zip(("fitted", "held_out"), points, strict=True)},
        "held_out": [row | {"expected_perplexity": expected(law, row)} for row in held_out],
        "other_rounds": [row | {"expected_perplexity": expected(law, row)} for row in others],
        "environment": environment.describe(),
    }
    args.record.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if args.picture is not None:
        save(picture(law, fitted, held_out), args.picture)


def gain_of(row: Mapping[str, Any]) -> float:
    """Return how far log perplexity has fallen."""
    return math.log(row["initial_perplexity"] / row["perplexity"])


def expected(law: UsersLaw, row: Mapping[str, Any]) -> float:
    """Return the perplexity that the law expects of a point, from its own start."""
    return law.perplexity(row["signal_to_noise"], row["initial_perplexity"])


def _neighbours(rows: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the points in groups that are too close together for a label each."""
    groups: list[list[Mapping[str, Any]]] = []
    for row in sorted(rows, key=lambda row: row["signal_to_noise"]):
        if groups and row["signal_to_noise"] < 1.15 * groups[-1][-1]["signal_to_noise"]:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def picture(law: UsersLaw, fitted: Sequence[Mapping[str, Any]], held_out: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw perplexity against the ratio: the law with two errors, the points of the fit, and those held out."""
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    ratios = np.geomspace(law.lowest / 1.5, law.highest * 2, 200)
    bounds = np.array([law.interval(r, START) for r in ratios])
    axes.fill_between(ratios, bounds[:, 0], bounds[:, 1], color="#0072B2", alpha=0.18, linewidth=0)
    axes.plot(ratios, [law.perplexity(r, START) for r in ratios], color="#0072B2", label="law, ± two errors")
    for rows, marker, label in ((fitted, "o", "fitted"), (held_out, "D", "held out")):
        places = [START * math.exp(-gain_of(row)) for row in rows]
        fill = {} if marker == "o" else {"markerfacecolor": "white"}
        axes.plot([row["signal_to_noise"] for row in rows], places, marker, color="#D55E00", label=label, **fill)
    for rows, offset, side, base in ((fitted, (-7, -5), "right", "top"), (held_out, (7, 5), "left", "bottom")):
        for group in _neighbours(rows):
            words = "\n".join(dict.fromkeys(f"{row['users']:,}, ε {row['epsilon']:g}" for row in group))
            first = group[0] if side == "right" else group[-1]
            place = (first["signal_to_noise"], START * math.exp(-gain_of(first)))
            style = {"xytext": offset, "textcoords": "offset points", "fontsize": 6, "ha": side, "va": base}
            axes.annotate(words, place, **style)
    axes.set(xscale="log", yscale="log", ylabel="held-out perplexity per token")
    axes.set_xlabel("signal-to-noise ratio √T·S/(z·ŵ), proportional to the users")
    axes.set_yticks([150, 200, 300, 400], ["150", "200", "300", "400"])
    axes.minorticks_off()
    axes.grid(color="#E3E3E3", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def measured(point: Point, folder: Path) -> dict[str, Any]:
    """Return what the run of a point measured; run it if no file in ``folder`` says so."""
    file = folder / f"{point.name}.json"
    if not file.exists():
        file.write_text(json.dumps(_run(point, folder)) + "\n", encoding="utf-8")
    row: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return row


def _run(point: Point, folder: Path) -> dict[str, Any]:
    corpus = population(point, folder)
    config = RunConfig.from_mapping({
        "seed": point.seed, "rounds": point.rounds, "corpus.path": str(corpus.path), "out": str(folder / point.name),
        "privacy.q_e": Q_E, "privacy.q_s": point.q_s, "privacy.user_cap": 1.0,
        "privacy.target_epsilon": point.epsilon, "evaluation.every": point.rounds,
        "evaluation.max_sentences": HELD_OUT_MESSAGES, "checkpoint_every": point.rounds, "engine.name": "inline",
    })  # fmt: skip
    planned = plan_run(config, corpus.ownership("train"))
    z = planned.plan.mechanism.noise_multiplier
    signal = Crowd(planned.bounds.ownership, planned.bounds.weights).signal(1.0, Q_E, point.q_s, 1.0)
    ratio = math.sqrt(point.rounds) * signal / z
    rate = LEARNING_RATE * min(1.0, ratio / ENOUGH_SIGNAL)
    began = time.process_time()
    run = simulation.run(config.changed({"server.learning_rate": rate}))
    seconds = time.process_time() - began
    result = run.result or {}
    if result.get("stopped") != "rounds":
        raise SystemExit(f"{run.path}: the run did not end; remove it and start again")
    return asdict(point) | {
        "users": corpus.ownership("train").num_users,
        "noise_multiplier": z,
        "learning_rate": rate,
        "signal_to_noise": ratio,
        "initial_perplexity": result["initial_perplexity"],
        "perplexity": result["perplexity"],
        "messages": int(run.metrics()["cohort_sentences"].sum()),
        "seconds": round(seconds, 1),
    }


def population(point: Point, folder: Path) -> Corpus:
    """Return the corpus with a seeded sample of its training users; the held-out users stay."""
    whole = Corpus.open(CORPUS)
    keys = np.array(whole.users("train")["user"])
    if point.users >= len(keys):
        return whole
    out = folder / f"irc-{point.users}-{point.seed}"
    if not out.exists():
        kept = set(np.random.default_rng([17, point.seed]).permutation(keys)[: point.users])
        sentences = (s for s in sentences_of(whole) if s.split != "train" or s.user in kept)
        write_corpus(sentences, out, name=out.name, tagger=whole.manifest.tagger)
    return Corpus.open(out)


if __name__ == "__main__":
    main()
