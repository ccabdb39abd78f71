"""The run folder: metrics, checkpoints, model files and results, written so that a kill loses nothing."""
