"""Engines that compute a run's rounds: in this process, or Flower's on Ray."""
