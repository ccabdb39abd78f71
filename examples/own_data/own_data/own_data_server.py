"""Average the users' bounded updates with noise, and say what it cost: ε in the log, the ledger in the run's folder."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fl_sim.flower import UserLevelDifferentialPrivacy

FEATURES = 4

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the configured number of rounds."""
    config = context.run_config
    initial = ArrayRecord({"weights": Array(np.zeros(FEATURES)), "bias": Array(np.zeros(1))})
    strategy = UserLevelDifferentialPrivacy(
        FedAvg(),
        population=config["population"],
        sampling_rate=config["sampling-rate"],
        clip_norm=config["clip-norm"],
        noise_multiplier=config["noise-multiplier"],
        seed=config["seed"] if config["seed"] >= 0 else None,
        folder=config["folder"] or None,
        resume=config["resume"],
    )
    strategy.start(
        grid,
        initial,
        num_rounds=config["num-server-rounds"],
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
    )
