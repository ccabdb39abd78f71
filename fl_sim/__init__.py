"""fl_sim: federated-learning simulation with user-entity differential privacy."""

__version__ = "0.1.0"
