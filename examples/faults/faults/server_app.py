"""The ServerApp: a few rounds of private averaging, with the fault that the configuration names."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from faults.faulty_averages import FAULTS
from faults.private_average import PrivateAverage

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train for the configured number of rounds."""
    config = context.run_config
    strategy = FAULTS[config["fault"]] if config["fault"] else PrivateAverage
    zeros = {"weight": np.zeros(40), "bias": np.zeros(()), "running_mean": np.zeros(8)}
    initial = ArrayRecord({name: Array(value) for name, value in zeros.items()})
    strategy(config).start(grid, initial, num_rounds=config["num-server-rounds"])
