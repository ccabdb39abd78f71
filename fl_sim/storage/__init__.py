"""The run folder: metrics, checkpoints, model files and results, safe against kills."""
