"""Choice of settings over many runs: planner, sweeps and batches."""
