"""Trackers: observers that send a run's settings and figures to TensorBoard, Weights & Biases, MLflow or a CSV file."""
