"""Mix batches of public text into private rounds: what it brings at the same ε, in the frame of the figure *levers*.

    python benchmarks/public_batches.py --data ../shared/data --out DIR

runs the figure's base on Ubuntu IRC with every seed and ε, and adds to each round's noisy average the clipped gradients
of as many sentences of the made-up users that ship, times a share: 0, which is the base itself, ½ and 1. That is
post-processing, so ε stays what it is. Finished runs are not repeated; the table has means over the seeds, and the
difference to share 0 with its standard error.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable
from pathlib import Path

from flwr.app import Message

from fl_sim.clients.gradients.clipped_sums import clipped_gradient_sum
from fl_sim.clients.models.language_model import load_model
from fl_sim.config import RunConfig
from fl_sim.data_prep.store.corpus import Corpus
from fl_sim.engines import simulation
from fl_sim.engines.engine import Engine
from fl_sim.experiments.experiment import Experiment
from fl_sim.reporting.run_facts import read_facts
from fl_sim.research.uedp_paper.figure_corpora import CorpusStore
from fl_sim.research.uedp_paper.figure_training import plan_figure
from fl_sim.research.uedp_paper.figures import find_figures, load_figure
from fl_sim.storage.run_folder import RunFolder
from fl_sim.strategies.aggregation import BoundedSumStrategy, RoundParts
from fl_sim.strategies.primitives import streams
from fl_sim.strategies.primitives.noise import Floats

SENTENCES = 1000  # of a round, as the private ones in expectation
SHARES = (0.0, 0.5, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the raw corpora, a folder each")
    parser.add_argument("--out", type=Path, required=True, help="folder of the corpora and the runs")
    args = parser.parse_args()
    figure = load_figure(find_figures()["levers"])
    plan = plan_figure(figure, args.out, CorpusStore(args.data, args.out / "corpora", print), ["irc"])
    runs = [run for run in plan.runs if run.curve.name == figure.reference]
    print("ε  share  perplexity  difference")
    for joint in figure.joint:
        found = {
            share: [
                perplexity(run.config.changed({"out": str(args.out / f"{run.name}-{share}")}), share)
                for run in runs
                if run.point.x == joint
            ]
            for share in SHARES
        }
        for share, values in found.items():
            differences = [value - base for value, base in zip(values, found[0.0], strict=True)]
            error = statistics.stdev(differences) / math.sqrt(len(differences))
            mean = statistics.mean(differences)
            print(f"{joint:g}  {share:g}  {statistics.mean(values):.1f}  {mean:+.1f} ± {error:.1f}", flush=True)


def perplexity(config: RunConfig, share: float) -> float:
    """Return the held-out perplexity of a run with a share of public batches, which is not run again."""
    path = Path(config.out or "")
    if not path.exists():
        with Engine(config.placed_engine) as engine:
            experiment = MixedExperiment.create(config, engine.start)
            experiment.share = share
            simulation.execute(experiment, engine)
    return read_facts(RunFolder.open(path)).utility.final or math.nan


class MixedExperiment(Experiment):
    """Run an experiment whose server adds ``share`` times public gradients to every noisy average."""

    share = 0.0

    def _build_strategy(self) -> BoundedSumStrategy:
        return PublicBatches(super()._build_strategy()._parts, self)


class PublicBatches(BoundedSumStrategy):
    """Add the clipped gradients of public sentences to the noisy average, in the same units."""

    def __init__(self, parts: RoundParts, experiment: MixedExperiment) -> None:
        super().__init__(parts)
        self._experiment, config = experiment, experiment.config
        self._model = load_model(config.model, config.seed)
        self._sentences = self._model.encode(Corpus.open("bundled").texts("train").to_pylist())

    def noisy_average(self, server_round: int, replies: Iterable[Message]) -> Floats:
        """Return the round's release and the public gradients, float64 (d,)."""
        self._model.set_vector(self._open.vector)
        drawn = streams.generator(self._experiment.config.seed, "public batches", server_round)
        ids = drawn.choice(len(self._sentences), SENTENCES, replace=False)
        total = clipped_gradient_sum(self._model, [self._sentences[n] for n in ids], self.mechanism.clip_norm)
        public = self._experiment.share * total.vector / self.mechanism.denominator
        return super().noisy_average(server_round, replies) + public


if __name__ == "__main__":
    main()
