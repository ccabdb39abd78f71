"""Many runs and their settings: planning, sweeps and batches."""
